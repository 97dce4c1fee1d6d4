//! The replica as a process against a real kube-apiserver.

use quorate::resources::Bundle;
use serde_json::json;

use super::site::{bundle_directory, config_map};
use crate::support::doomed::Doomed;
use crate::support::kubernetes::Kubernetes;
use crate::support::leader::store_on;
use crate::support::metrics;
use crate::support::quorate::{Launch, status_json};
use crate::support::wait::{SOON, eventually, same};

const PREFIX: &str = "/quorate";
const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/quorate:csi-provisioner";

/// Waits until the status is DONE, and degraded or not as asked.
async fn wait_done(kubernetes: &Kubernetes, degraded: bool) -> serde_json::Value {
    eventually(SOON, "the status is DONE", async || {
        let status = status_json(&kubernetes.etcd, PREFIX).unwrap_or_default();
        let done = status["state"] == "DONE" && status["degraded"].is_object() == degraded;
        if done { Ok(status) } else { Err(status.to_string()) }
    })
    .await
}

#[tokio::test]
async fn drift_is_mended_at_once() {
    let kubernetes = Kubernetes::start().await;
    // With this interval only a watch can start the next pass in time.
    let launch = Launch::on_kubernetes(&kubernetes).flag("--pass-interval-ms=600000");
    let mut replica = launch.start("a");
    replica.wait_leading().await;
    wait_done(&kubernetes, false).await;
    let in_place = Bundle::builtin().manifests.len();
    // The last pass created them, or found them in place.
    eventually(SOON, "all are in place", async || {
        let page = replica.get("/metrics").await.map_err(|error| error.to_string())?;
        let of = |word| metrics::value(&page.body, &format!("quorate_resources{{result=\"{word}\"}}"));
        let wanted = f64::from(u32::try_from(in_place).unwrap());
        same(of("created") + of("unchanged"), wanted)
    })
    .await;

    let before = kubernetes.get(ROLE).await.unwrap()["rules"].clone();
    kubernetes.send("PATCH", ROLE, &json!({"rules": []})).await;
    eventually(SOON, "the rules are back", async || {
        let rules = kubernetes.get(ROLE).await.unwrap()["rules"].clone();
        if rules == before {
            Ok(())
        } else {
            Err(rules.to_string())
        }
    })
    .await;
    kubernetes.send("DELETE", ROLE, &json!({})).await;
    eventually(SOON, "the role is back", async || {
        kubernetes.get(ROLE).await.map(drop).ok_or("gone")
    })
    .await;
}

#[tokio::test]
async fn a_replica_waits_for_an_api_server_that_is_down_at_its_start_and_later() {
    let mut kubernetes = Kubernetes::start().await;
    kubernetes.kill().await.unwrap();
    let launch = Launch::on_kubernetes(&kubernetes).flag("--pass-interval-ms=300");
    let mut replica = launch.start("a");
    replica.wait_for_log("the first reconciliation still fails").await;
    let log = replica.log();
    assert!(log.contains("is unreachable"), "{log}");
    assert!(
        !kubernetes
            .etcd
            .keys("/quorate/")
            .iter()
            .any(|key| key.ends_with("/status")),
        "there is no status before the first reconciliation"
    );

    kubernetes.launch().await.unwrap();
    wait_done(&kubernetes, false).await;
    replica.wait_ready().await;

    kubernetes.kill().await.unwrap();
    let degraded = wait_done(&kubernetes, true).await;
    assert_eq!(
        degraded["degraded"]["reason"], "ApiServerUnavailable",
        "{degraded}"
    );
    kubernetes.launch().await.unwrap();
    wait_done(&kubernetes, false).await;
}

const BOUND: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bound}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
";

const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/bound";

