//! The control API: what agents call at each replica, by gRPC over TLS.
//!
//! A call passes through the acceptor, which has proven whose key the other side holds, to the service. There a
//! `Caller` is made of what the connection has shown and what the record of the node says (INV-13). What a call
//! writes compares what it was decided from: replicas answer beside each other, and none of them leads for that.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tracing::{error, info};

use crate::causes;
use crate::proto::node_spec::{Availability, Membership};
use crate::proto::{Metadata, Node, NodeSpec, NodeStatus, Role, SessionRequest};
use crate::roles::summary::NodesSummary;
use crate::secrets::Reader;
use crate::store::{Name, Store};
use crate::summary::Latest;
use crate::term::LeaderNotices;
use acceptor::{Acceptor, Client};
use caller::Caller;
use proof::Proof;
use rate::{Rate, RateByUid};
pub use session::{LEASE as SESSION_LEASE, index as session_index};
use session::{SessionStream, Sessions};
pub use status::ControlStatus;
use trust::KnownTrust;
use wakes::Wakes;

mod acceptor;
mod caller;
mod certificates;
mod confirm;
mod connections;
pub mod deadline;
mod etcd_certificate;
mod join;
mod member;
mod not_proven;
mod peer;
mod proof;
mod rate;
mod refusal;
mod report;
mod server;
mod service;
mod session;
mod status;
mod tls;
mod trust;
mod wakes;
mod write;

/// How long calls under way may take to end after a stop. A replica has 3 s to exit.
const DRAIN: Duration = Duration::from_secs(1);

/// The most that one node may write in this time: reports, and requests for certificates and to join etcd. A node needs a few at its
/// start; a promotion and a demotion take eight, and may come twice in quick succession. Each write below `/nodes/` delays a
/// restriction of the status, and each request costs the leader a signature.
const MOST_WRITES: (u32, Duration) = (20, Duration::from_secs(100));

/// How the control API is served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of this replica, which sessions say.
    pub replica: Name,
    /// The directory of the authorities.
    pub ca_dir: PathBuf,
    /// Whether an operator has to accept each node that joins.
    pub approve_joins: bool,
    /// A node is down this long after its last heartbeat.
    pub session_lease: Duration,
}

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for the control API: {reason}")]
pub struct ListenError {
    /// The requested address.
    pub address: SocketAddr,
    /// The system's answer.
    pub reason: std::io::Error,
}

/// The control port of this replica, before anything is served there.
#[derive(Debug)]
pub struct ControlPort {
    listener: TcpListener,
    settings: Settings,
    status: ControlStatus,
}

impl ControlPort {
    /// Listens on an address (port 0: a free port). Connections wait until the port is served.
    ///
    /// # Errors
    /// If the address is in use, not of this machine, or not allowed.
    pub fn bind(address: SocketAddr, settings: Settings) -> Result<Self, ListenError> {
        let refused = |reason| ListenError { address, reason };
        let listener = TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        info!("control API on https://{address}");
        Ok(Self {
            listener,
            settings,
            status: ControlStatus::default(),
        })
    }

    /// What the port shows of itself, also while it is served.
    pub fn status(&self) -> ControlStatus {
        self.status.clone()
    }

