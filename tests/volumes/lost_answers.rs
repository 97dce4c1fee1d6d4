//! Lost answers: nothing is forgotten (INV-3, INV-6).

use quorate::store::Store;
use quorate::volumes::controller::Times;

use super::leaders::{LIFE, ask_for, expect_done, world_that_grows};
use super::world::leader_with;
use super::*;
use crate::support::client::{connect_with, ordinary_config};
use crate::support::proxy::{Network, Proxy};

const MOVING: [&str; 4] = [
    "CreateVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "DeleteVolume",
];

#[tokio::test]
async fn an_answer_that_is_lost_leaves_nothing_behind() {
    let world = World::start().await;
    world.apply(&world.plugin_document("{\"timeout\": \"1s\"}")).await;
    for method in MOVING {
        world.plugin.fault(method, Some(1), Happening::LosesReply).await;
    }
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    assert_eq!(
        world.plugin.backend().ids().unwrap().len(),
        1,
        "the repeat found it"
    );
    world.publish("data", "n1").await;
    world.unpublish("data", "n1").await;
    world.delete("data").await;
    world.expect_empty_backend().await;
    for method in MOVING {
        let calls = world.plugin.calls_of(method);
        assert_eq!(
            calls[0].code.as_deref(),
            Some("Canceled"),
            "{method}: it was lost"
        );
        assert_eq!(calls.last().unwrap().code.as_deref(), Some("OK"), "{method}");
    }
    history::check(&world.plugin.calls().unwrap(), "lost answers");
    leader.resign().await;
}

/// The backend has the volume, though no answer said so. From then on the plugin refuses the request before it looks for it.
#[tokio::test]
async fn a_volume_created_by_a_lost_call_is_not_forgotten_when_the_plugin_refuses_the_next_one() {
    let world = World::start().await;
    world.apply(&world.plugin_document("{\"timeout\": \"2s\"}")).await;
    world.plugin.fault("CreateVolume", 1, Happening::LosesReply).await;
    let refuses = Happening::Fails(answer("InvalidArgument", "no such tier any more"));
    world.plugin.fault("CreateVolume", None, refuses).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    let refused = async || {
        let mut calls = world.plugin.calls_of("CreateVolume");
        calls.retain(|call| call.code.as_deref() == Some("InvalidArgument"));
        calls.len()
    };
    eventually(SOON, "the plugin refuses", async || same(refused().await, 1)).await;
    // A change of the volume has the call made again. The plugin refuses again: the record stays, and the volume is not lost.
    world.done(&["delete", "volume", "data", "--yes"]).await;
    eventually(SOON, "it refuses once more", async || same(refused().await, 2)).await;
    assert!(world.volume("data").await.is_some());
    assert_eq!(world.plugin.backend().ids().unwrap().len(), 1);

    world.plugin.clear_faults().await;
    world.done(&["retry", "volume", "data"]).await;
    world.expect_gone("data").await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

/// etcd writes the result of a call, and its answer is lost: the stored record decides what follows.
#[tokio::test]
async fn a_result_that_was_written_without_an_answer_is_found_in_the_record() {
    let world = world_that_grows().await;
    let proxy = Proxy::in_front_of(&world.etcd.endpoints()[0]);
    let mut config = ordinary_config(vec![proxy.url()]);
    config.sync_endpoints = false;
    config.request_timeout = Duration::from_millis(300);
    let store = Store {
        etcd: connect_with(config).await,
        keys: world.store.keys.clone(),
    };
    let leader = leader_with(&store, Times::default()).await;
    for method in LIFE {
        world.plugin.fault(method, 1, Happening::Waits).await;
        ask_for(&world, method).await;
        world.expect_calls(method, 1).await;
        let before = world.records().await;
        proxy.set(Network::LosesReplies);
        world.plugin.release().await;
        eventually(SOON, "the result is written", async || {
            same(world.records().await != before, true)
        })
        .await;
        // The leader must miss the answer in this time: it waits 300 ms for one.
        tokio::time::sleep(Duration::from_millis(400)).await;
        proxy.set(Network::Passes);
        expect_done(&world, method).await;
    }
    world.expect_empty_backend().await;
    world.check_calls();
    leader.resign().await;
}
