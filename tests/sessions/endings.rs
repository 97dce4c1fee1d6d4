//! What ends a session at once.

use quorate::etcd::Txn;
use quorate::proto::node_spec::Membership;
use tokio::time::sleep;
use tonic::Code;

use super::agent::{Agent, alive};
use crate::control::site::{Joined, Member, Serving, Site, removed_uid, report};
use crate::support::quorate::TestReplica;
use crate::support::wait::{QUIET, SOON, eventually, same};

async fn begin() -> (Site, TestReplica, Member) {
    let Joined {
        site, replica, node, ..
    } = Joined::start().await;
    (site, replica, node)
}

/// INV-13.
#[tokio::test]
async fn the_removal_of_its_node_ends_a_session_without_a_heartbeat() {
    let (site, mut replica, node) = begin().await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    site.remove("n1").await;
    let status = agent.ended().await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert_eq!(removed_uid(&status), Some(node.uid.clone()));
    let client = site.client_of(&mut replica, &node).await;
    let Err(refused) = Agent::over(client).await else {
        panic!("a removed node has a session");
    };
    assert_eq!(removed_uid(&refused), Some(node.uid));
    let series = "quorate_sessions_ended_total{reason=\"removed\"}";
    assert_eq!(replica.metric(series).await, 1.0);
    assert_eq!(replica.metric("quorate_sessions").await, 0.0);
}

#[tokio::test]
async fn a_change_of_the_observed_role_ends_a_session_and_the_next_one_shows_it() {
    let (site, mut replica, node) = begin().await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    let view = agent.begun.view.take().unwrap();
    assert_eq!(view.role(), quorate::proto::Role::Worker);
    site.run(&["promote", "n1"]).await.expect_done();
    let status = agent.ended().await;
    assert_eq!(status.code(), Code::Aborted, "{status:?}");
    // With the certificate of a worker still: that is how the agent learns that it needs another one.
    let again = Agent::open(&site, &mut replica, &node).await;
    let view = again.begun.view.unwrap();
    assert_eq!(view.role(), quorate::proto::Role::Manager);
    assert_eq!(view.desired_role(), quorate::proto::Role::Manager);
}

/// INV-13.
#[tokio::test]
async fn a_node_that_is_not_accepted_any_more_loses_its_session() {
    let (site, mut replica, node) = begin().await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    site.change("n1", |node| {
        let spec = node.spec.get_or_insert_default();
        spec.set_membership(Membership::Pending);
    })
    .await;
    let status = agent.ended().await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert_eq!(removed_uid(&status), None);
}

#[tokio::test]
async fn a_session_whose_key_is_gone_ends_and_is_never_put_back() {
    let (site, mut replica, node) = begin().await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    agent.keep_beating();
    let key = site.store.keys.alive(&"n1".parse().unwrap());
    site.commit(Txn::new().delete(&key)).await;
    let status = agent.ended().await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    sleep(QUIET).await;
    assert_eq!(alive(&site, "n1").await, None);
}

/// The agent of one node, or the holder of a copy of its key, opens more than its share.
#[tokio::test]
async fn connections_of_a_node_make_way_for_others_of_the_same_node_alone() {
    const MOST: usize = 8;
    let Serving {
        site,
        token,
        mut replica,
        mut client,
    } = Serving::with(&["--session-lease-ms=500000"]).await;
    let greedy = site.member(&mut client, "n1", &token).await;
    let other = site.member(&mut client, "n2", &token).await;
    let mut undisturbed = Agent::open(&site, &mut replica, &other).await;
    let mut first = Agent::open(&site, &mut replica, &greedy).await;
    let mut open = Vec::new();
    for _ in 0..MOST {
        assert!(!first.is_over(), "its share is {MOST}");
        let mut client = site.client_of(&mut replica, &greedy).await;
        report(&mut client, 1, &[]).await.unwrap();
        open.push(client);
    }
    // With its connection.
    first.ended().await;
    assert!(!undisturbed.is_over());
    let series = "quorate_sessions_ended_total{reason=\"closed\"}";
    eventually(SOON, "one session has ended", async || {
        same(replica.metric(series).await, 1.0)
    })
    .await;
    assert_eq!(replica.metric("quorate_sessions").await, 1.0);
}

#[tokio::test]
async fn an_agent_that_hangs_up_leaves_its_lease() {
    let (site, mut replica, node) = begin().await;
    let agent = Agent::open(&site, &mut replica, &node).await;
    assert_eq!(replica.metric("quorate_sessions").await, 1.0);
    drop(agent);
    eventually(SOON, "the session is over", async || {
        let closed = "quorate_sessions_ended_total{reason=\"closed\"}";
        same(replica.metric(closed).await, 1.0)
    })
    .await;
    assert_eq!(replica.metric("quorate_sessions").await, 0.0);
    assert!(alive(&site, "n1").await.is_some());
}
