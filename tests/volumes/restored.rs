//! An etcd that is restored from a snapshot under a running replica: its records of volumes are those of an earlier time.

use super::*;
use crate::support::access::Access;
use crate::support::base::Base;
use crate::support::etcd::{EtcdVersion, TestEtcd, USER};

/// INV-6, INV-11, INV-12
#[tokio::test]
async fn after_a_restore_under_a_running_replica_nothing_is_detached_or_deleted() {
    let plugin = TestPlugin::start_with(|options| {
        options.offers.list = true;
        options.offers.list_nodes = true;
    })
    .await;
    let mut world = World::with(plugin).await;
    let launch = Launch::on(&world.etcd).flag("--volume-compare-interval-ms=300");
    let mut before = launch.start("before");
    world.apply(&shared_volume("data", "")).await;
    world.apply(&volume("deleted", "")).await;
    world.publish("data", "n1").await;
    world.expect_created("deleted").await;
    let snapshot = world.etcd.snapshot();
    // The restored records know none of this.
    world.publish("data", "n2").await;
    world.apply(&volume("later", "")).await;
    world.publish("later", "n3").await;
    world.delete("deleted").await;
    let (data, later) = (world.backend_id("data").await, world.backend_id("later").await);

    world.restore(&snapshot).await;
    assert!(!before.ended().await.success(), "what it remembers is void");
    let _after = launch.start("after");
    eventually(SOON, "the volume says where else it is", async || {
        let described = world.done(&["describe", "volume", "data"]).await;
        match described.contains("quorate unpublish data --node-id csi-n2") {
            true => Ok(()),
            false => Err(described),
        }
    })
    .await;
    // The leader works, and has compared the list.
    world.apply(&volume("new", "")).await;
    world.publish("new", "n1").await;
    assert_eq!(world.attached(&data), ["csi-n1", "csi-n2"]);
    assert_eq!(world.attached(&later), ["csi-n3"]);
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume"), []);
    assert_eq!(
        world.plugin.calls_of("DeleteVolume").len(),
        1,
        "that of an operator, before the restore"
    );
}

/// INV-6, INV-12: what a node and an operator had said is as old as the snapshot, and the volumes are used again since.
#[tokio::test]
async fn what_was_being_unpublished_in_a_snapshot_is_not_detached_after_its_restore() {
    let plugin = TestPlugin::start_with(|options| {
        options.offers.list = true;
        options.offers.list_nodes = true;
    })
    .await;
    let mut world = World::with(plugin).await;
    let launch = Launch::on(&world.etcd).flag("--volume-compare-interval-ms=300");
    let mut before = launch.start("before");
    for name in ["data", "moved"] {
        world.apply(&shared_volume(name, "")).await;
        world.expect_created(name).await;
    }
    world.publish("data", "n1").await;
    let unpublish = "ControllerUnpublishVolume";
    let fails = Happening::Fails(answer("Unavailable", "not now"));
    world.plugin.fault(unpublish, None, fails).await;
    world.done(&["unpublish", "data", "n1", "--confirm"]).await;
    world.done(&["unpublish", "moved", "--node-id", "csi-n2"]).await;
    world.expect_state("data", "n1", "pendingUnpublish").await;
    let snapshot = world.etcd.snapshot();
    // Both leave their nodes, and come back.
    world.plugin.clear_faults().await;
    for name in ["data", "moved"] {
        world.done(&["retry", "volume", name]).await;
    }
    world.expect_state("data", "n1", "").await;
    eventually(SOON, "the volume has left the node id", async || {
        let status = world.volume("moved").await.unwrap().status.unwrap();
        same(status.detach_node_ids.len(), 0)
    })
    .await;
    world.publish("data", "n1").await;
    world.publish("moved", "n2").await;
    let (data, moved) = (world.backend_id("data").await, world.backend_id("moved").await);
    let calls = world.plugin.calls_of(unpublish).len();

    world.restore(&snapshot).await;
    assert!(!before.ended().await.success(), "what it remembers is void");
    let mut after = launch.start("after");
    world.expect_state("data", "n1", "pendingNodeUnpublish").await;
    eventually(SOON, "the volume says where it is", async || {
        let described = world.done(&["describe", "volume", "moved"]).await;
        match described.contains("quorate unpublish moved --node-id csi-n2") {
            true => Ok(()),
            false => Err(described),
        }
    })
    .await;
    world.apply(&volume("new", "")).await;
    world.publish("new", "n1").await;
    assert_eq!(
        world.plugin.calls_of(unpublish).len(),
        calls,
        "nothing is detached"
    );
    assert_eq!(world.attached(&data), ["csi-n1"]);
    assert_eq!(world.attached(&moved), ["csi-n2"]);
    world.unpublish("data", "n1").await;
    assert_eq!(world.attached(&data), [""; 0]);
    after.stop().await.unwrap();
    let restored = "etcd was restored from a snapshot";
    let log = after.log();
    assert!(log.contains(restored), "{log}");
    // The next leader finds the same history.
    let mut next = launch.start("next");
    world.unpublish("new", "n1").await;
    let log = next.log();
    assert!(!log.contains(restored), "{log}");
}

