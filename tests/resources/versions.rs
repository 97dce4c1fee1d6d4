//! Kinds whose API versions appear and disappear, with objects in more than one namespace.

use quorate::resources::Bundle;
use serde_json::json;

use super::commands::diff;
use super::faults::{Fault, FaultProxy};
use super::site::{Site, bundle, bundle_directory, config_map, ended, expect_success};
use crate::support::quorate::quorate;
use crate::support::wait::{SOON, eventually, same};

/// A definition of balls with these versions, each served or not; the first one is the storage version.
fn balls(versions: &[(&str, bool)]) -> serde_json::Value {
    let versions: Vec<_> = versions
        .iter()
        .enumerate()
        .map(|(index, (name, served))| {
            json!({
                "name": name, "served": served, "storage": index == 0,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            })
        })
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "balls.toys.example.com"},
        "spec": {
            "group": "toys.example.com",
            "scope": "Namespaced",
            "names": {"kind": "Ball", "plural": "balls", "singular": "ball", "listKind": "BallList"},
            "versions": versions,
        },
    })
}

/// A definition of another kind of the group, served in one version.
fn kites(version: &str) -> serde_json::Value {
    let mut kites = balls(&[(version, true)]);
    kites["metadata"]["name"] = "kites.toys.example.com".into();
    kites["spec"]["names"] =
        json!({"kind": "Kite", "plural": "kites", "singular": "kite", "listKind": "KiteList"});
    kites
}

fn ball(version: &str, namespace: &str) -> String {
    format!(
        "\n---\n{{apiVersion: toys.example.com/{version}, kind: Ball, metadata: {{name: red, namespace: {namespace}}}}}\n"
    )
}

const IN_DEFAULT: &str = "/apis/toys.example.com/v1beta1/namespaces/default/balls/red";
const IN_SYSTEM: &str = "/apis/toys.example.com/v1beta1/namespaces/kube-system/balls/red";

/// An obsolete object is found through any version of its kind that is served, and in every namespace.
#[tokio::test]
async fn an_object_applied_through_a_version_that_is_no_longer_served_is_pruned() {
    let site = Site::start().await;
    let both = [("v1alpha1", true), ("v1beta1", true)];
    let balls_and_kites = |balls: serde_json::Value| format!("{balls}\n---\n{}\n", kites("v1"));
    let manifests =
        balls_and_kites(balls(&both)) + &ball("v1alpha1", "default") + &ball("v1alpha1", "kube-system");
    expect_success(&site.pass(bundle(&manifests)).await);

    // The server's preferred version of the group has no balls.
    let later = [("v1alpha1", false), ("v1beta1", true)];
    let without = bundle_directory("1.1.0", &balls_and_kites(balls(&later)));
    site.patch(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/balls.toys.example.com",
        json!({"spec": {"versions": balls(&later)["spec"]["versions"]}}),
    )
    .await;
    eventually(SOON, "discovery shows the new versions", async || {
        let group = site.get("/apis/toys.example.com").await.unwrap_or_default();
        let old = site.get("/apis/toys.example.com/v1alpha1").await;
        match old.is_none() && group["preferredVersion"]["version"] == "v1" {
            true => Ok(()),
            false => Err(group.to_string()),
        }
    })
    .await;

    let shown = quorate(diff(&site, without.path())).await;
    for namespace in ["default", "kube-system"] {
        let gone = format!("- Ball.toys.example.com {namespace}/red: no longer in the bundle");
        assert!(shown.stdout.contains(&gone), "{shown:?}");
    }
    // A kind that cannot be read delays no other, and its objects stay in the inventory (INV-8).
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("GET", "/balls?", 4, Fault::Status(500, None));
    let without = Bundle::load(without.path()).unwrap();
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), without).await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.stopped(), None, "{}", report.summary());
    assert_eq!(report.count("failed"), 2, "{}", report.summary());

    let report = reconciler.pass(site.fence()).await;
    expect_success(&report);
    assert_eq!(
        ended(&report, "pruned"),
        [
            "Ball.toys.example.com default/red",
            "Ball.toys.example.com kube-system/red"
        ]
    );
    for path in [IN_DEFAULT, IN_SYSTEM] {
        assert!(site.get(path).await.is_none(), "{path}");
    }
}

