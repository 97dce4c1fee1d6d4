//! From election to DONE by each of the four plans, and the passes after that.

use std::time::{Duration, Instant};

use quorate::gate::controller::Times;
use quorate::gate::status::{State, Status};
use serde_json::json;

use super::term::{Cluster, TIMES, bundle, read_status, release, status};
use crate::support::client::put;
use crate::support::wait::{SOON, eventually, same};

#[tokio::test]
async fn without_a_status_everything_is_reconciled_before_one_is_written() {
    let cluster = Cluster::start().await;
    let slow = Times {
        settle: Duration::from_secs(3600),
        ..TIMES
    };
    let term = cluster.term_with(&bundle(5, 3), slow).await;
    let first = term.recorder.pass(1).await;
    assert_eq!(
        first.status, None,
        "without a status there is no leader to settle"
    );
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    let status_json = cluster.wait_for_status_json(|json| json["state"] == "DONE").await;
    assert_eq!(
        status_json,
        json!({
            "state": "DONE", "version": "0.5.0", "minimumCompatibleRelease": "0.3.0",
            "leader": "leader", "term": term.leadership.fence().term().0, "degraded": null,
        })
    );
}

#[tokio::test]
async fn the_final_status_is_left_alone_and_status_json_names_the_new_leader() {
    let cluster = Cluster::start().await;
    let written = cluster.put_status(status(State::Done, 5, 3).encode()).await;
    let term = cluster.term(&bundle(5, 3)).await;
    term.recorder.pass(1).await;
    let number = term.leadership.fence().term().0;
    cluster.wait_for_status_json(|json| json["term"] == number).await;
    term.recorder.change();
    term.recorder.pass(2).await;
    assert_eq!(read_status(&cluster.store).await.unwrap().mod_revision, written);
}

/// Returns the status during the first pass, and asserts that it is DONE after it.
async fn status_while_reconciling(stored: Status, version: u32, minimum: u32) -> Status {
    let cluster = Cluster::start().await;
    cluster.put_status(stored.encode()).await;
    let term = cluster.term(&bundle(version, minimum)).await;
    let during = term.recorder.pass(1).await.status.unwrap();
    cluster
        .wait_for_status(&status(State::Done, version, minimum))
        .await;
    let status_json = cluster.wait_for_status_json(|json| json["state"] == "DONE").await;
    assert_eq!(status_json["version"], release(version).to_string());
    Status::decode(&during).unwrap()
}

#[tokio::test]
async fn a_compatible_status_keeps_its_numbers_while_work_is_under_way() {
    let during = status_while_reconciling(status(State::Done, 4, 3), 5, 3).await;
    assert_eq!(during, status(State::Working, 4, 3));
}

#[tokio::test]
async fn a_raised_minimum_is_in_force_before_anything_is_reconciled() {
    let during = status_while_reconciling(status(State::Done, 4, 1), 5, 3).await;
    assert_eq!(
        during,
        status(State::Working, 4, 3),
        "least version, greatest minimum"
    );
}

#[tokio::test]
async fn a_rollback_admits_only_what_both_states_do_before_anything_is_reconciled() {
    let during = status_while_reconciling(status(State::Done, 6, 4), 5, 3).await;
    assert_eq!(
        during,
        status(State::Working, 5, 4),
        "least version, greatest minimum"
    );
}

/// The first pass waits for the requests of a previous leader.
async fn assert_waits_for_a_predecessor(cluster: &Cluster) {
    let settling = Times {
        settle: Duration::from_millis(700),
        ..TIMES
    };
    let begun = Instant::now();
    let term = cluster.term_with(&bundle(5, 3), settling).await;
    let first = term.recorder.pass(1).await;
    assert!(first.at - begun >= settling.settle, "{:?}", first.at - begun);
}

#[tokio::test]
async fn over_an_existing_status_the_first_pass_waits_for_the_previous_leaders_requests() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 5, 3).encode()).await;
    assert_waits_for_a_predecessor(&cluster).await;
}

/// It shows that there was a leader, though not what it admitted.
#[tokio::test]
async fn over_a_malformed_status_the_first_pass_waits_as_well() {
    let cluster = Cluster::start().await;
    cluster.put_status(&b"\xff\xff"[..]).await;
    assert_waits_for_a_predecessor(&cluster).await;
}

/// Each change of the status has it planned again.
#[tokio::test]
async fn a_status_that_is_rewritten_all_the_time_does_not_put_the_first_pass_off() {
    let cluster = Cluster::start().await;
    let stored = status(State::Done, 5, 3);
    cluster.put_status(stored.encode()).await;
    let settling = Times {
        settle: Duration::from_secs(3),
        ..TIMES
    };
    let term = cluster.term_with(&bundle(5, 3), settling).await;
    let rewriting = async {
        loop {
            cluster.put_status(stored.encode()).await;
            // Three times while the first pass waits.
            tokio::time::sleep(settling.settle / 3).await;
        }
    };
    tokio::select! {
        _ = term.recorder.pass(1) => {}
        () = rewriting => {}
    }
}

#[tokio::test]
async fn a_leader_that_was_cut_short_in_its_first_pass_is_waited_for() {
    let cluster = Cluster::start().await;
    let applied = cluster.store.keys.inventory("", "ConfigMap", None, "a");
    put(&cluster.store.etcd, std::str::from_utf8(&applied).unwrap(), "").await;
    assert_waits_for_a_predecessor(&cluster).await;
}

