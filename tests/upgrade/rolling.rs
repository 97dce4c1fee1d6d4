//! Rollouts as a Deployment makes them: one more pod, then one less.

use super::history::History;
use super::witness::Witness;
use super::{Cluster, Deployment, Shipped, wait_unready};
use crate::support::quorate::{TestReplica, quorate};
use crate::support::wait::{SOON, eventually, same};

/// For each of `nodes`: starts a replica of the new release, waits until it is ready, and stops the oldest one.
async fn roll(
    deployment: &Deployment<'_>,
    witness: &mut Witness,
    replicas: &mut Vec<TestReplica>,
    nodes: &[&str],
    release: &Shipped,
) {
    for node in nodes {
        let mut new = deployment.start(node, release);
        witness.watch(&new, release);
        new.wait_ready().await;
        replicas.push(new);
        assert_all_ready(replicas).await;
        let mut oldest = replicas.remove(0);
        let ended = oldest.stop().await.unwrap().unwrap();
        assert!(ended.success(), "{ended}: {}", oldest.log());
    }
}

async fn assert_all_ready(replicas: &[TestReplica]) {
    for replica in replicas {
        let ready = replica.status_of("/readyz").await;
        assert_eq!(ready, Some(200), "{} is no longer ready", replica.node_id);
    }
}

#[tokio::test]
async fn a_rolling_upgrade_over_three_releases_goes_through_without_an_unready_replica() {
    let cluster = Cluster::start().await;
    let shop = cluster.deployment("shop");
    let first = Shipped::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let second = Shipped::of("shop", "1.1.0", "1.0.0", "1.0.0");
    // It raises one of the two minimums: older releases must go, but it serves before it has reconciled.
    let third = Shipped::of("shop", "2.0.0", "1.0.0", "1.1.0");

    let mut witness = Witness::of(&shop);
    let mut replicas = Vec::new();
    for node in ["a0", "a1", "a2"] {
        replicas.push(shop.start(node, &first));
    }
    for replica in &mut replicas {
        witness.watch(replica, &first);
        replica.wait_ready().await;
    }
    shop.wait_done(&first).await;
    shop.expect_in_place("1.0.0").await;

    // The first newer replica leads and reconciles. The older ones no longer stand for election, and serve on.
    replicas.push(shop.start("b0", &second));
    witness.watch(&replicas[3], &second);
    replicas[3].wait_leading().await;
    shop.wait_done(&second).await;
    let only_newer = async || {
        let prefix = "/shop/kubernetes/reconciler/leader/";
        let candidates = cluster
            .etcd()
            .etcdctl(&["get", "--prefix", "--print-value-only", prefix]);
        same(candidates.trim().to_owned(), "b0".to_owned())
    };
    eventually(SOON, "only the newer one stands for election", only_newer).await;
    assert_all_ready(&replicas).await;
    replicas.remove(0).stop().await.unwrap();
    roll(&shop, &mut witness, &mut replicas, &["b1", "b2"], &second).await;
    shop.expect_in_place("1.1.0").await;

    roll(&shop, &mut witness, &mut replicas, &["c0", "c1", "c2"], &third).await;
    shop.wait_done(&third).await;
    shop.expect_in_place("2.0.0").await;

    // A replica of the first release that comes back is excluded, and says why.
    let late = shop.start("late", &first);
    witness.watch(&late, &first);
    wait_unready(
        &late,
        "release 1.0.0 is below the minimum compatible release 1.1.0 of the reconciled state",
    )
    .await;

    // The status excludes it already, so it blocks nothing.
    let fourth = Shipped::of("shop", "2.1.0", "1.0.0", "1.1.0");
    let mut fixed = shop.start("d0", &fourth);
    witness.watch(&fixed, &fourth);
    fixed.wait_leading().await;
    shop.wait_done(&fourth).await;
    assert_eq!(fixed.metric("quorate_gate_blocked").await, 0.0);

    let history = History::of(&cluster).await;
    let releases = [&first, &second, &third, &fourth];
    history.assert_no_release_was_admitted_that_the_state_excludes(&shop, &releases);
    assert!(witness.finish().await > 0, "the late one was checked");
    assert_eq!(
        history.statuses(&shop),
        [
            first.done(),
            "WORKING by 1.0.0, minimum compatible release 1.0.0".to_owned(),
            second.done(),
            // The intersection of the old state and the new one.
            "WORKING by 1.1.0, minimum compatible release 1.1.0".to_owned(),
            third.done(),
            "WORKING by 2.0.0, minimum compatible release 1.1.0".to_owned(),
            fourth.done(),
        ]
    );
}

