//! `quorate bundle check`, `diff` and `rbac`, as a person runs them.

use std::path::Path;

use serde_json::json;

use super::inventory::run;
use super::site::{
    BALLS, Site, bundle, bundle_directory, config_map, config_map_path, ended, expect_success,
};
use crate::support::quorate::quorate;

#[tokio::test]
async fn check_counts_the_objects_of_a_bundle() {
    let shown = quorate(["bundle", "check"]).await.expect_done();
    assert!(shown.starts_with("bundle builtin at release "), "{shown}");
    assert!(shown.contains("1 StorageClass"), "{shown}");
}

#[tokio::test]
async fn check_lists_every_fault_and_ends_with_64() {
    let directory = bundle_directory(
        "0.9.0",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\nkind: [\n",
    );
    let path = directory.path().display().to_string();
    let said = quorate(["bundle", "check", &path]).await.expect_code(64);
    for fault in [
        "bundle.yaml: minReconcilerRelease 1.0.0 is above the bundle's own release 0.9.0",
        "bundle.yaml: minApiserverRelease 1.0.0 is above the bundle's own release 0.9.0",
        "manifests.yaml, document 1: metadata.namespace is required: ConfigMap is namespaced",
        "manifests.yaml, document 2: cannot parse: line ",
    ] {
        assert!(said.contains(fault), "missing {fault:?} in {said}");
    }
    let nowhere = quorate(["bundle", "check", "/nowhere"]).await.expect_code(64);
    assert!(nowhere.contains("invalid bundle /nowhere"), "{nowhere}");
}

#[tokio::test]
async fn run_refuses_a_bundle_with_faults_before_it_connects() {
    let directory = bundle_directory("1.0.0", "kind: ConfigMap\n");
    let flag = format!("--bundle={}", directory.path().display());
    let said = quorate(["run", &flag]).await.expect_code(64);
    assert!(said.contains("document 1: apiVersion is required"), "{said}");
}

#[tokio::test]
async fn check_from_an_old_bundle_finds_the_deadlock_of_two_raised_minimums() {
    let old = bundle_directory("1.0.0", &(config_map("a", "v") + &config_map("b", "v")));
    let new = bundle_directory("1.1.0", &config_map("a", "w"));
    let raise = |minimums: &str| {
        let description = format!("name: web\nrelease: 1.1.0\n{minimums}");
        std::fs::write(new.path().join("bundle.yaml"), description).unwrap();
    };
    let (old_path, new_path) = (old.path().display().to_string(), new.path().display().to_string());
    let check = ["bundle", "check", &new_path, "--from", &old_path];

    raise("minReconcilerRelease: 1.1.0\nminApiserverRelease: 1.0.0\n");
    let shown = quorate(check).await.expect_done();
    assert!(shown.contains("changed    ConfigMap default/a"), "{shown}");
    assert!(shown.contains("pruned     ConfigMap default/b"), "{shown}");

    raise("minReconcilerRelease: 1.1.0\nminApiserverRelease: 1.1.0\n");
    let said = quorate(check).await.expect_code(4);
    assert!(said.contains("rule \"one minimum a release\""), "{said}");
    assert!(said.contains("deadlocks"), "{said}");

    let back = quorate(["bundle", "check", &old_path, "--from", &new_path])
        .await
        .expect_code(4);
    assert!(
        back.contains("rule \"no rollback below the stored minimum\""),
        "{back}"
    );
}

#[tokio::test]
async fn check_warns_of_deletions_that_wait_for_the_operator() {
    let maps = |names: &[&str]| names.iter().map(|name| config_map(name, "v")).collect::<String>();
    let all = maps(&["a", "b", "c", "d", "e", "f", "g"]);
    for (kept, warned) in [(&["a"][..], true), (&["a", "b"], false)] {
        let (old, new) = (
            bundle_directory("1.0.0", &all),
            bundle_directory("1.0.1", &maps(kept)),
        );
        let (old, new) = (old.path().display().to_string(), new.path().display().to_string());
        let checked = quorate(["bundle", "check", &new, "--from", &old]).await;
        let expected = "pruning 6 objects of 7 that the bundle held waits for --allow-prune=6";
        assert_eq!(checked.stderr.contains(expected), warned, "{checked:?}");
        checked.expect_done();
    }
}

/// The arguments of `quorate bundle diff` for a bundle and the servers of a site.
pub fn diff(site: &Site, bundle: &Path) -> [String; 6] {
    [
        "bundle".to_owned(),
        "diff".to_owned(),
        format!("--bundle={}", bundle.display()),
        format!("--kubeconfig={}", site.kubernetes.kubeconfig().display()),
        "--prefix=/q".to_owned(),
        format!("--etcd-endpoints={}", site.kubernetes.etcd.endpoints().join(",")),
    ]
}

#[tokio::test]
async fn diff_shows_what_a_pass_would_do_and_writes_nothing() {
    let site = Site::start().await;
    let before = config_map("changes", "v") + &config_map("goes", "v") + &config_map("same", "v");
    expect_success(&site.pass(bundle(&before)).await);
    let after = config_map("changes", "w") + &config_map("same", "v") + &config_map("comes", "v");
    let directory = bundle_directory("1.1.0", &after);
    let revision = site.kubernetes.etcd.revision();
    let args = diff(&site, directory.path());
    let shown = quorate(&args).await.expect_done();
    assert_eq!(
        shown,
        "~ ConfigMap default/changes\n    - data.key: \"v\"\n    + data.key: \"w\"\n+ ConfigMap default/comes\n\
         - ConfigMap default/goes: no longer in the bundle\n3 of 4 objects would change, 0 cannot be applied\n"
    );
    let directory = directory.path().to_str().unwrap();
    let others = args.iter().filter(|arg| !arg.starts_with("--bundle="));
    let with_code = others.map(String::as_str).chain([directory, "--exit-code"]);
    quorate(with_code).await.expect_code(5);
    assert_eq!(site.kubernetes.etcd.revision(), revision, "nothing is written");

    let foreign = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "comes"}});
    site.kubernetes
        .send("POST", "/api/v1/namespaces/default/configmaps", &foreign)
        .await;
    let finished = quorate(&args).await;
    assert!(
        finished
            .stdout
            .contains("! ConfigMap default/comes: already exists and is not managed by this bundle"),
        "{}",
        finished.stdout
    );
    finished.expect_code(4);
}

