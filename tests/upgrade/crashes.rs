//! The leader dies at each step of an upgrade and of a rollback, and its successor completes it.

use futures::{StreamExt, stream};

use super::history::History;
use super::witness::Witness;
use super::{Cluster, Shipped};
use crate::support::doomed::Doomed;
use crate::support::wait::{SOON, eventually};

/// A change from one release to another, with a leader that dies at a point of it.
struct Change {
    /// Prefix of its keys and name of its bundles.
    name: &'static str,
    from: &'static str,
    to: &'static str,
    point: &'static str,
    /// The release that is in place at the end: the new one, or the old one if no other new replica comes.
    ends: &'static str,
}

/// How many changes are made at a time: each waits most of the time.
const AT_ONCE: usize = 4;

fn shipped(name: &str, release: &str) -> Shipped {
    match release {
        "1.0.0" | "1.1.0" => Shipped::of(name, release, "1.0.0", "1.0.0"),
        // It excludes 1.0.0, so that the upgrade to it, and every rollback from it, restricts.
        "2.0.0" => Shipped::of(name, release, "1.0.0", "1.1.0"),
        _ => panic!("{release} is not one of the test's"),
    }
}

/// Makes the change; the leader dies during it, and its successor completes it.
async fn make(cluster: &Cluster, change: &Change) {
    let deployment = cluster.deployment(change.name);
    let (from, to) = (shipped(change.name, change.from), shipped(change.name, change.to));
    let mut witness = Witness::of(&deployment);
    let mut before = deployment.start("before", &from);
    witness.watch(&before, &from);
    before.wait_ready().await;
    deployment.wait_done(&from).await;

    let crashing = deployment.launch_without_ttl().bundle(to.bundle());
    let mut crashing = Doomed::start(&crashing, "crashing", change.point, &deployment.store());
    witness.watch(&crashing.replica, &to);
    if to.release < from.release {
        // The older release leads only once the newer one is gone.
        crashing.replica.wait_for_log("does not stand for election").await;
        before.stop().await.unwrap();
    }
    crashing.aborted().await;

    let ends = shipped(change.name, change.ends);
    let mut next = match change.ends == change.to {
        true => deployment.start("next", &to),
        false => before,
    };
    witness.watch(&next, &ends);
    next.wait_leading().await;
    deployment.wait_done(&ends).await;
    next.wait_ready().await;
    deployment.expect_in_place(change.ends).await;
    eventually(SOON, "every object is shown as applied", async || {
        let shown = deployment.shown().await;
        match shown.contains("3/3 applied") {
            true => Ok(()),
            false => Err(format!("{}: {shown}", change.name)),
        }
    })
    .await;
    witness.finish().await;
}

async fn make_all(cluster: &Cluster, changes: &[Change]) {
    stream::iter(changes)
        .for_each_concurrent(AT_ONCE, |change| make(cluster, change))
        .await;
    let history = History::of(cluster).await;
    for change in changes {
        let deployment = cluster.deployment(change.name);
        let (from, to) = (shipped(change.name, change.from), shipped(change.name, change.to));
        history.assert_no_release_was_admitted_that_the_state_excludes(&deployment, &[&from, &to]);
        let statuses = history.statuses(&deployment);
        assert_eq!(
            statuses.first(),
            Some(&from.done()),
            "{}: {statuses:#?}",
            change.name
        );
        let ends = shipped(change.name, change.ends).done();
        assert_eq!(statuses.last(), Some(&ends), "{}: {statuses:#?}", change.name);
    }
}

#[tokio::test]
async fn an_upgrade_is_completed_by_the_successor_wherever_the_leader_dies() {
    let cluster = Cluster::start().await;
    let change = |name, from, to, point| Change {
        name,
        from,
        to,
        point,
        ends: to,
    };
    let changes = [
        // It excludes no release.
        change("up-planned", "1.0.0", "1.1.0", "gate.planned"),
        change("up-working", "1.0.0", "1.1.0", "gate.working"),
        change("up-reconciled", "1.0.0", "1.1.0", "gate.reconciled"),
        change("up-done", "1.0.0", "1.1.0", "gate.done"),
        // It restricts first.
        change("up-restricting", "1.1.0", "2.0.0", "gate.restricting"),
        change("up-restricted", "1.1.0", "2.0.0", "gate.restricted"),
        change("up-deleted", "1.1.0", "2.0.0", "resources.deleted"),
        change("up-all-in-place", "1.1.0", "2.0.0", "gate.reconciled"),
    ];
    make_all(&cluster, &changes).await;
}

#[tokio::test]
async fn a_rollback_is_completed_by_the_successor_wherever_the_leader_dies() {
    let cluster = Cluster::start().await;
    let change = |name, point| Change {
        name,
        from: "2.0.0",
        to: "1.0.0",
        point,
        ends: "1.0.0",
    };
    let changes = [
        change("back-planned", "gate.planned"),
        change("back-restricting", "gate.restricting"),
        change("back-restricted", "gate.restricted"),
        change("back-deleted", "resources.deleted"),
        change("back-reconciled", "gate.reconciled"),
        change("back-done", "gate.done"),
    ];
    make_all(&cluster, &changes).await;
}

#[tokio::test]
async fn an_upgrade_whose_only_new_replica_dies_is_rolled_back_by_the_older_one() {
    let cluster = Cluster::start().await;
    let change = |name, point| Change {
        name,
        from: "1.1.0",
        to: "2.0.0",
        point,
        ends: "1.1.0",
    };
    let changes = [
        change("left-restricted", "gate.restricted"),
        change("left-deleted", "resources.deleted"),
        change("left-reconciled", "gate.reconciled"),
        change("left-done", "gate.done"),
    ];
    make_all(&cluster, &changes).await;
}
