//! Many deletions at once wait for the operator (INV-12).

use super::site::{Site, bundle, config_map, config_map_path, expect_success};

#[tokio::test]
async fn pruning_much_at_once_waits_until_it_is_allowed() {
    let many: String = (0..7).map(|n| config_map(&format!("map-{n}"), "v")).collect();
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&many)).await);
    let report = site.pass(bundle(&config_map("map-0", "v"))).await;
    assert_eq!(site.inventory().len(), 7, "{}", report.summary());
    assert!(!report.is_success());
    assert_eq!(report.reason(), "PruneHeld");
    assert!(
        report.summary().contains("--allow-prune=6"),
        "{}",
        report.summary()
    );
    let report = site.pass_allowing(bundle(&config_map("map-0", "v")), 6).await;
    expect_success(&report);
    assert_eq!(site.inventory(), ["core/ConfigMap/default/map-0"]);
}

fn maps(prefix: &str, count: usize) -> String {
    (0..count)
        .map(|n| config_map(&format!("{prefix}-{n}"), "v"))
        .collect()
}

/// INV-12: a bundle that was mixed up with another one brings objects of its own.
#[tokio::test]
async fn what_a_bundle_adds_does_not_allow_it_to_prune_more() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&maps("old", 20))).await);
    let after = maps("new", 100);
    let mut reconciler = site.reconciler(bundle(&after)).await;
    for pass in [
        "the first",
        "another",
        "of a new leader",
        "another of that leader",
    ] {
        if pass == "of a new leader" {
            reconciler = site.reconciler(bundle(&after)).await;
        }
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(report.count("held"), 20, "{pass}: {}", report.summary());
        assert!(
            report
                .summary()
                .contains("pruning 20 objects of 20 that the bundle held"),
            "{pass}: {}",
            report.summary()
        );
    }
    // A replica that still has the bundle before leads for a while. What it drops does not count for the other one either.
    let report = site.pass(bundle(&maps("old", 20))).await;
    assert_eq!(report.count("held"), 100, "{}", report.summary());
    let report = site.pass(bundle(&after)).await;
    assert_eq!(report.count("held"), 20, "{}", report.summary());

    expect_success(&site.pass_allowing(bundle(&after), 20).await);
    assert_eq!(site.inventory().len(), 100);
    // What is in place counts from then on.
    expect_success(&site.pass(bundle(&maps("new", 81))).await);
    assert_eq!(site.inventory().len(), 81);
}

#[tokio::test]
async fn a_bundle_without_manifests_prunes_what_the_bundle_held() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&config_map("a", "v"))).await);
    let report = site.pass(bundle("")).await;
    assert_eq!(report.reason(), "PruneHeld", "{}", report.summary());
    expect_success(&site.pass_allowing(bundle(""), 1).await);
    assert_eq!(site.inventory(), [""; 0]);
    assert!(site.get(&config_map_path("a")).await.is_none());
}
