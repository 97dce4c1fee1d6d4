//! A node with volumes: the agent's part of this process, a real plugin, and a control API that only notes what is confirmed.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::agent::CsiNodePlugin;
use quorate::agent::confirm::{Confirm, NotConfirmed};
use quorate::agent::volumes::paths::{Layout, Paths};
use quorate::agent::volumes::{Settings, Times, run};
use quorate::csi::{Secrets, VolumeId};
use quorate::metrics::Metrics;
use quorate::proto::node_publication::Instruction;
use quorate::proto::{CsiNode, NodePublication, NodeView};
use quorate_dev::csi_plugin::options::{NodeOptions, Options};
use quorate_dev::csi_plugin::order::Order;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::mounted::{Unmounted, can_mount, mounted_below};
use crate::support::csi::{DRIVER, LONG, TestPlugin, create};
use crate::support::wait::{SOON, eventually, same};

/// The plugin's id of the node.
pub const NODE: &str = "csi-n1";

/// A confirmation, in the order in which they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmed {
    Unpublished { volume: String, uid: String },
    Expanded { volume: String, bytes: i64 },
}

/// A control API that notes what is confirmed.
#[derive(Clone, Default)]
pub struct Control {
    confirmed: Arc<Mutex<Vec<Confirmed>>>,
    /// How many confirmations are refused first.
    refusals: Arc<Mutex<u32>>,
}

impl Control {
    fn take(&self, confirmed: Confirmed) -> Result<(), NotConfirmed> {
        let mut refusals = self.refusals.lock().unwrap();
        if *refusals > 0 {
            *refusals -= 1;
            return Err(NotConfirmed::Failed("the replica stops".to_owned()));
        }
        self.confirmed.lock().unwrap().push(confirmed);
        Ok(())
    }
}

impl Confirm for Control {
    async fn confirm_unpublished(&self, volume: &str, publication_uid: &str) -> Result<(), NotConfirmed> {
        self.take(Confirmed::Unpublished {
            volume: volume.to_owned(),
            uid: publication_uid.to_owned(),
        })
    }

    async fn confirm_expanded(&self, volume: &str, _: &str, capacity_bytes: i64) -> Result<(), NotConfirmed> {
        self.take(Confirmed::Expanded {
            volume: volume.to_owned(),
            bytes: capacity_bytes,
        })
    }
}

/// An agent's part for volumes, as its process runs it.
struct Agent {
    _task: JoinSet<()>,
    metrics: Metrics,
    csi: watch::Receiver<Option<Vec<CsiNode>>>,
}

/// A node. Its parts end in this order.
pub struct World {
    agent: Option<Agent>,
    pub plugin: TestPlugin,
    _unmounted: Unmounted,
    directory: TempDir,
    views: watch::Sender<Option<Arc<NodeView>>>,
    /// Why there is no session.
    pub session: watch::Sender<Option<String>>,
    pub control: Control,
}

impl World {
    pub async fn start() -> Self {
        Self::start_with(|_, _| {}).await
    }

    /// One whose plugin has other options.
    pub async fn start_with(change: impl FnOnce(&mut Options, &mut NodeOptions)) -> Self {
        let plugin = TestPlugin::start_with(|options| {
            let mut node = NodeOptions::new(NODE);
            node.mounts = can_mount();
            change(options, &mut node);
            options.node = Some(node);
        })
        .await;
        let directory = tempfile::Builder::new().prefix("qnode-").tempdir().unwrap();
        let mut world = Self {
            agent: None,
            plugin,
            _unmounted: Unmounted::below(directory.path()),
            directory,
            views: watch::Sender::new(None),
            session: watch::Sender::new(None),
            control: Control::default(),
        };
        world.start_agent();
        world
    }

    /// The directory of the volumes.
    pub fn directory(&self) -> PathBuf {
        fs::canonicalize(self.directory.path()).unwrap().join("volumes")
    }

    /// What the uids of the volumes begin with.
    fn uids(&self) -> &str {
        self.directory.path().file_name().unwrap().to_str().unwrap()
    }

    /// Starts the agent, in place of one that runs.
    pub fn start_agent(&mut self) {
        self.stop_agent();
        let settings = Settings {
            directory: self.directory(),
            plugins: vec![CsiNodePlugin {
                name: DRIVER.to_owned(),
                endpoint: self.plugin.endpoint().clone(),
            }],
            times: Times {
                look_every: Duration::from_millis(100),
                call: LONG,
                long_call: LONG,
            },
        };
        let (sender, csi) = watch::channel(None);
        let metrics = Metrics::new("test");
        let views = self.views.subscribe();
        let running = run(
            settings,
            views,
            self.control.clone(),
            sender,
            self.session.subscribe(),
            metrics.clone(),
        );
        let mut task = JoinSet::new();
        task.spawn(running);
        self.agent = Some(Agent {
            _task: task,
            metrics,
            csi,
        });
    }

    /// Ends the agent, as SIGKILL does: in the middle of whatever it does.
    pub fn stop_agent(&mut self) {
        self.agent = None;
    }

    /// Shows the agent these publications, and no other.
    pub fn show(&self, publications: Vec<NodePublication>) {
        let view = NodeView {
            publications,
            ..NodeView::default()
        };
        self.views.send_replace(Some(Arc::new(view)));
    }

