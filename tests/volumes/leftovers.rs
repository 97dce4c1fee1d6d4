//! What is left at the backend of a volume whose record is gone is undone, and holds up nothing else (INV-6, INV-8).

use super::*;

/// Forgets a volume by force while it is being created, so that its creation is to be undone; which the plugin refuses.
async fn forget_during_creation(world: &World) {
    let fails = Happening::Fails(answer("InvalidArgument", "never"));
    world.plugin.fault("DeleteVolume", None, fails).await;
    world
        .plugin
        .fault("CreateVolume", Some(1), Happening::Waits)
        .await;
    world.apply(&volume("data", "")).await;
    world.expect_calls("CreateVolume", 1).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    world.plugin.release().await;
    world.expect_calls("DeleteVolume", 1).await;
}

#[tokio::test]
async fn what_is_left_of_a_volume_is_undone_when_its_plugin_is_there_again() {
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
async fn a_volume_is_not_held_up_by_what_is_left_of_another_that_had_its_name() {
    let world = World::start().await;
    let leader = world.leader().await;
    forget_during_creation(&world).await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    assert_eq!(world.plugin.backend().ids().unwrap().len(), 2);
    // Asked for again, both go.
    world.plugin.clear_faults().await;
    world.done(&["delete", "volume", "data", "--yes", "--wait"]).await;
    world.expect_empty_backend().await;
    world.check_calls();
    leader.resign().await;
}
