//! Warnings of the known faults of the etcd that runs.

use std::collections::BTreeSet;
use std::time::Duration;

use tracing::warn;

use crate::retry::Delays;
use crate::roles::facts::Facts;
use crate::roles::faulty_releases::{faulty_releases, is_settled};
use crate::store::Store;

/// Warns once of each release of etcd with a known fault that a member runs. Asks a member until it has said its release, or etcd has
/// refused that to this user. Never returns.
pub(super) async fn warn_of_known_faults<T>(store: Store) -> T {
    // A member may be down for days: the last delay is long enough to be no load (INV-9).
    let mut delays = Delays::new(Duration::from_secs(1), Duration::from_secs(60));
    let (mut settled, mut warned) = (BTreeSet::new(), BTreeSet::new());
    loop {
        if let Ok(facts) = Facts::with_releases(&store, &settled).await {
            for release in faulty_releases(&facts.membership) {
                if warned.insert((release.version.clone(), release.found.fault.source)) {
                    warn!("a release of etcd with a known fault runs: {release}");
                }
            }
            let listed = || facts.membership.listed();
            settled.extend(
                listed()
                    .filter(|member| is_settled(member))
                    .map(|member| member.id),
            );
            if listed().all(|member| settled.contains(&member.id)) {
                return std::future::pending().await;
            }
        }
        delays.wait().await;
    }
}
