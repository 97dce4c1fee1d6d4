//! What is forgotten by force while a call for it is under way, and wanted again before that call has ended (INV-3, INV-6).

use std::collections::BTreeMap;

use quorate_dev::csi_plugin::backend::Volume as Unmanaged;

use super::forced::tombstone;
use super::imports::taken_in;
use super::wakes::BEFORE_A_SLOW_DELAY;
use super::*;
use crate::support::leader::Leader;

const PUBLISH: &str = "ControllerPublishVolume";
const UNPUBLISH: &str = "ControllerUnpublishVolume";

/// Waits until the plugin was asked to unpublish twice more, so that one of these calls has ended without an answer; or to publish
/// again.
async fn after_an_unanswered_call(world: &World, published: usize) {
    let before = world.plugin.calls_of(UNPUBLISH).len();
    eventually(SOON, "two more calls", async || {
        let unpublished = world.plugin.calls_of(UNPUBLISH).len();
        match unpublished >= before + 2 || world.plugin.calls_of(PUBLISH).len() > published {
            true => Ok(()),
            false => Err(unpublished),
        }
    })
    .await;
}

/// A volume called data, and a leader that waits for a call to unpublish for a second only.
async fn impatient() -> (World, Leader) {
    impatient_with(TestPlugin::start().await).await
}

async fn impatient_with(plugin: TestPlugin) -> (World, Leader) {
    let world = World::with(plugin).await;
    let limits = "{\"timeout\": \"60s\", \"timeouts\": {\"unpublish\": \"1s\"}}";
    world.apply(&world.plugin_document(limits)).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    (world, leader)
}

/// Unpublishes the volume data, which is published to `n1`, through calls without an answer.
async fn leaving_without_an_answer(world: &World) {
    world.publish("data", "n1").await;
    world.plugin.fault(UNPUBLISH, None, Happening::Hangs).await;
    world.done(&["unpublish", "data", "n1", "--confirm"]).await;
    after_an_unanswered_call(world, 1).await;
}

/// Forgets a volume by force.
async fn forget(world: &World, name: &str) {
    world.done(&["delete", "volume", name, "--yes", "--force"]).await;
}

/// Has the plugin answer again. Waits until it has published the volume, once more, to `n1`, and only after it has answered that it has
/// unpublished it.
async fn expect_published_after_an_answer(world: &World, volume: &str, id: &str) {
    world.plugin.clear_faults().await;
    world.expect_state(volume, "n1", "published").await;
    assert_eq!(world.attached(id), ["csi-n1"]);
    let answered = world.plugin.calls_of(UNPUBLISH).into_iter();
    let answered = answered.filter(|call| call.code.as_deref() == Some("OK"));
    let left = answered.filter_map(|call| call.end).min();
    let published = world.plugin.calls_of(PUBLISH);
    assert_eq!(published.len(), 2, "{published:?}");
    assert!(left.unwrap() <= published[1].start, "{left:?} {published:?}");
    world.unpublish(volume, "n1").await;
}

