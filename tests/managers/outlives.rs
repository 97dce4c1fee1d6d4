//! An etcd that an agent keeps runs on whatever becomes of the agent's servers and its certificate.

use super::site::{Manager, Managers};
use crate::identity::authorities;
use crate::support::directory::directory;
use crate::support::etcd::{EtcdVersion, TestEtcd};
use crate::support::quorate::Launch;
use crate::support::wait::QUIET;

/// A voter that runs, with the process of its etcd.
async fn voter(flags: &[&str]) -> (Managers, Manager, i32) {
    let managers = Managers::start_with(&[], flags).await;
    let n2 = managers.worker("n2").await;
    managers.voter(&n2).await;
    let pid = n2.etcd().unwrap();
    (managers, n2, pid)
}

/// The same process runs on, and its agent.
async fn runs_on(n2: &mut Manager, pid: i32) {
    tokio::time::sleep(QUIET).await;
    assert_eq!(n2.etcd(), Some(pid), "{}", n2.log());
    assert!(!n2.has_ended(), "{}", n2.log());
    assert!(n2.data().exists() && n2.state.join("etcd.json").exists());
}

#[tokio::test]
async fn etcd_runs_on_where_the_cluster_was_restored_from_before_its_member_joined() {
    restored_from_before(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn the_next_etcd_runs_on_as_well_where_the_cluster_was_restored_from_before_its_member_joined() {
    restored_from_before(EtcdVersion::Next).await;
}

/// INV-12. By the records of the snapshot the node is a worker, which never had a member.
async fn restored_from_before(version: EtcdVersion) {
    let mut managers = Managers::of(version, &[], |launch| launch).await;
    let mut n2 = managers.worker("n2").await;
    let snapshot = managers.etcd.snapshot();
    managers.voter(&n2).await;
    let pid = n2.etcd().unwrap();
    managers.restore(&snapshot, Some("another-token")).await;
    n2.logs("invalid peer certificate").await;
    runs_on(&mut n2, pid).await;
}

#[tokio::test]
async fn etcd_runs_on_where_the_replica_of_another_cluster_answers_at_the_address_of_its_server() {
    let (mut managers, mut n2, pid) = voter(&[]).await;
    let address = managers.servers[0].trim_start_matches("https://").to_owned();
    managers.replicas[0].stop().await.unwrap();
    let home = directory();
    let other = authorities(&home).await;
    let etcd = TestEtcd::start().await;
    let launch = Launch::on(&etcd).flag(format!("--ca-dir={other}"));
    let mut replica = launch.flag(format!("--control-listen={address}")).start("c1");
    replica.wait_ready().await;
    n2.logs("invalid peer certificate").await;
    runs_on(&mut n2, pid).await;
    managers.writes("beside another cluster").await;
    // Its own is back.
    replica.stop().await.unwrap();
    managers.replicas[0].launch().unwrap();
    managers.replicas[0].wait_ready().await;
    n2.serves().await;
    assert_eq!(n2.etcd(), Some(pid));
}

#[tokio::test]
async fn etcd_runs_on_where_the_certificate_of_its_node_has_expired() {
    let (mut managers, mut n2, pid) = voter(&["--node-cert-ttl=1h"]).await;
    managers.replace_off_by("+90m").await;
    n2.logs("the certificate has expired (PermissionDenied)").await;
    runs_on(&mut n2, pid).await;
    managers.writes("with an expired certificate").await;
    managers.replace_off_by("+0m").await;
    n2.serves().await;
    assert_eq!(n2.etcd(), Some(pid));
}
