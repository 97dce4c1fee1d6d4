//! Lanes: what is urgent does not wait for what is slow.

use super::*;

/// Volumes whose creation hangs, more than the plugin takes at a time.
const HANGING: usize = 120;

fn hanging() -> String {
    (0..HANGING)
        .map(|number| volume(&format!("v{number}"), ""))
        .collect()
}

#[tokio::test]
async fn a_volume_is_detached_and_attached_and_deleted_while_creations_hang() {
    let world = World::start().await;
    world.apply(&world.plugin_document("{\"timeout\": \"1h\"}")).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    world.plugin.fault("CreateVolume", None, Happening::Hangs).await;
    world.apply(&hanging()).await;
    world.expect_calls("CreateVolume", 17).await;
    world.unpublish("data", "n1").await;
    world.publish("data", "n2").await;
    world.unpublish("data", "n2").await;
    world.delete("data").await;
    assert_eq!(world.plugin.calls_of("CreateVolume").len(), 17, "they hang");
    leader.resign().await;
}

#[tokio::test]
async fn a_detachment_does_not_wait_for_attachments_that_hang() {
    let world = World::start().await;
    let more = "{\"timeout\": \"1h\", \"concurrency\": 1}";
    world.apply(&world.plugin_document(more)).await;
    let leader = world.leader().await;
    for name in ["a", "b"] {
        world.apply(&volume(name, "")).await;
    }
    world.publish("a", "n1").await;
    world
        .plugin
        .fault("ControllerPublishVolume", None, Happening::Hangs)
        .await;
    world.done(&["publish", "b", "n2"]).await;
    world.expect_calls("ControllerPublishVolume", 2).await;
    world.unpublish("a", "n1").await;
    leader.resign().await;
}
