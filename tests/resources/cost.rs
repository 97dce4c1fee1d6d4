//! What passes cost: requests to the API server, whatever else the server holds.

use serde_json::json;

use super::faults::{Fault, FaultProxy};
use super::site::{Site, bundle, config_map, config_map_path, ended, expect_success};
use crate::support::proxy::Network;
use crate::support::wait::{SOON, eventually, same};

/// The requests since the last call, watches included, as `METHOD path`.
fn requests(proxy: &FaultProxy) -> Vec<String> {
    let noted = proxy.take_all();
    noted
        .iter()
        .map(|noted| format!("{} {}", noted.method, noted.uri.split('?').next().unwrap()))
        .collect()
}

/// Objects of the bundle's kind that are none of its business.
async fn add_others(site: &Site, count: usize) {
    for number in 0..count {
        let other =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("other-{number}")}});
        let collection = "/api/v1/namespaces/default/configmaps";
        site.kubernetes.send("POST", collection, &other).await;
    }
}

#[tokio::test]
async fn a_steady_pass_sends_nothing_and_a_mend_one_request_however_many_other_objects_there_are() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let manifests = config_map("a", "ours") + &config_map("b", "ours");
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&manifests)).await;
    expect_success(&reconciler.pass(site.fence()).await);
    site.settle(&mut reconciler).await;
    add_others(&site, 50).await;
    let seen = proxy.take_all();
    let of_kind: Vec<&str> = seen
        .iter()
        .filter(|noted| noted.method == "GET" && noted.uri.contains("/configmaps?"))
        .map(|noted| noted.uri.as_str())
        .collect();
    let ours = |uri: &&str| uri.contains("labelSelector=");
    assert!(!of_kind.is_empty() && of_kind.iter().all(ours), "{of_kind:?}");

    let steady = reconciler.pass(site.fence()).await;
    expect_success(&steady);
    assert_eq!(requests(&proxy), [""; 0], "a steady pass");

    site.patch(&config_map_path("a"), json!({"data": {"key": "theirs"}}))
        .await;
    tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    let mended = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&mended, "applied"), ["ConfigMap default/a"]);
    assert_eq!(
        requests(&proxy),
        [format!("PATCH {}", config_map_path("a"))],
        "a mend"
    );
}

#[tokio::test]
async fn a_new_leader_that_finds_everything_in_place_lists_and_writes_nothing() {
    let site = Site::start().await;
    let manifests = config_map("a", "v")
        + &config_map("b", "v")
        + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: default}\n";
    expect_success(&site.pass(bundle(&manifests)).await);
    let revision = site.kubernetes.etcd.revision();

    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = site.reconciler_as(proxy.kubeconfig(), bundle(&manifests)).await;
    let report = reconciler.pass(site.fence()).await;
    expect_success(&report);
    assert_eq!(report.count("unchanged"), 3, "{:#?}", report.objects());
    let mut sent = proxy
        .take_noted()
        .iter()
        .map(|noted| format!("{} {}", noted.method, noted.uri.split('?').next().unwrap()))
        .collect::<Vec<_>>();
    sent.sort();
    assert_eq!(
        sent,
        [
            "GET /api/v1",
            "GET /api/v1/namespaces/default/configmaps",
            "GET /api/v1/namespaces/default/secrets",
        ]
    );
    assert_eq!(site.kubernetes.etcd.revision(), revision, "nothing is written");

    // What its predecessor did not leave in place is drift.
    site.patch(&config_map_path("a"), json!({"data": {"key": "theirs"}}))
        .await;
    let report = site.pass(bundle(&manifests)).await;
    assert_eq!(ended(&report, "applied"), ["ConfigMap default/a"]);
    // Another manifest is applied, though the object is as it was left.
    let other = manifests.replace("key: v", "key: w");
    let report = site.pass(bundle(&other)).await;
    assert_eq!(report.count("applied"), 2, "{:#?}", report.objects());
}

/// Waits until this many objects were written.
async fn wait_for_writes(proxy: &FaultProxy, count: usize) {
    eventually(SOON, "every object is written", async || {
        let noted = proxy.noted();
        let writes = noted.iter().filter(|noted| noted.method == "PATCH").count();
        same(writes, count)
    })
    .await;
}

#[tokio::test]
async fn the_requests_to_the_api_server_go_on_while_etcd_records_what_is_answered() {
    let (site, network) = Site::behind_a_network().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let count = 60;
    let manifests: String = (0..count).map(|n| config_map(&format!("map-{n}"), "v")).collect();
    // What is held is held while etcd is looked at.
    let mut reconciler = site
        .waiting_reconciler_as(proxy.kubeconfig(), bundle(&manifests))
        .await;
    proxy.fail("PATCH", "configmaps/", usize::MAX, Fault::Held(None));
    let (report, ()) = tokio::join!(reconciler.pass(site.fence()), async {
        // Every entry is there before the first write (INV-3).
        eventually(SOON, "requests are under way", async || {
            same(proxy.held() > 0, true)
        })
        .await;
        network.set(Network::BlackHole);
        proxy.release();
        wait_for_writes(&proxy, count).await;
        network.set(Network::Passes);
    });
    expect_success(&report);
    assert_eq!(report.count("created"), count);
}

/// A namespace comes before what is in it. Nothing else lies between the two.
#[tokio::test]
async fn what_is_in_a_namespace_follows_it_without_a_wait_for_etcd() {
    let (site, network) = Site::behind_a_network().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let count = 60;
    let namespace = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n";
    let maps: String = (0..count).map(|n| config_map(&format!("map-{n}"), "v")).collect();
    let manifests = namespace.to_owned() + &maps.replace("namespace: default", "namespace: team");
    // What is held is held while etcd is looked at.
    let mut reconciler = site
        .waiting_reconciler_as(proxy.kubeconfig(), bundle(&manifests))
        .await;
    proxy.fail("PATCH", "/namespaces/team?", usize::MAX, Fault::Held(None));
    let (report, ()) = tokio::join!(reconciler.pass(site.fence()), async {
        eventually(SOON, "all entries are there before the namespace", async || {
            same((proxy.held(), site.inventory().len()), (1, count + 1))
        })
        .await;
        assert!(site.get("/api/v1/namespaces/team").await.is_none());
        network.set(Network::BlackHole);
        proxy.release();
        wait_for_writes(&proxy, count + 1).await;
        network.set(Network::Passes);
    });
    expect_success(&report);
    assert_eq!(report.count("created"), count + 1);
    for number in 0..count {
        let path = format!("/api/v1/namespaces/team/configmaps/map-{number}");
        let uid = site.uid(&path).await;
        let key = format!("core/ConfigMap/team/map-{number}");
        assert_eq!(site.entry(&key).await.uid, uid, "what came of it is recorded");
    }
}
