//! What cannot be looked at: it may exist (INV-12), and delays only what has to wait for it (INV-8).

use std::time::Duration;

use quorate::kube::ObjectRef;
use quorate::resources::Settings;
use serde_json::json;

use super::deletions::upgrading;
use super::faults::{Fault, FaultProxy};
use super::site::{BALLS, Site, bundle, config_map, config_map_path, ended, expect_success};
use crate::support::wait::{SOON, eventually, same};

fn object(group: &str, kind: &str, namespace: Option<&str>, name: &str) -> ObjectRef {
    ObjectRef {
        group: group.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
    }
}

#[tokio::test]
async fn a_look_that_fails_holds_the_later_stages_and_counts_as_a_deletion() {
    let balls = |count: usize| -> String {
        let ball =
            |n| format!("---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {{name: b{n}}}\n");
        (0..count).map(ball).collect()
    };
    let before = |count: usize| BALLS.to_owned() + &balls(count) + &config_map("operator", "v");
    let (site, proxy, mut reconciler) = upgrading(&before(1), BALLS).await;
    proxy.fail("GET", "/balls?", usize::MAX, Fault::Status(403, None));
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "failed"), ["Ball.toys.example.com b0"]);
    assert_eq!(ended(&report, "kept"), ["ConfigMap default/operator"]);
    assert!(site.get(&config_map_path("operator")).await.is_some());
    let why = &report.objects()[&object("", "ConfigMap", Some("default"), "operator")];
    assert!(
        format!("{why:?}").contains("Ball.toys.example.com b0, which may exist"),
        "{why:?}"
    );

    expect_success(&site.pass(bundle(&before(5))).await);
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(BALLS)).await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.count("failed"), 5, "{:#?}", report.objects());
    assert_eq!(ended(&report, "held"), ["ConfigMap default/operator"]);
}

#[tokio::test]
async fn an_object_whose_kind_is_not_served_stays_in_the_inventory() {
    let ball = "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: red}\n";
    let (site, proxy, mut reconciler) = upgrading(&(BALLS.to_owned() + ball), &config_map("a", "v")).await;
    let entry = "toys.example.com/Ball/_/red";
    proxy.fail("GET", "/apis/toys.example.com", 8, Fault::Status(404, None));
    let report = reconciler.pass(site.fence()).await;
    assert!(
        site.inventory().contains(&entry.to_owned()),
        "{:?}: {}",
        site.inventory(),
        report.summary()
    );
    expect_success(&report);
    expect_success(&site.pass(bundle(&config_map("a", "v"))).await);
    assert!(site.get("/apis/toys.example.com/v1/balls/red").await.is_none());
    assert!(!site.inventory().contains(&entry.to_owned()));
}

/// INV-12: the finalizer of the object may need the operator.
#[tokio::test]
async fn a_kind_that_is_not_served_for_a_moment_does_not_cost_its_operator() {
    let ball = "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: red}\n";
    let definition = BALLS.trim_start();
    let other = config_map("other", "v");
    // The definition stays in the bundle, or is kept because its kind is protected.
    for (is_wanted, after) in [
        (true, other.clone() + "---\n" + definition),
        (false, other.clone()),
    ] {
        let before = other.clone() + "---\n" + definition + ball + &config_map("operator", "v");
        let (site, proxy, mut reconciler) = upgrading(&before, &after).await;
        // Once for the version, and once for the versions of the group.
        proxy.fail("GET", "/apis/toys.example.com", 2, Fault::Status(404, None));
        let report = reconciler.pass(site.fence()).await;
        let kept = ended(&report, "kept");
        for waits in ["Ball.toys.example.com red", "ConfigMap default/operator"] {
            let is_kept = kept.iter().any(|kept| kept == waits);
            assert!(is_kept, "{waits}, {is_wanted}: {:#?}", report.objects());
        }
        assert!(site.get(&config_map_path("operator")).await.is_some());
        eventually(SOON, "both are deleted, the object first", async || {
            let report = reconciler.pass(site.fence()).await;
            let entries = site.inventory();
            let is_left = entries.iter().any(|entry| entry.ends_with("/operator"));
            if is_left {
                Err(format!("{:#?}", report.objects()))
            } else {
                Ok(())
            }
        })
        .await;
        assert!(site.get("/apis/toys.example.com/v1/balls/red").await.is_none());
    }
}

#[tokio::test]
async fn an_object_whose_definition_is_gone_holds_nothing_up() {
    let ball = "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: red}\n";
    let before = BALLS.to_owned() + ball + &config_map("operator", "v");
    let (site, _proxy, mut reconciler) = upgrading(&before, &config_map("other", "v")).await;
    site.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/balls.toys.example.com")
        .await;
    eventually(SOON, "the operator is deleted", async || {
        reconciler.pass(site.fence()).await;
        same(site.get(&config_map_path("operator")).await.is_none(), true)
    })
    .await;
}

