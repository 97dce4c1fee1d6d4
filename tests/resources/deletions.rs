//! The deletion policy against a real kube-apiserver: what is never deleted, and what waits (INV-12).

use std::time::Duration;

use quorate::resources::{Reconciler, Report};
use serde_json::{Value, json};

use super::faults::{Fault, FaultProxy};
use super::site::{BALLS, Site, bundle, config_map, config_map_path, ended, expect_success};
use crate::support::wait::{SOON, eventually, same};

const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/bound";

fn binding(role: &str, annotations: &str) -> String {
    format!(
        "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\n\
         metadata: {{name: bound, annotations: {{{annotations}}}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {role}}}\n"
    )
}

/// A site where `before` is in place, and a reconciler of `after` behind a proxy.
pub async fn upgrading(before: &str, after: &str) -> (Site, FaultProxy, Reconciler) {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(before)).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(after)).await;
    (site, proxy, reconciler)
}

fn deletions(proxy: &FaultProxy) -> usize {
    let noted = proxy.noted();
    noted.iter().filter(|noted| noted.method == "DELETE").count()
}

#[tokio::test]
async fn a_workload_with_an_immutable_field_is_not_deleted_unless_its_manifest_says_so() {
    let set = |service: &str, annotations: &str| {
        format!(
            "{{apiVersion: apps/v1, kind: StatefulSet, metadata: {{name: a, namespace: default, \
             annotations: {{{annotations}}}}}, spec: {{serviceName: {service}, selector: {{matchLabels: {{app: a}}}}, \
             template: {{metadata: {{labels: {{app: a}}}}, spec: {{containers: [{{name: main, image: a}}]}}}}}}}}\n"
        )
    };
    let site = Site::start().await;
    let path = "/apis/apps/v1/namespaces/default/statefulsets/a";
    expect_success(&site.pass(bundle(&set("old", ""))).await);
    let uid = site.uid(path).await;
    let report = site.pass(bundle(&set("new", ""))).await;
    assert_eq!(site.uid(path).await, uid, "deleted: {}", report.summary());
    assert_eq!(ended(&report, "failed"), ["StatefulSet default/a"]);
    assert!(
        report.summary().contains("quorate.dev/recreate: \"true\""),
        "{}",
        report.summary()
    );

    let report = site
        .pass(bundle(&set("new", "quorate.dev/recreate: 'true'")))
        .await;
    expect_success(&report);
    assert_eq!(ended(&report, "recreated"), ["StatefulSet default/a"]);
    assert_ne!(site.uid(path).await, uid);
}

/// A refusal as a definition's rule or an operator's webhook words it.
fn immutable() -> Fault {
    let message = "Invalid value: \"string\": field is immutable";
    Fault::Refuse(
        422,
        json!({"message": "refused", "details": {"causes": [{"field": "spec.x", "message": message}]}}),
    )
}

#[tokio::test]
async fn a_custom_resource_is_not_deleted_because_its_webhook_calls_a_field_immutable() {
    let site = Site::start().await;
    let ball = |size: u32| {
        format!(
            "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {{name: red}}\nspec: {{size: {size}}}\n"
        )
    };
    expect_success(&site.pass(bundle(&(BALLS.to_owned() + &ball(1)))).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("PATCH", "balls/red", 100, immutable());
    let changed = bundle(&(BALLS.to_owned() + &ball(2)));
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), changed).await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(deletions(&proxy), 0, "{}", report.summary());
    assert_eq!(ended(&report, "failed"), ["Ball.toys.example.com red"]);
}

#[tokio::test]
async fn an_object_is_not_deleted_if_its_successor_would_be_refused() {
    let (site, proxy, mut reconciler) = upgrading(&binding("view", ""), &binding("edit", "")).await;
    let uid = site.uid(BINDING).await;
    proxy.fail(
        "PATCH",
        "clusterrolebindings/quorate-preflight",
        1,
        Fault::Status(422, None),
    );
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(site.uid(BINDING).await, uid, "deleted: {}", report.summary());
    assert_eq!(deletions(&proxy), 0);
    assert_eq!(ended(&report, "failed"), ["ClusterRoleBinding bound"]);
    assert!(
        report.summary().contains("cannot be recreated: "),
        "{}",
        report.summary()
    );
    let left = site
        .get("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/quorate-preflight")
        .await;
    assert_eq!(left, None, "a dry run leaves nothing");
}

