//! One store (INV-11): endpoints of another cluster, and an etcd that is restored from a snapshot under those who use it.

use std::path::PathBuf;
use std::time::Duration;

use quorate::etcd::{Class, ConnectError, Etcd, KeyRange, Revision, StoreLost, Txn, Witness};
use quorate::gate::{Requirements, wait_ready};
use quorate::metrics::Metrics;
use quorate::prelude::{Release, elect};
use quorate::store::{Follower, Update};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::following;
use crate::support::client::{
    commit, config, connect, connect_to, connect_with, failed_so_far, metric, put, store,
};
use crate::support::etcd::{READS_BEGUN, TestEtcd};
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::{Launch, Replicas, quorate, quorate_on};
use crate::support::wait::{QUIET, SOON, eventually, same};

async fn fill(etcd: &Etcd, writes: usize) {
    for value in 0..writes {
        put(etcd, "/filler", value.to_string()).await;
    }
}

/// Three replicas, and a snapshot from the time when they were ready. They have seen 200 further writes.
async fn three_with_a_snapshot(etcd: &TestEtcd) -> (Replicas, PathBuf) {
    let launch = Launch::on(etcd).flag("--etcd-endpoint-interval-ms=300");
    let mut replicas = launch.start_all(&["a", "b", "c"]);
    for replica in &mut replicas.0 {
        replica.wait_ready().await;
    }
    replicas.leader().await;
    let snapshot = etcd.snapshot();
    fill(&connect(etcd).await, 200).await;
    let reads = async || etcd.members[0].metric(READS_BEGUN).await.unwrap_or_default();
    let before = reads().await;
    eventually(SOON, "each replica has read since", async || {
        same(reads().await > before + 15.0, true)
    })
    .await;
    (replicas, snapshot)
}

async fn expect_ended(replicas: &mut Replicas, message: &str) {
    for replica in &mut replicas.0 {
        let ended = replica.ended().await;
        let log = replica.log();
        assert_eq!(ended.code(), Some(1), "{log}");
        assert!(log.contains(message) && log.contains("quorate adopt"), "{log}");
    }
}

#[tokio::test]
async fn replicas_under_which_etcd_is_restored_end_and_say_so() {
    let mut etcd = TestEtcd::start().await;
    let (mut replicas, snapshot) = three_with_a_snapshot(&etcd).await;
    etcd.restore(&snapshot).await;
    expect_ended(&mut replicas, "it was restored from a snapshot").await;
    // Started again, as their supervisor does, they work with what is there.
    for replica in &mut replicas.0 {
        replica.launch().unwrap();
    }
    for replica in &mut replicas.0 {
        replica.wait_ready().await;
    }
    replicas.leader().await;
}

#[tokio::test]
async fn replicas_under_which_etcd_is_restored_as_another_cluster_end_and_say_so() {
    let mut etcd = TestEtcd::start().await;
    let (mut replicas, snapshot) = three_with_a_snapshot(&etcd).await;
    etcd.restore_as("another", &snapshot).await;
    expect_ended(&mut replicas, "etcd was restored or replaced").await;
}

