//! Expansion in two parts: the device by the plugin, what is on it by the nodes.

use super::*;

/// A file system that many nodes have.
fn shared_files(name: &str, capacity: &str) -> String {
    let mode = "{scope: multiNode, sharing: all, mount: {fsType: nfs}}";
    let spec =
        format!("{{driver: {{name: {DRIVER}}}, accessMode: {mode}, capacity: {{required: {capacity}}}}}");
    document("Volume", name, &spec)
}

/// Waits until the nodes have yet to expand what is on the volume up to this capacity; 0: they have nothing to expand.
async fn expect_due(world: &World, gibibytes: i64) {
    eventually(
        SOON,
        &format!("{gibibytes} GiB are due on the nodes"),
        async || {
            let status = world.volume("data").await.unwrap().status.unwrap();
            same(status.node_expansion_bytes, gibibytes << 30)
        },
    )
    .await;
    let pending = gibibytes > 0;
    for shown in [&["get", "volumes"][..], &["describe", "volume", "data"]] {
        let shown = world.done(shown).await;
        assert_eq!(shown.contains("NodeExpansionPending"), pending, "{shown}");
    }
}

#[tokio::test]
async fn what_nodes_have_yet_to_expand_is_kept_until_each_of_them_has_confirmed_it() {
    let plugin = TestPlugin::start_with(|options| options.offers.expand = true).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&shared_files("data", "1Gi")).await;
    world.publish("data", "n1").await;
    world.publish("data", "n2").await;
    world.apply(&shared_files("data", "2Gi")).await;
    expect_due(&world, 2).await;
    leader.resign().await;
    // A publication that has not begun confirms nothing.
    world.done(&["publish", "data", "n3"]).await;
    let refused = world.run(&["expanded", "data", "n3"]).await.expect_code(4);
    assert!(refused.contains("NotPublished"), "{refused}");
    world.done(&["unpublish", "data", "n3"]).await;
    let leader = world.leader().await;
    world.expect_state("data", "n3", "").await;

    // As a node's agent does.
    let key = world.store.keys.publication(&parsed("data"), &parsed("n1"));
    let mut publication = world.publication("data", "n1").await.unwrap();
    publication.status.as_mut().unwrap().expanded_bytes = 2 << 30;
    world.put(&key, publication.encode_to_vec()).await;
    world.apply(&volume("other", "")).await;
    world.expect_created("other").await;
    expect_due(&world, 2).await;

    // The other one by hand.
    let missing = world.run(&["expanded", "data", "n3"]).await.expect_code(3);
    assert!(missing.contains("is not published to node n3"), "{missing}");
    world.done(&["expanded", "data", "n2"]).await;
    expect_due(&world, 0).await;

    // What they confirmed is not the next expansion.
    world.apply(&shared_files("data", "3Gi")).await;
    expect_due(&world, 3).await;
    world.done(&["expanded", "data"]).await;
    expect_due(&world, 0).await;
    leader.resign().await;
}

/// The plugin refuses it for good.
#[tokio::test]
async fn a_capacity_that_the_plugin_refuses_is_taken_back_and_no_smaller_one_is_taken() {
    let plugin = TestPlugin::start_with(|options| options.offers.expand = true).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&shared_files("data", "2Gi")).await;
    world.expect_created("data").await;
    let refuses = Happening::Fails(answer("OutOfRange", "at most 4Gi"));
    world
        .plugin
        .fault("ControllerExpandVolume", u32::MAX, refuses)
        .await;
    world.apply(&shared_files("data", "100Gi")).await;
    world.expect_blocked("data", None, "OutOfRange").await;
    let smaller = shared_files("data", "1Gi");
    let refused = world
        .run_with(&["apply", "-f", "-"], &smaller)
        .await
        .expect_code(4);
    assert!(refused.contains("less than 2Gi"), "{refused}");
    world.apply(&shared_files("data", "2Gi")).await;
    world.expect_blocked("data", None, "").await;
    world.expect_capacity("data", 2 << 30).await;
    leader.resign().await;
}