#[tokio::test]
async fn an_object_whose_successor_is_refused_after_its_deletion_is_put_back() {
    let (site, proxy, mut reconciler) = upgrading(&binding("view", ""), &binding("edit", "")).await;
    let uid = site.uid(BINDING).await;
    // The apply that finds the immutable field, and the creation after the deletion.
    proxy.fail("PATCH", "clusterrolebindings/bound", 1, Fault::Nothing);
    proxy.fail("PATCH", "clusterrolebindings/bound", 1, Fault::Status(422, None));
    let report = reconciler.pass(site.fence()).await;
    let found = site.get(BINDING).await.expect("the old binding is back");
    assert_ne!(found["metadata"]["uid"], uid.as_str());
    assert_eq!(found["roleRef"]["name"], "view");
    assert_eq!(ended(&report, "failed"), ["ClusterRoleBinding bound"]);
    for pass in ["second", "third"] {
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(ended(&report, "failed"), ["ClusterRoleBinding bound"], "{pass}");
        assert_eq!(deletions(&proxy), 1, "{pass}: deleted again at once");
    }

    // The object that was put back is ours.
    expect_success(&site.pass(bundle(&binding("edit", ""))).await);
    assert_eq!(site.get(BINDING).await.unwrap()["roleRef"]["name"], "edit");
}

#[tokio::test]
async fn adopting_an_object_never_deletes_it() {
    let site = Site::start().await;
    let foreign = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "bound"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
    });
    let collection = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    site.kubernetes.send("POST", collection, &foreign).await;
    let uid = site.uid(BINDING).await;
    let report = site
        .pass(bundle(&binding("edit", "quorate.dev/adopt: 'true'")))
        .await;
    assert_eq!(site.uid(BINDING).await, uid, "{}", report.summary());
    assert_eq!(ended(&report, "failed"), ["ClusterRoleBinding bound"]);
}

#[tokio::test]
async fn nothing_is_pruned_before_everything_that_is_wanted_is_in_place() {
    let (site, proxy, mut reconciler) = upgrading(&config_map("old", "v"), &config_map("new", "v")).await;
    proxy.fail("PATCH", "configmaps/new", 1, Fault::Status(403, None));
    let report = reconciler.pass(site.fence()).await;
    assert!(
        site.get(&config_map_path("old")).await.is_some(),
        "{}",
        report.summary()
    );
    assert_eq!(ended(&report, "kept"), ["ConfigMap default/old"]);
    // The refused object waits a moment before it is tried again.
    let report = eventually(SOON, "it is in place", async || {
        let report = reconciler.pass(site.fence()).await;
        match report.is_success() {
            true => Ok(report),
            false => Err(report.summary()),
        }
    })
    .await;
    assert_eq!(ended(&report, "pruned"), ["ConfigMap default/old"]);
    assert!(site.get(&config_map_path("old")).await.is_none());
}

#[tokio::test]
async fn an_object_that_is_fought_over_and_absent_holds_pruning_back() {
    let fought = config_map("fought", "v");
    let site = Site::start().await;
    expect_success(
        &site
            .pass(bundle(&(fought.clone() + &config_map("old", "v"))))
            .await,
    );
    let annotate = |value: Value| json!({"metadata": {"annotations": {"quorate.dev/prune": value}}});
    site.patch(&config_map_path("old"), annotate(json!("false")))
        .await;
    let mut reconciler = site.reconciler(bundle(&fought)).await;
    expect_success(&reconciler.pass(site.fence()).await);
    // As often as makes the next wait six seconds or more.
    for _ in 0..8 {
        site.delete(&config_map_path("fought")).await;
        eventually(SOON, "it is created again", async || {
            let report = reconciler.pass(site.fence()).await;
            same(
                ended(&report, "created"),
                vec!["ConfigMap default/fought".to_owned()],
            )
        })
        .await;
    }
    site.delete(&config_map_path("fought")).await;
    eventually(SOON, "its creation waits", async || {
        let report = reconciler.pass(site.fence()).await;
        same(
            ended(&report, "fighting"),
            vec!["ConfigMap default/fought".to_owned()],
        )
    })
    .await;
    site.patch(&config_map_path("old"), annotate(Value::Null)).await;
    eventually(SOON, "what the bundle dropped waits for it", async || {
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(ended(&report, "pruned"), [""; 0], "{:#?}", report.objects());
        let kept = format!("{:?}", report.objects());
        match kept.contains("waits for the objects of the bundle that are not in place") {
            true => Ok(()),
            false => Err(kept),
        }
    })
    .await;
    assert!(site.get(&config_map_path("old")).await.is_some());
    eventually(SOON, "it is deleted once the other one is there", async || {
        let report = reconciler.pass(site.fence()).await;
        same(ended(&report, "pruned"), vec!["ConfigMap default/old".to_owned()])
    })
    .await;
    assert!(site.get(&config_map_path("fought")).await.is_some());
}

