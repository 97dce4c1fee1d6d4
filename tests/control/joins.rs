//! Joining with a token.

use std::time::{Duration, Instant};

use prost::Message;
use quorate::proto::node_certificate::State;
use quorate::proto::node_spec::Membership;
use quorate::proto::{Node, Role};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;

use super::site::{Key, Serving, Site, in_time, leads, leads_on, removed_uid, report, status, status_within};
use crate::support::proxy::Network;
use crate::support::quorate::TestReplica;
use crate::support::traced::traces_libraries;
use crate::support::wait::{SOON, eventually, same};

fn desired(node: &Node) -> Role {
    node.spec.unwrap_or_default().desired_role()
}

fn observed(node: &Node) -> Role {
    node.status.clone().unwrap_or_default().role()
}

/// INV-13.
#[tokio::test]
async fn the_token_decides_the_desired_role_and_the_certificate_says_the_observed_one() {
    let site = Site::start().await;
    let worker = site.token(&["--role", "worker"]).await;
    let manager = site.token(&["--role", "manager"]).await;
    let mut replica = site.launch().variable("RUST_LOG", "trace").start("c1");
    leads(&replica).await;
    let mut client = site.client(&mut replica).await;
    let member = site.member(&mut client, "w1", &worker).await;
    let node = site.node("w1").await;
    assert_eq!((desired(&node), observed(&node)), (Role::Worker, Role::Worker));
    assert_eq!(node.spec.unwrap().membership(), Membership::Unspecified);
    let record = site.record(&member.uid).await;
    assert_eq!((record.role(), record.chain), (Role::Worker, member.chain));
    let leader = site.member(&mut client, "m1", &manager).await;
    assert_eq!(desired(&site.node("m1").await), Role::Manager);
    eventually(SOON, "m1 is an observed manager", async || {
        same(observed(&site.node("m1").await), Role::Manager)
    })
    .await;
    let mut own = site.client_of(&mut replica, &leader).await;
    report(&mut own, 1, &[]).await.unwrap();
    let joined = replica
        .metric("quorate_node_joins_total{result=\"created\"}")
        .await;
    assert_eq!(joined, 2.0);
    let counted = "quorate_control_calls_total{method=\"Join\",code=\"OK\"}";
    assert_eq!(replica.metric(counted).await, 2.0);
    expect_no_secret(&site, &mut replica, &[&worker, &manager]);
}

/// Nothing of these tokens or of a key of the authority is in the log, which says everything.
fn expect_no_secret(site: &Site, replica: &mut TestReplica, tokens: &[&str]) {
    let log = replica.log();
    assert!(traces_libraries(&log), "it said everything");
    let secrets = tokens
        .iter()
        .map(|token| token.rsplit('-').next().unwrap().to_owned());
    let key = site.authority("node-ca.key");
    let lines = key.lines().map(str::to_owned).filter(|line| line.len() > 40);
    let secrets: Vec<String> = secrets.chain(lines).collect();
    for secret in secrets.iter().map(String::as_str).chain(["PRIVATE KEY"]) {
        let found = log.lines().find(|line| line.contains(secret));
        assert_eq!(found, None);
    }
}

#[tokio::test]
async fn a_token_that_is_missing_wrong_rotated_or_of_another_cluster_lets_in_no_node() {
    let site = Site::start().await;
    let former = site.token(&["--role", "worker"]).await;
    let token = site.token_by("rotate", &["--role", "worker"]).await;
    let elsewhere = Site::start().await;
    let foreign = elsewhere.token(&["--role", "worker"]).await;
    let (front, secret) = token.rsplit_once('-').unwrap();
    let (foreign_front, foreign_secret) = foreign.rsplit_once('-').unwrap();
    let mut replica = site.launch().variable("RUST_LOG", "trace").start("c1");
    leads(&replica).await;
    let mut client = site.client(&mut replica).await;
    let (key, begun) = (Key::new(), Instant::now());
    for wrong in [
        "",
        "no token",
        front,
        &former,
        &foreign,
        &format!("{front}-{foreign_secret}"),
        &format!("{foreign_front}-{secret}"),
        &token.to_uppercase(),
    ] {
        let refused = key.join(&mut client, "n1", wrong).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{wrong}: {refused}");
        assert!(!refused.message().contains(&secret[..8]), "{refused}");
    }
    let nodes = site.list(&site.store.keys.nodes()).await;
    let named = nodes.iter().filter(|kv| kv.key.ends_with(b"/nodes/n1"));
    assert_eq!(named.count(), 0);
    for name in ["", "N1", "a/b", "../x"] {
        let refused = key.join(&mut client, name, &token).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{name}: {refused}");
    }
    let broken = Key {
        csr: b"no request".to_vec(),
        ..Key::new()
    };
    let refused = broken.join(&mut client, "n1", &token).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    key.join(&mut client, "n1", &token).await.unwrap();
    expect_no_secret(&site, &mut replica, &[&token, &former, &foreign]);
    let refused = replica
        .metric("quorate_node_joins_total{result=\"refused\"}")
        .await;
    assert_eq!(refused, 13.0);
    // Anybody can have a join refused, and each line costs.
    let log = replica.log();
    let says = |line: &&str| line.contains(" WARN ") && line.contains("an agent may not join as node n1");
    let warnings = log.lines().filter(says).count() as u64;
    let most = 1 + begun.elapsed().as_secs() / 60;
    assert!((1..=most).contains(&warnings), "{warnings} of at most {most}");
}

