//! An API server that is down, and a replica that dies during a pass.

use serde_json::Value;

use super::history::History;
use super::{Cluster, Shipped};
use crate::support::quorate::status_json;
use crate::support::wait::{SOON, eventually, same};

#[tokio::test]
async fn an_api_server_that_is_down_delays_the_first_status_and_degrades_a_later_one() {
    let mut cluster = Cluster::start().await;
    cluster.kubernetes.kill().await.unwrap();
    let first = Shipped::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let mut replica = cluster.deployment("shop").start("a", &first);
    replica.wait_leading().await;
    wait_degraded(&cluster).await;
    let json = status_json(cluster.etcd(), "/shop").unwrap();
    assert_eq!(
        (&json["state"], &json["leader"]),
        (&Value::Null, &Value::from("a"))
    );
    assert_eq!(cluster.deployment("shop").status_line().await, "none");
    assert_eq!(replica.status_of("/readyz").await, Some(503));
    assert_eq!(replica.status_of("/livez").await, Some(200));

    cluster.kubernetes.launch().await.unwrap();
    cluster.deployment("shop").wait_done(&first).await;
    replica.wait_ready().await;
    wait_clear(&cluster).await;

    cluster.kubernetes.kill().await.unwrap();
    wait_degraded(&cluster).await;
    let shown = cluster
        .deployment("shop")
        .wait_shown("ApiServerUnavailable since")
        .await;
    assert!(shown.contains("DONE"), "{shown}");
    assert_eq!(
        replica.status_of("/readyz").await,
        Some(200),
        "the objects are still in place"
    );
    assert!(replica.leads().await);
    let since = status_json(cluster.etcd(), "/shop").unwrap()["degraded"]["since"].clone();
    let errors = replica.metric("quorate_reconcile_errors_total").await;
    eventually(SOON, "further passes fail", async || {
        let now = replica.metric("quorate_reconcile_errors_total").await;
        if now > errors + 1.0 { Ok(()) } else { Err(now) }
    })
    .await;
    let still = status_json(cluster.etcd(), "/shop").unwrap()["degraded"]["since"].clone();
    assert_eq!(since, still, "since the first failure");
    cluster.kubernetes.launch().await.unwrap();
    wait_clear(&cluster).await;
    let shop = cluster.deployment("shop");
    let statuses = History::of(&cluster).await.statuses(&shop);
    assert_eq!(statuses, [first.done()], "a failure does not change the status");
}

async fn wait_degraded(cluster: &Cluster) {
    eventually(SOON, "degraded names the API server", async || {
        let json = status_json(cluster.etcd(), "/shop").unwrap_or_default();
        same(
            json["degraded"]["reason"].clone(),
            Value::from("ApiServerUnavailable"),
        )
    })
    .await;
}

async fn wait_clear(cluster: &Cluster) {
    eventually(SOON, "degraded is cleared", async || {
        let json = status_json(cluster.etcd(), "/shop").unwrap();
        same(json["degraded"].clone(), Value::Null)
    })
    .await;
}

#[tokio::test]
async fn a_leader_killed_during_its_first_pass_leaves_no_status() {
    const MANY: usize = 300;
    let cluster = Cluster::start().await;
    let shop = cluster.deployment("shop");
    let many: Vec<String> = (0..MANY)
        .map(|number| {
            format!(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: shop-{number}, namespace: default}}\n\
                 data: {{release: 1.0.0}}\n"
            )
        })
        .collect();
    let first = Shipped::of("shop", "1.0.0", "1.0.0", "1.0.0").with_file("many.yaml", &many.join("---\n"));
    let total = MANY + 3;
    let in_place = || cluster.etcd().keys("/kubernetes/configmaps/default/shop-").len();

    let mut killed = shop
        .launch_with_short_leases()
        .bundle(first.bundle())
        .flag("--kube-in-flight=1")
        .start("killed");
    eventually(SOON, "the pass is under way", async || {
        let seen = in_place();
        if seen >= 5 { Ok(()) } else { Err(seen) }
    })
    .await;
    killed.kill().await.unwrap();
    let left = in_place();
    assert!(left < total, "killed too late");
    assert_eq!(shop.status_line().await, "none", "with {left} of {total} objects");

    let mut next = shop.start("next", &first);
    next.wait_ready().await;
    assert_eq!(shop.status_line().await, first.done());
    assert_eq!(in_place(), total);
    let shown = shop.shown().await;
    assert!(shown.contains(&format!("{total}/{total} applied")), "{shown}");
}
