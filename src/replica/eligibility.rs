//! Eligibility for election: a replica must be registered, and no registered one may run a newer release.

use std::sync::Arc;

use tokio::sync::watch;
use tracing::info;

use crate::gate::registration::Registered;
use crate::gate::releases::Releases;

/// Why this replica does not stand for election, in words; `None` while no other one has a newer release.
pub(super) type YieldsTo = Arc<watch::Sender<Option<String>>>;

/// Follows whether this replica may stand for election.
pub(super) struct Eligibility {
    registered: watch::Receiver<Option<Registered>>,
    releases: watch::Receiver<Option<Releases>>,
    yields_to: YieldsTo,
}

impl Eligibility {
    /// With the registration of this replica, and the releases that run.
    pub fn new(
        registered: watch::Receiver<Option<Registered>>,
        releases: watch::Receiver<Option<Releases>>,
        yields_to: YieldsTo,
    ) -> Self {
        Self {
            registered,
            releases,
            yields_to,
        }
    }

    /// Resolves once this replica is registered and no other one has a newer release.
    pub async fn granted(&mut self) {
        let registered = self.registered.wait_for(Option::is_some).await.map(drop);
        let yields_to = &self.yields_to;
        let newest =
            |seen: &Option<Releases>| seen.as_ref().is_some_and(|seen| !is_surpassed(seen, yields_to));
        let newest = self.releases.wait_for(newest).await.map(drop);
        if registered.is_err() || newest.is_err() {
            // A part of the replica ended, which ends the replica: no candidacy begins on the way out.
            std::future::pending().await
        }
    }

    /// Resolves once another replica has a newer release, or watch-nodes ended, which ends the replica. A lost
    /// registration revokes nothing: it does not touch the lease of the election, and the replica registers again.
    pub async fn revoked(&mut self) {
        let yields_to = &self.yields_to;
        let surpassed =
            |seen: &Option<Releases>| seen.as_ref().is_some_and(|seen| is_surpassed(seen, yields_to));
        let _ = self.releases.wait_for(surpassed).await;
    }
}

/// Whether another replica has a newer release. Each one is logged once.
fn is_surpassed(seen: &Releases, yields_to: &watch::Sender<Option<String>>) -> bool {
    let newer = seen.newer.as_ref();
    let newer = newer.map(|(release, name)| format!("replica {name} runs release {release}, which is newer"));
    yields_to.send_if_modified(|before| {
        let is_news = *before != newer;
        if let Some(newer) = newer.as_ref().filter(|_| is_news) {
            info!("{newer}: this one does not stand for election");
        }
        before.clone_from(&newer);
        is_news
    });
    seen.newer.is_some()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use futures::FutureExt as _;

    use super::*;
    use crate::etcd::Window;
    use crate::release::Release;

    fn registration() -> Option<Registered> {
        let deadline = Instant::now() + Duration::from_secs(3600);
        Some(Registered {
            window: Window::open_until(deadline),
        })
    }

    /// The releases that run beside 0.5.0: one of this minor version.
    fn beside(minor: u32) -> Option<Releases> {
        let release = Release::new(0, minor, 0);
        Some(Releases {
            newer: (minor > 5).then(|| (release, "b".to_owned())),
            outside: Vec::new().into(),
            unreadable: Vec::new().into(),
            last_write: None,
        })
    }

    /// Eligibility of release 0.5.0, with the senders of the registration and of the releases.
    fn eligibility() -> (
        Eligibility,
        watch::Sender<Option<Registered>>,
        watch::Sender<Option<Releases>>,
    ) {
        let (registering, registered) = watch::channel(None);
        let (publishing, releases) = watch::channel(None);
        let eligibility = Eligibility::new(registered, releases, YieldsTo::default());
        (eligibility, registering, publishing)
    }

    #[test]
    fn only_a_registered_replica_of_the_highest_release_is_eligible() {
        let (mut eligibility, registering, publishing) = eligibility();
        let mut granted = || eligibility.granted().now_or_never().is_some();
        assert!(!granted(), "neither registered, nor are the releases known");
        registering.send_replace(registration());
        assert!(!granted(), "the releases are not known");
        publishing.send_replace(beside(6));
        assert!(!granted(), "a controller has a higher release");
        publishing.send_replace(beside(5));
        assert!(granted());
        registering.send_replace(None);
        assert!(!granted(), "no longer registered");
    }

    #[test]
    fn a_higher_release_revokes_eligibility_and_an_equal_one_does_not() {
        let (mut eligibility, _registering, publishing) = eligibility();
        publishing.send_replace(beside(5));
        assert!(eligibility.revoked().now_or_never().is_none());
        publishing.send_replace(beside(6));
        assert!(eligibility.revoked().now_or_never().is_some());
        let yields_to = eligibility.yields_to.borrow().clone();
        assert_eq!(
            yields_to.as_deref(),
            Some("replica b runs release 0.6.0, which is newer")
        );
    }

    #[test]
    fn without_watch_nodes_no_replica_is_eligible() {
        let (mut eligibility, registering, publishing) = eligibility();
        registering.send_replace(registration());
        drop(publishing);
        assert!(eligibility.granted().now_or_never().is_none());
        assert!(eligibility.revoked().now_or_never().is_some());
    }
}