/// After its definition changed, a kind is listed again in all namespaces, not only in those of the new objects.
#[tokio::test]
async fn a_new_version_hides_no_object_of_the_others() {
    let site = Site::start().await;
    let before =
        balls(&[("v1alpha1", true)]).to_string() + &ball("v1alpha1", "default") + &config_map("a", "v");
    expect_success(&site.pass(bundle(&before)).await);
    let after = balls(&[("v1alpha1", true), ("v1beta1", true)]).to_string() + &ball("v1beta1", "kube-system");
    let report = site.pass(bundle(&after)).await;
    expect_success(&report);
    assert_eq!(
        ended(&report, "pruned"),
        ["ConfigMap default/a", "Ball.toys.example.com default/red"]
    );
    assert!(site.get(IN_DEFAULT).await.is_none());
    assert!(site.get(IN_SYSTEM).await.is_some());
}

const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/balls.toys.example.com";
const BOTH: [(&str, bool); 2] = [("v1alpha1", true), ("v1beta1", true)];

/// A site with a ball in either namespace, each applied through another version. The definition is of another client.
async fn two_balls() -> Site {
    let site = Site::start().await;
    let collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    site.kubernetes.send("POST", collection, &balls(&BOTH)).await;
    eventually(SOON, "both versions are served", async || {
        for version in ["v1alpha1", "v1beta1"] {
            let served = site.get(&format!("/apis/toys.example.com/{version}")).await;
            if !served.is_some_and(|served| served.to_string().contains("balls")) {
                return Err(version.to_owned());
            }
        }
        Ok(())
    })
    .await;
    let manifests = ball("v1beta1", "default") + &ball("v1alpha1", "kube-system");
    expect_success(&site.pass(bundle(&manifests)).await);
    site
}

/// Has the server serve only the later version of the balls.
async fn serve_only_the_later_version(site: &Site) {
    let later = balls(&[("v1alpha1", false), ("v1beta1", true)]);
    let versions = json!({"spec": {"versions": later["spec"]["versions"]}});
    site.patch(DEFINITION, versions).await;
    let old = "/apis/toys.example.com/v1alpha1/namespaces/kube-system/balls/red";
    eventually(SOON, "the old version is not served", async || {
        let gone =
            site.get("/apis/toys.example.com/v1alpha1").await.is_none() && site.get(old).await.is_none();
        gone.then_some(()).ok_or_else(|| "served".to_owned())
    })
    .await;
}

/// The reads of the ball that no list covers.
fn reads(proxy: &FaultProxy) -> usize {
    let noted = proxy.noted();
    let reads = noted.iter().filter(|noted| noted.method == "GET");
    reads
        .filter(|noted| noted.uri.ends_with("/kube-system/balls/red"))
        .count()
}

const ENTRY: &str = "toys.example.com/Ball/kube-system/red";

/// The version through which an object was applied may go at any time of a term. That proves nothing (INV-12).
#[tokio::test]
async fn an_object_outside_the_listed_namespace_outlives_the_version_that_it_was_applied_through() {
    let site = two_balls().await;
    let after = ball("v1beta1", "default") + &config_map("held", "v");
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("PATCH", "configmaps/held", usize::MAX, Fault::Status(403, None));
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&after)).await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "kept"), ["Ball.toys.example.com kube-system/red"]);
    serve_only_the_later_version(&site).await;
    let before = reads(&proxy);
    let report = eventually(SOON, "it is read again", async || {
        let report = reconciler.pass(site.fence()).await;
        same(reads(&proxy) > before, true).map(|_| report)
    })
    .await;
    assert_eq!(
        ended(&report, "kept"),
        ["Ball.toys.example.com kube-system/red"],
        "{:#?}",
        report.objects()
    );
    assert!(
        site.inventory().contains(&ENTRY.to_owned()),
        "{:?}",
        site.inventory()
    );

    expect_success(&site.pass(bundle(&after)).await);
    assert!(site.get(IN_SYSTEM).await.is_none());
    assert!(!site.inventory().contains(&ENTRY.to_owned()));
}

#[tokio::test]
async fn an_object_outside_the_listed_namespace_is_pruned_through_the_version_that_is_served() {
    let site = two_balls().await;
    serve_only_the_later_version(&site).await;
    let report = site.pass(bundle(&ball("v1beta1", "default"))).await;
    expect_success(&report);
    assert_eq!(
        ended(&report, "pruned"),
        ["Ball.toys.example.com kube-system/red"]
    );
    assert!(site.get(IN_SYSTEM).await.is_none());
    assert!(site.get(IN_DEFAULT).await.is_some());
}

