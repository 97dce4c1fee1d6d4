//! A disk that is lost in each phase of a replacement, on both releases of etcd: before the removal, once the member is removed
//! and no other is added, once one is added and not started, once it has started as a learner, and once it votes.

use std::ops::Range;

use prost::Message;
use quorate::etcd::{Event, KeyRange, Txn};
use quorate::proto::{Node, Role};

use super::replace::lose;
use super::tour::voters;
use super::{Site, keys};
use crate::support::client::{commit, history};
use crate::support::doomed::{Doomed, LASTING_LEASES};
use crate::support::etcd::EtcdVersion;
use crate::support::hold::Hold;
use crate::support::quorate::Launch;
use crate::support::wait::{SOON, eventually, same};

/// How long a command waits for the leader, in seconds: etcd starts a member in it, and refuses changes for 5 s after its
/// members have lost each other, as on a busy machine.
const PATIENCE: u32 = 120;

/// How many replicas abort at a point until etcd has made the change there.
const ATTEMPTS: usize = 10;

/// A cluster of three whose member etcd-2 is replaced, and how many writes it has acknowledged.
struct Replacement {
    site: Site,
    written: u32,
}

impl Replacement {
    /// Writes ten more keys; each is acknowledged.
    async fn write(&mut self) {
        let keys: Range<u32> = self.written..self.written + 10;
        for key in keys {
            let txn = Txn::new().put(format!("/data/{key:03}").as_bytes(), "acknowledged");
            eventually(SOON, "a write", async || {
                commit(&self.site.store.etcd, txn.clone()).await
            })
            .await;
        }
        self.written += 10;
    }

    /// `replace etcd-2` with these further arguments, for so many seconds: its exit code, and what it printed.
    async fn replace(&self, seconds: u32, args: &[&str]) -> (i32, String) {
        let timeout = format!("--timeout={seconds}s");
        let replace = ["replace", "etcd-2", "--yes", &timeout];
        let finished = self.site.run(&[&replace[..], args].concat()).await;
        let said = format!("{finished:?}");
        match finished.code {
            0 => (0, finished.stdout),
            code => (code, said),
        }
    }

    /// The settings with which the new member starts.
    async fn settings(&self, args: &[&str]) -> String {
        let (code, printed) = self.replace(PATIENCE, &[args, &["-o", "env"]].concat()).await;
        assert_eq!(code, 0, "{printed}");
        assert!(printed.contains("ETCD_INITIAL_CLUSTER="), "{printed}");
        // At the client URL of the lost one, also once etcd no longer lists that.
        let client_url = &self.site.etcd.members[1].client_url;
        let advertised = format!("ETCD_ADVERTISE_CLIENT_URLS={client_url}");
        assert!(printed.contains(&advertised), "{printed}");
        printed
    }

    /// The leader is dead, so the request stays.
    async fn wait_in_vain(&self) {
        let (code, said) = self.replace(2, &[]).await;
        assert_eq!(code, 2, "{said}");
    }

    /// Waits until the new member votes.
    async fn votes(&self, args: &[&str]) {
        let (code, said) = self.replace(PATIENCE, &[args, &["--wait"]].concat()).await;
        assert_eq!(code, 0, "{said}");
        assert_eq!(voters(&self.site).await, ["etcd-1", "etcd-2", "etcd-3"]);
    }

    /// Lets replicas abort at this point until etcd lists so many members: a call that etcd refuses ends there as well.
    async fn aborted_at(&self, point: &'static str, listed: usize) {
        let launch = Launch::on(&self.site.etcd);
        for attempt in 1..=ATTEMPTS {
            let node = format!("{}-{attempt}", point.replace('.', "-"));
            let mut doomed = Doomed::start(&launch, &node, point, &self.site.store);
            doomed.aborted().await;
            if self.listed().await == listed {
                return;
            }
        }
        panic!("etcd does not list {listed} members after {ATTEMPTS} replicas got to {point}");
    }

    /// How many members etcd lists.
    async fn listed(&self) -> usize {
        let list = eventually(SOON, "the member list", async || {
            self.site.store.etcd.list_members().await
        });
        list.await.members.len()
    }
}

async fn lost_in_each_phase(version: EtcdVersion) {
    let mut site = Site::adopted_on(version, 3).await;
    let node = keys().node(&"etcd-2".parse().unwrap());
    let since = site.read(&node).await.unwrap().mod_revision;
    // Before the removal.
    lose(&mut site, 1).await;
    let mut replacement = Replacement { site, written: 0 };
    replacement.write().await;
    replacement.wait_in_vain().await;
    // Removed, and no other added.
    replacement.aborted_at("roles.removed", 2).await;
    replacement.write().await;
    replacement.wait_in_vain().await;
    // Added, and not started.
    replacement.aborted_at("roles.added", 3).await;
    replacement.write().await;
    // Started as a learner, which the leader is about to promote.
    let hold = Hold::at("roles.deciding-promotion");
    let launch = Launch::on(&replacement.site.etcd).flag(LASTING_LEASES);
    let mut replica = hold.on(launch).start("r3");
    replica.wait_leading().await;
    let settings = replacement.settings(&[]).await;
    let mut learner = replacement.site.start_etcd("etcd-2", &settings);
    hold.reached().await;
    learner.kill().await.unwrap();
    replacement.write().await;
    let lost = replacement.site.member("etcd-2").await.to_string();
    let (code, said) = replacement.replace(2, &["--member", &lost]).await;
    assert_eq!(code, 2, "{said}");
    hold.release();
    let settings = replacement.settings(&["--member", &lost]).await;
    let mut voter = replacement.site.start_etcd("etcd-2", &settings);
    replacement.votes(&["--member", &lost]).await;
    replacement.write().await;
    // It votes.
    let lost = replacement.site.member("etcd-2").await.to_string();
    voter.kill().await.unwrap();
    replacement.write().await;
    let settings = replacement.settings(&["--member", &lost]).await;
    let _voter = replacement.site.start_etcd("etcd-2", &settings);
    replacement.votes(&["--member", &lost]).await;
    replacement.write().await;

    // Without the third one, the quorum is the last of the new members and one other.
    let Replacement {
        mut site, written, ..
    } = replacement;
    site.0.etcd.members[2].kill().await.unwrap();
    eventually(SOON, "every acknowledged write", async || {
        let stored = site.store.etcd.list(&KeyRange::prefix(b"/data/".to_vec())).await;
        same(
            stored.map_err(|error| error.to_string())?.0.len(),
            written as usize,
        )
    })
    .await;
    // A manager throughout.
    let now = site.read(&node).await.unwrap().mod_revision;
    for event in history(&site.store.etcd, KeyRange::key(node), since, now).await {
        let Event::Put(kv) = event else {
            panic!("it was deleted")
        };
        let node = Node::decode(&*kv.value).unwrap();
        assert_eq!(node.status.unwrap().role(), Role::Manager);
    }
}

#[tokio::test]
async fn a_disk_that_is_lost_in_any_phase_of_a_replacement_costs_no_write_and_no_role() {
    lost_in_each_phase(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn the_same_holds_on_the_next_release_of_etcd() {
    lost_in_each_phase(EtcdVersion::Next).await;
}
