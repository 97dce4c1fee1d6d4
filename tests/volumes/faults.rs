//! What fails, and what becomes of it.

use quorate::dev::csi_plugin::faults::Happening;

use super::*;
use crate::support::csi::answer;

/// Milliseconds between the beginnings of calls that follow each other.
fn gaps(calls: &[Call]) -> Vec<u64> {
    let pairs = calls.windows(2);
    pairs.map(|pair| (pair[1].start - pair[0].start) / 1000).collect()
}

#[tokio::test]
async fn calls_that_fail_for_good_come_after_growing_delays_though_each_writes_a_message() {
    let world = World::start().await;
    // A message of its own for each failure, so that each is written into the record.
    for n in 1..=5 {
        let fails = Happening::Fails(answer("Internal", &format!("failure {n}")));
        world.plugin.fault("CreateVolume", Some(1), fails).await;
    }
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_created("data").await;
    let calls = world.plugin.calls_of("CreateVolume");
    assert_eq!(calls.len(), 6);
    for (gap, base) in gaps(&calls).into_iter().zip([200, 400, 800, 1600, 3200]) {
        // Never sooner. Later by the jitter, and by what the machine is busy with.
        assert!(gap >= base, "{gap} ms instead of {base}");
        assert!(gap <= base + base / 4 + 3000, "{gap} ms instead of {base}");
    }
    world.expect_blocked("data", None, "").await;
    let metrics = leader.metrics();
    assert!(metrics.contains("quorate_volume_retries_total 5"), "{metrics}");
    leader.resign().await;
}

#[tokio::test]
async fn a_change_by_a_person_ends_a_delay_and_begins_anew_with_short_ones() {
    let world = World::start().await;
    let fails = Happening::Fails(answer("PermissionDenied", "not yet"));
    world.plugin.fault("CreateVolume", None, fails).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_blocked("data", None, "PermissionDenied").await;
    // That code rests 25 s; a person does not wait for that.
    world.plugin.clear_faults().await;
    let asked = std::time::Instant::now();
    world.done(&["retry", "volume", "data"]).await;
    world.expect_created("data").await;
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    leader.resign().await;
}