#[tokio::test]
async fn a_kind_that_is_not_served_stays_so_while_its_group_is_read_again() {
    let ball = "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: red}\n";
    let after = config_map("a", "v");
    let (site, proxy, _) = upgrading(&(BALLS.to_owned() + ball), &after).await;
    let mut reconciler = site
        .patient_reconciler_as(proxy.kubeconfig(), bundle(&after))
        .await;
    proxy.fail(
        "GET",
        "/apis/toys.example.com$",
        usize::MAX,
        Fault::Status(404, None),
    );
    proxy.fail("GET", "/apis/toys.example.com/v1$", 1, Fault::Status(404, None));
    proxy.fail("GET", "/apis/toys.example.com/v1$", 1, Fault::Held(None));
    for held in [0, 1] {
        let report = reconciler.pass(site.fence()).await;
        expect_success(&report);
        assert_eq!(proxy.held(), held);
        let kept = ended(&report, "kept");
        assert!(kept.contains(&"Ball.toys.example.com red".to_owned()), "{kept:?}");
    }
}

#[tokio::test]
async fn a_kept_namespace_that_may_not_be_read_any_more_holds_nothing_up() {
    let team = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n";
    let before = config_map("a", "v") + team;
    let (site, proxy, mut reconciler) = upgrading(&before, &config_map("a", "v")).await;
    let forbidden = json!({
        "message": "namespaces is forbidden: User \"quorate\" cannot list resource \"namespaces\" in API group \"\" at the cluster scope",
    });
    proxy.fail("GET", "/namespaces?", 100, Fault::Refuse(403, forbidden));
    let report = reconciler.pass(site.fence()).await;
    expect_success(&report);
    assert_eq!(ended(&report, "kept"), ["Namespace team"]);
    assert_eq!(site.inventory().len(), 2);
}

/// INV-12: an object that only waited when it was last seen may have to be deleted. It holds up what follows it.
#[tokio::test]
async fn an_object_that_was_kept_and_may_not_be_read_any_more_holds_nothing_up_and_one_that_waited_does() {
    let kept = "---\napiVersion: v1\nkind: ConfigMap\n\
                metadata: {name: kept, namespace: kube-system, annotations: {quorate.dev/prune: \"false\"}}\n";
    let waits = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: waits, namespace: kube-system}\n";
    let stays = config_map("stays", "v");
    let before = stays.clone() + kept + waits;
    let missing = stays.clone() + &config_map("missing", "v");
    let (site, proxy, mut reconciler) = upgrading(&before, &missing).await;
    proxy.fail("PATCH", "configmaps/missing", 1, Fault::Status(403, None));
    let report = reconciler.pass(site.fence()).await;
    let both = ["ConfigMap kube-system/kept", "ConfigMap kube-system/waits"];
    assert_eq!(ended(&report, "kept"), both);

    let forbidden = json!({"message": "User \"quorate\" cannot get resource \"configmaps\""});
    for path in ["/api/v1/configmaps?", "/namespaces/kube-system/configmaps"] {
        proxy.fail("GET", path, usize::MAX, Fault::Refuse(403, forbidden.clone()));
    }
    // Each is a new leader: the first one's record is what the second goes by.
    for _ in 0..2 {
        let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&stays)).await;
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(ended(&report, "kept"), both[..1], "{:#?}", report.objects());
        assert_eq!(ended(&report, "failed"), both[1..], "{:#?}", report.objects());
    }
    assert_eq!(
        site.entry("core/ConfigMap/kube-system/kept")
            .await
            .state
            .unwrap()
            .outcome,
        "kept"
    );
}

/// A refusal says nothing about what the server serves.
#[tokio::test]
async fn a_look_that_is_forbidden_has_nothing_discovered_again() {
    let team = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n";
    let before = config_map("a", "v") + team;
    let (site, proxy, mut reconciler) = upgrading(&before, &config_map("a", "v")).await;
    let forbidden = json!({"message": "User \"quorate\" cannot list resource \"namespaces\""});
    proxy.fail("GET", "/namespaces?", 100, Fault::Refuse(403, forbidden.clone()));
    proxy.fail("GET", "/namespaces/team$", 100, Fault::Refuse(403, forbidden));
    expect_success(&reconciler.pass(site.fence()).await);
    proxy.take_noted();
    expect_success(&reconciler.pass(site.fence()).await);
    let noted = proxy.take_noted();
    let discovered = noted.iter().filter(|noted| noted.uri == "/api/v1").count();
    assert_eq!(discovered, 0, "{noted:#?}");
}

