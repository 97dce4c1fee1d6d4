//! The whole life of a volume.

use super::*;

#[tokio::test]
async fn a_mount_volume_for_one_node_is_created_published_unpublished_and_deleted() {
    let zone = |zone: &str| [("zone".to_owned(), zone.to_owned())].into();
    let plugin = TestPlugin::start_with(|options| options.places = vec![zone("a"), zone("b")]).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    let more = "capacity: {required: 1Gi, limit: 2Gi}, topology: {requisite: [{zone: a}]},";
    world.apply(&volume("data", more)).await;
    let created = world.expect_created("data").await.status.unwrap();
    let id = world.backend_id("data").await;
    assert_eq!(created.volume_id, id);
    assert_eq!(created.capacity_bytes, 1 << 30);
    assert_eq!(created.topology[0].segments["zone"], "a");
    assert!(
        world
            .done(&["describe", "volume", "data"])
            .await
            .contains("Waits For:         nothing")
    );

    world
        .done(&["publish", "data", "n1", "--wait", "--timeout=30s"])
        .await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
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
        waiting.contains("node n1 is to confirm that it uses it no more"),
        "{waiting}"
    );
    world
        .done(&["unpublish", "data", "n1", "--confirm", "--wait", "--timeout=30s"])
        .await;
    assert_eq!(world.attached(&id), [""; 0]);

    world
        .done(&["delete", "volume", "data", "--yes", "--wait", "--timeout=30s"])
        .await;
    world.expect_empty_backend().await;
    let methods: Vec<String> = world
        .check_calls()
        .into_iter()
        .map(|call| call.begun.method)
        .filter(|method| method.contains("Volume"))
        .collect();
    let expected = [
        "CreateVolume",
        "ControllerPublishVolume",
        "ControllerUnpublishVolume",
        "DeleteVolume",
    ];
    assert_eq!(methods, expected, "each call was made once");
    leader.resign().await;
}

#[tokio::test]
async fn a_block_volume_is_on_many_nodes_and_leaves_them_one_by_one() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&shared_volume("data", "")).await;
    for node in ["n1", "n2", "n3"] {
        world.done(&["publish", "data", node]).await;
    }
    for node in ["n1", "n2", "n3"] {
        world.expect_state("data", node, "published").await;
    }
    let id = world.backend_id("data").await;
    assert_eq!(world.attached(&id), ["csi-n1", "csi-n2", "csi-n3"]);
    world.done(&["unpublish", "data", "n2", "--confirm"]).await;
    world.expect_state("data", "n2", "").await;
    assert_eq!(world.attached(&id), ["csi-n1", "csi-n3"]);
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn secrets_are_read_at_each_call_and_their_values_appear_nowhere() {
    let world = World::start().await;
    let mut replica = crate::support::quorate::Launch::on(&world.etcd).start("r0");
    replica.wait_leading().await;
    let sentinel = "xyzzy-s3cr3t-value";
    world
        .apply(
            &(secret("backend", "token", sentinel)
                + &volume("data", "secrets: [{key: token, secret: backend}],")),
        )
        .await;
    world.expect_created("data").await;
    let created = world.plugin.calls_of("CreateVolume");
    assert_eq!(created[0].begun.secrets, ["token"]);
    // A plugin that prints what it was given.
    let says = crate::support::csi::answer("Internal", "cannot log in with {secrets}");
    let fails = quorate::dev::csi_plugin::faults::Happening::Fails(says);
    world.plugin.fault("ControllerPublishVolume", None, fails).await;
    world.done(&["publish", "data", "n1"]).await;
    let blocked = world.expect_blocked("data", Some("n1"), "Internal").await;
    assert!(blocked.message.contains("cannot log in with"), "{blocked:?}");
    world.plugin.clear_faults().await;
    world.done(&["retry", "volume", "data"]).await;
    world.expect_state("data", "n1", "published").await;

    let (all, _) = world
        .store
        .etcd
        .list(&world.store.keys.volumes().through(world.store.keys.volumes()))
        .await
        .unwrap();
    let mut told: Vec<String> = all
        .iter()
        .map(|kv| String::from_utf8_lossy(&kv.value).into_owned())
        .collect();
    for args in [
        &["get", "secrets", "-o", "yaml"][..],
        &["describe", "secret", "backend"],
        &["describe", "volume", "data"],
        &["get", "publications", "-o", "json"],
    ] {
        let finished = world.run(args).await;
        told.extend([finished.stdout, finished.stderr]);
    }
    told.push(replica.log());
    told.push(replica.get("/metrics").await.unwrap().body);
    for text in told {
        assert!(!text.contains(sentinel), "{text}");
    }
    replica.stop().await.unwrap();
}

