//! What lies between the end of one leader and the first write of the next: requests, one after the other.

use std::time::{Duration, Instant};

use quorate::etcd::{Etcd, KeyRange, Revision, Txn, Watched, Watcher};
use quorate::gate::status::State;
use quorate::grpc_code::Code;
use quorate::replica::{self, ReplicaStatus, Settings};
use quorate::store::Store;
use quorate::term::Notices;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::gate::term::{Recorder, TIMES, bundle, status};
use crate::support::client::{
    LONG_TTL, commit, connect, connect_with, ordinary_config, put, requests_so_far, store,
};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

/// The key of a leader that stood before all others, below the election prefix of [`store`].
const PREDECESSOR: &str = "/q/kubernetes/reconciler/leader/1";

/// Runs a replica in this process, over this connection, and waits until it stands by behind [`PREDECESSOR`].
async fn stand_by(store: &Store, replicas: &mut JoinSet<()>, node: &str) -> ReplicaStatus {
    let settings = Settings {
        node: node.parse().unwrap(),
        bundle: bundle(1, 0),
        lease_ttl: LONG_TTL,
        trial: LONG_TTL,
        rights_interval: replica::RIGHTS_INTERVAL,
        times: TIMES,
        roles: quorate::roles::controller::Settings::default(),
        volumes: Default::default(),
        certificates: None,
        secrets: Default::default(),
        page: None,
    };
    let before = store.etcd.count(&candidates(store)).await.unwrap().0;
    let (resources, status) = (Recorder::new(store), ReplicaStatus::default());
    let replica = replica::run(
        store.clone(),
        settings,
        Some(move |_: Notices| resources.clone()),
        None,
        None,
        status.clone(),
        CancellationToken::new(),
    );
    replicas.spawn(async move { replica.await.unwrap() });
    eventually(SOON, "the replica stands for election", async || {
        let (standing, _) = store.etcd.count(&candidates(store)).await.unwrap();
        same(standing, before + 1)
    })
    .await;
    status
}

/// A connection with the limits of a replica.
async fn connect_to(endpoint: String) -> Etcd {
    let mut config = ordinary_config(vec![endpoint]);
    config.sync_endpoints = false;
    connect_with(config).await
}

fn candidates(store: &Store) -> KeyRange {
    KeyRange::prefix(format!("{}/", store.keys.election()))
}

/// Waits until no request has been made over this connection for a moment, and returns how many reads were.
async fn settled(etcd: &Etcd) -> f64 {
    let made = || ["range", "watch", "txn"].map(|operation| requests_so_far(etcd, operation, Code::Ok));
    let mut last = made();
    eventually(SOON, "no request is made", async || {
        // The moment. It is longer than the pauses between the requests of a replica that has something to do.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let before = std::mem::replace(&mut last, made());
        same(before, last)
    })
    .await;
    last[0]
}

/// Writes what a leader that has ended left behind: its key, and a status that the next one has nothing to change about.
async fn precede(etcd: &Etcd) {
    put(etcd, PREDECESSOR, "before").await;
    let status_key = store(etcd).keys.status();
    let done = status(State::Done, 1, 0).encode();
    commit(etcd, Txn::new().put(&status_key, done)).await.unwrap();
}

/// The way to etcd is so long that nothing else counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn between_the_end_of_a_leader_and_the_first_write_of_the_next_lie_three_requests() {
    const WAY: Duration = Duration::from_millis(1200);
    let etcd = TestEtcd::start().await;
    let direct = connect(&etcd).await;
    precede(&direct).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let far = connect_to(proxy.url()).await;
    let mut replicas = JoinSet::new();
    stand_by(&store(&far), &mut replicas, "a").await;
    settled(&far).await;
    proxy.set(Network::Delays(WAY));
    let written = KeyRange::key(store(&direct).keys.status_json());
    let mut written = Watcher::new(&direct, written, Revision(etcd.revision() + 1));
    written.open().await;
    let ended = Instant::now();
    let gone = Txn::new().delete(PREDECESSOR.as_bytes());
    commit(&direct, gone).await.unwrap();
    let first = timeout(SOON, written.next()).await.expect("the next one writes");
    let took = ended.elapsed();
    assert!(matches!(first, Watched::Events(_)), "{first:?}");
    // The news of the end, three requests, and the answers to two of them; the rest is for a busy machine.
    let ways = took.as_secs_f64() / WAY.as_secs_f64();
    assert!((6.0..7.9).contains(&ways), "{ways} times the way to etcd");
}

/// Each candidate that is not the next one only has to learn who leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_a_candidate_that_does_not_lead_one_read() {
    let etcd = TestEtcd::start().await;
    let direct = connect(&etcd).await;
    precede(&direct).await;
    let (mut replicas, mut statuses, mut connections) = (JoinSet::new(), Vec::new(), Vec::new());
    for node in ["a", "b", "c"] {
        let own = connect_to(etcd.endpoints()[0].clone()).await;
        statuses.push(stand_by(&store(&own), &mut replicas, node).await);
        connections.push(own);
    }
    let mut before = Vec::new();
    for own in &connections {
        before.push(settled(own).await);
    }
    let gone = Txn::new().delete(PREDECESSOR.as_bytes());
    commit(&direct, gone).await.unwrap();
    eventually(SOON, "all know that the first one leads", async || {
        let leaders = statuses.iter().map(ReplicaStatus::leader);
        let known: Vec<_> = leaders.map(|leader| leader.map(|leader| leader.name)).collect();
        same(known, vec![Some("a".to_owned()); 3])
    })
    .await;
    for (own, before) in connections.iter().zip(before).skip(1) {
        assert_eq!(settled(own).await - before, 1.0);
    }
}
