//! What the leader records of each object, and the commands that show and correct it.

use std::process::Stdio;

use serde_json::{Value, json};

use super::faults::{Fault, FaultProxy};
use super::site::{Site, bundle, config_map, config_map_path, ended, expect_success};
use crate::support::client::put;
use crate::support::quorate::{Finished, program, quorate};
use crate::support::wait::{SOON, eventually};

pub async fn run(site: &Site, args: &[&str]) -> Finished {
    let endpoints = format!("--etcd-endpoints={}", site.kubernetes.etcd.endpoints().join(","));
    let all = args.iter().copied().chain(["--prefix=/q", &endpoints]);
    quorate(all).await
}

/// The cells of a table, line by line, without the titles.
async fn resources(site: &Site) -> Vec<String> {
    let table = run(site, &["get", "resources", "--no-headers"])
        .await
        .expect_done();
    table.lines().map(str::to_owned).collect()
}

/// Makes an object of the same name that is not ours.
async fn add_foreign(site: &Site, name: &str) {
    let foreign = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let collection = "/api/v1/namespaces/default/configmaps";
    site.kubernetes.send("POST", collection, &foreign).await;
}

const TEAM: &str = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n";

#[tokio::test]
async fn each_object_is_shown_with_its_outcome_and_nothing_is_written_where_nothing_changed() {
    let site = Site::start().await;
    let before = config_map("good", "v") + TEAM;
    expect_success(&site.pass(bundle(&before)).await);
    add_foreign(&site, "foreign").await;
    let after = config_map("good", "v") + &config_map("foreign", "v");
    let mut reconciler = site.reconciler(bundle(&after)).await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/foreign"]);

    let shown = resources(&site).await;
    assert_eq!(shown.len(), 3, "{shown:#?}");
    assert!(shown[0].starts_with("ConfigMap default/foreign"), "{shown:#?}");
    assert!(
        shown[0].contains(" failed ") && shown[0].contains(" soon "),
        "{shown:#?}"
    );
    assert!(
        shown[0].contains("already exists and is not managed by this bundle"),
        "{shown:#?}"
    );
    assert!(
        shown[1].starts_with("ConfigMap default/good") && shown[1].contains(" in place "),
        "{shown:#?}"
    );
    assert!(
        shown[2].starts_with("Namespace team") && shown[2].contains(" kept "),
        "{shown:#?}"
    );
    let json = run(&site, &["get", "resources", "-o", "json"])
        .await
        .expect_done();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["items"][0]["kind"], "Resource");
    assert_eq!(json["items"][0]["status"]["inBundle"], true);
    assert_eq!(json["items"][2]["status"]["inBundle"], false);
    assert_eq!(json["items"][2]["spec"]["name"], "team");
    let names = run(&site, &["get", "res", "-o", "name"]).await.expect_done();
    assert_eq!(
        names,
        "ConfigMap default/foreign\nConfigMap default/good\nNamespace team\n"
    );
    run(&site, &["get", "resources", "good"]).await.expect_code(64);

    let revision = site.kubernetes.etcd.revision();
    reconciler.pass(site.fence()).await;
    assert_eq!(
        site.kubernetes.etcd.revision(),
        revision,
        "the outcomes are the same"
    );

    // An object that was never written is never pruned, and leaves the inventory with the bundle.
    expect_success(&site.pass(bundle(&config_map("good", "v"))).await);
    assert!(site.get(&config_map_path("foreign")).await.is_some());
    assert_eq!(
        site.inventory(),
        ["core/ConfigMap/default/good", "core/Namespace/_/team"]
    );
}

#[tokio::test]
async fn an_object_that_waits_long_says_until_when() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("PATCH", "configmaps/a", 1, Fault::Status(429, Some(600)));
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&config_map("a", "v")))
        .await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.count("failed"), 1, "{}", report.summary());
    let shown = resources(&site).await;
    assert!(
        shown[0].contains(" in 9m") || shown[0].contains(" in 10m"),
        "{shown:#?}"
    );
    let revision = site.kubernetes.etcd.revision();
    reconciler.pass(site.fence()).await;
    assert_eq!(
        site.kubernetes.etcd.revision(),
        revision,
        "it waits for the same time"
    );
}

#[tokio::test]
async fn an_object_that_the_bundle_dropped_can_be_forgotten_and_one_that_it_holds_can_not() {
    let site = Site::start().await;
    let before = config_map("stays", "v") + TEAM;
    expect_success(&site.pass(bundle(&before)).await);
    let mut reconciler = site.reconciler(bundle(&config_map("stays", "v"))).await;
    expect_success(&reconciler.pass(site.fence()).await);

    let refused = run(&site, &["inventory", "forget", "configmaps", "default/stays"]).await;
    let said = refused.expect_code(4);
    assert!(said.contains("refused by rule BundleHolds"), "{said}");
    let missing = run(&site, &["inventory", "forget", "cm", "stays"]).await;
    let said = missing.expect_code(3);
    assert!(said.contains("of this kind it holds default/stays\n"), "{said}");
    let missing = run(&site, &["inventory", "forget", "secrets", "default/stays"]).await;
    let said = missing.expect_code(3);
    assert!(
        said.contains("objects of the kinds ConfigMap, Namespace\n"),
        "{said}"
    );
    let said = run(&site, &["inventory", "forget", "namespaces", "team"])
        .await
        .expect_done();
    assert_eq!(
        said,
        "forgot Namespace team: it stays in the cluster and is not pruned\n"
    );
    let listed = run(&site, &["inventory", "list"]).await.expect_done();
    assert!(listed.contains("stays") && !listed.contains("team"), "{listed}");

    // The leader that had it in its memory reads the inventory again.
    eventually(SOON, "the forgotten object is not reported", async || {
        let report = reconciler.pass(site.fence()).await;
        expect_success(&report);
        match report.objects().len() {
            1 => Ok(()),
            _ => Err(format!("{:#?}", report.objects())),
        }
    })
    .await;
    assert!(site.get("/api/v1/namespaces/team").await.is_some());
    // A bundle that holds it again finds it by its label.
    expect_success(&site.pass(bundle(&before)).await);
    assert_eq!(
        site.inventory(),
        ["core/ConfigMap/default/stays", "core/Namespace/_/team"]
    );
}

