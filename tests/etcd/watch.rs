//! Watches continue after broken connections, ended members and compactions.

use quorate::etcd::{Etcd, Event, KeyRange, Txn};
use quorate::store::{Follower, Update};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::client::{commit, connect, connect_to, put};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::SOON;

/// A follower of the keys below `/w/` that has listed them.
async fn listed(etcd: &Etcd) -> Follower {
    let mut follower = Follower::new(etcd, KeyRange::prefix("/w/"));
    timeout(SOON, async {
        while !matches!(follower.next().await, Update::Listed(_)) {}
    })
    .await
    .unwrap();
    follower
}

/// The keys and values of the next changes. Panics if the range is listed again instead.
async fn next_puts(follower: &mut Follower) -> Vec<(String, Vec<u8>)> {
    let update = timeout(SOON, follower.next()).await.expect("a change arrives");
    let Update::Events(events) = update else {
        panic!("expected changes, got {update:?}")
    };
    let put = |event: Event| match event {
        Event::Put(kv) => (String::from_utf8(kv.key).unwrap(), kv.value),
        Event::Delete { .. } => panic!("nothing was deleted"),
    };
    events.into_iter().map(put).collect()
}

#[tokio::test]
async fn a_compaction_does_not_disturb_an_idle_watch() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut follower = listed(&client).await;
    for value in 0..5 {
        put(&client, "/elsewhere", value.to_string()).await;
    }
    etcd.compact();
    put(&client, "/w/a", "1").await;
    assert_eq!(
        next_puts(&mut follower).await,
        [("/w/a".to_owned(), b"1".to_vec())]
    );
}

#[tokio::test]
async fn a_range_is_listed_again_after_its_only_member_was_killed_and_restarted() {
    let mut etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut follower = listed(&client).await;
    put(&client, "/w/a", "1").await;
    assert_eq!(next_puts(&mut follower).await.len(), 1);
    etcd.members[0].kill().await.unwrap();
    etcd.members[0].start().await.unwrap();
    etcd.etcdctl(&["put", "/w/b", "2"]);
    // In between it might have been restored: the raft term is another.
    let update = timeout(SOON, follower.next()).await.expect("a list arrives");
    let Update::Page { first: true, keys } = update else {
        panic!("expected a list, got {update:?}")
    };
    let keys: Vec<&[u8]> = keys.iter().map(|kv| &*kv.key).collect();
    assert_eq!(keys, [b"/w/a", b"/w/b"]);
}

#[tokio::test]
async fn a_watch_on_a_paused_member_continues_when_the_member_does() {
    let mut etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut follower = listed(&client).await;
    etcd.members[0].pause();
    // Twice the silence after which a watch asks for a message, and after which it is reopened.
    let quiet = timeout(2 * client.config().watch_silence, follower.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    etcd.members[0].resume();
    etcd.etcdctl(&["put", "/w/a", "1"]);
    assert_eq!(
        next_puts(&mut follower).await,
        [("/w/a".to_owned(), b"1".to_vec())]
    );
}

#[tokio::test]
async fn watches_leave_a_black_holed_endpoint_for_one_that_answers() {
    let etcd = TestEtcd::start().await;
    let direct = etcd.endpoints().remove(0);
    let proxy = Proxy::in_front_of(&direct);
    let client = connect_to(vec![proxy.url(), direct]).await;
    let mut tasks = JoinSet::new();
    let following = client.clone();
    tasks.spawn(async move { following.follow_endpoints(CancellationToken::new()).await });
    // So many that some are on either endpoint.
    let mut followers = Vec::new();
    for _ in 0..8 {
        followers.push(listed(&client).await);
    }
    proxy.set(Network::BlackHole);
    etcd.etcdctl(&["put", "/w/a", "1"]);
    for follower in &mut followers {
        assert_eq!(next_puts(follower).await.len(), 1);
    }
}

#[tokio::test]
async fn an_event_larger_than_grpcs_default_limit_arrives() {
    let etcd = TestEtcd::with(1, &["--max-request-bytes=16777216"]).await;
    let client = connect(&etcd).await;
    let mut follower = listed(&client).await;
    let megabyte = vec![7; 1 << 20];
    let txn = (0..6).fold(Txn::new(), |txn, index| {
        txn.put(format!("/w/{index}").as_bytes(), megabyte.clone())
    });
    commit(&client, txn).await.unwrap();
    let changes = next_puts(&mut follower).await;
    assert_eq!(changes.len(), 6);
    assert!(changes.iter().all(|(_, value)| *value == megabyte));
}

#[tokio::test]
async fn a_watch_that_missed_more_than_one_message_can_hold_catches_up() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let cut_off = connect_to(vec![proxy.url()]).await;
    let mut follower = listed(&cut_off).await;
    proxy.set(Network::Resets);
    // etcd sends missed changes in messages of up to 1,000 revisions, whatever their size.
    let megabyte = vec![7; 1 << 20];
    for index in 0..70 {
        put(&client, &format!("/w/{}", index % 10), megabyte.clone()).await;
    }
    let last = put(&client, "/w/last", "1").await;
    proxy.set(Network::Passes);
    timeout(SOON, async {
        loop {
            let reached = match follower.next().await {
                Update::Listed(revision) => revision,
                Update::Events(events) => events.last().unwrap().revision(),
                Update::Page { .. } => continue,
            };
            if reached >= last.revision {
                return;
            }
        }
    })
    .await
    .expect("the follower catches up");
}