#[tokio::test]
async fn an_object_that_another_bundle_took_over_is_neither_deleted_nor_taken_back() {
    let both = config_map("wanted", "v") + &config_map("dropped", "v");
    let (site, _proxy, mut reconciler) = upgrading(&both, &config_map("wanted", "w")).await;
    for name in ["wanted", "dropped"] {
        let taken = json!({"metadata": {"labels": {"quorate.dev/bundle": "other"}}});
        site.patch(&config_map_path(name), taken).await;
    }
    let report = reconciler.pass(site.fence()).await;
    assert!(
        report
            .summary()
            .contains("ConfigMap default/wanted: already exists and belongs to bundle \"other\""),
        "{}",
        report.summary()
    );
    expect_success(&site.pass(bundle(&config_map("else", "v"))).await);
    for name in ["wanted", "dropped"] {
        let found = site.get(&config_map_path(name)).await.unwrap();
        assert_eq!(found["data"]["key"], "v", "{name}");
        assert_eq!(found["metadata"]["labels"]["quorate.dev/bundle"], "other");
    }
    assert_eq!(site.inventory(), ["core/ConfigMap/default/else"]);
}

#[tokio::test]
async fn a_deletion_that_a_finalizer_holds_is_trouble_and_the_later_stages_wait_for_it() {
    let ball = "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: red, finalizers: [toys.example.com/hold]}\n";
    let before = BALLS.to_owned() + ball + &config_map("operator", "v");
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&before)).await);
    let mut reconciler = site.reconciler(bundle(BALLS)).await;
    for pass in ["deletes it", "finds it"] {
        let report = reconciler.pass(site.fence()).await;
        assert!(!report.is_success(), "{pass}: {:#?}", report.objects());
        assert!(
            report.summary().contains(
                "Ball.toys.example.com red: is being deleted, held by finalizers toys.example.com/hold"
            ),
            "{pass}: {}",
            report.summary()
        );
        assert_eq!(ended(&report, "kept"), ["ConfigMap default/operator"], "{pass}");
    }
    assert!(site.get(&config_map_path("operator")).await.is_some());
    let path = "/apis/toys.example.com/v1/balls/red";
    site.patch(path, json!({"metadata": {"finalizers": null}})).await;
    site.reconcile_until(&mut reconciler, Report::is_success).await;
    assert!(site.get(&config_map_path("operator")).await.is_none());
    assert_eq!(site.inventory().len(), 1);
}

#[tokio::test]
async fn a_stage_waits_for_the_lowest_one_in_which_an_object_is_being_deleted() {
    let held = "metadata: {name: held, namespace: default, finalizers: [example.com/hold]}\n";
    let before = format!(
        "{BALLS}---\napiVersion: toys.example.com/v1\nkind: Ball\n\
         metadata: {{name: red, finalizers: [example.com/hold]}}\n\
         ---\napiVersion: v1\nkind: ConfigMap\n{held}\
         ---\n{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: operator, namespace: default}}, \
         spec: {{selector: {{matchLabels: {{app: a}}}}, template: {{metadata: {{labels: {{app: a}}}}, \
         spec: {{containers: [{{name: main, image: a}}]}}}}}}}}\n"
    );
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&before)).await);
    site.delete(&config_map_path("held")).await;
    let report = site.pass(bundle(BALLS)).await;
    assert_eq!(
        ended(&report, "kept"),
        ["Deployment default/operator"],
        "{:#?}",
        report.objects()
    );
    let path = "/apis/apps/v1/namespaces/default/deployments/operator";
    assert!(site.get(path).await.is_some());
}

