//! Faults that are made for real, in a real Prometheus that scrapes real replicas.

use quorate_dev::csi_plugin::faults::Happening;

use super::prometheus::{Prometheus, Target};
use crate::support::csi::answer;
use crate::support::etcd::TestEtcd;
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::{Launch, TestReplica};
use crate::support::wait::{SOON, eventually, same};
use crate::upgrade::bundles::Release;
use crate::volumes::world::{World, volume};

async fn watching(replicas: &[&TestReplica]) -> Prometheus {
    let targets: Vec<Target> = replicas.iter().map(|replica| Target::replica(replica)).collect();
    Prometheus::of(&targets).await
}

#[tokio::test]
async fn replicas_without_an_etcd_lead_no_more_and_the_alerts_clear_once_one_does() {
    let mut etcd = TestEtcd::start().await;
    let replicas = Launch::on(&etcd).start_all(&["r1", "r2"]);
    replicas.leader().await;
    let prometheus = watching(&[&replicas.0[0], &replicas.0[1]]).await;
    etcd.members[0].kill().await.unwrap();
    let alerts = [
        "QuorateNoLeader",
        "QuorateEtcdQuorumLost",
        "QuorateReplicaNotReady",
    ];
    prometheus.fires(&alerts).await;
    etcd.members[0].start().await.unwrap();
    prometheus.clears().await;
    replicas.leader().await;
}

#[tokio::test]
async fn replicas_that_are_gone_raise_an_alert_although_no_series_of_theirs_is_left() {
    let etcd = TestEtcd::start().await;
    let launch = Launch::on(&etcd);
    let mut replica = launch.start("r1");
    replica.wait_leading().await;
    let prometheus = watching(&[&replica]).await;
    replica.stop().await.unwrap();
    prometheus.fires(&["QuorateAbsent", "QuorateReplicaDown"]).await;
    replica.launch().unwrap();
    prometheus.clears().await;
}

#[tokio::test]
async fn a_gate_that_waits_for_an_older_replica_raises_an_alert_until_that_is_gone() {
    let kubernetes = Kubernetes::start().await;
    let launch = Launch::on_kubernetes(&kubernetes)
        .flag("--lease-ttl=30")
        .flag("--settle-ms=200")
        .flag("--pass-interval-ms=1000");
    let first = Release::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let second = Release::of("shop", "2.0.0", "1.0.0", "1.1.0");
    let mut old = launch.clone().bundle(first.bundle()).start("old");
    old.wait_ready().await;
    old.wait_leading().await;
    let mut new = launch.bundle(second.bundle()).start("new");
    new.wait_leading().await;
    let prometheus = watching(&[&new]).await;
    prometheus.fires(&["QuorateGateBlocked"]).await;
    old.stop().await.unwrap();
    prometheus.clears().await;
    assert_eq!(new.metric("quorate_gate_blocked").await, 0.0);
}

#[tokio::test]
async fn a_plugin_that_is_gone_and_one_that_fails_raise_alerts_until_the_volumes_are_made() {
    let mut world = World::start().await;
    let mut replica = Launch::on(&world.etcd).start("r1");
    replica.wait_leading().await;
    let prometheus = watching(&[&replica]).await;
    world.apply(&volume("first", "")).await;
    world.expect_created("first").await;

    world.plugin.kill().await.unwrap();
    world.apply(&volume("second", "")).await;
    prometheus.fires(&["QuoratePluginNotReady"]).await;
    world.plugin.launch().await.unwrap();
    world.expect_created("second").await;
    prometheus.clears().await;

    let fails = Happening::Fails(answer("Internal", "the disk is on fire"));
    world.plugin.fault("CreateVolume", None, fails).await;
    world.apply(&volume("third", "")).await;
    prometheus.fires(&["QuorateVolumesBlocked"]).await;
    world.plugin.clear_faults().await;
    world.done(&["retry", "volume", "third"]).await;
    world.expect_created("third").await;
    prometheus.clears().await;
}

#[tokio::test]
async fn a_member_that_is_down_raises_alerts_until_it_is_back() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let mut replica = Launch::on(&etcd).start("r1");
    replica.wait_leading().await;
    let healthy = r#"quorate_members{kind="voter",health="healthy"}"#;
    eventually(SOON, "all members are healthy", async || {
        same(replica.metric(healthy).await, 3.0)
    })
    .await;
    let prometheus = watching(&[&replica]).await;
    let follower = (etcd.raft_leader().await + 1) % 3;
    etcd.members[follower].kill().await.unwrap();
    prometheus
        .fires(&["QuorateMemberUnhealthy", "QuorateQuorumAtRisk"])
        .await;
    etcd.members[follower].start().await.unwrap();
    prometheus.clears().await;
}
