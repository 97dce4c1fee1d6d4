//! The status in the hands of others while a leader holds the gate.

use prost::Message as _;
use quorate::etcd::Txn;
use quorate::gate::status::{State, Status};
use quorate::proto::KubernetesReconcilerStatus;
use quorate::release::Version;

use super::history::History;
use super::{Cluster, Shipped, release, wait_unready};
use crate::support::client::commit;
use crate::support::wait::{SOON, eventually, same};

#[tokio::test]
async fn a_status_that_is_deleted_emptied_or_garbled_is_planned_anew_and_done_again() {
    let cluster = Cluster::start().await;
    let shop = cluster.deployment("shop");
    let first = Shipped::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let mut leader = shop.start("a", &first);
    leader.wait_leading().await;
    let mut standby = shop.start("b", &first);
    let key = shop.store().keys.status();
    for (mishap, txn) in [
        ("none", Txn::new().delete(&key)),
        ("malformed", Txn::new().put(&key, Vec::new())),
        ("malformed", Txn::new().put(&key, vec![0xff; 9])),
    ] {
        for replica in [&mut leader, &mut standby] {
            replica.wait_ready().await;
        }
        shop.wait_done(&first).await;
        // So that the time in between can be looked at.
        cluster.pause_kubernetes();
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
        cluster.resume_kubernetes();
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
    }
    assert!(leader.leads().await, "all that in one term");

    // Of a newer release, with fields that this one does not know: they stay.
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

    // Someone who keeps at it meets a leader that keeps calm: each write of it costs one of the leader's at most.
    let before = History::of(&cluster).await.statuses(&shop).len();
    for _ in 0..50 {
        commit(&cluster.client, Txn::new().put(&key, b"?".to_vec()))
            .await
            .unwrap();
    }
    eventually(SOON, "the status is DONE", async || {
        same(shop.status_line().await, first.done())
    })
    .await;
    let after = History::of(&cluster).await.statuses(&shop).len();
    assert!(after - before <= 100, "{} writes", after - before);
}