    /// The view that the agent has or gets.
    pub fn view(&self) -> Arc<NodeView> {
        self.views.borrow().clone().unwrap()
    }

    /// What the agent knows the plugins to say of the node.
    pub fn csi(&self) -> Option<Vec<CsiNode>> {
        self.agent.as_ref().unwrap().csi.borrow().clone()
    }

    /// Its metrics.
    pub fn metrics(&self) -> String {
        self.agent.as_ref().unwrap().metrics.encode()
    }

    /// Waits until so many volumes are in this state.
    pub async fn until(&self, state: &str, count: usize) {
        let line = format!("quorate_agent_volumes{{state=\"{state}\"}} {count}\n");
        eventually(SOON, &line, async || {
            let text = self.metrics();
            match text.contains(&line) {
                true => Ok(()),
                false => Err(text
                    .lines()
                    .filter(|line| line.contains("agent_volumes"))
                    .collect::<String>()),
            }
        })
        .await;
    }

    /// Waits until these confirmations have come, and no other.
    pub async fn until_confirmed(&self, expected: &[Confirmed]) {
        eventually(SOON, "the confirmations", async || {
            same(self.confirmed(), expected.to_vec())
        })
        .await;
    }

    /// The confirmations so far.
    pub fn confirmed(&self) -> Vec<Confirmed> {
        self.control.confirmed.lock().unwrap().clone()
    }

    /// Refuses the next confirmations.
    pub fn refuse_confirmations(&self, times: u32) {
        *self.control.refusals.lock().unwrap() = times;
    }

    /// Creates a volume that is a file system, publishes it to this node as the leader does, and returns its publication.
    pub async fn volume(&self, name: &str) -> NodePublication {
        self.volume_like(name, |_| {}).await
    }

    /// The same with another access mode.
    pub async fn volume_like(
        &self,
        name: &str,
        change: impl FnOnce(&mut NodePublication),
    ) -> NodePublication {
        let mut publication = NodePublication {
            volume: name.to_owned(),
            // Its own, as those of a cluster are: the agents of all tests see the same mounts.
            volume_uid: format!("{}-{name}", self.uids()),
            publication_uid: format!("uid-of-{name}"),
            instruction: Instruction::Publish.into(),
            plugin: DRIVER.to_owned(),
            ..NodePublication::default()
        };
        change(&mut publication);
        let mode = publication.access_mode.clone().unwrap_or_default();
        let session = self.plugin.client(LONG).session().await.unwrap();
        let mut request = create(name);
        request.capability = quorate::volumes::request::capability(mode, false);
        let created = session.create_volume(&request, &Secrets::none()).await.unwrap();
        publication.volume_id = created.id.as_str().to_owned();
        publication.volume_context = created.context;
        self.attach(&created.id).await;
        publication
    }

    /// Publishes a volume to this node at the backend.
    async fn attach(&self, volume: &VolumeId) {
        let (volume, node) = (volume.as_str().to_owned(), NODE.to_owned());
        self.plugin.order(Order::Attach { volume, node }).await;
    }

    /// The path for programs.
    pub fn path(&self, publication: &NodePublication) -> PathBuf {
        self.paths(publication).link
    }

    /// All paths.
    pub fn paths(&self, publication: &NodePublication) -> Paths {
        Layout::new(self.directory()).paths(publication).unwrap()
    }

    /// The data of a volume at the backend.
    pub fn data(&self, publication: &NodePublication) -> PathBuf {
        let backend = self.plugin.backend();
        let id = &publication.volume_id;
        backend.data(id, &backend.volume(id).unwrap().unwrap())
    }

    /// The methods of the calls on the node, in their order.
    pub fn calls(&self) -> Vec<String> {
        let calls = self
            .plugin
            .calls()
            .unwrap()
            .into_iter()
            .map(|call| call.begun.method);
        let of_volumes = |method: &String| method.starts_with("Node") && method.ends_with("Volume");
        calls.filter(of_volumes).collect()
    }

    /// Waits until these calls were made on the node, and no other.
    pub async fn until_calls(&self, expected: &[&str]) {
        let expected: Vec<String> = expected.iter().map(|method| (*method).to_owned()).collect();
        eventually(SOON, "the calls", async || same(self.calls(), expected.clone())).await;
    }

    /// Waits until nothing of a publication is left on the node. The agent tidies after its confirmation.
    pub async fn until_gone(&self, publication: &NodePublication) {
        let paths = self.paths(publication);
        assert_eq!(mounted_below(&paths.home), [] as [PathBuf; 0]);
        eventually(SOON, "nothing is left on the node", async || {
            let left = [&paths.link, &paths.home];
            match left.iter().find(|path| fs::symlink_metadata(path).is_ok()) {
                None => Ok(()),
                Some(path) => Err(format!("{} is left", path.display())),
            }
        })
        .await;
    }
}

/// The publication with another instruction.
pub fn unpublish(publication: &NodePublication) -> NodePublication {
    let mut ending = publication.clone();
    ending.set_instruction(Instruction::Unpublish);
    ending.secrets.clear();
    ending
}

/// The confirmation that a publication is over.
pub fn unpublished(publication: &NodePublication) -> Confirmed {
    Confirmed::Unpublished {
        volume: publication.volume.clone(),
        uid: publication.publication_uid.clone(),
    }
}
