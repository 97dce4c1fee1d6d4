//! The writes of commands: decide, commit, and decide again if others write first.

use std::time::Duration;

use quorate::cli::commit::{Decision, settle, settle_from};
use quorate::cli::exit::Exit;
use quorate::etcd::{Config, Revision, Txn};
use quorate::store::Store;

use crate::support::client::{connect, connect_with, put, store};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::wait::{SOON, eventually, same};

const KEY: &[u8] = b"/quorate/key";

/// A decision that puts `value` if the key still is as it is read now.
async fn decide(store: &Store, value: &str) -> Decision<String> {
    let (stored, _) = store.etcd.get(KEY).await.unwrap();
    let read_at = stored.map_or(Revision::ABSENT, |kv| kv.mod_revision);
    let txn = Txn::new().when_unchanged(KEY, read_at).put(KEY, value);
    Decision::Write(txn, value.to_owned())
}

#[tokio::test]
async fn a_decision_that_others_overtake_is_made_again_from_what_they_wrote() {
    let etcd = TestEtcd::start().await;
    let store = store(&connect(&etcd).await);
    let mut calls = 0;
    let settled = settle(&store, "written", async || {
        calls += 1;
        let decision = decide(&store, &format!("attempt {calls}")).await;
        if calls < 3 {
            put(&store.etcd, "/quorate/key", "theirs").await;
        }
        Ok(decision)
    });
    assert_eq!(settled.await.unwrap(), "attempt 3");
    assert_eq!(etcd.get("/quorate/key").unwrap(), "attempt 3");
}

#[tokio::test]
async fn a_first_decision_is_committed_without_another_and_nothing_writes_nothing() {
    let etcd = TestEtcd::start().await;
    let store = store(&connect(&etcd).await);
    let first = decide(&store, "first").await;
    let again = async || panic!("decided again without a conflict");
    assert_eq!(
        settle_from(&store, "written", first, again).await.unwrap(),
        "first"
    );
    let before = etcd.revision();
    let nothing = async || Ok(Decision::Nothing("already so"));
    assert_eq!(settle(&store, "written", nothing).await.unwrap(), "already so");
    assert_eq!(etcd.revision(), before);
}

#[tokio::test]
async fn a_write_without_a_reply_is_not_repeated_and_its_outcome_is_unknown() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let config = Config {
        request_timeout: Duration::from_secs(3),
        ..Config::new(vec![proxy.url()])
    };
    let store = store(&connect_with(config).await);
    let first = decide(&store, "ours").await;
    proxy.set(Network::LosesReplies);
    let again = async || panic!("decided again although the first write may be made");
    let failure = settle_from(&store, "deleted", first, again).await.unwrap_err();
    assert_eq!(failure.exit, Exit::Failed);
    let text = failure.to_string();
    assert!(text.starts_with("it may or may not be deleted yet"), "{text}");
    eventually(SOON, "the write arrives", async || {
        same(etcd.get("/quorate/key") == Some("ours".into()), true)
    })
    .await;
}