#[tokio::test]
async fn a_join_whose_reply_was_lost_is_the_same_join() {
    let Serving {
        site,
        token,
        replica: _replica,
        mut client,
    } = Serving::with(&["--crash-at=control.join-reply"]).await;
    let key = Key::new();
    let lost = key.join(&mut client, "n1", &token).await;
    lost.expect_err("the replica has aborted");
    let uid = site.node("n1").await.metadata.unwrap().uid;
    let again = key.join(&mut client, "n1", &token).await.unwrap();
    assert_eq!(again, uid);
    // Also after the token was rotated: the key on record is the caller's.
    site.token_by("rotate", &["--role", "worker"]).await;
    assert_eq!(key.join(&mut client, "n1", &token).await.unwrap(), uid);
    assert_eq!(status(&mut client, &uid).await.unwrap().state(), State::Issued);
}

#[tokio::test]
async fn a_first_request_that_an_operator_replaced_before_its_answer_is_made_again_by_a_repeated_join() {
    let Serving {
        site,
        token,
        replica: _replica,
        mut client,
    } = Serving::with(&["--approve-joins"]).await;
    let key = Key::new();
    let uid = key.join(&mut client, "n1", &token).await.unwrap();
    let mut record = site.record(&uid).await;
    record.set_state(State::Rotate);
    site.put(&site.store.keys.certificate(&uid), record.encode_to_vec())
        .await;
    site.run(&["accept", "n1"]).await.expect_done();
    assert_eq!(status(&mut client, &uid).await.unwrap().state(), State::Rotate);
    assert_eq!(key.join(&mut client, "n1", &token).await.unwrap(), uid);
    let issued = status(&mut client, &uid).await.unwrap();
    assert_eq!(issued.state(), State::Issued);
    // With a certificate it is for the node to renew it.
    let before = site.record(&uid).await;
    assert_eq!(key.join(&mut client, "n1", &token).await.unwrap(), uid);
    assert_eq!(site.record(&uid).await, before);
}

#[tokio::test]
async fn a_name_in_use_is_refused_to_every_other_key() {
    let Serving {
        site,
        token,
        replica: _replica,
        mut client,
    } = Serving::start().await;
    let first = site.member(&mut client, "n1", &token).await;
    let (node, record) = (site.node("n1").await, site.record(&first.uid).await);
    let refused = Key::new().join(&mut client, "n1", &token).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    // Neither does one that an operator has made, and that never joined.
    site.add_node("n2").await;
    let refused = first.key.join(&mut client, "n2", &token).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
    assert_eq!(
        (site.node("n1").await, site.record(&first.uid).await),
        (node, record)
    );
}

#[tokio::test]
async fn a_node_that_was_removed_never_comes_back_and_its_key_makes_a_new_one() {
    let Serving {
        site,
        token,
        mut replica,
        mut client,
    } = Serving::start().await;
    let former = site.member(&mut client, "n1", &token).await;
    site.remove("n1").await;
    let gone = status(&mut client, &former.uid).await.unwrap_err();
    assert_eq!(gone.code(), Code::PermissionDenied);
    assert_eq!(removed_uid(&gone), Some(former.uid.clone()));
    let uid = former.key.join(&mut client, "n1", &token).await.unwrap();
    assert_ne!(uid, former.uid);
    assert_eq!(status(&mut client, &uid).await.unwrap().state(), State::Issued);
    // The certificate of the former one is not that of the new one.
    let mut own = site.client_of(&mut replica, &former).await;
    let refused = report(&mut own, 1, &[]).await.unwrap_err();
    assert_eq!(removed_uid(&refused), Some(former.uid));
}

