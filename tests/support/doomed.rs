//! Replicas that abort or are killed while another one stands by.

use std::os::unix::process::ExitStatusExt;
use std::pin::pin;

use quorate::etcd::Txn;
use quorate::etcd::election::candidates;
use quorate::store::{Name, Store};

use super::client::commit;
use super::quorate::{Launch, TestReplica};
use super::wait::{SOON, eventually};

/// SIGABRT.
const ABORTED: i32 = 6;

/// Leases that outlast the test. With short ones, an election of etcd or a busy machine could end a term at any moment.
pub const LASTING_LEASES: &str = "--lease-ttl=60";

/// A replica that aborts at a failpoint.
///
/// Its leases last: otherwise its term could end before it reaches the point, and the replica beside it would do the work
/// unharmed. Once it has aborted, [`expire_leases`] lets its successor lead.
pub struct Doomed {
    point: &'static str,
    /// The process.
    pub replica: TestReplica,
    store: Store,
}

impl Doomed {
    /// Starts the replica. `launch` sets no `--lease-ttl`.
    pub fn start(launch: &Launch, node_id: &str, point: &'static str, store: &Store) -> Self {
        eprintln!("{point}");
        let launch = launch.clone().flag(LASTING_LEASES);
        Self {
            point,
            replica: launch.flag(format!("--crash-at={point}")).start(node_id),
            store: store.clone(),
        }
    }

    /// Waits until the replica leads.
    pub async fn wait_leading(&mut self) {
        self.replica.wait_leading().await;
    }

    /// Waits until the replica has aborted at its point.
    pub async fn aborted(&mut self) {
        let ended = self.replica.ended().await;
        let (point, log) = (self.point, self.replica.log());
        assert_eq!(ended.signal(), Some(ABORTED), "{point}: {ended}: {log}");
        assert!(log.contains(&format!("failpoint {point}: aborting")), "{log}");
        expire_leases(&self.store, &self.replica.node_id).await;
    }

    /// Does `work`, during which or shortly after which the replica aborts at its point.
    pub async fn aborted_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let process = self.replica.process().expect("it was not stopped");
        let done = tokio::select! {
            _ = process.exited() => None,
            done = &mut work => Some(done),
        };
        self.aborted().await;
        match done {
            Some(done) => done,
            None => work.await,
        }
    }
}

/// Deletes the keys of a replica, as etcd does when its leases expire, so that its successor need not wait that long.
pub async fn expire_leases(store: &Store, node_id: &str) {
    let Store { etcd, keys } = store;
    let node_id: Name = node_id.parse().unwrap();
    eventually(SOON, "its keys are deleted", async || {
        let candidates = candidates(etcd, &keys.election())
            .await
            .map_err(|error| error.to_string())?;
        let own = candidates.iter().filter(|one| one.name == node_id.as_str());
        let txn = own.fold(Txn::new().delete(&keys.registration(&node_id)), |txn, own| {
            txn.delete(&own.key)
        });
        commit(etcd, txn).await.map_err(|error| error.to_string())
    })
    .await;
}
