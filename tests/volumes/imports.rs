//! Volumes that exist at the backend: taken in, used, and left there again.

use super::*;
use crate::support::base::Base;
use crate::support::leader::Leader;

const MODE: &str = "{scope: singleNode, sharing: none, mount: {fsType: ext4}}";

/// The document of a volume that exists at the backend under this id, with `more` in its spec.
pub fn taken_in(name: &str, id: &str, more: &str) -> String {
    let source = format!("source: {{volumeID: {id}, context: {{path: /there}}}}");
    let spec = format!("{{{more} {source}, driver: {{name: {DRIVER}}}, accessMode: {MODE}}}");
    document("Volume", name, &spec)
}

/// Another installation of Quorate, with the same plugin and a node on which it runs.
async fn another(world: &World) -> (Base, Leader) {
    let base = Base::start().await;
    base.apply(&world.plugin_document("{}")).await;
    base.apply(&document("Node", "m1", "{desiredRole: worker}")).await;
    let status = format!(
        "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{name: m1}}\n\
         status: {{csi: [{{plugin: {DRIVER}, nodeID: csi-m1}}]}}\n"
    );
    let args = ["apply", "--subresource", "status", "-f", "-"];
    base.run_with(&args, &status).await.expect_done();
    let leader = world::leader_with(&base.store, Default::default()).await;
    (base, leader)
}

async fn done(base: &Base, args: &[&str]) -> String {
    let args = [args, &["--wait", "--timeout=60s"]].concat();
    base.run(&args).await.expect_done()
}

#[tokio::test]
async fn a_volume_is_taken_in_used_expanded_and_retained_by_one_installation_after_the_other() {
    let plugin = TestPlugin::start_with(|options| options.offers.expand = true).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world
        .apply(&volume(
            "data",
            "reclaimPolicy: retain, capacity: {required: 1Gi},",
        ))
        .await;
    world.publish("data", "n1").await;
    let id = world.backend_id("data").await;
    world.unpublish("data", "n1").await;
    world.delete("data").await;
    assert_eq!(
        world.plugin.calls_of("DeleteVolume"),
        [],
        "it stays at the backend"
    );

    let (base, other) = another(&world).await;
    base.apply(&taken_in("theirs", &id, "capacity: {required: 1Gi},"))
        .await;
    done(&base, &["publish", "theirs", "m1"]).await;
    assert_eq!(world.attached(&id), ["csi-m1"]);
    assert_eq!(
        world.plugin.calls_of("CreateVolume").len(),
        1,
        "it was not created again"
    );
    base.apply(&taken_in("theirs", &id, "capacity: {required: 2Gi},"))
        .await;
    eventually(SOON, "it has grown", async || {
        same(
            world.plugin.backend().volume(&id).unwrap().unwrap().capacity,
            2 << 30,
        )
    })
    .await;
    // The part of the expansion that is the node's is not forgotten.
    eventually(SOON, "the node has yet to expand it", async || {
        let described = base.run(&["describe", "volume", "theirs"]).await.expect_done();
        match described.contains("NodeExpansionPending") {
            true => Ok(()),
            false => Err(described),
        }
    })
    .await;
    base.run(&["expanded", "theirs"]).await.expect_done();
    let described = base.run(&["describe", "volume", "theirs"]).await.expect_done();
    assert!(!described.contains("NodeExpansionPending"), "{described}");
    done(&base, &["unpublish", "theirs", "m1", "--confirm"]).await;
    // What was taken in stays unless its record says otherwise.
    done(&base, &["delete", "volume", "theirs", "--yes"]).await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    other.resign().await;

    world
        .apply(&taken_in("back", &id, "reclaimPolicy: delete,"))
        .await;
    world.publish("back", "n2").await;
    world.unpublish("back", "n2").await;
    world.delete("back").await;
    world.expect_empty_backend().await;
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn a_volume_that_does_not_exist_or_has_another_use_is_not_taken_in() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&taken_in("missing", "vol-nowhere", "")).await;
    world.expect_blocked("missing", None, "NotFound").await;
    world.delete("missing").await;
    world.apply(&volume("data", "reclaimPolicy: retain,")).await;
    world.expect_created("data").await;
    let id = world.backend_id("data").await;
    world.delete("data").await;
    let block = taken_in("other", &id, "").replace("mount: {fsType: ext4}", "block: {}");
    world.apply(&block).await;
    world.expect_blocked("other", None, "InvalidArgument").await;
    let without_id = taken_in("faulty", "\"\"", "");
    let args = ["apply", "-f", "-"];
    let refused = world.run_with(&args, &without_id).await.expect_code(64);
    assert!(refused.contains("spec.source.volumeID"), "{refused}");
    leader.resign().await;
}

/// INV-6: deleting one would delete the other's.
#[tokio::test]
async fn a_volume_whose_id_another_volume_has_as_well_is_not_deleted_at_the_backend() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let id = world.backend_id("data").await;
    world.apply(&taken_in("twin", &id, "")).await;
    world.expect_blocked("twin", None, "SharedVolumeID").await;
    // The volume that has the id is as it should be, until it is deleted.
    world.expect_blocked("data", None, "").await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    let blocked = world.expect_blocked("data", None, "SharedVolumeID").await;
    assert!(blocked.message.contains("delete volume twin"), "{blocked:?}");
    // The leader's own deletion of one record is news for the other.
    world.delete("twin").await;
    world.expect_gone("data").await;
    assert_eq!(
        world.plugin.calls_of("DeleteVolume").len(),
        1,
        "once it was its own"
    );
    leader.resign().await;
}

/// INV-6: one volume would be detached under the other.
#[tokio::test]
async fn a_volume_whose_id_another_volume_has_is_not_taken_in() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    let id = world.backend_id("data").await;
    world.apply(&taken_in("twin", &id, "")).await;
    let blocked = world.expect_blocked("twin", None, "SharedVolumeID").await;
    assert!(blocked.message.contains("data"), "{blocked:?}");
    world.done(&["publish", "twin", "n1"]).await;
    let twin = world.volume("twin").await.unwrap().status.unwrap();
    assert_eq!(twin.volume_id, "", "it is not taken in");
    // The volume that has the id goes on.
    world.unpublish("data", "n1").await;
    world.publish("data", "n2").await;
    assert_eq!(world.attached(&id), ["csi-n2"]);
    leader.resign().await;
}

/// INV-6: neither would be published any more.
#[tokio::test]
async fn a_volume_does_not_take_the_id_of_another_as_its_name() {
    let plugin = TestPlugin::start_with(|options| options.offers.controller = false).await;
    let world = World::with(plugin).await;
    let leader = world.leader().await;
    world.apply(&taken_in("theirs", "lun-7", "")).await;
    world.expect_created("theirs").await;
    world.apply(&volume("lun-7", "")).await;
    let blocked = world.expect_blocked("lun-7", None, "SharedVolumeID").await;
    assert!(blocked.message.contains("theirs"), "{blocked:?}");
    world.publish("theirs", "n1").await;
    world.unpublish("theirs", "n1").await;
    // Once the other is gone, nothing is in the way.
    world.delete("theirs").await;
    let created = world.expect_created("lun-7").await.status.unwrap();
    assert!(created.r#static && created.volume_id == "lun-7");
    leader.resign().await;
}
