//! Replicas of several releases: older ones make way for a newer one that stands for election, and for no other.

use std::time::{Duration, Instant};

use quorate::etcd::{LeaseId, Txn};
use quorate::grpc_code::Code;
use quorate::proto::{Metadata, Node, NodeStatus, Registration};
use quorate::release::{Release, Version};
use quorate::replica::first_trial;
use quorate_dev::http;

use super::{ELECTION, TTL, launch, store_of_replicas, three, wait_for_candidates};
use crate::support::client::{LONG_TTL, commit, connect};
use crate::support::etcd::TestEtcd;
use crate::support::metrics;
use crate::support::quorate::{Replicas, quorate_on};
use crate::support::wait::{SOON, eventually, same};

fn granted_lease(etcd: &TestEtcd) -> LeaseId {
    lease_of(etcd, Duration::from_secs(600))
}

/// A lease that is not renewed.
fn lease_of(etcd: &TestEtcd, ttl: Duration) -> LeaseId {
    let granted = etcd.etcdctl(&["lease", "grant", &ttl.as_secs().to_string()]);
    let id = granted.split_whitespace().nth(1).unwrap();
    LeaseId(i64::from_str_radix(id, 16).unwrap())
}

/// Registers a controller of this release, on a lease that outlasts the test.
async fn register(etcd: &TestEtcd, node: &str, release: Release) {
    commit(&connect(etcd).await, registering(etcd, node, release))
        .await
        .unwrap();
}

/// The registration of another process.
pub fn record(release: Release) -> Vec<u8> {
    let record = Registration {
        version: Some(Version::from(release).to_proto()),
        process: "another".to_owned(),
        registered_at: None,
        page: String::new(),
    };
    prost::Message::encode_to_vec(&record)
}

fn registering(etcd: &TestEtcd, node: &str, release: Release) -> Txn {
    let value = record(release);
    Txn::new().put_leased(registration(node).as_bytes(), value, granted_lease(etcd))
}

pub fn registration(node: &str) -> String {
    format!("/quorate/nodes/{node}/release")
}

/// How often each replica has read a range.
async fn reads(replicas: &Replicas) -> Vec<f64> {
    let mut reads = Vec::new();
    for replica in &replicas.0 {
        let page = http::get(replica.port, "/metrics").await.unwrap();
        reads.push(metrics::requests(&page.body, "range", Code::Ok));
    }
    reads
}

/// Stands for election under this name, as the replica of that name would. Returns the key.
async fn stand(etcd: &TestEtcd, node: &str) -> String {
    let lease = granted_lease(etcd);
    let key = format!("{ELECTION}{lease}");
    stand_at(etcd, &key, node, lease).await;
    key
}

/// The same, with this key.
async fn stand_at(etcd: &TestEtcd, key: &str, node: &str, lease: LeaseId) {
    let txn = Txn::new().put_leased(key.as_bytes(), node, lease);
    commit(&connect(etcd).await, txn).await.unwrap();
}

/// A process that crashes as soon as it has registered is registered for a TTL after each start.
#[tokio::test]
async fn a_newer_release_that_registers_and_does_not_stand_for_election_takes_the_lead_from_no_other() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, leader) = three(&etcd).await;
    let before = etcd.keys(ELECTION);
    for node in ["newer", "newer2", "newer3"] {
        let earlier = reads(&replicas).await;
        register(&etcd, node, Release::new(999, 0, 0)).await;
        eventually(SOON, "each replica reads the candidates", async || {
            let now = reads(&replicas).await;
            match now.iter().zip(&earlier).all(|(now, earlier)| now > earlier) {
                true => Ok(()),
                false => Err(format!("{now:?} reads after {earlier:?}")),
            }
        })
        .await;
        // The measured time, in which nothing may happen.
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(replicas.0[leader].leads().await);
        etcd.etcdctl(&["del", &registration(node)]);
    }
    assert_eq!(etcd.keys(ELECTION), before);
    let log = replicas.0[leader].log();
    assert!(!log.contains("stepping down"), "{log}");
    let shown = quorate_on(&etcd, &["status"], "").await.expect_done();
    assert!(!shown.contains("not standing"), "{shown}");
}