/// A 404 of the path, as of an API server that has just started, says nothing about the object (INV-12).
#[tokio::test]
async fn a_404_that_does_not_name_the_object_is_no_proof_that_it_is_gone() {
    let site = two_balls().await;
    for method in ["GET", "DELETE"] {
        let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
        proxy.fail(method, "/kube-system/balls/red", 1, Fault::Status(404, None));
        let after = bundle(&ball("v1beta1", "default"));
        let mut reconciler = site.reconciler_as(proxy.kubeconfig(), after).await;
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(
            ended(&report, "failed"),
            ["Ball.toys.example.com kube-system/red"],
            "{method}"
        );
        assert!(site.inventory().contains(&ENTRY.to_owned()), "{method}");
        assert!(site.get(IN_SYSTEM).await.is_some(), "{method}");
    }
}

/// A 503 says nothing about what is served, nor about an object that was read before.
#[tokio::test]
async fn an_object_that_was_read_through_another_version_is_not_taken_for_one_of_a_kind_that_is_not_served() {
    let site = two_balls().await;
    serve_only_the_later_version(&site).await;
    let after = ball("v1beta1", "default") + &config_map("held", "v");
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("PATCH", "configmaps/held", usize::MAX, Fault::Status(403, None));
    proxy.fail("GET", "watch=true", usize::MAX, Fault::Status(410, None));
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&after)).await;
    let report = reconciler.pass(site.fence()).await;
    let red = ["Ball.toys.example.com kube-system/red"];
    assert_eq!(ended(&report, "kept"), red, "{:#?}", report.objects());
    // The watch has lost track: the kind is listed again.
    proxy.fail("GET", "/balls?", usize::MAX, Fault::Status(503, None));
    eventually(SOON, "the list has failed", async || {
        let report = reconciler.pass(site.fence()).await;
        let objects = format!("{:#?}", report.objects());
        assert!(!objects.contains("does not serve"), "{objects}");
        same(ended(&report, "failed").contains(&red[0].to_owned()), true)
    })
    .await;
}

#[tokio::test]
async fn a_steady_pass_sends_nothing_for_an_object_that_only_another_version_shows() {
    let site = two_balls().await;
    site.patch(
        "/apis/toys.example.com/v1alpha1/namespaces/kube-system/balls/red",
        json!({"metadata": {"annotations": {"quorate.dev/prune": "false"}}}),
    )
    .await;
    serve_only_the_later_version(&site).await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&config_map("a", "v")))
        .await;
    for _ in 0..3 {
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(ended(&report, "failed"), [""; 0], "{:#?}", report.objects());
    }
    eventually(SOON, "both kinds are watched", async || {
        same(proxy.watches() >= 2, true)
    })
    .await;
    proxy.take_all();
    for _ in 0..2 {
        reconciler.pass(site.fence()).await;
    }
    let noted = proxy.take_all();
    assert!(noted.is_empty(), "{noted:#?}");
}

#[tokio::test]
async fn a_kind_that_is_listed_through_another_version_is_watched_through_it() {
    let site = two_balls().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let manifests = ball("v1alpha1", "kube-system") + &ball("v1beta1", "default");
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&manifests)).await;
    expect_success(&reconciler.pass(site.fence()).await);
    eventually(SOON, "it is watched", async || is_watched(&proxy, "v1alpha1")).await;
    serve_only_the_later_version(&site).await;
    eventually(SOON, "it is watched through the later version", async || {
        reconciler.pass(site.fence()).await;
        is_watched(&proxy, "v1beta1")
    })
    .await;
    site.delete(IN_DEFAULT).await;
    let red = ["Ball.toys.example.com default/red"];
    site.reconcile_until(&mut reconciler, |report| ended(report, "created") == red)
        .await;
}

/// Whether the balls were watched through this version since the last look.
fn is_watched(proxy: &FaultProxy, version: &str) -> Result<(), String> {
    let path = format!("/apis/toys.example.com/{version}/balls?watch=true");
    let noted = proxy.take_all();
    let found = noted.iter().any(|noted| noted.uri.starts_with(&path));
    found.then_some(()).ok_or_else(|| format!("{noted:#?}"))
}
