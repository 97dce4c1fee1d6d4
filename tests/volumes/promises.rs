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

/// A volume that the plugin has no capacity for is not attempted, and created once it has.
#[tokio::test]
async fn a_volume_waits_for_capacity_that_the_plugin_says_it_does_not_have() {
    let plugin = TestPlugin::start_with(|options| options.room = Some(3 << 30)).await;
    let world = World::with(plugin).await;
    world
        .apply(&world.plugin_document("{\"checkCapacity\": true}"))
        .await;
    let leader = world.leader().await;
    world.apply(&volume("data", "capacity: {required: 2Gi},")).await;
    world.expect_created("data").await;
    // Nothing is at the backend, and nothing is asked there for its end.
    world.apply(&volume("less", "capacity: {required: 2Gi},")).await;
    let blocked = world.expect_blocked("less", None, "InsufficientCapacity").await;
    assert!(blocked.message.contains("2Gi"), "{blocked:?}");
    world.delete("less").await;
    assert_eq!(world.plugin.calls_of("CreateVolume").len(), 1);
    world.apply(&volume("more", "capacity: {required: 2Gi},")).await;
    world.expect_blocked("more", None, "InsufficientCapacity").await;
    world.delete("data").await;
    world.expect_created("more").await;
    world.expect_blocked("more", None, "").await;
    // By itself it would be tried again 25.6 s after it failed. Where that was not much later than the deletion, nothing is shown.
    let (asked, deleted) = (
        world.plugin.calls_of("GetCapacity"),
        world.plugin.calls_of("DeleteVolume"),
    );
    let [.., failed, again] = &asked[..] else {
        panic!("{asked:?}");
    };
    let by_itself = failed.start + 25_000_000;
    let is_late = deleted[0].end.unwrap() + 10_000_000 > by_itself;
    if is_late {
        eprintln!("nothing is shown: the deletion ended when it would have been tried again by itself");
    }
    assert!(is_late || again.start < by_itself, "{failed:?} {again:?}");
    leader.resign().await;
}

/// A plugin that provisions thinly creates more than it has.
#[tokio::test]
async fn a_plugin_is_not_asked_for_its_capacity_unless_that_is_wanted() {
    let plugin = TestPlugin::start_with(|options| options.room = Some(3 << 30)).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "capacity: {required: 4Gi},")).await;
    world.expect_blocked("data", None, "ResourceExhausted").await;
    assert_eq!(world.plugin.calls_of("GetCapacity"), []);
    leader.resign().await;
}

/// The backend has taken what it was asked, whatever the record can hold.
#[tokio::test]
async fn an_answer_that_does_not_fit_into_a_record_is_a_condition_until_it_does() {
    let plugin = TestPlugin::start_with(|options| options.large_context = 2 << 20).await;
    let mut world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.done(&["publish", "data", "n1"]).await;
    let blocked = world.expect_blocked("data", Some("n1"), "RecordTooLarge").await;
    assert!(blocked.message.contains("large"), "{blocked:?}");
    let id = world.backend_id("data").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.plugin.stop().await.unwrap();
    world.plugin.options_mut().large_context = 0;
    world.plugin.launch().await.unwrap();
    world.done(&["retry", "volume", "data"]).await;
    world.expect_state("data", "n1", "published").await;
    world.expect_blocked("data", Some("n1"), "").await;
    world.unpublish("data", "n1").await;
    assert_eq!(world.attached(&id), [""; 0]);
    leader.resign().await;
}
