//! What a volume without a record left at the backend is undone, and delays nothing else (INV-6, INV-8).

use super::deletion::being_created;
use super::forced::tombstone;
use super::*;

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

/// INV-6: the volume that is used under another name by now is neither deleted nor detached.
#[tokio::test]
async fn what_was_taken_back_under_another_name_is_not_undone() {
    let world = World::start().await;
    let leader = world.leader().await;
    forget_during_creation(&world).await;
    let adopt = ["tombstone", "adopt", &tombstone(&world).await, "--as", "old"];
    world.done(&adopt).await;
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
