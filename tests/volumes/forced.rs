//! What is forgotten by force: publications, and volumes that are taken back or removed.

use quorate::proto::Tombstone;
use quorate::store::object::Object;
use quorate_dev::csi_plugin::order::Order;

use super::imports::taken_in;
use super::unreadable::after_the_calls;
use super::*;

/// Publications of one volume: more than two transactions hold.
const MANY: usize = 300;

/// The name of the only tombstone.
pub async fn tombstone(world: &World) -> String {
    let listed = world.done(&["get", "tombstones", "-o", "name"]).await;
    let name = listed.trim().strip_prefix("tombstone/");
    name.unwrap_or_else(|| panic!("{listed:?}")).to_owned()
}

#[tokio::test]
async fn a_publication_that_the_plugin_never_ends_is_forgotten_with_a_tombstone() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    let fails = Happening::Fails(answer("NotFound", "no such node"));
    world.plugin.fault("ControllerUnpublishVolume", None, fails).await;
    world.done(&["unpublish", "data", "n1", "--confirm"]).await;
    world.expect_blocked("data", Some("n1"), "NotFound").await;
    let asked = world
        .run(&["unpublish", "data", "n1", "--force"])
        .await
        .expect_code(64);
    assert!(asked.contains("--yes"), "{asked}");
    world.done(&["unpublish", "data", "n1", "--force", "--yes"]).await;
    world.expect_state("data", "n1", "").await;
    let described = world
        .done(&["describe", "tombstone", &tombstone(&world).await])
        .await;
    assert!(
        described.contains("csi-n1") && described.contains("nothing but"),
        "{described}"
    );
    // An operator has detached it at the storage console.
    let (volume, node) = (world.backend_id("data").await, "csi-n1".to_owned());
    world.plugin.order(Order::Detach { volume, node }).await;
    world.publish("data", "n2").await;
    let adopted = ["tombstone", "adopt", &tombstone(&world).await];
    let refused = world.run(&adopted).await.expect_code(4);
    assert!(refused.contains("--node-id"), "{refused}");
    leader.resign().await;
}

#[tokio::test]
async fn a_publication_that_cannot_be_read_is_forgotten_and_holds_its_volume_no_more() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let key = world.store.keys.publication(&parsed("data"), &parsed("n1"));
    world.put(&key, [0xff, 0xff]).await;
    let blocked = world.expect_blocked("data", None, "PublicationMalformed").await;
    let way_out = "quorate unpublish data n1 --force";
    assert!(blocked.message.contains(way_out), "{blocked:?}");
    world.done(&["unpublish", "data", "n1", "--force", "--yes"]).await;
    world.expect_blocked("data", None, "").await;
    world.delete("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// INV-3: a call for its node id may be under way, and the record that would keep that cannot be read.
#[tokio::test]
async fn a_node_id_that_nothing_keeps_is_named_where_its_publication_is_forgotten() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&shared_volume("data", "")).await;
    world.publish("data", "n1").await;
    world.publish("data", "n2").await;
    leader.resign().await;
    let forget = async |node| {
        let forget = ["unpublish", "data", node, "--force", "--yes"];
        world.done(&forget).await
    };
    // A state of a later release.
    let key = world.store.keys.publication(&parsed("data"), &parsed("n1"));
    let mut publication = world.publication("data", "n1").await.unwrap();
    publication.status.as_mut().unwrap().state = 99;
    world.put(&key, publication.encode_to_vec()).await;
    let said = forget("n1").await;
    assert!(said.contains("unpublish data --node-id csi-n1"), "{said}");
    world.done(&["unpublish", "data", "n2", "--confirm"]).await;
    let of_volume = world.store.keys.volume(&parsed("data"));
    world.put(&of_volume, [0xff]).await;
    let said = forget("n2").await;
    assert!(said.contains("unpublish data --node-id csi-n2"), "{said}");
}

#[tokio::test]
async fn a_volume_that_was_forgotten_by_force_is_taken_back_as_it_was_or_removed() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    let id = world.backend_id("data").await;
    let forget = ["delete", "volume", "data", "--yes", "--force"];
    world.done(&forget).await;
    world
        .done(&["tombstone", "adopt", &tombstone(&world).await])
        .await;
    world.expect_state("data", "n1", "published").await;
    assert_eq!(world.backend_id("data").await, id);
    assert_eq!(world.done(&["get", "tombstones", "-o", "name"]).await, "");
    world.unpublish("data", "n1").await;
    world.publish("data", "n2").await;

    world.done(&forget).await;
    // Another volume has its name by now.
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let name = tombstone(&world).await;
    let clean = ["tombstone", "clean", &name, "--yes"];
    let refused = world.run(&clean).await.expect_code(4);
    assert!(refused.contains("--as"), "{refused}");
    world.done(&[&clean[..], &["--as", "old"]].concat()).await;
    world.expect_gone("old").await;
    let left = world.plugin.backend().ids().unwrap();
    assert_eq!(left, [world.backend_id("data").await].into());
    assert_eq!(world.attached(&id), [""; 0]);
    world.check_calls();
    leader.resign().await;
}