/// Wants the volume data on `n1` again while the plugin does not answer that it has left the node, under two leaders.
async fn expect_published_again_after_an_answer(world: &World, leader: Leader, id: &str) {
    world.done(&["publish", "data", "n1"]).await;
    after_an_unanswered_call(world, 1).await;
    assert_eq!(world.plugin.calls_of(PUBLISH).len(), 1, "it may be detached yet");
    leader.resign().await;
    let leader = world.leader().await;
    after_an_unanswered_call(world, 1).await;
    assert_eq!(world.plugin.calls_of(PUBLISH).len(), 1, "it may be detached yet");
    expect_published_after_an_answer(world, "data", id).await;
    world.delete("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// The publication succeeded after it was forgotten. The plugin may detach the volume at any time after it was asked to, so that
/// whatever is published to the node before would be lost under it.
#[tokio::test]
async fn a_volume_is_published_again_only_after_the_plugin_says_that_it_has_left_the_node() {
    let (world, leader) = impatient().await;
    let id = world.backend_id("data").await;
    world.plugin.fault(PUBLISH, 1, Happening::Waits).await;
    world.done(&["publish", "data", "n1"]).await;
    world.expect_calls(PUBLISH, 1).await;
    world.done(&["unpublish", "data", "n1", "--force", "--yes"]).await;
    world.plugin.fault(UNPUBLISH, None, Happening::Hangs).await;
    world.plugin.release().await;
    after_an_unanswered_call(&world, 1).await;
    expect_published_again_after_an_answer(&world, leader, &id).await;
}

/// The call to unpublish has no answer, which is why the publication is forgotten: the plugin may go on with it.
#[tokio::test]
async fn a_volume_that_leaves_a_node_without_an_answer_is_published_there_again_only_after_one() {
    let (world, leader) = impatient().await;
    let id = world.backend_id("data").await;
    leaving_without_an_answer(&world).await;
    let forgotten = world.done(&["unpublish", "data", "n1", "--force", "--yes"]).await;
    assert!(forgotten.contains("node id csi-n1"), "{forgotten}");
    expect_published_again_after_an_answer(&world, leader, &id).await;
}

/// The node is gone at the provider, or the operator has mistyped its id.
#[tokio::test]
async fn a_node_id_that_the_plugin_never_confirms_holds_its_volume_until_an_operator_gives_it_up() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let fails = Happening::Fails(answer("NotFound", "no such node"));
    world.plugin.fault(UNPUBLISH, None, fails).await;
    world.done(&["unpublish", "data", "--node-id", "csi-n9"]).await;
    world.expect_blocked("data", None, "NotFound").await;
    // What is shown is a document, which changes nothing.
    eventually(SOON, "what was shown is applied", async || {
        let shown = world.done(&["get", "volume", "data", "-o", "yaml"]).await;
        assert!(
            shown.contains("detachNodeIDs") && shown.contains("csi-n9"),
            "{shown}"
        );
        let applied = world.run_with(&["apply", "-f", "-"], &shown).await;
        match applied.stdout.contains("unchanged") {
            true => Ok(()),
            false => Err(format!("{applied:?}")),
        }
    })
    .await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    let described = world.done(&["describe", "volume", "data"]).await;
    let way_out = "quorate unpublish data --node-id ID --force";
    assert!(described.contains(way_out), "{described}");
    let give_up = ["unpublish", "data", "--node-id", "csi-n9", "--force"];
    let asked = world.run(&give_up).await.expect_code(64);
    assert!(asked.contains("--yes"), "{asked}");
    let other = ["unpublish", "data", "--node-id", "csi-n8", "--force", "--yes"];
    let missing = world.run(&other).await.expect_code(3);
    assert!(missing.contains("csi-n8"), "{missing}");
    world.done(&[&give_up[..], &["--yes"]].concat()).await;
    world.expect_gone("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// A volume that a call is to unpublish from `n1`, which waits; its record is forgotten by force.
async fn being_unpublished(world: &World) -> String {
    world
        .apply(&world.plugin_document("{\"timeout\": \"60s\"}"))
        .await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    let id = world.backend_id("data").await;
    world.plugin.fault(UNPUBLISH, 1, Happening::Waits).await;
    world.done(&["unpublish", "data", "n1", "--confirm"]).await;
    world.expect_calls(UNPUBLISH, 1).await;
    forget(world, "data").await;
    id
}

/// Returns once the leader has seen everything that was written before: volumes and publications, which it follows separately. Makes
/// another volume for that.
pub async fn seen_by_the_leader(world: &World) {
    world.apply(&volume("seen", "")).await;
    world.publish("seen", "n2").await;
}

/// The call that hangs is why the volume was forgotten. It would take the volume from the node that has it by then.
#[tokio::test]
async fn what_is_taken_back_under_another_name_waits_for_the_call_under_the_former_one() {
    let world = World::start().await;
    let leader = world.leader().await;
    let id = being_unpublished(&world).await;
    let name = tombstone(&world).await;
    world.done(&["tombstone", "adopt", &name, "--as", "old"]).await;
    seen_by_the_leader(&world).await;
    assert_eq!(world.plugin.calls_of(UNPUBLISH).len(), 1, "one call at a time");
    world.plugin.release().await;
    world.expect_state("old", "n1", "").await;
    world.publish("old", "n1").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.check_calls();
    leader.resign().await;
}

/// The call that has no answer may take the volume from the node at any time after that.
#[tokio::test]
async fn what_is_taken_in_by_its_id_is_published_only_after_it_has_left_the_node_of_a_forgotten_record() {
    let (world, leader) = impatient().await;
    let id = world.backend_id("data").await;
    leaving_without_an_answer(&world).await;
    forget(&world, "data").await;
    world.apply(&taken_in("theirs", &id, "")).await;
    world.done(&["publish", "theirs", "n1"]).await;
    after_an_unanswered_call(&world, 1).await;
    assert_eq!(world.plugin.calls_of(PUBLISH).len(), 1, "it may be detached yet");
    expect_published_after_an_answer(&world, "theirs", &id).await;
    leader.resign().await;
}

/// The plugin creates nothing, so that a volume is the one with its name whatever its record is.
#[tokio::test]
async fn what_takes_its_name_as_its_id_is_published_only_after_it_has_left_the_node_of_a_forgotten_record() {
    let plugin = TestPlugin::start_with(|options| options.offers.create = false).await;
    plugin.backend().create("data", &unmanaged("data")).unwrap();
    let (world, leader) = impatient_with(plugin).await;
    leaving_without_an_answer(&world).await;
    forget(&world, "data").await;
    world.apply(&volume("data", "")).await;
    world.done(&["publish", "data", "n1"]).await;
    after_an_unanswered_call(&world, 1).await;
    assert_eq!(world.plugin.calls_of(PUBLISH).len(), 1, "it may be detached yet");
    expect_published_after_an_answer(&world, "data", "data").await;
    leader.resign().await;
}

/// A volume that something else has created at the backend.
fn unmanaged(name: &str) -> Unmanaged {
    Unmanaged {
        name: name.to_owned(),
        capacity: 1 << 20,
        block: false,
        mode: 1,
        parameters: BTreeMap::new(),
        place: None,
    }
}

/// INV-6, INV-12: an earlier record was being unpublished from the node, by a later one the node uses the volume.
#[tokio::test]
async fn what_a_node_may_use_by_the_last_forgotten_record_stays_there_whatever_an_earlier_one_says() {
    let (world, leader) = impatient().await;
    let id = world.backend_id("data").await;
    leaving_without_an_answer(&world).await;
    forget(&world, "data").await;
    world.plugin.clear_faults().await;
    world.apply(&taken_in("theirs", &id, "")).await;
    world.publish("theirs", "n1").await;
    let left = world.plugin.calls_of(UNPUBLISH).len();
    forget(&world, "theirs").await;
    world.apply(&taken_in("again", &id, "")).await;
    world.expect_created("again").await;
    world.publish("again", "n1").await;
    assert_eq!(
        world.plugin.calls_of(UNPUBLISH).len(),
        left,
        "the node may use it"
    );
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.unpublish("again", "n1").await;
    leader.resign().await;
}

/// INV-12: what cannot be read may be the record of the volume, and a call for it may be under way.
#[tokio::test]
async fn what_may_be_a_forgotten_record_that_cannot_be_read_holds_back_what_is_taken_in() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let id = world.backend_id("data").await;
    world.put(&world.store.keys.volume(&parsed("data")), [0xff]).await;
    forget(&world, "data").await;
    world.apply(&taken_in("theirs", &id, "")).await;
    let blocked = world.expect_blocked("theirs", None, "RecordMalformed").await;
    let name = tombstone(&world).await;
    assert!(blocked.message.contains(&name), "{blocked:?}");
    world.done(&["delete", "tombstone", &name, "--yes"]).await;
    world.expect_created_within(BEFORE_A_SLOW_DELAY, "theirs").await;
    world.publish("theirs", "n1").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    leader.resign().await;
}

/// Takes in, as theirs, the volume of a record that was forgotten after its deletion had begun. Waits until that is held back, and returns
/// the name of the tombstone.
async fn half_deleted(world: &World) -> String {
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let id = world.backend_id("data").await;
    let fails = Happening::Fails(answer("DeadlineExceeded", "it goes on"));
    world.plugin.fault("DeleteVolume", None, fails).await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    world.expect_blocked("data", None, "DeadlineExceeded").await;
    forget(world, "data").await;
    world.apply(&taken_in("theirs", &id, "")).await;
    let blocked = world.expect_blocked("theirs", None, "DeletionBegun").await;
    let name = tombstone(world).await;
    assert!(blocked.message.contains(&name), "{blocked:?}");
    world.plugin.clear_faults().await;
    name
}

/// An operator says, by deleting the tombstone, that nothing is under way.
#[tokio::test]
async fn what_may_be_half_deleted_is_taken_in_when_its_tombstone_is_deleted() {
    let world = World::start().await;
    let leader = world.leader().await;
    let name = half_deleted(&world).await;
    world.done(&["delete", "tombstone", &name, "--yes"]).await;
    world.expect_created_within(BEFORE_A_SLOW_DELAY, "theirs").await;
    world.expect_blocked("theirs", None, "").await;
    leader.resign().await;
}

/// INV-6: its data may be gone under the node that uses it.
#[tokio::test]
async fn what_may_be_half_deleted_by_a_forgotten_record_is_not_taken_in() {
    let world = World::start().await;
    let leader = world.leader().await;
    let name = half_deleted(&world).await;
    world.delete("theirs").await;
    world.done(&["tombstone", "clean", &name, "--yes"]).await;
    world.expect_gone("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

#[tokio::test]
async fn what_is_taken_in_by_its_id_waits_for_the_call_of_the_record_that_was_forgotten() {
    let world = World::start().await;
    let leader = world.leader().await;
    let id = being_unpublished(&world).await;
    world.apply(&taken_in("theirs", &id, "")).await;
    seen_by_the_leader(&world).await;
    assert_eq!(world.plugin.calls_of("ValidateVolumeCapabilities"), []);
    world.plugin.release().await;
    world.publish("theirs", "n1").await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.check_calls();
    leader.resign().await;
}
