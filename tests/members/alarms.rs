//! An etcd that is full: what waits meanwhile, and goes on once the alarm is cleared.

use super::tour::led;
use super::{Site, free_url};
use crate::support::base::Base;
use crate::support::etcd::TestEtcd;
use crate::support::wait::{SOON, eventually, same};

/// Fills the database until etcd refuses to write.
fn fill(etcd: &TestEtcd) {
    let value = "x".repeat(10_000);
    let mut written = (0..200).map(|key| etcd.try_etcdctl(&["put", &format!("/fill/{key}"), &value]));
    assert!(written.any(|written| written.is_err()), "etcd is not full");
}

#[tokio::test]
async fn a_join_waits_while_etcd_is_full_and_goes_on_once_the_alarm_is_cleared() {
    let etcd = TestEtcd::with(1, &["--quota-backend-bytes=1000000"]).await;
    let site = Site(Base::on(etcd).await);
    eventually(SOON, "the member is adopted", async || {
        same(site.run(&["adopt"]).await.code, 0)
    })
    .await;
    let mut replica = led(&site).await;
    site.apply_role("n2", "worker").await.expect_done();
    let promote = ["promote", "n2", "--wait", "--timeout", "30s"];
    site.run(&promote).await.expect_done();
    // Full, it would take no request.
    site.run(&["pause", "roles"]).await.expect_done();
    let (peer_url, client_url) = (free_url(), free_url());
    let join = [
        "join",
        "n2",
        "--peer-url",
        &peer_url,
        "--client-url",
        &client_url,
        "-o",
        "env",
    ];
    let waited = site.run(&[&join[..], &["--timeout", "2s"]].concat()).await;
    waited.expect_code(2);
    fill(&site.etcd);
    site.run(&["resume", "roles"]).await.expect_done();
    let alarms = r#"quorate_etcd_alarms{kind="NOSPACE"}"#;
    eventually(SOON, "the alarm", async || {
        same(replica.metric(alarms).await, 1.0)
    })
    .await;
    let held = r#"quorate_role_transitions_total{from="none",to="learner",result="blocked"}"#;
    eventually(SOON, "the join waits", async || {
        same(replica.metric(held).await, 1.0)
    })
    .await;
    replica
        .wait_for_log("cannot change now, EtcdAlarm: etcd refuses writes while the alarm NOSPACE")
        .await;
    replica
        .wait_for_log("etcd has raised the alarm NOSPACE of member")
        .await;
    let listed = site.store.etcd.list_members().await.unwrap();
    assert_eq!(listed.members.len(), 1);

    site.etcd.etcdctl(&["del", "--prefix", "/fill/"]);
    site.etcd.compact();
    site.etcd.etcdctl(&["defrag"]);
    site.etcd.etcdctl(&["alarm", "disarm"]);
    let settings = site.run(&[&join[..], &["--timeout", "50s"]].concat()).await;
    assert!(settings.expect_done().contains("ETCD_INITIAL_CLUSTER="));
    eventually(SOON, "no alarm", async || same(replica.metric(alarms).await, 0.0)).await;
}
