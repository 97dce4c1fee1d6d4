//! The agent of a node: it joins with a token, keeps the certificate of the node and its session, reports, mounts the volumes that are
//! published to the node, and keeps the etcd of a manager.
//!
//! A server says what concerns the node, and nothing else is a reason to undo anything: silence, a refused call or an unknown node
//! leave everything as it is. A removal ends the agent, which leaves its state and its mounts behind.

mod calls;
mod certificate;
pub mod confirm;
mod freshness;
pub mod manager;
mod passage;
mod plan;
mod servers;
mod session;
mod state;
mod status;
mod thread;
mod trust;
pub mod volumes;

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::csi::Endpoint;
use crate::metrics::Metrics;
use crate::proto::{CsiNode, MemberReport, NodeView};
use crate::release::Release;
use crate::store::Name;

use calls::{Calls, NodeRemoved};
use certificate::{Fault, Keeper};
use freshness::SessionReceiver;
use plan::Seen;
use servers::{Identity, Link, Servers};
use session::{AgentFacts, Sessions};
use state::State;
use thread::Thread;

pub use servers::{BadAddress, ServerAddress};
pub use state::{StateDirectory, StateError};
pub use status::AgentStatus;

/// What concerns the node: `None` until this process has had a session, then the latest, also while there is none.
pub type ViewReceiver = watch::Receiver<Option<Arc<NodeView>>>;

/// A CSI plugin whose node service runs on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiNodePlugin {
    /// The name of the driver.
    pub name: String,
    /// Where its Node service listens.
    pub endpoint: Endpoint,
}

/// How an agent runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The servers of the control API; there must be one.
    pub servers: Vec<ServerAddress>,
    /// The name of the node.
    pub name: Name,
    /// The file with the join token.
    pub token_file: Option<PathBuf>,
    /// The CSI plugins of this node.
    pub plugins: Vec<CsiNodePlugin>,
    /// The etcd of the node, for when it is a manager; `None` where the agent keeps none.
    pub etcd: Option<manager::Settings>,
    /// Replaces each certificate at this age, in place of a random one.
    pub renewed_at: Option<Duration>,
    /// The release of this program.
    pub release: Release,
}