#[tokio::test]
async fn while_a_replica_of_a_newer_release_stands_for_election_older_ones_neither_lead_nor_stand() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, leader) = three(&etcd).await;
    register(&etcd, "newer", Release::new(999, 0, 0)).await;
    let key = stand(&etcd, "newer").await;
    wait_for_candidates(&etcd, 1).await;
    replicas.0[leader].wait_for_log("stepping down").await;
    for replica in &mut replicas.0 {
        assert!(!replica.leads().await);
        replica.wait_for_log("replica newer runs release 999.0.0").await;
        replica.wait_ready().await;
        let page = http::get(replica.port, "/leaderz").await.unwrap();
        let newer = "not standing for election: replica newer runs release 999.0.0, which is newer\n";
        assert!(page.body.ends_with(newer), "{}", page.body);
        assert_eq!(replica.metric("quorate_election_yields").await, 1.0);
    }
    let shown = quorate_on(&etcd, &["status"], "").await.expect_done();
    let newer = "not standing for election: replica newer runs release 999.0.0, which is newer";
    assert!(shown.contains(newer), "{shown}");
    let mut late = launch(&etcd).start("late");
    late.wait_ready().await;
    assert_eq!(
        etcd.keys(ELECTION),
        [key.as_str()],
        "a replica that starts now does not stand either"
    );
    // Its candidacy ends, and its process is still registered.
    etcd.etcdctl(&["del", &key]);
    wait_for_candidates(&etcd, 4).await;
    late.stop().await.unwrap();
    replicas.leader().await;
    stand(&etcd, "newer").await;
    wait_for_candidates(&etcd, 1).await;
    etcd.etcdctl(&["del", &registration("newer")]);
    wait_for_candidates(&etcd, 4).await;
}

/// A release that crashes again and again, some time after it stood for election, has the lead for the rest of its lease each time.
#[tokio::test]
async fn a_newer_candidate_takes_the_lead_once_it_has_lasted_and_later_after_one_that_did_not() {
    const TRIAL: Duration = Duration::from_secs(8);
    let etcd = TestEtcd::start().await;
    let mut replicas = launch(&etcd).trial(TRIAL).start_all(&["a", "b"]);
    wait_for_candidates(&etcd, 2).await;
    let (leader, _) = replicas.leader().await;
    let older = etcd.keys(ELECTION);
    register(&etcd, "newer", Release::new(999, 0, 0)).await;
    let key = stand(&etcd, "newer").await;
    for replica in &mut replicas.0 {
        replica.wait_for_log("until the other has proved lasting").await;
    }
    etcd.etcdctl(&["del", &key]);
    assert!(replicas.0[leader].leads().await);
    assert_eq!(etcd.keys(ELECTION), older);
    let begun = Instant::now();
    stand(&etcd, "newer").await;
    wait_for_candidates(&etcd, 1).await;
    let took = begun.elapsed();
    assert!(took > TRIAL * 3 / 2, "the trial was doubled, and took {took:?}");
    assert!(!replicas.0[leader].leads().await);
    // Each trial is reported, also a second one of the same replica.
    for replica in &mut replicas.0 {
        let log = replica.log();
        assert_eq!(log.matches("has proved lasting").count(), 2, "{log}");
    }
}

/// The key of a process that crashed stands for the rest of its lease.
#[tokio::test]
async fn a_newer_release_that_crashes_as_soon_as_it_stands_takes_the_lead_from_no_other() {
    let etcd = TestEtcd::start().await;
    let mut replicas = launch(&etcd).trial(first_trial(TTL)).start_all(&["a", "b"]);
    wait_for_candidates(&etcd, 2).await;
    let (leader, _) = replicas.leader().await;
    let older = etcd.keys(ELECTION);
    register(&etcd, "newer", Release::new(999, 0, 0)).await;
    let lease = lease_of(&etcd, TTL);
    stand_at(&etcd, &format!("{ELECTION}{lease}"), "newer", lease).await;
    for replica in &mut replicas.0 {
        replica.wait_for_log("until the other has proved lasting").await;
    }
    eventually(TTL + SOON, "the lease has run out", async || {
        same(etcd.keys(ELECTION), older.clone())
    })
    .await;
    let log = replicas.0[leader].log();
    assert!(
        replicas.0[leader].leads().await && !log.contains("stepping down"),
        "{log}"
    );
}

