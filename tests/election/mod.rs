//! The election: who leads, when the successor leads, and that no other process writes as the leader.

mod candidates;
mod crowds;
mod fence;
mod handover;
mod newer;
mod rights;
mod stopping;
mod takeover;

use std::time::Duration;

use quorate::etcd::Etcd;
use quorate::store::{Keys, Store};

use crate::support::etcd::TestEtcd;
use crate::support::quorate::{Launch, Replicas};
use crate::support::wait::{SOON, eventually, same};

/// No machine is busy enough for a lease of this TTL to expire.
const TTL: Duration = Duration::from_secs(20);

/// For tests that wait until a lease expires. A window closes 1.6 s before that: time to look at etcd, on a busy machine
/// too.
const SHORT_TTL: Duration = Duration::from_secs(8);
const ELECTION: &str = "/quorate/kubernetes/reconciler/leader/";

fn launch(etcd: &TestEtcd) -> Launch {
    launch_for(etcd, TTL)
}

fn launch_for(etcd: &TestEtcd, ttl: Duration) -> Launch {
    Launch::on(etcd).flag(format!("--lease-ttl={}", ttl.as_secs()))
}

/// Three ready candidates, and the index of the leader.
async fn three(etcd: &TestEtcd) -> (Replicas, usize) {
    three_for(etcd, TTL).await
}

async fn three_for(etcd: &TestEtcd, ttl: Duration) -> (Replicas, usize) {
    let mut replicas = launch_for(etcd, ttl).start_all(&["a", "b", "c"]);
    wait_for_candidates(etcd, 3).await;
    for replica in &mut replicas.0 {
        replica.wait_ready().await;
    }
    let (leader, _) = replicas.leader().await;
    (replicas, leader)
}

async fn wait_for_candidates(etcd: &TestEtcd, wanted: usize) {
    eventually(SOON, "all replicas stand for election", async || {
        same(etcd.keys(ELECTION).len(), wanted)
    })
    .await;
}

/// The keys of replicas with the default prefix.
fn store_of_replicas(client: &Etcd) -> Store {
    Store {
        etcd: client.clone(),
        keys: Keys::new("/quorate".parse().unwrap()),
    }
}
