//! One term of the gate's controller on a real etcd, with a reconciler that records its calls.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prost::Message as _;
use quorate::etcd::election::Leadership;
use quorate::etcd::{Etcd, Fence, KeyValue, Pulse, Revision, Txn};
use quorate::gate::controller::{GateController, PassFailed, Reconcile, Times};
use quorate::gate::plan::BundleVersions;
use quorate::gate::releases::{LastWrite, Releases};
use quorate::gate::status::{State, Status};
use quorate::gate::watch_nodes::watch_nodes;
use quorate::grpc_code::Code;
use quorate::proto::{Metadata, Node, NodeStatus, Registration};
use quorate::release::{Release, Version};
use quorate::store::Store;
use quorate::summary::Latest;
use quorate::term::NodeWrites;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::client::{commit, connect_patiently, lead, put, requests, store};
use crate::support::etcd::TestEtcd;
use crate::support::wait::{SOON, eventually, same};

/// Release 0.`minor`.0.
pub fn release(minor: u32) -> Release {
    Release::new(0, minor, 0)
}

/// The bundle of release 0.`version`.0, with 0.`minimum`.0 as both minimums.
pub fn bundle(version: u32, minimum: u32) -> BundleVersions {
    BundleVersions {
        version: release(version).into(),
        min_reconciler: release(minimum),
        min_apiserver: release(minimum),
    }
}

/// A status of 0.`version`.0 that excludes releases below 0.`minimum`.0.
pub fn status(state: State, version: u32, minimum: u32) -> Status {
    Status::new(state, release(version).into(), release(minimum))
}

/// Short waits. A pass is made only when a test triggers it.
pub const TIMES: Times = Times {
    settle: Duration::from_millis(50),
    pass_interval: Duration::from_secs(3600),
};

/// A pass over the resources.
#[derive(Clone, Debug)]
pub struct Pass {
    /// When it began.
    pub at: Instant,
    /// The value of the status key at that time.
    pub status: Option<Vec<u8>>,
}

/// Stands in for the Kubernetes resources.
#[derive(Clone)]
pub struct Recorder {
    store: Store,
    passes: Arc<Mutex<Vec<Pass>>>,
    outcome: Arc<Mutex<Result<(), PassFailed>>>,
    may_end: watch::Sender<bool>,
    disturbance: Arc<Mutex<Option<Status>>>,
    may_announce: watch::Sender<bool>,
    announcing: Arc<Mutex<Vec<String>>>,
    announced: Arc<Mutex<Vec<String>>>,
    change: Arc<Notify>,
}

impl Recorder {
    /// Its passes succeed at once.
    pub fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            passes: Arc::default(),
            outcome: Arc::new(Mutex::new(Ok(()))),
            may_end: watch::Sender::new(true),
            disturbance: Arc::default(),
            may_announce: watch::Sender::new(true),
            announcing: Arc::default(),
            announced: Arc::default(),
            change: Arc::default(),
        }
    }

    /// Sets the result of every pass from now on.
    pub fn will(&self, outcome: Result<(), &str>) {
        *self.outcome.lock().unwrap() = outcome.map_err(|message| PassFailed {
            reason: "Rejected",
            message: message.to_owned(),
        });
    }

    /// Sets whether passes end. While they may not, a pass hangs.
    pub fn let_passes_end(&self, may_end: bool) {
        self.may_end.send_replace(may_end);
    }

    /// Sets whether announcements end. While they may not, an announcement hangs, as with an API server that does not
    /// answer.
    pub fn let_announcements_end(&self, may_end: bool) {
        self.may_announce.send_replace(may_end);
    }

    /// Has someone else write this status at the end of the next pass.
    pub fn disturb(&self, status: Status) {
        *self.disturbance.lock().unwrap() = Some(status);
    }

    /// Reports a change of a managed object.
    pub fn change(&self) {
        self.change.notify_one();
    }

    pub fn passes(&self) -> Vec<Pass> {
        self.passes.lock().unwrap().clone()
    }

    /// Every announcement that began.
    pub fn announcing(&self) -> Vec<String> {
        self.announcing.lock().unwrap().clone()
    }

    /// The announcements that ended by themselves.
    pub fn announced(&self) -> Vec<String> {
        self.announced.lock().unwrap().clone()
    }

    /// Waits until this many passes began, and returns the last of them.
    pub async fn pass(&self, count: usize) -> Pass {
        eventually(SOON, "passes", async || {
            let passes = self.passes();
            match passes.len() >= count {
                true => Ok(passes[count - 1].clone()),
                false => Err(format!("{} of {count}", passes.len())),
            }
        })
        .await
    }
}

