//! A quorum that is lost and returns: what says so meanwhile, and what remains of it afterwards.

use super::Site;
use super::tour::led;
use crate::support::doomed::LASTING_LEASES;
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::{Launch, TestReplica, quorate};
use crate::support::wait::{SOON, eventually, same};

async fn wait_metric(replica: &TestReplica, wanted: f64) {
    eventually(
        SOON,
        &format!("quorate_etcd_quorum_lost is {wanted}"),
        async || same(replica.metric("quorate_etcd_quorum_lost").await, wanted),
    )
    .await;
}

/// The condition `QuorumLost` of the member etcd-1, as `describe` on this endpoint shows it.
async fn condition(site: &Site) -> (String, String) {
    let url = format!("--etcd-endpoints={}", site.etcd.members[0].client_url);
    let shown = quorate(["get", "member", "etcd-1", "-o", "json", &url]).await;
    let shown = shown.expect_done();
    let document: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let conditions = document["status"]["conditions"].as_array().cloned();
    let found = conditions.unwrap_or_default().into_iter();
    let mut found = found.filter(|condition| condition["type"] == "QuorumLost");
    let found = found.next().unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

#[tokio::test]
async fn a_lost_quorum_is_shown_while_it_lasts_and_reported_once_it_is_over() {
    let (kubernetes, mut site) = tokio::join!(Kubernetes::start(), Site::adopted(3));
    // The leader is the same after the outage, however long a busy machine makes it.
    let launch = Launch::on(&site.etcd).flag(LASTING_LEASES);
    let launch = launch.kubeconfig(kubernetes.kubeconfig());
    let mut leader = launch.start("r1");
    leader.wait_leading().await;
    let mut standby = launch.start("r2");
    standby.wait_ready().await;
    assert_eq!(condition(&site).await, (String::new(), String::new()));

    // One hangs, and one is gone.
    site.0.etcd.members[1].process().unwrap().pause();
    site.0.etcd.members[2].kill().await.unwrap();
    wait_metric(&leader, 1.0).await;
    wait_metric(&standby, 1.0).await;
    eventually(SOON, "the condition says what answers", async || {
        let (status, message) = condition(&site).await;
        let said = message.contains("of 3 voters 1 answer here, and 2 are needed");
        same(status == "True" && said, true).map_err(|_| message)
    })
    .await;
    let url = format!("--etcd-endpoints={}", site.etcd.members[0].client_url);
    let shown = quorate(["status", &url]).await;
    assert!(shown.stderr.contains("QuorumLost"), "{shown:?}");
    assert!(
        shown
            .expect_done()
            .contains("QuorumLost: etcd answers no linearizable read")
    );
    leader.wait_for_log("QuorumLost: ").await;

    site.0.etcd.members[1].process().unwrap().resume();
    site.0.etcd.members[2].start().await.unwrap();
    wait_metric(&leader, 0.0).await;
    wait_metric(&standby, 0.0).await;
    eventually(SOON, "the outage is stored", async || {
        let (status, message) = condition(&site).await;
        same(status, "False".to_owned()).map_err(|_| message.clone())?;
        same(message.contains("etcd had no quorum from 2"), true).map_err(|_| message)
    })
    .await;
    let events = async || {
        let path = "/apis/events.k8s.io/v1/namespaces/kube-system/events";
        let events = kubernetes.get(path).await.unwrap();
        let all = events["items"].as_array().cloned().unwrap_or_default();
        let of_return = |event: &&serde_json::Value| event["reason"] == "QuorumReturned";
        all.iter().filter(of_return).count()
    };
    eventually(SOON, "the Event", async || same(events().await, 1)).await;
    // The other one has seen the outage as well, and finds it reported.
    leader.stop().await.unwrap();
    standby.wait_leading().await;
    let healthy = r#"quorate_members{kind="voter",health="healthy"}"#;
    eventually(SOON, "a pass over the members", async || {
        same(standby.metric(healthy).await, 3.0)
    })
    .await;
    assert!(!standby.log().contains("etcd had no quorum"), "{}", standby.log());
    assert_eq!(events().await, 1);
}

/// A replica that loses one of three members, or the raft leader, has a quorum.
#[tokio::test]
async fn a_member_that_dies_costs_no_quorum() {
    let mut site = Site::adopted(3).await;
    let mut replica = led(&site).await;
    let raft_leader = site.etcd.raft_leader().await;
    site.0.etcd.members[raft_leader].kill().await.unwrap();
    // While nothing is due, the members are asked every 30 s.
    eventually(3 * SOON, "a pass over the members after the loss", async || {
        let unhealthy = r#"quorate_members{kind="voter",health="unhealthy"}"#;
        same(replica.metric(unhealthy).await, 1.0)
    })
    .await;
    assert!(!replica.log().contains("QuorumLost"), "{}", replica.log());
    assert_eq!(replica.metric("quorate_etcd_quorum_lost").await, 0.0);
}
