//! A disk that is lost in each phase of a replacement, on both releases of etcd: before the removal, once the member is removed
//! and no other is added, once one is added and not started, once it has started as a learner, and once it votes.
//!
//! A slow machine must not fail these tests. etcd refuses changes for 5 s after its members have lost each other, elects another
//! leader at any moment, and may make a change long after the replica gave up the call for it. So each phase is a state that is
//! waited for, however the leader gets there, and a command that an election ends is run again.

use std::ops::Range;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use prost::Message;
use quorate::etcd::{Event, KeyRange, MemberId, Txn};
use quorate::proto::{Join, Node, Role};
use quorate_dev::process::Supervised;

use super::replace::lose;
use super::tour::voters;
use super::{Site, keys, started};
use crate::support::client::{commit, history};
use crate::support::doomed::{LASTING_LEASES, expire_leases};
use crate::support::etcd::EtcdVersion;
use crate::support::hold::Hold;
use crate::support::quorate::{Launch, TestReplica};
use crate::support::wait::{SOON, eventually, same};

/// The limit of a phase. etcd starts a member in it, and refuses changes again and again.
const PATIENCE: Duration = SOON.saturating_mul(5);

/// How long a command waits for the leader before it is run again.
const WHILE: &str = "--timeout=30s";

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

    /// `replace etcd-2` with these further arguments, again until it ends with this code: its output. It goes on where it was.
    async fn replace(&self, code: i32, args: &[&str]) -> String {
        let replace = [&["replace", "etcd-2", "--yes"], args].concat();
        let what = format!("{replace:?} ends with {code}");
        eventually(PATIENCE, &what, async || {
            let finished = self.site.run(&replace).await;
            match finished.code == code {
                true => Ok(finished.stdout),
                false => Err(format!("{finished:?}")),
            }
        })
        .await
    }

    /// The settings with which the new member starts.
    async fn settings(&self, args: &[&str]) -> String {
        let printed = self.replace(0, &[args, &[WHILE, "-o", "env"]].concat()).await;
        assert!(printed.contains("ETCD_INITIAL_CLUSTER="), "{printed}");
        // At the client URL of the lost one, also once etcd no longer lists that.
        let client_url = &self.site.etcd.members[1].client_url;
        let advertised = format!("ETCD_ADVERTISE_CLIENT_URLS={client_url}");
        assert!(printed.contains(&advertised), "{printed}");
        printed
    }

    /// Makes the request. The leader is dead or held, so the request stays.
    async fn wait_in_vain(&self, lost: MemberId, args: &[&str]) {
        let args = [args, &["--timeout=2s"]].concat();
        let key = keys().join(&"etcd-2".parse().unwrap());
        eventually(PATIENCE, "the request is there", async || {
            self.replace(2, &args).await;
            let stored = self.site.read(&key).await;
            let join = stored.map_or_else(Join::default, |kv| Join::decode(&*kv.value).unwrap());
            same(join.request.map(|request| request.replaces), Some(lost.0))
        })
        .await;
    }

    /// Waits until the new member votes.
    async fn votes(&self, member: &mut NewMember, args: &[&str]) {
        let args = [args, &[WHILE, "--wait"]].concat();
        member.during(self.replace(0, &args)).await;
        assert_eq!(voters(&self.site).await, ["etcd-1", "etcd-2", "etcd-3"]);
    }

    /// Kills the leader. The next one need not wait for its leases.
    async fn kill(&self, mut replica: TestReplica) {
        replica.kill().await.unwrap();
        expire_leases(&self.site.store, &replica.node_id).await;
    }

    /// How many members etcd lists.
    async fn listed(&self) -> usize {
        let list = eventually(SOON, "the member list", async || {
            self.site.store.etcd.list_members().await
        });
        list.await.members.len()
    }
}

/// The etcd of the node, on an empty disk of its own.
struct NewMember {
    version: EtcdVersion,
    settings: String,
    data: PathBuf,
    log: PathBuf,
    process: Supervised,
}

impl NewMember {
    fn start(site: &Site, settings: String) -> Self {
        let (version, directory) = (site.etcd.version, site.etcd.directory());
        let data = directory.join(format!("etcd-2-{}.data", uuid::Uuid::new_v4()));
        let log = directory.join("etcd-2.log");
        Self {
            process: started(version, "etcd-2", &data, &settings, &log),
            version,
            settings,
            data,
            log,
        }
    }

    /// Does `work`, and starts the etcd again where it ends meanwhile, as a service manager does: a new member ends if the others
    /// take too long to answer it.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                ended = self.process.exited() => {
                    eprintln!("etcd-2 ended: {ended:?}: {}", self.process.last_lines());
                    self.process = started(self.version, "etcd-2", &self.data, &self.settings, &self.log);
                }
            }
        }
    }

    async fn kill(mut self) {
        self.process.kill().await.unwrap();
    }
}

async fn lost_in_each_phase(version: EtcdVersion) {
    let mut site = Site::adopted_on(version, 3).await;
    let node = keys().node(&"etcd-2".parse().unwrap());
    let since = site.read(&node).await.unwrap().mod_revision;
    // Before the removal.
    let first = site.member("etcd-2").await;
    lose(&mut site, 1).await;
    let mut replacement = Replacement { site, written: 0 };
    let launch = Launch::on(&replacement.site.etcd).flag(LASTING_LEASES);
    replacement.write().await;
    replacement.wait_in_vain(first, &[]).await;
    // Removed, and no other added.
    let hold = Hold::at("roles.deciding-add");
    let replica = hold.on(launch.clone()).start("r1");
    hold.reached().await;
    replacement.kill(replica).await;
    assert_eq!(replacement.listed().await, 2);
    replacement.write().await;
    replacement.wait_in_vain(first, &[]).await;
    // Added, and not started.
    let replica = launch.start("r2");
    eventually(PATIENCE, "another is added", async || {
        same(replacement.listed().await, 3)
    })
    .await;
    replacement.kill(replica).await;
    replacement.write().await;
    // Started as a learner, which the leader is about to promote.
    let hold = Hold::at("roles.deciding-promotion");
    let _replica = hold.on(launch).start("r3");
    let settings = replacement.settings(&[]).await;
    let mut learner = NewMember::start(&replacement.site, settings);
    learner.during(hold.reached()).await;
    learner.kill().await;
    replacement.write().await;
    let learner = replacement.site.member("etcd-2").await;
    let lost = learner.to_string();
    replacement.wait_in_vain(learner, &["--member", &lost]).await;
    hold.release();
    let settings = replacement.settings(&["--member", &lost]).await;
    let mut voter = NewMember::start(&replacement.site, settings);
    replacement.votes(&mut voter, &["--member", &lost]).await;
    replacement.write().await;
    // It votes.
    let lost = replacement.site.member("etcd-2").await.to_string();
    voter.kill().await;
    replacement.write().await;
    let settings = replacement.settings(&["--member", &lost]).await;
    let mut voter = NewMember::start(&replacement.site, settings);
    replacement.votes(&mut voter, &["--member", &lost]).await;
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
