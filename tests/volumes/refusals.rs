//! What is not done: publishing to a drained node, sending secrets in clear text, faking a publication.

use quorate_dev::csi_plugin::options::Options;
use quorate_dev::csi_plugin::order::Order;
use quorate_dev::ports::free_port;

use super::*;

#[tokio::test]
async fn nothing_new_goes_to_a_node_that_is_drained_or_paused() {
    let world = World::start().await;
    world.apply(&volume("data", "")).await;
    world.done(&["drain", "n1"]).await;
    world
        .apply(&document(
            "Node",
            "n2",
            "{desiredRole: worker, availability: pause}",
        ))
        .await;
    for (node, word) in [("n1", "drained"), ("n2", "paused")] {
        let refused = world.run(&["publish", "data", node]).await.expect_code(4);
        assert!(
            refused.contains("NodeAvailability") && refused.contains(word),
            "{refused}"
        );
    }
    world.done(&["publish", "data", "n3"]).await;
}

#[tokio::test]
async fn no_secret_goes_over_plain_http_unless_the_plugin_allows_it() {
    let port = free_port().unwrap();
    let plugin = TestPlugin::start_with(|options| {
        options.listen = format!("http://127.0.0.1:{port}").parse().unwrap();
    })
    .await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    let uses = volume("data", "secrets: [{key: token, secret: backend}],");
    world.apply(&(secret("backend", "token", "x") + &uses)).await;
    let blocked = world.expect_blocked("data", None, "PlaintextSecrets").await;
    assert!(blocked.message.contains("allowPlaintextSecrets"), "{blocked:?}");
    assert_eq!(world.plugin.calls_of("CreateVolume"), []);
    // A volume without secrets is created all the same.
    world.apply(&volume("open", "")).await;
    world.expect_created("open").await;
    world
        .apply(&world.plugin_document("{\"allowPlaintextSecrets\": true}"))
        .await;
    world.expect_created("data").await;
    leader.resign().await;
}

#[tokio::test]
async fn a_plugin_that_tells_one_writer_from_several_gets_the_exact_access_mode() {
    let plugin = TestPlugin::start_with(|options| options.offers.exact_access_modes = true).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    for (sharing, number) in [("none", 6), ("oneWriter", 6), ("all", 7), ("readOnly", 2)] {
        let name = sharing.to_lowercase();
        let spec = format!(
            "{{driver: {{name: {DRIVER}}}, accessMode: {{scope: singleNode, sharing: {sharing}, block: {{}}}}}}"
        );
        world.apply(&document("Volume", &name, &spec)).await;
        world.publish(&name, "n1").await;
        let id = world.backend_id(&name).await;
        assert_eq!(
            world.plugin.backend().volume(&id).unwrap().unwrap().mode,
            number,
            "{sharing}"
        );
    }
    leader.resign().await;
}

/// Has another instance of the plugin answer.
async fn replace_plugin(world: &mut World, change: fn(&mut Options)) {
    world.plugin.stop().await.unwrap();
    change(world.plugin.options_mut());
    world.plugin.launch().await.unwrap();
}

/// An endpoint that leads to another instance of the plugin, which has no Controller service, is no plugin whose volumes exist
/// under their names: an id is for good.
#[tokio::test]
async fn a_plugin_that_created_volumes_and_no_longer_does_has_no_volume_take_its_name_as_its_id() {
    let mut world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    world.expect_plugin("Ready").await;
    replace_plugin(&mut world, |options| options.offers.controller = false).await;
    world.apply(&volume("later", "")).await;
    world.expect_blocked("later", None, "CreateUnsupported").await;
    // The next leader knows it as well.
    leader.resign().await;
    let leader = world.leader().await;
    world.apply(&volume("last", "")).await;
    world.expect_blocked("last", None, "CreateUnsupported").await;
    replace_plugin(&mut world, |options| options.offers.controller = true).await;
    for name in ["later", "last"] {
        let status = world.expect_created(name).await.status.unwrap();
        assert_eq!(status.volume_id, world.backend_id(name).await);
        assert!(!status.r#static, "{name}");
    }
    leader.resign().await;
}

/// An endpoint that leads to another instance of the plugin, which does not publish, is no plugin that needs no publication.
#[tokio::test]
async fn a_plugin_that_published_volumes_and_no_longer_does_fakes_no_publication() {
    let mut world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    replace_plugin(&mut world, |options| options.offers.publish = false).await;
    world.done(&["publish", "data", "n1"]).await;
    world
        .expect_blocked("data", Some("n1"), "PublishUnsupported")
        .await;
    // A volume that is made now is published without a call, until the plugin publishes.
    world.apply(&volume("later", "")).await;
    world.publish("later", "n2").await;
    // What was published without a call stays wanted until a call succeeds.
    let id = world.backend_id("later").await;
    // Not ready, so that no call is made before the fault is there.
    replace_plugin(&mut world, |options| {
        (options.offers.publish, options.not_ready) = (true, true);
    })
    .await;
    let (publish, fails) = (
        "ControllerPublishVolume",
        Happening::Fails(answer("Unavailable", "not yet")),
    );
    world
        .plugin
        .fault_for(publish, Some(&id), None, Some(2), fails)
        .await;
    world.plugin.order(Order::Ready(true)).await;
    world.expect_state("data", "n1", "published").await;
    // The plugin records the attachment before it answers.
    eventually(SOON, "later is published by the third call", async || {
        let calls = world.plugin.calls_of(publish).into_iter();
        let codes: Vec<_> = calls
            .filter(|call| call.begun.volume == id)
            .map(|call| call.code.unwrap_or_default())
            .collect();
        same(
            codes,
            ["Unavailable", "Unavailable", "OK"].map(str::to_owned).to_vec(),
        )
    })
    .await;
    assert_eq!(world.attached(&id), ["csi-n2"]);
    leader.resign().await;
}
