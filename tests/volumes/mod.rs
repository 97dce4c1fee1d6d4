//! Volumes on a real etcd, through a real CSI plugin: with the real program, and leader by leader with the library.

mod commands;
mod crashes;
mod faults;
mod leftovers;
mod life;
mod lost_nodes;
mod plugins;

use std::time::Duration;

use prost::Message;
use quorate::dev::csi_plugin::backend::id_of;
use quorate::dev::csi_plugin::log::Call;
use quorate::etcd::election::{Leadership, campaign};
use quorate::etcd::{Config, Etcd, Pulse, Txn};
use quorate::metrics::Metrics;
use quorate::proto::condition::Status;
use quorate::proto::{Condition, CsiNode, Node, Publication, Volume};
use quorate::store::{Keys, Name, Store};
use quorate::volumes::controller::{Times, Volumes};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::csi::{DRIVER, TestPlugin};
use crate::support::etcd::TestEtcd;
use crate::support::quorate::{Finished, quorate_on};
use crate::support::wait::{SOON, eventually, same};

/// An etcd, a plugin, and the program on both.
pub struct World {
    etcd: TestEtcd,
    plugin: TestPlugin,
    store: Store,
}

impl World {
    /// With the plugin's object, and three nodes on which it runs.
    async fn start() -> Self {
        Self::with(TestPlugin::start().await).await
    }

    async fn with(plugin: TestPlugin) -> Self {
        let world = Self::without_objects(plugin).await;
        world.apply(&world.plugin_document("{}")).await;
        for node in ["n1", "n2", "n3"] {
            world.add_node(node).await;
        }
        world
    }

    async fn without_objects(plugin: TestPlugin) -> Self {
        let etcd = TestEtcd::start().await;
        let store = store(&etcd.endpoints()).await;
        Self { etcd, plugin, store }
    }

    /// Runs the program.
    async fn run(&self, args: &[&str]) -> Finished {
        self.run_with(args, "").await
    }

    async fn run_with(&self, args: &[&str], stdin: &str) -> Finished {
        quorate_on(&self.etcd, args, stdin).await
    }

    /// Runs the program. Panics where that fails.
    async fn done(&self, args: &[&str]) -> String {
        self.run(args).await.expect_done()
    }

    /// Applies documents. Panics where that fails.
    async fn apply(&self, documents: &str) -> String {
        let args = ["apply", "-f", "-"];
        self.run_with(&args, documents).await.expect_done()
    }

    /// The document of the plugin; `more` of its spec.
    fn plugin_document(&self, more: &str) -> String {
        let mut spec: serde_json::Value = serde_json::from_str(more).unwrap();
        spec["endpoint"] = self.plugin.endpoint().to_string().into();
        document("Plugin", DRIVER, &spec.to_string())
    }

    /// A node on which the plugin runs, under the id `csi-NAME`.
    async fn add_node(&self, name: &str) {
        self.apply(&document("Node", name, "{desiredRole: worker}")).await;
        self.report_csi(name, &format!("csi-{name}")).await;
    }

    async fn report_csi(&self, name: &str, id: &str) {
        let document = format!(
            "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{name: {name}}}\n\
             status: {{csi: [{{plugin: {DRIVER}, nodeID: {id}}}]}}\n"
        );
        let args = ["apply", "--subresource", "status", "-f", "-"];
        self.run_with(&args, &document).await.expect_done();
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a test plays whoever is not the leader, and faults in what is stored"
    )]
    async fn commit(&self, txn: Txn) {
        self.store.etcd.unfenced(txn).await.unwrap();
    }

    async fn volume(&self, name: &str) -> Option<Volume> {
        let key = self.store.keys.volume(&parsed(name));
        let (stored, _) = self.store.etcd.get(&key).await.unwrap();
        stored.map(|kv| Volume::decode(&*kv.value).unwrap())
    }

    async fn publication(&self, volume: &str, node: &str) -> Option<Publication> {
        let key = self.store.keys.publication(&parsed(volume), &parsed(node));
        let (stored, _) = self.store.etcd.get(&key).await.unwrap();
        stored.map(|kv| Publication::decode(&*kv.value).unwrap())
    }

    async fn node(&self, name: &str) -> Node {
        let key = self.store.keys.node(&parsed(name));
        let (stored, _) = self.store.etcd.get(&key).await.unwrap();
        Node::decode(&*stored.unwrap().value).unwrap()
    }

    /// The backend's id of a volume, which the plugin makes of its name there, the uid.
    async fn backend_id(&self, name: &str) -> String {
        let volume = self.volume(name).await.expect("the volume is there");
        id_of(&volume.metadata.unwrap().uid)
    }

    /// Waits until the volume is created.
    async fn expect_created(&self, name: &str) -> Volume {
        eventually(SOON, &format!("{name} is created"), async || {
            let volume = self.volume(name).await.ok_or("there is none")?;
            let status = volume.status.clone().unwrap_or_default();
            match status.volume_id.is_empty() {
                false => Ok(volume),
                true => Err("it is not"),
            }
        })
        .await
    }

    /// Waits until the publication is in this state, or gone.
    async fn expect_state(&self, volume: &str, node: &str, expected: &str) {
        let what = format!("{volume} on {node} is {expected:?}");
        eventually(SOON, &what, async || {
            let publication = self.publication(volume, node).await;
            let now = publication.map_or("", |publication| {
                let state = quorate::store::object::publication::state(&publication);
                quorate::store::object::publication::state_word(state)
            });
            same(now, expected)
        })
        .await;
    }

    async fn expect_gone(&self, name: &str) {
        eventually(SOON, &format!("{name} is gone"), async || {
            match self.volume(name).await {
                None => Ok(()),
                Some(volume) => Err(format!("{volume:?}")),
            }
        })
        .await;
    }

    /// Waits until what blocks the volume, or its publication to a node, has this reason; "" for nothing.
    async fn expect_blocked(&self, volume: &str, node: Option<&str>, reason: &str) -> Condition {
        let what = format!("{volume} {node:?} is blocked by {reason:?}");
        eventually(SOON, &what, async || {
            let conditions = match node {
                None => self.volume(volume).await.map(|volume| volume.status),
                Some(node) => {
                    let publication = self.publication(volume, node).await;
                    let conditions = publication.and_then(|publication| publication.status);
                    return found(
                        &conditions.map(|status| status.conditions).unwrap_or_default(),
                        reason,
                    );
                }
            };
            let conditions = conditions.flatten().map(|status| status.conditions);
            found(&conditions.unwrap_or_default(), reason)
        })
        .await
    }

    /// Waits until the plugin was called this often.
    async fn expect_calls(&self, method: &str, times: usize) {
        eventually(SOON, &format!("{method} was called"), async || {
            same(self.plugin.calls_of(method).len(), times)
        })
        .await;
    }

    /// Waits until the backend holds nothing.
    async fn expect_empty_backend(&self) {
        eventually(SOON, "the backend is empty", async || {
            same(self.plugin.backend().ids().unwrap().len(), 0)
        })
        .await;
    }

    /// The node ids that the backend has published a volume to.
    fn attached(&self, id: &str) -> Vec<String> {
        self.plugin.backend().nodes(id).unwrap().into_keys().collect()
    }

    async fn leader(&self) -> Leader {
        Leader::elect(self.store.clone(), "test", Times::default()).await
    }

    /// What must hold of every log (INV-6): no two calls for one volume at a time, and no empty node id.
    fn check_calls(&self) -> Vec<Call> {
        let calls = self.plugin.calls().unwrap();
        check(&calls, |_| true);
        calls
    }
}

