//! What is wrong with etcd itself: alarms, sizes, flags, releases.

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client};

use super::{Call, FAULTS, WARNINGS, led, sound_etcd};
use crate::support::etcd::TestEtcd;
use crate::support::wait::{SOON, eventually, same};

/// Writes a value of 10 kB. Fails where etcd refuses it.
fn fill(etcd: &TestEtcd, key: usize) -> Result<String, String> {
    etcd.try_etcdctl(&["put", &format!("/fill/{key}"), &"x".repeat(10_000)])
}

#[tokio::test]
async fn a_database_that_is_nearly_full_is_named_and_one_that_is_full_with_what_follows() {
    let etcd = sound_etcd(1, &["--quota-backend-bytes=1000000"]).await;
    let mut replica = led(&etcd).await;
    let call = Call::on(&etcd);
    call.finds_nothing().await;
    let mut keys = 0..;
    eventually(SOON, "five sixths of the quota are used", async || {
        fill(&etcd, keys.next().unwrap()).unwrap();
        let size = etcd.members[0].metric("etcd_mvcc_db_total_size_in_bytes").await;
        if size > Some(833_000.0) {
            Ok(())
        } else {
            Err(format!("{size:?}"))
        }
    })
    .await;
    let nearly = call.names_first("EtcdNearlyFull", "etcd member etcd-1").await;
    assert_eq!(nearly.code, WARNINGS);
    assert!(
        keys.take(200).any(|key| fill(&etcd, key).is_err()),
        "etcd is not full"
    );
    let full = call.names_first("EtcdNoSpace", "etcd member etcd-1").await;
    assert_eq!(full.code, FAULTS);
    // No lease is granted any more.
    replica.stop().await.unwrap();
    let call_without_leader = async || {
        let full = call.names_first("EtcdNoSpace", "etcd member etcd-1").await;
        same(full.consequences().contains("no replica leads"), true)
    };
    eventually(SOON, "it follows that no replica leads", call_without_leader).await;
}

#[tokio::test]
async fn a_member_with_corrupt_data_is_named() {
    let etcd = sound_etcd(1, &[]).await;
    let _replica = led(&etcd).await;
    let call = Call::on(&etcd);
    call.finds_nothing().await;
    let mut client = Client::connect(etcd.endpoints(), None).await.unwrap();
    let listed = client.member_list().await.unwrap();
    let mut options = AlarmOptions::new();
    options.with_member(listed.members()[0].id());
    let raised = client.alarm(AlarmAction::Activate, AlarmType::Corrupt, Some(options));
    raised.await.unwrap();
    let corrupt = call.names_first("EtcdCorrupt", "etcd member etcd-1").await;
    assert_eq!(corrupt.code, FAULTS);
    etcd.etcdctl(&["alarm", "disarm"]);
    call.finds_nothing().await;
}

#[tokio::test]
async fn flags_that_endanger_the_quorum_or_the_lead_are_named() {
    let flags = [
        "--strict-reconfig-check=false",
        "--election-timeout=5000",
        "--heartbeat-interval=500",
    ];
    let etcd = sound_etcd(1, &flags).await;
    let _replica = led(&etcd).await;
    let said = Call::on(&etcd)
        .names_first("EtcdUnchecked", "etcd member etcd-1")
        .await;
    assert_eq!(said.code, WARNINGS);
    let second = &said.findings()[1];
    assert_eq!(second["reason"], "ShortLease", "{said:?}");
    assert_eq!(said.findings().len(), 2, "{said:?}");
}

#[tokio::test]
async fn a_lease_that_is_shorter_than_four_elections_of_etcd_is_named() {
    let flags = ["--election-timeout=5000", "--heartbeat-interval=500"];
    let etcd = sound_etcd(1, &flags).await;
    let _replica = led(&etcd).await;
    let said = Call::on(&etcd)
        .names_first("ShortLease", "lease of the election")
        .await;
    assert_eq!(said.code, WARNINGS);
    assert!(said.what().contains("5000 ms"), "{said:?}");
    assert_eq!(said.findings().len(), 1, "{said:?}");
}

#[tokio::test]
async fn a_release_with_a_known_fault_is_named() {
    let etcd = TestEtcd::start().await;
    let _replica = led(&etcd).await;
    let said = Call::on(&etcd).run().await;
    let version = etcd.etcdctl(&["version"]);
    // The one that is installed: Debian stable's is 3.4.23.
    if version.contains("3.4.23") {
        let said = Call::on(&etcd)
            .names_first("EtcdRelease", "etcd member etcd-1")
            .await;
        assert_eq!(said.code, WARNINGS);
        assert!(said.what().contains("issue 15247"), "{said:?}");
        assert_eq!(said.findings().len(), 1, "{said:?}");
    } else {
        eprintln!("{version}: {said:?}");
    }
}