#[tokio::test]
async fn a_volume_waits_for_its_secret_without_a_call_and_goes_on_when_it_is_there() {
    let world = World::start().await;
    let leader = world.leader().await;
    let refused = world
        .run_with(
            &["apply", "-f", "-"],
            &volume("data", "secrets: [{key: a, secret: s}, {key: b, secret: t}],"),
        )
        .await
        .expect_code(4);
    assert!(
        refused.contains("secret s does not exist; secret t does not exist"),
        "{refused}"
    );
    let uses = volume("data", "secrets: [{key: a, secret: s}, {key: b, secret: s}],");
    world.apply(&(secret("s", "a", "x") + &uses)).await;
    let blocked = world.expect_blocked("data", None, "SecretMissing").await;
    assert_eq!(blocked.message, "secret s has no b");
    assert_eq!(world.plugin.calls_of("CreateVolume"), []);
    world
        .apply("apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: x, b: y}\n")
        .await;
    world.expect_created("data").await;
    world.expect_blocked("data", None, "").await;

    let refused = world
        .run(&["delete", "secret", "s", "--yes"])
        .await
        .expect_code(4);
    assert!(
        refused.contains("InUse") && refused.contains("volume data"),
        "{refused}"
    );
    world.done(&["delete", "secret", "s", "--yes", "--force"]).await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    world.expect_blocked("data", None, "SecretMissing").await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    world
        .apply("apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: x, b: y}\n")
        .await;
    world.expect_gone("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

#[tokio::test]
async fn a_volume_grows_where_the_plugin_makes_it_grow_and_says_so_elsewhere() {
    let plugin = TestPlugin::start_with(|options| options.offers.expand = true).await;
    let mut world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "capacity: {required: 1Gi},")).await;
    world.expect_created("data").await;
    world.apply(&volume("data", "capacity: {required: 3Gi},")).await;
    eventually(SOON, "it has grown", async || {
        let status = world.volume("data").await.unwrap().status.unwrap();
        same(status.capacity_bytes, 3 << 30)
    })
    .await;
    world.plugin.stop().await.unwrap();
    world.plugin.options_mut().offers.expand = false;
    world.plugin.launch().await.unwrap();
    world.apply(&volume("data", "capacity: {required: 4Gi},")).await;
    world.expect_blocked("data", None, "ExpandUnsupported").await;
    // Restarted with what it lacked: nobody has to say so.
    world.plugin.stop().await.unwrap();
    world.plugin.options_mut().offers.expand = true;
    world.plugin.launch().await.unwrap();
    eventually(SOON, "it has grown", async || {
        let status = world.volume("data").await.unwrap().status.unwrap();
        same(status.capacity_bytes, 4 << 30)
    })
    .await;
    world.expect_blocked("data", None, "").await;
    leader.resign().await;
}

#[tokio::test]
async fn a_volume_that_is_published_again_while_it_is_unpublished_is_so_after_that() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world
        .done(&["publish", "data", "n1", "--wait", "--timeout=30s"])
        .await;
    world.done(&["unpublish", "data", "n1"]).await;
    let said = world.done(&["publish", "data", "n1"]).await;
    assert!(said.contains("again, after it is unpublished"), "{said}");
    // The node confirms, without touching what was asked meanwhile.
    let key = world.store.keys.publication(&parsed("data"), &parsed("n1"));
    let mut publication = world.publication("data", "n1").await.unwrap();
    let state = quorate::proto::publication_status::State::PendingUnpublish;
    publication.status.as_mut().unwrap().set_state(state);
    world
        .commit(Txn::new().put(&key, publication.encode_to_vec()))
        .await;
    world.expect_state("data", "n1", "published").await;
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume").len(), 1);
    assert_eq!(world.plugin.calls_of("ControllerPublishVolume").len(), 2);
    world.check_calls();
    leader.resign().await;
}
