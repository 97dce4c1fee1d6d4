//! Watches during a test whether a replica is ready that the status excludes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::etcd::Etcd;
use quorate::gate::status::Status;
use quorate::release::Release;
use quorate::store::Store;
use quorate_dev::http;
use tokio::task::JoinSet;

use super::{Deployment, Shipped};
use crate::support::quorate::TestReplica;

/// One watcher for each replica. Stops when dropped.
pub struct Witness {
    store: Store,
    tasks: JoinSet<()>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// How often a replica was checked that the status excluded before and after the check.
    excluded: usize,
    /// The checks that found the replica ready.
    violations: Vec<String>,
}

/// A watched replica, with what decides whether it may serve.
#[derive(Clone, Copy)]
struct Watched {
    release: Release,
    min_reconciler: Release,
    port: u16,
}

impl Witness {
    pub fn of(deployment: &Deployment<'_>) -> Self {
        Self {
            store: deployment.store(),
            tasks: JoinSet::new(),
            seen: Arc::default(),
        }
    }

    /// Watches this replica too, across its restarts.
    pub fn watch(&mut self, replica: &TestReplica, release: &Shipped) {
        let (store, seen, node) = (self.store.clone(), self.seen.clone(), replica.node_id.clone());
        let watched = Watched {
            release: release.release,
            min_reconciler: release.min_reconciler,
            port: replica.port,
        };
        self.tasks.spawn(async move {
            loop {
                if let Some((status, ready)) = check(&store, watched).await {
                    let mut seen = seen.lock().unwrap();
                    seen.excluded += 1;
                    if ready {
                        let what = format!(
                            "{node} at {} is ready while the status is {status}",
                            watched.release
                        );
                        seen.violations.push(what);
                    }
                }
                // Between two checks, so that the replicas have time for their work.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    }

    /// Returns how often an excluded replica was checked. Panics if one was ready.
    pub async fn finish(mut self) -> usize {
        self.tasks.shutdown().await;
        let seen = self.seen.lock().unwrap();
        assert!(seen.violations.is_empty(), "{:#?}", seen.violations);
        seen.excluded
    }
}

/// The status and whether the replica was ready. `None` unless the status excludes the replica and did not change
/// meanwhile.
async fn check(store: &Store, watched: Watched) -> Option<(Status, bool)> {
    let (before, revision) = read(&store.etcd, &store.keys.status()).await?;
    let excluded =
        watched.release < before.minimum_compatible || before.version.release < watched.min_reconciler;
    if !excluded {
        return None;
    }
    let page = http::get(watched.port, "/readyz").await.ok()?;
    let (_, now) = read(&store.etcd, &store.keys.status()).await?;
    (now == revision).then_some((before, page.status == 200))
}

async fn read(etcd: &Etcd, key: &[u8]) -> Option<(Status, quorate::etcd::Revision)> {
    let (stored, _) = etcd.get(key).await.ok()?;
    let stored = stored?;
    Some((Status::decode(&stored.value).ok()?, stored.mod_revision))
}
