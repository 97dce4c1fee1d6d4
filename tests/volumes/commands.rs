//! What the commands refuse, and in which words.

use super::*;

#[tokio::test]
async fn several_volumes_are_published_by_one_command_and_a_refused_one_holds_no_other_back() {
    let world = World::start().await;
    let leader = world.leader().await;
    let volumes = ["a", "b", "c"].map(|name| volume(name, ""));
    world.apply(&volumes.concat()).await;
    world.done(&["publish", "b", "n2"]).await;
    let some = ["publish", "a", "b", "c", "missing", "n1"];
    let ended = world
        .run(&[&some[..], &["--wait", "--timeout=60s"]].concat())
        .await;
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(
        lines,
        [
            "publication/a/n1 requested",
            "publication/c/n1 requested",
            "publication/a/n1 is published",
            "publication/c/n1 is published",
        ]
    );
    let said = ended.expect_code(4);
    for part in [
        "not every volume was requested",
        "publication/b/n1: refused by rule AccessMode",
        "publication/missing/n1: volume/missing not found",
    ] {
        assert!(said.contains(part), "{said}");
    }
    leader.resign().await;
}

#[tokio::test]
async fn a_publication_needs_a_volume_and_a_node_and_every_rule_is_named() {
    let world = World::start().await;
    let missing = world.run(&["publish", "data", "n9"]).await.expect_code(3);
    assert!(missing.contains("volume/data, node/n9 not found"), "{missing}");
    world.apply(&volume("data", "availability: pause,")).await;
    let refused = world.run(&["publish", "data", "n1"]).await.expect_code(4);
    assert!(
        refused.contains("Availability") && refused.contains("pause"),
        "{refused}"
    );
    world.done(&["delete", "volume", "data", "--yes"]).await;
    let refused = world.run(&["publish", "data", "n1"]).await.expect_code(4);
    assert!(
        refused.contains("rule Deleting") && refused.contains("rule Availability"),
        "{refused}"
    );
    world.run(&["unpublish", "data", "n1"]).await.expect_code(3);
    world.run(&["retry", "volume", "other"]).await.expect_code(3);
    world.run(&["drain", "n9"]).await.expect_code(3);
    world
        .run(&["drain", "n1", "--out-of-service"])
        .await
        .expect_code(64);
}

/// Creates the volume `data` for many nodes, one of which may write.
async fn apply_one_writer(world: &World) {
    let mode = "accessMode: {scope: multiNode, sharing: oneWriter, mount: {}}";
    let spec = format!("{{driver: {{name: {DRIVER}}}, {mode}}}");
    world.apply(&document("Volume", "data", &spec)).await;
}

#[tokio::test]
async fn a_volume_for_one_writer_takes_many_readers_and_no_second_writer() {
    let world = World::start().await;
    apply_one_writer(&world).await;
    world.done(&["publish", "data", "n1"]).await;
    let refused = world.run(&["publish", "data", "n2"]).await.expect_code(4);
    assert!(
        refused.contains("node n1 (pendingPublish)") && refused.contains("--read-only"),
        "{refused}"
    );
    world.done(&["publish", "data", "n2", "--read-only"]).await;
    let same = world.done(&["publish", "data", "n2", "--read-only"]).await;
    assert!(same.contains("already"), "{same}");
    world.run(&["publish", "data", "n2"]).await.expect_code(4);
}

#[tokio::test]
async fn of_a_publication_and_a_deletion_at_the_same_moment_exactly_one_is_accepted() {
    let world = World::start().await;
    for round in 0..10 {
        let name = format!("data-{round}");
        world.apply(&volume(&name, "")).await;
        let delete = ["delete", "volume", &name, "--yes"];
        let publish = ["publish", &name, "n1"];
        let (deleted, published) = tokio::join!(world.run(&delete), world.run(&publish));
        let codes = (deleted.code, published.code);
        assert!(matches!(codes, (0, 4) | (4, 0)), "round {round}: {codes:?}");
        let marked = world
            .volume(&name)
            .await
            .unwrap()
            .status
            .unwrap()
            .delete_requested
            .is_some();
        assert_ne!(
            marked,
            world.publication(&name, "n1").await.is_some(),
            "round {round}"
        );
    }
}

#[tokio::test]
async fn a_wait_that_is_over_says_what_it_waited_for() {
    let world = World::start().await;
    world.apply(&volume("data", "")).await;
    // No replica leads.
    let publish = ["publish", "data", "n1", "--wait", "--timeout=2s"];
    world.times_out_with(&publish, "pendingPublish").await;
    let listed = world.done(&["get", "publications"]).await;
    assert!(
        listed.contains("data/n1") && listed.contains("pendingPublish"),
        "{listed}"
    );
    let listed = world.done(&["get", "volumes"]).await;
    assert!(listed.contains("creating"), "{listed}");
}

#[tokio::test]
async fn a_plugin_that_volumes_use_is_deleted_by_force_alone() {
    let world = World::start().await;
    world.apply(&volume("data", "")).await;
    let refused = world
        .run(&["delete", "plugin", DRIVER, "--yes"])
        .await
        .expect_code(4);
    assert!(
        refused.contains("InUse") && refused.contains("volume data"),
        "{refused}"
    );
    // One that cannot be read may use it (INV-12).
    let key = world.store.keys.volume(&parsed("data"));
    world.put(&key, [0xff]).await;
    let delete = ["delete", "plugin", DRIVER, "--yes"];
    let refused = world.run(&delete).await.expect_code(4);
    assert!(
        refused.contains("InUse") && refused.contains("volume data"),
        "{refused}"
    );
    world
        .done(&["delete", "plugin", DRIVER, "--yes", "--force"])
        .await;
}

/// What a node has and what was requested for later are two things: until its writer is unpublished, the volume has one.
#[tokio::test]
async fn a_writer_that_will_be_published_again_for_reading_still_excludes_another_writer() {
    let world = World::start().await;
    apply_one_writer(&world).await;
    let leader = world.leader().await;
    world.publish("data", "n1").await;
    world.done(&["unpublish", "data", "n1"]).await;
    world.done(&["publish", "data", "n1", "--read-only"]).await;
    let refused = world.run(&["publish", "data", "n2"]).await.expect_code(4);
    assert!(refused.contains("node n1 (pendingNodeUnpublish)"), "{refused}");
    let listed = world.done(&["get", "publications", "--no-headers"]).await;
    let read_only = listed.split_whitespace().nth(2);
    assert_eq!(read_only, Some("no"), "it writes until then: {listed}");
    world.confirm_unpublished("data", "n1").await;
    world.expect_state("data", "n1", "published").await;
    assert!(
        world
            .publication("data", "n1")
            .await
            .unwrap()
            .spec
            .unwrap()
            .read_only
    );
    world.publish("data", "n2").await;
    world.check_calls();
    leader.resign().await;
}