/// INV-6, over a log: no empty node id, and no two calls for one volume at a time, as far as `counts` says that the
/// earlier one was still wanted.
fn check(calls: &[Call], counts: impl Fn(&Call) -> bool) {
    for (index, call) in calls.iter().enumerate() {
        assert_ne!(call.begun.node.as_deref(), Some(""), "an empty node id: {call:?}");
        if call.begun.volume.is_empty() {
            continue;
        }
        let earlier = calls[..index]
            .iter()
            .filter(|earlier| earlier.begun.volume == call.begun.volume && earlier.run == call.run);
        for earlier in earlier.filter(|earlier| counts(earlier)) {
            let ended = earlier.end.is_some_and(|end| end <= call.start);
            assert!(ended, "two calls at a time: {earlier:?} and {call:?}");
        }
    }
}

fn found(conditions: &[Condition], reason: &str) -> Result<Condition, String> {
    let blocked =
        |condition: &&Condition| condition.r#type == "Blocked" && condition.status() == Status::True;
    let blocked = conditions.iter().find(blocked).cloned().unwrap_or_default();
    match blocked.reason == reason {
        true => Ok(blocked),
        false => Err(format!("{blocked:?}")),
    }
}

async fn store(endpoints: &[String]) -> Store {
    let mut config = Config::new(endpoints.to_vec());
    config.sync_endpoints = false;
    Store {
        etcd: Etcd::connect(config, Metrics::new("0.0.0")).await.unwrap(),
        keys: Keys::new("/quorate".parse().unwrap()),
    }
}

fn parsed(text: &str) -> Name {
    text.parse().unwrap()
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: quorate.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n")
}

/// The document of a volume for one node; `more` of its spec, each line ending in a comma.
fn volume(name: &str, more: &str) -> String {
    let mode = "accessMode: {scope: singleNode, sharing: none, mount: {fsType: ext4}}";
    document(
        "Volume",
        name,
        &format!("{{{more} driver: {{name: {DRIVER}}}, {mode}}}"),
    )
}

/// The same for many nodes.
fn shared_volume(name: &str, more: &str) -> String {
    let mode = "accessMode: {scope: multiNode, sharing: all, block: {}}";
    document(
        "Volume",
        name,
        &format!("{{{more} driver: {{name: {DRIVER}}}, {mode}}}"),
    )
}

fn secret(name: &str, key: &str, value: &str) -> String {
    format!(
        "apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData: {{{key}: {value:?}}}\n---\n"
    )
}

/// A leader in this process, which sees to volumes and does nothing else.
pub struct Leader {
    leadership: Leadership,
    working: JoinSet<()>,
    _pulse: JoinSet<()>,
    store: Store,
}

impl Leader {
    async fn elect(store: Store, name: &str, times: Times) -> Self {
        let pulse = Pulse::default();
        pulse.beat();
        let mut beating = JoinSet::new();
        beating.spawn(pulse.clone().beat_forever());
        let election = store.keys.election();
        let never = CancellationToken::new();
        let ttl = Duration::from_secs(10);
        let leadership = campaign(&store.etcd, &election, name, ttl, &pulse, &never)
            .await
            .unwrap();
        let mut working = JoinSet::new();
        let volumes = Volumes {
            store: store.clone(),
            fence: leadership.fence().clone(),
            times,
            notices: None,
        };
        working.spawn(volumes.run());
        Self {
            leadership,
            working,
            _pulse: beating,
            store,
        }
    }

    fn metrics(&self) -> String {
        self.store.etcd.metrics().encode()
    }

    async fn resign(mut self) {
        self.working.shutdown().await;
        self.leadership.resign().await;
    }
}

fn csi_of(node: &Node) -> Vec<CsiNode> {
    node.status.clone().unwrap_or_default().csi
}
