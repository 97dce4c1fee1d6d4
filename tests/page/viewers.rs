//! Many viewers at once.

use std::time::Instant;

use tokio::time::sleep;

use super::viewer::Viewer;
use super::{shown, worker};
use crate::support::base::Base;
use crate::support::client::put_all;
use crate::support::quorate::{Launch, TestReplica};
use crate::support::wait::QUIET;

/// As many as watch an upgrade together.
const VIEWERS: usize = 200;

/// The messages that etcd has received from clients so far, of every kind.
async fn messages(base: &Base) -> f64 {
    let metrics = base.etcd.members[0].metrics().await.unwrap();
    let series = metrics
        .lines()
        .filter(|line| line.starts_with("grpc_server_msg_received_total{"));
    let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
    let received: f64 = series.map(count).sum();
    assert!(received > 0.0, "etcd counts none");
    received
}

/// How many of them etcd receives a second, over a while: a machine that is busy makes the while longer.
async fn rate(base: &Base) -> f64 {
    let (begun, before) = (Instant::now(), messages(base).await);
    sleep(QUIET).await;
    let received = messages(base).await - before;
    received / begun.elapsed().as_secs_f64()
}

/// The memory of a replica, in MiB.
fn memory(replica: &TestReplica) -> u64 {
    let pid = replica.pid().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn two_hundred_viewers_cost_etcd_nothing_and_the_replica_little() {
    let base = Base::start().await;
    let mut replica = Launch::on(&base.etcd).start("r1");
    replica.wait_leading().await;
    // More than the page shows, so that each viewer gets a long table.
    let nodes = (0..150).map(|number| worker(&format!("n{number:03}")));
    put_all(&base.store.etcd, nodes).await;
    shown(&replica, "the nodes are shown", |state| {
        state["nodes"]["content"]["nodes"]["total"] == 150
    })
    .await;

    let alone = rate(&base).await;
    let small = memory(&replica);

    let mut viewers = Vec::new();
    for _ in 0..VIEWERS {
        viewers.push(Viewer::open(replica.port).await);
    }
    for viewer in &mut viewers {
        assert_eq!(viewer.next().await.len(), 8, "all sections come first");
    }
    let watched = rate(&base).await;
    // It looks for them several times meanwhile. One request each would be more than 60 a second.
    assert!(
        watched <= alone + 15.0,
        "etcd received {watched} messages a second, and {alone} without viewers"
    );
    assert_eq!(replica.status_of("/livez").await, Some(200));
    assert_eq!(replica.status_of("/leaderz").await, Some(200));

    // A change reaches all of them.
    let (key, value) = worker("a-new-one");
    base.put(key.as_bytes(), value).await;
    for viewer in &mut viewers {
        viewer.wait_for("nodes", ">a-new-one<").await;
    }
    let large = memory(&replica);
    assert!(
        large < small + 40,
        "{large} MiB with viewers, {small} MiB without"
    );

    // They leave, and others come.
    drop(viewers);
    let mut viewer = Viewer::open(replica.port).await;
    viewer.next().await;
}