#[tokio::test]
async fn of_ten_nodes_seven_are_published_three_say_why_and_only_those_are_tried_again() {
    let world = World::start().await;
    for n in 4..=10 {
        world.add_node(&format!("n{n}")).await;
    }
    let bad = ["csi-n2", "csi-n5", "csi-n9"];
    for node in bad {
        let fails = Happening::Fails(answer("Unavailable", &format!("{node} does not answer")));
        world
            .plugin
            .fault_for("ControllerPublishVolume", None, Some(node), None, fails)
            .await;
    }
    world.apply(&shared_volume("data", "")).await;
    for n in 1..=10 {
        world.done(&["publish", "data", &format!("n{n}")]).await;
    }
    let leader = world.leader().await;
    for n in (1..=10).filter(|n| ![2, 5, 9].contains(n)) {
        world.expect_state("data", &format!("n{n}"), "published").await;
    }
    for n in [2, 5, 9] {
        let blocked = world
            .expect_blocked("data", Some(&format!("n{n}")), "Unavailable")
            .await;
        assert!(
            blocked.message.contains(&format!("csi-n{n} does not answer")),
            "{blocked:?}"
        );
    }
    eventually(SOON, "the three are tried again", async || {
        match world.plugin.calls_of("ControllerPublishVolume").len() {
            13.. => Ok(()),
            calls => Err(calls),
        }
    })
    .await;
    let mut count = std::collections::BTreeMap::<String, usize>::new();
    for call in world.plugin.calls_of("ControllerPublishVolume") {
        *count.entry(call.begun.node.unwrap()).or_default() += 1;
    }
    for (node, calls) in &count {
        assert_eq!(bad.contains(&node.as_str()), *calls > 1, "{count:?}");
    }
    world.plugin.clear_faults().await;
    world.done(&["retry", "volume", "data"]).await;
    for n in [2, 5, 9] {
        world.expect_state("data", &format!("n{n}"), "published").await;
    }
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn a_final_answer_is_not_tried_again_until_something_changes() {
    let world = World::start().await;
    let fails = Happening::Fails(answer("InvalidArgument", "no such tier"));
    world.plugin.fault("CreateVolume", None, fails).await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_blocked("data", None, "InvalidArgument").await;
    // In this time nothing may happen; a retry would come after 200 ms.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.plugin.calls_of("CreateVolume").len(), 1);
    // Nothing of it is at the backend, so it goes without a call.
    world
        .done(&["delete", "volume", "data", "--yes", "--wait", "--timeout=30s"])
        .await;
    assert_eq!(world.plugin.calls_of("DeleteVolume"), []);
    assert_eq!(world.plugin.calls_of("CreateVolume").len(), 1);
    leader.resign().await;
}

#[tokio::test]
async fn an_answer_that_is_lost_leaves_nothing_behind() {
    let world = World::start().await;
    world.apply(&world.plugin_document("{\"timeout\": \"1s\"}")).await;
    for method in [
        "CreateVolume",
        "ControllerPublishVolume",
        "ControllerUnpublishVolume",
        "DeleteVolume",
    ] {
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
    world
        .done(&["publish", "data", "n1", "--wait", "--timeout=30s"])
        .await;
    world
        .done(&["unpublish", "data", "n1", "--confirm", "--wait", "--timeout=30s"])
        .await;
    world
        .done(&["delete", "volume", "data", "--yes", "--wait", "--timeout=30s"])
        .await;
    world.expect_empty_backend().await;
    leader.resign().await;
}

#[tokio::test]
async fn deletion_that_is_asked_for_during_creation_finishes_the_creation_and_then_deletes() {
    let world = World::start().await;
    world
        .plugin
        .fault("CreateVolume", Some(1), Happening::DelaysMs(1500))
        .await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_calls("CreateVolume", 1).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--wait", "--timeout=30s"])
        .await;
    world.expect_empty_backend().await;
    assert_eq!(world.plugin.calls_of("DeleteVolume").len(), 1);
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn deletion_before_creation_makes_no_call() {
    let world = World::start().await;
    world.apply(&volume("data", "")).await;
    world.done(&["delete", "volume", "data", "--yes"]).await;
    let leader = world.leader().await;
    world.expect_gone("data").await;
    assert_eq!(world.plugin.calls_of("CreateVolume"), []);
    leader.resign().await;
}

#[tokio::test]
async fn what_was_forgotten_by_force_during_its_creation_is_undone_at_the_backend() {
    let world = World::start().await;
    world
        .plugin
        .fault("CreateVolume", Some(1), Happening::DelaysMs(1500))
        .await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.expect_calls("CreateVolume", 1).await;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    assert!(world.done(&["get", "tombstones"]).await.contains("data"));
    world.expect_calls("DeleteVolume", 1).await;
    world.expect_empty_backend().await;
    eventually(SOON, "nobody is reminded of it any more", async || {
        same(
            world.done(&["get", "tombstones", "-o", "name"]).await,
            String::new(),
        )
    })
    .await;
    leader.resign().await;
}

#[tokio::test]
async fn force_leaves_a_tombstone_with_what_is_left_behind() {
    let world = World::start().await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world
        .done(&["publish", "data", "n1", "--wait", "--timeout=30s"])
        .await;
    let id = world.backend_id("data").await;
    let uid = world.volume("data").await.unwrap().metadata.unwrap().uid;
    world
        .done(&["delete", "volume", "data", "--yes", "--force"])
        .await;
    let described = world.done(&["describe", "tombstone", &uid]).await;
    for part in ["data", &id, "n1 (node id csi-n1)", DRIVER] {
        assert!(described.contains(part), "{part} in {described}");
    }
    // In this time nothing may happen: a tombstone is for people.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.attached(&id), ["csi-n1"]);
    world.done(&["delete", "tombstone", &uid, "--yes"]).await;
    leader.resign().await;
}

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
    leader.resign().await;
}

#[tokio::test]
async fn a_request_that_comes_in_during_a_call_survives_its_result() {
    let world = World::start().await;
    world
        .plugin
        .fault("ControllerPublishVolume", Some(1), Happening::DelaysMs(1500))
        .await;
    let leader = world.leader().await;
    world.apply(&volume("data", "")).await;
    world.done(&["publish", "data", "n1"]).await;
    world.expect_calls("ControllerPublishVolume", 1).await;
    world.done(&["unpublish", "data", "n1"]).await;
    // The labels, too, in the other record.
    let labelled = volume("data", "").replace("{name: data}", "{name: data, labels: {tier: db}}");
    world.apply(&labelled).await;
    world.expect_state("data", "n1", "").await;
    let id = world.backend_id("data").await;
    assert_eq!(world.attached(&id), [""; 0]);
    let labels = world.volume("data").await.unwrap().metadata.unwrap().labels;
    assert_eq!(labels["tier"], "db");
    world.check_calls();
    leader.resign().await;
}

#[tokio::test]
async fn a_call_under_way_is_cancelled_when_its_leader_stops_and_made_again_by_the_next() {
    let world = World::start().await;
    world
        .plugin
        .fault("CreateVolume", Some(1), Happening::Hangs)
        .await;
    let launch = crate::support::quorate::Launch::on(&world.etcd);
    let mut first = launch.start("r0");
    first.wait_leading().await;
    world.apply(&volume("data", "")).await;
    world.expect_calls("CreateVolume", 1).await;
    let asked = std::time::Instant::now();
    assert!(first.stop().await.unwrap().unwrap().success());
    // Three seconds on an idle machine.
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    eventually(SOON, "the plugin hears of it", async || {
        let calls = world.plugin.calls_of("CreateVolume");
        same(calls[0].code.as_deref(), Some("Canceled")).map(drop)
    })
    .await;
    let leader = world.leader().await;
    world.expect_created("data").await;
    assert_eq!(world.plugin.calls_of("CreateVolume").len(), 2);
    world.check_calls();
    leader.resign().await;
}
