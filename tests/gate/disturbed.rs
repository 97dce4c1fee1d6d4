//! A status that someone else writes, and leaders that die while they reconcile.

use std::time::Duration;

use quorate::etcd::Txn;
use quorate::gate::controller::{GateController, Times};
use quorate::gate::status::{State, Status};
use quorate::grpc_code::Code;
use quorate::summary::Latest;
use quorate::term::NodeWrites;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::term::{Cluster, TIMES, bundle, only, read_status, release, status};
use crate::support::client::{commit, config, connect_with, lead, requests, store};
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

/// Fields of a newer release: field 16 with three bytes, field 20 with a number.
const NEWER_FIELDS: [u8; 9] = [0x82, 0x01, 3, b'n', b'e', b'w', 0xa0, 0x01, 7];

#[tokio::test]
async fn a_malformed_status_counts_as_none() {
    for garbage in [&b"\xff\xff"[..], b"", b"{\"state\": \"DONE\"}"] {
        let cluster = Cluster::start().await;
        cluster.put_status(garbage).await;
        let term = cluster.term(&bundle(5, 3)).await;
        let during = term.recorder.pass(1).await.status;
        assert_eq!(
            during.as_deref(),
            Some(garbage),
            "until everything is reconciled no release is admitted"
        );
        cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    }
}

#[tokio::test]
async fn fields_of_a_newer_release_survive_every_rewrite() {
    let cluster = Cluster::start().await;
    let mut stored = status(State::Done, 6, 1).encode();
    stored.extend_from_slice(&NEWER_FIELDS);
    cluster.put_status(stored).await;
    let term = cluster.term(&bundle(5, 3)).await;
    let during = term.recorder.pass(1).await.status.unwrap();
    assert!(during.ends_with(&NEWER_FIELDS));
    assert!(
        Status::decode(&during)
            .unwrap()
            .says_the_same_as(&status(State::Working, 5, 3))
    );
    eventually(SOON, "done", async || {
        let value = read_status(&cluster.store).await.unwrap().value;
        let done = Status::decode(&value)
            .unwrap()
            .says_the_same_as(&status(State::Done, 5, 3));
        same((done, value.ends_with(&NEWER_FIELDS)), (true, true))
    })
    .await;
}

#[tokio::test]
async fn a_status_that_someone_else_changes_is_planned_again_at_once() {
    let cluster = Cluster::start().await;
    // Only a new plan makes a pass.
    let term = cluster.term(&bundle(5, 3)).await;
    let done = status(State::Done, 5, 3);
    cluster.wait_for_status(&done).await;
    let disturbances = [
        None,
        Some(Vec::new()),
        Some(b"\xff\xff".to_vec()),
        Some(status(State::Done, 4, 1).encode()),
        Some(status(State::Working, 5, 3).encode()),
        Some(status(State::Done, 9, 9).encode()),
    ];
    for (count, disturbance) in disturbances.into_iter().enumerate() {
        match &disturbance {
            None => {
                let txn = Txn::new().delete(&cluster.store.keys.status());
                commit(&cluster.client, txn).await.unwrap();
            }
            Some(value) => {
                cluster.put_status(value.clone()).await;
            }
        }
        term.recorder.pass(count + 2).await;
        cluster.wait_for_status(&done).await;
        cluster.wait_for_status_json(|json| json["state"] == "DONE").await;
        assert!(term.leadership.fence().window().is_open());
    }
    // The last one excluded more than the bundle does: it was restricted first, not widened.
    let last = term.recorder.passes().pop().unwrap().status.unwrap();
    assert_eq!(Status::decode(&last).unwrap(), status(State::Working, 5, 9));
}

#[tokio::test]
async fn a_status_that_is_rewritten_all_the_time_makes_no_hot_loop() {
    let cluster = Cluster::start().await;
    let term = cluster.term(&bundle(5, 3)).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    let before = term.recorder.passes().len();
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        cluster.put_status(status(State::Done, 4, 3).encode()).await;
        // The status is rewritten much faster than the leader may react.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let passes = term.recorder.passes().len() - before;
    assert!(passes <= 10, "{passes} passes in two seconds");
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
}

#[tokio::test]
async fn a_status_that_changes_during_a_pass_is_not_overwritten_by_the_old_plan() {
    let cluster = Cluster::start().await;
    let recorder = cluster.recorder();
    recorder.let_passes_end(false);
    let (_published, releases) = watch::channel(None);
    let term = cluster.term_of(&bundle(5, 3), TIMES, releases, recorder).await;
    term.recorder.pass(1).await;
    // As an operator does who restores a backup.
    cluster.put_status(status(State::Done, 4, 3).encode()).await;
    let second = term.recorder.pass(2).await;
    assert_eq!(
        second.status.unwrap(),
        status(State::Working, 4, 3).encode(),
        "the pass of the old plan was cut short"
    );
    term.recorder.let_passes_end(true);
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
}

#[tokio::test]
async fn a_status_that_changes_at_the_end_of_a_pass_is_not_overwritten_by_done() {
    let cluster = Cluster::start().await;
    let recorder = cluster.recorder();
    // This status excludes more than the bundle does.
    recorder.disturb(status(State::Done, 9, 9));
    let bundle = bundle(5, 3);
    let read_at = cluster.register("leader", release(5)).await;
    let (_published, releases) = watch::channel(Some(only("leader", read_at)));
    let term = cluster.term_of(&bundle, TIMES, releases, recorder).await;
    let second = term.recorder.pass(2).await.status.unwrap();
    assert_eq!(Status::decode(&second).unwrap(), status(State::Working, 5, 9));
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
}

