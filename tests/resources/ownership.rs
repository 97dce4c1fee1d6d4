//! Ownership: objects that are not ours, adoption, pruning.

use quorate::resources::{Bundle, Report};
use serde_json::{Value, json};

use super::faults::{Fault, FaultProxy};
use super::site::{Site, bundle, config_map, config_map_path, ended, expect_success};
use crate::support::traced::Traced;

fn foreign(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels},
        "data": {"key": "theirs"},
    })
}

async fn create(site: &Site, object: &Value) {
    site.kubernetes
        .send("POST", "/api/v1/namespaces/default/configmaps", object)
        .await;
}

async fn value(site: &Site, name: &str) -> Value {
    site.get(&config_map_path(name)).await.unwrap()["data"]["key"].clone()
}

fn expect_failure(report: &Report, text: &str) {
    assert!(report.summary().contains(text), "{}", report.summary());
}

#[tokio::test]
async fn an_object_that_is_not_ours_is_a_named_error_and_stays_unchanged() {
    let site = Site::start().await;
    create(&site, &foreign("plain", json!({}))).await;
    create(&site, &foreign("labelled", json!({"quorate.dev/bundle": "web"}))).await;
    let manifests =
        config_map("plain", "ours") + &config_map("labelled", "ours") + &config_map("free", "ours");
    let report = site.pass(bundle(&manifests)).await;
    assert_eq!(ended(&report, "created"), ["ConfigMap default/free"]);
    expect_failure(
        &report,
        "ConfigMap default/plain: already exists and is not managed by this bundle: no label quorate.dev/bundle",
    );
    expect_failure(
        &report,
        "ConfigMap default/labelled: already exists and is not managed by this bundle: it has the label quorate.dev/bundle, but field manager quorate owns none of its fields",
    );
    assert_eq!(value(&site, "plain").await, "theirs");
    assert_eq!(value(&site, "labelled").await, "theirs");
}

#[tokio::test]
async fn an_object_is_adopted_if_its_manifest_says_so() {
    let site = Site::start().await;
    create(&site, &foreign("plain", json!({}))).await;
    let uid = site.uid(&config_map_path("plain")).await;
    let adopting = config_map("plain", "ours").replace(
        "namespace: default}",
        "namespace: default, annotations: {quorate.dev/adopt: 'true'}}",
    );
    let traced = Traced::begin();
    let report = site.pass(bundle(&adopting)).await;
    expect_success(&report);
    assert_eq!(ended(&report, "applied"), ["ConfigMap default/plain"]);
    let log = traced.text();
    assert!(log.contains("took over ConfigMap default/plain"), "{log}");
    assert_eq!(value(&site, "plain").await, "ours");
    assert_eq!(site.uid(&config_map_path("plain")).await, uid);
}

#[tokio::test]
async fn an_object_that_appears_just_before_it_is_created_is_not_overwritten() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let appears = Fault::After(
        "POST",
        "/api/v1/namespaces/default/configmaps".to_owned(),
        "application/json",
        foreign("raced", json!({})).to_string(),
    );
    proxy.fail("PATCH", "configmaps/raced", 1, appears);
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&config_map("raced", "ours")))
        .await;
    let report = reconciler.pass(site.fence()).await;
    expect_failure(
        &report,
        "ConfigMap default/raced: already exists and is not managed by this bundle",
    );
    assert_eq!(value(&site, "raced").await, "theirs");
    assert_eq!(
        site.get(&config_map_path("raced")).await.unwrap()["metadata"]["labels"],
        Value::Null
    );
}

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: raced, namespace: default}
spec:
  clusterIP: None
  selector: {app: ours}
  ports: [{name: http, port: 80, protocol: TCP}]
";

/// Kubernetes 1.20 creates no Service from a manifest with a resource version, so a creation that must not overwrite takes
/// more than one request.
#[tokio::test]
async fn a_service_is_created_and_one_that_appears_meanwhile_stays_unchanged() {
    let site = Site::start().await;
    let report = site.pass(bundle(&SERVICE.replace("raced", "free"))).await;
    expect_success(&report);
    assert_eq!(ended(&report, "created"), ["Service default/free"]);

    // With the same selector no field conflicts and only the label would be new; with another one a field conflicts.
    for (name, selector) in [("same", "ours"), ("other", "theirs")] {
        let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
        let appears = Fault::After(
            "POST",
            "/api/v1/namespaces/default/services?fieldManager=someone".to_owned(),
            "application/json",
            json!({
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {"clusterIP": "None", "selector": {"app": selector}, "ports": [{"name": "http", "port": 80}]},
            })
            .to_string(),
        );
        // The first request finds no Service; one appears before the second.
        let apply = format!("services/{name}?fieldManager=quorate");
        proxy.fail("PATCH", &apply, 1, Fault::Nothing);
        proxy.fail("PATCH", &apply, 1, appears);
        let mut reconciler = site
            .reconciler_as(proxy.kubeconfig(), bundle(&SERVICE.replace("raced", name)))
            .await;
        let report = reconciler.pass(site.fence()).await;
        expect_failure(
            &report,
            &format!("Service default/{name}: already exists and is not managed by this bundle"),
        );
        let service = site
            .get(&format!("/api/v1/namespaces/default/services/{name}"))
            .await
            .unwrap();
        assert_eq!(service["spec"]["selector"]["app"], selector, "{service}");
        assert_eq!(service["metadata"]["labels"], Value::Null, "{service}");
        let managers = service["metadata"]["managedFields"].as_array().unwrap();
        assert!(
            managers.iter().all(|fields| fields["manager"] != "quorate"),
            "{service}"
        );
    }
}

