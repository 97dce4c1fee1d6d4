//! `quorate inventory forget` beside deletions: what it says holds, whatever the leader has under way (INV-12).

use std::time::Duration;

use prost::Message as _;
use quorate::proto::Applied;
use quorate::resources::{Bundle, Reconciler, Settings};
use serde_json::json;

use super::faults::{Fault, FaultProxy};
use super::inventory::run;
use super::site::{Site, bundle, config_map, config_map_path, ended, expect_success};
use crate::support::wait::{SOON, eventually, same};

const IT_MAY_STILL_HAPPEN: &str = "its deletion was begun and may still happen; it is not begun again";

/// A reconciler whose passes soon go on without an answer, with this many requests at a time.
async fn hasty(site: &Site, proxy: &FaultProxy, bundle: Bundle, in_flight: usize) -> Reconciler {
    let settings = Settings {
        in_flight,
        lingers_after: Duration::from_millis(300),
        allow_prune: 100,
        ..Settings::default()
    };
    site.reconciler_with(proxy.kubeconfig(), bundle, SOON, settings)
        .await
}

async fn entry(site: &Site, name: &str) -> Applied {
    let key = format!("/q/kubernetes/reconciler/inventory/core/ConfigMap/default/{name}");
    let (stored, _) = site.store.etcd.get(key.as_bytes()).await.unwrap();
    let stored = stored.unwrap_or_else(|| panic!("{name}: {:?}", site.inventory()));
    Applied::decode(stored.value.as_slice()).unwrap()
}

/// What the deletions of this pass are named by: the object's name in the request.
fn deleted(proxy: &FaultProxy) -> Vec<String> {
    let noted = proxy.noted();
    let deletions = noted.iter().filter(|noted| noted.method == "DELETE");
    let name = |uri: &str| uri.rsplit('/').next().unwrap_or_default().to_owned();
    deletions.map(|noted| name(&noted.uri)).collect()
}

#[tokio::test]
async fn an_object_whose_deletion_waits_behind_others_is_not_deleted_once_it_is_forgotten() {
    let site = Site::start().await;
    let names: Vec<String> = (0..6).map(|n| format!("old-{n}")).collect();
    let old: String = names.iter().map(|name| config_map(name, "v")).collect();
    expect_success(&site.pass(bundle(&(old + &config_map("a", "v")))).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = hasty(&site, &proxy, bundle(&config_map("a", "v")), 1).await;
    proxy.fail("DELETE", "configmaps/old-", usize::MAX, Fault::Held(None));
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(report.count("failed"), 6, "{:#?}", report.objects());
    let sent = deleted(&proxy);
    let forgotten = names.iter().find(|name| !sent.contains(name)).unwrap();
    let said = run(
        &site,
        &[
            "inventory",
            "forget",
            "ConfigMap",
            &format!("default/{forgotten}"),
        ],
    )
    .await;
    assert!(said.expect_done().contains(IT_MAY_STILL_HAPPEN));

    proxy.release();
    eventually(SOON, "the others are deleted", async || {
        reconciler.pass(site.fence()).await;
        same(site.inventory(), vec!["core/ConfigMap/default/a".to_owned()])
    })
    .await;
    for name in &names {
        let there = site.get(&config_map_path(name)).await.is_some();
        assert_eq!(there, name == forgotten, "{name}");
    }
}

#[tokio::test]
async fn a_deletion_that_the_server_puts_off_is_not_said_to_be_none() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&config_map("old", "v"))).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = hasty(&site, &proxy, bundle(&config_map("new", "v")), 8).await;
    proxy.fail("DELETE", "configmaps/old", 2, Fault::Status(429, Some(2)));
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/old"]);
    let said = run(&site, &["inventory", "forget", "ConfigMap", "default/old"]).await;
    assert!(said.expect_done().contains(IT_MAY_STILL_HAPPEN));
}

#[tokio::test]
async fn a_deletion_that_is_refused_again_and_again_is_recorded_once() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&config_map("old", "v"))).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = hasty(&site, &proxy, bundle(&config_map("new", "v")), 8).await;
    let refusal = json!({"message": "no deletions today"});
    proxy.fail(
        "DELETE",
        "configmaps/old",
        usize::MAX,
        Fault::Refuse(403, refusal),
    );
    reconciler.pass(site.fence()).await;
    let first = entry(&site, "old").await;
    assert!(first.deleting, "{first:?}");
    let attempts = deleted(&proxy).len();
    eventually(SOON, "it is tried again, twice", async || {
        reconciler.pass(site.fence()).await;
        same(deleted(&proxy).len() >= attempts + 2, true)
    })
    .await;
    let later = entry(&site, "old").await;
    assert_eq!(later, first, "and the time since when it fails");

    // An entry that says so already is proven all the same before the next attempt.
    let said = run(&site, &["inventory", "forget", "ConfigMap", "default/old"]).await;
    assert!(said.expect_done().contains(IT_MAY_STILL_HAPPEN));
    let attempts = deleted(&proxy).len();
    eventually(SOON, "it is not reported any more", async || {
        let report = reconciler.pass(site.fence()).await;
        same(report.objects().len(), 1)
    })
    .await;
    assert_eq!(deleted(&proxy).len(), attempts);
}