/// INV-6, INV-12: the call of the snapshot has succeeded since, and the node uses the volume.
#[tokio::test]
async fn what_was_being_published_in_a_snapshot_leaves_its_node_only_once_the_node_confirms_it() {
    let mut world = World::start().await;
    let launch = Launch::on(&world.etcd);
    let mut before = launch.start("before");
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let (publish, unpublish) = ("ControllerPublishVolume", "ControllerUnpublishVolume");
    let fails = || Happening::Fails(answer("Unavailable", "not now"));
    world.plugin.fault(publish, None, fails()).await;
    world.done(&["publish", "data", "n1"]).await;
    world.expect_blocked("data", Some("n1"), "Unavailable").await;
    let snapshot = world.etcd.snapshot();
    world.plugin.clear_faults().await;
    world.publish("data", "n1").await;
    let id = world.backend_id("data").await;

    world.plugin.fault(publish, None, fails()).await;
    before.stop().await.unwrap();
    world.restore(&snapshot).await;
    let mut after = launch.start("after");
    eventually(SOON, "the leader notices the restore", async || {
        match after.log().contains("etcd was restored from a snapshot") {
            true => Ok(()),
            false => Err("not yet"),
        }
    })
    .await;
    // No call has succeeded in this history.
    world.expect_blocked("data", Some("n1"), "Unavailable").await;
    let waits = ["publish", "data", "n1", "--wait", "--timeout=500ms"];
    let waited = world.run(&waits).await;
    assert!(waited.stdout.contains("is already requested"), "{waited:?}");
    waited.expect_code(2);
    world.done(&["unpublish", "data", "n1"]).await;
    world.expect_state("data", "n1", "pendingNodeUnpublish").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    assert_eq!(world.plugin.calls_of(unpublish), []);
    world.unpublish("data", "n1").await;
    assert_eq!(world.attached(&id), [""; 0]);
    after.stop().await.unwrap();
}

/// Nothing that waits for a person to grant a right keeps volumes waiting, unless it is needed to see that etcd was restored.
#[tokio::test]
async fn a_leader_that_may_not_record_the_history_of_etcd_says_so_and_works() {
    let etcd = TestEtcd::that_demands(Access::Password, EtcdVersion::Installed, 1, &[]).await;
    let world = World::on(Base::on(etcd).await, TestPlugin::start().await).await;
    let root = |args: &[&str]| world.etcd.etcdctl_as_root(args);
    root(&["user", "revoke-role", USER, "root"]);
    root(&["role", "revoke-permission", "--prefix=true", USER, "/quorate/"]);
    let grant = |args: &[&str]| root(&[&["role", "grant-permission"], args].concat());
    grant(&["--prefix=true", USER, "read", "/quorate/"]);
    grant(&[USER, "readwrite", "/quorate/", "/quorate/history/"]);
    grant(&[USER, "readwrite", "/quorate/history0", "/quorate0"]);
    let mut replica = Launch::on(&world.etcd).start("r1");
    replica.wait_leading().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    replica.stop().await.unwrap();
    let log = replica.log();
    assert!(
        log.contains("that etcd is restored from a snapshot would not be noticed"),
        "{log}"
    );
}
