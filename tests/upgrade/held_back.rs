//! What the leader holds back while it restricts the status.

use std::time::Duration;

use super::{Cluster, Shipped, apply};
use crate::support::hold::Hold;
use crate::support::wait::{SOON, eventually, same};

/// Each write below `/nodes/` has the restriction refused.
#[tokio::test]
async fn while_a_restriction_is_attempted_the_leader_changes_no_role() {
    let cluster = Cluster::start().await;
    let shop = cluster.deployment("shop");
    let first = Shipped::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let second = Shipped::of("shop", "2.0.0", "1.0.0", "1.1.0");
    let mut old = shop.start("old", &first);
    old.wait_ready().await;
    shop.wait_done(&first).await;
    old.stop().await.unwrap();

    let attempt = Hold::at("gate.restricting");
    let _new = attempt.on(shop.launch().bundle(second.bundle())).start("new");
    attempt.reached().await;
    let node = "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {name: n}\nspec: {desiredRole: manager}\n";
    apply(&shop, node, &[]).await;
    let key = shop.store().keys.node(&"n".parse().unwrap());
    let written = async || {
        let (node, _) = cluster.client.get(&key).await.unwrap();
        node.unwrap().mod_revision
    };
    let applied = written().await;
    // The measured time, in which the role would be changed.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(written().await, applied);
    attempt.release();
    shop.wait_done(&second).await;
    eventually(SOON, "the role changes", async || {
        same(written().await > applied, true)
    })
    .await;
}
