//! Passes over a bundle: objects are created, left alone, mended and recreated.

use std::time::{Duration, Instant};

use quorate::resources::{Bundle, Outcome, Report};
use serde_json::json;

use super::faults::{Fault, FaultProxy};
use super::site::{BALLS, Site, bundle, config_map, config_map_path, ended, expect_success};
use crate::support::wait::SOON;

const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/quorate:network-services";

#[tokio::test]
async fn the_built_in_bundle_is_put_in_place_and_then_listed_once_and_costs_nothing() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let builtin = Bundle::builtin();
    let objects = builtin.manifests.len();
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), builtin).await;

    let first = reconciler.pass(site.fence()).await;
    expect_success(&first);
    assert_eq!(first.count("created"), objects, "{}", first.summary());
    assert_eq!(site.inventory().len(), objects);
    let role = site.get(ROLE).await.unwrap();
    assert_eq!(role["metadata"]["labels"]["quorate.dev/bundle"], "builtin");
    assert_eq!(role["metadata"]["managedFields"][0]["manager"], "quorate");
    assert_eq!(role["metadata"]["managedFields"][0]["operation"], "Apply");
    proxy.take_noted();

    let etcd_before = site.kubernetes.etcd.revision();
    let second = reconciler.pass(site.fence()).await;
    expect_success(&second);
    assert_eq!(second.count("unchanged"), objects);
    let requests: Vec<String> = proxy
        .take_noted()
        .iter()
        .map(|noted| format!("{} {}", noted.method, noted.uri))
        .collect();
    assert_eq!(
        requests.len(),
        5,
        "one list for each of five kinds: {requests:#?}"
    );
    assert!(
        requests
            .iter()
            .all(|request| request.starts_with("GET ") && request.contains("labelSelector="))
    );
    assert_eq!(
        site.kubernetes.etcd.revision(),
        etcd_before,
        "neither Kubernetes nor the inventory is written"
    );

    expect_success(&reconciler.pass(site.fence()).await);
    let requests = proxy.take_noted();
    assert!(requests.is_empty(), "{requests:#?}");

    // A new term has no memory. It finds each object as its predecessor left it.
    let third = site.pass(Bundle::builtin()).await;
    expect_success(&third);
    assert_eq!(third.count("unchanged"), objects, "{}", third.summary());
}

#[tokio::test]
async fn drift_is_noticed_by_a_watch_and_mended_by_the_next_pass() {
    let site = Site::start().await;
    let mut reconciler = site.reconciler(Bundle::builtin()).await;
    expect_success(&reconciler.pass(site.fence()).await);

    site.patch(ROLE, json!({"rules": []})).await;
    tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    let mended = reconciler.pass(site.fence()).await;
    assert_eq!(
        ended(&mended, "applied"),
        ["ClusterRole quorate:network-services"]
    );
    assert_eq!(
        site.get(ROLE).await.unwrap()["rules"][0]["resources"][0],
        "endpoints"
    );

    site.delete(ROLE).await;
    tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    let mended = reconciler.pass(site.fence()).await;
    assert_eq!(
        ended(&mended, "created"),
        ["ClusterRole quorate:network-services"]
    );

    // Its own writes do not wake it.
    let quiet = tokio::time::timeout(Duration::from_millis(500), reconciler.changed()).await;
    assert!(quiet.is_err(), "no other client changed anything");
}

#[tokio::test]
async fn a_definition_and_its_objects_are_one_bundle_and_one_pass() {
    let site = Site::start().await;
    // The object comes before its definition: the order in the files does not matter.
    let objects = "
apiVersion: toys.example.com/v1
kind: Ball
metadata: {name: red, namespace: games}
spec: {radius: 3}
---
apiVersion: v1
kind: Namespace
metadata: {name: games}
---";
    let manifests = objects.to_owned() + &BALLS.replace("scope: Cluster", "scope: Namespaced");
    let mut reconciler = site.reconciler(bundle(&manifests)).await;
    let report = reconciler.pass(site.fence()).await;
    expect_success(&report);
    assert_eq!(report.count("created"), 3, "{}", report.summary());
    let path = "/apis/toys.example.com/v1/namespaces/games/balls/red";
    assert_eq!(site.get(path).await.unwrap()["spec"]["radius"], 3);

    site.patch(path, json!({"spec": {"radius": 4}})).await;
    let mends = |report: &Report| ended(report, "applied") == ["Ball.toys.example.com games/red"];
    site.reconcile_until(&mut reconciler, mends).await;

    // A new term without memory changes nothing.
    let report = site.pass(bundle(&manifests)).await;
    expect_success(&report);
    assert_eq!(report.count("unchanged"), 3, "{}", report.summary());

    // Another version of the kind, and an object that needs it.
    let second = manifests
        .replace(
            "toys.example.com/v1\nkind: Ball",
            "toys.example.com/v2\nkind: Ball",
        )
        .replace("  versions:\n", SECOND_VERSION);
    let report = site.pass(bundle(&second)).await;
    expect_success(&report);

    // A bundle without any of them prunes only the object: the other kinds are protected.
    let report = site.pass(bundle(&config_map("a", "b"))).await;
    expect_success(&report);
    assert_eq!(ended(&report, "pruned"), ["Ball.toys.example.com games/red"]);
    assert_eq!(
        ended(&report, "kept"),
        [
            "Namespace games",
            "CustomResourceDefinition balls.toys.example.com"
        ]
    );
}

