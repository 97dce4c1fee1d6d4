//! Records that cannot be read while a call about them is under way: they are not gone (INV-12).

use super::deletion::being_created;
use super::*;
use crate::support::leader::Leader;

/// What no release reads as a record.
pub const UNREADABLE: &[u8] = &[0xff, 0xff, 0xff];

/// Waits until each call of this method has ended, and the leader has created another volume since: it has seen to what the
/// calls led to.
pub async fn after_the_calls(world: &World, method: &str) {
    eventually(SOON, "the calls have ended", async || {
        let calls = world.plugin.calls_of(method);
        same(calls.iter().all(|call| call.end.is_some()), true)
    })
    .await;
    world.apply(&volume("later", "")).await;
    world.expect_created("later").await;
}

/// A volume, called data, that was created while its record could not be read. Returns the record as it was.
async fn created_while_unreadable(world: &World) -> Vec<u8> {
    being_created(world).await;
    let key = world.store.keys.volume(&parsed("data"));
    let stored = world.read(&key).await.unwrap();
    world.put(&key, UNREADABLE).await;
    world.plugin.release().await;
    after_the_calls(world, "CreateVolume").await;
    stored.value
}

async fn started() -> (World, Leader) {
    let world = World::start().await;
    let leader = world.leader().await;
    (world, leader)
}

#[tokio::test]
async fn a_volume_whose_record_becomes_unreadable_during_its_creation_stays_at_the_backend() {
    let (world, leader) = started().await;
    let record = created_while_unreadable(&world).await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), [], "it is not gone");
    eventually(SOON, "the metric counts it", async || {
        same(leader.metric("quorate_volumes{state=\"malformed\"}"), 1.0)
    })
    .await;
    // Once the record can be read again, the volume is the one that was created.
    world.put(&world.store.keys.volume(&parsed("data")), record).await;
    world.expect_created("data").await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    world
        .done_with(&["delete", "volume", "data", "later", "--yes"])
        .await;
    world.expect_empty_backend().await;
    world.check_calls();
    leader.resign().await;
}

/// INV-6: no backend volume is forgotten.
#[tokio::test]
async fn a_volume_whose_unreadable_record_is_deleted_is_undone_at_the_backend() {
    let (world, leader) = started().await;
    created_while_unreadable(&world).await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    let key = world.store.keys.volume(&parsed("data"));
    world.commit(Txn::new().delete(&key)).await;
    world.expect_calls("DeleteVolume", 1).await;
    world.delete("later").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

#[tokio::test]
async fn a_volume_whose_publication_becomes_unreadable_during_the_call_stays_on_its_node() {
    let (world, leader) = started().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let id = world.backend_id("data").await;
    let waits = Happening::Waits;
    world.plugin.fault("ControllerPublishVolume", 1, waits).await;
    world.done(&["publish", "data", "n1"]).await;
    world.expect_calls("ControllerPublishVolume", 1).await;
    let key = world.store.keys.publication(&parsed("data"), &parsed("n1"));
    let stored = world.read(&key).await.unwrap();
    world.put(&key, UNREADABLE).await;
    world.plugin.release().await;
    after_the_calls(&world, "ControllerPublishVolume").await;
    world.expect_blocked("data", None, "PublicationMalformed").await;
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume"), []);
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.put(&key, stored.value).await;
    world.expect_state("data", "n1", "published").await;
    world.expect_blocked("data", None, "").await;
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume"), []);
    world.check_calls();
    leader.resign().await;
}
