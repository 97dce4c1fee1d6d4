//! What is wrong with one of several members.

use std::time::Duration;

use etcd_client::{Client, MemberAddOptions};

use super::{Call, FAULTS, WARNINGS, led, sound_etcd};
use crate::support::etcd::{EtcdVersion, TestEtcd};
use crate::support::quorate::quorate_on;

#[tokio::test]
async fn a_member_that_is_gone_hangs_or_never_started_is_named_and_a_lost_quorum_with_its_members() {
    let mut etcd = sound_etcd(3, &[]).await;
    let replica = led(&etcd).await;
    let call = Call::on(&etcd);
    call.finds_nothing().await;
    let leader = etcd.raft_leader().await;
    let (first, second) = ((leader + 1) % 3, (leader + 2) % 3);
    let name = |index: usize| format!("etcd member etcd-{}", index + 1);

    etcd.members[first].kill().await.unwrap();
    let gone = call.names_first("MemberUnreachable", &name(first)).await;
    assert_eq!(gone.code, FAULTS);
    assert_eq!(
        gone.findings().len(),
        1,
        "its endpoint is not named again: {gone:?}"
    );
    etcd.members[first].start().await.unwrap();
    call.finds_nothing().await;

    etcd.members[first].pause();
    let hangs = call.names_first("MemberUnreachable", &name(first)).await;
    assert!(hangs.took < Duration::from_secs(20), "{:?}", hangs.took);
    etcd.members[first].resume();
    call.finds_nothing().await;

    drop(replica);
    for index in [first, second] {
        etcd.members[index].kill().await.unwrap();
    }
    let lost = call.names_first("NoQuorum", "etcd").await;
    assert_eq!(lost.code, FAULTS);
    assert!(
        lost.what()
            .contains("Of 3 voters 1 answer by themselves, and 2 are needed"),
        "{lost:?}"
    );
    for index in [first, second] {
        assert!(lost.what().contains(&name(index)), "{lost:?}");
        etcd.members[index].launch().unwrap();
    }
    for index in [first, second] {
        etcd.members[index].wait_healthy().await.unwrap();
    }
    let _replica = led(&etcd).await;
    call.finds_nothing().await;
}

#[tokio::test]
async fn a_member_that_never_started_one_without_a_record_and_the_endpoint_of_a_learner_are_named() {
    let mut etcd = sound_etcd(1, &[]).await;
    let _replica = led(&etcd).await;
    let (call, sound_url) = (Call::on(&etcd), etcd.endpoints_flag());
    let cluster = format!("etcd-1={}", etcd.members[0].peer_url);
    let added = etcd.add().unwrap();
    let (peer_url, client_url) = (added.peer_url.clone(), added.client_url.clone());
    let mut client = Client::connect([&sound_url], None).await.unwrap();
    let learner = MemberAddOptions::new().with_is_learner();
    client
        .member_add([peer_url.clone()], Some(learner))
        .await
        .unwrap();
    let unstarted = call.names_first("MemberNotStarted", "etcd member").await;
    assert_eq!(unstarted.code, WARNINGS);
    etcd.members[1]
        .join(&format!("{cluster},etcd-2={peer_url}"))
        .unwrap();
    call.finds_nothing().await;
    let learner = Call::at(&format!("{sound_url},{client_url}"));
    let said = learner.names_first("EndpointOfLearner", &client_url).await;
    assert_eq!(said.code, WARNINGS);
    let only = Call::at(&client_url);
    only.names_first("EndpointOfLearner", &client_url).await;

    quorate_on(&etcd, &["adopt", "etcd-1"], "").await.expect_done();
    let unmanaged = call.names_first("MemberUnmanaged", "etcd member etcd-2").await;
    assert_eq!(unmanaged.code, WARNINGS);
}

#[tokio::test]
async fn members_of_several_minor_releases_are_named_before_the_faults_of_the_older_one() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let _replica = led(&etcd).await;
    let member = &mut etcd.members[0];
    member.stop().await.unwrap();
    member.replace_program(&EtcdVersion::Next.program("etcd"));
    member.start().await.unwrap();
    let version = etcd.etcdctl(&["version"]);
    if !version.contains("3.4.") {
        // Debian's next release is as new as the one that is installed.
        eprintln!("{version}: {:?}", Call::on(&etcd).run().await);
        return;
    }
    let said = Call::on(&etcd)
        .names_first("EtcdReleasesDiffer", "etcd members")
        .await;
    assert_eq!(said.code, WARNINGS);
    assert!(said.what().contains("3.4 and 3.5"), "{said:?}");
    let second = &said.findings()[1];
    assert_eq!(second["reason"], "EtcdRelease", "{said:?}");
    assert_eq!(second["subjects"].as_array().unwrap().len(), 2, "{said:?}");
    assert_eq!(said.findings().len(), 2, "{said:?}");
}