const SECOND_VERSION: &str = "  versions:
    - name: v2
      served: true
      storage: false
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {radius: {type: integer}}}
";

#[tokio::test]
async fn an_object_of_a_kind_that_is_not_served_fails_alone() {
    let site = Site::start().await;
    let manifests = format!(
        "apiVersion: v1\nkind: Ghost\nmetadata: {{name: a, namespace: default}}\n{}",
        config_map("a", "b")
    );
    let report = site.pass(bundle(&manifests)).await;
    assert_eq!(ended(&report, "created"), ["ConfigMap default/a"]);
    assert_eq!(
        report.summary(),
        "1 of 2 objects not in place: Ghost default/a: no matches for kind \"Ghost\" in version \"v1\""
    );
}

#[tokio::test]
async fn one_rejected_manifest_stops_no_other() {
    let site = Site::start().await;
    let mut manifests: String = (0..20).map(|n| config_map(&format!("map-{n}"), "v")).collect();
    manifests.push_str(&config_map("NotAName", "v"));
    let mut reconciler = site.reconciler(bundle(&manifests)).await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.count("created"), 20, "{}", report.summary());
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/NotAName"]);
    assert!(
        report
            .summary()
            .contains("ConfigMap default/NotAName: failed to apply: rejected (HTTP 422)"),
        "{}",
        report.summary()
    );
    assert_eq!(report.reason(), "ResourcesFailed");

    // The failed object wakes the reconciler when its wait ends; the others are left alone.
    tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    let report = reconciler.pass(site.fence()).await;
    assert_eq!((report.count("unchanged"), report.count("failed")), (20, 1));
}

const BOUND: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bound}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: viewers}]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: csi.example.com
parameters: {tier: silver}
";

const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/bound";
const CLASS: &str = "/apis/storage.k8s.io/v1/storageclasses/fast";

#[tokio::test]
async fn an_object_with_immutable_fields_is_deleted_with_preconditions_and_recreated() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(BOUND)).await);
    let (binding, class) = (site.uid(BINDING).await, site.uid(CLASS).await);

    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let changed = BOUND
        .replace("name: view", "name: edit")
        .replace("silver", "gold");
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&changed)).await;
    let report = reconciler.pass(site.fence()).await;
    expect_success(&report);
    assert_eq!(
        ended(&report, "recreated"),
        ["ClusterRoleBinding bound", "StorageClass fast"],
        "{}",
        report.summary()
    );
    assert_eq!(site.get(BINDING).await.unwrap()["roleRef"]["name"], "edit");
    assert_eq!(site.get(CLASS).await.unwrap()["parameters"]["tier"], "gold");
    assert_ne!(site.uid(BINDING).await, binding);
    let deletions: Vec<_> = proxy
        .take_noted()
        .into_iter()
        .filter(|noted| noted.method == "DELETE")
        .collect();
    assert_eq!(deletions.len(), 2);
    for deletion in deletions {
        let options: serde_json::Value = serde_json::from_str(&deletion.body).unwrap();
        let expected = if deletion.uri.contains("storageclasses") {
            &class
        } else {
            &binding
        };
        assert_eq!(options["preconditions"]["uid"], expected.as_str());
        assert!(
            options["preconditions"]["resourceVersion"].is_string(),
            "{options}"
        );
    }
    let recorded = site
        .kubernetes
        .etcd
        .get("/q/kubernetes/reconciler/inventory/storage.k8s.io/StorageClass/_/fast");
    assert!(
        recorded.unwrap().contains(&site.uid(CLASS).await),
        "the inventory has the new uid"
    );
}

