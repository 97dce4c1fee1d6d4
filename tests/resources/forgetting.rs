//! `quorate inventory forget` beside deletions: what it says holds, whatever the leader has under way (INV-12).

use std::time::Duration;

use quorate::resources::{Bundle, Reconciler, Report, Settings};
use serde_json::json;

use super::faults::{Fault, FaultProxy, Noted};
use super::inventory::run;
use super::site::{Site, bundle, config_map, config_map_path, ended, expect_success};
use crate::support::wait::{SOON, eventually, same};

const IT_MAY_STILL_HAPPEN: &str = "its deletion was begun and may still happen; it is not begun again";

/// A reconciler that may prune everything. It has this many requests at a time, and goes on without an answer after this time.
async fn pruning(
    site: &Site,
    proxy: &FaultProxy,
    bundle: Bundle,
    (in_flight, lingers_after): (usize, Duration),
) -> Reconciler {
    let settings = Settings {
        in_flight,
        lingers_after,
        allow_prune: 100,
        ..Settings::default()
    };
    site.reconciler_with(proxy.kubeconfig(), bundle, SOON, settings)
        .await
}

/// Requests at a time, and how long a pass waits for each of them.
const USUAL: (usize, Duration) = (8, Duration::from_secs(3));

/// The objects that the bundle has dropped.
const OLD: [&str; 6] = ["old-0", "old-1", "old-2", "old-3", "old-4", "old-5"];

async fn dropping(requests: (usize, Duration)) -> (Site, FaultProxy, Reconciler) {
    let site = Site::start().await;
    let old: String = OLD.iter().map(|name| config_map(name, "v")).collect();
    expect_success(&site.pass(bundle(&(old + &config_map("a", "v")))).await);
    // A pass that may not prune as much records that the bundle has dropped them.
    let report = site.pass(bundle(&config_map("a", "v"))).await;
    assert_eq!(report.count("held"), OLD.len(), "{:#?}", report.objects());
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let reconciler = pruning(&site, &proxy, bundle(&config_map("a", "v")), requests).await;
    (site, proxy, reconciler)
}

fn hold_deletions(proxy: &FaultProxy) {
    proxy.fail("DELETE", "configmaps/old-", usize::MAX, Fault::Held(None));
}

/// One whose deletion was not sent.
fn unsent(proxy: &FaultProxy) -> &'static str {
    let sent = deleted(proxy);
    let mut unsent = OLD
        .into_iter()
        .filter(|name| !sent.iter().any(|sent| sent == name));
    unsent.next().unwrap_or_else(|| panic!("{sent:?}"))
}

/// Forgets an object whose deletion is recorded as begun.
async fn forget(site: &Site, name: &str) {
    let said = run(
        site,
        &["inventory", "forget", "ConfigMap", &format!("default/{name}")],
    )
    .await;
    assert!(said.expect_done().contains(IT_MAY_STILL_HAPPEN));
}

async fn wait_until_held(proxy: &FaultProxy, count: usize) {
    eventually(SOON, "deletions are under way", async || {
        same(proxy.held(), count)
    })
    .await;
}

/// Makes passes until the inventory holds nothing but what the bundle does. Nothing but the forgotten object is left then.
async fn expect_all_but(site: &Site, reconciler: &mut Reconciler, forgotten: &str) {
    eventually(SOON, "the others are deleted", async || {
        reconciler.pass(site.fence()).await;
        same(site.inventory(), vec!["core/ConfigMap/default/a".to_owned()])
    })
    .await;
    for name in OLD {
        let there = site.get(&config_map_path(name)).await.is_some();
        assert_eq!(there, name == forgotten, "{name}");
    }
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
    let (site, proxy, mut reconciler) = dropping((4, USUAL.1)).await;
    hold_deletions(&proxy);
    eventually(SOON, "as many deletions are under way as may be", async || {
        reconciler.pass(site.fence()).await;
        same(proxy.held(), 4)
    })
    .await;
    let forgotten = unsent(&proxy);
    forget(&site, forgotten).await;
    proxy.release();
    expect_all_but(&site, &mut reconciler, forgotten).await;
}