/// The keys are in the order of leases, which says nothing of who entered first.
#[tokio::test]
async fn of_several_newer_candidates_the_first_one_counts() {
    let etcd = TestEtcd::start().await;
    for (node, key) in [("newer", "f"), ("newest", "a")] {
        register(&etcd, node, Release::new(999, 0, 0)).await;
        let key = format!("{ELECTION}{key}");
        stand_at(&etcd, &key, node, granted_lease(&etcd)).await;
    }
    let mut late = launch(&etcd).trial(LONG_TTL).start("late");
    late.wait_ready().await;
    late.wait_for_log("replica newer runs release 999.0.0, which is newer: this one does not stand")
        .await;
    assert_eq!(etcd.keys(ELECTION).len(), 2);
}

/// With a thousand replicas each list costs a thousand keys, so that a thousand lists for each change would be a million.
#[tokio::test]
async fn while_a_newer_candidate_stands_changes_of_the_registrations_have_nothing_listed() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, _) = three(&etcd).await;
    register(&etcd, "newer", Release::new(999, 0, 0)).await;
    stand(&etcd, "newer").await;
    wait_for_candidates(&etcd, 1).await;
    for replica in &mut replicas.0 {
        replica.wait_for_log("replica newer runs release 999.0.0").await;
    }
    let client = connect(&etcd).await;
    let another = registering(&etcd, "another", Release::new(999, 0, 0));
    let before = reads(&replicas).await;
    for _ in 0..20 {
        commit(&client, another.clone()).await.unwrap();
        // Time for the replicas to see each change by itself.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let gone = Txn::new().delete(registration("another").as_bytes());
        commit(&client, gone).await.unwrap();
        // As above.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Once they stand again, they have seen all of it.
    etcd.etcdctl(&["del", &registration("newer")]);
    wait_for_candidates(&etcd, 4).await;
    for (now, before) in reads(&replicas).await.iter().zip(before) {
        assert!(now - before < 20.0, "{} reads for 40 changes", now - before);
    }
}

#[tokio::test]
async fn a_node_whose_record_says_a_newer_release_keeps_no_replica_from_leading() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let store = store_of_replicas(&client);
    let stale = Node {
        metadata: Some(Metadata::new("c9", "u9", jiff::Timestamp::now())),
        status: Some(NodeStatus {
            controller: true,
            release: Some(Release::new(999, 0, 0).to_proto()),
            ..NodeStatus::default()
        }),
        ..Node::default()
    };
    let value = prost::Message::encode_to_vec(&stale);
    let key = store.keys.node(&"c9".parse().unwrap());
    commit(&client, Txn::new().put(&key, value)).await.unwrap();
    let mut replica = launch(&etcd).start("a");
    replica.wait_ready().await;
    replica.wait_leading().await;
}

#[tokio::test]
async fn an_older_or_equal_release_ends_no_term() {
    let etcd = TestEtcd::start().await;
    let mut replica = launch(&etcd).start("a");
    replica.wait_leading().await;
    register(&etcd, "older", Release::new(0, 0, 1)).await;
    register(&etcd, "equal", env!("CARGO_PKG_VERSION").parse().unwrap()).await;
    // Once a newcomer, which reads both records, stands for election, the leader has seen them too.
    let mut newcomer = launch(&etcd).start("b");
    newcomer.wait_ready().await;
    wait_for_candidates(&etcd, 2).await;
    assert!(replica.leads().await);
    assert!(!replica.log().contains("no longer leading"));
}
