//! What the control port of a replica shows of itself on `/readyz`.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::watch;

use crate::check::Check;

/// Whether agents can call at the control port, and why not. All clones share one state.
#[derive(Clone, Debug, Default)]
pub struct ControlStatus(Arc<watch::Sender<State>>);

#[derive(Debug)]
struct State {
    /// Until when the certificate is valid that the port shows; `None` while it shows none.
    until: Option<Timestamp>,
    /// Why it gets no other certificate.
    trouble: Option<String>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            until: None,
            trouble: Some("the node authority was not read yet".to_owned()),
        }
    }
}

impl ControlStatus {
    /// The port shows a certificate that is valid until then, or none, and this hinders it from getting another one.
    pub(super) fn set(&self, until: Option<Timestamp>, trouble: Option<String>) {
        self.0.send_replace(State { until, trouble });
    }

    /// Passes while the port shows a valid certificate. That another one cannot be made then stands in the detail: every replica reads
    /// the same authority, and all of them at once unready would help no agent.
    pub fn check(&self, now: Timestamp) -> Check {
        let State { until, trouble } = &*self.0.borrow();
        let trouble = trouble.as_deref();
        match until {
            Some(until) if now < *until => Check {
                detail: trouble.map_or_else(String::new, |why| {
                    format!("its certificate is valid until {until}, and cannot be replaced: {why}")
                }),
                ..Check::passed("control")
            },
            Some(until) => {
                let why = trouble.unwrap_or("another one is being made");
                let lacking = format!("the certificate of the control port has ended at {until}: {why}");
                Check::failed("control", lacking)
            }
            None => {
                let why = trouble.unwrap_or("it is being made");
                let lacking =
                    format!("the control port has no certificate, so that no agent can call: {why}");
                Check::failed("control", lacking)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_port_is_ready_for_as_long_as_it_shows_a_valid_certificate() {
        let (now, end) = (moment("2026-03-01T12:00:00Z"), moment("2026-03-02T12:00:00Z"));
        let status = ControlStatus::default();
        let begun = status.check(now);
        assert!(!begun.ok, "{begun:?}");
        assert!(begun.detail.contains("was not read yet"), "{begun:?}");

        status.set(None, Some("cannot read node-ca.key".to_owned()));
        let missing = status.check(now);
        assert!(!missing.ok, "{missing:?}");
        assert!(
            missing
                .detail
                .ends_with("no agent can call: cannot read node-ca.key"),
            "{missing:?}"
        );

        status.set(Some(end), None);
        assert_eq!(status.check(now), Check::passed("control"));

        status.set(Some(end), Some("cannot read node-ca.key".to_owned()));
        let left = status.check(now);
        assert!(left.ok, "agents are served: {left:?}");
        assert_eq!(
            left.detail,
            "its certificate is valid until 2026-03-02T12:00:00Z, and cannot be replaced: cannot read node-ca.key"
        );

        let ended = status.clone().check(end);
        assert!(!ended.ok, "{ended:?}");
        assert!(
            ended.detail.contains("has ended at 2026-03-02T12:00:00Z"),
            "{ended:?}"
        );
    }
}