/// The tombstone of a volume fits into a record, however many publications it has, and they are put back in several transactions.
/// INV-6: the volume is deleted once it has left every node.
#[tokio::test]
async fn a_volume_with_many_large_publications_is_forgotten_by_force_taken_back_and_removed() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&shared_volume("data", "")).await;
    world.publish("data", "n1").await;
    let id = world.backend_id("data").await;
    leader.resign().await;
    let publication = world.publication("data", "n1").await.unwrap();
    for number in 0..MANY {
        let node = parsed(&format!("m{number}"));
        let mut publication = publication.clone();
        publication.metadata.as_mut().unwrap().name = node.to_string();
        let status = publication.status.as_mut().unwrap();
        status.csi_node_id = format!("csi-{node}");
        status.publish_context = [("key".to_owned(), "x".repeat(8_000))].into();
        let key = world.store.keys.publication(&parsed("data"), &node);
        world.put(&key, publication.encode_to_vec()).await;
    }
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    let described = world
        .done(&["describe", "tombstone", &tombstone(&world).await])
        .await;
    assert!(described.contains("csi-m299"), "{described}");
    let before = tombstone(&world).await;
    world.done(&["tombstone", "adopt", &before]).await;
    let of_volume = world.store.keys.publications_of(&parsed("data"));
    assert_eq!(world.list(&of_volume).await.len(), MANY + 1);
    assert_eq!(world.backend_id("data").await, id);
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    // As an interrupted command left it: some are there already, without their volume.
    let left = world
        .read(&world.store.keys.tombstone(&parsed(&tombstone(&world).await)))
        .await;
    let left = Tombstone::decode(&*left.unwrap().value).unwrap();
    let leader = world.leader().await;
    for publication in &left.publications[..9] {
        let key = world
            .store
            .keys
            .publication(&parsed("data"), &parsed(publication.name()));
        world.put(&key, publication.encode_to_vec()).await;
    }
    let clean = ["tombstone", "clean", &tombstone(&world).await, "--yes"];
    world.done(&clean).await;
    world.expect_gone("data").await;
    world.expect_empty_backend().await;
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume").len(), MANY + 1);
    assert_eq!(world.done(&["get", "tombstones", "-o", "name"]).await, "");
    world.check_calls();
    leader.resign().await;
}

/// INV-6: the volume stays at the backend when its record is deleted, unless a clean is what is asked for.
#[tokio::test]
async fn a_volume_that_was_taken_in_is_removed_at_the_backend_from_its_tombstone() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "reclaimPolicy: retain,")).await;
    world.expect_created("data").await;
    let id = world.backend_id("data").await;
    world.delete("data").await;
    world.apply(&taken_in("theirs", &id, "")).await;
    world.expect_created("theirs").await;
    let forget = ["delete", "volume", "theirs", "--yes", "--force"];
    world.done(&forget).await;
    let clean = ["tombstone", "clean", &tombstone(&world).await, "--yes"];
    world.done(&clean).await;
    world.expect_gone("theirs").await;
    assert_eq!(world.plugin.calls_of("DeleteVolume").len(), 1);
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// INV-6: a tombstone never replaces another.
#[tokio::test]
async fn each_record_that_cannot_be_read_has_its_own_tombstone() {
    let world = World::start().await;
    world.apply(&volume("data", "")).await;
    let nodes = ["n1", "n2", "n3"];
    for node in nodes {
        let key = world.store.keys.publication(&parsed("data"), &parsed(node));
        world.put(&key, [0xff, 0xff]).await;
    }
    for node in nodes {
        world.done(&["unpublish", "data", node, "--force", "--yes"]).await;
    }
    let listed = world.done(&["get", "tombstones", "-o", "name"]).await;
    assert_eq!(listed.lines().count(), 3, "{listed}");
}

/// What the node needs to stage the volume is in the publish context.
#[tokio::test]
async fn a_volume_is_taken_back_with_its_publish_contexts_and_not_while_its_deletion_may_have_begun() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    let context = async || {
        let publication = world.publication("data", "n1").await.unwrap();
        publication.status.unwrap().publish_context
    };
    let before = context().await;
    assert!(!before.is_empty());
    let forget = ["delete", "volume", "data", "--yes", "--force"];
    world.done(&forget).await;
    let adopt = async || {
        [
            "tombstone".to_owned(),
            "adopt".to_owned(),
            tombstone(&world).await,
        ]
    };
    let adopted = adopt().await;
    world.done(&adopted.each_ref().map(String::as_str)).await;
    assert_eq!(context().await, before);
    world.unpublish("data", "n1").await;
    let fails = Happening::Fails(answer("FailedPrecondition", "it has snapshots"));
    world.plugin.fault("DeleteVolume", None, fails).await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    world.expect_calls("DeleteVolume", 1).await;
    world.done(&forget).await;
    let adopted = adopt().await;
    let refused = world.run(&adopted.each_ref().map(String::as_str)).await;
    let refused = refused.expect_code(4);
    assert!(refused.contains("tombstone clean"), "{refused}");
    leader.resign().await;
}

