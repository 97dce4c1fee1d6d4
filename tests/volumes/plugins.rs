//! Plugins that are missing, not ready, limited, or that lose what was recorded.

use quorate::volumes::controller::Times;
use quorate_dev::csi_plugin::order::Order;

use super::world::leader_with;
use super::*;
use crate::support::client::written_since;
use crate::support::csi::DRIVER;
use crate::support::leader::Leader;

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
    let described = world.expect_plugin("PluginUnreachable").await;
    assert!(described.contains("csi.sock"), "{described}");
    world.plugin.launch().await.unwrap();
    world.expect_created("data").await;
    world.expect_blocked("data", None, "").await;
    // The same if the plugin stopped in between.
    world.plugin.stop().await.unwrap();
    world.done(&["publish", "data", "n1"]).await;
    world.expect_plugin("PluginUnreachable").await;
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
    world.expect_plugin("PluginStarting").await;
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
    let before = world.plugin.endpoint().to_string();
    let moved = world.plugin.directory().join("moved.sock");
    world.plugin.options_mut().listen = format!("unix://{}", moved.display()).parse().unwrap();
    world.plugin.launch().await.unwrap();
    let same = format!("{{\"sameBackendAs\": [\"{before}\"]}}");
    world.apply(&world.plugin_document(&same)).await;
    world.apply(&volume("b", "")).await;
    world.expect_created("b").await;
    world.done_with(&["delete", "volume", "a", "b", "--yes"]).await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// A plugin that lists its volumes with their nodes, and a leader that compares the list often.
async fn often_compared() -> (World, Leader) {
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
    (world, leader)
}

fn attach(volume: &str, node: &str) -> Order {
    let (volume, node) = (volume.to_owned(), node.to_owned());
    Order::Attach { volume, node }
}

fn detach(volume: &str, node: &str) -> Order {
    let (volume, node) = (volume.to_owned(), node.to_owned());
    Order::Detach { volume, node }
}

/// Changes the backend behind the back of the leader, which sees no list of volumes meanwhile.
async fn unlisted(world: &World, orders: impl IntoIterator<Item = Order>) {
    let fails = Happening::Fails(answer("Internal", "no list"));
    world.plugin.fault("ListVolumes", u32::MAX, fails).await;
    for order in orders {
        world.plugin.order(order).await;
    }
    world.plugin.order(Order::Clear).await;
}

/// The nodes of the calls of a method, in order.
fn nodes_of(world: &World, method: &str) -> Vec<String> {
    let calls = world.plugin.calls_of(method).into_iter();
    calls.map(|call| call.begun.node.unwrap()).collect()
}

#[tokio::test]
async fn a_volume_that_the_plugin_has_lost_on_a_node_is_published_to_it_again() {
    let (world, leader) = often_compared().await;
    world.apply(&shared_volume("data", "")).await;
    world.publish("data", "n1").await;
    world.publish("data", "n2").await;
    let id = world.backend_id("data").await;
    // A list that fails proves nothing.
    unlisted(&world, [detach(&id, "csi-n1")]).await;
    eventually(SOON, "the backend is as recorded", async || {
        let recorded = ["csi-n1", "csi-n2"].map(str::to_owned);
        same(world.attached(&id), recorded.to_vec())
    })
    .await;
    // The publication without drift was left alone.
    let published = nodes_of(&world, "ControllerPublishVolume");
    assert_eq!(published, ["csi-n1", "csi-n2", "csi-n1"]);
    assert_eq!(nodes_of(&world, "ControllerUnpublishVolume"), [""; 0]);
    world.check_calls();
    leader.resign().await;
}

/// INV-6, INV-12: the record may be lost, or the plugin may spell the id of a node otherwise.
#[tokio::test]
async fn a_volume_stays_on_a_node_that_no_publication_has_until_an_operator_says_otherwise() {
    let (world, leader) = often_compared().await;
    world.apply(&shared_volume("data", "")).await;
    world.publish("data", "n1").await;
    let id = world.backend_id("data").await;
    // As after a restore of etcd: the record says n1, and the volume has moved since.
    unlisted(&world, [detach(&id, "csi-n1"), attach(&id, "csi-n9")]).await;
    let described = eventually(SOON, "the volume says so", async || {
        let described = world.done(&["describe", "volume", "data"]).await;
        match described.contains("NotRecorded") {
            true => Ok(described),
            false => Err(described),
        }
    })
    .await;
    let drifted = async |count: f64| {
        let series = "quorate_volumes_drifted{reason=\"NotRecorded\"}";
        eventually(SOON, &format!("{series} is {count}"), async || {
            same(leader.metric(series), count)
        })
        .await;
    };
    drifted(1.0).await;
    let way_out = "quorate unpublish data --node-id csi-n9";
    assert!(described.contains(way_out), "{described}");
    assert_eq!(nodes_of(&world, "ControllerUnpublishVolume"), [""; 0]);
    assert_eq!(
        nodes_of(&world, "ControllerPublishVolume"),
        ["csi-n1"],
        "it is elsewhere"
    );
    let unknown = ["unpublish", "data", "--node-id", "csi-n1"];
    let refused = world.run(&unknown).await.expect_code(4);
    assert!(refused.contains("quorate unpublish data n1"), "{refused}");
    world
        .done(&["unpublish", "data", "--node-id", "csi-n9", "--wait"])
        .await;
    assert_eq!(nodes_of(&world, "ControllerUnpublishVolume"), ["csi-n9"]);
    // Without the stray, the record is mended at the backend, and the condition goes.
    eventually(SOON, "the backend is as recorded", async || {
        let described = world.done(&["describe", "volume", "data"]).await;
        let seen = (world.attached(&id), described.contains("Drifted"));
        same(seen, (vec!["csi-n1".to_owned()], false))
    })
    .await;
    drifted(0.0).await;
    leader.resign().await;
}