#[tokio::test]
async fn an_object_that_must_not_be_recreated_fails_and_the_message_says_how_to_allow_it() {
    let site = Site::start().await;
    let stays = BOUND.replace(
        "{name: fast}",
        "{name: fast, annotations: {quorate.dev/recreate: 'false'}}",
    );
    expect_success(&site.pass(bundle(&stays)).await);
    let class = site.uid(CLASS).await;
    let report = site.pass(bundle(&stays.replace("silver", "gold"))).await;
    assert_eq!(ended(&report, "failed"), ["StorageClass fast"]);
    assert!(
        report
            .summary()
            .contains("annotate the manifest with quorate.dev/recreate: \"true\""),
        "{}",
        report.summary()
    );
    assert_eq!(site.uid(CLASS).await, class);
}

#[tokio::test]
async fn an_object_that_changes_just_before_its_deletion_is_read_again_first() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(BOUND)).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    // Another client changes the object just before the deletion: it no longer has the version that was observed.
    let touch = Fault::After(
        "PATCH",
        CLASS.to_owned(),
        "application/merge-patch+json",
        json!({"metadata": {"labels": {"touched": "yes"}}}).to_string(),
    );
    proxy.fail("DELETE", "storageclasses/fast", 1, touch);
    let changed = BOUND.replace("silver", "gold");
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&changed)).await;
    let report = reconciler.pass(site.fence()).await;
    expect_success(&report);
    let deletions = proxy
        .take_noted()
        .into_iter()
        .filter(|noted| noted.method == "DELETE")
        .count();
    assert_eq!(deletions, 2, "refused once, then sent with the new version");
    assert_eq!(site.get(CLASS).await.unwrap()["parameters"]["tier"], "gold");
}

/// INV-9: the annotation of the manifest lets each attempt take the object over.
#[tokio::test]
async fn a_client_that_keeps_taking_an_adopted_object_away_is_named_and_mends_back_off() {
    let site = Site::start().await;
    let path = config_map_path("contested");
    let adopting = config_map("contested", "ours").replace(
        "namespace: default",
        "namespace: default, annotations: {quorate.dev/adopt: 'true'}",
    );
    let mut reconciler = site.reconciler(bundle(&adopting)).await;
    expect_success(&reconciler.pass(site.fence()).await);
    for rounds in 0.. {
        assert!(rounds < 100, "the contention is never noticed");
        let theirs = json!({"metadata": {"labels": {"quorate.dev/bundle": null}}, "data": {"key": "theirs"}});
        site.patch(&format!("{path}?fieldManager=other"), theirs).await;
        let _ = tokio::time::timeout(Duration::from_millis(200), reconciler.changed()).await;
        let report = reconciler.pass(site.fence()).await;
        if report.count("fighting") == 1 {
            assert!(!report.is_success());
            return;
        }
    }
}

#[tokio::test]
async fn a_field_manager_that_keeps_changing_an_object_is_named_and_mends_back_off() {
    let site = Site::start().await;
    let path = config_map_path("contested");
    let mut reconciler = site.reconciler(bundle(&config_map("contested", "ours"))).await;
    expect_success(&reconciler.pass(site.fence()).await);
    let (mut mends, mut rounds) = (0, 0);
    let mut mended = Instant::now();
    let contended = loop {
        site.patch(
            &format!("{path}?fieldManager=other"),
            json!({"data": {"key": "theirs"}}),
        )
        .await;
        // The change wakes the reconciler, unless the object waits already.
        let _ = tokio::time::timeout(Duration::from_millis(200), reconciler.changed()).await;
        let before = Instant::now();
        let report = reconciler.pass(site.fence()).await;
        if report.count("fighting") == 1 {
            break report;
        }
        if report.count("applied") == 1 {
            mended = before;
        }
        mends += report.count("applied");
        rounds += 1;
        assert!(rounds < 100, "the contention is never noticed");
    };
    assert!(
        mends >= 3,
        "occasional drift is mended at once, but only {mends} mends were"
    );
    assert!(!contended.is_success());
    assert_eq!(
        contended.summary(),
        "1 of 1 objects not in place: ConfigMap default/contested: field manager \"other\" keeps changing it; backing off"
    );
    assert_eq!(
        site.get(&path).await.unwrap()["data"]["key"],
        "theirs",
        "the reconciler backs off"
    );
    // A change during the wait does not wake the reconciler; the end of the wait does, three quarters of a second after the last
    // mend or more.
    site.patch(
        &format!("{path}?fieldManager=other"),
        json!({"data": {"more": "theirs"}}),
    )
    .await;
    tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    let waited = mended.elapsed();
    assert!(waited > Duration::from_millis(700), "{waited:?}");
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(
        report.objects().values().next(),
        Some(&Outcome::Applied),
        "{}",
        report.summary()
    );
}
