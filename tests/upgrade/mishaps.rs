//! Others who write the status while a leader holds the gate.

use std::time::{Duration, Instant};

use prost::Message as _;
use quorate::etcd::Txn;
use quorate::gate::status::{State, Status};
use quorate::proto::KubernetesReconcilerStatus;
use quorate::release::Version;

use super::history::History;
use super::{Cluster, Shipped, release, wait_unready};
use crate::support::client::commit;
use crate::support::hold::Hold;

#[tokio::test]
async fn a_status_that_is_deleted_emptied_or_garbled_is_planned_again() {
    let cluster = Cluster::start().await;
    for (name, mishap, value) in [
        ("deleted", "none", None),
        ("emptied", "malformed", Some(Vec::new())),
        ("garbled", "malformed", Some(vec![0xff; 9])),
    ] {
        let shop = cluster.deployment(name);
        let first = Shipped::of(name, "1.0.0", "1.0.0", "1.0.0");
        let key = shop.store().keys.status();
        // Everything is in place, and the leader has yet to see that: until then it writes no status.
        let done = Status::new(State::Done, Version::from(release("1.0.0")), release("1.0.0"));
        let done = Txn::new().put(&key, done.encode());
        commit(&cluster.client, done).await.unwrap();
        let hold = Hold::at("gate.reconciled");
        let mut leader = hold.on(shop.launch().bundle(first.bundle())).start("a");
        hold.reached().await;
        let mut standby = shop.start("b", &first);
        for replica in [&mut leader, &mut standby] {
            replica.wait_ready().await;
        }
        let txn = match value {
            None => Txn::new().delete(&key),
            Some(value) => Txn::new().put(&key, value),
        };
        commit(&cluster.client, txn).await.unwrap();
        for replica in [&leader, &standby] {
            wait_unready(replica, "status").await;
        }
        assert_eq!(shop.status_line().await, "none");
        let shown = shop.shown().await;
        match mishap {
            "none" => assert!(shown.contains("none yet"), "{shown}"),
            _ => assert!(shown.contains("malformed"), "{shown}"),
        }
        hold.release();
        shop.wait_done(&first).await;
        for replica in [&mut leader, &mut standby] {
            replica.wait_ready().await;
        }
        let history = History::of(&cluster).await.statuses(&shop);
        assert_eq!(
            history[history.len() - 2..],
            [mishap.to_owned(), first.done()],
            "{history:#?}"
        );
        assert!(leader.leads().await, "all of it in one term");
    }
}

#[tokio::test]
async fn a_status_that_is_changed_again_and_again_is_planned_after_growing_delays() {
    let cluster = Cluster::start().await;
    let shop = cluster.deployment("shop");
    let first = Shipped::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let mut leader = shop.start("a", &first);
    leader.wait_leading().await;
    shop.wait_done(&first).await;
    let key = shop.store().keys.status();

    // A status of a newer release, with a field that this one does not know: the field stays.
    let newer = Status::new(State::Working, Version::from(release("1.0.0")), release("1.0.0"));
    let mut value = newer.encode();
    // Field 16, a string.
    value.extend([0x82, 0x01, 0x03, b'n', b'e', b'w']);
    KubernetesReconcilerStatus::decode(&*value).unwrap();
    commit(&cluster.client, Txn::new().put(&key, value.clone()))
        .await
        .unwrap();
    shop.wait_done(&first).await;
    let (stored, _) = cluster.client.get(&key).await.unwrap();
    assert!(stored.unwrap().value.ends_with(&value[value.len() - 6..]));

    // Repeated changes are planned after growing delays (INV-9): 0.1, 0.2, 0.4 and 0.8 s, less the jitter. The first
    // delay applies again after a status stood unchanged for a second.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let begun = Instant::now();
    for _ in 0..5 {
        commit(&cluster.client, Txn::new().put(&key, b"?".to_vec()))
            .await
            .unwrap();
        shop.wait_done(&first).await;
    }
    assert!(
        begun.elapsed() > Duration::from_millis(900),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn a_leader_whose_pass_hangs_stops_in_time_and_its_successor_completes_the_work() {
    let cluster = Cluster::start().await;
    let shop = cluster.deployment("shop");
    let first = Shipped::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let key = shop.store().keys.status();
    // A later pass of a leader may send nothing: the first one of a leader that had a predecessor does.
    let done = Status::new(State::Done, Version::from(release("1.0.0")), release("1.0.0"));
    let done = Txn::new().put(&key, done.encode());
    commit(&cluster.client, done).await.unwrap();
    cluster.pause_kubernetes();
    let mut leader = shop.start("a", &first);
    leader.wait_leading().await;
    commit(&cluster.client, Txn::new().delete(&key)).await.unwrap();
    wait_unready(&leader, "there is no reconciler status yet").await;
    let mut standby = shop.start("b", &first);
    // The pass begins 200 ms after the term.
    tokio::time::sleep(Duration::from_millis(400)).await;
    let asked = Instant::now();
    let ended = leader.stop().await.unwrap().unwrap();
    assert!(ended.success(), "{ended}: {}", leader.log());
    // Two seconds on an idle machine; the limit of the request that hangs is longer than this.
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    standby.wait_leading().await;
    cluster.resume_kubernetes();
    shop.wait_done(&first).await;
    standby.wait_ready().await;
}

/// A status that someone else writes between two accesses of the leader is never overwritten: the transaction compares the
/// revision of the status, and the leader plans again.
#[tokio::test]
async fn a_status_that_changes_before_the_leaders_write_is_not_overwritten() {
    // A field of another release: it survives every rewrite by a leader that read it.
    const MARK: [u8; 6] = [0x82, 0x01, 0x03, b'n', b'e', b'w'];
    let cluster = Cluster::start().await;
    for (name, point, to) in [
        ("working", "gate.planned", ("1.1.0", "1.0.0")),
        ("restricting", "gate.restricting", ("2.0.0", "1.1.0")),
        ("done", "gate.reconciled", ("1.1.0", "1.0.0")),
    ] {
        let deployment = cluster.deployment(name);
        let key = deployment.store().keys.status();
        let before = Status::new(State::Done, Version::from(release("1.0.0")), release("1.0.0"));
        let put = async |value: Vec<u8>| {
            let txn = Txn::new().put(&key, value);
            commit(&cluster.client, txn).await.unwrap();
        };
        put(before.encode()).await;

        let held = Hold::at(point);
        let to = Shipped::of(name, to.0, "1.0.0", to.1);
        let leader = held.on(deployment.launch().bundle(to.bundle())).start("a");
        held.reached().await;
        let found = deployment.status().await.unwrap();
        put([found.encode().as_slice(), &MARK].concat()).await;
        held.release();
        deployment.wait_done(&to).await;
        let (stored, _) = cluster.client.get(&key).await.unwrap();
        assert!(
            stored.unwrap().value.ends_with(&MARK),
            "{name}: it was overwritten"
        );
        assert!(leader.leads().await, "{name}: planned again in the same term");
    }
}