#[tokio::test]
async fn an_object_that_the_server_refuses_is_named_once_in_a_line() {
    let site = Site::start().await;
    let refused = config_map("NotAName", "v");
    let directory = bundle_directory("1.0.0", &refused);
    let shown = quorate(&diff(&site, directory.path())).await.stdout;
    let report = site.pass(bundle(&refused)).await;
    let listed = run(&site, &["get", "resources", "--no-headers"])
        .await
        .expect_done();
    for text in [shown, listed, report.summary()] {
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("NotAName")).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert_eq!(
            lines[0].matches("ConfigMap default/NotAName").count(),
            1,
            "{text}"
        );
        assert!(
            lines[0].contains("failed to apply: rejected (HTTP 422)"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn diff_shows_the_warnings_of_the_server() {
    let site = Site::start().await;
    let role = "apiVersion: rbac.authorization.k8s.io/v1beta1\nkind: ClusterRole\nmetadata: {name: old}\n";
    let directory = bundle_directory("1.0.0", role);
    let finished = quorate(&diff(&site, directory.path())).await;
    let said = &finished.stderr;
    assert!(
        said.contains("ClusterRole old: ") && said.contains("is deprecated in v1.17+"),
        "{said}"
    );
    assert!(finished.expect_done().contains("+ ClusterRole old"));
}

/// Objects that need every sort of permission: a role that grants more than its writer holds, a binding to cluster-admin,
/// a namespace and an object in it, a definition and an object of its kind.
fn demanding() -> String {
    ROLES.to_owned() + BALLS + "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: red}\n"
}

const ROLES: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: mighty}
rules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: mighty}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: owners}]
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: viewers, namespace: team}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: blue}]
---";

#[tokio::test]
async fn the_printed_permissions_suffice_and_name_every_object_that_may_be_written() {
    let site = Site::start().await;
    let kubernetes = &site.kubernetes;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "quorate"}});
    kubernetes
        .send("POST", "/api/v1/namespaces/kube-system/serviceaccounts", &account)
        .await;
    let demanding = demanding();
    let manifests = config_map("goes", "v") + "---" + &demanding;
    let (old, new) = (
        bundle_directory("1.0.0", &manifests),
        bundle_directory("1.1.0", &demanding),
    );
    let (old_path, new_path) = (old.path().display().to_string(), new.path().display().to_string());
    let printed = quorate([
        "bundle",
        "rbac",
        &new_path,
        "--from",
        &old_path,
        "--service-account=kube-system/quorate",
    ])
    .await
    .expect_done();
    // The permissions of the old bundle for its first passes; those of the new one are applied on top.
    let both = quorate([
        "bundle",
        "rbac",
        &old_path,
        "--service-account=kube-system/quorate",
    ])
    .await
    .expect_done();
    apply(&site, &both).await;
    let kubeconfig = kubernetes
        .service_account_kubeconfig("kube-system", "quorate")
        .await;
    let mut reconciler = site.reconciler_as(kubeconfig.clone(), bundle(&manifests)).await;
    expect_success(&reconciler.pass(site.fence()).await);
    expect_success(&reconciler.pass(site.fence()).await);

    apply(&site, &printed).await;
    let mut reconciler = site.reconciler_as(kubeconfig.clone(), bundle(&demanding)).await;
    let report = reconciler.pass(site.fence()).await;
    expect_success(&report);
    assert_eq!(ended(&report, "pruned"), ["ConfigMap default/goes"]);

    // No other object may be written, not even one of a kind that the bundle holds.
    let other = demanding.replace("name: mighty}\nrules", "name: mightier}\nrules");
    let mut reconciler = site.reconciler_as(kubeconfig, bundle(&other)).await;
    let report = reconciler.pass(site.fence()).await;
    let said = report.summary();
    assert!(
        said.contains("missing permission: patch clusterroles.rbac.authorization.k8s.io \"mightier\""),
        "{said}"
    );
    assert!(site.get(&config_map_path("goes")).await.is_none());
}

/// Applies the printed YAML as the administrator.
async fn apply(site: &Site, printed: &str) {
    for document in quorate::store::object::text::parse(printed).unwrap() {
        let plural = match document["kind"].as_str().unwrap() {
            "ClusterRole" => "clusterroles",
            "ClusterRoleBinding" => "clusterrolebindings",
            "Role" => "roles",
            other => {
                assert_eq!(other, "RoleBinding");
                "rolebindings"
            }
        };
        let scope = match document["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("namespaces/{namespace}/"),
            None => String::new(),
        };
        let name = document["metadata"]["name"].as_str().unwrap();
        let path = format!(
            "/apis/rbac.authorization.k8s.io/v1/{scope}{plural}/{name}?fieldManager=admin&force=true"
        );
        let text = document.to_string();
        let body = Some(("application/apply-patch+yaml", text.as_str()));
        let answer = site.kubernetes.request("PATCH", &path, body).await.unwrap();
        assert!((200..300).contains(&answer.status), "{path}: {}", answer.body);
    }
}
