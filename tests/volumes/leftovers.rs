//! What a volume without a record left at the backend is undone, and delays nothing else (INV-6, INV-8).

use quorate::proto::Tombstone;

use super::deletion::being_created;
use super::forced::tombstone;
use super::forgotten::seen_by_the_leader;
use super::imports::taken_in;
use super::unreadable::after_the_calls;
use super::*;
use crate::support::leader::Leader;

/// Forgets a volume by force while it is being created, so that the leader has to undo its creation; the plugin refuses that.
async fn forget_during_creation(world: &World) {
    let fails = Happening::Fails(answer("InvalidArgument", "never"));
    world.plugin.fault("DeleteVolume", None, fails).await;
    being_created(world).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    world.plugin.release().await;
    world.expect_calls("DeleteVolume", 1).await;
}

#[tokio::test]
async fn what_is_left_of_a_volume_is_undone_when_its_plugin_runs_again() {
    let world = World::start().await;
    let leader = world.leader().await;
    forget_during_creation(&world).await;
    world
        .done(&["delete", "plugin", DRIVER, "--yes", "--force"])
        .await;
    world.plugin.clear_faults().await;
    world.apply(&world.plugin_document("{}")).await;
    world.expect_empty_backend().await;
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn what_is_left_of_a_volume_does_not_delay_another_of_its_name() {
    let world = World::start().await;
    let leader = world.leader().await;
    forget_during_creation(&world).await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    assert_eq!(world.plugin.backend().ids().unwrap().len(), 2);
    // After another request, both go.
    world.plugin.clear_faults().await;
    world.done(&["delete", "volume", "data", "--yes", "--wait"]).await;
    world.expect_empty_backend().await;
    world.check_calls();
    leader.resign().await;
}

/// A publication of the volume data to `n1`, whose record is lost during its call. The command that forgets one keeps its node id,
/// which one of an earlier release does not.
async fn lose_during_publication(world: &World) {
    let publish = "ControllerPublishVolume";
    world.plugin.fault(publish, 1, Happening::Waits).await;
    world.done(&["publish", "data", "n1"]).await;
    world.expect_calls(publish, 1).await;
    let key = world.store.keys.publication(&parsed("data"), &parsed("n1"));
    world.commit(Txn::new().delete(&key)).await;
}

/// A volume called data, of a plugin that has long to answer, and its id at the backend.
async fn created() -> (World, Leader, String) {
    let world = World::start().await;
    world
        .apply(&world.plugin_document("{\"timeout\": \"60s\"}"))
        .await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let id = world.backend_id("data").await;
    (world, leader, id)
}

/// The same once its record is forgotten by force, as well as that of a publication whose call waits.
async fn lost_during_publication() -> (World, Leader, String) {
    let (world, leader, id) = created().await;
    lose_during_publication(&world).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    (world, leader, id)
}

/// The same once its record is forgotten by force during the call that publishes it, and a first call that undoes this has failed, as
/// every later one will.
async fn undoing_a_publication() -> (World, Leader, String) {
    let (world, leader, id) = created().await;
    let (publish, unpublish) = ("ControllerPublishVolume", "ControllerUnpublishVolume");
    world.plugin.fault(publish, 1, Happening::Waits).await;
    let no_answer = Happening::Fails(answer("Unavailable", "not now"));
    world.plugin.fault(unpublish, None, no_answer).await;
    world.done(&["publish", "data", "n1"]).await;
    world.expect_calls(publish, 1).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    world.plugin.release().await;
    expect_a_call(&world, unpublish).await;
    (world, leader, id)
}

/// INV-6: it would be deleted while it is published.
#[tokio::test]
async fn what_is_left_of_a_volume_does_not_delay_what_another_of_its_name_leaves_on_a_node() {
    let world = World::start().await;
    let leader = world.leader().await;
    forget_during_creation(&world).await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let id = world.backend_id("data").await;
    lose_during_publication(&world).await;
    world.plugin.release().await;
    world.expect_calls("ControllerUnpublishVolume", 1).await;
    let what = "the volume has left the node";
    eventually(SOON, what, async || same(world.attached(&id).len(), 0)).await;
    world.plugin.clear_faults().await;
    world.done(&["delete", "volume", "data", "--yes", "--wait"]).await;
    world.expect_empty_backend().await;
    world.check_calls();
    leader.resign().await;
}

/// INV-12: a publication that cannot be read may be the one that was made. What mends or forgets it concerns the new name alone.
#[tokio::test]
async fn what_a_volume_left_on_a_node_is_undone_under_its_new_name_once_its_records_can_be_read() {
    let (world, leader, id) = lost_during_publication().await;
    let name = tombstone(&world).await;
    world.done(&["tombstone", "adopt", &name, "--as", "old"]).await;
    let unreadable = world.store.keys.publication(&parsed("old"), &parsed("n9"));
    world.put(&unreadable, [0xff, 0xff]).await;
    seen_by_the_leader(&world).await;
    world.plugin.release().await;
    after_the_calls(&world, "ControllerPublishVolume").await;
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume"), []);
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.commit(Txn::new().delete(&unreadable)).await;
    world.expect_calls("ControllerUnpublishVolume", 1).await;
    let what = "the volume has left the node";
    eventually(SOON, what, async || same(world.attached(&id).len(), 0)).await;
    world.check_calls();
    leader.resign().await;
}

/// INV-6: the name that takes the volume in gets it only after that.
#[tokio::test]
async fn what_a_volume_left_on_a_node_is_undone_before_it_is_taken_in_under_another_name() {
    let (world, leader, id) = lost_during_publication().await;
    world.apply(&taken_in("theirs", &id, "")).await;
    seen_by_the_leader(&world).await;
    assert_eq!(world.plugin.calls_of("ValidateVolumeCapabilities"), []);
    world.plugin.release().await;
    world.expect_created("theirs").await;
    world.publish("theirs", "n1").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    assert_ne!(world.plugin.calls_of("ControllerUnpublishVolume"), []);
    world.check_calls();
    leader.resign().await;
}

/// INV-6: the volume that is used under another name by now is neither deleted nor detached.
#[tokio::test]
async fn what_was_taken_back_under_another_name_is_not_undone() {
    let world = World::start().await;
    let leader = world.leader().await;
    forget_during_creation(&world).await;
    let adopt = ["tombstone", "adopt", &tombstone(&world).await, "--as", "old"];
    // Once the leader knows that the call did nothing.
    eventually(SOON, "it is taken back", async || {
        let adopted = world.run(&adopt).await;
        match adopted.code {
            0 => Ok(()),
            _ => Err(adopted.stderr),
        }
    })
    .await;
    world.publish("old", "n1").await;
    world.plugin.clear_faults().await;
    // Another volume of the former name, so that what is left under that name is planned again.
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let id = world.backend_id("old").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    assert_eq!(
        world.plugin.calls_of("DeleteVolume").len(),
        1,
        "the one that failed"
    );
    world.check_calls();
    leader.resign().await;
}

/// INV-6: a volume that may be half deleted does not come back as a healthy one.
#[tokio::test]
async fn what_is_being_undone_is_not_taken_back() {
    let world = World::start().await;
    world
        .apply(&world.plugin_document("{\"timeouts\": {\"delete\": \"1s\"}}"))
        .await;
    let leader = world.leader().await;
    world.plugin.fault("DeleteVolume", None, Happening::Hangs).await;
    being_created(&world).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    let name = tombstone(&world).await;
    world.plugin.release().await;
    world.expect_calls("DeleteVolume", 1).await;
    let adopt = ["tombstone", "adopt", &name, "--as", "old"];
    let refused = world.run(&adopt).await.expect_code(4);
    assert!(refused.contains("tombstone clean"), "{refused}");
    world.plugin.clear_faults().await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// INV-6: one call at a time for a volume, also while it is undone under one name and taken back under another.
#[tokio::test]
async fn what_is_being_unpublished_is_published_again_only_after_that() {
    let (world, leader, id) = created().await;
    let (publish, unpublish) = ("ControllerPublishVolume", "ControllerUnpublishVolume");
    world.plugin.fault(publish, 1, Happening::Waits).await;
    // Repeated until there is an answer.
    let no_answer = Happening::FailsAfter(answer("Unavailable", "lost"));
    world.plugin.fault(unpublish, None, no_answer).await;
    world.done(&["publish", "data", "n1"]).await;
    world.expect_calls(publish, 1).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    let name = tombstone(&world).await;
    world.plugin.release().await;
    world.plugin.fault(unpublish, 1, Happening::Waits).await;
    let waiting = async || {
        let calls = world.plugin.calls_of(unpublish).into_iter();
        calls.filter(|call| call.end.is_none()).count()
    };
    let what = "a call to unpublish waits";
    eventually(SOON, what, async || same(waiting().await, 1)).await;
    world.done(&["tombstone", "adopt", &name, "--as", "old"]).await;
    // The leader sees the adopted volume before this one.
    world.apply(&volume("later", "")).await;
    world.expect_created("later").await;
    world.plugin.release().await;
    world.plugin.clear_faults().await;
    let what = "no call waits";
    eventually(SOON, what, async || same(waiting().await, 0)).await;
    world.expect_state("old", "n1", "published").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.check_calls();
    leader.resign().await;
}

/// Waits until the plugin was called so at least once.
async fn expect_a_call(world: &World, method: &str) {
    eventually(SOON, &format!("{method} is called"), async || {
        match world.plugin.calls_of(method).len() {
            0 => Err("it is not"),
            _ => Ok(()),
        }
    })
    .await;
}

/// INV-3, INV-6: no operator has to clean up after a leader that ends.
#[tokio::test]
async fn a_volume_that_a_leader_has_begun_to_undo_is_undone_by_the_next_one() {
    let world = World::start().await;
    let leader = world.leader().await;
    let no_answer = Happening::Fails(answer("Unavailable", "not now"));
    world.plugin.fault("DeleteVolume", None, no_answer).await;
    being_created(&world).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    world.plugin.release().await;
    expect_a_call(&world, "DeleteVolume").await;
    leader.resign().await;
    assert_eq!(world.plugin.backend().ids().unwrap().len(), 1);
    world.plugin.clear_faults().await;
    let next = world.leader().await;
    world.expect_empty_backend().await;
    eventually(SOON, "nothing is left to say", async || {
        let listed = world.done(&["get", "tombstones", "-o", "name"]).await;
        same(listed, String::new())
    })
    .await;
    next.resign().await;
}

/// INV-3, INV-6: and nothing else of the tombstone is undone.
#[tokio::test]
async fn a_publication_that_a_leader_has_begun_to_undo_is_undone_by_the_next_one_and_the_volume_stays() {
    let (world, leader, id) = undoing_a_publication().await;
    leader.resign().await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.plugin.clear_faults().await;
    let next = world.leader().await;
    let what = "the volume has left the node";
    eventually(SOON, what, async || same(world.attached(&id).len(), 0)).await;
    eventually(SOON, "that is recorded", async || {
        let stored = world.list(&world.store.keys.tombstones()).await;
        let records = stored.iter().map(|kv| Tombstone::decode(&*kv.value).unwrap());
        same(records.filter(|record| !record.undoing.is_empty()).count(), 0)
    })
    .await;
    next.resign().await;
    // It is done: a third leader makes no call.
    let unpublish = "ControllerUnpublishVolume";
    let calls = world.plugin.calls_of(unpublish).len();
    let third = world.leader().await;
    world.apply(&volume("later", "")).await;
    world.expect_created("later").await;
    assert_eq!(world.plugin.calls_of(unpublish).len(), calls);
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    assert!(!tombstone(&world).await.is_empty(), "the volume is left");
    third.resign().await;
}

/// INV-12: a node uses the volume again by the records of another name, that were forgotten in their turn.
#[tokio::test]
async fn what_was_taken_in_while_it_was_undone_is_not_undone_by_a_later_leader() {
    let (world, leader, id) = undoing_a_publication().await;
    world.apply(&taken_in("theirs", &id, "")).await;
    world.expect_created("theirs").await;
    world.plugin.clear_faults().await;
    world.publish("theirs", "n1").await;
    world
        .done(&["delete", "volume", "theirs", "--yes", "--force"])
        .await;
    leader.resign().await;
    let next = world.leader().await;
    world.apply(&volume("later", "")).await;
    world.expect_created("later").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    next.resign().await;
}