#[tokio::test]
async fn a_first_pass_that_fails_is_repeated_and_shown_until_it_succeeds() {
    let cluster = Cluster::start().await;
    cluster.put_status(status(State::Done, 4, 3).encode()).await;
    let recorder = cluster.recorder();
    recorder.will(Err("ClusterRole x was rejected"));
    let (_published, releases) = tokio::sync::watch::channel(None);
    let term = cluster.term_of(&bundle(5, 3), TIMES, releases, recorder).await;
    let status_json = cluster
        .wait_for_status_json(|json| !json["degraded"].is_null())
        .await;
    assert_eq!(status_json["state"], "WORKING");
    assert_eq!(status_json["degraded"]["reason"], "Rejected");
    assert_eq!(status_json["degraded"]["message"], "ClusterRole x was rejected");
    // After growing delays from 100 ms on.
    term.recorder.pass(4).await;
    let passes = term.recorder.passes().len();
    assert!(passes < 40, "{passes} passes");
    assert_eq!(cluster.status().await.unwrap(), status(State::Working, 4, 3));
    term.recorder.will(Ok(()));
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    cluster
        .wait_for_status_json(|json| json["degraded"].is_null())
        .await;
}

#[tokio::test]
async fn a_later_pass_that_fails_sets_degraded_until_one_succeeds() {
    let cluster = Cluster::start().await;
    let term = cluster.term(&bundle(5, 3)).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    let written = read_status(&cluster.store).await.unwrap().mod_revision;
    term.recorder.will(Err("the apiserver is away"));
    term.recorder.change();
    let since = |status_json: &serde_json::Value| status_json["degraded"]["since"].clone();
    let status_json = cluster
        .wait_for_status_json(|json| !json["degraded"].is_null())
        .await;
    assert_eq!(status_json["state"], "DONE");
    // The pass is repeated by itself; another message does not change since when the state is degraded.
    let began = since(&status_json);
    let count = term.recorder.passes().len();
    term.recorder.pass(count + 1).await;
    term.recorder.will(Err("the apiserver is still away"));
    let status_json = cluster
        .wait_for_status_json(|json| json["degraded"]["message"] == "the apiserver is still away")
        .await;
    assert_eq!(since(&status_json), began);
    term.recorder.will(Ok(()));
    cluster
        .wait_for_status_json(|json| json["degraded"].is_null())
        .await;
    assert_eq!(read_status(&cluster.store).await.unwrap().mod_revision, written);
}

/// Each status that someone else writes is planned again; the API server is away all the time.
#[tokio::test]
async fn a_trouble_that_lasts_keeps_its_beginning_when_the_status_is_planned_again() {
    let cluster = Cluster::start().await;
    let term = cluster.term(&bundle(5, 3)).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    term.recorder.will(Err("the apiserver is away"));
    term.recorder.change();
    let began = cluster
        .wait_for_status_json(|json| !json["degraded"].is_null())
        .await;
    for (written, minimum, state) in [(4, 3, "WORKING"), (5, 3, "DONE"), (9, 9, "WORKING")] {
        cluster
            .put_status(status(State::Done, written, minimum).encode())
            .await;
        let replanned = cluster.wait_for_status_json(|json| json["state"] == state).await;
        assert_eq!(replanned["degraded"], began["degraded"]);
    }
    term.recorder.will(Ok(()));
    term.recorder.change();
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    cluster
        .wait_for_status_json(|json| json["degraded"].is_null())
        .await;
}

/// The API server is away all the time, also while a node is in the way.
#[tokio::test]
async fn a_trouble_that_lasts_shows_again_with_its_beginning_once_no_node_is_in_the_way() {
    let cluster = Cluster::start().await;
    let term = cluster.term(&bundle(5, 3)).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    term.recorder.will(Err("the apiserver is away"));
    term.recorder.change();
    let began = cluster
        .wait_for_status_json(|json| !json["degraded"].is_null())
        .await;
    cluster.register("c2", release(2)).await;
    cluster.put_status(status(State::Done, 4, 1).encode()).await;
    cluster
        .wait_for_status_json(|json| json["degraded"]["reason"] == "WaitingForNodes")
        .await;
    cluster.unregister("c2").await;
    let reason = &began["degraded"]["reason"];
    let shown = cluster
        .wait_for_status_json(|json| json["degraded"]["reason"] == *reason)
        .await;
    assert_eq!(shown["degraded"], began["degraded"]);
}

#[tokio::test]
async fn passes_that_change_nothing_write_nothing() {
    let cluster = Cluster::start().await;
    let often = Times {
        pass_interval: Duration::from_millis(100),
        ..TIMES
    };
    let term = cluster.term_with(&bundle(5, 3), often).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    let revision = cluster.etcd.revision();
    let count = term.recorder.passes().len();
    term.recorder.pass(count + 5).await;
    assert_eq!(cluster.etcd.revision(), revision);
}

#[tokio::test]
async fn many_changes_cost_few_passes() {
    let cluster = Cluster::start().await;
    let term = cluster.term(&bundle(5, 3)).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    eventually(SOON, "the first pass is over", async || {
        same(term.recorder.passes().len(), 1)
    })
    .await;
    let begun = Instant::now();
    for _ in 0..100 {
        term.recorder.change();
        // For half a second there is a change every 5 ms; on a busy machine for longer.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let answered = term.recorder.pass(2).await;
    let count = term.recorder.passes().len();
    // One each tenth of a second.
    let most = 3.0 + begun.elapsed().as_secs_f64() / 0.1;
    assert!(
        count >= 2 && (count as f64) < most,
        "{count} passes for 100 changes in {:?}",
        answered.at.elapsed()
    );
}