#[tokio::test]
async fn after_an_answer_below_the_highest_revision_no_request_is_made() {
    let mut etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    put(&client, "/a", "1").await;
    let snapshot = etcd.snapshot();
    fill(&client, 10).await;
    let (_, before) = client.get(b"/a").await.unwrap();
    etcd.restore(&snapshot).await;
    let lost = eventually(SOON, "the restore is seen", async || {
        match client.get(b"/a").await {
            Err(error) if error.class == Class::StoreLost => Ok(error),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(!lost.is_retryable() && lost.outcome_unknown(), "{lost}");
    let StoreLost::WentBack { before: seen, now } = client.store_lost().await else {
        panic!("the cluster is the same")
    };
    assert_eq!(seen, before);
    assert!(now < before, "{now}");
    // The store passes the revision, and is still not the one that this process has read.
    fill(&connect(&etcd).await, 20).await;
    assert_eq!(client.get(b"/a").await.unwrap_err().class, Class::StoreLost);
}

/// By what a follower can notice that the restored history has passed the revision that the follower has come to.
#[derive(PartialEq)]
enum Sign {
    /// The raft term: a restored cluster begins with the first.
    Term,
    /// The own registration, which was made after the snapshot.
    Registration,
    /// The last change that the follower has seen.
    LastChange,
}

/// Follows `/w/`, and has read its list.
async fn listed(client: &Etcd) -> Follower {
    let mut follower = Follower::new(client, KeyRange::prefix("/w/"));
    timeout(SOON, async {
        while !matches!(follower.next().await, Update::Listed(_)) {}
    })
    .await
    .unwrap();
    follower
}

async fn is_listed_again(sign: Sign) -> bool {
    let mut etcd = TestEtcd::start().await;
    let direct = connect(&etcd).await;
    if sign == Sign::Term {
        etcd.members[0].kill().await.unwrap();
        etcd.members[0].start().await.unwrap();
    }
    let snapshot = etcd.snapshot();
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    let own = put(&client, "/w/own", "1").await;
    if sign == Sign::Registration {
        client.set_witness(Some(Witness {
            key: b"/w/own".to_vec(),
            mod_revision: own.revision,
        }));
    }
    let mut follower = listed(&client).await;
    if sign == Sign::LastChange {
        put(&direct, "/w/lost", "1").await;
        assert!(matches!(follower.next().await, Update::Events(_)));
    }
    proxy.set(Network::Resets);
    drop(direct);
    etcd.restore(&snapshot).await;
    let restored = connect(&etcd).await;
    fill(&restored, 20).await;
    put(&restored, "/w/new", "1").await;
    proxy.set(Network::Passes);
    matches!(timeout(SOON, follower.next()).await.unwrap(), Update::Page { .. })
}

#[tokio::test]
async fn an_interrupted_watch_is_listed_again_where_the_raft_term_is_another() {
    assert!(is_listed_again(Sign::Term).await);
}

#[tokio::test]
async fn an_interrupted_watch_is_listed_again_where_the_own_registration_is_gone() {
    assert!(is_listed_again(Sign::Registration).await);
}

#[tokio::test]
async fn an_interrupted_watch_is_listed_again_where_the_last_change_is_not_in_the_history() {
    assert!(is_listed_again(Sign::LastChange).await);
}

#[tokio::test]
async fn an_interrupted_watch_continues_while_term_and_registration_are_what_they_were() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    let own = put(&client, "/w/own", "1").await;
    client.set_witness(Some(Witness {
        key: b"/w/own".to_vec(),
        mod_revision: own.revision,
    }));
    let mut follower = listed(&client).await;
    let direct = connect(&etcd).await;
    // The last change before the next interruption is a deletion.
    for txn in [
        Txn::new().put(b"/w/new", "1"),
        Txn::new().delete(b"/w/new"),
        Txn::new().put(b"/w/new", "2"),
    ] {
        proxy.set(Network::Resets);
        commit(&direct, txn).await.unwrap();
        proxy.set(Network::Passes);
        let update = timeout(SOON, follower.next()).await.unwrap();
        assert!(matches!(update, Update::Events(_)), "{update:?}");
    }
}

/// A page more than one.
async fn write_two_pages(etcd: &Etcd, value: &str) {
    for first in (0..=10_000).step_by(100) {
        let numbers = first..first + 100;
        let txn = numbers.fold(Txn::new(), |txn, number| {
            txn.put(format!("/w/{number:05}").as_bytes(), value)
        });
        commit(etcd, txn).await.unwrap();
    }
}

#[tokio::test]
async fn a_list_that_is_read_while_etcd_is_restored_begins_again() {
    let mut etcd = TestEtcd::start().await;
    let snapshot = etcd.snapshot();
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    write_two_pages(&connect(&etcd).await, "before").await;
    let mut follower = Follower::new(&client, KeyRange::prefix("/w/"));
    let page = timeout(SOON, follower.next()).await.unwrap();
    assert!(matches!(page, Update::Page { first: true, .. }), "{page:?}");
    proxy.set(Network::Resets);
    etcd.restore(&snapshot).await;
    let restored = connect(&etcd).await;
    write_two_pages(&restored, "after").await;
    fill(&restored, 20).await;
    let failed = || failed_so_far(&client, "range");
    let before = failed();
    tokio::select! {
        update = follower.next() => panic!("{update:?} through a network that resets"),
        () = eventually(SOON, "the read of the second page fails on the way", async || {
            same(failed() > before, true).map(drop)
        }) => {}
    }
    proxy.set(Network::Passes);
    let page = timeout(SOON, follower.next()).await.unwrap();
    let Update::Page { first: true, keys } = page else {
        panic!("a page of another history follows")
    };
    assert!(keys.iter().all(|kv| kv.value == b"after"));
}

#[tokio::test]
async fn a_range_is_not_listed_again_where_its_watch_was_not_opened_at_once() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    put(&client, "/w/a", "1").await;
    let mut follower = Follower::new(&client, KeyRange::prefix("/w/"));
    let page = timeout(SOON, follower.next()).await.unwrap();
    assert!(matches!(page, Update::Page { first: true, .. }), "{page:?}");
    // The next step opens the watch.
    proxy.set(Network::Resets);
    let listed = timeout(SOON, follower.next()).await.unwrap();
    assert!(matches!(listed, Update::Listed(_)), "{listed:?}");
    proxy.set(Network::Passes);
    put(&connect(&etcd).await, "/w/a", "2").await;
    let update = timeout(SOON, follower.next()).await.unwrap();
    assert!(matches!(update, Update::Events(_)), "{update:?}");
}

#[tokio::test]
async fn endpoints_of_two_clusters_are_refused_by_name_where_neither_has_the_most() {
    let (ours, other) = (TestEtcd::start().await, TestEtcd::start().await);
    let endpoints = [ours.endpoints(), other.endpoints()].concat();
    let mut both = config(endpoints.clone());
    // No answer is no refusal.
    (both.connect_timeout, both.request_timeout) = (SOON, SOON);
    let refused = Etcd::connect(both, Metrics::new("test")).await.unwrap_err();
    assert!(matches!(refused, ConnectError::SeveralClusters(_)), "{refused}");
    assert!(!refused.is_retryable());
    for endpoint in &endpoints {
        assert!(refused.to_string().contains(endpoint), "{refused}");
    }
    let both = endpoints.join(",");
    let args = ["get", "nodes", &format!("--etcd-endpoints={both}")].map(str::to_owned);
    let failed = quorate(args).await.expect_code(1);
    assert!(failed.contains("several clusters"), "{failed}");
}

#[tokio::test]
async fn an_endpoint_of_another_cluster_among_more_of_the_own_gets_no_requests() {
    let (ours, other) = (TestEtcd::with(3, &[]).await, TestEtcd::start().await);
    let mut pinned = config([ours.endpoints(), other.endpoints()].concat());
    pinned.sync_endpoints = false;
    let client = connect_with(pinned).await;
    let _following = following(&client);
    let own = ours.endpoints();
    for _ in 0..10 {
        let mut live = client.live_endpoints();
        // One that answers a check late is left out for a while.
        live.retain(|url| !own.contains(url));
        assert_eq!(live, [""; 0]);
        fill(&client, 10).await;
    }
    assert_eq!(other.revision(), 1, "nothing was written there");
}

#[tokio::test]
async fn wait_ready_does_not_take_the_status_of_a_restored_etcd_for_an_answer() {
    let mut etcd = TestEtcd::start().await;
    let snapshot = etcd.snapshot();
    fill(&connect(&etcd).await, 20).await;
    let mut waiting = JoinSet::new();
    let endpoints = etcd.endpoints_flag();
    waiting.spawn(async move {
        let args = [
            "wait-ready",
            "--timeout=40s",
            &format!("--etcd-endpoints={endpoints}"),
        ]
        .map(str::to_owned);
        quorate(args).await
    });
    // Once it reads, it has seen the revision.
    let reads = async || etcd.members[0].metric(READS_BEGUN).await.unwrap_or_default();
    let before = reads().await;
    eventually(SOON, "it has read", async || {
        same(reads().await >= before + 3.0, true)
    })
    .await;
    etcd.restore(&snapshot).await;
    let ended = timeout(2 * SOON, waiting.join_next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let failed = ended.expect_code(1);
    assert!(failed.contains("it was restored from a snapshot"), "{failed}");
    let shown = quorate_on(&etcd, &["status"], "").await;
    assert_eq!(shown.code, 0, "a new command reads what is there now");
}

#[tokio::test]
async fn an_endpoint_that_is_refused_does_not_have_the_endpoints_checked_again_at_once() {
    let (ours, other) = (TestEtcd::start().await, TestEtcd::start().await);
    let proxy = Proxy::in_front_of(&ours.endpoints()[0]);
    let mut pinned = config([ours.endpoints(), vec![proxy.url()], other.endpoints()].concat());
    pinned.sync_endpoints = false;
    pinned.endpoint_interval = 10 * SOON;
    // One that answers late to the first question is not known yet.
    let client = eventually(SOON, "the other cluster's is refused", async || {
        let client = connect_with(pinned.clone()).await;
        let refused = metric(&client, "quorate_etcd_endpoints_refused");
        same(refused, 1.0).map(|_| client)
    })
    .await;
    let _following = following(&client);
    let probes = async || other.members[0].metric(READS_BEGUN).await.unwrap_or_default();
    let at_first = probes().await;
    proxy.set(Network::Resets);
    // A request that fails on the way has the endpoints checked.
    eventually(SOON, "the proxy's URL is dropped", async || {
        let _ = client.get(b"/a").await;
        same(client.live_endpoints(), ours.endpoints())
    })
    .await;
    assert!(
        probes().await > at_first,
        "the other cluster's was checked as well"
    );
    eventually(SOON, "the checks end", async || {
        let before = probes().await;
        // A check that is under way shows itself in it.
        sleep(QUIET).await;
        same(probes().await, before)
    })
    .await;
}

/// The snapshot has the lease, so that both clusters renew it.
#[tokio::test]
async fn a_lease_that_only_another_cluster_renews_is_lost() {
    let mut etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let ttl = Duration::from_secs(10);
    let leadership = elect(&client, "/leader", "a", ttl).await.unwrap();
    let snapshot = etcd.snapshot();
    etcd.restore_as("another", &snapshot).await;
    timeout(2 * ttl, leadership.lost())
        .await
        .expect("the window closes");
}

#[tokio::test]
async fn wait_ready_fails_where_etcd_was_restored() {
    let mut etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let snapshot = etcd.snapshot();
    fill(&client, 10).await;
    let (waits, waiting) = oneshot::channel();
    let mut waits = Some(waits);
    let mut task = JoinSet::new();
    task.spawn(async move {
        let release = Release::new(0, 4, 0);
        let requirements = Requirements {
            release,
            min_reconciler: release,
        };
        wait_ready(&store(&client), requirements, |_| {
            let _ = waits.take().map(|waits| waits.send(()));
        })
        .await
    });
    waiting.await.unwrap();
    etcd.restore(&snapshot).await;
    let ended = timeout(SOON, task.join_next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(ended, Err(StoreLost::WentBack { .. })), "{ended:?}");
}

/// A member that lags gives an older revision where it is not asked linearizably.
#[tokio::test]
async fn a_member_that_lags_is_not_taken_for_a_restore() {
    let mut etcd = TestEtcd::with(3, &[]).await;
    let client = connect(&etcd).await;
    let _following = following(&client);
    let mut followers = Vec::new();
    for _ in 0..6 {
        followers.push(Follower::new(&client, KeyRange::prefix("/w/")));
    }
    for member in 0..3 {
        etcd.members[member].pause();
        let written = async {
            for value in 0..20 {
                let key = format!("/w/{member}");
                let _ = commit(&client, Txn::new().put(key.as_bytes(), value.to_string())).await;
            }
        };
        let _ = timeout(QUIET, written).await;
        etcd.members[member].resume();
        for follower in &mut followers {
            let _ = timeout(QUIET / 6, follower.next()).await;
        }
    }
    let (_, now) = eventually(SOON, "etcd answers", async || client.get(b"/w/0").await).await;
    assert!(now > Revision(1));
}
