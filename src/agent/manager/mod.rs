//! The manager's part of an agent: the etcd of a node that was promoted.
//!
//! `plan` chooses the next step, purely: from what is noted beside the data directory (`record`), what is in that (`data`), whether
//! etcd runs (`etcd`), the files of TLS (`files`) and what the session shows. The `keeper` takes the step. Each step is noted or can
//! be seen on disk, so that the agent may be killed at any moment.
//!
//! The agent starts etcd and stops it, and a leader does the rest: it adds the member, promotes and removes it. Nothing is deleted: data
//! of a member that is out of the cluster is set aside.

mod calls;
mod certificate;
mod child;
mod data;
mod environment;
mod etcd;
mod files;
mod health;
mod keeper;
pub mod log_header;
mod plan;
mod record;
mod shown;
mod unit;
mod urls;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;

use super::ViewReceiver;
use super::calls::Calls;
use super::freshness::SessionReceiver;
use super::servers::Identity;
use super::status::Hindrance;
use crate::metrics::Metrics;
use crate::proto::MemberReport;
use crate::retry::Delays;
use crate::store::Name;
use keeper::{Keeper, Left};

pub use child::Program;
pub use environment::{Variables, added};
pub use urls::listened;

/// The port for etcd's health and metrics unless another one is given: the one after its usual ports for clients and peers.
const METRICS_PORT: u16 = 2381;

/// The limit of what the agent waits for after its node was removed: longer than the wait for the eviction of its member and any way to
/// stop etcd take.
pub const END_LIMIT: Duration = Duration::from_secs(240);

/// The etcd of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the other members reach it; at least one.
    pub peer_urls: Vec<String>,
    /// Where clients reach it; at least one.
    pub client_urls: Vec<String>,
    /// Where it listens for the other members; addresses.
    pub listen_peer_urls: Vec<String>,
    /// Where it listens for clients; addresses.
    pub listen_client_urls: Vec<String>,
    /// Where it serves its health and metrics, in clear text.
    pub metrics: SocketAddr,
    /// Its data directory: absolute, or below the state directory. What the agent notes and the files of TLS are beside it.
    pub data: PathBuf,
    /// How it is started.
    pub launch: Launch,
    /// Settings that an operator adds.
    pub more: Variables,
    /// The waits of the agent.
    pub times: Times,
}

/// How etcd is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// As a process that the agent starts.
    Child(Program),
    /// As the unit of this name of systemd.
    Unit(String),
}

/// The waits of the agent.
#[derive(Clone, Debug)]
pub struct Times {
    /// Between two looks at etcd and its files.
    pub look_every: Duration,
    /// The same until etcd is healthy.
    pub until_healthy: Duration,
    /// How long the agent of a node that was removed waits until the leader has taken its member out of the cluster, which ends etcd.
    pub evicted_within: Duration,
}

impl Default for Settings {
    /// An etcd without URLs as yet.
    fn default() -> Self {
        Self {
            peer_urls: Vec::new(),
            client_urls: Vec::new(),
            listen_peer_urls: Vec::new(),
            listen_client_urls: Vec::new(),
            metrics: SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS_PORT)),
            data: PathBuf::from("etcd"),
            launch: Launch::Child(Program {
                path: PathBuf::from("etcd"),
                ends_with_agent: false,
            }),
            more: Variables::new(),
            times: Times {
                look_every: Duration::from_secs(5),
                until_healthy: Duration::from_millis(500),
                evicted_within: Duration::from_secs(60),
            },
        }
    }
}

/// What connects the etcd of a node with the rest of its agent.
pub(super) struct Wiring {
    /// The name of the node.
    pub node: Name,
    /// Calls over the connection of the session.
    pub calls: Calls,
    /// The certificate of the node.
    pub identities: watch::Receiver<Option<Arc<Identity>>>,
    /// What concerns the node.
    pub views: ViewReceiver,
    /// Whether there is a session.
    pub session: SessionReceiver,
    /// What to report of the data of the member.
    pub report: watch::Sender<Option<MemberReport>>,
    /// Why etcd does not serve.
    pub hindrance: Hindrance,
    /// Whether the node was removed.
    pub removal: watch::Receiver<bool>,
    /// The metrics of the agent.
    pub metrics: Metrics,
}

/// Keeps the etcd of the node until the node was removed: then this waits a while until etcd has ended, and returns. Dropping it stops
/// nothing.
pub(super) async fn run(settings: Settings, wiring: Wiring) {
    let mut removal = wiring.removal.clone();
    let mut delays = Delays::new(Duration::from_secs(1), Duration::from_secs(60));
    let left = loop {
        match Left::read(&settings) {
            Ok(left) => break left,
            Err(error) => {
                warn!("what is noted of etcd cannot be used: {error}; trying again");
                wiring.hindrance.send_replace(Some(error.to_string()));
            }
        }
        tokio::select! {
            () = removed(&mut removal) => return,
            () = delays.wait() => {}
        }
    };
    let mut keeper = Keeper::new(settings, wiring, left);
    tokio::select! {
        biased;
        () = removed(&mut removal) => {}
        () = keeper.run() => {}
    }
    keeper.end().await;
}

/// Waits until the node was removed. That the agent ends otherwise is no removal.
async fn removed(removal: &mut watch::Receiver<bool>) {
    if removal.wait_for(|removed| *removed).await.is_err() {
        std::future::pending::<()>().await;
    }
}
