//! An etcd, a plugin, and the program on both: what an operator does, and what must follow.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::time::Duration;

use prost::Message;
use quorate::etcd::{KeyValue, Txn};
use quorate::proto::condition::Status;
use quorate::proto::publication_status::State;
use quorate::proto::{Condition, CsiNode, Volume};
use quorate::store::Store;
use quorate::summary::Latest;
use quorate::term::Notices;
use quorate::volumes::controller::{Times, VolumeController};
use quorate_dev::csi_plugin::backend::id_of;
use quorate_dev::csi_plugin::log::Call;

use super::history;
use crate::support::base::Base;
pub use crate::support::base::{document, parsed};
use crate::support::csi::{DRIVER, TestPlugin};
use crate::support::leader::{Leader, store_on};
use crate::support::wait::{SOON, eventually, same};

/// An etcd, a plugin, and the program on both.
pub struct World {
    base: Base,
    pub plugin: TestPlugin,
}

impl Deref for World {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Base {
        &mut self.base
    }
}

impl World {
    /// With the plugin's object, and three nodes on which it runs.
    pub async fn start() -> Self {
        Self::with(TestPlugin::start().await).await
    }

    pub async fn with(plugin: TestPlugin) -> Self {
        Self::on(Base::start().await, plugin).await
    }

    /// The same on this etcd.
    pub async fn on(base: Base, plugin: TestPlugin) -> Self {
        let world = Self { base, plugin };
        world.apply(&world.plugin_document("{}")).await;
        for node in ["n1", "n2", "n3"] {
            world.add_node(node).await;
        }
        world
    }

    pub async fn without_objects(plugin: TestPlugin) -> Self {
        let base = Base::start().await;
        Self { base, plugin }
    }

    /// Restores etcd from a snapshot, and connects to it again: the client of before would refuse it.
    pub async fn restore(&mut self, snapshot: &Path) {
        self.base.etcd.restore(snapshot).await;
        self.base.store = store_on(&self.base.etcd.endpoints()).await;
    }

    /// Publishes a volume, and waits until it is published.
    pub async fn publish(&self, volume: &str, node: &str) {
        self.done_with(&["publish", volume, node]).await;
    }

    /// Unpublishes a volume, confirms in the node's place, and waits until it is unpublished.
    pub async fn unpublish(&self, volume: &str, node: &str) {
        self.done_with(&["unpublish", volume, node, "--confirm"]).await;
    }

    /// Confirms as the node does that it no longer uses the volume.
    pub async fn confirm_unpublished(&self, volume: &str, node: &str) {
        let key = self.store.keys.publication(&parsed(volume), &parsed(node));
        let mut publication = self.publication(volume, node).await.unwrap();
        let status = publication.status.as_mut().unwrap();
        status.set_state(State::PendingUnpublish);
        self.commit(Txn::new().put(&key, publication.encode_to_vec()))
            .await;
    }

    /// Deletes a volume, and waits until it is gone.
    pub async fn delete(&self, volume: &str) {
        self.done_with(&["delete", "volume", volume, "--yes"]).await;
    }

    /// The document of the plugin, with `more` in its spec.
    pub fn plugin_document(&self, more: &str) -> String {
        let mut spec: serde_json::Value = serde_json::from_str(more).unwrap();
        spec["endpoint"] = self.plugin.endpoint().to_string().into();
        document("Plugin", DRIVER, &spec.to_string())
    }

    /// A node on which the plugin runs, under the id `csi-NAME`.
    pub async fn add_node(&self, name: &str) {
        self.apply(&document("Node", name, "{desiredRole: worker}")).await;
        self.report_csi(name, &format!("csi-{name}")).await;
    }

    pub async fn report_csi(&self, name: &str, id: &str) {
        let document = format!(
            "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{name: {name}}}\n\
             status: {{csi: [{{plugin: {DRIVER}, nodeID: {id}}}]}}\n"
        );
        let args = ["apply", "--subresource", "status", "-f", "-"];
        self.run_with(&args, &document).await.expect_done();
    }

    /// The node ids that a node reports.
    pub async fn csi_of(&self, name: &str) -> Vec<CsiNode> {
        self.node(name).await.status.unwrap_or_default().csi
    }

    /// All records of volumes and publications.
    pub async fn records(&self) -> Vec<KeyValue> {
        let keys = &self.store.keys;
        let volumes = self.list(&keys.volumes()).await;
        [volumes, self.list(&keys.publications()).await].concat()
    }

    /// The backend's id of a volume. The plugin derives it from the volume's uid.
    pub async fn backend_id(&self, name: &str) -> String {
        let volume = self.volume(name).await.expect("the volume is there");
        id_of(&volume.metadata.unwrap().uid)
    }

    /// Waits until the volume is created.
    pub async fn expect_created(&self, name: &str) -> Volume {
        self.expect_created_within(SOON, name).await
    }

    pub async fn expect_created_within(&self, limit: Duration, name: &str) -> Volume {
        eventually(limit, &format!("{name} is created"), async || {
            let volume = self.volume(name).await.ok_or("there is none")?;
            let status = volume.status.clone().unwrap_or_default();
            match status.volume_id.is_empty() {
                false => Ok(volume),
                true => Err("it is not"),
            }
        })
        .await
    }

