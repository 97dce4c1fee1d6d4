//! A member whose disk died: what it cannot do, and how it is replaced.

use std::path::PathBuf;

use prost::Message;
use quorate::etcd::{Event, KeyRange, Txn};
use quorate::proto::{Node, Role};

use super::tour::led;
use super::{Site, free_url, keys};
use crate::support::client::{commit, history};
use crate::support::wait::{SOON, eventually, same};

fn data_of(site: &Site, name: &str) -> PathBuf {
    site.etcd.directory().join(format!("{name}.data"))
}

/// Kills a member and empties its disk.
pub async fn lose(site: &mut Site, index: usize) {
    let member = &mut site.0.etcd.members[index];
    member.kill().await.unwrap();
    let name = member.name.clone();
    std::fs::remove_dir_all(data_of(site, &name)).unwrap();
}

#[tokio::test]
async fn a_voter_that_has_started_gets_no_settings_with_which_an_empty_disk_could_start() {
    let mut site = Site::adopted(3).await;
    let _replica = led(&site).await;
    let peer_url = site.etcd.members[1].peer_url.clone();
    lose(&mut site, 1).await;
    let client_url = free_url();
    let join = [
        "join",
        "etcd-2",
        "--peer-url",
        &peer_url,
        "--client-url",
        &client_url,
        "--timeout",
        "30s",
        "-o",
    ];
    let environment = site.run(&[&join[..], &["env"]].concat()).await.expect_done();
    assert!(!environment.contains("ETCD_INITIAL_CLUSTER="), "{environment}");
    let text = site.run(&[&join[..], &["text"]].concat()).await.expect_done();
    assert!(text.contains("quorate replace etcd-2"), "{text}");
    let mut etcd = site.start_etcd("etcd-2", &environment);
    let ended = tokio::time::timeout(SOON, etcd.exited())
        .await
        .expect("it refuses")
        .unwrap();
    assert!(!ended.success(), "{}", etcd.last_lines());
}

/// Writes these keys through etcd; each is acknowledged.
async fn write(site: &Site, keys: std::ops::Range<u32>) {
    for key in keys {
        let txn = Txn::new().put(format!("/data/{key:03}").as_bytes(), "acknowledged");
        eventually(SOON, "a write", async || {
            commit(&site.store.etcd, txn.clone()).await
        })
        .await;
    }
}

#[tokio::test]
async fn a_voter_whose_disk_died_is_replaced_and_no_acknowledged_write_is_lost() {
    let mut site = Site::adopted(3).await;
    let _replica = led(&site).await;
    let before = site.member("etcd-2").await;
    let key = keys().node(&"etcd-2".parse().unwrap());
    let since = site.read(&key).await.unwrap().mod_revision;
    write(&site, 0..50).await;
    // A member that works is not replaced by a slip of the hand.
    let refused = site
        .refused("MemberHealthy", &["replace", "etcd-2", "--yes"])
        .await;
    assert!(refused.contains("--force"), "{refused}");
    lose(&mut site, 1).await;
    write(&site, 50..100).await;
    let client_url = free_url();
    let replace = [
        "replace",
        "etcd-2",
        "--yes",
        "--client-url",
        &client_url,
        "--timeout",
        "60s",
        "-o",
        "env",
    ];
    let environment = site.run(&replace).await.expect_done();
    assert!(environment.contains("ETCD_INITIAL_CLUSTER="), "{environment}");
    // It goes on where it was.
    assert_eq!(site.run(&replace).await.expect_done(), environment);
    // A join at the same URL is no other request.
    let peer_url = site.etcd.members[1].peer_url.clone();
    let join = ["join", "etcd-2", "--peer-url", &peer_url];
    let joined = site.run(&[&join[..], &replace[3..]].concat()).await;
    assert_eq!(joined.expect_done(), environment);
    assert_eq!(site.run(&replace).await.expect_done(), environment);
    let etcd = site.start_etcd("etcd-2", &environment);
    let waited = site.run(&[&replace[..], &["--wait"]].concat()).await;
    assert_eq!(waited.code, 0, "{waited:?} {}", etcd.last_lines());
    assert!(waited.stderr.contains("votes"), "{waited:?}");
    let after = site.member("etcd-2").await;
    assert_ne!(after, before);
    // Nor does it go further: the new member is replaced only by its id, also after a join as at every boot.
    let booted = site.run(&[&join[..], &replace[3..]].concat()).await;
    assert!(!booted.expect_done().contains("ETCD_INITIAL_CLUSTER="));
    let again = site.run(&[&replace[..], &["--force"]].concat()).await;
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.stderr.contains(&format!("--member {after}")), "{again:?}");
    assert!(!again.stdout.contains("ETCD_INITIAL_CLUSTER="), "{again:?}");
    let other = [&replace[..3], &["--member", "1"]].concat();
    assert_eq!(site.member("etcd-2").await, after);
    let refused = site.run(&other).await.expect_code(4);
    let named = format!("member 0000000000000001 is not that of node etcd-2, which is {after}");
    assert!(refused.contains(&named), "{refused}");
    // A manager throughout.
    let now = site.read(&key).await.unwrap().mod_revision;
    for event in history(&site.store.etcd, KeyRange::key(key), since, now).await {
        let Event::Put(kv) = event else {
            panic!("it was deleted")
        };
        let node = Node::decode(&*kv.value).unwrap();
        assert_eq!(node.status.unwrap().role(), Role::Manager);
    }
    write(&site, 100..150).await;
    // Without the next one, the quorum is the new member and one other.
    site.0.etcd.members[2].kill().await.unwrap();
    eventually(SOON, "every acknowledged write", async || {
        let stored = site.store.etcd.list(&KeyRange::prefix(b"/data/".to_vec())).await;
        same(stored.map_err(|error| error.to_string())?.0.len(), 150)
    })
    .await;
}

#[tokio::test]
async fn a_replacement_is_refused_where_it_would_cost_the_quorum_or_there_is_nothing_to_replace() {
    let mut site = Site::adopted(3).await;
    site.apply_role("n4", "manager").await.expect_done();
    site.observe("n4", Role::Manager).await;
    site.refused("NotAMember", &["replace", "n4", "--yes"]).await;
    site.apply_role("n5", "worker").await.expect_done();
    site.refused("NotAManager", &["replace", "n5", "--yes"]).await;
    lose(&mut site, 2).await;
    // It works, and is one of the two that the quorum needs.
    let replace = ["replace", "etcd-2", "--yes", "--force"];
    eventually(SOON, "the loss is seen", async || {
        let finished = site.run(&replace).await;
        match finished.stderr.contains("refused by rule QuorumRisk") {
            true => Ok(()),
            false => Err(format!("{finished:?}")),
        }
    })
    .await;
    site.run(&["replace", "n9", "--yes"]).await.expect_code(3);
}