/// A pass is cut short where another client changes the status. The next one may come much later.
#[tokio::test]
async fn a_deletion_that_was_not_sent_does_not_outlive_a_pass_that_is_cut_short() {
    let (site, proxy, mut reconciler) = dropping((1, SOON)).await;
    hold_deletions(&proxy);
    tokio::select! {
        report = reconciler.pass(site.fence()) => panic!("{report:#?}"),
        () = wait_until_held(&proxy, 1) => {}
    }
    let forgotten = unsent(&proxy);
    forget(&site, forgotten).await;
    proxy.release();
    expect_all_but(&site, &mut reconciler, forgotten).await;
}

#[tokio::test]
async fn a_deletion_is_reported_although_its_pass_was_cut_short() {
    let (site, proxy, mut reconciler) = dropping((8, SOON)).await;
    let first = OLD[0];
    proxy.fail("DELETE", &format!("configmaps/{first}"), 1, Fault::Nothing);
    hold_deletions(&proxy);
    tokio::select! {
        report = reconciler.pass(site.fence()) => panic!("{report:#?}"),
        () = eventually(SOON, "an object is deleted", async || {
            same(site.get(&config_map_path(first)).await.is_none(), true).map(drop)
        }) => {}
    }
    proxy.release();
    let mut acts = Vec::new();
    eventually(SOON, "all are deleted", async || {
        let report = reconciler.pass(site.fence()).await;
        acts.extend(report.acts().iter().map(ToString::to_string));
        same(site.inventory(), vec!["core/ConfigMap/default/a".to_owned()])
    })
    .await;
    acts.sort();
    let each = OLD.map(|name| format!("deleted ConfigMap default/{name} (no longer in the bundle)"));
    assert_eq!(acts, each);
}

fn acts(report: &Report) -> Vec<String> {
    report.acts().iter().map(ToString::to_string).collect()
}

/// A config map `old`, whose deletion waits for these.
fn with_finalizers(finalizers: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: old, namespace: default, finalizers: [{finalizers}]}}\n"
    )
}

const DELETED: &str = "deleted ConfigMap default/old (no longer in the bundle)";

/// The object is seen to be gone, or to be going, while its request has no reply yet. The reply comes late or never.
#[tokio::test]
async fn a_deletion_that_a_pass_sees_before_the_reply_comes_is_reported_once() {
    for (finalizers, reply_comes) in [
        ("", true),
        ("", false),
        ("example.com/hold", true),
        ("example.com/hold", false),
    ] {
        let what = format!("{finalizers:?}, the reply comes: {reply_comes}");
        let site = Site::start().await;
        expect_success(&site.pass(bundle(&with_finalizers(finalizers))).await);
        let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
        let new = || bundle(&config_map("new", "v"));
        let mut reconciler = pruning(&site, &proxy, new(), (8, Duration::from_millis(300))).await;
        proxy.fail("DELETE", "configmaps/old", 1, Fault::HeldReply);
        let mut all = Vec::new();
        let outcome = if finalizers.is_empty() {
            "pruned"
        } else {
            "deleting"
        };
        eventually(SOON, "a pass sees it", async || {
            let report = reconciler.pass(site.fence()).await;
            all.extend(acts(&report));
            same(ended(&report, outcome), vec!["ConfigMap default/old".to_owned()])
        })
        .await;
        assert_eq!(proxy.held(), 1, "{what}");
        if reply_comes {
            proxy.release();
            eventually(SOON, "the reply is there", async || same(proxy.held(), 0)).await;
        } else {
            reconciler = pruning(&site, &proxy, new(), USUAL).await;
        }
        for _ in 0..3 {
            all.extend(acts(&reconciler.pass(site.fence()).await));
        }
        assert_eq!(all, [DELETED], "{what}");
    }
}

