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
use crate::support::client::{
    LONG_TTL, commit, config, connect, connect_to, connect_with, metric, pulse, put, until_a_failure,
};
use crate::support::etcd::{READS_BEGUN, TestEtcd};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::quorate_on;
use crate::support::wait::{SOON, eventually, same, stays};

/// Three members, each behind a proxy, and a client of the proxies with the limits that a replica has.
async fn behind_proxies(etcd: &TestEtcd) -> (Vec<Proxy>, Etcd) {
    let proxies: Vec<Proxy> = etcd
        .endpoints()
        .iter()
        .map(|url| Proxy::in_front_of(url))
        .collect();
    let mut config = Config::new(proxies.iter().map(Proxy::url).collect());
    config.sync_endpoints = false;
    let client = connected_to_all(config).await;
    (proxies, client)
}

pub(super) async fn connected_to_all(config: Config) -> Etcd {
    // A connection does not wait long for the last of them.
    eventually(SOON, "all endpoints are in use", async || {
        let client = connect_with(config.clone()).await;
        same(client.live_endpoints().len(), config.endpoints.len()).map(|_| client)
    })
    .await
}

fn has_lease(etcd: &TestEtcd, session: &str) -> bool {
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
        // A member may list it until it has applied its end. By itself it would last longer.
        eventually(SOON, "the lease is gone", async || {
            same(has_lease(&etcd, &lease), false)
        })
        .await;
    }
}

#[tokio::test]
async fn a_lease_that_cannot_be_given_back_at_once_is_given_back_within_a_second() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    // On a busy machine the second may pass before the lease can be given back again.
    for _ in 0..5 {
        let session = Session::open(&client, LONG_TTL, &pulse).await.unwrap();
        let lease = session.lease().to_string();
        until_a_failure(&client, "lease_revoke", &proxy, session.close()).await;
        if !has_lease(&etcd, &lease) {
            return;
        }
    }
    panic!("no lease was given back");
}

/// It answers every probe, but too late. If it came back with each answer, it would leave at the next check again.
#[tokio::test]
async fn an_endpoint_that_is_late_at_every_check_stays_out_until_it_answers_in_time() {
    let etcd = TestEtcd::with(3, &[]).await;
    let slow = Proxy::in_front_of(&etcd.endpoints()[2]);
    let in_time = &etcd.endpoints()[..2];
    let all = [in_time, &[slow.url()]].concat();
    let mut config = config(all.clone());
    config.sync_endpoints = false;
    // The probe waits for the answer.
    config.request_timeout = Duration::from_secs(10);
    let client = connect_with(config).await;
    let _following = following(&client);
    wait_for_endpoints(&client, &all).await;
    slow.set(Network::Delays(Duration::from_millis(1900)));
    eventually(SOON, "the slow endpoint leaves", async || {
        same(client.live_endpoints().contains(&slow.url()), false)
    })
    .await;
    // A few checks.
    stays(Duration::from_secs(8), "it is out", async || {
        same(client.live_endpoints().contains(&slow.url()), false)
    })
    .await;
    slow.set(Network::Passes);
    wait_for_endpoints(&client, &all).await;
}

