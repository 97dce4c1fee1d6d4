//! One object in trouble delays only itself (INV-8), and status writes cost nothing.

use std::time::{Duration, Instant};

use quorate::etcd::Fence;
use quorate::gate::controller::Reconcile as _;
use quorate::kube::KubeClient;
use quorate::kube::events::Events;
use quorate::resources::{Config, Reconciler, Settings, TermReconciler};
use quorate::summary::Latest;
use quorate::term::Notices;
use serde_json::json;
use tokio::task::JoinSet;

use super::faults::{Fault, FaultProxy};
use super::site::{BALLS, Site, bundle, config_map, config_map_path, ended, expect_success};
use crate::support::wait::{SOON, eventually, same};

/// Makes passes as the gate does: after each change, and some time after a failure.
async fn keep_reconciled(reconciler: &mut Reconciler, fence: &Fence) {
    loop {
        let report = reconciler.pass(fence).await;
        let pause = match report.is_success() {
            true => Duration::from_secs(30),
            false => Duration::from_millis(200),
        };
        let _ = tokio::time::timeout(pause, reconciler.changed()).await;
    }
}

/// Changes the ConfigMap `good` again and again, and expects each change to be mended long before a request that hangs is
/// given up.
async fn expect_mends_at_once(site: &Site) {
    for round in 0..4 {
        let begun = Instant::now();
        site.patch(
            &config_map_path("good"),
            json!({"data": {"key": format!("theirs-{round}")}}),
        )
        .await;
        eventually(SOON, "it is mended", async || {
            let value = site.get(&config_map_path("good")).await.unwrap()["data"]["key"].clone();
            if value == "ours" {
                Ok(())
            } else {
                Err(value.to_string())
            }
        })
        .await;
        let took = begun.elapsed();
        assert!(took < SOON / 3, "round {round}: {took:?}");
        // So that each round meets the passes and the request that hangs at another moment of theirs.
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}

#[tokio::test]
async fn an_object_whose_writes_hang_delays_the_mending_of_no_other() {
    let site = Site::start().await;
    let manifests = config_map("bad", "ours") + &config_map("good", "ours");
    expect_success(&site.pass(bundle(&manifests)).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = site
        .patient_reconciler_as(proxy.kubeconfig(), bundle(&manifests))
        .await;
    expect_success(&reconciler.pass(site.fence()).await);
    proxy.fail("PATCH", "configmaps/bad", usize::MAX, Fault::Hang);
    site.patch(&config_map_path("bad"), json!({"data": {"key": "theirs"}}))
        .await;
    tokio::select! {
        () = keep_reconciled(&mut reconciler, site.fence()) => {}
        () = expect_mends_at_once(&site) => {}
    }
}

/// A webhook that hangs for a kind holds up all objects of the kind.
#[tokio::test]
async fn sixty_four_objects_whose_writes_hang_delay_the_mending_of_no_other_kind() {
    let ours = json!("b3Vycw==");
    let secret = format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: good, namespace: default}}\ndata: {{key: {ours}}}\n"
    );
    let names: Vec<String> = (0..64).map(|number| format!("hang-{number}")).collect();
    let maps: String = names.iter().map(|name| config_map(name, "ours")).collect();
    let manifests = maps + &secret;
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&manifests)).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = site
        .patient_reconciler_as(proxy.kubeconfig(), bundle(&manifests))
        .await;
    expect_success(&reconciler.pass(site.fence()).await);
    proxy.fail("PATCH", "configmaps/hang-", usize::MAX, Fault::Hang);
    for name in &names {
        site.patch(&config_map_path(name), json!({"data": {"key": "theirs"}}))
            .await;
    }
    let path = "/api/v1/namespaces/default/secrets/good";
    let begun = Instant::now();
    site.patch(path, json!({"data": {"key": "dGhlaXJz"}})).await;
    let mended = eventually(SOON, "the Secret is mended", async || {
        same(site.get(path).await.unwrap()["data"]["key"].clone(), ours.clone())
    });
    tokio::select! {
        () = keep_reconciled(&mut reconciler, site.fence()) => {}
        _ = mended => {}
    }
    // Each request that hangs is given up after a minute, and eight are sent at a time.
    assert!(begun.elapsed() < SOON / 3, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_kind_whose_list_hangs_delays_the_mending_of_no_other_kind() {
    let secret = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: bad, namespace: default}\n";
    let manifests = secret.to_owned() + &config_map("good", "ours");
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&manifests)).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("GET", "secrets?labelSelector=", usize::MAX, Fault::Hang);
    let mut reconciler = site
        .patient_reconciler_as(proxy.kubeconfig(), bundle(&manifests))
        .await;
    tokio::select! {
        () = keep_reconciled(&mut reconciler, site.fence()) => {}
        () = expect_mends_at_once(&site) => {}
    }
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "failed"), ["Secret default/bad"]);
    assert!(
        report.summary().contains("has not answered"),
        "{}",
        report.summary()
    );
}

