//! A change of leader in the middle of a volume's life (INV-1, INV-3).

use quorate::etcd::KeyValue;

use super::*;
use crate::support::doomed::expire_leases;
use crate::support::quorate::Replicas;

const ELECTION: &str = "/quorate/kubernetes/reconciler/leader/";

#[tokio::test]
async fn a_new_leader_whose_first_call_is_publish_unpublish_or_delete_makes_that_call() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    leader.resign().await;
    world.done(&["publish", "data", "n1"]).await;
    let leader = world.leader().await;
    world.expect_state("data", "n1", "published").await;
    assert_eq!(world.plugin.calls_of("ControllerPublishVolume").len(), 1);
    leader.resign().await;
    world.done(&["unpublish", "data", "n1", "--confirm"]).await;
    let leader = world.leader().await;
    world.expect_state("data", "n1", "").await;
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume").len(), 1);
    leader.resign().await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    let leader = world.leader().await;
    world.expect_gone("data").await;
    assert_eq!(world.plugin.calls_of("DeleteVolume").len(), 1);
    world.expect_empty_backend().await;
    leader.resign().await;
}

#[tokio::test]
async fn a_request_during_a_call_survives_the_result_of_the_call() {
    let world = World::start().await;
    world
        .plugin
        .fault("ControllerPublishVolume", Some(1), Happening::Waits)
        .await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.done(&["publish", "data", "n1"]).await;
    world.expect_calls("ControllerPublishVolume", 1).await;
    world.done(&["unpublish", "data", "n1"]).await;
    // The labels are in the other record.
    let labelled = volume("data", "").replace("{name: data}", "{name: data, labels: {tier: db}}");
    world.apply(&labelled).await;
    world.plugin.release().await;
    world.expect_state("data", "n1", "").await;
    let id = world.backend_id("data").await;
    assert_eq!(world.attached(&id), [""; 0]);
    let labels = world.volume("data").await.unwrap().metadata.unwrap().labels;
    assert_eq!(labels["tier"], "db");
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn a_publication_requested_during_the_call_that_ends_it_starts_over() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    world
        .plugin
        .fault("ControllerUnpublishVolume", 1, Happening::Waits)
        .await;
    world.done(&["unpublish", "data", "n1", "--confirm"]).await;
    world.expect_calls("ControllerUnpublishVolume", 1).await;
    world.done(&["publish", "data", "n1"]).await;
    world.plugin.release().await;
    world.expect_calls("ControllerPublishVolume", 2).await;
    world.expect_state("data", "n1", "published").await;
    assert_eq!(world.plugin.calls_of("ControllerUnpublishVolume").len(), 1);
    world.check_calls();
    leader.resign().await;
}

