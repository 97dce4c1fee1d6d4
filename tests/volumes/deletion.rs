//! Deletion requested before, during and after creation, and by force.

use super::*;

/// A volume, called data, whose creation waits to be released.
pub async fn being_created(world: &World) {
    world
        .plugin
        .fault("CreateVolume", Some(1), Happening::Waits)
        .await;
    world.apply(&volume("data", "")).await;
    world.expect_calls("CreateVolume", 1).await;
}

/// Waits until this many tombstones exist.
async fn expect_tombstones(world: &World, count: usize) {
    eventually(SOON, "tombstones", async || {
        let listed = world.done(&["get", "tombstones", "-o", "name"]).await;
        same(listed.lines().count(), count)
    })
    .await;
}

#[tokio::test]
async fn deletion_before_creation_makes_no_call() {
    let world = World::start().await;
    world.apply(&volume("data", "")).await;
    let said = world.done(&["delete", "volume", "data", "--yes"]).await;
    let next =
        "\n  volume/data: the leader has to delete the volume's record (nothing is left at the backend)\n";
    assert!(said.ends_with(next), "{said}");
    let leader = world.leader().await;
    world.expect_gone("data").await;
    assert_eq!(world.plugin.calls_of("CreateVolume"), []);
    leader.resign().await;
}

#[tokio::test]
async fn deletion_requested_during_creation_finishes_the_creation_and_then_deletes() {
    let world = World::start().await;
    let leader = world.leader().await;
    being_created(&world).await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    assert_eq!(world.plugin.calls_of("CreateVolume")[0].end, None, "it goes on");
    world.plugin.release().await;
    world.expect_gone("data").await;
    world.expect_empty_backend().await;
    assert_eq!(world.plugin.calls_of("CreateVolume").len(), 1);
    assert_eq!(world.plugin.calls_of("DeleteVolume").len(), 1);
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn a_volume_forgotten_by_force_during_its_creation_is_undone_at_the_backend() {
    let world = World::start().await;
    let leader = world.leader().await;
    being_created(&world).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    expect_tombstones(&world, 1).await;
    world.plugin.release().await;
    world.expect_calls("DeleteVolume", 1).await;
    world.expect_empty_backend().await;
    expect_tombstones(&world, 0).await;
    leader.resign().await;
}

#[tokio::test]
async fn a_volume_forgotten_by_force_while_it_is_deleted_leaves_no_tombstone() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    world.plugin.fault("DeleteVolume", 1, Happening::Waits).await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    world.expect_calls("DeleteVolume", 1).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    expect_tombstones(&world, 1).await;
    world.plugin.release().await;
    expect_tombstones(&world, 0).await;
    world.expect_empty_backend().await;
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn a_volume_forgotten_by_force_while_it_is_published_is_unpublished_and_listed() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let id = world.backend_id("data").await;
    world
        .plugin
        .fault("ControllerPublishVolume", Some(1), Happening::Waits)
        .await;
    world.done(&["publish", "data", "n1"]).await;
    world.expect_calls("ControllerPublishVolume", 1).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    world.plugin.release().await;
    world.expect_calls("ControllerUnpublishVolume", 1).await;
    eventually(SOON, "no node has it", async || {
        same(world.attached(&id).len(), 0)
    })
    .await;
    // A person has to clean up the volume itself.
    expect_tombstones(&world, 1).await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn force_leaves_a_tombstone_with_what_is_left_behind() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    let id = world.backend_id("data").await;
    let uid = world.volume("data").await.unwrap().metadata.unwrap().uid;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    let listed = world.done(&["get", "tombstones"]).await;
    assert!(listed.contains("data"), "{listed}");
    let described = world.done(&["describe", "tombstone", &uid]).await;
    for part in ["data", &id, "n1 (node id csi-n1)", DRIVER] {
        assert!(described.contains(part), "{part} in {described}");
    }
    stays(QUIET, "a tombstone is for people", async || {
        same(world.attached(&id), vec!["csi-n1".to_owned()])
    })
    .await;
    world.done(&["delete", "tombstone", &uid, "--yes"]).await;
    leader.resign().await;
}

/// INV-8, and the exception that safety needs.
#[tokio::test]
async fn a_publication_that_cannot_be_read_keeps_its_volume_and_delays_no_other() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&(volume("data", "") + &volume("other", ""))).await;
    world.expect_created("data").await;
    leader.resign().await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    let keys = &world.store.keys;
    let unreadable = keys.publication(&parsed("data"), &parsed("n1"));
    let garbled = Txn::new()
        .put(&unreadable, [0xff; 3])
        .put(&keys.volume(&parsed("garbled")), [0xff; 3]);
    world.commit(garbled).await;
    let leader = world.leader().await;
    let blocked = world.expect_blocked("data", None, "PublicationMalformed").await;
    assert!(blocked.message.contains("node n1"), "{blocked:?}");
    world.publish("other", "n1").await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    world.commit(Txn::new().delete(&unreadable)).await;
    world.expect_gone("data").await;
    assert_eq!(world.plugin.calls_of("DeleteVolume").len(), 1);
    leader.resign().await;
}