impl Reconcile for Recorder {
    async fn pass(&mut self, _: &Fence) -> Result<(), PassFailed> {
        let at = Instant::now();
        let found = read_status(&self.store).await;
        self.passes.lock().unwrap().push(Pass {
            at,
            status: found.map(|kv| kv.value),
        });
        let mut may_end = self.may_end.subscribe();
        may_end.wait_for(|may_end| *may_end).await.unwrap();
        let disturbance = self.disturbance.lock().unwrap().take();
        if let Some(status) = disturbance {
            let key = String::from_utf8(self.store.keys.status()).unwrap();
            put(&self.store.etcd, &key, status.encode()).await;
        }
        self.outcome.lock().unwrap().clone()
    }

    async fn changed(&mut self) {
        self.change.notified().await;
    }

    async fn announce_blocked(&mut self, _: &Fence, message: &str) {
        self.announcing.lock().unwrap().push(message.to_owned());
        let mut may_announce = self.may_announce.subscribe();
        may_announce.wait_for(|may_end| *may_end).await.unwrap();
        self.announced.lock().unwrap().push(message.to_owned());
    }
}

/// Reads the status key.
pub async fn read_status(store: &Store) -> Option<KeyValue> {
    store.etcd.get(&store.keys.status()).await.unwrap().0
}

/// A cluster's etcd, and terms on it.
pub struct Cluster {
    pub etcd: TestEtcd,
    pub client: Etcd,
    pub store: Store,
    _beating: JoinSet<()>,
    pulse: Pulse,
}

impl Cluster {
    pub async fn start() -> Self {
        Self::on(TestEtcd::start().await).await
    }

    /// On this etcd.
    pub async fn on(etcd: TestEtcd) -> Self {
        let client = connect_patiently(&etcd).await;
        let store = store(&client);
        let pulse = Pulse::default();
        let mut beating = JoinSet::new();
        beating.spawn(pulse.clone().beat_forever());
        Self {
            etcd,
            client,
            store,
            _beating: beating,
            pulse,
        }
    }

    pub fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Writes the status as someone who is not the leader.
    pub async fn put_status(&self, value: impl Into<Vec<u8>>) -> Revision {
        let key = String::from_utf8(self.store.keys.status()).unwrap();
        put(&self.client, &key, value).await.revision
    }

    pub async fn status(&self) -> Option<Status> {
        let found = read_status(&self.store).await?;
        Some(Status::decode(&found.value).unwrap())
    }

    pub async fn wait_for_status(&self, wanted: &Status) {
        eventually(SOON, "the status", async || {
            let found = read_status(&self.store).await.map(|kv| Status::decode(&kv.value));
            match found {
                Some(Ok(found)) if found == *wanted => Ok(()),
                found => Err(format!("{found:?} instead of {wanted}")),
            }
        })
        .await;
    }

    /// Waits until `status.json` fulfils the condition, and returns it.
    pub async fn wait_for_status_json(&self, condition: impl Fn(&Value) -> bool) -> Value {
        let key = self.store.keys.status_json();
        eventually(SOON, "status.json", async || {
            let text = self.client.get(&key).await.unwrap().0.map(|kv| kv.value);
            let status_json = serde_json::from_slice(&text.unwrap_or_default()).unwrap_or(Value::Null);
            match condition(&status_json) {
                true => Ok(status_json),
                false => Err(status_json),
            }
        })
        .await
    }

    /// Registers a process of this release, as a replica does, but without a lease.
    pub async fn register(&self, node: &str, release: Release) -> Revision {
        let record = Registration {
            version: Some(Version::from(release).to_proto()),
            process: "another".to_owned(),
            registered_at: None,
            page: String::new(),
        };
        put(&self.client, &registration(node), record.encode_to_vec())
            .await
            .revision
    }

    pub async fn unregister(&self, node: &str) {
        let txn = Txn::new().delete(registration(node).as_bytes());
        commit(&self.client, txn).await.unwrap();
    }

    /// Writes a node that is flagged as a controller of this release.
    pub async fn put_node(&self, name: &str, release: Release) -> Revision {
        self.put_node_called(name, name, release).await
    }

