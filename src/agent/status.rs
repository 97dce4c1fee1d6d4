//! What an agent shows of itself.

use std::sync::Arc;

use tokio::sync::watch;

use crate::check::Check;
use crate::etcd::Pulse;
use crate::serve::Report;

/// What the probes of an agent ask for. All clones share one state.
#[derive(Clone, Debug)]
pub struct AgentStatus {
    /// Beats while the runtime is alive.
    pub pulse: Pulse,
    pub(super) certificate: Hindrance,
    pub(super) session: Hindrance,
    pub(super) etcd: Hindrance,
}

/// Why something is not as it should be; `None` if it is.
pub(super) type Hindrance = Arc<watch::Sender<Option<String>>>;

impl Default for AgentStatus {
    fn default() -> Self {
        let begins = |why: &str| Arc::new(watch::Sender::new(Some(why.to_owned())));
        Self {
            pulse: Pulse::default(),
            certificate: begins("the node has none yet"),
            session: begins("there is none yet"),
            // Most nodes are no managers.
            etcd: Hindrance::default(),
        }
    }
}

impl AgentStatus {
    /// `/readyz`: the node has a certificate, a session keeps it ready, and its etcd serves, if it should have one.
    pub fn ready(&self) -> Report {
        let check = |name, hindrance: &Hindrance| match &*hindrance.borrow() {
            None => Check::passed(name),
            Some(why) => Check::failed(name, why),
        };
        Report {
            checks: vec![
                check("certificate", &self.certificate),
                check("session", &self.session),
                check("etcd", &self.etcd),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_ready_with_a_certificate_and_a_session() {
        let status = AgentStatus::default();
        assert!(!status.ready().ok());
        status.certificate.send_replace(None);
        let report = status.ready();
        assert!(report.checks[0].ok);
        assert_eq!(report.checks[1], Check::failed("session", "there is none yet"));
        status.session.send_replace(None);
        assert!(status.ready().ok());
    }

    #[test]
    fn an_agent_is_not_ready_whose_etcd_should_serve_and_does_not() {
        let status = AgentStatus::default();
        status.certificate.send_replace(None);
        status.session.send_replace(None);
        status.etcd.send_replace(Some("it has ended".to_owned()));
        let report = status.ready();
        assert_eq!(report.checks[2], Check::failed("etcd", "it has ended"));
        assert!(!report.ok());
    }
}
