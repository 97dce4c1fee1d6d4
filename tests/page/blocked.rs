//! An upgrade that waits.

use super::{content, page, pictures, shown, texts};
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::{Launch, quorate_on};
use crate::upgrade::bundles::Release as Shipped;

/// The record of a node that runs an old controller.
const OLD: &str =
    "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {name: c2}\nspec: {desiredRole: worker}\n";
const ITS_RELEASE: &str = "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {name: c2}\nstatus: {controller: true, release: 0.9.0}\n";

#[tokio::test]
async fn a_blocked_upgrade_is_shown_with_what_it_waits_for() {
    let kubernetes = Kubernetes::start().await;
    let launch = Launch::on_kubernetes(&kubernetes)
        .flag("--settle-ms=200")
        .flag("--lease-ttl=30");
    let first = Shipped::of("shop", "1.0.0", "1.0.0", "1.0.0");
    let second = Shipped::of("shop", "2.0.0", "1.0.0", "1.1.0");
    let mut old = launch.clone().bundle(first.bundle()).start("old");
    old.wait_ready().await;
    let done = shown(&old, "the resources are in place", |state| {
        state["gate"]["status"]["state"] == "DONE" && state["resources"]["known"] == "now"
    })
    .await;
    assert_eq!(done["gate"]["status"]["version"], "1.0.0");
    assert_eq!(done["gate"]["degraded"]["content"], serde_json::Value::Null);
    let outcomes = content(&done, "resources")["outcomes"].as_object().unwrap();
    let all: u64 = outcomes.values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(all, 3, "{done:#}");
    let html = page(&old).await;
    assert!(
        html.contains("Nothing blocks, and nothing is degraded."),
        "{html}"
    );

    quorate_on(&kubernetes.etcd, &["apply", "-f", "-"], OLD)
        .await
        .expect_done();
    let args = ["apply", "--subresource=status", "-f", "-"];
    quorate_on(&kubernetes.etcd, &args, ITS_RELEASE)
        .await
        .expect_done();
    let mut new = launch.bundle(second.bundle()).start("new");
    new.wait_leading().await;
    let blocked = shown(&new, "the leader shows what blocks", |state| {
        state["gate"]["degraded"]["content"]["reason"] == "WaitingForNodes"
            && state["releases"]["content"]["replicas"]["total"] == 2
    })
    .await;
    let message = "waiting for node c2 at 0.9.0, needs 1.1.0; node old at 1.0.0, needs 1.1.0";
    assert_eq!(blocked["gate"]["degraded"]["content"]["message"], message);
    assert_eq!(
        blocked["gate"]["status"]["state"], "DONE",
        "nothing is restricted yet"
    );
    let controllers = &content(&blocked, "releases")["controllers"];
    assert_eq!(texts(controllers, "node"), ["c2"]);
    assert_eq!(texts(controllers, "release"), ["0.9.0"]);
    assert_eq!(controllers["first"][0]["excluded"], true);
    let replicas = &content(&blocked, "releases")["replicas"];
    assert_eq!(texts(replicas, "name"), ["new", "old"]);
    let excluded: Vec<bool> = replicas["first"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["excluded"] == true)
        .collect();
    assert_eq!(excluded, [false, true], "the older replica blocks as well");
    assert!(page(&new).await.contains(message));
    pictures::take("blocked-upgrade", &new).await;

    // The older replica, which no longer leads, shows the status and leads to the one that knows.
    let standby = shown(&old, "it does not lead any more", |state| {
        state["leader"]["name"] == "new" && state["replica"]["leads"] == false
    })
    .await;
    assert_eq!(standby["gate"]["degraded"]["known"], "byTheLeader");
    assert_eq!(standby["gate"]["status"]["state"], "DONE");
    assert_eq!(standby["resources"]["known"], "byTheLeader");
}
