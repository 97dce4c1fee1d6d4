//! Plugins that are missing, not ready, limited, or that lose what was recorded.

use quorate::volumes::controller::Times;
use quorate_dev::csi_plugin::order::Order;

use super::world::leader_with;
use super::*;

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
async fn a_plugin_that_was_not_started_yet_is_found_once_it_runs() {
    let mut world = World::start().await;
    world.plugin.stop().await.unwrap();
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    let blocked = world.expect_blocked("data", None, "PluginUnreachable").await;
    assert!(blocked.message.contains("csi.sock"), "{blocked:?}");
    world.plugin.launch().await.unwrap();
    world.expect_created("data").await;
    world.expect_blocked("data", None, "").await;
    // The same if the plugin stopped in between: the condition of the volume goes, though the publication is what succeeds.
    world.plugin.stop().await.unwrap();
    world.done(&["publish", "data", "n1"]).await;
    world.expect_blocked("data", None, "PluginUnreachable").await;
    world.plugin.launch().await.unwrap();
    world.expect_state("data", "n1", "published").await;
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
async fn volumes_of_a_plugin_without_a_controller_service_take_their_names_without_a_call() {
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
    world.publish("data", "n1").await;
    world.unpublish("data", "n1").await;
    world.delete("data").await;
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_that_publishes_and_creates_nothing_is_called_to_publish_alone() {
    let plugin = TestPlugin::start_with(|options| options.offers.create = false).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    let created = world.expect_created("data").await.status.unwrap();
    assert_eq!((created.volume_id.as_str(), created.r#static), ("data", true));
    // The backend has no such volume, since nothing created it there.
    world.done(&["publish", "data", "n1"]).await;
    world.expect_blocked("data", Some("n1"), "NotFound").await;
    world.unpublish("data", "n1").await;
    let calls = world.check_calls().into_iter().map(|call| call.begun);
    let about: Vec<_> = calls.filter(|begun| !begun.volume.is_empty()).collect();
    let asked: Vec<_> = about
        .iter()
        .map(|begun| (begun.method.as_str(), begun.volume.as_str()))
        .collect();
    assert_eq!(
        asked,
        [
            ("ControllerPublishVolume", "data"),
            ("ControllerUnpublishVolume", "data")
        ]
    );
    world.delete("data").await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    leader.resign().await;
}

#[tokio::test]
async fn volumes_of_a_plugin_without_publish_are_published_without_a_call() {
    let plugin = TestPlugin::start_with(|options| options.offers.publish = false).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    world.unpublish("data", "n1").await;
    assert_eq!(world.plugin.calls_of("ControllerPublishVolume"), []);
    world.delete("data").await;
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
    world.done_with(&["delete", "volume", "a", "b", "--yes"]).await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

#[tokio::test]
async fn drift_from_the_records_is_mended() {
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
    world.publish("data", "n1").await;
    world.publish("data", "n2").await;
    let id = world.backend_id("data").await;
    // A list that fails proves nothing.
    let fails = Happening::Fails(answer("Internal", "no list"));
    world.plugin.fault("ListVolumes", 1, fails).await;
    let (volume, detached, attached) = (id.clone(), "csi-n1".to_owned(), "csi-n9".to_owned());
    let detach = Order::Detach {
        volume: volume.clone(),
        node: detached,
    };
    world.plugin.order(detach).await;
    let attach = Order::Attach {
        volume,
        node: attached,
    };
    world.plugin.order(attach).await;
    eventually(SOON, "the backend is as recorded", async || {
        same(
            world.attached(&id),
            ["csi-n1", "csi-n2"].map(str::to_owned).to_vec(),
        )
    })
    .await;
    // The volumes without drift were left alone.
    let nodes_of = |method: &str| {
        let calls = world.plugin.calls_of(method).into_iter();
        calls.map(|call| call.begun.node.unwrap()).collect::<Vec<_>>()
    };
    let unpublished = nodes_of("ControllerUnpublishVolume");
    assert!(unpublished.iter().all(|node| node == "csi-n9"), "{unpublished:?}");
    assert_eq!(
        nodes_of("ControllerPublishVolume"),
        ["csi-n1", "csi-n2", "csi-n1"]
    );
    world.check_calls();
    leader.resign().await;
}