#[tokio::test]
async fn an_object_that_is_replaced_just_before_it_is_applied_is_not_overwritten() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&config_map("raced", "v1"))).await);
    let path = config_map_path("raced");
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    // The proxy sends the deletion before the apply, and creates the new object before the read that follows.
    let gone = Fault::After("DELETE", path.clone(), "application/json", String::new());
    proxy.fail("PATCH", "configmaps/raced", 1, gone);
    let back = Fault::After(
        "POST",
        "/api/v1/namespaces/default/configmaps".to_owned(),
        "application/json",
        foreign("raced", json!({})).to_string(),
    );
    proxy.fail("GET", "configmaps/raced", 1, back);
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&config_map("raced", "v2")))
        .await;
    let report = reconciler.pass(site.fence()).await;
    expect_failure(
        &report,
        "ConfigMap default/raced: already exists and is not managed by this bundle",
    );
    assert_eq!(value(&site, "raced").await, "theirs");
}

#[tokio::test]
async fn pruning_follows_the_inventory_and_a_foreign_object_with_the_label_survives() {
    let site = Site::start().await;
    let both = config_map("stays", "v") + &config_map("goes", "v");
    expect_success(&site.pass(bundle(&both)).await);
    create(&site, &foreign("foreign", json!({"quorate.dev/bundle": "web"}))).await;
    assert_eq!(
        site.inventory(),
        ["core/ConfigMap/default/goes", "core/ConfigMap/default/stays"]
    );

    let report = site.pass(bundle(&config_map("stays", "v"))).await;
    expect_success(&report);
    assert_eq!(ended(&report, "pruned"), ["ConfigMap default/goes"]);
    assert!(site.get(&config_map_path("goes")).await.is_none());
    assert!(
        site.get(&config_map_path("foreign")).await.is_some(),
        "the label alone does not make it ours"
    );
    assert_eq!(site.inventory(), ["core/ConfigMap/default/stays"]);
}

#[tokio::test]
async fn an_object_that_is_no_longer_ours_survives_and_leaves_the_inventory() {
    let site = Site::start().await;
    let all = config_map("replaced", "v") + &config_map("unlabelled", "v") + &config_map("stays", "v");
    expect_success(&site.pass(bundle(&all)).await);
    site.delete(&config_map_path("replaced")).await;
    create(&site, &foreign("replaced", json!({"quorate.dev/bundle": "web"}))).await;
    let unlabel = json!({"metadata": {"labels": {"quorate.dev/bundle": null}}});
    site.patch(&config_map_path("unlabelled"), unlabel).await;

    expect_success(&site.pass(bundle(&config_map("stays", "v"))).await);
    assert_eq!(value(&site, "replaced").await, "theirs", "another uid");
    assert_eq!(value(&site, "unlabelled").await, "v", "its label was removed");
    assert_eq!(site.inventory(), ["core/ConfigMap/default/stays"]);
}

#[tokio::test]
async fn an_object_that_changes_just_before_it_is_pruned_is_planned_again() {
    let site = Site::start().await;
    let both = config_map("stays", "v") + &config_map("goes", "v");
    expect_success(&site.pass(bundle(&both)).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let unlabelled = Fault::After(
        "PATCH",
        config_map_path("goes"),
        "application/merge-patch+json",
        json!({"metadata": {"labels": {"quorate.dev/bundle": null}}}).to_string(),
    );
    proxy.fail("DELETE", "configmaps/goes", 1, unlabelled);
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&config_map("stays", "v")))
        .await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(value(&site, "goes").await, "v", "its label was removed in time");
    assert!(report.acts().is_empty(), "{:?}", report.acts());
}

#[tokio::test]
async fn a_namespace_is_pruned_only_with_the_annotation() {
    let site = Site::start().await;
    let manifests = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: team}}\n{}",
        config_map("a", "v")
    );
    expect_success(&site.pass(bundle(&manifests)).await);
    let report = site.pass(bundle(&config_map("a", "v"))).await;
    expect_success(&report);
    assert_eq!(ended(&report, "kept"), ["Namespace team"]);
    let annotated = manifests.replace(
        "{name: team}",
        "{name: team, annotations: {quorate.dev/prune: 'true'}}",
    );
    expect_success(&site.pass(bundle(&annotated)).await);
    let report = site.pass(bundle(&config_map("a", "v"))).await;
    // Without a controller manager its deletion stays pending.
    assert_eq!(
        ended(&report, "deleting"),
        ["Namespace team"],
        "{}",
        report.summary()
    );
    let remaining = site.get("/api/v1/namespaces/team").await.unwrap();
    assert!(remaining["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test]
async fn another_bundle_replaces_the_built_in_one_and_prunes_it() {
    let site = Site::start().await;
    expect_success(&site.pass(Bundle::builtin()).await);
    let objects = Bundle::builtin().manifests.len();
    let report = site.pass(bundle(&config_map("a", "v"))).await;
    assert_eq!(report.reason(), "PruneHeld", "{}", report.summary());
    assert_eq!(
        report.count("held"),
        objects,
        "a bundle that was mixed up prunes nothing"
    );
    let report = site.pass_allowing(bundle(&config_map("a", "v")), objects).await;
    expect_success(&report);
    assert_eq!(report.count("pruned"), objects);
    assert_eq!(site.inventory(), ["core/ConfigMap/default/a"]);
    assert!(
        site.get("/apis/storage.k8s.io/v1/storageclasses/quorate-local")
            .await
            .is_none()
    );
}