#[tokio::test]
async fn an_object_whose_label_is_removed_after_a_refused_deletion_is_not_said_to_be_deleted() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&config_map("old", "v"))).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = pruning(&site, &proxy, bundle(&config_map("new", "v")), USUAL).await;
    let refusal = json!({"message": "no deletions today"});
    proxy.fail(
        "DELETE",
        "configmaps/old",
        usize::MAX,
        Fault::Refuse(403, refusal),
    );
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/old"]);
    let unlabelled = json!({"metadata": {"labels": {"quorate.dev/bundle": null}}});
    site.patch(&config_map_path("old"), unlabelled).await;
    eventually(SOON, "it leaves the inventory", async || {
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(acts(&report), [""; 0]);
        same(site.inventory(), vec!["core/ConfigMap/default/new".to_owned()])
    })
    .await;
    assert!(site.get(&config_map_path("old")).await.is_some());
}

/// INV-8: the pass waits for them once, and not for each object.
#[tokio::test]
async fn looks_for_deleted_objects_that_hang_are_few_of_a_kind_and_the_others_wait_for_the_next_pass() {
    let (site, proxy, mut reconciler) = dropping((1, Duration::from_millis(300))).await;
    proxy.fail("DELETE", "configmaps/old-", usize::MAX, Fault::LoseReply(400));
    proxy.fail("GET", "configmaps/old-", usize::MAX, Fault::Hang);
    eventually(SOON, "a pass knows the objects", async || {
        let report = reconciler.pass(site.fence()).await;
        same(ended(&report, "failed").len(), OLD.len())
    })
    .await;
    eventually(SOON, "as many looks as may linger of a kind", async || {
        proxy.take_noted();
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(acts(&report), [""; 0]);
        let noted = proxy.noted();
        let is_look = |noted: &&Noted| noted.method == "GET" && noted.uri.contains("configmaps/old-");
        same(
            (
                noted.iter().filter(is_look).count(),
                ended(&report, "failed").len(),
            ),
            (4, OLD.len()),
        )
    })
    .await;
}

#[tokio::test]
async fn a_deletion_whose_reply_is_lost_is_reported_by_the_next_pass() {
    for (finalizers, next_leader) in [
        ("", false),
        ("", true),
        ("example.com/hold", false),
        ("example.com/hold", true),
    ] {
        let what = format!("{finalizers:?}, the next leader: {next_leader}");
        let site = Site::start().await;
        expect_success(&site.pass(bundle(&with_finalizers(finalizers))).await);
        let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
        let new = || bundle(&config_map("new", "v"));
        let mut reconciler = pruning(&site, &proxy, new(), USUAL).await;
        proxy.fail("DELETE", "configmaps/old", 1, Fault::LoseReply(400));
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(ended(&report, "failed"), ["ConfigMap default/old"], "{what}");
        assert_eq!(acts(&report), [""; 0], "{what}");
        if next_leader {
            reconciler = pruning(&site, &proxy, new(), USUAL).await;
        }
        let mut all = Vec::new();
        let gone = finalizers.is_empty();
        let outcome = if gone { "pruned" } else { "deleting" };
        eventually(SOON, "the next pass finds it out", async || {
            let report = reconciler.pass(site.fence()).await;
            all.extend(acts(&report));
            same(ended(&report, outcome), vec!["ConfigMap default/old".to_owned()])
        })
        .await;
        let once = [DELETED];
        assert_eq!(all, once, "{what}");
        if !gone {
            all.extend(acts(&reconciler.pass(site.fence()).await));
            site.patch(&config_map_path("old"), json!({"metadata": {"finalizers": null}}))
                .await;
        }
        eventually(SOON, "it leaves the inventory", async || {
            all.extend(acts(&reconciler.pass(site.fence()).await));
            same(site.inventory(), vec!["core/ConfigMap/default/new".to_owned()])
        })
        .await;
        assert_eq!(all, once, "{what}");
    }
}

