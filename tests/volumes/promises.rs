//! What a plugin's answer promises, compared with what was asked for.

use super::*;
use quorate_dev::csi_plugin::options::Options;

/// The condition of this type on a volume, once it is there.
async fn expect_condition(world: &World, name: &str, r#type: &str) -> Condition {
    let what = format!("{name} has the condition {type}");
    eventually(SOON, &what, async || {
        let status = world.volume(name).await.and_then(|volume| volume.status);
        let conditions = status.unwrap_or_default().conditions;
        let found = conditions.iter().find(|condition| condition.r#type == r#type);
        found.cloned().ok_or_else(|| format!("{conditions:?}"))
    })
    .await
}

async fn with_capacity(bytes: u64, more: impl FnOnce(&mut Options)) -> World {
    let plugin = TestPlugin::start_with(|options| {
        options.capacity = Some(bytes);
        more(options);
    })
    .await;
    World::with(plugin).await
}

#[tokio::test]
async fn a_volume_of_another_capacity_than_was_asked_for_says_so() {
    for (bytes, words) in [(1000, "has 1000,"), (9 << 30, "has 9Gi,")] {
        let world = with_capacity(bytes, |_| {}).await;
        let leader = world.leader().await;
        world
            .apply(&volume("data", "capacity: {required: 1Gi, limit: 2Gi},"))
            .await;
        let condition = expect_condition(&world, "data", "CapacityMismatch").await;
        assert!(condition.message.contains(words), "{condition:?}");
        world.delete("data").await;
        world.expect_empty_backend().await;
        leader.resign().await;
    }
}

#[tokio::test]
async fn a_volume_that_is_created_too_small_is_expanded_where_the_plugin_can() {
    let world = with_capacity(1000, |options| options.offers.expand = true).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "capacity: {required: 1Gi},")).await;
    world.expect_capacity("data", 1 << 30).await;
    let described = world.done(&["describe", "volume", "data"]).await;
    assert!(!described.contains("CapacityMismatch"), "{described}");
    leader.resign().await;
}

/// The plugin is asked once. A retry would be refused in the same way, and the deletion would wait for it for ever.
#[tokio::test]
async fn a_volume_whose_creation_was_refused_without_an_effect_can_be_deleted() {
    let world = World::start().await;
    let leader = world.leader().await;
    for code in [
        "NotFound",
        "FailedPrecondition",
        "PermissionDenied",
        "Unauthenticated",
    ] {
        let fails = Happening::Fails(answer(code, "no such pool"));
        world.plugin.fault("CreateVolume", None, fails).await;
        world.apply(&volume("data", "")).await;
        world.expect_blocked("data", None, code).await;
        world.delete("data").await;
        world.plugin.clear_faults().await;
    }
    // An attempt whose outcome is unknown came before: the volume may exist, and the way out is named.
    let fails = |code| Happening::Fails(answer(code, "no"));
    world.plugin.fault("CreateVolume", 1, fails("Unavailable")).await;
    world.plugin.fault("CreateVolume", None, fails("NotFound")).await;
    world.apply(&volume("data", "")).await;
    world.expect_blocked("data", None, "NotFound").await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    let hint = "quorate delete volume data --force";
    eventually(SOON, "the way out is named", async || {
        let described = world.done(&["describe", "volume", "data"]).await;
        match described.contains(hint) {
            true => Ok(()),
            false => Err(described),
        }
    })
    .await;
    leader.resign().await;
}

#[tokio::test]
async fn a_publication_of_a_volume_that_is_only_read_says_that_its_node_only_reads() {
    let world = World::start().await;
    let leader = world.leader().await;
    for (name, scope) in [("one", "singleNode"), ("many", "multiNode")] {
        let mode = format!("{{scope: {scope}, sharing: readOnly, block: {{}}}}");
        let spec = format!("{{driver: {{name: {DRIVER}}}, accessMode: {mode}}}");
        world.apply(&document("Volume", name, &spec)).await;
        world.publish(name, "n1").await;
        let stored = world.publication(name, "n1").await.unwrap().spec.unwrap();
        assert!(stored.read_only, "{name}");
        world.publish(name, "n1").await;
    }
    leader.resign().await;
}

#[tokio::test]
async fn a_volume_is_not_published_to_a_node_that_cannot_reach_it() {
    let place = |zone: &str| [("zone".to_owned(), zone.to_owned())].into();
    let plugin = TestPlugin::start_with(|options| options.places = vec![place("a")]).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    for (node, zone) in [("n1", "a"), ("n2", "b")] {
        let status = format!(
            "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{name: {node}}}\n\
             status: {{csi: [{{plugin: {DRIVER}, nodeID: csi-{node}, topology: {{zone: {zone}}}}}]}}\n"
        );
        let args = ["apply", "--subresource", "status", "-f", "-"];
        world.run_with(&args, &status).await.expect_done();
    }
    world.apply(&volume("data", "")).await;
    // Before the volume is created, nothing is known of its place.
    world.expect_created("data").await;
    let refused = world.run(&["publish", "data", "n2"]).await.expect_code(4);
    assert!(
        refused.contains("Topology") && refused.contains("zone"),
        "{refused}"
    );
    world.publish("data", "n1").await;
    leader.resign().await;
}
