//! Servers that shed load, fail, hang, forbid or are down; and leaders that have lost the lead.

use std::cell::Cell;
use std::time::{Duration, Instant};

use quorate::etcd::Txn;
use quorate::resources::report::Stopped;
use quorate::resources::{Reconciler, Report, Settings};

use super::faults::{Fault, FaultProxy, Noted};
use super::site::{BALLS, Site, bundle, config_map, config_map_path, ended, expect_success};
use crate::support::client::commit;
use crate::support::kubernetes::Kubernetes;
use crate::support::proxy::Network;
use crate::support::wait::{SOON, eventually, same};

async fn proxied(manifests: &str) -> (Site, FaultProxy, Reconciler) {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(manifests)).await;
    (site, proxy, reconciler)
}

/// Makes passes until every request is answered; a pass does not wait for one that takes long.
async fn answered(site: &Site, reconciler: &mut Reconciler) -> Report {
    loop {
        let report = reconciler.pass(site.fence()).await;
        if !report.summary().contains("has not answered the request") {
            return report;
        }
        tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    }
}

/// How often the ConfigMaps were listed.
fn lists(proxy: &FaultProxy) -> usize {
    let noted = proxy.noted();
    noted
        .iter()
        .filter(|noted| noted.uri.contains("configmaps?"))
        .count()
}

#[tokio::test]
async fn a_server_that_sheds_load_gets_the_time_that_it_asks_for() {
    let (site, proxy, mut reconciler) = proxied(&config_map("a", "v")).await;
    // A kind is listed only where the inventory has something of it.
    expect_success(&site.pass(bundle(&config_map("a", "before"))).await);
    proxy.fail("PATCH", "configmaps/a", 2, Fault::Status(429, Some(1)));
    proxy.fail("GET", "configmaps?", 1, Fault::Status(429, None));
    let begun = Instant::now();
    expect_success(&answered(&site, &mut reconciler).await);
    assert_eq!(lists(&proxy), 2);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_longer_wait_is_kept_without_delaying_the_pass() {
    let (site, proxy, mut reconciler) = proxied(&(config_map("a", "v") + &config_map("b", "v"))).await;
    proxy.fail("PATCH", "configmaps/a", 1, Fault::Status(429, Some(60)));
    let begun = Instant::now();
    let report = reconciler.pass(site.fence()).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(ended(&report, "created"), ["ConfigMap default/b"]);
    assert!(
        report.summary().contains("API server throttled the request"),
        "{}",
        report.summary()
    );
    proxy.take_noted();
    let again = reconciler.pass(site.fence()).await;
    assert_eq!(again.count("failed"), 1, "its wait is not over");
    assert!(proxy.take_noted().iter().all(|noted| noted.method == "GET"));
}

#[tokio::test]
async fn a_wait_without_sense_delays_only_its_object() {
    // More seconds than any calendar has, and more than any clock counts.
    for seconds in [1_800_000_000_000, u64::MAX] {
        let (site, proxy, mut reconciler) = proxied(&(config_map("a", "v") + &config_map("b", "v"))).await;
        proxy.fail("PATCH", "configmaps/a", 1, Fault::Status(429, Some(seconds)));
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(ended(&report, "created"), ["ConfigMap default/b"], "{seconds}");
        assert_eq!(ended(&report, "failed"), ["ConfigMap default/a"], "{seconds}");
        let state = site.entry("core/ConfigMap/default/a").await.state.unwrap();
        let wait = state.retry_at.unwrap().seconds - state.since.unwrap().seconds;
        assert!((3_500..=3_700).contains(&wait), "{wait} s");
    }
}

#[tokio::test]
async fn a_request_that_fails_once_is_repeated() {
    let (site, proxy, mut reconciler) = proxied(&config_map("a", "v")).await;
    expect_success(&site.pass(bundle(&config_map("a", "before"))).await);
    proxy.fail("GET", "/api/v1", 1, Fault::Status(500, None));
    proxy.fail("GET", "configmaps?", 1, Fault::Status(503, None));
    proxy.fail("PATCH", "configmaps/a", 2, Fault::Status(500, None));
    expect_success(&reconciler.pass(site.fence()).await);
    assert_eq!(lists(&proxy), 2);
}

/// Server-side apply checks each manifest against the schema of its kind, so that a misspelt field is an error without any
/// `fieldValidation`.
#[tokio::test]
async fn a_field_that_the_schema_does_not_declare_is_refused_and_named() {
    let anything = "x-kubernetes-preserve-unknown-fields: true";
    let size = "properties: {spec: {type: object, properties: {size: {type: integer}}}}";
    let manifests = BALLS.replace(anything, size)
        + "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: red}\nspec: {size: 1, colour: red}\n"
        + &config_map("a", "v").replace("\ndata:", "\ndta:");
    let (site, proxy, mut reconciler) = proxied(&manifests).await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(
        ended(&report, "failed"),
        ["ConfigMap default/a", "Ball.toys.example.com red"]
    );
    for field in [".dta", ".spec.colour"] {
        let named = format!("{field}: field not declared in schema");
        assert!(report.summary().contains(&named), "{}", report.summary());
    }
    for path in ["configmaps/a", "balls/red"] {
        let noted = proxy.noted();
        let sent = noted.iter().filter(|noted| noted.uri.contains(path)).count();
        assert_eq!(sent, 1, "a repetition cannot succeed: {path}");
    }
}

#[tokio::test]
async fn a_server_that_keeps_failing_for_one_object_delays_only_that_object() {
    let (site, proxy, mut reconciler) = proxied(&(config_map("a", "v") + &config_map("b", "v"))).await;
    proxy.fail("PATCH", "configmaps/a", 100, Fault::Status(500, None));
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "created"), ["ConfigMap default/b"]);
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/a"]);
    assert!(
        report.summary().contains("API server error (HTTP 500)"),
        "{}",
        report.summary()
    );
}