    /// Waits until the volume is as large as this.
    pub async fn expect_capacity(&self, name: &str, bytes: i64) {
        eventually(SOON, &format!("{name} has grown"), async || {
            let status = self.volume(name).await.unwrap().status.unwrap();
            same(status.capacity_bytes, bytes)
        })
        .await;
    }

    pub async fn expect_gone(&self, name: &str) {
        eventually(SOON, &format!("{name} is gone"), async || {
            match self.volume(name).await {
                None => Ok(()),
                Some(volume) => Err(format!("{volume:?}")),
            }
        })
        .await;
    }

    /// Waits until the condition `Blocked` of the volume, or of its publication to a node, has this reason; "" means that nothing
    /// blocks it.
    pub async fn expect_blocked(&self, volume: &str, node: Option<&str>, reason: &str) -> Condition {
        let what = format!("{volume} {node:?} is blocked by {reason:?}");
        eventually(SOON, &what, async || {
            let conditions = match node {
                None => {
                    let volume = self.volume(volume).await;
                    volume.and_then(|volume| Some(volume.status?.conditions))
                }
                Some(node) => {
                    let publication = self.publication(volume, node).await;
                    publication.and_then(|publication| Some(publication.status?.conditions))
                }
            };
            let found = blocked(&conditions.unwrap_or_default());
            match found.reason == reason {
                true => Ok(found),
                false => Err(format!("{found:?}")),
            }
        })
        .await
    }

    /// Waits until the plugin is in this state, by the status that the leader writes: `Ready`, or why it is not. Returns the
    /// line of `get plugins`.
    pub async fn expect_plugin(&self, state: &str) -> String {
        eventually(SOON, &format!("the plugin is {state}"), async || {
            let described = self.done(&["describe", "plugin", DRIVER]).await;
            let is_so = described.lines().any(|line| {
                let mut words = line.split_whitespace();
                words.next() == Some("State:") && words.next() == Some(state)
            });
            match is_so {
                true => Ok(described),
                false => Err(described),
            }
        })
        .await
    }

    /// Waits until the plugin was called this many times.
    pub async fn expect_calls(&self, method: &str, times: usize) {
        eventually(SOON, &format!("{method} was called"), async || {
            same(self.plugin.calls_of(method).len(), times)
        })
        .await;
    }

    /// Waits until the backend holds nothing.
    pub async fn expect_empty_backend(&self) {
        eventually(SOON, "the backend is empty", async || {
            same(self.plugin.backend().ids().unwrap().len(), 0)
        })
        .await;
    }

    /// The node ids that the backend has published a volume to.
    pub fn attached(&self, id: &str) -> Vec<String> {
        self.plugin.backend().nodes(id).unwrap().into_keys().collect()
    }

    pub async fn leader(&self) -> Leader {
        leader_with(&self.store, Times::default()).await
    }

    /// Checks what must hold of every log (INV-6), where every call ends by itself.
    pub fn check_calls(&self) -> Vec<Call> {
        let calls = self.plugin.calls().unwrap();
        let cancelled = calls.iter().find(|call| call.code.as_deref() == Some("Canceled"));
        assert_eq!(cancelled, None, "no call was given up");
        history::check(&calls, "all calls");
        calls
    }
}

/// A leader in this process that reconciles volumes and does nothing else.
pub async fn leader_with(store: &Store, times: Times) -> Leader {
    leader_reporting(store, times, Notices::default()).await
}

/// The same, with a receiver of what it reports to operators.
pub async fn leader_reporting(store: &Store, times: Times, notices: Notices) -> Leader {
    let mut leader = Leader::elect(store, "test").await;
    let volumes = VolumeController {
        store: store.clone(),
        fence: leader.fence().clone(),
        times,
        secrets: Default::default(),
        notices,
        summaries: Latest::default(),
    };
    leader.work(volumes.run());
    leader
}

/// The condition that blocks; empty if nothing does.
pub fn blocked(conditions: &[Condition]) -> Condition {
    let blocked =
        |condition: &&Condition| condition.r#type == "Blocked" && condition.status() == Status::True;
    conditions.iter().find(blocked).cloned().unwrap_or_default()
}

/// The document of a file system for one node, with `more` in its spec; each entry of it ends in a comma.
pub fn volume(name: &str, more: &str) -> String {
    let mode = "{scope: singleNode, sharing: none, mount: {fsType: ext4}}";
    volume_with(name, mode, more)
}

/// The document of a block device for many nodes, likewise.
pub fn shared_volume(name: &str, more: &str) -> String {
    volume_with(name, "{scope: multiNode, sharing: all, block: {}}", more)
}

fn volume_with(name: &str, mode: &str, more: &str) -> String {
    let spec = format!("{{{more} driver: {{name: {DRIVER}}}, accessMode: {mode}}}");
    document("Volume", name, &spec)
}

pub fn secret(name: &str, key: &str, value: &str) -> String {
    format!(
        "apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData: {{{key}: {value:?}}}\n---\n"
    )
}
