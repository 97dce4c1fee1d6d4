//! Certificates and passwords: accepted, refused, and changed while in use.

use std::path::Path;
use std::time::Duration;

use quorate::etcd::{Class, Config, ConnectError, Etcd, KeyRange, Revision, TlsFiles, Txn, Watcher};
use quorate::grpc_code::Code;
use quorate::metrics::Metrics;
use quorate::store::Cache;
use quorate_dev::pki::Authority;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::following;
use super::hanging::connected_to_all;
use super::outages::wait_for_endpoints;
use crate::support::access::Access;
use crate::support::client::{
    RENEWED_TTL, commit, config, connect_with, lead, lead_for, pulse, put, renewed, requests,
};
use crate::support::etcd::{ClientTls, EtcdVersion, PASSWORD, PASSWORDS_CHECKED, TestEtcd, USER};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::{Launch, TestReplica};
use crate::support::wait::{SOON, eventually, grows, same};

pub fn with_tls(etcd: &TestEtcd, files: TlsFiles) -> Config {
    let mut config = config(etcd.endpoints());
    config.tls = files;
    config
}

#[tokio::test]
async fn tls_with_client_certificates_serves_the_whole_layer() {
    let etcd = TestEtcd::with_tls().await;
    let files = etcd.tls.as_ref().unwrap().files();
    let client = connect_with(with_tls(&etcd, files)).await;
    let _following = following(&client);
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    let leader = lead_for(&client, "leader", RENEWED_TTL, &pulse).await.unwrap();
    renewed(leader.fence().window()).await;
    client
        .fenced(leader.fence(), Txn::new().put(b"/e", "1"))
        .await
        .unwrap();
    leader.resign().await;
}

/// Files with which etcd and the client refuse each other: another authority, no client certificate, and a client
/// certificate of another authority.
fn refused_files(etcd: &TestEtcd) -> [TlsFiles; 3] {
    let tls = etcd.tls.as_ref().unwrap();
    let elsewhere = etcd.directory().join("other");
    std::fs::create_dir(&elsewhere).unwrap();
    let stranger = Authority::create(&elsewhere, "other").unwrap();
    let wrong_authority = TlsFiles {
        ca: Some(stranger.certificate_file()),
        ..tls.files()
    };
    let unproven = TlsFiles {
        identity: None,
        ..tls.files()
    };
    let foreign = stranger.client("quorate").unwrap();
    let wrong_identity = TlsFiles {
        identity: Some((foreign.cert, foreign.key)),
        ..tls.files()
    };
    [wrong_authority, unproven, wrong_identity]
}

fn expect_refused_certificate(connected: Result<Etcd, ConnectError>) {
    let error = connected.unwrap_err();
    let ConnectError::NoneAnswers(answers) = &error else {
        panic!("{error}");
    };
    // Newer releases of etcd send the alert UnknownCA, older ones BadCertificate.
    assert!(
        answers.iter().all(|(_, error)| error.is_about_certificates()),
        "{error}"
    );
    assert!(!error.to_string().contains("source"), "{error}");
    assert!(!error.is_retryable(), "{error}");
}

#[tokio::test]
async fn another_authority_and_a_missing_client_certificate_are_named_and_not_retried() {
    let etcd = TestEtcd::with_tls().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    for files in refused_files(&etcd) {
        let mut config = with_tls(&etcd, files);
        config.endpoints = vec![proxy.url()];
        // The limits are not what this is about.
        (config.connect_timeout, config.request_timeout) = (SOON, SOON);
        // How a refusal shows in a request is a matter of chance.
        for _ in 0..10 {
            let before = proxy.accepted_connections();
            expect_refused_certificate(Etcd::connect(config.clone(), Metrics::new("test")).await);
            let connections = proxy.accepted_connections() - before;
            assert!(connections <= 2, "{connections} connections to learn why");
        }
    }
}

#[tokio::test]
async fn certificates_that_change_on_disk_are_adopted_without_losing_leadership() {
    let etcd = TestEtcd::with_tls().await;
    let tls = etcd.tls.as_ref().unwrap();
    let mut replica = Launch::on(&etcd)
        .flag("--lease-ttl=20")
        .flag("--etcd-endpoint-interval-ms=300")
        .start("a");
    replica.wait_leading().await;
    // A reader may find a file half written. The credentials in use stay in use.
    let whole = std::fs::read(&tls.client.cert).unwrap();
    std::fs::write(&tls.client.cert, "").unwrap();
    replica.wait_for_log("keeping the etcd credentials in use").await;
    std::fs::write(&tls.client.cert, whole).unwrap();
    std::fs::copy(&tls.renewed.key, &tls.client.key).unwrap();
    std::fs::copy(&tls.renewed.cert, &tls.client.cert).unwrap();
    replica.wait_for_log("on disk: reconnected").await;
    replica.lease_renewed().await;
    assert_eq!(replica.metric("quorate_leader_transitions_total").await, 1.0);
    assert!(replica.leads().await);
}

