//! The whole life of a volume.

use std::collections::BTreeMap;

use quorate_dev::csi_plugin::backend::Published;

use super::*;

#[tokio::test]
async fn a_mount_volume_for_one_node_is_created_published_unpublished_and_deleted() {
    let zone = |zone: &str| BTreeMap::from([("zone".to_owned(), zone.to_owned())]);
    let plugin = TestPlugin::start_with(|options| options.places = vec![zone("a"), zone("b")]).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    let more = "capacity: {required: 1Gi, limit: 2Gi}, topology: {requisite: [{zone: b}]}, \
                secrets: [{key: token, secret: backend}],";
    let described = volume("data", more).replace("driver: {", "driver: {options: {tier: fast}, ");
    world
        .apply(&(secret("backend", "token", "s3cr3t") + &described))
        .await;
    let created = world.expect_created("data").await.status.unwrap();
    let id = world.backend_id("data").await;
    assert_eq!(created.volume_id, id);
    assert_eq!(created.capacity_bytes, 1 << 30);
    assert_eq!(created.topology[0].segments, zone("b"));
    let made = world.plugin.backend().volume(&id).unwrap().unwrap();
    assert_eq!((made.block, made.mode, made.capacity), (false, 1, 1 << 30));
    assert_eq!(
        (made.parameters["tier"].as_str(), made.place),
        ("fast", Some(zone("b")))
    );
    let waits = world.done(&["describe", "volume", "data"]).await;
    assert!(waits.contains("Waits For:         nothing"), "{waits}");

    world.publish("data", "n1").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    let context = world.publication("data", "n1").await.unwrap().status.unwrap();
    assert!(
        context.publish_context["devicePath"].ends_with("/data"),
        "{context:?}"
    );
    let refused = world.run(&["publish", "data", "n2"]).await.expect_code(4);
    assert!(
        refused.contains("AccessMode") && refused.contains("n1"),
        "{refused}"
    );
    let refused = world
        .run(&["delete", "volume", "data", "--yes"])
        .await
        .expect_code(4);
    assert!(refused.contains("n1 (published)"), "{refused}");

    world.done(&["unpublish", "data", "n1"]).await;
    world.expect_state("data", "n1", "pendingNodeUnpublish").await;
    assert_eq!(world.attached(&id), ["csi-n1"], "its node has not confirmed");
    let waiting = world.done(&["describe", "volume", "data"]).await;
    assert!(
        waiting.contains("node n1 has not confirmed that it no longer uses the volume"),
        "{waiting}"
    );
    world.unpublish("data", "n1").await;
    assert_eq!(world.attached(&id), [""; 0]);

    world.delete("data").await;
    world.expect_empty_backend().await;
    let calls = world.check_calls().into_iter().map(|call| call.begun);
    let about: Vec<_> = calls.filter(|begun| !begun.volume.is_empty()).collect();
    let methods: Vec<_> = about.iter().map(|begun| begun.method.as_str()).collect();
    let expected = [
        "CreateVolume",
        "ControllerPublishVolume",
        "ControllerUnpublishVolume",
        "DeleteVolume",
    ];
    assert_eq!(methods, expected, "each call was made once");
    assert!(about.iter().all(|begun| begun.secrets == ["token"]), "{about:?}");
    leader.resign().await;
}

#[tokio::test]
async fn a_block_volume_is_published_to_many_nodes_unpublished_one_by_one_and_deleted() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&shared_volume("data", "")).await;
    for asked in [&["n1"][..], &["n2"], &["n3", "--read-only"]] {
        world.done(&[&["publish", "data"], asked].concat()).await;
    }
    for node in ["n1", "n2", "n3"] {
        world.expect_state("data", node, "published").await;
    }
    let id = world.backend_id("data").await;
    let made = world.plugin.backend().volume(&id).unwrap().unwrap();
    assert_eq!((made.block, made.mode), (true, 5));
    let nodes = world.plugin.backend().nodes(&id).unwrap();
    let read_only = |read_only| Published { read_only };
    let expected = [("csi-n1", false), ("csi-n2", false), ("csi-n3", true)];
    let expected = expected.map(|(node, only)| (node.to_owned(), read_only(only)));
    assert_eq!(nodes, BTreeMap::from(expected));
    world.unpublish("data", "n2").await;
    assert_eq!(world.attached(&id), ["csi-n1", "csi-n3"]);
    world.unpublish("data", "n1").await;
    world.unpublish("data", "n3").await;
    world.delete("data").await;
    world.expect_empty_backend().await;
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn a_volume_grows_if_its_plugin_expands_volumes_and_says_so_if_not() {
    let plugin = TestPlugin::start_with(|options| options.offers.expand = true).await;
    let mut world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "capacity: {required: 1Gi},")).await;
    world.expect_created("data").await;
    world.apply(&volume("data", "capacity: {required: 3Gi},")).await;
    world.expect_capacity("data", 3 << 30).await;
    world.plugin.stop().await.unwrap();
    world.plugin.options_mut().offers.expand = false;
    world.plugin.launch().await.unwrap();
    world.apply(&volume("data", "capacity: {required: 4Gi},")).await;
    world.expect_blocked("data", None, "ExpandUnsupported").await;
    // The plugin is restarted with what it lacked. No command has to follow.
    world.plugin.stop().await.unwrap();
    world.plugin.options_mut().offers.expand = true;
    world.plugin.launch().await.unwrap();
    world.expect_capacity("data", 4 << 30).await;
    world.expect_blocked("data", None, "").await;
    leader.resign().await;
}

#[tokio::test]
async fn a_publication_requested_while_the_volume_is_unpublished_begins_after_that() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    world.done(&["unpublish", "data", "n1"]).await;
    let said = world.done(&["publish", "data", "n1"]).await;
    assert!(said.contains("published again after it is unpublished"), "{said}");
    // The node confirms, and leaves the request of the meantime in place.
    world.confirm_unpublished("data", "n1").await;
    world.expect_state("data", "n1", "published").await;
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume").len(), 1);
    assert_eq!(world.plugin.calls_of("ControllerPublishVolume").len(), 2);
    world.check_calls();
    leader.resign().await;
}