#[tokio::test]
async fn a_write_whose_response_is_lost_is_made_once() {
    let (site, proxy, mut reconciler) = proxied(&config_map("a", "v")).await;
    proxy.fail("PATCH", "configmaps/a", 1, Fault::LoseReply(504));
    expect_success(&reconciler.pass(site.fence()).await);
    let uid = site.uid(&config_map_path("a")).await;
    let recorded = site
        .kubernetes
        .etcd
        .get("/q/kubernetes/reconciler/inventory/core/ConfigMap/default/a");
    assert!(recorded.unwrap().contains(&uid));
}

#[tokio::test]
async fn after_a_conflict_the_object_is_read_and_planned_again() {
    let (site, proxy, mut reconciler) = proxied(&config_map("a", "v")).await;
    proxy.fail("PATCH", "configmaps/a", 1, Fault::Status(409, None));
    expect_success(&reconciler.pass(site.fence()).await);
    let patches = proxy
        .take_noted()
        .iter()
        .filter(|noted| noted.method == "PATCH")
        .count();
    assert_eq!(patches, 2);
}

#[tokio::test]
async fn a_write_that_hangs_delays_only_its_object_which_is_in_the_inventory_before() {
    let (site, proxy, mut reconciler) = proxied(&(config_map("a", "v") + &config_map("b", "v"))).await;
    proxy.fail("PATCH", "configmaps/a", usize::MAX, Fault::Hang);
    let (report, ()) = tokio::join!(reconciler.pass(site.fence()), async {
        eventually(SOON, "the other object is there", async || {
            let there = site.get(&config_map_path("b")).await;
            there.map(drop).ok_or("not yet")
        })
        .await;
        assert!(site.get(&config_map_path("a")).await.is_none());
        assert_eq!(
            site.inventory(),
            ["core/ConfigMap/default/a", "core/ConfigMap/default/b"]
        );
    });
    assert_eq!(
        report.stopped(),
        None,
        "one request that hangs does not condemn the server"
    );
    assert_eq!(ended(&report, "created"), ["ConfigMap default/b"]);
    let report = answered(&site, &mut reconciler).await;
    assert!(
        report.summary().contains("did not respond within 3s"),
        "{}",
        report.summary()
    );
}

#[tokio::test]
async fn a_server_that_is_down_is_one_error_and_is_used_again_when_it_is_back() {
    let mut site = Site::start().await;
    let manifests: String = (0..50).map(|n| config_map(&format!("map-{n}"), "v")).collect();
    let mut reconciler = site.reconciler(bundle(&manifests)).await;
    site.kubernetes.kill().await.unwrap();
    let begun = Instant::now();
    let report = reconciler.pass(site.fence()).await;
    let Some(Stopped::ApiServer(why)) = report.stopped() else {
        panic!("{}", report.summary());
    };
    assert!(why.contains("is unreachable") && why.contains("refused"), "{why}");
    assert_eq!(report.reason(), "ApiServerUnavailable");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());

    site.kubernetes.launch().await.unwrap();
    eventually(SOON, "the objects are there", async || {
        let report = reconciler.pass(site.fence()).await;
        if report.is_success() {
            Ok(())
        } else {
            Err(report.summary())
        }
    })
    .await;
    assert_eq!(site.inventory().len(), 50);
}