#[tokio::test]
async fn objects_are_forgotten_although_the_output_is_full() {
    let site = Site::start().await;
    let stays = config_map("stays", "v");
    let teams = TEAM.to_owned() + &TEAM.replace("team", "crew");
    expect_success(&site.pass(bundle(&(stays.clone() + &teams))).await);
    expect_success(&site.pass(bundle(&stays)).await);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let child = program()
        .args(["inventory", "forget", "Namespace", "team", "crew", "--prefix=/q"])
        .arg(format!(
            "--etcd-endpoints={}",
            site.kubernetes.etcd.endpoints_flag()
        ))
        .stdin(Stdio::null())
        .stdout(full)
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let ended = tokio::time::timeout(SOON, child.wait_with_output());
    let ended = ended.await.expect("it ends").unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot write to standard output"), "{said}");
    assert_eq!(site.inventory(), ["core/ConfigMap/default/stays"]);
}

#[tokio::test]
async fn an_object_that_was_forgotten_during_a_term_is_not_deleted_by_its_next_pass() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&config_map("old", "v"))).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("PATCH", "configmaps/new", 1, Fault::Status(403, None));
    let after = bundle(&config_map("new", "v"));
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), after).await;
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "kept"), ["ConfigMap default/old"]);

    run(&site, &["inventory", "forget", "ConfigMap", "default/old"])
        .await
        .expect_done();
    // The leader counts the keys every few seconds. With another one the count stays as it was.
    let key = "/q/kubernetes/reconciler/inventory/names-no-object";
    put(&site.store.etcd, key, "").await;
    eventually(SOON, "the new object is in place", async || {
        let report = reconciler.pass(site.fence()).await;
        report.is_success().then_some(()).ok_or_else(|| report.summary())
    })
    .await;
    assert!(site.get(&config_map_path("old")).await.is_some());
    assert_eq!(
        site.inventory(),
        ["core/ConfigMap/default/new", "names-no-object"]
    );
}

#[tokio::test]
async fn forgetting_an_object_that_is_being_deleted_does_not_say_that_it_stays() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&config_map("old", "v"))).await);
    let held = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    site.patch(&config_map_path("old"), held).await;
    let report = site.pass(bundle(&config_map("new", "v"))).await;
    assert_eq!(ended(&report, "deleting"), ["ConfigMap default/old"]);
    let said = run(&site, &["inventory", "forget", "ConfigMap", "default/old"])
        .await
        .expect_done();
    assert_eq!(
        said,
        "forgot ConfigMap default/old: its deletion was begun and may still happen; it is not begun again\n"
    );
}

/// An entry of an object that was never written holds only its state: nothing is looked at or pruned for it.
#[tokio::test]
async fn an_object_that_was_never_written_is_never_pruned() {
    let site = Site::start().await;
    let (foreign, ball) = ("core/ConfigMap/default/foreign", "toys.example.com/Ball/_/red");
    let good = config_map("good", "v");
    expect_success(&site.pass(bundle(&good)).await);
    // One that a pass finds by the label, and whose bundle the entry must not take for its own.
    let collection = "/api/v1/namespaces/default/configmaps";
    let labels = json!({"quorate.dev/bundle": "other"});
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "foreign", "labels": labels}});
    site.kubernetes.send("POST", collection, &object).await;
    let unserved = "---\napiVersion: toys.example.com/v1\nkind: Ball\nmetadata: {name: red}\n";
    let all = good.clone() + &config_map("foreign", "v") + unserved;
    let report = site.pass(bundle(&all)).await;
    assert_eq!(
        ended(&report, "failed"),
        ["ConfigMap default/foreign", "Ball.toys.example.com red"]
    );
    for path in [foreign, ball] {
        let applied = site.entry(path).await;
        assert!(
            applied.unwritten && applied.uid.is_empty() && applied.version.is_empty(),
            "{path}: {applied:?}"
        );
    }

    let report = site.pass(bundle(&good)).await;
    expect_success(&report);
    assert_eq!(report.objects().len(), 1, "{:#?}", report.objects());
    assert_eq!(site.inventory(), ["core/ConfigMap/default/good"]);
    assert!(site.get(&config_map_path("foreign")).await.is_some());

    // Before the first write, an entry that something may be pruned for takes its place.
    site.pass(bundle(&all)).await;
    site.delete(&config_map_path("foreign")).await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail(
        "PATCH",
        "configmaps/foreign",
        usize::MAX,
        Fault::Status(400, None),
    );
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&all)).await;
    reconciler.pass(site.fence()).await;
    let applied = site.entry(foreign).await;
    assert!(!applied.unwritten && applied.version == "v1", "{applied:?}");
}
