//! An etcd that is restored from a snapshot under a running replica: its records of volumes are those of an earlier time.

use super::*;

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