/// When the call began, nothing new went to the node.
#[tokio::test]
async fn a_publication_requested_during_the_call_that_ends_it_starts_over_though_its_node_was_drained_before()
{
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.publish("data", "n1").await;
    world
        .plugin
        .fault("ControllerUnpublishVolume", 1, Happening::Waits)
        .await;
    world.done(&["drain", "n1"]).await;
    world.done(&["unpublish", "data", "n1", "--confirm"]).await;
    world.expect_calls("ControllerUnpublishVolume", 1).await;
    let active = "{desiredRole: worker, availability: active}";
    world.apply(&document("Node", "n1", active)).await;
    world.done(&["publish", "data", "n1"]).await;
    world.plugin.release().await;
    world.expect_calls("ControllerPublishVolume", 2).await;
    world.expect_state("data", "n1", "published").await;
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn a_call_in_flight_is_cancelled_when_its_leader_stops_and_the_next_one_repeats_it() {
    let world = World::start().await;
    world
        .plugin
        .fault("CreateVolume", Some(1), Happening::Hangs)
        .await;
    let launch = Launch::on(&world.etcd);
    let mut first = launch.start("r0");
    first.wait_leading().await;
    world.apply(&volume("data", "")).await;
    world.expect_calls("CreateVolume", 1).await;
    let asked = std::time::Instant::now();
    assert!(first.stop().await.unwrap().unwrap().success());
    // Three seconds on an idle machine.
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    expect_cancelled(&world, "CreateVolume", 0).await;
    let leader = world.leader().await;
    world.expect_created("data").await;
    assert_eq!(world.plugin.calls_of("CreateVolume").len(), 2);
    history::check(&world.plugin.calls().unwrap(), "stopped");
    leader.resign().await;
}

#[tokio::test]
async fn a_call_in_flight_is_cancelled_when_the_window_of_its_leader_closes() {
    let world = World::start().await;
    // Longer than any wait of this test.
    world.apply(&world.plugin_document("{\"timeout\": \"5m\"}")).await;
    world.plugin.fault("CreateVolume", 1, Happening::Hangs).await;
    let mut leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_calls("CreateVolume", 1).await;
    leader.fence().window().close();
    leader.work_ended().await;
    expect_cancelled(&world, "CreateVolume", 0).await;
    leader.resign().await;
    let leader = world.leader().await;
    world.expect_created("data").await;
    leader.resign().await;
}

async fn expect_cancelled(world: &World, method: &str, which: usize) {
    eventually(SOON, "the plugin sees the call end", async || {
        let calls = world.plugin.calls_of(method);
        same(calls[which].code.clone(), Some("Canceled".to_owned()))
    })
    .await;
}

/// The steps of a life, in their order.
pub const LIFE: [&str; 5] = [
    "CreateVolume",
    "ControllerPublishVolume",
    "ControllerExpandVolume",
    "ControllerUnpublishVolume",
    "DeleteVolume",
];

/// A world whose volume can do each of them.
pub async fn world_that_grows() -> World {
    World::with(TestPlugin::start_with(|options| options.offers.expand = true).await).await
}

/// Requests the step.
pub async fn ask_for(world: &World, method: &str) {
    match method {
        "CreateVolume" => world.apply(&volume("data", "capacity: {required: 1Mi},")).await,
        "ControllerPublishVolume" => world.done(&["publish", "data", "n1"]).await,
        "ControllerExpandVolume" => world.apply(&volume("data", "capacity: {required: 2Mi},")).await,
        "ControllerUnpublishVolume" => world.done(&["unpublish", "data", "n1", "--confirm"]).await,
        "DeleteVolume" => world.done(&["delete", "volume", "data", "--yes"]).await,
        other => panic!("{other} is no step"),
    };
}

/// Waits until the step is done.
pub async fn expect_done(world: &World, method: &str) {
    match method {
        "CreateVolume" => drop(world.expect_created("data").await),
        "ControllerPublishVolume" => world.expect_state("data", "n1", "published").await,
        "ControllerExpandVolume" => world.expect_capacity("data", 2 << 20).await,
        "ControllerUnpublishVolume" => world.expect_state("data", "n1", "").await,
        "DeleteVolume" => world.expect_gone("data").await,
        other => panic!("{other} is no step"),
    }
}

/// The answer of each step reaches a leader that was replaced and does not know it: its window is open and its lease
/// lives, so that only the fence protects the records. It writes nothing, and the next leader repeats the call.
#[tokio::test]
async fn an_answer_to_a_leader_that_was_replaced_is_written_by_the_next_one_alone() {
    let world = world_that_grows().await;
    let mut leader = world.leader().await;
    let mut answered = 0;
    for method in LIFE {
        world.plugin.fault(method, 1, Happening::Waits).await;
        ask_for(&world, method).await;
        world.expect_calls(method, 1).await;
        expire_leases(&world.store, "test").await;
        let at: Vec<KeyValue> = world.records().await;
        world.plugin.release().await;
        leader.work_ended().await;
        // On a slow machine a write of the plugin's status finds out before the answer that the term is over, which cancels the call.
        let code = world.plugin.calls_of(method)[0].code.clone();
        answered += usize::from(code.as_deref() == Some("OK"));
        assert_eq!(world.records().await, at, "{method}: nothing was written");
        leader.resign().await;
        leader = world.leader().await;
        expect_done(&world, method).await;
        assert_eq!(world.plugin.calls_of(method).len(), 2, "{method} was made again");
    }
    assert!(answered > 0, "no answer reached a leader that was replaced");
    world.expect_empty_backend().await;
    world.check_calls();
    leader.resign().await;
}

/// The same life with the program: each step hangs in a leader whose lease is revoked. The call ends with the term, and
/// the other replica repeats it.
#[tokio::test]
async fn a_call_in_flight_ends_with_the_lease_of_its_leader_and_the_next_one_repeats_it() {
    let world = world_that_grows().await;
    let replicas: Replicas = Launch::on(&world.etcd).start_all(&["r0", "r1"]);
    for method in LIFE {
        world.plugin.fault(method, 1, Happening::Hangs).await;
        ask_for(&world, method).await;
        world.expect_calls(method, 1).await;
        let (key, _) = world.etcd.leader_of(ELECTION).unwrap();
        let lease = key.strip_prefix(ELECTION).unwrap();
        world.etcd.etcdctl(&["lease", "revoke", lease]);
        expect_done(&world, method).await;
        expect_cancelled(&world, method, 0).await;
        // One call more if the next leader was faster than the end of the call.
        let calls = world.plugin.calls_of(method);
        let codes: Vec<_> = calls.iter().map(|call| call.code.as_deref().unwrap()).collect();
        let (last, before) = codes.split_last().unwrap();
        assert_eq!((*last, before[0]), ("OK", "Canceled"), "{method}");
        assert!(
            before[1..].iter().all(|code| *code == "Aborted"),
            "{method}: {codes:?}"
        );
    }
    world.expect_empty_backend().await;
    history::check(&world.plugin.calls().unwrap(), "revoked leases");
    for mut replica in replicas.0 {
        replica.stop().await.unwrap();
    }
}
