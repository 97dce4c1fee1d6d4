//! Etcd restored from a snapshot.

use std::path::PathBuf;
use std::time::Duration;

use quorate::cli::companion::find_on_path;
use quorate_dev::etcd::Etcd;
use quorate_dev::proxy::Network;
use tokio::time::{Instant, sleep, timeout};

use super::Faults;
use crate::Error;
use crate::admin;
use crate::target::Target;
use crate::watch::Watch;

/// How long a member may take to give a snapshot.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(10);

/// How long the watch may take to come to the end of the history that a restore ends.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A snapshot, and the revision that it is of.
pub struct Snapshot {
    file: PathBuf,
    revision: i64,
}

impl Faults {
    /// Saves a snapshot of the first member that gives one. Where none does, there is no restore.
    pub(super) async fn snapshot(&mut self, number: u32) {
        let file = self.world.directory.join(format!("snapshot-{number}.db"));
        let Some(etcdctl) = find_on_path("etcdctl") else {
            self.world
                .recorder
                .trouble("there is no etcdctl: nothing is restored");
            return;
        };
        for endpoint in self.world.etcd.endpoints() {
            let before = admin::revision(vec![endpoint.clone()]).await;
            let saving = Etcd::save_snapshot(&etcdctl, &endpoint, &file);
            if let Ok(Ok(())) = timeout(SNAPSHOT_LIMIT, saving).await
                && let Ok(revision) = Etcd::snapshot_revision(&etcdctl, &file).await
            {
                // Of a store that was compacted up to a deletion, the file shows a revision before that: what was deleted is gone
                // with the deletion.
                let revision = revision.max(before.unwrap_or(revision));
                self.snapshots.insert(number, Snapshot { file, revision });
                return;
            }
        }
    }

    /// Restores etcd as the same cluster, with the same URLs and token. Where replicas run on, they must notice by themselves.
    pub(super) async fn restore(&mut self, number: u32, replicas_stopped: bool) -> Result<(), Error> {
        let Some(snapshot) = self.snapshots.remove(&number) else {
            return Ok(());
        };
        let replicas: Vec<_> = (0..self.world.replicas.len()).map(Target::Replica).collect();
        if replicas_stopped {
            for target in &replicas {
                self.kill(*target).await?;
                self.down.remove(target);
            }
        }
        // Its caches are of the store that ends.
        self.kill(Target::Apiserver).await?;
        self.come_to_the_end().await;
        self.world.watch.stop().await;
        let members: Vec<_> = (0..self.world.etcd.members.len()).map(Target::Member).collect();
        for target in &members {
            self.kill(*target).await?;
            self.down.remove(target);
        }
        let at = self.world.recorder.now();
        // Proxies hear of the ends of their connections.
        sleep(Duration::from_millis(300)).await;
        self.world.recorder.restored(at, snapshot.revision);
        for target in &members {
            let (name, role) = (self.world.name_of(*target), self.world.role_of(*target));
            self.world.recorder.started(&name, role);
        }
        // All members have to meet, so that each serves.
        for member in &self.world.etcd.members {
            if let Some(proxy) = &member.peer_proxy {
                proxy.set(Network::Passes);
            }
        }
        let token = self.world.etcd.token()?;
        let restorer = find_on_path("etcdutl").or_else(|| find_on_path("etcdctl"));
        let restorer = restorer.ok_or_else(|| Error::Harness("there is no etcdctl".to_owned()))?;
        // With an alarm from the snapshot, no member would be healthy.
        let cleared = admin::clear_no_space(self.world.etcd.endpoints());
        let restoring = self.world.etcd.restore(&restorer, &token, &snapshot.file);
        let (restored, ()) = tokio::join!(restoring, cleared);
        restored?;
        self.set_partitions();
        let (endpoints, recorder) = (self.world.etcd.endpoints(), self.world.recorder.clone());
        // From the begin: the restored store has a history of its own, which shares its past with the former one.
        self.world.watch = Watch::start(endpoints, recorder, 1);
        for target in members.iter().filter(|target| self.killed.has(target)) {
            let name = self.world.name_of(*target);
            if let Some(program) = self.world.program_of(*target) {
                program.kill().await?;
                self.world.recorder.exited(&name, None);
            }
        }
        for target in replicas.into_iter().chain([Target::Apiserver]) {
            if !self.killed.has(&target) {
                self.launch(target)?;
            }
        }
        Ok(())
    }

    /// Waits until the watch has brought everything. What replicas that run on write after that is not in the history.
    async fn come_to_the_end(&self) {
        let begun = Instant::now();
        while begun.elapsed() < END_LIMIT {
            if let Some(revision) = admin::revision(self.world.etcd.endpoints()).await
                && self.world.watch.seen() >= revision
            {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        self.world
            .recorder
            .trouble("the history may lack the end of the store that is restored");
    }
}