#[tokio::test]
async fn an_object_that_is_recreated_and_hangs_on_a_finalizer_delays_the_mending_of_no_other() {
    let frozen = |value: &str| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: frozen, namespace: default, \
             finalizers: [example.com/hold]}}\nimmutable: true\ndata: {{key: {value}}}\n"
        )
    };
    let site = Site::start().await;
    expect_success(
        &site
            .pass(bundle(&(frozen("a") + &config_map("good", "ours"))))
            .await,
    );
    let after = bundle(&(frozen("b") + &config_map("good", "ours")));
    let mut reconciler = site
        .patient_reconciler_as(site.kubernetes.kubeconfig(), after)
        .await;
    tokio::select! {
        () = keep_reconciled(&mut reconciler, site.fence()) => {}
        () = expect_mends_at_once(&site) => {}
    }
}

#[tokio::test]
async fn a_connection_that_one_object_breaks_is_the_fault_of_that_object() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let manifests = config_map("bad", "v") + &config_map("good", "v");
    proxy.fail("PATCH", "configmaps/bad", usize::MAX, Fault::Break);
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&manifests)).await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.stopped(), None);
    assert_eq!(ended(&report, "created"), ["ConfigMap default/good"]);
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/bad"]);
    assert!(
        report
            .summary()
            .contains("ConfigMap default/bad: failed to apply: "),
        "{}",
        report.summary()
    );
}

#[tokio::test]
async fn an_object_that_is_not_ours_after_a_failed_attempt_starts_no_passes() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("PATCH", "configmaps/a", 1, Fault::Status(422, None));
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&config_map("a", "v")))
        .await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/a"]);
    let foreign = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "labels": {"quorate.dev/bundle": "other"}},
    });
    let collection = "/api/v1/namespaces/default/configmaps";
    site.kubernetes.send("POST", collection, &foreign).await;
    let mut passes = 0;
    while tokio::time::timeout(Duration::from_millis(500), reconciler.changed())
        .await
        .is_ok()
    {
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(ended(&report, "failed"), ["ConfigMap default/a"]);
        passes += 1;
        assert!(passes < 10, "passes without a change (INV-9)");
    }
}

/// A kind is listed for the first time after its objects were created.
#[tokio::test]
async fn a_first_list_that_takes_long_leaves_in_place_what_the_term_has_just_created() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let manifests = config_map("a", "ours") + &config_map("b", "ours");
    let mut reconciler = site
        .patient_reconciler_as(proxy.kubeconfig(), bundle(&manifests))
        .await;
    proxy.fail("GET", "configmaps?", 1, Fault::Held(None));
    expect_success(&reconciler.pass(site.fence()).await);
    tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(proxy.held(), 1, "the list is under way");
    expect_success(&report);
    assert_eq!(report.count("unchanged"), 2, "{:#?}", report.objects());
    let woken = tokio::time::timeout(Duration::from_millis(500), reconciler.changed()).await;
    assert!(
        woken.is_err(),
        "a pass has nothing to do before the answer (INV-9)"
    );

    site.delete(&config_map_path("a")).await;
    proxy.release();
    site.reconcile_until(&mut reconciler, |report| {
        ended(report, "created") == ["ConfigMap default/a"]
    })
    .await;
}

#[tokio::test]
async fn an_object_that_is_deleted_before_the_answer_to_its_apply_comes_is_created_again() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let path = config_map_path("a");
    let mut reconciler = site
        .patient_reconciler_as(proxy.kubeconfig(), bundle(&config_map("a", "ours")))
        .await;
    expect_success(&reconciler.pass(site.fence()).await);
    site.settle(&mut reconciler).await;
    proxy.fail("PATCH", "configmaps/a", 1, Fault::HeldReply);
    site.patch(&path, json!({"data": {"key": "theirs"}})).await;
    tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/a"]);
    assert_eq!(proxy.held(), 1);
    site.delete(&path).await;
    // The deletion is noted, and starts no pass: the answer to the request will.
    let woken = tokio::time::timeout(Duration::from_secs(1), reconciler.changed()).await;
    assert!(woken.is_err());
    proxy.release();
    eventually(SOON, "it is there again", async || {
        reconciler.pass(site.fence()).await;
        let found = site.get(&path).await.ok_or("absent")?;
        assert_eq!(found["data"]["key"], "ours");
        Ok::<_, &str>(())
    })
    .await;
}