/// INV-12: a node that had the volume before the call keeps it, whatever becomes of the record meanwhile.
#[tokio::test]
async fn a_volume_that_is_published_again_and_forgotten_meanwhile_stays_on_its_node() {
    let world = World::start().await;
    world
        .apply(&world.plugin_document("{\"timeout\": \"60s\"}"))
        .await;
    let leader = world.leader().await;
    let names = ["one", "other"];
    for name in names {
        world.apply(&volume(name, "")).await;
        world.publish(name, "n1").await;
    }
    let waits = Happening::Waits;
    world.plugin.fault("ControllerPublishVolume", None, waits).await;
    for name in names {
        // As it is taken back from a tombstone without its context.
        let mut publication = world.publication(name, "n1").await.unwrap();
        publication.status.as_mut().unwrap().unrecorded = true;
        let key = world.store.keys.publication(&parsed(name), &parsed("n1"));
        world.put(&key, publication.encode_to_vec()).await;
    }
    world.expect_calls("ControllerPublishVolume", 4).await;
    let mut ids = Vec::new();
    for name in names {
        ids.push(world.backend_id(name).await);
    }
    world.done(&["unpublish", "one", "n1", "--force", "--yes"]).await;
    world
        .done(&["delete", "volume", "other", "--force", "--yes"])
        .await;
    world.plugin.release().await;
    after_the_calls(&world, "ControllerPublishVolume").await;
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume"), []);
    for id in ids {
        assert_eq!(world.attached(&id), ["csi-n1"]);
    }
    leader.resign().await;
}

/// What is half deleted stays so, however often its record is put back to be removed.
#[tokio::test]
async fn a_volume_whose_deletion_may_have_begun_is_not_taken_back_from_a_later_tombstone() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let fails = Happening::Fails(answer("DeadlineExceeded", "it goes on"));
    world.plugin.fault("DeleteVolume", None, fails).await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    world.expect_blocked("data", None, "DeadlineExceeded").await;
    leader.resign().await;
    let forget = ["delete", "volume", "data", "--yes", "--force"];
    world.done(&forget).await;
    world
        .done(&["tombstone", "clean", &tombstone(&world).await, "--yes"])
        .await;
    world.done(&forget).await;
    let adopt = ["tombstone", "adopt", &tombstone(&world).await];
    let refused = world.run(&adopt).await.expect_code(4);
    assert!(refused.contains("DeletionBegun"), "{refused}");
}

/// INV-6: one would be detached and deleted under the other.
#[tokio::test]
async fn a_volume_whose_id_another_volume_has_by_now_is_not_put_back() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let id = world.backend_id("data").await;
    let forget = ["delete", "volume", "data", "--yes", "--force"];
    world.done(&forget).await;
    world.apply(&taken_in("theirs", &id, "")).await;
    world.expect_created("theirs").await;
    let name = tombstone(&world).await;
    for args in [&["adopt", &name][..], &["clean", &name, "--yes"]] {
        let args = [&["tombstone"], args].concat();
        let refused = world.run(&args).await.expect_code(4);
        assert!(
            refused.contains("SharedVolumeID") && refused.contains("theirs"),
            "{refused}"
        );
    }
    world.delete("theirs").await;
    world.done(&["tombstone", "clean", &name, "--yes"]).await;
    world.expect_gone("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// A plugin whose volumes fail is what has to be mended, and their conditions are written all the time.
#[tokio::test]
async fn a_volume_is_put_back_and_a_plugin_moves_while_other_volumes_are_written() {
    let world = World::start().await;
    let leader = world.leader().await;
    for name in ["data", "busy"] {
        world.apply(&volume(name, "")).await;
        world.expect_created(name).await;
    }
    leader.resign().await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    let key = world.store.keys.volume(&parsed("busy"));
    let record = world.read(&key).await.unwrap().value;
    let writes = async {
        loop {
            world.put(&key, record.clone()).await;
        }
    };
    let name = tombstone(&world).await;
    let commands = async {
        world.done(&["tombstone", "adopt", &name]).await;
        let plugin = world.plugin_document("{}").replace("csi.sock", "other.sock");
        world.apply(&plugin).await;
    };
    tokio::select! {
        () = commands => {}
        () = writes => {}
    }
    world.expect_created("data").await;
}
