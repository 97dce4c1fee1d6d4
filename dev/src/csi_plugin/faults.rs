//! Faults of the plugin, which tests order.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tonic::{Code, Status};

use quorate::grpc_code;

/// A fault: the calls that it affects, how often, and its effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// The method, as in `CreateVolume`; none: every call about a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The backend's id of the volume; none: any volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The node id of the call; none: any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The number of calls; none: until it is cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// Its effect.
    pub happens: Happening,
}

/// The effect of a fault on a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Happening {
    /// The call does nothing and answers this.
    Fails(Answer),
    /// The call takes effect and answers this nevertheless.
    FailsAfter(Answer),
    /// The call does nothing and answers OK.
    Pretends,
    /// The call does nothing and never answers.
    Hangs,
    /// The call takes effect and never answers.
    LosesReply,
    /// The call takes this many milliseconds longer. Other faults apply after the delay.
    DelaysMs(u64),
    /// The call waits until it is released. Then those other faults apply that were in force when it began.
    Waits,
    /// The plugin dies before the call takes effect.
    Crashes,
    /// The plugin dies after the call took effect, before it answers.
    CrashesAfter,
}

/// An answer with an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Answer {
    /// The gRPC code, as in `Unavailable`.
    pub code: String,
    /// The message. `{secrets}` is replaced by the values of the call's secrets: some plugins print them.
    #[serde(default)]
    pub message: String,
}

impl Answer {
    pub(super) fn status(&self, secrets: &BTreeMap<String, String>) -> Status {
        let values: Vec<&str> = secrets.values().map(String::as_str).collect();
        let message = self.message.replace("{secrets}", &values.join(", "));
        // `check` refused every other code.
        Status::new(grpc_code::named(&self.code).unwrap_or(Code::Unknown), message)
    }
}

/// What a call is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    pub method: &'a str,
    pub volume: &'a str,
    pub node: Option<&'a str>,
}

impl Fault {
    /// # Errors
    /// The reason why the fault is invalid.
    pub(super) fn check(&self) -> Result<(), String> {
        match &self.happens {
            Happening::Fails(answer) | Happening::FailsAfter(answer) => {
                match grpc_code::named(&answer.code) {
                    None => Err(format!(
                        "unknown gRPC code {:?}; expected one as in Unavailable",
                        answer.code
                    )),
                    Some(Code::Ok) => Err("OK is not an error".to_owned()),
                    Some(_) => Ok(()),
                }
            }
            Happening::Pretends
            | Happening::Hangs
            | Happening::LosesReply
            | Happening::DelaysMs(_)
            | Happening::Waits
            | Happening::Crashes
            | Happening::CrashesAfter => Ok(()),
        }
    }

    fn concerns(&self, about: About<'_>) -> bool {
        let method = match &self.method {
            Some(method) => method == about.method,
            None => !about.volume.is_empty(),
        };
        method
            && self.volume.as_ref().is_none_or(|volume| volume == about.volume)
            && self.node.as_deref().is_none_or(|node| Some(node) == about.node)
    }
}

/// The effect of all faults on one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Strike {
    /// The sum of all delays.
    pub delay: Duration,
    /// The number of releases so far, for a call that waits for another one.
    pub waits_since: Option<u64>,
    /// The first fault of another kind.
    pub happens: Option<Happening>,
}

/// The faults in force.
#[derive(Debug, Default)]
pub(super) struct Faults {
    in_force: Mutex<Vec<Fault>>,
    /// The number of releases.
    releases: watch::Sender<u64>,
}

impl Faults {
    pub fn add(&self, fault: Fault) {
        self.in_force().push(fault);
    }

    pub fn clear(&self) {
        self.release();
        self.in_force().clear();
    }

    /// Releases the calls that wait, and removes the faults that let calls wait.
    pub fn release(&self) {
        let mut faults = self.in_force();
        faults.retain(|fault| fault.happens != Happening::Waits);
        self.releases.send_modify(|releases| *releases += 1);
    }

    /// Waits until there were more than this many releases.
    pub async fn released_since(&self, releases: u64) {
        // Fails only without a sender, which `self` owns.
        let _ = self.releases.subscribe().wait_for(|now| *now > releases).await;
    }