/// Why an agent ends.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The node was removed.
    #[error("node {name} (uid {uid}) was removed from the cluster")]
    Removed {
        /// The name that it had.
        name: String,
        /// Its uid, which never comes back.
        uid: String,
        /// The directory of its volumes.
        volumes: PathBuf,
        /// What is still mounted there, or why that is unknown.
        mounted: Result<Vec<PathBuf>, String>,
    },
    /// The state is that of another node.
    #[error("{} is the state of node {found}, not of {wanted}", path.display())]
    OtherName {
        /// The directory.
        path: PathBuf,
        /// Its node.
        found: String,
        /// The node asked for.
        wanted: Name,
    },
    /// There is neither a certificate nor a token.
    #[error("{} holds no certificate, and there is no join token", .0.display())]
    NoToken(PathBuf),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The system has no thread or no event queue left.
    #[error("cannot start the thread for {0}: {1}")]
    Thread(&'static str, io::Error),
    /// Nothing keeps the volumes, or etcd, any more, because of a fault of this program.
    #[error("the thread for {0} has ended: a fault of this program, described above")]
    ThreadEnded(&'static str),
    /// What the state directory holds cannot be used.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Keeps what this process holds from core files and from other processes of its user.
///
/// # Errors
/// If the system does not allow it.
pub fn keep_memory_private() -> io::Result<()> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// What the parts of an agent show each other.
#[derive(Default)]
struct Channels {
    /// The certificate of the node.
    identities: watch::Sender<Option<Arc<Identity>>>,
    /// The connection of the session.
    links: watch::Sender<Option<Link>>,
    /// What concerns the node.
    views: watch::Sender<Option<Arc<NodeView>>>,
    /// What is known of the certificate of the node.
    seen: watch::Sender<Seen>,
    /// What the CSI plugins name the node by.
    csi: watch::Sender<Option<Vec<CsiNode>>>,
    /// What is known of the data of the member.
    member: watch::Sender<Option<MemberReport>>,
    /// Whether the node was removed.
    removal: watch::Sender<bool>,
}

impl Channels {
    /// What connects the etcd of the node with the rest.
    fn wiring(&self, node: Name, calls: Calls, status: &AgentStatus, metrics: &Metrics) -> manager::Wiring {
        manager::Wiring {
            node,
            calls,
            identities: self.identities.subscribe(),
            views: self.views.subscribe(),
            session: status.session.subscribe(),
            report: self.member.clone(),
            hindrance: status.etcd.clone(),
            removal: self.removal.subscribe(),
            metrics: metrics.clone(),
        }
    }
}

/// Runs the agent with this state until it is dropped, or the node is removed.
///
/// # Errors
/// The reason why it ends.
pub async fn run(
    settings: &Settings,
    directory: &StateDirectory,
    status: &AgentStatus,
    metrics: &Metrics,
) -> Result<Infallible, AgentError> {
    let state = initial_state(settings, directory)?;
    let channels = Channels::default();
    let calls = Calls {
        links: channels.links.subscribe(),
    };
    let mut volumes = keep_volumes(
        settings,
        directory,
        channels.views.subscribe(),
        calls.clone(),
        channels.csi.clone(),
        status.session.subscribe(),
        metrics,
    )?;
    let mut etcd = match &settings.etcd {
        Some(etcd) => {
            let wiring = channels.wiring(settings.name.clone(), calls.clone(), status, metrics);
            Some(keep_etcd(etcd, directory, wiring)?)
        }
        None => None,
    };
    let servers = Servers::new(settings.servers.clone());
    let sessions = Sessions {
        servers: servers.clone(),
        identities: channels.identities.subscribe(),
        links: &channels.links,
        views: &channels.views,
        seen: &channels.seen,
        csi: channels.csi.subscribe(),
        member: channels.member.subscribe(),
        facts: AgentFacts {
            release: settings.release,
            keeps_etcd: settings.etcd.is_some(),
        },
        status,
        metrics,
    };
    let mut keeper = Keeper {
        directory,
        state,
        token_file: settings.token_file.as_deref(),
        renewed_at: settings.renewed_at,
        servers,
        calls,
        identities: &channels.identities,
        seen: &channels.seen,
        status,
        metrics,
        held: None,
        key_made: None,
    };
    keeper
        .resume()
        .map_err(|fault| unusable(directory.path(), &fault))?;
    info!(node = %settings.name, "agent {} starts", settings.release);
    let NodeRemoved = tokio::select! {
        removed = keeper.run() => removed,
        removed = sessions.run() => removed,
        // A ready node that mounts nothing would be worse than one that is down.
        () = volumes.ended() => return Err(AgentError::ThreadEnded(VOLUMES)),
        () = ended(&mut etcd) => return Err(AgentError::ThreadEnded(ETCD)),
    };
    // The last view has ended with the node: while etcd is waited for, nothing more is taken into use (INV-6).
    drop(volumes);
    status
        .session
        .send_replace(Some("the node was removed".to_owned()));
    metrics.agent_session.set(0);
    channels.removal.send_replace(true);
    end(etcd).await;
    Err(removed(directory)?)
}

/// Waits until the etcd of a node that was removed has ended.
async fn end(mut etcd: Option<Thread>) {
    if let Some(etcd) = &mut etcd
        && timeout(manager::END_LIMIT, etcd.ended()).await.is_err()
    {
        warn!("etcd is not known to have stopped");
    }
}

/// The names of the threads.
const VOLUMES: &str = "volumes";
const ETCD: &str = "etcd";

/// Why an agent ends whose node was removed.
fn removed(directory: &StateDirectory) -> Result<AgentError, AgentError> {
    let state = directory.load()?.unwrap_or_default();
    let volumes = volumes_of(directory);
    Ok(AgentError::Removed {
        name: state.name,
        uid: state.uid.unwrap_or_default(),
        mounted: volumes::mounted(&volumes).map_err(|error| error.to_string()),
        volumes,
    })
}

/// Waits until a thread has ended; for ever where there is none.
async fn ended(thread: &mut Option<Thread>) {
    match thread {
        Some(thread) => thread.ended().await,
        None => std::future::pending().await,
    }
}

/// Keeps the etcd of the node: on a thread of its own, since its disk may be slow or hang. What the thread starts may be bound to its
/// life.
fn keep_etcd(
    etcd: &manager::Settings,
    directory: &StateDirectory,
    wiring: manager::Wiring,
) -> Result<Thread, AgentError> {
    let data = directory.path().join(&etcd.data);
    if data.to_str().is_none() {
        return Err(AgentError::Unusable {
            path: data,
            reason: "the path must be text: it travels to etcd in a variable".to_owned(),
        });
    }
    let etcd = manager::Settings { data, ..etcd.clone() };
    let keep = move || manager::run(etcd, wiring);
    Thread::start(ETCD, keep).map_err(|error| AgentError::Thread(ETCD, error))
}

/// Where the volumes of the node are.
fn volumes_of(directory: &StateDirectory) -> PathBuf {
    directory.path().join("volumes")
}

/// Keeps the volumes on a thread of their own, until that is dropped. A disk that is slow or hangs holds them up, and neither heartbeats
/// nor the end of the process (INV-8).
fn keep_volumes(
    settings: &Settings,
    directory: &StateDirectory,
    views: ViewReceiver,
    calls: Calls,
    csi: watch::Sender<Option<Vec<CsiNode>>>,
    session: SessionReceiver,
    metrics: &Metrics,
) -> Result<Thread, AgentError> {
    let settings = volumes::Settings {
        directory: volumes_of(directory),
        plugins: settings.plugins.clone(),
        times: volumes::Times::default(),
    };
    let metrics = metrics.clone();
    let keep = move || volumes::run(settings, views, calls, csi, session, metrics);
    Thread::start(VOLUMES, keep).map_err(|error| AgentError::Thread(VOLUMES, error))
}

fn unusable(path: &Path, fault: &Fault) -> AgentError {
    AgentError::Unusable {
        path: path.to_owned(),
        reason: fault.to_string(),
    }
}

/// The state that an earlier process has left, or else that of a node that has yet to join.
fn initial_state(settings: &Settings, directory: &StateDirectory) -> Result<State, AgentError> {
    let stored = directory.load()?;
    if let Some(stored) = &stored
        && stored.name != settings.name.as_str()
    {
        return Err(AgentError::OtherName {
            path: directory.path().to_owned(),
            found: stored.name.clone(),
            wanted: settings.name.clone(),
        });
    }
    let state = stored.unwrap_or_else(|| State {
        name: settings.name.to_string(),
        ..State::default()
    });
    if state.certificate.is_none() && settings.token_file.is_none() {
        return Err(AgentError::NoToken(directory.path().to_owned()));
    }
    Ok(state)
}
