//! An etcd that has raised an alarm: what waits meanwhile, and what ends it.

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client};

use super::replace::lose;
use super::tour::{led, voters};
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
    eventually(3 * SOON, "no alarm", async || {
        same(replica.metric(alarms).await, 0.0)
    })
    .await;
}

#[tokio::test]
async fn a_member_with_corrupt_data_counts_for_nothing_and_is_replaced_as_the_status_says() {
    let mut site = Site::adopted(3).await;
    let replica = led(&site).await;
    let corrupt = site.member("etcd-3").await;
    let mut client = Client::connect(site.etcd.endpoints(), None).await.unwrap();
    let mut options = AlarmOptions::new();
    options.with_member(corrupt.0);
    client
        .alarm(AlarmAction::Activate, AlarmType::Corrupt, Some(options))
        .await
        .unwrap();
    drop(client);
    let alarms = r#"quorate_etcd_alarms{kind="CORRUPT"}"#;
    // While nothing is due, the members are asked every 30 s.
    eventually(3 * SOON, "the alarm", async || {
        same(replica.metric(alarms).await, 1.0)
    })
    .await;
    let unhealthy = r#"quorate_members{kind="voter",health="unhealthy"}"#;
    assert_eq!(replica.metric(unhealthy).await, 1.0);
    let members = ["get", "members", "--no-headers"];
    let one_is = |table: &str| table.matches(" unhealthy ").count() == 1;
    site.shows(&members, one_is).await;
    let plan = site.run(&["recover", "plan"]).await.expect_done();
    let said = "stop its etcd, set its data directory aside, and clear the alarm (etcdctl alarm disarm), then quorate replace";
    assert!(plan.contains(&format!("{said} etcd-3")), "{plan}");
    let status = site.run(&["status"]).await.expect_done();
    assert!(status.contains(&format!("{said} its node")), "{status}");

    lose(&mut site, 2).await;
    site.etcd.etcdctl(&["alarm", "disarm"]);
    let replace = ["replace", "etcd-3", "--yes", "--timeout", "50s"];
    let settings = site
        .run(&[&replace[..], &["-o", "env"]].concat())
        .await
        .expect_done();
    let _etcd = site.start_etcd("etcd-3", &settings);
    site.run(&[&replace[..], &["--wait"]].concat())
        .await
        .expect_done();
    assert_eq!(voters(&site).await, ["etcd-1", "etcd-2", "etcd-3"]);
    eventually(3 * SOON, "no alarm", async || {
        same(replica.metric(alarms).await, 0.0)
    })
    .await;
}
