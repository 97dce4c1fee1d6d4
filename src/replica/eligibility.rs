//! Who may stand for election: whoever is registered, and runs the highest release among the controllers.

use tokio::sync::watch;
use tracing::info;

use crate::gate::registration::Registered;
use crate::gate::releases::Releases;
use crate::release::Release;

/// Whether this process may stand for election, followed over time.
pub(super) struct Eligibility {
    own: Release,
    registered: watch::Receiver<Option<Registered>>,
    releases: watch::Receiver<Option<Releases>>,
    /// The higher release that was told of last.
    yields_to: Option<Release>,
}

impl Eligibility {
    /// Of a process of this release.
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

    /// Resolves once this process is registered and no controller has a higher release.
    pub async fn granted(&mut self) {
        let registered = self.registered.wait_for(Option::is_some).await.map(drop);
        let Self { own, yields_to, .. } = self;
        let highest = self.releases.wait_for(|seen| {
            seen.as_ref()
                .is_some_and(|seen| !is_surpassed(*own, seen, yields_to))
        });
        let highest = highest.await.map(drop);
        if registered.is_err() || highest.is_err() {
            // A part that ended ends the replica; there is nothing to stand for meanwhile.
            std::future::pending().await
        }
    }

    /// Resolves once a controller has a higher release, or nobody says any more which there are: that ends the replica.
    /// To lose the registration takes nothing away: a leader is not less of one for having to register anew.
    pub async fn revoked(&mut self) {
        let Self { own, yields_to, .. } = self;
        let surpassed = self.releases.wait_for(|seen| {
            seen.as_ref()
                .is_some_and(|seen| is_surpassed(*own, seen, yields_to))
        });
        let _ = surpassed.await;
    }
}

/// Whether one of these is higher than the own release; says so once.
fn is_surpassed(own: Release, seen: &Releases, yields_to: &mut Option<Release>) -> bool {
    let higher = (seen.greatest > own).then_some(seen.greatest);
    if let Some(greatest) = higher
        && *yields_to != higher
    {
        info!("a controller of release {greatest} is there: {own} does not stand for election");
    }
    *yields_to = higher;
    higher.is_some()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use futures::FutureExt as _;

    use super::*;
    use crate::etcd::{Revision, Window};

    fn registration() -> Option<Registered> {
        let deadline = Instant::now() + Duration::from_secs(3600);
        Some(Registered {
            revision: Revision(7),
            window: Window::open_until(deadline),
        })
    }

    fn greatest(minor: u32) -> Option<Releases> {
        Some(Releases {
            least: Release::new(0, 1, 0),
            greatest: Release::new(0, minor, 0),
            outside: Vec::new().into(),
            unreadable: Vec::new().into(),
            revision: Revision(7),
        })
    }

    /// Of release 0.5.0, with the two sides that say what is there.
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
    fn only_who_is_registered_and_of_the_highest_release_stands_for_election() {
        let (mut eligibility, registering, publishing) = eligibility();
        let mut granted = || eligibility.granted().now_or_never().is_some();
        assert!(!granted(), "neither registered nor anything known");
        registering.send_replace(registration());
        assert!(!granted(), "it is not known who else is there");
        publishing.send_replace(greatest(6));
        assert!(!granted(), "a controller has a higher release");
        publishing.send_replace(greatest(5));
        assert!(granted());
        registering.send_replace(None);
        assert!(!granted(), "no longer registered");
    }

    #[test]
    fn a_higher_release_takes_it_away_and_an_equal_one_does_not() {
        let (mut eligibility, _registering, publishing) = eligibility();
        publishing.send_replace(greatest(5));
        assert!(eligibility.revoked().now_or_never().is_none());
        publishing.send_replace(greatest(6));
        assert!(eligibility.revoked().now_or_never().is_some());
    }

    #[test]
    fn nobody_stands_for_election_while_a_part_is_gone_that_says_who_is_there() {
        let (mut eligibility, registering, publishing) = eligibility();
        registering.send_replace(registration());
        drop(publishing);
        assert!(eligibility.granted().now_or_never().is_none());
        assert!(eligibility.revoked().now_or_never().is_some());
    }
}
