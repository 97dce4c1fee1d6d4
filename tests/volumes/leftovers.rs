//! What a volume without a record left at the backend is undone, and delays nothing else (INV-6, INV-8).

use super::deletion::being_created;
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
