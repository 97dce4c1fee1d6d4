//! A caller may drop `next` whenever another branch of its `select!` is ready. That neither stops nor hurries what a
//! follower has begun.

use std::time::{Duration, Instant};

use quorate::etcd::{Etcd, KeyRange};
use quorate::grpc_code::Code;
use quorate::metrics::Reason;
use quorate::store::{Follower, Update};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::client::{config, connect, connect_to, connect_with, put, requests_so_far};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

/// Shorter than any delay, request or silence in these tests.
const TICK: Duration = Duration::from_millis(20);

/// The next update for a caller that drops `next` at every tick.
async fn next_while_ticking(follower: &mut Follower) -> Update {
    loop {
        if let Ok(update) = timeout(TICK, follower.next()).await {
            return update;
        }
    }
}

async fn listed_while_ticking(follower: &mut Follower) {
    let listed = async { while !matches!(next_while_ticking(follower).await, Update::Listed(_)) {} };
    timeout(SOON, listed).await.expect("the list is complete");
}

/// Ticks for this long without an update.
async fn tick_for(limit: Duration, follower: &mut Follower) {
    let update = timeout(limit, next_while_ticking(follower)).await;
    assert!(update.is_err(), "{update:?}");
}

/// How many requests of one operation were made, whatever their result.
fn requests(etcd: &Etcd, operation: &str) -> f64 {
    let of_operation = format!("quorate_etcd_request_seconds_count{{operation=\"{operation}\"");
    let metrics = etcd.metrics().encode();
    let samples = metrics.lines().filter(|line| line.starts_with(&of_operation));
    samples
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

fn restarts(etcd: &Etcd, reason: &'static str) -> u64 {
    etcd.metrics()
        .watch_restarts
        .get_or_create(&Reason { reason })
        .get()
}

#[tokio::test]
async fn a_page_that_takes_longer_than_the_callers_tick_is_read() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    // Twice this for a request and its reply.
    let delay = 5 * TICK;
    proxy.set(Network::Delays(delay));
    let begun = Instant::now();
    listed_while_ticking(&mut Follower::new(&client, KeyRange::prefix("/w/"))).await;
    assert!(begun.elapsed() >= 2 * delay, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_silent_watch_is_reopened_under_a_ticking_caller() {
    let etcd = TestEtcd::start().await;
    let direct = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    let mut follower = Follower::new(&client, KeyRange::prefix("/w/"));
    listed_while_ticking(&mut follower).await;
    // Before its first change a watch may be silent in newer releases of etcd.
    put(&direct, "/w/a", "0").await;
    let first = timeout(SOON, next_while_ticking(&mut follower)).await;
    assert!(matches!(first, Ok(Update::Events(_))), "{first:?}");
    proxy.set(Network::BlackHole);
    // Pings end the connection in the end, and then the watch broke for another reason.
    timeout(SOON, async {
        while restarts(&client, "silent") == 0 {
            tick_for(TICK, &mut follower).await;
        }
    })
    .await
    .expect("the watch is given up as silent");
    proxy.set(Network::Passes);
    put(&direct, "/w/a", "1").await;
    let update = timeout(SOON, next_while_ticking(&mut follower)).await;
    assert!(
        matches!(&update, Ok(Update::Events(events)) if events.len() == 1),
        "{update:?}"
    );
}

#[tokio::test]
async fn a_caller_that_ticks_does_not_shorten_the_delays_between_attempts() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    // Delays of 100 ms, 200 ms, 400 ms, 800 ms and 1.6 s fit in, of each at least three quarters; a tick between attempts would
    // make hundreds of them.
    let (limit, attempts) = (Duration::from_secs(4), 2.0..=8.0);

    proxy.set(Network::Resets);
    let mut follower = Follower::new(&client, KeyRange::prefix("/w/"));
    let before = requests(&client, "range");
    tick_for(limit, &mut follower).await;
    let lists = requests(&client, "range") - before;
    assert!(attempts.contains(&lists), "{lists} lists");

    proxy.set(Network::Passes);
    listed_while_ticking(&mut follower).await;
    proxy.set(Network::Resets);
    let before = requests(&client, "watch");
    tick_for(limit, &mut follower).await;
    let watches = requests(&client, "watch") - before;
    assert!(attempts.contains(&watches), "{watches} watches");
}

#[tokio::test]
async fn an_idle_watch_that_was_reopened_often_is_reopened_quickly() {
    let etcd = TestEtcd::start().await;
    let direct = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut config = config(vec![proxy.url()]);
    config.sync_endpoints = false;
    // Only what the proxy does breaks the watch.
    config.watch_silence = SOON;
    let client = connect_with(config).await;
    let mut follower = Follower::new(&client, KeyRange::prefix("/w/"));
    listed_while_ticking(&mut follower).await;
    let mut tasks = JoinSet::new();
    let (send, mut updates) = mpsc::unbounded_channel();
    tasks.spawn(async move { while send.send(follower.next().await).is_ok() {} });
    // After five seconds of failed attempts the delay is more than two seconds.
    proxy.set(Network::Resets);
    sleep(Duration::from_secs(5)).await;
    let opened = || requests_so_far(&client, "watch", Code::Ok);
    let before = opened();
    proxy.set(Network::Passes);
    eventually(SOON, "the watch is open again", async || {
        same(opened() > before, true)
    })
    .await;
    // It lasts without an event.
    sleep(Duration::from_secs(6)).await;
    let before = restarts(&client, "error");
    proxy.set(Network::Resets);
    eventually(SOON, "the watch breaks", async || {
        same(restarts(&client, "error") > before, true)
    })
    .await;
    proxy.set(Network::Passes);
    put(&direct, "/w/a", "1").await;
    let healed = Instant::now();
    let update = timeout(SOON, updates.recv()).await;
    assert!(matches!(update, Ok(Some(Update::Events(_)))), "{update:?}");
    // After the failures of before, the delay would be four to five seconds.
    let took = healed.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}