#[tokio::test]
async fn a_server_that_hangs_for_every_kind_is_one_error_and_one_that_hangs_for_one_kind_is_not() {
    let manifests = config_map("a", "v") + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n";
    let (site, proxy, mut reconciler) = proxied(&manifests).await;
    expect_success(&site.pass(bundle(&manifests)).await);
    proxy.fail("GET", "/configmaps?", 2, Fault::Hang);
    proxy.fail("GET", "/namespaces?", 1, Fault::Hang);
    let report = reconciler.pass(site.fence()).await;
    let Some(Stopped::ApiServer(why)) = report.stopped() else {
        panic!("{}", report.summary());
    };
    assert!(why.contains("did not respond within 3s"), "{why}");

    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.stopped(), None);
    assert_eq!(ended(&report, "unchanged"), ["Namespace team"]);
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/a"]);
}

#[tokio::test]
async fn a_watch_that_breaks_continues_when_the_server_is_back() {
    let mut site = Site::start().await;
    let mut reconciler = site.reconciler(bundle(&config_map("a", "ours"))).await;
    expect_success(&reconciler.pass(site.fence()).await);
    site.kubernetes.kill().await.unwrap();
    site.kubernetes.launch().await.unwrap();
    site.patch(
        &config_map_path("a"),
        serde_json::json!({"data": {"key": "theirs"}}),
    )
    .await;
    tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    eventually(SOON, "it is mended", async || {
        let report = reconciler.pass(site.fence()).await;
        let value = site.get(&config_map_path("a")).await.unwrap()["data"]["key"].clone();
        if value == "ours" {
            Ok(())
        } else {
            Err(report.summary())
        }
    })
    .await;
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let user = quorate_dev::apiserver::User {
        name: "reader".to_owned(),
        token: "reader-token".to_owned(),
        groups: Vec::new(),
    };
    let kubernetes = Kubernetes::with(vec![user], &[]).await;
    let site = Site::on(kubernetes).await;
    let kubeconfig = site
        .kubernetes
        .write_kubeconfig("reader", "reader-token")
        .unwrap();
    let mut reconciler = site
        .reconciler_as(kubeconfig, bundle(&config_map("a", "v")))
        .await;
    // The first pass creates, and the second one lists.
    for missing in [
        "missing permission: patch configmaps \"a\" in namespace default",
        "missing permission: list configmaps in namespace default",
    ] {
        let report = reconciler.pass(site.fence()).await;
        assert!(report.summary().contains(missing), "{}", report.summary());
    }
}

#[tokio::test]
async fn a_leader_whose_window_is_closed_sends_nothing() {
    let (site, proxy, mut reconciler) = proxied(&config_map("a", "v")).await;
    site.fence().window().close();
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.stopped(), Some(&Stopped::LostLeadership));
    assert!(proxy.take_noted().is_empty());
    assert_eq!(site.inventory(), [""; 0]);
}

#[tokio::test]
async fn a_stale_leader_writes_no_object() {
    // etcd refuses the inventory entry (INV-1), and an object is written only after its entry (INV-3).
    let (site, proxy, mut reconciler) = proxied(&config_map("a", "v")).await;
    for key in site.kubernetes.etcd.keys("/q/kubernetes/reconciler/leader/") {
        commit(&site.store.etcd, Txn::new().delete(key.as_bytes()))
            .await
            .unwrap();
    }
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.stopped(), Some(&Stopped::LostLeadership));
    assert!(proxy.take_noted().iter().all(|noted| noted.method == "GET"));
    assert!(site.get(&config_map_path("a")).await.is_none());
}