#[tokio::test]
async fn the_next_leader_creates_what_its_predecessor_deleted_before_it_died() {
    let kubernetes = Kubernetes::start().await;
    let before = bundle_directory("1.0.0", BOUND);
    let after = bundle_directory("1.1.0", &BOUND.replace("name: view", "name: edit"));
    let mut first = Launch::on_kubernetes(&kubernetes)
        .bundle(before.path())
        .start("a");
    first.wait_leading().await;
    wait_done(&kubernetes, false).await;
    first.stop().await.unwrap();

    let launch = Launch::on_kubernetes(&kubernetes)
        .bundle(after.path())
        .flag("--settle-ms=100");
    let store = store_on(&kubernetes.etcd.endpoints()).await;
    let mut dying = Doomed::start(&launch, "b", "resources.deleted", &store);
    dying.aborted().await;
    assert!(
        kubernetes.get(BINDING).await.is_none(),
        "deleted, and not yet created"
    );

    let mut next = launch.start("c");
    next.wait_leading().await;
    eventually(SOON, "the binding is back", async || {
        let binding = kubernetes.get(BINDING).await.ok_or("gone")?;
        if binding["roleRef"]["name"] == "edit" {
            Ok(())
        } else {
            Err("the old one")
        }
    })
    .await;
}

#[tokio::test]
async fn trouble_is_reported_in_the_status_in_events_and_in_the_log() {
    let kubernetes = Kubernetes::start().await;
    let path = "/api/v1/namespaces/default/configmaps/a";
    let directory = bundle_directory("1.0.0", &config_map("a", "v"));
    let mut replica = Launch::on_kubernetes(&kubernetes)
        .bundle(directory.path())
        .flag("--pass-interval-ms=500")
        .start("a");
    replica.wait_leading().await;
    wait_done(&kubernetes, false).await;

    let foreign = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"key": "theirs"}});
    kubernetes
        .send(
            "PATCH",
            path,
            &json!({"metadata": {"labels": {"quorate.dev/bundle": null}}}),
        )
        .await;
    let degraded = wait_done(&kubernetes, true).await;
    let message = degraded["degraded"]["message"].as_str().unwrap();
    assert!(
        message.contains("ConfigMap default/a: already exists and is not managed by this bundle"),
        "{message}"
    );
    replica
        .wait_for_log("already exists and is not managed by this bundle")
        .await;
    assert_eq!(replica.metric(r#"quorate_resources{result="failed"}"#).await, 1.0);
    let note = eventually(SOON, "an Event", async || {
        let events = kubernetes
            .get("/apis/events.k8s.io/v1/namespaces/kube-system/events")
            .await
            .unwrap();
        let mut ours = events["items"].as_array().unwrap().iter();
        let event = ours
            .find(|event| event["reportingController"] == "quorate.dev/controller")
            .cloned();
        event.ok_or_else(|| events.to_string())
    })
    .await;
    assert_eq!(note["reason"], "ResourcesFailed", "{note}");
    assert_eq!(note["type"], "Warning");
    assert_eq!(note["reportingInstance"], "a");
    assert!(
        note["note"].as_str().unwrap().contains("is not managed"),
        "{note}"
    );

    // Once the object is deleted, the controller creates its own.
    kubernetes.send("DELETE", path, &json!({})).await;
    wait_done(&kubernetes, false).await;
    assert_ne!(kubernetes.get(path).await.unwrap()["data"], foreign["data"]);
}

#[tokio::test]
async fn a_deletion_is_a_line_in_the_log_and_an_event() {
    let kubernetes = Kubernetes::start().await;
    let both = bundle_directory("1.0.0", &(config_map("stays", "v") + &config_map("goes", "v")));
    let one = bundle_directory("1.1.0", &config_map("stays", "v"));
    let mut first = Launch::on_kubernetes(&kubernetes).bundle(both.path()).start("a");
    first.wait_leading().await;
    wait_done(&kubernetes, false).await;
    first.stop().await.unwrap();

    let mut next = Launch::on_kubernetes(&kubernetes)
        .bundle(one.path())
        .flag("--settle-ms=100")
        .start("b");
    let said = "deleted ConfigMap default/goes (no longer in the bundle)";
    next.wait_for_log(said).await;
    eventually(SOON, "an Event", async || {
        let events = kubernetes
            .get("/apis/events.k8s.io/v1/namespaces/kube-system/events")
            .await
            .unwrap();
        let mut all = events["items"].as_array().unwrap().iter();
        let deletion =
            |event: &&serde_json::Value| event["reason"] == "ResourceDeleted" && event["note"] == said;
        all.find(deletion).map(drop).ok_or_else(|| events.to_string())
    })
    .await;
}