#[tokio::test]
async fn an_object_that_is_wanted_under_another_group_is_kept() {
    let ingress = |version: &str, spec: &str| {
        format!(
            "{{apiVersion: {version}, kind: Ingress, metadata: {{name: web, namespace: default}}, spec: {spec}}}\n"
        )
    };
    let old = ingress(
        "extensions/v1beta1",
        "{backend: {serviceName: web, servicePort: 80}}",
    );
    let new = ingress(
        "networking.k8s.io/v1",
        "{defaultBackend: {service: {name: web, port: {number: 80}}}}",
    );
    let site = Site::start().await;
    let path = "/apis/networking.k8s.io/v1/namespaces/default/ingresses/web";
    expect_success(&site.pass(bundle(&old)).await);
    let uid = site.uid(path).await;
    let report = site.pass(bundle(&new)).await;
    assert!(site.get(path).await.is_some(), "{:#?}", report.objects());
    expect_success(&report);
    assert_eq!(site.uid(path).await, uid);
}

#[tokio::test]
async fn an_annotation_that_another_client_wrote_lets_no_namespace_be_deleted() {
    let team = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n";
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&(config_map("a", "v") + team))).await);
    let annotate: Value = json!({"metadata": {"annotations": {"quorate.dev/prune": "true"}}});
    site.patch("/api/v1/namespaces/team", annotate).await;
    let report = site.pass(bundle(&config_map("a", "v"))).await;
    expect_success(&report);
    assert_eq!(ended(&report, "kept"), ["Namespace team"]);
    let found = site.get("/api/v1/namespaces/team").await.unwrap();
    assert_eq!(found["metadata"]["deletionTimestamp"], Value::Null);
}

#[tokio::test]
async fn a_secret_key_that_the_bundle_drops_from_string_data_is_gone() {
    let secret = |data: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: a, namespace: default}}\nstringData: {{{data}}}\n"
        )
    };
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&secret("old: revoked, new: valid"))).await);
    expect_success(&site.pass(bundle(&secret("new: valid"))).await);
    let found = site.get("/api/v1/namespaces/default/secrets/a").await.unwrap();
    assert_eq!(found["data"], json!({"new": "dmFsaWQ="}));
}

#[tokio::test]
async fn a_field_of_an_adopted_object_goes_once_the_bundle_drops_it() {
    let site = Site::start().await;
    let theirs = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a"},
        "data": {"key": "v", "old": "v"},
    });
    let collection = "/api/v1/namespaces/default/configmaps?fieldManager=kubectl-client-side-apply";
    site.kubernetes.send("POST", collection, &theirs).await;
    let adopting = |data: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\n\
             metadata: {{name: a, namespace: default, annotations: {{quorate.dev/adopt: 'true'}}}}\ndata: {{{data}}}\n"
        )
    };
    expect_success(&site.pass(bundle(&adopting("key: v, old: v"))).await);
    expect_success(&site.pass(bundle(&adopting("key: v"))).await);
    let found = site.get(&config_map_path("a")).await.unwrap();
    assert_eq!(found["data"], json!({"key": "v"}));
}

#[tokio::test]
async fn a_deletion_that_is_refused_is_repeated_with_growing_delays() {
    let both = config_map("stays", "v") + &config_map("goes", "v");
    let (site, proxy, mut reconciler) = upgrading(&both, &config_map("stays", "v")).await;
    proxy.fail("DELETE", "configmaps/goes", usize::MAX, Fault::Status(403, None));
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/goes"]);
    // The test makes passes for a fixed time; it waits for no condition.
    let passes = async {
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let report = reconciler.pass(site.fence()).await;
            assert_eq!(ended(&report, "failed"), ["ConfigMap default/goes"]);
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(3), passes).await;
    // Delays of 50, 100, 200, … milliseconds, with jitter at least three quarters of that.
    let deletions = deletions(&proxy);
    assert!(
        (1..=8).contains(&deletions),
        "{deletions} in three seconds (INV-9)"
    );
}