#[tokio::test]
async fn calls_in_flight_are_cancelled_when_the_window_closes() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let wanted = bundle(&config_map("a", "v"));
    let mut reconciler = site.waiting_reconciler_as(proxy.kubeconfig(), wanted).await;
    proxy.fail("PATCH", "configmaps/a", 1, Fault::Hang);
    let begun = Instant::now();
    let (report, ()) = tokio::join!(reconciler.pass(site.fence()), async {
        eventually(SOON, "the write is in flight", async || {
            let noted = proxy.take_noted();
            let sent = noted.iter().any(|noted| noted.method == "PATCH");
            if sent { Ok(()) } else { Err("not yet") }
        })
        .await;
        site.fence().window().close();
    });
    assert_eq!(report.stopped(), Some(&Stopped::LostLeadership));
    assert!(
        begun.elapsed() < SOON / 2,
        "{:?}: it waited for the answer",
        begun.elapsed()
    );
}

/// Of an outage that ended a pass some answers come later. They say nothing of the next pass.
#[tokio::test]
async fn a_pass_after_an_outage_asks_the_server_itself() {
    let (site, network) = Site::behind_a_network().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let late: String = (0..6).map(|n| config_map(&format!("late-{n}"), "v")).collect();
    let manifests = config_map("a", "v") + &config_map("b", "v") + &late;
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&manifests)).await;
    // The server itself rejects the credentials each time that an object's request was rejected.
    proxy.fail("GET", "/api/v1$", 1, Fault::Nothing);
    proxy.fail("GET", "/api/v1$", 2, Fault::Status(401, None));
    proxy.fail("PATCH", "configmaps/b", 1, Fault::Status(401, None));
    proxy.fail("PATCH", "configmaps/late-", 6, Fault::Held(Some(401)));
    network.set(Network::Delays(Duration::from_millis(1500)));
    let (report, ()) = tokio::join!(reconciler.pass(site.fence()), async {
        eventually(SOON, "all requests are under way", async || {
            let writes = proxy
                .noted()
                .iter()
                .filter(|noted| noted.method == "PATCH")
                .count();
            same((writes, proxy.held()), (8, 6))
        })
        .await;
        // The record of the first answers takes three seconds, and nothing shows when it begins.
        tokio::time::sleep(Duration::from_millis(500)).await;
        proxy.release();
    });
    assert!(
        matches!(report.stopped(), Some(Stopped::ApiServer(_))),
        "{:?}",
        report.stopped()
    );
    network.set(Network::Passes);
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.stopped(), None);
}

/// INV-9: a pass holds the answer about an object that came while another result was recorded, and asks nothing again before it has
/// taken that in.
#[tokio::test]
async fn an_object_that_is_answered_while_a_result_is_recorded_gets_no_second_request() {
    let (site, network) = Site::behind_a_network().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let manifests = bundle(&(config_map("x", "v") + &config_map("z", "v")));
    let settings = Settings {
        lingers_after: Duration::from_millis(300),
        ..Settings::default()
    };
    let mut reconciler = site
        .reconciler_with(proxy.kubeconfig(), manifests, SOON, settings)
        .await;
    proxy.fail("PATCH", "configmaps/", usize::MAX, Fault::HeldReply);
    eventually(SOON, "passes go on without both answers", async || {
        let report = reconciler.pass(site.fence()).await;
        same((proxy.held(), report.count("failed")), (2, 2))
    })
    .await;
    let uid = site.uid(&config_map_path("z")).await;
    let entry = "/q/kubernetes/reconciler/inventory/core/ConfigMap/default/z";
    network.set(Network::Delays(Duration::from_millis(1500)));
    proxy.release_of("configmaps/z");
    let is_recorded = Cell::new(false);
    let passes = async {
        while !is_recorded.get() {
            tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
            reconciler.pass(site.fence()).await;
        }
    };
    tokio::join!(passes, async {
        eventually(SOON, "the result of z is in etcd", async || {
            let stored = site.kubernetes.etcd.get(entry);
            same(stored.is_some_and(|stored| stored.contains(&uid)), true)
        })
        .await;
        // The answer about x comes before that of etcd, which is on its way for a second and a half.
        proxy.release_of("configmaps/x");
        is_recorded.set(true);
    });
    network.set(Network::Passes);
    expect_success(&answered(&site, &mut reconciler).await);
    let noted = proxy.noted();
    for name in ["configmaps/x", "configmaps/z"] {
        let of = |noted: &&Noted| noted.method == "PATCH" && noted.uri.contains(name);
        assert_eq!(noted.iter().filter(of).count(), 1, "{name}");
    }
}