/// Replaces the bytes of a file atomically, as a program that renews certificates should.
fn replace(file: &Path, content: impl AsRef<[u8]>) {
    let fresh = file.with_extension("fresh");
    std::fs::write(&fresh, content).unwrap();
    std::fs::rename(&fresh, file).unwrap();
}

#[tokio::test]
async fn an_authority_is_replaced_by_another_on_disk_without_losing_leadership() {
    let mut etcd = TestEtcd::with_tls().await;
    let ClientTls { ca, client, .. } = etcd.tls.clone().unwrap();
    let old = std::fs::read(&ca).unwrap();
    let elsewhere = etcd.directory().join("next");
    std::fs::create_dir(&elsewhere).unwrap();
    let next = Authority::create(&elsewhere, "next").unwrap();
    let new = std::fs::read(next.certificate_file()).unwrap();
    let mut replica = Launch::on(&etcd)
        .flag("--lease-ttl=20")
        .flag("--etcd-endpoint-interval-ms=300")
        .start("a");
    replica.wait_leading().await;
    let reconnected = async |replica: &mut TestReplica, times: usize| {
        eventually(
            SOON,
            "the replica reconnects with the changed files",
            async || same(replica.log().matches("on disk: reconnected").count(), times),
        )
        .await;
        replica.lease_renewed().await;
    };

    // Too early: no member has a certificate of the new authority yet. The credentials in use stay in use.
    replace(&ca, &new);
    replica.wait_for_log("no endpoint answers with them").await;
    replica.lease_renewed().await;
    // In the right order: first clients trust both authorities, and from its next start on the member does.
    replace(&ca, [&old[..], &new].concat());
    reconnected(&mut replica, 1).await;
    let server = next.server("etcd").unwrap();
    let member = etcd.server_certificate();
    replace(&member.key, std::fs::read(&server.key).unwrap());
    replace(&member.cert, std::fs::read(&server.cert).unwrap());
    etcd.members[0].kill().await.unwrap();
    etcd.members[0].start().await.unwrap();
    replica.lease_renewed().await;
    // Then the client gets a certificate of the new authority. At last the old one is not trusted any more.
    let proof = next.client("quorate").unwrap();
    replace(&client.key, std::fs::read(&proof.key).unwrap());
    replace(&client.cert, std::fs::read(&proof.cert).unwrap());
    reconnected(&mut replica, 2).await;
    replace(&ca, &new);
    reconnected(&mut replica, 3).await;

    replica.wait_ready().await;
    assert!(replica.leads().await);
    assert_eq!(replica.metric("quorate_leader_transitions_total").await, 1.0);
}

pub fn with_password(etcd: &TestEtcd, password: &str) -> Config {
    let file = etcd.directory().join("password");
    std::fs::write(&file, format!("{password}\n")).unwrap();
    let mut config = config(etcd.endpoints());
    config.user = Some((USER.to_owned(), file));
    config
}

#[tokio::test]
async fn tokens_that_expire_under_load_fail_no_request() {
    // A simple token expires this long after its last use.
    let etcd = TestEtcd::with_password("/q", 1).await;
    let client = connect_with(with_password(&etcd, PASSWORD)).await;
    let _following = following(&client);
    let mut beating = JoinSet::new();
    let leader = lead(&client, "leader", &pulse(&mut beating)).await.unwrap();
    for value in 0..4 {
        // Longer than the lifetime of an unused token, so that the next write carries an expired one.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let txn = Txn::new().put(b"/q/e", value.to_string());
        client.fenced(leader.fence(), txn).await.unwrap();
    }
    leader.resign().await;
    let leases = etcd.etcdctl_as_root(&["lease", "list"]);
    assert!(leases.starts_with("found 0 leases"), "{leases}");
}

