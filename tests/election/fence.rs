//! The fence: how the write of a leader can end, and that a stale leader changes nothing (INV-1, INV-2).

use std::time::Duration;

use quorate::etcd::election::Leadership;
use quorate::etcd::{Etcd, FencedError, Revision, Txn};
use quorate::grpc_code::Code;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::SHORT_TTL;
use crate::support::client::{
    TTL, config, connect, connect_to, connect_with, lead, lead_for, metric, pulse, put, requests,
};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

fn key_of(etcd: &TestEtcd, leadership: &Leadership) -> String {
    let term = leadership.fence().term();
    let keys = etcd.keys("/q/kubernetes/reconciler/leader/");
    keys.into_iter()
        .find(|key| {
            let found = etcd.etcdctl(&["get", "--write-out=json", key]);
            found.contains(&format!(r#""create_revision":{term},"#))
        })
        .unwrap()
}

async fn value(etcd: &Etcd, key: &str) -> Option<Vec<u8>> {
    etcd.get(key.as_bytes()).await.unwrap().0.map(|kv| kv.value)
}

#[tokio::test]
async fn a_stale_leaders_write_is_refused_at_the_current_revision() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut beating = JoinSet::new();
    let pulse = pulse(&mut beating);
    let stale = lead(&client, "stale", &pulse).await.unwrap();
    etcd.etcdctl(&["del", &key_of(&etcd, &stale)]);
    let fresh = lead(&client, "fresh", &pulse).await.unwrap();
    client
        .fenced(fresh.fence(), Txn::new().put(b"/f", "fresh"))
        .await
        .unwrap();
    // The stale leader has read the current state, and its lease is alive: only the fence refuses its write.
    let (read, _) = client.get(b"/f").await.unwrap();
    assert!(stale.fence().window().is_open());
    let txn = Txn::new()
        .when_unchanged(b"/f", read.unwrap().mod_revision)
        .put(b"/f", "stale");
    let refused = client.fenced(stale.fence(), txn).await;
    assert!(
        matches!(refused, Err(FencedError::LostLeadership(term)) if term == stale.fence().term()),
        "{refused:?}"
    );
    assert_eq!(value(&client, "/f").await.unwrap(), b"fresh");
    assert!(
        !stale.fence().window().is_open(),
        "it knows that its term is over"
    );
    assert_eq!(metric(&client, "quorate_fenced_writes_refused_total"), 1.0);
    client
        .fenced(fresh.fence(), Txn::new().put(b"/f", "again"))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_conflict_does_not_end_the_term() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut beating = JoinSet::new();
    let leader = lead(&client, "leader", &pulse(&mut beating)).await.unwrap();
    put(&client, "/f", "others").await;
    let txn = Txn::new()
        .when_unchanged(b"/f", Revision::ABSENT)
        .put(b"/f", "leader");
    let refused = client.fenced(leader.fence(), txn).await;
    assert!(matches!(refused, Err(FencedError::Conflict)), "{refused:?}");
    assert_eq!(value(&client, "/f").await.unwrap(), b"others");
    assert!(leader.fence().window().is_open());
    assert_eq!(metric(&client, "quorate_fenced_writes_refused_total"), 0.0);
}

#[tokio::test]
async fn a_write_whose_reply_is_lost_is_unknown_although_it_was_made() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut config = config(vec![proxy.url()]);
    config.sync_endpoints = false;
    config.request_timeout = Duration::from_secs(3);
    let through = connect_with(config).await;
    let mut beating = JoinSet::new();
    let leader = lead(&through, "leader", &pulse(&mut beating)).await.unwrap();
    proxy.set(Network::LosesReplies);
    let unknown = through.fenced(leader.fence(), Txn::new().put(b"/f", "1")).await;
    assert!(matches!(unknown, Err(FencedError::Unknown(_))), "{unknown:?}");
    eventually(SOON, "the write arrives", async || {
        same(value(&client, "/f").await, Some(b"1".to_vec()))
    })
    .await;
    proxy.set(Network::Passes);
}

#[tokio::test]
async fn a_leader_cut_off_stops_before_its_key_expires_and_sends_nothing_afterwards() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let through = connect_to(vec![proxy.url()]).await;
    let mut beating = JoinSet::new();
    let leader = lead_for(&through, "leader", SHORT_TTL, &pulse(&mut beating))
        .await
        .unwrap();
    let key = key_of(&etcd, &leader);
    proxy.set(Network::BlackHole);
    timeout(SOON, leader.fence().window().closed()).await.unwrap();
    assert!(value(&client, &key).await.is_some(), "the window closes first");
    proxy.set(Network::Passes);
    let sent = || requests(&through, "txn", Code::Ok);
    let before = sent();
    let refused = through.fenced(leader.fence(), Txn::new().put(b"/f", "1")).await;
    assert!(
        matches!(refused, Err(FencedError::LostLeadership(_))),
        "{refused:?}"
    );
    assert_eq!(sent(), before, "no transaction was sent");
    assert_eq!(value(&client, "/f").await, None);
}

#[tokio::test]
async fn a_late_answer_does_not_open_the_window_again() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let through = connect_to(vec![proxy.url()]).await;
    let mut beating = JoinSet::new();
    let leader = lead_for(&through, "leader", TTL, &pulse(&mut beating))
        .await
        .unwrap();
    // Each keep-alive is answered, but after the deadline that counts from when it was sent.
    proxy.set(Network::Delays(Duration::from_millis(900)));
    timeout(SOON, leader.fence().window().closed()).await.unwrap();
    proxy.set(Network::Passes);
    // The last of the late answers arrives within 900 ms; none of them may open the window.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!leader.fence().window().is_open());
}
