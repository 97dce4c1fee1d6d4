//! Plugins that are not as one would wish.

use quorate::dev::csi_plugin::control::Order;
use quorate::dev::csi_plugin::faults::Happening;

use super::*;
use crate::support::csi::answer;

#[tokio::test]
async fn a_volume_waits_for_a_plugin_that_comes_later() {
    let world = World::without_objects(TestPlugin::start().await).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_blocked("data", None, "PluginMissing").await;
    let waiting = world.done(&["describe", "volume", "data"]).await;
    assert!(
        waiting.contains(&format!("plugin {DRIVER} does not exist")),
        "{waiting}"
    );
    world.apply(&world.plugin_document("{}")).await;
    world.expect_created("data").await;
    world.expect_blocked("data", None, "").await;
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_that_is_not_ready_is_waited_for_and_never_taken_for_one_that_creates_nothing() {
    let plugin = TestPlugin::start_with(|options| options.not_ready = true).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_blocked("data", None, "PluginStarting").await;
    world.plugin.order(Order::Ready(true)).await;
    let created = world.expect_created("data").await.status.unwrap();
    assert!(!created.r#static);
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_without_a_controller_service_gives_volumes_their_names_and_nothing_to_call() {
    let plugin = TestPlugin::start_with(|options| options.offers.controller = false).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    let created = world.expect_created("data").await.status.unwrap();
    assert_eq!((created.volume_id.as_str(), created.r#static), ("data", true));
    assert!(
        world
            .done(&["describe", "volume", "data"])
            .await
            .contains("NotCreatedByPlugin")
    );
    world
        .done(&["publish", "data", "n1", "--wait", "--timeout=30s"])
        .await;
    world
        .done(&["unpublish", "data", "n1", "--confirm", "--wait", "--timeout=30s"])
        .await;
    world
        .done(&["delete", "volume", "data", "--yes", "--wait", "--timeout=30s"])
        .await;
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_without_publish_has_volumes_on_nodes_without_a_call() {
    let plugin = TestPlugin::start_with(|options| options.offers.publish = false).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world
        .done(&["publish", "data", "n1", "--wait", "--timeout=30s"])
        .await;
    world
        .done(&["unpublish", "data", "n1", "--confirm", "--wait", "--timeout=30s"])
        .await;
    assert_eq!(world.plugin.calls_of("ControllerPublishVolume"), []);
    world
        .done(&["delete", "volume", "data", "--yes", "--wait", "--timeout=30s"])
        .await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_that_moves_to_another_socket_is_followed() {
    let mut world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("a", "")).await;
    world.expect_created("a").await;
    world.plugin.stop().await.unwrap();
    let moved = world.plugin.directory().join("moved.sock");
    world.plugin.options_mut().listen = format!("unix://{}", moved.display()).parse().unwrap();
    world.plugin.launch().await.unwrap();
    world.apply(&world.plugin_document("{}")).await;
    world.apply(&volume("b", "")).await;
    world.expect_created("b").await;
    world
        .done(&["delete", "volume", "a", "b", "--yes", "--wait", "--timeout=30s"])
        .await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_that_hangs_does_not_slow_another_and_a_failing_volume_none_of_its_plugin() {
    let world = World::start().await;
    let hanging =
        TestPlugin::start_with(|options| options.driver = "hanging.csi.quorate.dev".to_owned()).await;
    hanging.fault("CreateVolume", None, Happening::Hangs).await;
    let spec = format!("{{endpoint: {}}}", hanging.endpoint());
    world
        .apply(&document("Plugin", "hanging.csi.quorate.dev", &spec))
        .await;
    let mode = "accessMode: {scope: singleNode, sharing: none, block: {}}";
    let hangs = format!("{{driver: {{name: hanging.csi.quorate.dev}}, {mode}}}");
    let leader = world.leader().await;
    let stuck: String = (0..40)
        .map(|n| document("Volume", &format!("stuck-{n}"), &hangs))
        .collect();
    world.apply(&stuck).await;
    eventually(
        SOON,
        "it hangs with as many calls as it takes at a time",
        async || same(hanging.calls_of("CreateVolume").len(), 16),
    )
    .await;
    world.apply(&volume("poison", "")).await;
    let id = world.backend_id("poison").await;
    let fails = Happening::Fails(answer("Internal", "no"));
    world
        .plugin
        .fault_for("CreateVolume", Some(&id), None, None, fails)
        .await;
    let good: String = (0..40).map(|n| volume(&format!("good-{n}"), "")).collect();
    world.apply(&good).await;
    for n in 0..40 {
        world.expect_created(&format!("good-{n}")).await;
    }
    assert_eq!(
        hanging.calls_of("CreateVolume").len(),
        16,
        "no more calls at a time than it takes"
    );
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn what_drifted_from_the_records_is_mended() {
    let plugin = TestPlugin::start_with(|options| {
        options.offers.list = true;
        options.offers.list_nodes = true;
    })
    .await;
    let world = World::with(plugin).await;
    let often = Times {
        compare_every: Duration::from_millis(300),
    };
    let leader = leader_with(&world.store, often).await;
    world.apply(&shared_volume("data", "")).await;
    world
        .done(&["publish", "data", "n1", "--wait", "--timeout=30s"])
        .await;
    let id = world.backend_id("data").await;
    world
        .plugin
        .order(Order::Detach {
            volume: id.clone(),
            node: "csi-n1".to_owned(),
        })
        .await;
    world
        .plugin
        .order(Order::Attach {
            volume: id.clone(),
            node: "csi-n9".to_owned(),
        })
        .await;
    eventually(SOON, "the backend is as recorded", async || {
        same(world.attached(&id), vec!["csi-n1".to_owned()])
    })
    .await;
    world.check_calls();
    leader.resign().await;
}
