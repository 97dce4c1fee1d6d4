//! Credentials that change and tokens that expire beside an endpoint that hangs.

use std::time::{Duration, Instant};

use quorate::etcd::election::may_stand;
use quorate::etcd::{KeyRange, Revision, Watched, Watcher};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use super::credentials::{with_password, with_tls};
use super::following;
use crate::support::client::{connect_with, put};
use crate::support::etcd::{PASSWORD, PASSWORDS_CHECKED, TestEtcd, USER};
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

/// A connection whose other side is silent is given up after 9 s. What is tested takes two or four.
const SILENT: Duration = Duration::from_millis(8500);

/// The check that adopts new credentials may be the one that finds out that an endpoint hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_an_endpoint_that_hangs_goes_on_as_new_credentials_are_adopted() {
    let etcd = TestEtcd::with_tls().await;
    let tls = etcd.tls.as_ref().unwrap();
    let direct = connect_with(with_tls(&etcd, tls.files())).await;
    let proxies = [0; 3].map(|_| Proxy::in_front_of(&etcd.endpoints()[0]));
    let mut config = with_tls(&etcd, tls.files());
    config.endpoints = proxies.each_ref().map(Proxy::url).to_vec();
    config.sync_endpoints = false;
    // Nothing but a request without an answer has the endpoints checked, and no limit ends what waits for one.
    config.endpoint_interval = 10 * SOON;
    (
        config.connect_timeout,
        config.request_timeout,
        config.watch_silence,
    ) = (SOON, 4 * SOON, 4 * SOON);
    let client = eventually(SOON, "all endpoints are in use", async || {
        let client = connect_with(config.clone()).await;
        same(client.live_endpoints().len(), 3).map(|_| client)
    })
    .await;
    let _following = following(&client);
    let (mut watching, mut seen) = (JoinSet::new(), Vec::new());
    for _ in 0..6 {
        let mut watcher = Watcher::new(&client, KeyRange::key("/w"), Revision(1));
        let (sender, newest) = watch::channel(Revision::ABSENT);
        seen.push(newest);
        watching.spawn(async move {
            while let Watched::Events(events) = watcher.next().await {
                sender.send_replace(events[events.len() - 1].revision());
            }
        });
    }
    let mut all_see_a_write = async |until: Instant| {
        let written = put(&direct, "/w", "1").await.revision;
        for newest in &mut seen {
            let caught_up = timeout_at(until.into(), newest.wait_for(|newest| *newest >= written)).await;
            assert!(caught_up.is_ok(), "a watch is left behind");
        }
    };
    all_see_a_write(Instant::now() + SOON).await;

    let until = Instant::now() + SILENT;
    proxies[1].set(Network::BlackHole);
    std::fs::copy(&tls.renewed.key, &tls.client.key).unwrap();
    std::fs::copy(&tls.renewed.cert, &tls.client.cert).unwrap();
    let mut reads = JoinSet::new();
    // Each asks one of the endpoints at random.
    for _ in 0..24 {
        let client = client.clone();
        reads.spawn(async move { client.get(b"/w").await.is_ok() });
    }
    let answered = timeout_at(until.into(), reads.join_all()).await;
    assert!(answered.is_ok(), "a request waits for the endpoint that hangs");
    let live = client.live_endpoints();
    assert!(!live.contains(&proxies[1].url()), "{live:?}");
    all_see_a_write(until).await;
}

/// All requests wait for the one that authenticates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_renewed_beside_an_endpoint_that_hangs() {
    let etcd = TestEtcd::with_password("/q", 1).await;
    let mut config = with_password(&etcd, PASSWORD);
    config.sync_endpoints = false;
    // Nothing but a request without an answer has the endpoints checked, and no limit ends it.
    (config.endpoint_interval, config.request_timeout) = (10 * SOON, 4 * SOON);
    // The one that authenticates asks one of the endpoints at random.
    for _ in 0..5 {
        let proxies = [0; 3].map(|_| Proxy::in_front_of(&etcd.endpoints()[0]));
        config.endpoints = proxies.each_ref().map(Proxy::url).to_vec();
        let client = connect_with(config.clone()).await;
        let _following = following(&client);
        // Longer than the lifetime of a token that is not used.
        sleep(Duration::from_millis(2500)).await;
        proxies[1].set(Network::BlackHole);
        let mut reads = JoinSet::new();
        for _ in 0..6 {
            let client = client.clone();
            reads.spawn(async move { client.get(b"/q/e").await.is_ok() });
        }
        let answered = timeout(SILENT, reads.join_all()).await;
        assert!(answered.is_ok(), "a request waits for the endpoint that hangs");
    }
}

/// Each check of a password costs etcd much, and one change of the users and roles ends the tokens of all requests at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_requests_whose_token_has_ended_one_authenticates_for_all() {
    let etcd = TestEtcd::with_signed_tokens("/q").await;
    let client = connect_with(with_password(&etcd, PASSWORD)).await;
    client.get(b"/q/e").await.unwrap();
    etcd.etcdctl_as_root(&["role", "grant-permission", USER, "read", "/elsewhere"]);
    let checked = async || {
        let checked = etcd.members[0].metric(PASSWORDS_CHECKED).await;
        checked.expect("etcd has checked passwords")
    };
    let before = checked().await;
    let mut reads = JoinSet::new();
    for _ in 0..64 {
        let client = client.clone();
        reads.spawn(async move { client.get(b"/q/e").await.map(drop) });
    }
    for read in reads.join_all().await {
        read.unwrap();
    }
    assert_eq!(checked().await - before, 1.0);
}

/// A leader is refused for 3 s before it steps down; a check that awaits an endpoint that hangs takes one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_changes_is_adopted_beside_an_endpoint_that_hangs_without_a_wait_for_that() {
    let etcd = TestEtcd::with_password("/q", 60).await;
    let hangs = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut config = with_password(&etcd, PASSWORD);
    config.endpoints.push(hangs.url());
    config.sync_endpoints = false;
    // Nothing but a refusal has the endpoints checked.
    config.endpoint_interval = 10 * SOON;
    (config.connect_timeout, config.request_timeout) = (SOON, 2 * SOON);
    let client = connect_with(config).await;
    let _following = following(&client);
    hangs.set(Network::BlackHole);
    let mut best = Duration::MAX;
    // One that awaits the endpoint does so each time; a busy machine is seldom too slow for all of them.
    for attempt in 0..8 {
        let changed = format!("staple {attempt}");
        with_password(&etcd, &changed);
        etcd.change_password(&changed);
        let refused = Instant::now();
        let adopted = async || may_stand(&client, "/q/election").await;
        eventually(SOON, "the new password is in use", adopted).await;
        best = best.min(refused.elapsed());
        if best < Duration::from_secs(1) {
            return;
        }
        // The checks that the refusals have asked for end.
        sleep(Duration::from_secs(4)).await;
    }
    panic!("at best within {best:?}");
}