#[tokio::test]
async fn a_discovery_that_takes_long_changes_nothing_of_the_other_kinds_of_its_group() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    // The kind may come with every pass, so each one asks.
    let ghost = "---\napiVersion: v1\nkind: Ghost\nmetadata: {name: g, namespace: default}\n";
    let manifests = config_map("a", "v") + ghost;
    let mut reconciler = site
        .patient_reconciler_as(proxy.kubeconfig(), bundle(&manifests))
        .await;
    let failed = ["Ghost default/g"];
    for _ in 0..2 {
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(ended(&report, "failed"), failed, "{:#?}", report.objects());
    }
    proxy.take_noted();
    proxy.fail("GET", "/api/v1$", 1, Fault::Held(None));
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(proxy.held(), 1);
    assert_eq!(ended(&report, "failed"), failed, "{:#?}", report.objects());
    assert_eq!(ended(&report, "unchanged"), ["ConfigMap default/a"]);
    let noted = proxy.noted();
    assert!(
        noted.iter().all(|noted| !noted.uri.contains("configmaps")),
        "{noted:#?}"
    );
}

fn claim(namespace: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data, namespace: {namespace}}}\n\
         spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}\n"
    )
}

#[tokio::test]
async fn an_object_that_an_earlier_bundle_left_in_another_namespace_takes_no_permission_for_the_whole_kind() {
    let before = claim("default") + &claim("kube-system");
    let (site, proxy, mut reconciler) = upgrading(&before, &claim("default")).await;
    let forbidden = json!({
        "message": "persistentvolumeclaims is forbidden: User \"quorate\" cannot list resource \
                    \"persistentvolumeclaims\" in API group \"\" at the cluster scope",
    });
    let cluster_wide = "/api/v1/persistentvolumeclaims?";
    proxy.fail("GET", cluster_wide, usize::MAX, Fault::Refuse(403, forbidden));
    let report = reconciler.pass(site.fence()).await;
    expect_success(&report);
    assert_eq!(
        ended(&report, "unchanged"),
        ["PersistentVolumeClaim default/data"]
    );
    assert_eq!(ended(&report, "kept"), ["PersistentVolumeClaim kube-system/data"]);
}

#[tokio::test]
async fn an_object_whose_kind_changed_its_scope_says_how_it_is_forgotten() {
    let ball = "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: red}\n";
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&(BALLS.to_owned() + ball))).await);
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/balls.toys.example.com";
    site.delete(definition).await;
    // The other ball has only the namespace `default` listed, which does not cover the old one.
    let blue =
        "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: blue, namespace: default}\n";
    let namespaced = BALLS.replace("scope: Cluster", "scope: Namespaced") + blue;
    let mut report = site.pass(bundle(&namespaced)).await;
    // The server removes the old definition in its own time.
    for _ in 0..100 {
        if report.summary().contains("quorate inventory forget") {
            break;
        }
        report = site.pass(bundle(&namespaced)).await;
    }
    assert!(
        report
            .summary()
            .contains("quorate inventory forget Ball.toys.example.com red"),
        "{}",
        report.summary()
    );
}

#[tokio::test]
async fn an_error_of_a_look_is_shown_until_the_next_look_is_answered() {
    let site = Site::start().await;
    let manifests = config_map("a", "v") + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n";
    expect_success(&site.pass(bundle(&manifests)).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("GET", "/configmaps?", 1, Fault::Held(Some(400)));
    proxy.fail("GET", "/configmaps?", usize::MAX, Fault::Hang);
    let mut reconciler = site
        .patient_reconciler_as(proxy.kubeconfig(), bundle(&manifests))
        .await;
    let report = reconciler.pass(site.fence()).await;
    assert!(
        report.summary().contains("has not answered"),
        "{}",
        report.summary()
    );
    proxy.release();
    tokio::time::timeout(SOON, reconciler.changed())
        .await
        .expect("the answer of the list");
    for pass in ["with the answer", "while it is asked again", "after that"] {
        let report = reconciler.pass(site.fence()).await;
        assert!(
            report.summary().contains("HTTP 400"),
            "{pass}: {}",
            report.summary()
        );
    }
}

/// INV-8: a pass waits for a version of its bundle that hangs once, as for a definition, and then no longer than for any request.
#[tokio::test]
async fn a_group_version_that_hangs_holds_up_no_later_pass() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let ball = "---\napiVersion: toys.example.com/v2\nkind: Ball\nmetadata: {name: red}\n";
    let settings = Settings {
        established_within: Duration::from_secs(1),
        lingers_after: Duration::from_secs(1),
        ..Settings::default()
    };
    let manifests = bundle(&(BALLS.to_owned() + ball + &config_map("a", "v")));
    let mut reconciler = site
        .reconciler_with(proxy.kubeconfig(), manifests, 5 * SOON, settings)
        .await;
    eventually(SOON, "the version is not served", async || {
        let report = reconciler.pass(site.fence()).await;
        same(
            ended(&report, "failed"),
            vec!["Ball.toys.example.com red".to_owned()],
        )
    })
    .await;
    proxy.fail("GET", "/apis/toys.example.com/v2", usize::MAX, Fault::Held(None));
    let passed = tokio::time::timeout(SOON, reconciler.pass(site.fence())).await;
    let report = passed.expect("the pass goes on without the answer");
    assert!(proxy.held() > 0);
    assert_eq!(ended(&report, "failed"), ["Ball.toys.example.com red"]);
}