/// A check may get the answer to a question of the check before. The store has gone on since.
#[tokio::test]
async fn an_answer_that_comes_during_a_later_check_is_no_restore() {
    let etcd = TestEtcd::start().await;
    let slow = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut config = config(vec![etcd.endpoints()[0].clone(), slow.url()]);
    config.sync_endpoints = false;
    // The probe waits for the answer.
    config.request_timeout = Duration::from_secs(10);
    let client = connected_to_all(config).await;
    let _following = following(&client);
    let writer = connect(&etcd).await;
    // A check with a late endpoint takes 1 s, and the next one begins 1.3 s later.
    for held_up in (1500..=3000).step_by(300).map(Duration::from_millis) {
        slow.set(Network::LosesReplies);
        let begun = Instant::now();
        while begun.elapsed() < held_up {
            put(&writer, "/e", "1").await;
            // The client sees how far the store is, unless the slow endpoint gets the read.
            let _ = tokio::time::timeout(Duration::from_millis(50), client.get(b"/e")).await;
            // A pause between two writes; what is waited for is the time that the answer is held up.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        slow.set(Network::Passes);
        let lost = tokio::time::timeout(Duration::from_millis(500), client.store_lost()).await;
        assert!(lost.is_err(), "{lost:?}");
    }
}

/// Each of its answers comes after its check and before the next one.
#[tokio::test]
async fn an_endpoint_of_another_cluster_that_is_late_at_every_check_is_refused() {
    let (etcd, another) = (TestEtcd::start().await, TestEtcd::start().await);
    let moved = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut config = config(vec![etcd.endpoints()[0].clone(), moved.url()]);
    config.sync_endpoints = false;
    // The probe waits for the answer.
    config.request_timeout = Duration::from_secs(10);
    let client = connected_to_all(config).await;
    let _following = following(&client);
    moved.lead_to(&another.endpoints()[0]);
    moved.set(Network::Resets);
    wait_for_endpoints(&client, &etcd.endpoints()).await;
    moved.set(Network::Delays(Duration::from_millis(700)));
    eventually(SOON, "the moved endpoint is refused", async || {
        same(metric(&client, "quorate_etcd_endpoints_refused"), 1.0)
    })
    .await;
    assert_eq!(client.live_endpoints(), etcd.endpoints());
}

/// Followers of one range, and the revision of the last change that each has brought.
struct Followers {
    seen: Vec<watch::Receiver<Revision>>,
    _following: JoinSet<()>,
}

impl Followers {
    /// So many that some are served by each endpoint of the client.
    async fn start(client: &Etcd) -> Self {
        let (mut following, mut seen) = (JoinSet::new(), Vec::new());
        for _ in 0..6 {
            let mut follower = Follower::new(client, KeyRange::prefix("/e"));
            while !matches!(follower.next().await, Update::Listed(_)) {}
            let (sender, newest) = watch::channel(Revision::ABSENT);
            seen.push(newest);
            following.spawn(async move {
                loop {
                    if let Update::Events(events) = follower.next().await {
                        sender.send_replace(events[events.len() - 1].revision());
                    }
                }
            });
        }
        Self {
            seen,
            _following: following,
        }
    }

    /// Waits until all of them have come to this revision.
    async fn come_to(&mut self, revision: Revision) {
        for newest in &mut self.seen {
            let caught_up = timeout(SOON, newest.wait_for(|newest| *newest >= revision)).await;
            assert!(caught_up.is_ok(), "a watch is left behind");
        }
    }
}

/// A request without an answer may take 5 s, and a connection that is silent lasts 9 s. One hanging endpoint of three must cost
/// no request and no watch as much.
#[tokio::test]
async fn a_hanging_endpoint_of_three_pauses_no_request_and_no_watch_for_5_s() {
    let etcd = TestEtcd::with(3, &[]).await;
    let (proxies, client) = behind_proxies(&etcd).await;
    let _following = following(&client);
    let mut followers = Followers::start(&client).await;
    let mut paused = Vec::new();
    for hanging in [1, 2, 0] {
        paused.extend(paused_by(&client, &mut followers, &proxies, hanging).await);
    }
    // A busy machine may be too slow for one of the three.
    assert!(paused.len() < 2, "{paused:?}");
}

/// What paused for too long while this endpoint hung for 5 s.
async fn paused_by(
    client: &Etcd,
    followers: &mut Followers,
    proxies: &[Proxy],
    hanging: usize,
) -> Option<String> {
    proxies[hanging].set(Network::BlackHole);
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    let (mut first, mut last) = (None, Revision::ABSENT);
    while begun.elapsed() < Duration::from_secs(5) {
        let asked = Instant::now();
        if let Ok(committed) = commit(client, Txn::new().put(b"/e", "1")).await {
            last = committed.revision;
            first.get_or_insert(last);
        }
        longest = longest.max(asked.elapsed());
        // A pause between two writes of the measured time.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // The measured time is over: those that were served by the endpoint are served by another one.
    let first = first.expect("a write is acknowledged");
    let all_saw = followers.seen.iter().all(|newest| *newest.borrow() >= first);
    followers.come_to(last).await;
    let mut all: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let hung = all.remove(hanging);
    wait_for_endpoints(client, &all).await;
    proxies[hanging].set(Network::Passes);
    all.push(hung);
    wait_for_endpoints(client, &all).await;
    match longest < Duration::from_millis(4500) {
        true => (!all_saw).then(|| "a watch".to_owned()),
        false => Some(format!("a request, for {longest:?}")),
    }
}

/// The regular check comes every 10 s, and a connection whose other side is silent lasts 9 s.
#[tokio::test]
async fn a_watch_of_a_process_that_asks_nothing_goes_on_within_5_s_of_a_hanging_endpoint() {
    let etcd = TestEtcd::with(3, &[]).await;
    let (proxies, client) = behind_proxies(&etcd).await;
    let _following = following(&client);
    let mut followers = Followers::start(&client).await;
    let writer = connect(&etcd).await;
    followers.come_to(put(&writer, "/e", "0").await.revision).await;
    let all: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let mut best = Duration::MAX;
    // Without the look at the endpoints each of them takes longer; a busy machine is seldom too slow for all of them. Each is
    // one that serves watches: those of the one before have gone to the others.
    for hanging in [1, 2, 0] {
        proxies[hanging].set(Network::BlackHole);
        let begun = Instant::now();
        let written = put(&writer, "/e", "1").await.revision;
        followers.come_to(written).await;
        best = best.min(begun.elapsed());
        proxies[hanging].set(Network::Passes);
        if best < Duration::from_secs(5) {
            return;
        }
        wait_for_endpoints(&client, &all).await;
    }
    panic!("at best within {best:?}");
}

#[tokio::test]
async fn a_connection_that_asks_nothing_costs_each_endpoint_a_few_reads() {
    let etcd = TestEtcd::with(3, &[]).await;
    let mut config = Config::new(etcd.endpoints());
    config.endpoint_interval = 10 * SOON;
    let client = connected_to_all(config).await;
    let _following = following(&client);
    let reads = async || {
        let mut reads = 0.0;
        for member in &etcd.members {
            reads += member.metric(READS_BEGUN).await.unwrap_or_default();
        }
        reads
    };
    let (begun, before) = (Instant::now(), reads().await);
    // The measured time: a few looks.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let (made, time) = (reads().await - before, begun.elapsed());
    // One for each look, and on a busy machine, where a late answer has the endpoints checked, another one for the check.
    let most = 3.0 * 2.0 * (time.as_secs_f64() / 1.5 + 1.0);
    assert!(made >= 3.0 && made <= most, "{made} reads in {time:?}");
}

/// It is awaited ever longer: what ended one connection has ended those of others as well.
#[tokio::test]
async fn a_keep_alive_that_fails_is_repeated_ever_more_slowly() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    let mut beating = JoinSet::new();
    let ttl = Duration::from_secs(10);
    let session = Session::open(&client, ttl, &pulse(&mut beating)).await.unwrap();
    proxy.set(Network::Resets);
    let before = proxy.accepted_connections();
    timeout(SOON, session.window().closed())
        .await
        .expect("the window closes");
    let made = proxy.accepted_connections() - before;
    // After 0.5, 1, 2 and 2 s, with a connection or two each. Every 0.5 s, it would be 11 of them and more.
    assert!((1..=10).contains(&made), "{made} connections");
}

/// A connection whose other side is silent is given up after 9 s, and a check with it.
#[tokio::test]
async fn an_endpoint_that_hangs_while_another_one_is_awaited_leaves_the_channel_as_soon() {
    let etcd = TestEtcd::with(3, &[]).await;
    let proxies: Vec<Proxy> = etcd
        .endpoints()
        .iter()
        .map(|url| Proxy::in_front_of(url))
        .collect();
    let mut config = Config::new(proxies.iter().map(Proxy::url).collect());
    config.sync_endpoints = false;
    config.endpoint_interval = Duration::from_millis(300);
    // A check awaits an endpoint for half of this.
    config.request_timeout = 2 * SOON;
    let client = connected_to_all(config).await;
    let _following = following(&client);
    for (hanging, proxy) in proxies[..2].iter().enumerate() {
        proxy.set(Network::BlackHole);
        let rest: Vec<String> = proxies[hanging + 1..].iter().map(Proxy::url).collect();
        eventually(Duration::from_secs(7), "it leaves the channel", async || {
            let live = client.live_endpoints();
            same(
                live.len() == rest.len() && live.iter().all(|url| rest.contains(url)),
                true,
            )
        })
        .await;
    }
    let mut all: Vec<String> = proxies.iter().map(Proxy::url).collect();
    all.sort();
    for proxy in &proxies {
        proxy.set(Network::Passes);
    }
    wait_for_endpoints(&client, &all).await;
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
    let (begun, before) = (Instant::now(), proxy.accepted_connections());
    // The measured time: a few checks.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let made = (proxy.accepted_connections() - before) as f64;
    let time = begun.elapsed();
    // A check every 0.75 s at most, one that begins and one that ends; two connections each.
    assert!(
        made <= 2.0 * (time.as_secs_f64() / 0.75 + 2.0),
        "{made} connections in {time:?}"
    );
}

/// A connection awaits an endpoint that hangs for 4.5 s, a decision on the members for 2 s. A command that only shows awaits
/// it for less than a second.
#[tokio::test]
async fn a_command_is_answered_by_the_members_that_answer_within_a_second() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let status_key = Keys::new("/quorate".parse().unwrap()).status();
    let admitting = status(State::Done, 4, 4).encode();
    let written = Txn::new().put(&status_key, admitting);
    commit(&connect(&etcd).await, written).await.unwrap();
    let hanging = (etcd.raft_leader().await + 1) % 3;
    etcd.members[hanging].pause();
    let name = format!("etcd-{}", hanging + 1);
    for command in [
        &["get", "nodes"][..],
        &["get", "members"],
        &["describe", "member", &name],
        &["status"],
        &["wait-ready", "--release=0.4.0", "--timeout=30s"],
    ] {
        let mut best = Duration::MAX;
        // One that awaits the member does so in each run; a busy machine is seldom too slow for all of them.
        for _ in 0..10 {
            let asked = Instant::now();
            let shown = quorate_on(&etcd, command, "").await;
            best = best.min(asked.elapsed());
            let shown = shown.expect_done();
            if command[0] == "describe" {
                assert!(shown.contains("unhealthy: no answer within"), "{shown}");
            }
            if best < Duration::from_secs(1) {
                break;
            }
        }
        assert!(best < Duration::from_secs(1), "{command:?} took {best:?}");
    }
}