#[tokio::test]
async fn a_stale_leader_in_the_middle_of_a_pass_never_writes_its_done() {
    let cluster = Cluster::start().await;
    let recorder = cluster.recorder();
    recorder.let_passes_end(false);
    let (_published, releases) = watch::channel(None);
    let mut stale = cluster.term_of(&bundle(5, 3), TIMES, releases, recorder).await;
    stale.recorder.pass(1).await;
    let keys = cluster.etcd.keys("/q/kubernetes/reconciler/leader/");
    cluster.etcd.etcdctl(&["del", &keys[0]]);
    let fresh = lead(&cluster.client, "fresh", cluster.pulse()).await.unwrap();
    let revision = cluster.etcd.revision();
    stale.recorder.let_passes_end(true);
    timeout(SOON, stale.gate.join_next())
        .await
        .expect("it ends by itself")
        .unwrap()
        .unwrap();
    assert_eq!(cluster.status().await, None);
    assert_eq!(cluster.etcd.revision(), revision, "it wrote nothing at all");
    assert!(!stale.leadership.fence().window().is_open() && fresh.fence().window().is_open());
}

#[tokio::test]
async fn what_a_write_without_an_answer_left_in_status_json_is_corrected() {
    let cluster = Cluster::start().await;
    let proxy = Proxy::in_front_of(&cluster.etcd.endpoints()[0]);
    let mut config = config(vec![proxy.url()]);
    config.sync_endpoints = false;
    config.request_timeout = Duration::from_millis(700);
    let through = connect_with(config).await;
    let leadership = lead(&cluster.client, "leader", cluster.pulse()).await.unwrap();
    let recorder = cluster.recorder();
    let (_published, releases) = watch::channel(None);
    let controller = GateController {
        store: store(&through),
        fence: leadership.fence().clone(),
        node: "leader".to_owned(),
        bundle: bundle(5, 3),
        releases,
        node_writes: NodeWrites::default(),
        resources: recorder.clone(),
        times: TIMES,
        summaries: Latest::default(),
    };
    let mut gate = JoinSet::new();
    gate.spawn(controller.run());
    cluster.wait_for_status_json(|json| json["state"] == "DONE").await;
    // This pass begins only once the write of DONE is confirmed.
    recorder.change();
    recorder.pass(2).await;
    // The leader writes that a pass failed, but loses the reply; the next pass succeeds.
    let unanswered = || requests(&through, "txn", Code::DeadlineExceeded);
    let before = unanswered();
    proxy.set(Network::LosesReplies);
    recorder.will(Err("the apiserver is away"));
    recorder.change();
    cluster
        .wait_for_status_json(|json| !json["degraded"].is_null())
        .await;
    recorder.will(Ok(()));
    eventually(SOON, "the write times out", async || {
        same(unanswered() > before, true)
    })
    .await;
    proxy.set(Network::Passes);
    cluster
        .wait_for_status_json(|json| json["degraded"].is_null())
        .await;
}

/// Has a leader die while it reconciles over the status `stored`. Asserts that it left the status `left`, and that its
/// successor completes the work.
async fn completed_by_successor(stored: Option<Status>, left: Option<Status>) {
    let cluster = Cluster::start().await;
    if let Some(stored) = stored {
        cluster.put_status(stored.encode()).await;
    }
    let bundle = bundle(5, 3);
    let recorder = cluster.recorder();
    recorder.let_passes_end(false);
    let read_at = cluster.register("c1", release(5)).await;
    let (_published, releases) = watch::channel(Some(only("c1", read_at)));
    let first = cluster.term_of(&bundle, TIMES, releases, recorder).await;
    first.recorder.pass(1).await;
    first.die(&cluster.etcd).await;
    assert_eq!(cluster.status().await, left);
    let second = cluster.term(&bundle).await;
    let during = second.recorder.pass(1).await.status;
    assert_eq!(
        during.map(|value| Status::decode(&value).unwrap()),
        left,
        "the successor does not widen it"
    );
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
}

#[tokio::test]
async fn a_first_start_that_was_interrupted_is_completed_by_the_successor() {
    completed_by_successor(None, None).await;
}

#[tokio::test]
async fn an_upgrade_that_was_interrupted_is_completed_by_the_successor() {
    completed_by_successor(
        Some(status(State::Done, 4, 3)),
        Some(status(State::Working, 4, 3)),
    )
    .await;
}

#[tokio::test]
async fn an_upgrade_interrupted_after_restricting_is_completed_by_the_successor() {
    completed_by_successor(
        Some(status(State::Done, 4, 1)),
        Some(status(State::Working, 4, 3)),
    )
    .await;
}

#[tokio::test]
async fn a_rollback_interrupted_after_restricting_is_completed_by_the_successor() {
    completed_by_successor(
        Some(status(State::Done, 6, 4)),
        Some(status(State::Working, 5, 4)),
    )
    .await;
}

#[tokio::test]
async fn the_gate_works_on_after_etcd_hung() {
    let mut cluster = Cluster::start().await;
    let often = Times {
        pass_interval: Duration::from_millis(200),
        ..TIMES
    };
    let term = cluster.term_with(&bundle(5, 3), often).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    // etcd hangs for two intervals, so that a pass falls into that time, and for less than the lease lasts: the term
    // must survive it.
    cluster.etcd.members[0].pause();
    tokio::time::sleep(Duration::from_millis(400)).await;
    cluster.etcd.members[0].resume();
    cluster.put_status(status(State::Done, 4, 3).encode()).await;
    cluster.wait_for_status(&status(State::Done, 5, 3)).await;
    assert!(term.leadership.fence().window().is_open());
}
