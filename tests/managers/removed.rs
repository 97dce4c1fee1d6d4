//! A node that is removed: its agent ends with code 4, and its data stays.

use super::site::{Managers, has_log};
use crate::support::etcd::EtcdVersion;

#[tokio::test]
async fn a_removed_manager_stops_etcd_after_its_eviction_and_its_data_stays() {
    removed_while_it_votes(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn a_removed_manager_stops_the_next_etcd_after_its_eviction_as_well() {
    removed_while_it_votes(EtcdVersion::Next).await;
}

/// INV-12. Its member votes until the leader has taken it out: of two voters, the other alone is no quorum.
async fn removed_while_it_votes(version: EtcdVersion) {
    let managers = Managers::of(version, &[], |launch| launch).await;
    let mut n2 = managers.worker("n2").await;
    managers.voter(&n2).await;
    // So that the agent learns of the removal first.
    managers.run(&["pause", "roles"]).await.expect_done();
    managers.demoted("n2", &[]).await;
    managers
        .run(&["delete", "node", "n2", "--yes", "--force"])
        .await
        .expect_done();
    n2.logs("the node was removed: etcd runs on").await;
    managers.run(&["resume", "roles"]).await.expect_done();
    assert_eq!(n2.ended().await.code(), Some(4), "{}", n2.log());
    n2.rests().await;
    managers.counts(1).await;
    managers.writes("after it").await;
    assert!(has_log(&n2.data()), "its data stays");
    assert!(n2.log().contains("its data stays"), "{}", n2.log());
}

#[tokio::test]
async fn a_node_that_is_promoted_and_removed_before_it_joins_starts_nothing() {
    let managers = Managers::start().await;
    let mut n2 = managers.worker("n2").await;
    n2.stop().await.unwrap();
    managers.promote("n2").await;
    managers
        .run(&["delete", "node", "n2", "--yes", "--force"])
        .await
        .expect_done();
    managers.relaunch(&mut n2, &["--etcd-ends-with-agent"]);
    assert_eq!(n2.ended().await.code(), Some(4), "{}", n2.log());
    assert_eq!(n2.etcd(), None);
    assert!(!n2.data().exists() && !n2.state.join("etcd.json").exists());
    managers.counts(1).await;
}