/// The request is repeated at once, and finds an object that has changed: it is being deleted.
#[tokio::test]
async fn a_deletion_that_is_repeated_and_meets_its_own_change_is_reported() {
    let site = Site::start().await;
    let held = config_map("old", "v").replace(
        "namespace: default",
        "namespace: default, finalizers: [example.com/hold]",
    );
    expect_success(&site.pass(bundle(&held)).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = pruning(&site, &proxy, bundle(&config_map("new", "v")), USUAL).await;
    proxy.fail("DELETE", "configmaps/old", 1, Fault::LoseReply(504));
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "deleting"), ["ConfigMap default/old"]);
    assert_eq!(acts(&report), [DELETED]);
    assert_eq!(acts(&reconciler.pass(site.fence()).await), [""; 0]);
}

#[tokio::test]
async fn a_recreation_whose_reply_is_lost_is_reported_by_the_next_pass() {
    let frozen = |value: &str| config_map("frozen", value).replace("\ndata:", "\nimmutable: true\ndata:");
    for next_leader in [false, true] {
        let site = Site::start().await;
        expect_success(&site.pass(bundle(&frozen("a"))).await);
        let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
        let mut reconciler = pruning(&site, &proxy, bundle(&frozen("b")), USUAL).await;
        proxy.fail("DELETE", "configmaps/frozen", 1, Fault::LoseReply(400));
        let report = reconciler.pass(site.fence()).await;
        assert_eq!(ended(&report, "failed"), ["ConfigMap default/frozen"]);
        assert_eq!(acts(&report), [""; 0]);
        if next_leader {
            reconciler = pruning(&site, &proxy, bundle(&frozen("b")), USUAL).await;
        }
        let mut all = Vec::new();
        eventually(SOON, "it is there again", async || {
            let report = reconciler.pass(site.fence()).await;
            all.extend(acts(&report));
            same(report.is_success(), true)
        })
        .await;
        assert_eq!(all, ["recreated ConfigMap default/frozen (immutable fields)"]);
    }
}

#[tokio::test]
async fn a_deletion_that_the_server_puts_off_is_not_said_to_be_none() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&config_map("old", "v"))).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = pruning(&site, &proxy, bundle(&config_map("new", "v")), USUAL).await;
    proxy.fail("DELETE", "configmaps/old", 2, Fault::Status(429, Some(2)));
    let report = reconciler.pass(site.fence()).await;
    assert_eq!(ended(&report, "failed"), ["ConfigMap default/old"]);
    forget(&site, "old").await;
}

#[tokio::test]
async fn a_deletion_that_is_refused_again_and_again_is_recorded_once() {
    let site = Site::start().await;
    expect_success(&site.pass(bundle(&config_map("old", "v"))).await);
    let proxy = FaultProxy::in_front_of(&site.kubernetes).await;
    let mut reconciler = pruning(&site, &proxy, bundle(&config_map("new", "v")), USUAL).await;
    let refusal = json!({"message": "no deletions today"});
    proxy.fail(
        "DELETE",
        "configmaps/old",
        usize::MAX,
        Fault::Refuse(403, refusal),
    );
    let entry = async || site.entry("core/ConfigMap/default/old").await;
    let first = eventually(SOON, "the refusal is recorded", async || {
        reconciler.pass(site.fence()).await;
        let recorded = entry().await;
        let why = recorded.state.as_ref().map(|state| state.message.clone());
        match why.is_some_and(|why| why.contains("no deletions today")) {
            true => Ok(recorded),
            false => Err(format!("{recorded:?}")),
        }
    })
    .await;
    assert!(first.deleting, "{first:?}");
    let attempts = deleted(&proxy).len();
    eventually(SOON, "it is tried again, twice", async || {
        reconciler.pass(site.fence()).await;
        same(deleted(&proxy).len() >= attempts + 2, true)
    })
    .await;
    let later = entry().await;
    assert_eq!(later, first, "and the time since when it fails");

    // An entry that says so already is proven all the same before the next attempt.
    forget(&site, "old").await;
    let attempts = deleted(&proxy).len();
    eventually(SOON, "it is not reported any more", async || {
        let report = reconciler.pass(site.fence()).await;
        same(report.objects().len(), 1)
    })
    .await;
    assert_eq!(deleted(&proxy).len(), attempts);
}
