//! Endpoints that hang or hang up among others that answer.

use std::time::{Duration, Instant};

use quorate::etcd::{Config, Etcd, KeyRange, Revision, Session, Txn};
use quorate::gate::status::State;
use quorate::store::{Follower, Keys, Update};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::following;
use super::outages::wait_for_endpoints;
use crate::gate::term::status;
use crate::support::client::{LONG_TTL, commit, config, connect, connect_to, connect_with, pulse};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::quorate;
use crate::support::wait::{SOON, eventually, same};

/// Three members, each behind a proxy, and a client of the proxies with the limits that a replica has.
async fn behind_proxies(etcd: &TestEtcd) -> (Vec<Proxy>, Etcd) {
    let proxies: Vec<Proxy> = etcd
        .endpoints()
        .iter()
        .map(|url| Proxy::in_front_of(url))
        .collect();
    let mut config = Config::new(proxies.iter().map(Proxy::url).collect());
    config.sync_endpoints = false;
    let client = connect_with(config).await;
    eventually(SOON, "all endpoints are in use", async || {
        client.get(b"/e").await.map_err(|error| error.to_string())?;
        same(client.live_endpoints().len(), 3)
    })
    .await;
    (proxies, client)
}

async fn has_lease(etcd: &TestEtcd, session: &str) -> bool {
    etcd.etcdctl(&["lease", "list"]).contains(session)
}

#[tokio::test]
async fn a_session_that_is_closed_while_two_of_three_endpoints_hang_gives_its_lease_back() {
    let etcd = TestEtcd::with(3, &[]).await;
    let (proxies, client) = behind_proxies(&etcd).await;
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    let mut sessions = Vec::new();
    for _ in 0..5 {
        sessions.push(Session::open(&client, LONG_TTL, &pulse).await.unwrap());
    }
    for proxy in &proxies[..2] {
        proxy.set(Network::BlackHole);
    }
    for session in sessions {
        let lease = session.lease().to_string();
        session.close().await;
        assert!(!has_lease(&etcd, &lease).await);
    }
}

#[tokio::test]
async fn a_lease_that_cannot_be_given_back_at_once_is_given_back_within_a_second() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    let mut beating = JoinSet::new();
    let session = Session::open(&client, LONG_TTL, &pulse(&mut beating))
        .await
        .unwrap();
    let lease = session.lease().to_string();
    proxy.set(Network::Resets);
    let healed = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.set(Network::Passes);
    };
    tokio::join!(session.close(), healed);
    assert!(!has_lease(&etcd, &lease).await);
}

/// A request without an answer may take 5 s. One hanging endpoint of three must not cost as much.
#[tokio::test]
async fn a_hanging_endpoint_of_three_costs_no_request_its_whole_limit() {
    let etcd = TestEtcd::with(3, &[]).await;
    let (proxies, client) = behind_proxies(&etcd).await;
    let _following = following(&client);
    let (mut following_keys, mut seen) = (JoinSet::new(), Vec::new());
    for _ in 0..6 {
        let mut follower = Follower::new(&client, KeyRange::prefix("/e"));
        while !matches!(follower.next().await, Update::Listed(_)) {}
        let (sender, newest) = watch::channel(Revision::ABSENT);
        seen.push(newest);
        following_keys.spawn(async move {
            loop {
                if let Update::Events(events) = follower.next().await {
                    sender.send_replace(events[events.len() - 1].revision());
                }
            }
        });
    }
    proxies[1].set(Network::BlackHole);
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    let mut last = Revision::ABSENT;
    while begun.elapsed() < Duration::from_secs(7) {
        let asked = Instant::now();
        if let Ok(committed) = commit(&client, Txn::new().put(b"/e", "1")).await {
            last = committed.revision;
        }
        longest = longest.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(
        longest < Duration::from_millis(4500),
        "a request took {longest:?}"
    );
    for newest in &mut seen {
        let caught_up = timeout(Duration::from_secs(1), newest.wait_for(|newest| *newest >= last)).await;
        assert!(caught_up.is_ok(), "a watch is left behind");
    }
    let mut rest: Vec<String> = vec![proxies[0].url(), proxies[2].url()];
    rest.sort();
    wait_for_endpoints(&client, &rest).await;
    proxies[1].set(Network::Passes);
    rest.push(proxies[1].url());
    wait_for_endpoints(&client, &rest).await;
}

/// A load balancer without servers behind it accepts connections and closes them.
#[tokio::test]
async fn an_endpoint_that_hangs_up_is_connected_to_no_more_than_a_few_times_a_check() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut config = config(vec![etcd.endpoints()[0].clone(), proxy.url()]);
    config.sync_endpoints = false;
    let client = connect_with(config).await;
    let _following = following(&client);
    proxy.set(Network::Resets);
    wait_for_endpoints(&client, &etcd.endpoints()).await;
    let before = proxy.accepted_connections();
    let time = Duration::from_secs(4);
    tokio::time::sleep(time).await;
    let made = proxy.accepted_connections() - before;
    // A check a second, and twice as many for one that begins and one that ends.
    assert!(made <= 12, "{made} connections in {time:?}");
}

/// An endpoint that hangs is awaited for 4.5 s.
#[tokio::test]
async fn a_command_is_answered_by_the_endpoints_that_answer() {
    let etcd = TestEtcd::with(3, &[]).await;
    let status_key = Keys::new("/quorate".parse().unwrap()).status();
    let admitting = status(State::Done, 4, 4).encode();
    let written = Txn::new().put(&status_key, admitting);
    commit(&connect(&etcd).await, written).await.unwrap();
    let hanging = Proxy::in_front_of(&etcd.endpoints()[2]);
    hanging.set(Network::BlackHole);
    let endpoints = [&etcd.endpoints()[..2], &[hanging.url()]].concat().join(",");
    for command in [
        &["get", "nodes"][..],
        &["status"],
        &["wait-ready", "--release=0.4.0", "--timeout=3s"],
    ] {
        let flag = format!("--etcd-endpoints={endpoints}");
        let asked = Instant::now();
        let ended = quorate(command.iter().copied().chain([flag.as_str()])).await;
        let took = asked.elapsed();
        ended.expect_done();
        assert!(took < Duration::from_secs(4), "{command:?} took {took:?}");
    }
}