#[tokio::test]
async fn a_watch_whose_token_expired_while_it_was_disconnected_continues() {
    let etcd = TestEtcd::with_password("/q", 1).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut config = with_password(&etcd, PASSWORD);
    config.endpoints = vec![proxy.url()];
    config.sync_endpoints = false;
    let client = connect_with(config).await;
    let mut cache = Cache::new(&client, KeyRange::prefix("/q/"), |_| ());
    while !cache.is_complete() {
        timeout(SOON, cache.next(|_| {})).await.unwrap();
    }
    proxy.set(Network::Resets);
    // etcd looks for expired tokens once a second.
    let disconnected = timeout(Duration::from_secs(4), cache.next(|_| {})).await;
    assert!(disconnected.is_err());
    proxy.set(Network::Passes);
    etcd.etcdctl_as_root(&["put", "/q/a", "1"]);
    // Only the watch can notice the expired token.
    timeout(SOON, async {
        while cache.is_empty() {
            cache.next(|_| {}).await;
        }
    })
    .await
    .expect("the watch continues");
}

#[tokio::test]
async fn a_password_that_changes_in_etcd_and_on_disk_is_adopted_without_losing_the_lease() {
    let etcd = TestEtcd::with_password("/q", 60).await;
    let config = with_password(&etcd, PASSWORD);
    let client = connect_with(config).await;
    let _following = following(&client);
    let mut beating = JoinSet::new();
    let leader = lead_for(&client, "leader", RENEWED_TTL, &pulse(&mut beating))
        .await
        .unwrap();
    let changed = "a staple for the battery";
    etcd.change_password(changed);
    with_password(&etcd, changed);
    eventually(SOON, "the new password is in use", async || {
        client.fenced(leader.fence(), Txn::new().put(b"/q/e", "1")).await
    })
    .await;
    renewed(leader.fence().window()).await;
}

#[tokio::test]
async fn an_endpoint_that_hangs_leaves_the_channel_while_a_changed_password_is_refused() {
    let etcd = TestEtcd::that_demands(Access::Password, EtcdVersion::Installed, 3, &[]).await;
    let proxies: Vec<Proxy> = etcd
        .endpoints()
        .iter()
        .map(|url| Proxy::in_front_of(url))
        .collect();
    let mut config = with_password(&etcd, PASSWORD);
    config.endpoints = proxies.iter().map(Proxy::url).collect();
    config.sync_endpoints = false;
    let client = connected_to_all(config).await;
    let _following = following(&client);
    let mut all: Vec<String> = proxies.iter().map(Proxy::url).collect();
    all.sort();
    wait_for_endpoints(&client, &all).await;
    with_password(&etcd, "wrong");
    grows("etcd is asked to check a password", async || {
        etcd.members[0].metric(PASSWORDS_CHECKED).await
    })
    .await;
    proxies[1].set(Network::BlackHole);
    let rest: Vec<String> = all
        .iter()
        .filter(|url| **url != proxies[1].url())
        .cloned()
        .collect();
    wait_for_endpoints(&client, &rest).await;
    put(&client, "/quorate/e", "1").await;
    proxies[1].set(Network::Passes);
    wait_for_endpoints(&client, &all).await;
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_permission_are_distinguished_and_not_retried() {
    let etcd = TestEtcd::with_password("/q", 60).await;
    let mut wrong = with_password(&etcd, "wrong");
    // No answer is no refusal.
    (wrong.connect_timeout, wrong.request_timeout) = (SOON, SOON);
    let error = Etcd::connect(wrong, Metrics::new("test")).await.unwrap_err();
    assert!(
        error.to_string().contains("invalid user ID or password"),
        "{error}"
    );
    assert!(!error.is_retryable(), "{error}");

    let client = connect_with(with_password(&etcd, PASSWORD)).await;
    let denied = client.get(b"/elsewhere").await.unwrap_err();
    assert_eq!(
        (denied.class, denied.is_retryable()),
        (Class::Denied, false),
        "{denied}"
    );
    let denied = commit(&client, Txn::new().put(b"/elsewhere", "")).await;
    assert!(
        matches!(&denied, Err(quorate::etcd::TxnError::Failed(error)) if error.class == Class::Denied),
        "{denied:?}"
    );
    put(&client, "/q/mine", "1").await;
}

#[tokio::test]
async fn a_watch_that_is_not_permitted_is_opened_after_growing_delays() {
    let etcd = TestEtcd::with_password("/q", 60).await;
    let client = connect_with(with_password(&etcd, PASSWORD)).await;
    let mut watcher = Watcher::new(&client, KeyRange::prefix("/elsewhere/"), Revision(1));
    let watched = timeout(Duration::from_secs(4), watcher.next()).await;
    assert!(watched.is_err(), "{watched:?}");
    // Twice before the first delay and after each, with a new token the second time: 0.1, 0.2, 0.4, 0.8 and 1.6 s, less the
    // jitter.
    let opened = requests(&client, "watch", Code::Ok);
    assert!((2.0..=14.0).contains(&opened), "{opened}");
}
