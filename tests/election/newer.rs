//! Replicas of several releases: older ones make way for a newer one that stands for election, and for no other.

use std::time::Duration;

use quorate::etcd::{LeaseId, Txn};
use quorate::proto::{Metadata, Node, NodeStatus, Registration};
use quorate::release::{Release, Version};
use quorate_dev::http;

use super::{ELECTION, launch, store_of_replicas, three, wait_for_candidates};
use crate::support::client::{commit, connect};
use crate::support::etcd::TestEtcd;
use crate::support::quorate::quorate_on;

fn granted_lease(etcd: &TestEtcd) -> LeaseId {
    let granted = etcd.etcdctl(&["lease", "grant", "60"]);
    let id = granted.split_whitespace().nth(1).unwrap();
    LeaseId(i64::from_str_radix(id, 16).unwrap())
}

/// Registers a controller of this release, on a lease of a minute.
async fn register(etcd: &TestEtcd, node: &str, release: Release) {
    let record = Registration {
        version: Some(Version::from(release).to_proto()),
        process: "another".to_owned(),
        registered_at: None,
    };
    let key = format!("/quorate/nodes/{node}/release");
    let value = prost::Message::encode_to_vec(&record);
    let txn = Txn::new().put_leased(key.as_bytes(), value, granted_lease(etcd));
    commit(&connect(etcd).await, txn).await.unwrap();
}

/// Stands for election under this name, as the replica of that name would. Returns the key.
async fn stand(etcd: &TestEtcd, node: &str) -> String {
    let lease = granted_lease(etcd);
    let key = format!("{ELECTION}{lease}");
    let txn = Txn::new().put_leased(key.as_bytes(), node, lease);
    commit(&connect(etcd).await, txn).await.unwrap();
    key
}

/// A process that crashes as soon as it has registered is registered for a TTL after each start.
#[tokio::test]
async fn a_newer_release_that_registers_and_does_not_stand_for_election_takes_the_lead_from_no_other() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, leader) = three(&etcd).await;
    let before = etcd.keys(ELECTION);
    for _ in 0..3 {
        register(&etcd, "newer", Release::new(999, 0, 0)).await;
        // The measured time, in which nothing may happen.
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(replicas.0[leader].leads().await);
        etcd.etcdctl(&["del", "/quorate/nodes/newer/release"]);
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
    etcd.etcdctl(&["del", "/quorate/nodes/newer/release"]);
    wait_for_candidates(&etcd, 4).await;
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