    /// The same with `name` as `metadata.name`.
    pub async fn put_node_called(&self, key: &str, name: &str, release: Release) -> Revision {
        let node = Node {
            metadata: Some(Metadata {
                name: name.to_owned(),
                ..Metadata::default()
            }),
            spec: None,
            status: Some(NodeStatus {
                controller: true,
                release: Some(release.to_proto()),
                ..NodeStatus::default()
            }),
        };
        put(&self.client, &format!("/q/nodes/{key}"), node.encode_to_vec())
            .await
            .revision
    }

    /// Wins the election and holds the gate, with the releases from watch-nodes.
    pub async fn term(&self, bundle: &BundleVersions) -> Term {
        self.term_with(bundle, TIMES).await
    }

    pub async fn term_with(&self, bundle: &BundleVersions, times: Times) -> Term {
        let (published, releases) = watch::channel(None);
        let mut term = self.term_on(bundle, times, releases).await;
        let (store, bundle) = (self.store.clone(), bundle.clone());
        term.tasks.spawn(async move {
            let (summaries, stop) = (Latest::default(), CancellationToken::new());
            watch_nodes(&store, &bundle, published, &summaries, stop).await;
        });
        term
    }

    /// Wins the election and holds the gate, with the releases that the test publishes.
    pub async fn term_on(
        &self,
        bundle: &BundleVersions,
        times: Times,
        releases: watch::Receiver<Option<Releases>>,
    ) -> Term {
        let recorder = Recorder::new(&self.store);
        self.term_of(bundle, times, releases, recorder).await
    }

    /// The same. Returns once two attempts to restrict were made; the test writes nothing else meanwhile.
    pub async fn term_refused_twice(
        &self,
        bundle: &BundleVersions,
        releases: watch::Receiver<Option<Releases>>,
    ) -> Term {
        let transactions = || requests(&self.client, "txn", Code::Ok);
        let before = transactions();
        let term = self.term_on(bundle, TIMES, releases).await;
        // One transaction enters the election, then come the attempts.
        eventually(SOON, "restricting is tried twice", async || {
            same(transactions() >= before + 3.0, true)
        })
        .await;
        term
    }

    /// The same as [`Cluster::term_on`] with this recorder.
    pub async fn term_of(
        &self,
        bundle: &BundleVersions,
        times: Times,
        releases: watch::Receiver<Option<Releases>>,
        recorder: Recorder,
    ) -> Term {
        let leadership = lead(&self.client, "leader", &self.pulse).await.unwrap();
        let controller = GateController {
            store: self.store.clone(),
            fence: leadership.fence().clone(),
            node: "leader".to_owned(),
            bundle: bundle.clone(),
            releases,
            node_writes: NodeWrites::default(),
            resources: recorder.clone(),
            times,
            summaries: Latest::default(),
        };
        let node_writes = controller.node_writes.clone();
        let mut gate = JoinSet::new();
        gate.spawn(controller.run());
        Term {
            leadership,
            node_writes,
            gate,
            tasks: JoinSet::new(),
            recorder,
        }
    }

    pub fn recorder(&self) -> Recorder {
        Recorder::new(&self.store)
    }

    pub fn gate_blocked(&self) -> i64 {
        self.client.metrics().gate_blocked.get()
    }
}

/// The key of a registration, as text.
pub fn registration(node: &str) -> String {
    format!("/q/nodes/{node}/release")
}

/// No other release runs, and the last write is the registration of this node at this revision.
pub fn only(node: &str, revision: Revision) -> Releases {
    Releases {
        newer: Arc::default(),
        outside: Vec::new().into(),
        unreadable: Vec::new().into(),
        last_write: Some(LastWrite {
            key: registration(node).into_bytes(),
            revision,
            // So that the transaction alone decides.
            keys: u64::MAX,
        }),
    }
}

/// A term under way.
pub struct Term {
    pub leadership: Leadership,
    pub node_writes: NodeWrites,
    /// The controller alone.
    pub gate: JoinSet<()>,
    tasks: JoinSet<()>,
    pub recorder: Recorder,
}

impl Term {
    /// Ends it as the death of its process does, but without the wait until its lease expires.
    pub async fn die(mut self, etcd: &TestEtcd) {
        self.gate.shutdown().await;
        self.tasks.shutdown().await;
        let keys = etcd.etcdctl(&[
            "get",
            "--prefix",
            "--keys-only",
            "/q/kubernetes/reconciler/leader/",
        ]);
        let lease = keys.trim().rsplit('/').next().unwrap().to_owned();
        etcd.etcdctl(&["lease", "revoke", &lease]);
    }
}