/// As a webhook refuses that protects what is in use: the code says that the object has changed, and it has not.
#[tokio::test]
async fn a_deletion_that_a_webhook_refuses_as_a_conflict_is_reported_in_its_words_and_repeated_with_growing_delays()
 {
    let both = config_map("stays", "v") + &config_map("goes", "v");
    let (site, proxy, mut reconciler) = upgrading(&both, &config_map("stays", "v")).await;
    let said = json!({"message": "admission webhook \"w.example\" denied the request: in use by one"});
    proxy.fail("DELETE", "configmaps/goes", usize::MAX, Fault::Refuse(409, said));
    // The test makes passes for a fixed time; it waits for no condition.
    let passes = async {
        loop {
            let report = reconciler.pass(site.fence()).await;
            assert_eq!(ended(&report, "failed"), ["ConfigMap default/goes"]);
            assert!(report.summary().contains("in use by one"), "{}", report.summary());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(3), passes).await;
    // Twice for each of as many attempts as in the test above.
    let deletions = deletions(&proxy);
    assert!(
        (1..=16).contains(&deletions),
        "{deletions} in three seconds (INV-9)"
    );
}

const TEAM: &str = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team, annotations: {quorate.dev/prune: 'true'}}\n";

/// INV-12: the server would delete it with the namespace, while the report says that it stays.
#[tokio::test]
async fn a_namespace_is_not_deleted_while_something_in_it_is_kept() {
    let site = Site::start().await;
    let in_team = config_map("a", "v").replace("namespace: default", "namespace: team");
    let other = config_map("other", "v");
    expect_success(&site.pass(bundle(&[TEAM, &in_team, &other].concat())).await);
    let keep = json!({"metadata": {"annotations": {"quorate.dev/prune": "false"}}});
    let path = "/api/v1/namespaces/team/configmaps/a";
    site.patch(&format!("{path}?fieldManager=operator"), keep).await;
    let report = site.pass(bundle(&other)).await;
    assert_eq!(
        ended(&report, "kept"),
        ["ConfigMap team/a", "Namespace team"],
        "{}",
        report.summary()
    );
    let team = site.get("/api/v1/namespaces/team").await.unwrap();
    assert!(team["metadata"]["deletionTimestamp"].is_null(), "{team}");
    // It goes once nothing is kept.
    let allow = json!({"metadata": {"annotations": {"quorate.dev/prune": null}}});
    site.patch(&format!("{path}?fieldManager=operator"), allow).await;
    let report = site.pass(bundle(&other)).await;
    assert_eq!(
        ended(&report, "pruned"),
        ["ConfigMap team/a"],
        "{}",
        report.summary()
    );
    assert_eq!(
        ended(&report, "deleting"),
        ["Namespace team"],
        "{}",
        report.summary()
    );
}

/// INV-12: a bundle that no longer makes a namespace or defines a kind, and still holds objects in it or of it.
#[tokio::test]
async fn what_the_bundle_still_needs_is_not_deleted_for_being_dropped() {
    let site = Site::start().await;
    let in_team = config_map("a", "v").replace("namespace: default", "namespace: team");
    let balls = BALLS.replace(
        "metadata: {name: balls.toys.example.com}",
        "metadata: {name: balls.toys.example.com, annotations: {quorate.dev/prune: 'true'}}",
    );
    let red = "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: red}\nspec: {size: 1}\n";
    expect_success(
        &site
            .pass(bundle(&[TEAM, &in_team, "---", &balls, red].concat()))
            .await,
    );
    let report = site.pass(bundle(&[&in_team, red].concat())).await;
    let (definition, team) = (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/balls.toys.example.com",
        "/api/v1/namespaces/team",
    );
    for path in [definition, team] {
        let found = site.get(path).await.unwrap();
        assert!(
            found["metadata"]["deletionTimestamp"].is_null(),
            "{}",
            report.summary()
        );
    }
    expect_success(&report);
    let kept = ended(&report, "kept");
    assert_eq!(
        kept,
        [
            "Namespace team",
            "CustomResourceDefinition balls.toys.example.com"
        ]
    );
}
