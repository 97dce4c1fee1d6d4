//! The agent of a node: it joins with a token, keeps the certificate of the node and its session, reports, and mounts the volumes
//! that are published to the node.
//!
//! A server says what concerns the node, and nothing else is a reason to undo anything: silence, a refused call or an unknown node
//! leave everything as it is. A removal ends the agent, which leaves its state and its mounts behind.

mod calls;
mod certificate;
pub mod confirm;
mod plan;
mod servers;
mod session;
mod state;
mod status;
mod trust;
pub mod volumes;

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::info;

use crate::csi::Endpoint;
use crate::metrics::Metrics;
use crate::proto::{CsiNode, NodeView};
use crate::release::Release;
use crate::store::Name;

use calls::{Calls, NodeRemoved};
use certificate::{Fault, Keeper};
use plan::Shown;
use servers::{Identity, Link, Servers};
use session::Sessions;
use state::State;

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
    #[error("cannot start the thread for volumes: {0}")]
    Thread(io::Error),
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
    let identities = watch::Sender::new(None::<Arc<Identity>>);
    let links = watch::Sender::new(None::<Link>);
    let views = watch::Sender::new(None::<Arc<NodeView>>);
    let shown = watch::Sender::new(None::<Shown>);
    let csi = watch::Sender::new(None::<Vec<CsiNode>>);
    let calls = Calls {
        links: links.subscribe(),
    };
    let _volumes = keep_volumes(
        settings,
        directory,
        views.subscribe(),
        calls.clone(),
        csi.clone(),
        status.session.subscribe(),
        metrics,
    )?;
    let servers = Servers::new(settings.servers.clone());
    let sessions = Sessions {
        servers: servers.clone(),
        identities: identities.subscribe(),
        links: &links,
        views: &views,
        shown: &shown,
        csi: csi.subscribe(),
        release: settings.release,
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
        identities: &identities,
        shown: &shown,
        status,
        metrics,
        held: None,
    };
    keeper
        .resume()
        .map_err(|fault| unusable(directory.path(), &fault))?;
    info!(node = %settings.name, "agent {} starts", settings.release);
    let NodeRemoved = tokio::select! {
        removed = keeper.run() => removed,
        removed = sessions.run() => removed,
    };
    let state = directory.load()?.unwrap_or_default();
    Err(AgentError::Removed {
        name: state.name,
        uid: state.uid.unwrap_or_default(),
    })
}

/// Keeps the volumes on a thread and a runtime of their own, until the guard is dropped: a mount whose server is gone blocks what looks
/// at it, for ever, and must hold up neither heartbeats nor the end of the process (INV-8).
fn keep_volumes(
    settings: &Settings,
    directory: &StateDirectory,
    views: ViewReceiver,
    calls: Calls,
    csi: watch::Sender<Option<Vec<CsiNode>>>,
    session: watch::Receiver<Option<String>>,
    metrics: &Metrics,
) -> Result<DropGuard, AgentError> {
    let settings = volumes::Settings {
        directory: directory.path().join("volumes"),
        plugins: settings.plugins.clone(),
        times: volumes::Times::default(),
    };
    let (metrics, stop) = (metrics.clone(), CancellationToken::new());
    let stopped = stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AgentError::Thread)?;
    let keep = move || {
        runtime.block_on(async {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = volumes::run(settings, views, calls, csi, session, metrics) => {}
            }
        });
    };
    let thread = std::thread::Builder::new().name("volumes".to_owned());
    thread.spawn(keep).map_err(AgentError::Thread)?;
    Ok(stop.drop_guard())
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
