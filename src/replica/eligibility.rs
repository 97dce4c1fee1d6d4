//! Eligibility for election: a replica must be registered, and none with a newer release may stand for election for longer than
//! its trial.

use tokio::sync::watch;

use super::newer::Newer;
use crate::gate::registration::Registered;

/// Follows whether this replica may stand for election.
pub(super) struct Eligibility {
    pub registered: watch::Receiver<Option<Registered>>,
    pub newer: watch::Receiver<Newer>,
}

impl Eligibility {
    /// Resolves once this replica is registered and yields to none with a newer release.
    pub async fn granted(&mut self) {
        let registered = self.registered.wait_for(Option::is_some).await.map(drop);
        let newest = self.newer.wait_for(is_none_yielded_to).await.map(drop);
        if registered.is_err() || newest.is_err() {
            // A part of the replica ended, which ends the replica: no candidacy begins on the way out.
            std::future::pending().await
        }
    }

    /// Whether this replica may stand at this instant.
    pub fn is_granted(&self) -> bool {
        self.registered.borrow().is_some() && is_none_yielded_to(&self.newer.borrow())
    }

    /// Resolves once this replica yields to one with a newer release. A lost registration revokes nothing: it does not
    /// touch the lease of the election, and the replica registers again.
    pub async fn revoked(&mut self) {
        let surpassed = |newer: &Newer| matches!(newer, Newer::Stands(_));
        // An error where the part that follows them ended, which ends the replica.
        let _ = self.newer.wait_for(surpassed).await;
    }
}

/// Whether no newer candidate keeps this replica from standing. One on trial does not: what stands behind it leads only once the
/// other is gone.
fn is_none_yielded_to(newer: &Newer) -> bool {
    match newer {
        Newer::Absent | Newer::OnTrial(..) => true,
        Newer::Unknown | Newer::Stands(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use futures::FutureExt as _;

    use super::*;
    use crate::etcd::Window;

    fn registration() -> Option<Registered> {
        let deadline = Instant::now() + Duration::from_secs(3600);
        Some(Registered {
            window: Window::open_until(deadline),
        })
    }

    fn stands() -> Newer {
        Newer::Stands("replica b runs release 0.6.0, which is newer".to_owned())
    }

    /// Eligibility, with the senders of what it follows.
    fn eligibility() -> (
        Eligibility,
        watch::Sender<Option<Registered>>,
        watch::Sender<Newer>,
    ) {
        let (registering, registered) = watch::channel(None);
        let (publishing, newer) = watch::channel(Newer::Unknown);
        (Eligibility { registered, newer }, registering, publishing)
    }

    #[test]
    fn only_a_registered_replica_of_the_highest_release_is_eligible() {
        let (mut eligibility, registering, publishing) = eligibility();
        let mut granted = || {
            let granted = eligibility.granted().now_or_never().is_some();
            assert_eq!(granted, eligibility.is_granted());
            granted
        };
        assert!(!granted(), "neither registered, nor are the releases known");
        registering.send_replace(registration());
        assert!(!granted(), "the releases are not known");
        publishing.send_replace(stands());
        assert!(!granted(), "a replica with a higher release stands for election");
        publishing.send_replace(Newer::OnTrial("replica b".to_owned(), crate::etcd::Revision(1)));
        assert!(granted());
        publishing.send_replace(Newer::Absent);
        assert!(granted());
        registering.send_replace(None);
        assert!(!granted(), "no longer registered");
    }

    #[test]
    fn only_a_candidate_with_a_higher_release_revokes_eligibility() {
        let (mut eligibility, _registering, publishing) = eligibility();
        publishing.send_replace(Newer::Absent);
        assert!(eligibility.revoked().now_or_never().is_none());
        publishing.send_replace(Newer::OnTrial("replica b".to_owned(), crate::etcd::Revision(1)));
        assert!(eligibility.revoked().now_or_never().is_none());
        publishing.send_replace(stands());
        assert!(eligibility.revoked().now_or_never().is_some());
    }

    #[test]
    fn without_news_of_newer_replicas_no_replica_is_eligible() {
        let (mut eligibility, registering, publishing) = eligibility();
        registering.send_replace(registration());
        drop(publishing);
        assert!(eligibility.granted().now_or_never().is_none());
        assert!(eligibility.revoked().now_or_never().is_some());
    }
}