    fn in_force(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The effect on this call. Counts it for each fault that affects it.
    pub fn strike(&self, about: About<'_>) -> Strike {
        let mut faults = self.in_force();
        let mut strike = Strike::default();
        for fault in faults.iter_mut().filter(|fault| fault.concerns(about)) {
            match &fault.happens {
                Happening::DelaysMs(millis) => strike.delay += Duration::from_millis(*millis),
                Happening::Waits => strike.waits_since = Some(*self.releases.borrow()),
                _ if strike.happens.is_some() => continue,
                other => strike.happens = Some(other.clone()),
            }
            if let Some(times) = &mut fault.times {
                *times = times.saturating_sub(1);
            }
        }
        faults.retain(|fault| fault.times != Some(0));
        strike
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(method: Option<&str>, times: Option<u32>, happens: Happening) -> Fault {
        Fault {
            method: method.map(str::to_owned),
            volume: None,
            node: None,
            times,
            happens,
        }
    }

    const CREATE: About<'_> = About {
        method: "CreateVolume",
        volume: "vol-1",
        node: None,
    };

    #[test]
    fn a_fault_strikes_as_often_as_it_says_and_delays_add_up() {
        let faults = Faults::default();
        faults.add(fault(None, Some(2), Happening::Hangs));
        faults.add(fault(Some("CreateVolume"), None, Happening::DelaysMs(10)));
        faults.add(fault(Some("DeleteVolume"), None, Happening::Crashes));
        let delayed = |happens| Strike {
            delay: Duration::from_millis(10),
            waits_since: None,
            happens,
        };
        assert_eq!(faults.strike(CREATE), delayed(Some(Happening::Hangs)));
        assert_eq!(faults.strike(CREATE), delayed(Some(Happening::Hangs)));
        assert_eq!(faults.strike(CREATE), delayed(None));
        faults.clear();
        assert_eq!(faults.strike(CREATE), Strike::default());
    }

    #[tokio::test]
    async fn a_waiting_call_continues_with_the_other_faults_once_released() {
        let faults = Faults::default();
        faults.clear();
        faults.add(fault(None, None, Happening::Waits));
        faults.add(fault(None, None, Happening::Crashes));
        let strike = faults.strike(CREATE);
        assert_eq!(
            (strike.waits_since, strike.happens),
            (Some(1), Some(Happening::Crashes))
        );
        let mut waiting = std::pin::pin!(faults.released_since(1));
        assert!(futures::poll!(&mut waiting).is_pending());
        faults.release();
        waiting.await;
        let after = faults.strike(CREATE);
        assert_eq!(
            (after.waits_since, after.happens),
            (None, Some(Happening::Crashes))
        );
    }

    #[test]
    fn a_fault_without_a_method_does_not_affect_a_handshake() {
        let faults = Faults::default();
        faults.add(fault(None, None, Happening::Hangs));
        let probe = About {
            method: "Probe",
            volume: "",
            node: None,
        };
        assert_eq!(faults.strike(probe).happens, None);
        faults.add(fault(Some("Probe"), None, Happening::Hangs));
        assert_eq!(faults.strike(probe).happens, Some(Happening::Hangs));
    }

    #[test]
    fn a_fault_for_one_node_does_not_affect_the_others() {
        let faults = Faults::default();
        faults.add(Fault {
            node: Some("n2".to_owned()),
            ..fault(Some("ControllerPublishVolume"), None, Happening::Hangs)
        });
        let publish = |node| About {
            method: "ControllerPublishVolume",
            volume: "vol-1",
            node: Some(node),
        };
        assert_eq!(faults.strike(publish("n1")).happens, None);
        assert_eq!(faults.strike(publish("n2")).happens, Some(Happening::Hangs));
    }

    #[test]
    fn an_unknown_code_is_refused() {
        let answer = |code: &str| {
            let answer = Answer {
                code: code.to_owned(),
                message: String::new(),
            };
            fault(None, None, Happening::Fails(answer)).check()
        };
        assert!(answer("Unavailable").is_ok());
        assert!(answer("UNAVAILABLE").unwrap_err().contains("\"UNAVAILABLE\""));
        assert!(answer("OK").is_err());
    }
}