pub const RED: &str = "---
apiVersion: toys.example.com/v1
kind: Ball
metadata: {name: red}
spec: {size: 1}
";

#[tokio::test]
async fn the_status_writes_of_another_controller_wake_nothing_and_are_no_fight() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&(BALLS.to_owned() + RED)))
        .await;
    expect_success(&reconciler.pass(site.fence()).await);
    // The definition's own status settles.
    while tokio::time::timeout(Duration::from_millis(500), reconciler.changed())
        .await
        .is_ok()
    {
        expect_success(&reconciler.pass(site.fence()).await);
    }
    proxy.take_noted();
    let path = "/apis/toys.example.com/v1/balls/red";
    for beat in 0..8 {
        site.patch(
            &format!("{path}/status?fieldManager=controller"),
            json!({"status": {"beat": beat}}),
        )
        .await;
        let report = reconciler.pass(site.fence()).await;
        expect_success(&report);
        assert_eq!(report.count("unchanged"), 2, "{:#?}", report.objects());
    }
    // A watch that the server ends wakes the reconciler, too.
    let mut woken = 0;
    while tokio::time::timeout(Duration::from_millis(500), reconciler.changed())
        .await
        .is_ok()
    {
        woken += 1;
        assert!(woken <= 2, "a status write woke the reconciler");
        expect_success(&reconciler.pass(site.fence()).await);
    }
    let noted = proxy.take_noted();
    let writes = noted.iter().filter(|noted| noted.method != "GET").count();
    assert_eq!(writes, 0, "{noted:#?}");

    // Another client's change of our fields is drift.
    site.patch(path, json!({"spec": {"size": 2}})).await;
    tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "applied"), ["Ball.toys.example.com red"]);
}

#[tokio::test]
async fn a_definition_that_is_never_established_delays_the_passes_once() {
    let second = BALLS
        .replace("balls", "spheres")
        .replace("BallList", "SphereList");
    let site = Site::start().await;
    // Of two definitions with the same kind, the server establishes the one that was first.
    expect_success(&site.pass(bundle(BALLS)).await);
    let manifests = format!("{BALLS}{RED}---\n{second}{}", config_map("good", "v"));
    let mut reconciler = site.reconciler(bundle(&manifests)).await;
    let first = reconciler.pass(site.fence()).await;
    assert_eq!(first.count("created"), 2, "{:#?}", first.objects());
    assert_eq!(
        ended(&first, "failed"),
        ["CustomResourceDefinition spheres.toys.example.com"]
    );
    let begun = Instant::now();
    let later = reconciler.pass(site.fence()).await;
    assert_eq!(later.count("failed"), 1, "{}", later.summary());
    let limit = Settings::default().established_within;
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
}

/// An Event may take 3 s. Each of these passes has one to report.
#[tokio::test]
async fn an_api_of_events_that_hangs_delays_no_pass() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("POST", "/events", usize::MAX, Fault::Hang);
    proxy.fail("PATCH", "configmaps/a", usize::MAX, Fault::Status(422, None));
    let kube = KubeClient::connect(Some(&proxy.kubeconfig())).await.unwrap();
    let events = Events::new(kube.clone(), None, "test");
    let (notices, publishing) = Notices::publishing(events, site.fence().clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(publishing);
    let term = TermReconciler::factory(Config {
        kube,
        bundle: bundle(&config_map("a", "v")),
        store: site.store.clone(),
        settings: Settings::default(),
        summaries: Latest::default(),
    });
    let mut best = Duration::MAX;
    // One that awaits its Event does so each time; a busy machine is seldom too slow for all of them.
    for _ in 0..4 {
        let begun = Instant::now();
        let passed = term(notices.clone()).pass(site.fence()).await;
        best = best.min(begun.elapsed());
        assert!(passed.is_err(), "it is in trouble");
    }
    assert!(best < Duration::from_secs(2), "{best:?}");
    eventually(SOON, "an Event is under way", async || {
        let noted = proxy.noted();
        let is_event = noted
            .iter()
            .any(|noted| noted.method == "POST" && noted.uri.contains("/events"));
        if is_event { Ok(()) } else { Err("none") }
    })
    .await;
}