    /// Serves the API until stopped. Returns earlier only if it fails. `secrets` reads those of volumes; `nodes` gets the nodes, for
    /// people.
    pub async fn serve(
        self,
        store: Store,
        secrets: Reader,
        notices: LeaderNotices,
        nodes: Latest<NodesSummary>,
        stop: CancellationToken,
    ) {
        let listener = match tokio::net::TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => return error!("the control port cannot be served: {error}"),
        };
        let (publish, trust) = watch::channel(None);
        let status = self.status;
        let metrics = store.etcd.metrics().clone();
        let (replica, lease) = (self.settings.replica.clone(), self.settings.session_lease);
        let site = Arc::new(Site {
            sessions: Arc::new(Sessions::new(
                store.clone(),
                secrets,
                replica,
                lease,
                stop.clone(),
            )),
            store,
            settings: self.settings,
            trust: trust.clone(),
            wakes: Wakes::default(),
            joins: Semaphore::new(join::MOST_IN_FLIGHT),
            waits: Semaphore::new(certificates::MOST_WAITING),
            new_nodes: Mutex::new(Rate::new(join::MOST_NEW, Duration::from_secs(1))),
            writes: Mutex::new(RateByUid::new(MOST_WRITES.0, MOST_WRITES.1)),
            refusals: Mutex::new(Rate::new(1, join::REFUSALS_EVERY)),
            notices,
            node_ids: tokio::sync::Mutex::new(()),
            stop: stop.clone(),
        });
        let connections = Acceptor::new(listener, trust, metrics).connections();
        let following = async {
            tokio::join!(
                trust::keep(&site.store, &site.settings, &publish, &status),
                site.wakes.follow(&site.store),
                site.sessions.follow(&nodes),
            );
        };
        // Nothing is written after the stop (INV-10), while calls end.
        let draining = async {
            tokio::select! {
                () = following => {}
                () = stop.cancelled() => tokio::time::sleep(DRAIN).await,
            }
        };
        tokio::select! {
            served = server::serve(&site, connections) => {
                if let Err(error) = served {
                    error!("the control API failed: {}", causes::chain(&error));
                }
            }
            () = draining => {}
        }
    }
}

/// What the calls of a replica share.
struct Site {
    store: Store,
    settings: Settings,
    trust: KnownTrust,
    wakes: Wakes,
    sessions: Arc<Sessions>,
    /// Joins in flight.
    joins: Semaphore,
    /// Calls that wait for a certificate or a member.
    waits: Semaphore,
    new_nodes: Mutex<Rate>,
    /// Reports and requests for certificates that were written, by node.
    writes: Mutex<RateByUid>,
    /// Refused joins that were reported to operators.
    refusals: Mutex<Rate>,
    notices: LeaderNotices,
    /// Held by the report that claims a CSI node id.
    node_ids: tokio::sync::Mutex<()>,
    stop: CancellationToken,
}

impl Site {
    /// Judges the caller of a connection (INV-13).
    async fn caller(&self, client: Option<Client>) -> Result<Caller, Status> {
        let mut proof = Proof::new(client, self.trust.clone());
        Caller::authenticate(&self.store, &mut proof).await
    }

    /// Judges the caller of a session (INV-13), and opens that.
    async fn open_session(
        &self,
        client: Option<Client>,
        heartbeats: Streaming<SessionRequest>,
    ) -> Result<SessionStream, Status> {
        let mut proof = Proof::new(client, self.trust.clone());
        let caller = Caller::authenticate(&self.store, &mut proof).await?;
        Ok(self.sessions.open(caller, proof, heartbeats))
    }

    /// Whether one more node may join in this second. It counts as joined.
    fn may_add_node(&self, now: Instant) -> bool {
        let mut rate = self.new_nodes.lock().unwrap_or_else(PoisonError::into_inner);
        rate.take(now)
    }

    /// Whether another refused join is reported to operators.
    fn may_report_refusal(&self, now: Instant) -> bool {
        let mut rate = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        rate.take(now)
    }

    /// Counts a write for this node.
    ///
    /// # Errors
    /// The answer to the call, if the node has written too often.
    fn count_write(&self, uid: &str) -> Result<(), Status> {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        match writes.take(uid, Instant::now()) {
            true => Ok(()),
            false => Err(refusal::exhausted(
                "the node reports or requests too often; try again in a minute",
            )),
        }
    }

    /// A node that joins. It becomes a manager by promotion alone, even if it is a desired manager.
    fn new_node(&self, metadata: Metadata, desired: Role) -> Node {
        let membership = match self.settings.approve_joins {
            true => Membership::Pending,
            false => Membership::Unspecified,
        };
        Node {
            metadata: Some(metadata),
            spec: Some(NodeSpec {
                desired_role: desired.into(),
                availability: Availability::Active.into(),
                membership: membership.into(),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                role: Role::Worker.into(),
                ..NodeStatus::default()
            }),
        }
    }
}