#[tokio::test]
async fn an_agent_takes_over_a_node_with_the_token_of_that_node_once() {
    let site = Site::start().await;
    let worker = site.token(&["--role", "worker"]).await;
    let uid = site.add_node("n1").await;
    site.add_node("n2").await;
    let token = site.token(&["--node", "n1"]).await;
    let mut replica = site.replica().await;
    let mut client = site.client(&mut replica).await;
    let key = Key::new();
    let other = key.join(&mut client, "n2", &token).await.unwrap_err();
    assert_eq!(
        other.code(),
        Code::InvalidArgument,
        "it is for another node: {other}"
    );
    let refused = key.join(&mut client, "n1", &worker).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert_eq!(key.join(&mut client, "n1", &token).await.unwrap(), uid);
    assert_eq!(status(&mut client, &uid).await.unwrap().state(), State::Issued);
    assert_eq!(
        key.join(&mut client, "n1", &token).await.unwrap(),
        uid,
        "its reply was lost"
    );
    let used = Key::new().join(&mut client, "n1", &token).await.unwrap_err();
    assert_eq!(used.code(), Code::InvalidArgument, "{used}");
    // The next one, for an agent that has lost its key.
    let token = site.token(&["--node", "n1"]).await;
    assert_eq!(Key::new().join(&mut client, "n1", &token).await.unwrap(), uid);
    // A later node of the name is another one.
    let token = site.token(&["--node", "n2"]).await;
    site.remove("n2").await;
    site.add_node("n2").await;
    let later = key.join(&mut client, "n2", &token).await.unwrap_err();
    assert_eq!(later.code(), Code::InvalidArgument, "{later}");
}

#[tokio::test]
async fn of_several_joins_under_one_name_at_once_one_makes_the_node() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let client = site.client(&mut replica).await;
    let mut joining = JoinSet::new();
    for _ in 0..8 {
        let (mut client, token) = (client.clone(), token.clone());
        joining.spawn(async move { Key::new().join(&mut client, "n1", &token).await });
    }
    let mut joined = Vec::new();
    while let Some(ended) = joining.join_next().await {
        match ended.unwrap() {
            Ok(uid) => joined.push(uid),
            Err(refused) => assert_eq!(refused.code(), Code::AlreadyExists, "{refused}"),
        }
    }
    assert_eq!(joined, [site.node("n1").await.metadata.unwrap().uid]);
}

#[tokio::test]
async fn a_node_waits_for_the_operator_where_joins_are_approved() {
    let Serving {
        site,
        token,
        replica: _replica,
        mut client,
    } = Serving::with(&["--approve-joins"]).await;
    let key = Key::new();
    let uid = key.join(&mut client, "n1", &token).await.unwrap();
    assert_eq!(
        site.node("n1").await.spec.unwrap().membership(),
        Membership::Pending
    );
    let waits = in_time(async || status_within(&mut client, &uid, Duration::from_secs(2)).await).await;
    assert_eq!((waits.state(), waits.membership_pending), (State::Pending, true));
    assert_eq!(waits.chain, "");
    let waiting = status(&mut client, &uid);
    let accepting = async { site.run(&["accept", "n1"]).await.expect_done() };
    let (answer, _) = tokio::join!(waiting, accepting);
    let answer = answer.unwrap();
    assert_eq!(
        (answer.state(), answer.membership_pending),
        (State::Issued, false)
    );
}

/// A worker is no replica, whatever its name.
#[tokio::test]
async fn a_worker_named_like_a_replica_disturbs_neither_the_election_nor_the_registration() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    let registration = site.store.keys.registration(&"c1".parse().unwrap());
    let before = site.read(&registration).await;
    let mut client = site.client(&mut replica).await;
    let member = site.member(&mut client, "c1", &token).await;
    let mut own = site.client_of(&mut replica, &member).await;
    for release in [99, 0] {
        report(&mut own, release, &[]).await.unwrap();
        let status = site.node("c1").await.status.unwrap();
        assert_eq!(status.agent_release.unwrap().major, release);
        assert_eq!((status.release, status.controller), (None, false));
        leads_on(&replica).await;
    }
    site.remove("c1").await;
    assert!(replica.leads().await);
    assert_eq!(site.read(&registration).await, before);
}

#[tokio::test]
async fn more_joins_at_once_than_a_replica_takes_are_refused_at_once() {
    let (serving, proxy) = Serving::behind_proxy(&["--etcd-request-timeout-ms=30000"]).await;
    let Serving {
        site,
        token,
        mut replica,
        client,
    } = serving;
    // A connection carries some of them at a time.
    let others = [site.client(&mut replica).await, site.client(&mut replica).await];
    let clients = [client].into_iter().chain(others);
    let clients: Vec<_> = clients.collect();
    proxy.set(Network::BlackHole);
    let mut joining = JoinSet::new();
    for number in 0..80 {
        let (mut client, token) = (clients[number % 3].clone(), token.clone());
        let name = format!("n{number}");
        joining.spawn(async move { Key::new().join(&mut client, &name, &token).await });
    }
    let first = timeout(SOON, joining.join_next()).await.expect("one is refused");
    let refused = first.unwrap().unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    proxy.set(Network::Passes);
}
