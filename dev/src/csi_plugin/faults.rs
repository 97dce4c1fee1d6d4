//! What the plugin is told to do wrong.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tonic::{Code, Status};

use quorate::grpc_code;

/// One fault: to which calls it happens, how often, and what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// As in `CreateVolume`; none: to every call about a volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The backend's id of the volume; none: to any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The node id of the call; none: to any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// How many times; none: until it is cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// What happens.
    pub happens: Happening,
}

/// What can happen to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Happening {
    /// Nothing is done, and this is answered.
    Fails(Answer),
    /// It is done, and this is answered all the same.
    FailsAfter(Answer),
    /// Nothing is done, and no answer comes.
    Hangs,
    /// It is done, and the answer is lost.
    LosesReply,
    /// It takes this many milliseconds longer, and then other faults may happen.
    DelaysMs(u64),
    /// It waits until it is released, and then other faults may happen: those that there were when it began.
    Waits,
    /// The plugin dies before it does anything.
    Crashes,
    /// The plugin dies after it has done it, before it answers.
    CrashesAfter,
}

/// An answer that is no success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Answer {
    /// As in `Unavailable`.
    pub code: String,
    /// The message. `{secrets}` stands for the values of the call's secrets: some plugins print what they were given.
    #[serde(default)]
    pub message: String,
}

impl Answer {
    pub(super) fn status(&self, secrets: &BTreeMap<String, String>) -> Status {
        let values: Vec<&str> = secrets.values().map(String::as_str).collect();
        let message = self.message.replace("{secrets}", &values.join(", "));
        // The code was checked when the fault came in.
        Status::new(grpc_code::named(&self.code).unwrap_or(Code::Unknown), message)
    }
}

/// The calls that a fault can be told for, by what they are about.
#[derive(Clone, Copy, Debug)]
pub(super) struct About<'a> {
    pub method: &'a str,
    pub volume: &'a str,
    pub node: Option<&'a str>,
}

impl Fault {
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn check(&self) -> Result<(), String> {
        match &self.happens {
            Happening::Fails(answer) | Happening::FailsAfter(answer) => {
                match grpc_code::named(&answer.code) {
                    None => Err(format!(
                        "there is no gRPC code {:?}; expected one as in Unavailable",
                        answer.code
                    )),
                    Some(Code::Ok) => Err("OK is no failure".to_owned()),
                    Some(_) => Ok(()),
                }
            }
            Happening::Hangs
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

/// What happens to one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Strike {
    /// All delays, added up.
    pub delay: Duration,
    /// Whether it waits until calls are released more often than that.
    pub waits_since: Option<u64>,
    /// The first other fault.
    pub happens: Option<Happening>,
}

/// The faults in force.
#[derive(Debug, Default)]
pub(super) struct Faults {
    in_force: Mutex<Vec<Fault>>,
    /// How often the calls that wait were released.
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

    /// Whatever waits goes on, and nothing waits any more.
    pub fn release(&self) {
        let mut faults = self.in_force();
        faults.retain(|fault| fault.happens != Happening::Waits);
        self.releases.send_modify(|releases| *releases += 1);
    }

    /// Waits until calls were released more often than that.
    pub async fn released_since(&self, releases: u64) {
        // Fails only without a sender, which lives as long as this.
        let _ = self.releases.subscribe().wait_for(|now| *now > releases).await;
    }

    fn in_force(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens to this call. Each fault is counted off.
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
    async fn a_call_that_waits_goes_on_when_it_is_released_and_suffers_the_other_faults_then() {
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
    fn a_fault_without_a_method_spares_the_calls_of_a_handshake() {
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
    fn a_fault_for_one_node_spares_the_others() {
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
    fn a_code_that_is_none_is_refused() {
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
