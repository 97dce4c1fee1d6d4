//! A cache ends equal to etcd and reports every change on the way, whatever happens in between.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::etcd::{Etcd, KeyRange, Txn};
use quorate::store::Cache;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::client::{commit, connect, connect_to, put};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::SOON;

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// A cache of `/c/`, and the contents that follow from its reported changes alone. The two must be equal.
struct Mirrored {
    cache: Cache<Vec<u8>>,
    reported: Contents,
}

impl Mirrored {
    fn new(etcd: &Etcd) -> Self {
        Self {
            cache: Cache::new(etcd, KeyRange::prefix("/c/"), |kv| kv.value.clone()),
            reported: Contents::new(),
        }
    }

    /// Takes in changes until the list is complete and `done`.
    async fn until(&mut self, done: impl Fn(&Contents) -> bool) {
        let Self { cache, reported } = self;
        timeout(2 * SOON, async {
            while !(cache.is_complete() && done(reported)) {
                cache
                    .next(|change| {
                        let known = reported.remove(change.key);
                        assert_eq!(change.before, known, "{}", change.key.escape_ascii());
                        if let Some(after) = change.after {
                            reported.insert(change.key.to_vec(), after.clone());
                        }
                    })
                    .await;
            }
        })
        .await
        .expect("the cache catches up");
    }

    fn contents(&self) -> Contents {
        let entry = |(key, value): (&[u8], &Vec<u8>)| (key.to_vec(), value.clone());
        self.cache.iter().map(entry).collect()
    }
}

async fn linearizable_list(etcd: &Etcd) -> Contents {
    let (keys, _) = etcd.list(&KeyRange::prefix("/c/")).await.unwrap();
    keys.into_iter().map(|kv| (kv.key, kv.value)).collect()
}

#[tokio::test]
async fn deletes_that_a_compaction_hid_from_a_broken_watch_are_reported() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut mirrored = Mirrored::new(&connect_to(vec![proxy.url()]).await);
    for key in ["/c/a", "/c/b", "/c/c"] {
        put(&client, key, "1").await;
    }
    mirrored.until(|reported| reported.len() == 3).await;
    proxy.set(Network::Resets);
    commit(&client, Txn::new().delete(b"/c/a")).await.unwrap();
    commit(&client, Txn::new().delete(b"/c/b")).await.unwrap();
    put(&client, "/c/b", "created again").await;
    etcd.compact();
    proxy.set(Network::Passes);
    mirrored
        .until(|reported| !reported.contains_key(&b"/c/a"[..]))
        .await;
    assert_eq!(mirrored.reported, linearizable_list(&client).await);
    assert_eq!(mirrored.contents(), mirrored.reported);
}

#[tokio::test]
async fn a_delete_at_the_very_revision_of_a_compaction_is_reported() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let mut mirrored = Mirrored::new(&connect_to(vec![proxy.url()]).await);
    put(&client, "/c/a", "1").await;
    mirrored.until(|reported| reported.len() == 1).await;
    proxy.set(Network::Resets);
    commit(&client, Txn::new().delete(b"/c/a")).await.unwrap();
    etcd.compact();
    proxy.set(Network::Passes);
    mirrored.until(Contents::is_empty).await;
}

/// Marsaglia's xorshift: a few lines, and the same sequence everywhere for one seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// To repeat a failed run, set `TEST_SEED` to the seed that it printed.
fn seed() -> u64 {
    match std::env::var("TEST_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .subsec_nanos()
            .into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_interleaving_of_writes_compactions_and_broken_connections_ends_in_what_etcd_holds() {
    let seed = seed();
    println!("TEST_SEED={seed}");
    let mut random = Random(seed | 1);
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let through = connect_to(vec![proxy.url()]).await;

    let mut watching = JoinSet::new();
    watching.spawn(async move {
        let mut mirrored = Mirrored::new(&through);
        mirrored
            .until(|reported| reported.contains_key(&b"/c/end"[..]))
            .await;
        assert_eq!(mirrored.contents(), mirrored.reported);
        mirrored.reported
    });
    for step in 0..400_u32 {
        let key = format!("/c/{}", random.below(8));
        match random.below(40) {
            // etcd refuses it if nothing was written since the last one.
            0 => drop(etcd.try_etcdctl(&["compaction", &etcd.revision().to_string()])),
            1 => proxy.set(Network::Resets),
            2 => proxy.set(Network::BlackHole),
            3 => proxy.set(Network::LosesReplies),
            4..8 => proxy.set(Network::Passes),
            8..20 => {
                commit(&client, Txn::new().delete(key.as_bytes())).await.unwrap();
            }
            20..24 => {
                // Two keys at one revision. The cache must not end with only one of the changes.
                let other = format!("/c/{}", random.below(8) + 8);
                let txn = Txn::new()
                    .put(key.as_bytes(), step.to_string())
                    .delete(other.as_bytes());
                commit(&client, txn).await.unwrap();
            }
            // Now and then gives the watch time to catch up, completely or halfway.
            24..28 => tokio::time::sleep(Duration::from_millis(random.below(40))).await,
            _ => {
                put(&client, &key, step.to_string()).await;
            }
        }
    }
    proxy.set(Network::Passes);
    put(&client, "/c/end", "").await;
    let reported = watching.join_next().await.unwrap().unwrap();
    assert_eq!(reported, linearizable_list(&client).await);
}

#[tokio::test]
async fn a_cache_holds_no_value_of_a_history_that_a_restore_took_back() {
    let mut etcd = TestEtcd::start().await;
    // A restored cluster begins with the first raft term, which this one has left.
    etcd.members[0].kill().await.unwrap();
    etcd.members[0].start().await.unwrap();
    let snapshot = etcd.snapshot();
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = connect_to(vec![proxy.url()]).await;
    let before = put(&client, "/c/a", "before").await;
    let mut mirrored = Mirrored::new(&client);
    mirrored.until(|contents| contents.len() == 1).await;
    proxy.set(Network::Resets);
    etcd.restore(&snapshot).await;
    let restored = connect(&etcd).await;
    let after = put(&restored, "/c/a", "after").await;
    assert_eq!(after.revision, before.revision);
    put(&restored, "/c/b", "1").await;
    proxy.set(Network::Passes);
    mirrored.until(|contents| contents.len() == 2).await;
    assert_eq!(mirrored.reported[&b"/c/a"[..]], b"after");
}
