//! A restriction that waits: for which nodes, where that is shown, and that nothing is written before.

use prost::Message as _;
use quorate::etcd::Txn;
use quorate::proto::Registration;
use quorate::release::Version;
use serde_json::Value;

use super::history::History;
use super::witness::Witness;
use super::{Cluster, Deployment, Shipped, apply, wait_unready};
use crate::support::client::{commit, put};
use crate::support::hold::Hold;
use crate::support::quorate::{TestReplica, status_json};
use crate::support::wait::{SOON, eventually, same};

/// The document of a node that is a controller of this release.
fn node(release: &str) -> String {
    format!(
        "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{name: c2}}\n\
         status: {{controller: true, release: {release}}}\n"
    )
}

/// Waits until the leader shows everywhere which nodes it waits for.
async fn wait_blocked(deployment: &Deployment<'_>, leader: &TestReplica, by: &str) {
    let message = format!("waiting for {by}");
    // What it waited for before may begin with the same words.
    eventually(SOON, &message, async || {
        let json = status_json(deployment.cluster.etcd(), &deployment.prefix()).unwrap_or_default();
        same(json["degraded"]["message"].clone(), message.as_str().into())
    })
    .await;
    let shown = deployment.wait_shown(&message).await;
    assert!(shown.contains("WaitingForNodes"), "{shown}");
    let json = status_json(deployment.cluster.etcd(), &deployment.prefix()).unwrap();
    assert_eq!(json["degraded"]["message"], message, "{json}");
    assert_eq!(json["degraded"]["reason"], "WaitingForNodes", "{json}");
    assert_eq!(leader.metric("quorate_gate_blocked").await, 1.0);
    eventually(SOON, "an Event", async || {
        let events = "/apis/events.k8s.io/v1/namespaces/kube-system/events";
        let events = deployment.cluster.kubernetes.get(events).await.unwrap();
        let found = events["items"].as_array().unwrap().iter().any(|event| {
            event["reason"] == "GateBlocked" && event["note"] == message && event["type"] == "Warning"
        });
        if found { Ok(()) } else { Err(events.to_string()) }
    })
    .await;
}

/// Registers another process at this release, without a lease.
async fn register(deployment: &Deployment<'_>, node: &str, release: &str) {
    let record = Registration {
        version: Some(Version::from(super::release(release)).to_proto()),
        process: "another".to_owned(),
        registered_at: None,
        page: String::new(),
    };
    let key = deployment.store().keys.registration(&node.parse().unwrap());
    let txn = Txn::new().put(&key, record.encode_to_vec());
    commit(&deployment.cluster.client, txn).await.unwrap();
}

#[tokio::test]
async fn an_incompatible_node_delays_a_restriction_until_it_is_upgraded_or_gone() {
    let cluster = Cluster::start().await;
    let shop = cluster.deployment("shop");
    let first = Shipped::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let second = Shipped::of("shop", "2.0.0", "1.0.0", "1.1.0");
    let mut witness = Witness::of(&shop);
    let mut old = shop.start("old", &first);
    witness.watch(&old, &first);
    old.wait_ready().await;
    shop.wait_done(&first).await;
    apply(
        &shop,
        "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {name: c2}\nspec: {desiredRole: worker}\n",
        &[],
    )
    .await;
    apply(&shop, &node("0.9.0"), &["--subresource=status"]).await;

    // Paused after it read that no node is in the way, before it writes.
    let before_write = Hold::at("gate.restricting");
    let mut new = before_write
        .on(shop.launch().bundle(second.bundle()))
        .start("new");
    witness.watch(&new, &second);
    new.wait_leading().await;

    // Both the new and the old replica serve: nothing is restricted, nothing written.
    wait_blocked(
        &shop,
        &new,
        "node c2 at 0.9.0, needs 1.1.0; node old at 1.0.0, needs 1.1.0",
    )
    .await;
    new.wait_ready().await;
    assert_eq!(old.status_of("/readyz").await, Some(200));
    assert!(!old.leads().await);
    old.stop().await.unwrap();
    wait_blocked(&shop, &new, "node c2 at 0.9.0, needs 1.1.0").await;
    // A record that cannot be parsed may be a controller of any release.
    put(&cluster.client, "/shop/nodes/garbled", vec![0xff, 0xff, 0xff]).await;
    wait_blocked(
        &shop,
        &new,
        "node c2 at 0.9.0, needs 1.1.0; node garbled, whose record cannot be parsed",
    )
    .await;
    apply(&shop, &node("1.1.0"), &["--subresource=status"]).await;
    wait_blocked(&shop, &new, "node garbled, whose record cannot be parsed").await;
    assert_eq!(shop.status_line().await, first.done());

    // A node that comes after the releases were read: the transaction is refused.
    cluster.etcd().etcdctl(&["del", "/shop/nodes/garbled"]);
    before_write.reached().await;
    register(&shop, "late-1", "1.0.0").await;
    before_write.release();
    new.wait_for_log("restricting the reconciler status was refused")
        .await;
    wait_blocked(&shop, &new, "node late-1 at 1.0.0, needs 1.1.0").await;
    assert_eq!(shop.status_line().await, first.done());

    // The other order: restricted first. A replica that comes then never serves, however long reconciling takes.
    cluster.pause_kubernetes();
    cluster.etcd().etcdctl(&["del", "/shop/nodes/late-1/release"]);
    eventually(SOON, "the status is restricted", async || {
        same(
            shop.status_line().await,
            "WORKING by 1.0.0, minimum compatible release 1.1.0".to_owned(),
        )
    })
    .await;
    let mut late = shop.start("late-2", &first);
    witness.watch(&late, &first);
    let excluded = "release 1.0.0 is below the minimum compatible release 1.1.0 of the reconciled state";
    wait_unready(&late, excluded).await;
    assert_eq!(new.metric("quorate_gate_blocked").await, 0.0);
    cluster.resume_kubernetes();
    shop.wait_done(&second).await;
    wait_unready(&late, excluded).await;
    let log = late.log();
    assert!(!log.contains("the reconciled state admits this replica"), "{log}");
    eventually(SOON, "degraded is cleared", async || {
        let json = status_json(cluster.etcd(), "/shop").unwrap();
        same(json["degraded"].clone(), Value::Null)
    })
    .await;

    assert!(witness.finish().await > 0);
    let history = History::of(&cluster).await;
    history.assert_no_release_was_admitted_that_the_state_excludes(&shop, &[&first, &second]);
    let restricted = "WORKING by 1.0.0, minimum compatible release 1.1.0";
    assert_eq!(
        history.statuses(&shop),
        [first.done(), restricted.to_owned(), second.done()]
    );
    let came = history.registered(&shop, "new");
    let (restricted, done) = (
        history.revision_of(&shop, restricted),
        history.revision_of(&shop, &second.done()),
    );
    assert_eq!(
        history.objects_written_between(came, restricted),
        [""; 0],
        "before restricting"
    );
    assert_eq!(
        history.objects_written_between(restricted, done).len(),
        5,
        "after it"
    );
}
