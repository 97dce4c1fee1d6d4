//! The etcd layer against a real etcd, and every way in which that can fail.

mod cache;
mod cancellation;
mod changes;
mod compares;
mod credentials;
mod hanging;
mod members;
mod outages;
mod progress;
mod renewals;
mod restore;
mod silence;
mod volume;
mod watch;

use quorate::etcd::Etcd;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Follows the endpoints beside the test.
fn following(etcd: &Etcd) -> JoinSet<()> {
    let etcd = etcd.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { etcd.follow_endpoints(CancellationToken::new()).await });
    tasks
}
