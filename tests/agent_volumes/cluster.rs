//! A cluster that a volume goes all its way in, each part a process: etcd, a replica that leads, a plugin with its controller and its
//! node side, and the agent of a node.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use prost::Message;
use quorate::agent::volumes::paths::{Layout, Paths};
use quorate::etcd::{Event, KeyRange, Revision};
use quorate::proto::{NodePublication, Publication};
use quorate::store::object::publication::{state, state_word};
use quorate_dev::csi_plugin::backend::{Volume, id_of};
use quorate_dev::csi_plugin::options::NodeOptions;

use super::mounted::{Unmounted, can_mount};
use crate::agent::site::{Site, TestAgent};
use crate::support::base::{document, parsed};
use crate::support::client::history;
use crate::support::csi::{DRIVER, TestPlugin};
use crate::support::wait::{SOON, eventually, same};
use crate::volumes::world::volume;

/// The node, and the plugin's id of it.
pub const NODE: &str = "n1";
pub const CSI_NODE: &str = "csi-n1";

/// The processes without the agent. They end in this order.
pub struct Servers {
    pub plugin: TestPlugin,
    _unmounted: Unmounted,
    pub site: Site,
}

impl Servers {
    /// With the object of the plugin.
    pub async fn start() -> Self {
        Self::launched(&[], &[]).await
    }

    /// Whose replica has these variables in its environment, and these flags.
    async fn launched(variables: &[(&str, &str)], flags: &[&str]) -> Self {
        let plugin = TestPlugin::start_with(|options| {
            options.offers.expand = true;
            let mut node = NodeOptions::new(CSI_NODE);
            (node.expands, node.mounts) = (true, can_mount());
            options.node = Some(node);
        })
        .await;
        let site = Site::launched(1, |launch| {
            let launch = flags.iter().fold(launch, |launch, flag| launch.flag(*flag));
            let variables = variables.iter();
            variables.fold(launch, |launch, (name, value)| launch.variable(name, *value))
        })
        .await;
        let spec = format!("{{endpoint: \"{}\"}}", plugin.endpoint());
        site.apply(&document("Plugin", DRIVER, &spec)).await;
        Self {
            _unmounted: Unmounted::below(site.home()),
            plugin,
            site,
        }
    }

    /// The flag of an agent for the plugin.
    pub fn csi_flag(&self) -> String {
        format!("--csi-node={DRIVER}={}", self.plugin.endpoint())
    }

    /// Creates a volume, and publishes it to the node once that has reported its plugin.
    pub async fn publish_new(&self, name: &str) {
        self.site.apply(&volume(name, "")).await;
        eventually(SOON, "the plugin is reported", async || {
            match self.site.node(NODE).await.status.unwrap_or_default().csi[..] {
                [] => Err("it is not"),
                _ => Ok(()),
            }
        })
        .await;
        let args = ["publish", name, NODE, "--wait", "--timeout=60s"];
        self.site.run(&args).await.expect_done();
    }
}

/// All processes. Dereferences to [`Servers`], which end after the agent, so that nothing mounts any more when what is left is
/// unmounted.
pub struct Cluster {
    pub agent: TestAgent,
    servers: Servers,
}

impl Deref for Cluster {
    type Target = Servers;

    fn deref(&self) -> &Servers {
        &self.servers
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Servers {
        &mut self.servers
    }
}

impl Cluster {
    /// With the object of the plugin, and the node in a session.
    pub async fn start() -> Self {
        Self::start_in(&[]).await
    }

    /// One whose replica and agent have these variables in their environment.
    pub async fn start_in(variables: &[(&str, &str)]) -> Self {
        Self::launched(variables, &[]).await
    }

    /// One whose replica has these flags.
    pub async fn start_with(flags: &[&str]) -> Self {
        Self::launched(&[], flags).await
    }

