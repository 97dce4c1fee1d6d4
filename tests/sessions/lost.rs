//! A node whose replica is gone stays ready for as long as its lease lasts, and is down after.

use tonic::Code;

use super::agent::{Agent, alive, cell, down, held};
use crate::control::site::{Client, Joined, Member, Serving, Site, control_address};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::TestReplica;
use crate::support::wait::{SOON, eventually, same};

/// Longer than any test takes: a lease that ends was ended.
const LONG_LEASE: &str = "--session-lease-ms=500000";

/// A lease whose end a test waits for.
const SHORT_LEASE: &str = "--session-lease-ms=5000";

/// A replica with this lease of sessions, and a node that has joined there.
async fn begin(lease: &str) -> (Site, TestReplica, Member) {
    let Joined {
        site, replica, node, ..
    } = Serving::with(&[lease]).await.join("n1").await;
    (site, replica, node)
}

/// What becomes of the replica to which the agent is connected.
#[derive(Clone, Copy, Debug)]
enum Lost {
    Stopped,
    Killed,
    CutOff,
}

async fn goes_on_with_its_lease(lost: Lost) {
    let (site, mut first, node) = begin(LONG_LEASE).await;
    // Its own leases are others.
    let mut second = site.launch().flag("--session-lease-ms=60000").start("c2");
    let proxy = Proxy::in_front_of(&control_address(&mut first).await);
    let client = client_through(&site, &proxy, &node).await;
    let mut agent = Agent::over(client).await.unwrap();
    agent.keep_beating();
    let (session, lease) = held(&site, "n1").await;
    assert_eq!(session.session_id, agent.begun.session_id, "{lost:?}");
    assert_eq!(session.node_uid, node.uid);
    match lost {
        Lost::Stopped => {
            first.stop().await.unwrap();
            // A replica waits a moment for its connections to end. Where that is too short, no reason arrives.
            let code = agent.ended().await.code();
            assert!(matches!(code, Code::Unavailable | Code::Unknown), "{code}");
        }
        Lost::Killed => {
            first.kill().await.unwrap();
            agent.ended().await;
        }
        Lost::CutOff => proxy.set(Network::BlackHole),
    }
    // Nothing of it is gone: no replica ends the lease of an agent.
    let left = held(&site, "n1").await;
    assert_eq!(left, (session.clone(), lease), "{lost:?}");
    assert_eq!(cell(&site, "n1", "READY").await, "yes", "{lost:?}");

    let again = Agent::open(&site, &mut second, &node).await;
    let (now, lease_now) = held(&site, "n1").await;
    assert_eq!(lease_now, lease, "the lease of before goes on ({lost:?})");
    assert_eq!(now.session_id, again.begun.session_id);
    assert_eq!(again.begun.lease, agent.begun.lease, "the agent is given its TTL");
    assert_ne!(now.session_id, session.session_id);
    assert_eq!(
        (session.replica.as_str(), now.replica.as_str()),
        ("c1", "c2"),
        "{lost:?}"
    );
    assert_eq!(now.ready_since, session.ready_since, "it was ready all the time");
    if let Lost::CutOff = lost {
        // The session that hangs ends there, too, and puts nothing back.
        eventually(SOON, "the first replica serves no session", async || {
            same(first.metric("quorate_sessions").await, 0.0)
        })
        .await;
        let series = "quorate_sessions_ended_total{reason=\"superseded\"}";
        assert_eq!(first.metric(series).await, 1.0);
        assert_eq!(held(&site, "n1").await, (now, lease));
    }
}

async fn client_through(site: &Site, proxy: &Proxy, node: &Member) -> Client {
    let endpoint = site.endpoint_at(&proxy.address.to_string(), Some(node.identity()));
    let what = "a connection through the proxy";
    let channel = eventually(SOON, what, async || {
        endpoint.connect().await.map_err(|error| format!("{error:?}"))
    })
    .await;
    Client::new(channel)
}

#[tokio::test]
async fn the_agent_of_a_stopped_replica_goes_on_with_its_lease_at_another_one() {
    goes_on_with_its_lease(Lost::Stopped).await;
}

#[tokio::test]
async fn the_agent_of_a_killed_replica_goes_on_with_its_lease_at_another_one() {
    goes_on_with_its_lease(Lost::Killed).await;
}

#[tokio::test]
async fn the_agent_that_is_cut_off_from_its_replica_goes_on_with_its_lease_at_another_one() {
    goes_on_with_its_lease(Lost::CutOff).await;
}

#[tokio::test]
async fn a_node_whose_replica_is_killed_is_down_once_its_lease_has_ended() {
    let (site, mut replica, node) = begin(SHORT_LEASE).await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    agent.keep_beating();
    replica.kill().await.unwrap();
    down(&site, "n1").await;
    assert_eq!(cell(&site, "n1", "READY").await, "no");
}

#[tokio::test]
async fn a_node_that_is_suspended_is_down_after_its_lease_and_ready_with_its_next_session() {
    let (site, mut replica, node) = begin(SHORT_LEASE).await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    agent.keep_beating();
    let before = agent.begun.session_id.clone();
    agent.stop_beating();
    let status = agent.ended().await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(alive(&site, "n1").await.is_none());
    let again = Agent::open(&site, &mut replica, &node).await;
    assert_ne!(again.begun.session_id, before);
}

/// Nothing is decided from an old copy, and the node stays ready.
#[tokio::test]
async fn a_replica_that_does_not_see_etcd_ends_its_sessions() {
    let (serving, to_etcd) = Serving::behind_proxy(&[LONG_LEASE]).await;
    let Joined {
        site,
        mut replica,
        node,
        ..
    } = serving.join("n1").await;
    let mut agent = Agent::open(&site, &mut replica, &node).await;
    agent.keep_beating();
    let before = held(&site, "n1").await;
    to_etcd.set(Network::BlackHole);
    let status = agent.ended().await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(held(&site, "n1").await, before);
    to_etcd.set(Network::Passes);
    let series = "quorate_sessions_ended_total{reason=\"stale\"}";
    assert_eq!(replica.metric(series).await, 1.0);
    let again = eventually(SOON, "the replica serves sessions again", async || {
        let client = site.client_of(&mut replica, &node).await;
        Agent::over(client).await.map_err(|status| status.to_string())
    })
    .await;
    let (session, lease) = held(&site, "n1").await;
    assert_eq!(
        (session.session_id, lease),
        (again.begun.session_id.clone(), before.1)
    );
}
