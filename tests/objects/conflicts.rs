//! Another writer comes between what `apply` read and what it writes.

use std::fmt::Write as _;
use std::time::Duration;

use quorate::proto::Node;
use quorate::proto::node_spec::Availability;

use super::node;
use crate::support::base::Base;
use crate::support::hold::Hold;
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::{Finished, quorate_with};

/// How many objects are written before `n1`.
const BEFORE: usize = 20;

/// Applies a document to `n1` after others. Another writer changes `n1` when all are read and planned, and none is written.
async fn overtaken(
    cluster: &Base,
    args: &[&str],
    document: &str,
    change: impl FnOnce(&mut Node),
) -> Finished {
    let mut text = String::new();
    for index in 0..BEFORE {
        let _ = write!(text, "{}", node(&format!("before-{index}"), "{}"));
    }
    text.push_str(document);
    let hold = Hold::at("apply.decided");
    let held = hold.flag();
    let args = [args, &[&held]].concat();
    let applied = cluster.run_with(&args, &text);
    let changed = async {
        hold.reached().await;
        cluster.change("n1", change).await;
        hold.release();
    };
    tokio::join!(applied, changed).0
}

const APPLY: &[&str] = &["apply", "-f", "-"];

#[tokio::test]
async fn a_spec_that_another_writer_changed_is_a_conflict_and_theirs_stays() {
    let cluster = Base::start().await;
    cluster.apply(&node("n1", "{}")).await;
    let document = node("n1", "{desiredRole: worker, availability: pause}");
    let drained = |node: &mut Node| node.spec.as_mut().unwrap().set_availability(Availability::Drain);
    let outcome = overtaken(&cluster, APPLY, &document, drained).await;
    assert!(
        outcome.stdout.contains("node/before-19 created"),
        "the others are written"
    );
    let error = outcome.expect_code(5);
    assert!(
        error.contains("node/n1: another writer changed it at the same moment"),
        "{error}"
    );
    assert_eq!(
        cluster.node("n1").await.spec.unwrap().availability(),
        Availability::Drain
    );
}

#[tokio::test]
async fn force_conflicts_overrules_it() {
    let cluster = Base::start().await;
    cluster.apply(&node("n1", "{}")).await;
    let document = node("n1", "{desiredRole: worker, availability: pause}");
    let drained = |node: &mut Node| node.spec.as_mut().unwrap().set_availability(Availability::Drain);
    let outcome = overtaken(
        &cluster,
        &[APPLY, &["--force-conflicts"]].concat(),
        &document,
        drained,
    )
    .await;
    assert!(outcome.expect_done().ends_with("node/n1 configured\n"));
    assert_eq!(
        cluster.node("n1").await.spec.unwrap().availability(),
        Availability::Pause
    );
}

#[tokio::test]
async fn a_status_that_another_writer_reported_is_no_conflict_and_both_stay() {
    let cluster = Base::start().await;
    cluster.apply(&node("n1", "{}")).await;
    let document = node("n1", "{desiredRole: worker, availability: pause}");
    let reported = |node: &mut Node| node.status.as_mut().unwrap().controller = true;
    let outcome = overtaken(&cluster, APPLY, &document, reported).await;
    assert!(outcome.expect_done().ends_with("node/n1 configured\n"));
    let node = cluster.node("n1").await;
    assert_eq!(node.spec.unwrap().availability(), Availability::Pause);
    assert!(node.status.unwrap().controller);
}

#[tokio::test]
async fn a_node_that_another_writer_replaced_is_a_conflict() {
    let cluster = Base::start().await;
    cluster.apply(&node("n1", "{}")).await;
    let document = node("n1", "{desiredRole: worker, availability: pause}");
    let replaced = |node: &mut Node| node.metadata.as_mut().unwrap().uid = "another".to_owned();
    overtaken(&cluster, APPLY, &document, replaced)
        .await
        .expect_code(5);
    assert_eq!(
        cluster.node("n1").await.spec.unwrap().availability(),
        Availability::Active
    );
}

/// A command waits this long for a reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_write_whose_reply_is_lost_is_read_back() {
    let cluster = Base::start().await;
    let proxy = Proxy::in_front_of(&cluster.etcd.endpoints()[0]);
    let text: String = (0..BEFORE)
        .map(|index| node(&format!("n-{index}"), "{}"))
        .collect();
    let endpoints = format!("--etcd-endpoints={}", proxy.url());
    let hold = Hold::at("apply.decided");
    let held = hold.flag();
    let args = [APPLY, &[endpoints.as_str(), &held]].concat();
    let applied = quorate_with(args, Some(&text), &[]);
    let disturbed = async {
        hold.reached().await;
        proxy.set(Network::LosesReplies);
        hold.release();
        // The reply of a write is given up, the reply of the read that follows is still waited for.
        tokio::time::sleep(REQUEST_TIMEOUT * 3 / 2).await;
        let written = cluster.etcd.keys("/quorate/nodes/").len();
        assert!((1..BEFORE).contains(&written), "{written} were written");
        proxy.set(Network::Passes);
    };
    let (applied, ()) = tokio::join!(applied, disturbed);
    let applied = applied.expect_done();
    let created = applied.lines().filter(|line| line.ends_with(" created"));
    assert_eq!(created.count(), BEFORE, "{applied}");
}