    async fn launched(variables: &[(&str, &str)], flags: &[&str]) -> Self {
        let servers = Servers::launched(variables, flags).await;
        let token = servers.site.token().await;
        let flag = servers.csi_flag();
        let mut agent = servers
            .site
            .agent_in(variables.iter().copied(), NODE, &token, &[&flag]);
        agent.ready().await;
        Self { agent, servers }
    }

    /// Publishes a volume to the node with these flags, and waits until it is at its path. Returns its paths.
    pub async fn publish(&self, volume: &str, flags: &[&str]) -> Paths {
        self.site
            .done_with(&[&["publish", volume, NODE], flags].concat())
            .await;
        let paths = self.paths(volume).await;
        eventually(SOON, "the volume is at its path", async || {
            fs::metadata(&paths.link).map(drop)
        })
        .await;
        paths
    }

    /// Applies the document of a volume again, and waits until the volume and what is on it have so many bytes.
    pub async fn grow(&self, volume: &str, document: &str, bytes: i64) {
        self.site.apply(document).await;
        eventually(SOON, "the volume and what is on it have grown", async || {
            let status = self.site.volume(volume).await.unwrap().status.unwrap();
            same((status.capacity_bytes, status.node_expansion_bytes), (bytes, 0))
        })
        .await;
    }

    /// The paths of a volume on the node.
    async fn paths(&self, volume: &str) -> Paths {
        let published = self.site.publication(volume, NODE).await.unwrap();
        let publication = NodePublication {
            volume: volume.to_owned(),
            volume_uid: published.spec.unwrap().volume_uid,
            publication_uid: published.metadata.unwrap().uid,
            ..NodePublication::default()
        };
        // The table of mounts has no links.
        let directory = fs::canonicalize(&self.agent.state).unwrap().join("volumes");
        Layout::new(directory).paths(&publication).unwrap()
    }

    /// The backend's id of a volume.
    pub async fn backend_id(&self, volume: &str) -> String {
        let volume = self.site.volume(volume).await.expect("the volume is there");
        id_of(&volume.metadata.unwrap().uid)
    }

    /// A volume of the backend, by its id.
    fn at_backend(&self, id: &str) -> Volume {
        self.plugin.backend().volume(id).unwrap().unwrap()
    }

    /// Where the backend has the data of a volume.
    pub fn data(&self, id: &str) -> PathBuf {
        self.plugin.backend().data(id, &self.at_backend(id))
    }

    /// The nodes that the backend has published a volume to.
    pub fn attached(&self, id: &str) -> Vec<String> {
        self.plugin.backend().nodes(id).unwrap().into_keys().collect()
    }

    /// The methods of the calls about volumes, in the order of their begin. One that was repeated at once counts once.
    pub fn calls(&self) -> Vec<String> {
        let calls = self.plugin.calls().unwrap().into_iter();
        let about = calls.filter(|call| !call.begun.volume.is_empty());
        let mut methods: Vec<String> = about.map(|call| call.begun.method).collect();
        methods.dedup();
        methods
    }

    /// Waits until the calls about volumes are these.
    pub async fn until_calls(&self, expected: &[&str]) {
        let expected: Vec<String> = expected.iter().map(|method| (*method).to_owned()).collect();
        eventually(SOON, "the calls", async || same(self.calls(), expected.clone())).await;
    }

    /// The states that the publication of a volume to the node has gone through; "" where it was gone.
    pub async fn states(&self, volume: &str) -> Vec<&'static str> {
        let store = &self.site.store;
        let key = store.keys.publication(&parsed(volume), &parsed(NODE));
        // Beside the keys of the cluster, where it is no record. It shows that the events before it have arrived.
        let last = self.site.put(b"/quorate~end", "").await;
        let all = KeyRange::prefix(*b"/quorate");
        let events = history(&store.etcd, all, Revision(1), last).await;
        let mut states: Vec<&str> = events
            .iter()
            .filter(|event| event.key() == key)
            .map(|event| match event {
                Event::Put(kv) => state_word(state(&Publication::decode(&*kv.value).unwrap())),
                Event::Delete { .. } => "",
            })
            .collect();
        states.dedup();
        states
    }
}
