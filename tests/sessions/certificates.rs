//! A session outlives neither the certificate of its connection nor the authority that this leads to.

use std::fs;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use quorate::identity::node::{NodeHolder, NodeRole, certificate};
use quorate::identity::request::RequestedKey;
use quorate::identity::{AuthorityDigest, AuthorityKind, directory};
use quorate::proto::certificate_refused::Reason;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose};
use tonic::transport::Identity;
use tonic::{Code, Status};

use super::agent::{Agent, alive};
use crate::control::site::{Client, Joined, Member, Serving, Site, not_proven, removed_uid, report};
use crate::support::quorate::{TestReplica, quorate};
use crate::support::wait::{SOON, eventually};

/// Longer than any test takes: no lease ends a session, and no heartbeat is needed.
const LONG_LEASE: &str = "--session-lease-ms=500000";

async fn begin() -> (Site, TestReplica, Member) {
    let Joined {
        site, replica, node, ..
    } = Serving::with(&[LONG_LEASE]).await.join("n1").await;
    (site, replica, node)
}

/// Another certificate of a node for the same key, and when it ends.
fn ending_in(site: &Site, node: &Member, seconds: i64) -> (Identity, Timestamp) {
    let now = Timestamp::now();
    let authority = directory::read(Path::new(&site.ca), AuthorityKind::Node, now).unwrap();
    let holder = NodeHolder {
        cluster: site.store.etcd.cluster_id().unwrap(),
        uid: &node.uid,
        name: &node.name,
        role: NodeRole::Worker,
    };
    let (key, life) = (
        RequestedKey::read(&node.key.csr).unwrap(),
        SignedDuration::from_secs(seconds),
    );
    let signed = certificate(&authority, &key, holder, life, now).unwrap();
    let identity = Identity::from_pem(&signed.chain_pem, node.key.pair.serialize_pem());
    (identity, signed.not_after)
}

#[track_caller]
fn expect_refused(status: &Status, reason: Reason) {
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert_eq!(not_proven(status), Some(reason), "{status:?}");
    assert_eq!(
        removed_uid(status),
        None,
        "no agent may take this for its removal"
    );
}

/// A session over a connection whose certificate ends soon, and when that is.
async fn open_with_little_left(
    site: &Site,
    replica: &mut TestReplica,
    node: &Member,
) -> (Agent, Client, Timestamp) {
    // On a busy machine a session takes longer to open than the first of these last.
    for seconds in [5, 15, 45] {
        let (identity, not_after) = ending_in(site, node, seconds);
        let client = Client::new(site.channel(replica, Some(identity)).await);
        match Agent::over(client.clone()).await {
            Ok(agent) => return (agent, client, not_after),
            Err(refused) => expect_refused(&refused, Reason::Expired),
        }
    }
    panic!("no session opens within 45 s");
}

/// INV-13: nothing else wakes the session, which gets no heartbeat.
#[tokio::test]
async fn a_session_ends_with_the_certificate_of_its_connection_and_says_so() {
    let (site, mut replica, node) = begin().await;
    let (mut agent, mut client, not_after) = open_with_little_left(&site, &mut replica, &node).await;
    let status = agent.ended().await;
    let late = Timestamp::now().duration_since(not_after);
    expect_refused(&status, Reason::Expired);
    assert!(late >= SignedDuration::ZERO, "it ended {late} early");
    let refused = report(&mut client, 1, &[]).await.unwrap_err();
    expect_refused(&refused, Reason::Expired);
    let series = "quorate_sessions_ended_total{reason=\"certificate\"}";
    assert_eq!(replica.metric(series).await, 1.0);
    // The node has done no wrong: it is ready for as long as its lease lasts, and its other certificate opens a session.
    assert!(alive(&site, "n1").await.is_some());
    Agent::open(&site, &mut replica, &node).await;
}

/// INV-13.
#[tokio::test]
async fn a_session_ends_once_its_certificate_leads_to_no_authority_that_is_trusted() {
    let (site, mut replica, node) = begin().await;
    let client = site.client_of(&mut replica, &node).await;
    let mut agent = Agent::over(client.clone()).await.unwrap();
    let other = site.path("other");
    quorate(["ca", "init", "-o", &other]).await.expect_done();
    let current = format!("{}/current", site.ca);
    // Between the two the files are away, which ends no session.
    fs::rename(&current, site.path("former")).unwrap();
    fs::rename(format!("{other}/current"), &current).unwrap();
    let status = agent.ended().await;
    expect_refused(&status, Reason::Foreign);
    let refused = report(&mut client.clone(), 1, &[]).await.unwrap_err();
    expect_refused(&refused, Reason::Foreign);
    let series = "quorate_sessions_ended_total{reason=\"authority\"}";
    assert_eq!(replica.metric(series).await, 1.0);
}

/// Its certificates lead to the new one as well.
#[tokio::test]
async fn a_session_goes_on_under_a_renewed_authority_of_the_same_name_and_key() {
    let (site, mut replica, node) = begin().await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    let key = KeyPair::from_pem(&site.authority("node-ca.key")).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, "quorate node authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let renewed = params.self_signed(&key).unwrap();
    let written = site.path("renewed");
    fs::write(&written, renewed.pem()).unwrap();
    fs::rename(written, format!("{}/current/node-ca.crt", site.ca)).unwrap();
    let digest = AuthorityDigest::of(renewed.der());
    replica
        .wait_for_log(&format!("certified by the node authority {digest}"))
        .await;
    let heartbeats = "quorate_session_heartbeats_total";
    let before = replica.metric(heartbeats).await;
    agent.keep_beating();
    eventually(SOON, "its heartbeats are taken", async || {
        assert!(!agent.is_over(), "it has ended");
        match replica.metric(heartbeats).await - before {
            taken if taken >= 3.0 => Ok(()),
            taken => Err(taken),
        }
    })
    .await;
}
