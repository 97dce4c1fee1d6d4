//! The leader dies at each step of an upgrade and of a rollback, and the next one ends it.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

use futures::{StreamExt, stream};

use super::history::History;
use super::witness::Witness;
use super::{Cluster, Shipped};
use crate::support::quorate::TestReplica;

/// From one release to another, with a leader that dies at a point on the way.
struct Way {
    /// Prefix of its keys and name of its bundles.
    name: &'static str,
    from: &'static str,
    to: &'static str,
    point: &'static str,
    /// The release that is in place at last: the new one, or the old one where no other new replica comes.
    ends: &'static str,
}

/// How many of them at a time: enough to use the waits for leases, on two cores.
const AT_ONCE: usize = 4;

/// SIGABRT: the process dies where it stands, without giving anything back.
const ABORTED: i32 = 6;

fn shipped(name: &str, release: &str) -> Shipped {
    match release {
        "1.0.0" | "1.1.0" => Shipped::of(name, release, "1.0.0", "1.0.0"),
        // Excludes 1.0.0, so that the way to it, and every way back, restricts.
        "2.0.0" => Shipped::of(name, release, "1.0.0", "1.1.0"),
        _ => panic!("{release} is not one of the test's"),
    }
}

/// Goes the way; the leader dies on it, and the next one arrives.
async fn go(cluster: &Cluster, way: &Way) {
    let deployment = cluster.deployment(way.name);
    let (from, to) = (shipped(way.name, way.from), shipped(way.name, way.to));
    let mut witness = Witness::of(&deployment);
    let mut before = deployment.start("before", &from);
    witness.watch(&before, &from);
    before.wait_ready().await;
    deployment.wait_done(&from).await;

    let crashing = deployment.launch().bundle(to.bundle());
    let mut crashing: TestReplica = crashing
        .flag(format!("--crash-at={}", way.point))
        .start("crashing");
    witness.watch(&crashing, &to);
    if to.release < from.release {
        // The newer one must go before the older one leads.
        crashing.wait_for_log("does not stand for election").await;
        before.stop().await.unwrap();
    }
    let ended = crashing.ended().await;
    assert_eq!(ended.signal(), Some(ABORTED), "{}: {}", way.name, crashing.log());
    assert!(
        crashing
            .log()
            .contains(&format!("failpoint {}: aborting", way.point))
    );

    let ends = shipped(way.name, way.ends);
    let mut next = match way.ends == way.to {
        true => deployment.start("next", &to),
        false => before,
    };
    witness.watch(&next, &ends);
    next.wait_leading().await;
    deployment.wait_done(&ends).await;
    next.wait_ready().await;
    assert_eq!(
        deployment.releases_in_place(),
        BTreeSet::from([way.ends.to_owned()]),
        "{}",
        way.name
    );
    let shown = deployment.shown().await;
    assert!(shown.contains("3/3 applied"), "{}: {shown}", way.name);
    witness.finish().await;
}

async fn go_all(cluster: &Cluster, ways: &[Way]) {
    stream::iter(ways)
        .for_each_concurrent(AT_ONCE, |way| go(cluster, way))
        .await;
    let history = History::of(cluster).await;
    for way in ways {
        let deployment = cluster.deployment(way.name);
        let (from, to) = (shipped(way.name, way.from), shipped(way.name, way.to));
        history.assert_nobody_was_admitted_to_a_state_that_excludes_it(&deployment, &[&from, &to]);
        let statuses = history.statuses(&deployment);
        assert_eq!(
            statuses.first(),
            Some(&from.done()),
            "{}: {statuses:#?}",
            way.name
        );
        let ends = shipped(way.name, way.ends).done();
        assert_eq!(statuses.last(), Some(&ends), "{}: {statuses:#?}", way.name);
    }
}

#[tokio::test]
async fn an_upgrade_is_ended_by_the_next_leader_wherever_the_leader_dies() {
    let cluster = Cluster::start().await;
    let way = |name, from, to, point| Way {
        name,
        from,
        to,
        point,
        ends: to,
    };
    let ways = [
        // Nobody is excluded by it.
        way("up-planned", "1.0.0", "1.1.0", "gate.planned"),
        way("up-working", "1.0.0", "1.1.0", "gate.working"),
        way("up-reconciled", "1.0.0", "1.1.0", "gate.reconciled"),
        way("up-done", "1.0.0", "1.1.0", "gate.done"),
        // Restricting first.
        way("up-restricting", "1.1.0", "2.0.0", "gate.restricting"),
        way("up-restricted", "1.1.0", "2.0.0", "gate.restricted"),
        way("up-deleted", "1.1.0", "2.0.0", "resources.deleted"),
        way("up-all-in-place", "1.1.0", "2.0.0", "gate.reconciled"),
    ];
    go_all(&cluster, &ways).await;
}

#[tokio::test]
async fn a_rollback_is_ended_by_the_next_leader_wherever_the_leader_dies() {
    let cluster = Cluster::start().await;
    let way = |name, point| Way {
        name,
        from: "2.0.0",
        to: "1.0.0",
        point,
        ends: "1.0.0",
    };
    let ways = [
        way("back-planned", "gate.planned"),
        way("back-restricting", "gate.restricting"),
        way("back-restricted", "gate.restricted"),
        way("back-deleted", "resources.deleted"),
        way("back-reconciled", "gate.reconciled"),
        way("back-done", "gate.done"),
    ];
    go_all(&cluster, &ways).await;
}

#[tokio::test]
async fn an_upgrade_whose_only_leader_dies_is_taken_back_by_the_older_release_that_is_left() {
    let cluster = Cluster::start().await;
    let way = |name, point| Way {
        name,
        from: "1.1.0",
        to: "2.0.0",
        point,
        ends: "1.1.0",
    };
    let ways = [
        way("left-restricted", "gate.restricted"),
        way("left-deleted", "resources.deleted"),
        way("left-reconciled", "gate.reconciled"),
        way("left-done", "gate.done"),
    ];
    go_all(&cluster, &ways).await;
}
