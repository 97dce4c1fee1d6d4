//! Agents by the hundred in one process: the product's own, each with a node, a state directory and a session of its own. Their joins
//! are left out: the authority of the cluster signs their certificates here.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use prost::Message;
use quorate::agent::{self, AgentStatus, ServerAddress, Settings, StateDirectory};
use quorate::etcd::ClusterId;
use quorate::identity::control::server_name;
use quorate::identity::node::{LIFE, NodeHolder, NodeRole, certificate};
use quorate::identity::request::RequestedKey;
use quorate::identity::{Authority, AuthorityKind, NodeKey, directory};
use quorate::metrics::Metrics;
use quorate::proto::{Metadata, Node, NodeSpec, NodeStatus, Role};
use quorate::release::Release;
use quorate::store::Name;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

/// Agents that start at a time, as where machines come up one after the other.
const AT_ONCE: usize = 32;

/// Files that an agent has open: its connection, its lock, and what two runtimes wait on.
const FILES_EACH: u64 = 10;

/// The limit of every wait here; only a fault exceeds it.
const LIMIT: Duration = Duration::from_secs(120);

/// A node with a certificate.
pub struct Member {
    pub name: Name,
    pub uid: String,
    /// What etcd holds of the node.
    pub record: Vec<u8>,
    /// The certificate and those above it (PEM).
    pub chain: String,
    pub key: NodeKey,
}

/// The node authority of this directory.
pub fn authority(ca: &Path) -> Result<Authority> {
    Ok(directory::read(ca, AuthorityKind::Node, Timestamp::now())?)
}

/// Makes so many nodes of this cluster, each an observed worker.
pub fn members(count: usize, authority: &Authority, cluster: ClusterId) -> Result<Vec<Member>> {
    let now = Timestamp::now();
    let member = |number: usize| {
        let name: Name = format!("n{number}").parse()?;
        let (uid, key) = (uuid::Uuid::new_v4().to_string(), NodeKey::create()?);
        let holder = NodeHolder {
            cluster,
            uid: &uid,
            name: name.as_str(),
            role: NodeRole::Worker,
        };
        let requested = RequestedKey::read(&key.request()?)?;
        let signed = certificate(authority, &requested, holder, LIFE, now)?;
        let role = Role::Worker.into();
        let node = Node {
            metadata: Some(Metadata::new(&name, &uid, now)),
            spec: Some(NodeSpec {
                desired_role: role,
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                role,
                ..NodeStatus::default()
            }),
        };
        Ok(Member {
            name,
            uid,
            record: node.encode_to_vec(),
            chain: signed.chain_pem,
            key,
        })
    };
    (0..count).map(member).collect()
}

/// Agents that run. Dropping them ends them, and leaves their nodes as they are.
pub struct Crowd {
    /// The directory of their states.
    home: PathBuf,
    /// The digest of the node authority, and the name of its servers.
    pinned: (String, String),
    servers: Vec<ServerAddress>,
    agents: Vec<AgentStatus>,
    starts: Option<UnboundedSender<Start>>,
    /// All of them run here, beside what the process does otherwise.
    thread: Option<JoinHandle<()>>,
}

/// What an agent starts with.
struct Start {
    settings: Settings,
    directory: StateDirectory,
    status: AgentStatus,
}

/// Runs agents as they come, until no more can come.
async fn run(mut starts: UnboundedReceiver<Start>) {
    let mut running = JoinSet::new();
    while let Some(start) = starts.recv().await {
        running.spawn_local(async move {
            let Start {
                settings,
                directory,
                status,
            } = start;
            let metrics = Metrics::new("1.2.3");
            // It ends only where the node is removed, and then has no session.
            let _ = agent::run(&settings, &directory, &status, &metrics).await;
        });
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.starts = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has reported that.
            let _ = thread.join();
        }
    }
}

impl Crowd {
    /// No agents yet. Those that start turn to these servers (`https://HOST:PORT`).
    pub fn new(home: &Path, authority: &Authority, cluster: ClusterId, servers: &[String]) -> Result<Self> {
        let servers = servers.iter().map(|server| server.parse());
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (starts, received) = unbounded_channel();
        let thread = std::thread::spawn(move || LocalSet::new().block_on(&runtime, run(received)));
        Ok(Self {
            home: home.to_owned(),
            pinned: (authority.digest().to_string(), server_name(cluster)),
            servers: servers.collect::<Result<_, _>>()?,
            agents: Vec::new(),
            starts: Some(starts),
            thread: Some(thread),
        })
    }

    /// Starts the agents of these nodes, and waits until each has a session.
    pub async fn start(&mut self, members: &[Member]) -> Result<()> {
        allow_files(members.len() + self.agents.len())?;
        for some in members.chunks(AT_ONCE) {
            for member in some {
                self.start_one(member)?;
            }
            let begun = Instant::now();
            while self.in_session() < self.agents.len() {
                ensure!(
                    begun.elapsed() < LIMIT,
                    "{} of {} agents have a session",
                    self.in_session(),
                    self.agents.len()
                );
                sleep(Duration::from_millis(5)).await;
            }
        }
        Ok(())
    }

    fn start_one(&mut self, member: &Member) -> Result<()> {
        let directory = StateDirectory::open(&self.home.join(member.name.as_str()))?;
        let (authority, server_name) = &self.pinned;
        let state = serde_json::json!({
            "name": member.name.as_str(),
            "authority": authority,
            "serverName": server_name,
            "uid": member.uid,
            "certificate": { "chain": member.chain, "key": member.key.pem() },
        });
        fs::write(directory.path().join("agent.json"), state.to_string())?;
        let settings = Settings {
            servers: self.servers.clone(),
            name: member.name.clone(),
            token_file: None,
            plugins: Vec::new(),
            etcd: None,
            renewed_at: None,
            release: Release::new(1, 2, 3),
        };
        let status = AgentStatus::default();
        self.agents.push(status.clone());
        let start = Start {
            settings,
            directory,
            status,
        };
        let starts = self.starts.as_ref().context("the crowd is not dropped")?;
        starts.send(start).ok().context("the thread of the agents runs")?;
        Ok(())
    }

    /// How many of them have a session, as far as they know.
    pub fn in_session(&self) -> usize {
        self.agents.iter().filter(|agent| agent.ready().ok()).count()
    }
}

/// Lets this process have as many open files as so many agents need.
fn allow_files(agents: usize) -> Result<()> {
    let needed = u64::try_from(agents)? * FILES_EACH + 256;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(needed),
            maximum,
        },
    )
    .with_context(|| format!("{agents} agents need {needed} open files, and at most {maximum:?} are allowed"))
}
