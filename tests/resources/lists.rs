//! Lists in pages, and watches that end early.

use std::time::{Duration, Instant};

use quorate::kube::{Cause, KubeClient, Limits, Resource};

use super::faults::{Fault, FaultProxy};
use super::site::{Site, bundle, config_map, expect_success};
use crate::support::wait::SOON;

const LABEL: &str = "quorate.dev/bundle";
const OBJECTS: usize = 7;

fn config_maps() -> Resource {
    Resource {
        group: String::new(),
        version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        plural: "configmaps".to_owned(),
        namespaced: true,
    }
}

/// A client that gets pages of three objects, so that a list takes three pages.
async fn in_pages(site: &Site) -> (FaultProxy, KubeClient) {
    let manifests: String = (0..OBJECTS)
        .map(|n| config_map(&format!("map-{n}"), "v"))
        .collect();
    expect_success(&site.pass(bundle(&manifests)).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.cut_pages_to(3);
    let kube = KubeClient::connect_with(Some(&proxy.kubeconfig()), Limits::default()).await;
    (proxy, kube.unwrap())
}

#[tokio::test]
async fn a_list_is_read_page_by_page_and_restarted_once_its_revision_is_gone() {
    let site = Site::start().await;
    let (proxy, kube) = in_pages(&site).await;
    let names = async || {
        let listed = kube.list(&config_maps(), Some("default"), LABEL).await?;
        let mut names: Vec<String> = listed.items.into_iter().map(|meta| meta.name).collect();
        names.sort();
        Ok::<_, quorate::kube::Error>(names)
    };
    let all: Vec<String> = (0..OBJECTS).map(|n| format!("map-{n}")).collect();
    assert_eq!(names().await.unwrap(), all);
    assert_eq!(proxy.take_noted().len(), 3, "pages");

    proxy.fail("GET", "continue=", 1, Fault::Nothing);
    proxy.fail("GET", "continue=", 1, Fault::Status(410, None));
    assert_eq!(names().await.unwrap(), all, "each object once");
    assert_eq!(
        proxy.take_noted().len(),
        6,
        "three pages, the last of them refused, and three of the new list"
    );

    // INV-9: if pages always expire, the list is an error, and the next pass tries again.
    proxy.fail("GET", "continue=", usize::MAX, Fault::Status(410, None));
    let error = names().await.unwrap_err();
    assert!(matches!(error.cause, Cause::Gone(_)), "{error}");
    assert_eq!(proxy.take_noted().len(), 4);
}

/// The numbers of watch requests and of all requests in four seconds, while `fault` ends each watch.
async fn opened_meanwhile(fault: Fault) -> (usize, usize) {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("GET", "watch=true", usize::MAX, fault);
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&config_map("a", "v")))
        .await;
    expect_success(&reconciler.pass(site.fence()).await);
    // The test counts for a fixed time; it waits for no condition.
    let counting = async {
        loop {
            reconciler.changed().await;
            expect_success(&reconciler.pass(site.fence()).await);
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(4), counting).await;
    (proxy.watches(), proxy.take_noted().len())
}

#[tokio::test]
async fn watches_that_end_at_once_are_opened_again_with_growing_delays() {
    // Delays of 0.1, 0.2, 0.4, … seconds, with jitter at least three quarters of that: six of them fit into four seconds.
    let (watches, _) = opened_meanwhile(Fault::Ends).await;
    assert!((2..=8).contains(&watches), "{watches} in four seconds");
}

#[tokio::test]
async fn watches_that_lose_track_at_once_cause_lists_with_growing_delays() {
    let (watches, requests) = opened_meanwhile(Fault::Status(410, None)).await;
    assert!((2..=8).contains(&watches), "{watches} in four seconds");
    assert!(
        requests <= 12,
        "{requests} requests: one list per watch, and those of the first pass"
    );
}

#[tokio::test]
async fn a_watch_that_is_refused_is_asked_for_with_growing_delays_however_often_a_pass_comes() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("GET", "watch=true", usize::MAX, Fault::Status(403, None));
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&config_map("a", "v")))
        .await;
    // The second one asks for the watch.
    for _ in 0..2 {
        expect_success(&reconciler.pass(site.fence()).await);
    }
    let begun = Instant::now();
    let mut passes = 2;
    while begun.elapsed() < Duration::from_secs(4) {
        expect_success(&reconciler.pass(site.fence()).await);
        passes += 1;
        // A pass may come for any other reason.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The delays are 0.1, 0.2, 0.4, … seconds, with jitter at least three quarters of that.
    let watches = proxy.watches();
    assert!((2..=8).contains(&watches), "{watches} watches in {passes} passes");
    let lists = proxy.take_noted().len();
    assert!(
        lists <= 12,
        "{lists} requests in {passes} passes: one list per watch"
    );
}

#[tokio::test]
async fn a_watch_that_ended_early_delivers_what_it_missed() {
    let site = Site::start().await;
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    proxy.fail("GET", "watch=true", 2, Fault::Ends);
    let mut reconciler = site
        .reconciler_as(proxy.kubeconfig(), bundle(&config_map("a", "v")))
        .await;
    expect_success(&reconciler.pass(site.fence()).await);
    let path = super::site::config_map_path("a");
    site.patch(&path, serde_json::json!({"data": {"key": "theirs"}}))
        .await;
    tokio::time::timeout(SOON, reconciler.changed()).await.unwrap();
    expect_success(&reconciler.pass(site.fence()).await);
    assert_eq!(site.get(&path).await.unwrap()["data"]["key"], "v");
}
