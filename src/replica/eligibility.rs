//! Eligibility for election: a replica must be registered, and run the highest release among the controllers.

use tokio::sync::watch;
use tracing::info;

use crate::gate::registration::Registered;
use crate::gate::releases::Releases;
use crate::release::Release;

/// Follows whether this replica may stand for election.
pub(super) struct Eligibility {
    own: Release,
    registered: watch::Receiver<Option<Registered>>,
    releases: watch::Receiver<Option<Releases>>,
    /// The higher release that was logged last.
    yields_to: Option<Release>,
}

impl Eligibility {
    /// For a replica of the release `own`.
    pub fn new(
        own: Release,
        registered: watch::Receiver<Option<Registered>>,
        releases: watch::Receiver<Option<Releases>>,
    ) -> Self {
        Self {
            own,
            registered,
            releases,
            yields_to: None,
        }
    }

    /// Resolves once this replica is registered and no controller has a higher release.
    pub async fn granted(&mut self) {
        let registered = self.registered.wait_for(Option::is_some).await.map(drop);
        let Self { own, yields_to, .. } = self;
        let highest = self.releases.wait_for(|seen| {
            seen.as_ref()
                .is_some_and(|seen| !is_surpassed(*own, seen, yields_to))
        });
        let highest = highest.await.map(drop);
        if registered.is_err() || highest.is_err() {
            // A part of the replica ended, which ends the replica: no candidacy begins on the way out.
            std::future::pending().await
        }
    }

    /// Resolves once a controller has a higher release, or watch-nodes ended, which ends the replica. A lost
    /// registration revokes nothing: it does not touch the lease of the election, and the replica registers again.
    pub async fn revoked(&mut self) {
        let Self { own, yields_to, .. } = self;
        let surpassed = self.releases.wait_for(|seen| {
            seen.as_ref()
                .is_some_and(|seen| is_surpassed(*own, seen, yields_to))
        });
        let _ = surpassed.await;
    }
}

/// Whether a controller has a higher release than `own`. Logs each higher release once.
fn is_surpassed(own: Release, seen: &Releases, yields_to: &mut Option<Release>) -> bool {
    let higher = (seen.greatest > own).then_some(seen.greatest);
    if let Some(greatest) = higher
        && *yields_to != higher
    {
        info!("a controller of release {greatest} is running: {own} does not stand for election");
    }
    *yields_to = higher;
    higher.is_some()
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

    fn greatest(minor: u32) -> Option<Releases> {
        Some(Releases {
            least: Release::new(0, 1, 0),
            greatest: Release::new(0, minor, 0),
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
        let eligibility = Eligibility::new(Release::new(0, 5, 0), registered, releases);
        (eligibility, registering, publishing)
    }

    #[test]
    fn only_a_registered_replica_of_the_highest_release_is_eligible() {
        let (mut eligibility, registering, publishing) = eligibility();
        let mut granted = || eligibility.granted().now_or_never().is_some();
        assert!(!granted(), "neither registered, nor are the releases known");
        registering.send_replace(registration());
        assert!(!granted(), "the releases are not known");
        publishing.send_replace(greatest(6));
        assert!(!granted(), "a controller has a higher release");
        publishing.send_replace(greatest(5));
        assert!(granted());
        registering.send_replace(None);
        assert!(!granted(), "no longer registered");
    }

    #[test]
    fn a_higher_release_revokes_eligibility_and_an_equal_one_does_not() {
        let (mut eligibility, _registering, publishing) = eligibility();
        publishing.send_replace(greatest(5));
        assert!(eligibility.revoked().now_or_never().is_none());
        publishing.send_replace(greatest(6));
        assert!(eligibility.revoked().now_or_never().is_some());
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