/// The request is gone with the record, and what it was about may be left at the backend.
#[tokio::test]
async fn a_wait_until_a_node_id_has_lost_a_volume_fails_where_the_volume_is_forgotten() {
    let mut world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    let uid = world.expect_created("data").await.metadata.unwrap().uid;
    world.plugin.stop().await.unwrap();
    let wait = ["unpublish", "data", "--node-id=csi-n9", "--wait", "--timeout=60s"];
    let forget = async {
        eventually(SOON, "it is requested", async || {
            let status = world.volume("data").await.unwrap().status.unwrap();
            same(status.detach_node_ids, vec!["csi-n9".to_owned()])
        })
        .await;
        world
            .done(&["delete", "volume", "data", "--yes", "--force"])
            .await
    };
    let (waited, _) = tokio::join!(world.run(&wait), forget);
    let said = waited.expect_code(3);
    assert!(said.contains(&format!("tombstone/{uid}")), "{said}");
    leader.resign().await;
}

/// INV-12
#[tokio::test]
async fn nothing_is_published_again_while_many_volumes_differ_from_the_list() {
    let (world, leader) = often_compared().await;
    let names: Vec<String> = (0..6).map(|number| format!("v{number}")).collect();
    for name in &names {
        world.apply(&shared_volume(name, "")).await;
        world.publish(name, "n1").await;
    }
    let published = nodes_of(&world, "ControllerPublishVolume").len();
    let mut ids = Vec::new();
    for name in &names {
        ids.push(world.backend_id(name).await);
    }
    // As after a restore of the backend.
    unlisted(&world, ids.iter().map(|id| detach(id, "csi-n1"))).await;
    for name in &names {
        eventually(SOON, "every volume says so", async || {
            let described = world.done(&["describe", "volume", name]).await;
            match described.contains("too many volumes of the plugin differ") {
                true => Ok(()),
                false => Err(described),
            }
        })
        .await;
    }
    assert_eq!(nodes_of(&world, "ControllerPublishVolume").len(), published);
    unlisted(&world, ids.iter().map(|id| attach(id, "csi-n1"))).await;
    for name in &names {
        eventually(SOON, "the condition goes", async || {
            let described = world.done(&["describe", "volume", name]).await;
            match described.contains("Drifted") {
                true => Err(described),
                false => Ok(()),
            }
        })
        .await;
    }
    assert_eq!(nodes_of(&world, "ControllerPublishVolume").len(), published);
    leader.resign().await;
}

#[tokio::test]
async fn every_volume_of_a_missing_plugin_says_so_however_many_there_are() {
    const ALL: usize = 200;
    let world = World::start().await;
    let documents: Vec<String> = (0..ALL)
        .map(|number| volume(&format!("v{number}"), "").replace(DRIVER, "missing.csi"))
        .collect();
    world.apply(&documents.concat()).await;
    let since = world.put(b"/elsewhere", "").await;
    let leader = world.leader().await;
    eventually(SOON, "every volume says so", async || {
        let listed = world.done(&["get", "volumes", "--no-headers"]).await;
        same(listed.matches("PluginMissing").count(), ALL)
    })
    .await;
    leader.resign().await;
    let writes = written_since(&world.store.etcd, "/quorate/volumes/", since.0).await;
    assert_eq!(writes.len(), ALL, "one write each: {writes:?}");
    let written = world.records().await;
    let leader = world.leader().await;
    world.apply(&volume("other", "")).await;
    world.expect_created("other").await;
    world.done_with(&["delete", "volume", "other", "--yes"]).await;
    assert_eq!(
        world.records().await,
        written,
        "the next leader has nothing to add"
    );
    leader.resign().await;
}