#[tokio::test]
async fn a_rollback_below_the_minimum_waits_until_all_newer_replicas_are_gone() {
    let cluster = Cluster::start().await;
    let shop = cluster.deployment("shop");
    let first = Shipped::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let second = Shipped::of("shop", "1.1.0", "1.0.0", "1.0.0");
    let third = Shipped::of("shop", "2.0.0", "1.0.0", "1.1.0");
    let mut witness = Witness::of(&shop);
    let mut newest = shop.start("newest", &third);
    witness.watch(&newest, &third);
    newest.wait_ready().await;
    shop.wait_done(&third).await;

    // Back to a release that the state admits: it serves beside the newer one, and reconciles once that one is gone.
    let mut back = shop.start("back", &second);
    witness.watch(&back, &second);
    back.wait_ready().await;
    back.wait_for_log("replica newest runs release 2.0.0").await;
    newest.stop().await.unwrap();
    shop.wait_done(&second).await;
    shop.expect_in_place("1.1.0").await;
    assert_eq!(back.status_of("/readyz").await, Some(200));

    newest.launch().unwrap();
    newest.wait_ready().await;
    shop.wait_done(&third).await;
    back.stop().await.unwrap();

    // Back to a release that the state excludes: it never serves beside the newer one, and says why.
    // Killed at the end.
    let old = shop.launch_with_short_leases().bundle(first.bundle());
    let mut old = old.start("old");
    witness.watch(&old, &first);
    let reason = "release 1.0.0 is below the minimum compatible release 1.1.0 of the reconciled state";
    wait_unready(&old, reason).await;
    let waited = shop
        .run(&[
            "wait-ready",
            "--release=1.0.0",
            "--min-reconciler-release=1.0.0",
            "--timeout=500ms",
        ])
        .await;
    assert_eq!(waited.code, 2, "{waited:?}");
    assert!(waited.stdout.contains(reason), "{waited:?}");
    let shown = shop.shown().await;
    assert!(
        shown.contains("old at 1.0.0, not standing for election"),
        "{shown}"
    );
    let before = shop.status_line().await;
    assert_eq!(before, third.done());

    // Once no newer replica runs, it reconciles; and it serves only once its state is in place.
    newest.stop().await.unwrap();
    old.wait_ready().await;
    assert_eq!(shop.status_line().await, first.done());
    shop.expect_in_place("1.0.0").await;

    // A release that raises both minimums deadlocks: each side waits for the other. The check finds that beforehand.
    let both = Shipped::of("shop", "3.0.0", "3.0.0", "3.0.0");
    let check = async |to: &Shipped, from: &Shipped| {
        let (to, from) = (to.bundle().as_os_str(), from.bundle().as_os_str());
        quorate(["bundle".as_ref(), "check".as_ref(), to, "--from".as_ref(), from]).await
    };
    let refused = check(&both, &first).await.expect_code(4);
    assert!(
        refused.contains("a rolling update from release 1.0.0 to 3.0.0 is not possible"),
        "{refused}"
    );
    assert!(refused.contains("deadlock"), "{refused}");
    check(&third, &first).await.expect_done();
    check(&first, &third).await.expect_code(4);
    let mut deadlocked = shop.start("deadlocked", &both);
    witness.watch(&deadlocked, &both);
    shop.wait_shown("waiting for node old at 1.0.0, needs 3.0.0")
        .await;
    wait_unready(
        &deadlocked,
        "the state was reconciled by 1.0.0, but 3.0.0 needs at least 3.0.0",
    )
    .await;
    assert_eq!(
        old.status_of("/readyz").await,
        Some(200),
        "the old one still serves"
    );
    shop.expect_in_place("1.0.0").await;
    // After the kill it blocks until its record expires with its lease, and no longer.
    old.kill().await.unwrap();
    deadlocked.wait_ready().await;
    assert_eq!(shop.status_line().await, both.done());

    let history = History::of(&cluster).await;
    history.assert_no_release_was_admitted_that_the_state_excludes(&shop, &[&first, &second, &third, &both]);
    assert!(witness.finish().await > 0);
    let statuses = history.statuses(&shop);
    assert_eq!(
        statuses,
        [
            third.done(),
            "WORKING by 1.1.0, minimum compatible release 1.1.0".to_owned(),
            second.done(),
            "WORKING by 1.1.0, minimum compatible release 1.1.0".to_owned(),
            third.done(),
            "WORKING by 1.0.0, minimum compatible release 1.1.0".to_owned(),
            first.done(),
            "WORKING by 1.0.0, minimum compatible release 3.0.0".to_owned(),
            both.done(),
        ]
    );
}
