//! Every metric in one place: its name, its labels and its handle.
//!
//! Units are base units. Labels come from fixed sets of words: no object name is ever a label.

mod labels;
mod series;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub use labels::{
    AlarmKind, Blocked, ControlCall, CsiOperation, Days, Driver, Kind, MemberKind, Outcome, Reason, Request,
    RoleChange, State,
};

type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;

/// 1 ms to 16 s: an etcd round trip on one machine to a pass over a large bundle.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

/// Declares each metric once: its help (the doc comment), its published name and its handle. A handle starts at 0, where
/// no other start is given.
macro_rules! metrics {
    ($(#[doc = $help:literal] $name:ident: $handle:ty $(= $start:expr)?,)*) => {
        /// Handles to every metric; cheap to clone, all clones count into the same.
        #[derive(Clone, Debug)]
        pub struct Metrics {
            registry: Arc<Registry>,
            $(#[doc = $help] pub $name: $handle,)*
        }

        impl Metrics {
            fn register(mut registry: Registry) -> Self {
                $(
                    let $name: $handle = metrics!(@start $($start)?);
                    // The registry ends every help with a full stop.
                    let help = $help.trim().trim_end_matches('.');
                    registry.register(stringify!($name), help, $name.clone());
                )*
                Self { registry: Arc::new(registry), $($name,)* }
            }
        }
    };
    (@start) => { Default::default() };
    (@start $start:expr) => { $start };
}

metrics! {
    /// 1 while this replica leads, else 0.
    leader: Gauge,
    /// 1 while this replica or agent is ready, as its /readyz says, else 0.
    ready: Gauge,
    /// 1 while a candidate with a newer release keeps this replica from standing for election, else 0.
    election_yields: Gauge,
    /// 1 while etcd refuses the writes of this replica for missing rights, so that it does not stand for election, else 0.
    etcd_refuses: Gauge,
    /// Terms begun by this replica.
    leader_transitions: Counter,
    /// Seconds until the local deadline of the election's lease; 0 without a lease.
    lease_margin_seconds: Gauge<f64, AtomicU64>,
    /// Lease keep-alive rounds that went unanswered.
    keepalive_failures: Counter,
    /// Writes that etcd refused because the term was over.
    fenced_writes_refused: Counter,
    /// Duration of requests to etcd by operation and gRPC code.
    etcd_request_seconds: Seconds<Request> = Family::new_with_constructor(seconds),
    /// Endpoints of etcd that are refused, since they belong to another cluster.
    etcd_endpoints_refused: Gauge,
    /// 1 while no endpoint of etcd has served this replica a linearizable read for longer than an election takes, else 0.
    etcd_quorum_lost: Gauge,
    /// Watches opened again, by reason.
    watch_restarts: Family<Reason, Counter>,
    /// Passes over the Kubernetes resources.
    reconcile_passes: Counter,
    /// Passes over the Kubernetes resources in which something failed.
    reconcile_errors: Counter,
    /// Duration of passes over the Kubernetes resources.
    reconcile_seconds: Histogram = seconds(),
    /// Managed objects by the result of the last pass.
    resources: Family<Outcome, Gauge>,
    /// 1 while the gate waits for nodes, else 0.
    gate_blocked: Gauge,
    /// Duration of calls to CSI plugins by driver, method and gRPC code.
    csi_operations_seconds: Seconds<CsiOperation> = Family::new_with_constructor(seconds),
    /// 1 while there is a connection to the CSI plugin, else 0; on the leader alone.
    csi_plugin_ready: Family<Driver, Gauge>,
    /// Volumes that wait for a connection to their CSI plugin or for their turn there.
    csi_plugin_waiting_volumes: Family<Driver, Gauge>,
    /// Operations in flight on the volumes of a CSI plugin.
    csi_plugin_operations: Family<Driver, Gauge>,
    /// Services and networks that are marked for deletion and still exist; counted by the leader, else 0.
    deallocator_pending: Family<Kind, Gauge>,
    /// Seconds since the oldest mark for deletion of a service or network; 0 without one.
    deallocator_oldest_pending_seconds: Gauge,
    /// Services and networks deleted because nothing used them.
    deallocator_deletions: Family<Kind, Counter>,
    /// Unfinished tasks of nodes that do not exist, turned into orphans.
    deallocator_orphaned_tasks: Counter,
    /// Transactions of the deallocator that etcd refused because something had changed since they were decided on.
    deallocator_refused_transactions: Counter,
    /// Changes of roles and of etcd's membership, by result.
    role_transitions: Family<RoleChange, Counter>,
    /// Members of etcd by kind and health; counted by the leader, else 0.
    members: Family<MemberKind, Gauge>,
    /// Alarms that etcd has raised, by kind; counted by the leader, else 0.
    etcd_alarms: Family<AlarmKind, Gauge>,
    /// Bytes of the largest database that a voter of etcd has; counted by the leader, else 0.
    etcd_database_bytes: Gauge,
    /// Members of etcd that belong to no node.
    members_unmanaged: Gauge,
    /// 1 while a change of roles waits because it would cost etcd its quorum, else 0.
    quorum_blocked: Gauge,
    /// 1 while an operator has paused roles, else 0.
    roles_paused: Gauge,
    /// Records of removed nodes.
    removed_nodes: Gauge,
    /// Certificates of nodes by state; counted by the leader, else 0.
    node_certificates: Family<State, Gauge>,
    /// Certificates of nodes that end within this number of days (0: that have ended); counted by the leader, else 0.
    node_certificates_ending: Family<Days, Gauge>,
    /// Seconds until the node authority ends, negative after its end; counted by a leader that has one, else 0.
    node_authority_seconds: Gauge,
    /// Certificates issued to nodes.
    node_certificates_issued: Counter,
    /// Certificates of nodes' members of etcd by state; counted by the leader, else 0.
    etcd_certificates: Family<State, Gauge>,
    /// Certificates of nodes' members of etcd that end within this number of days (0: that have ended); counted by the leader, else 0.
    etcd_certificates_ending: Family<Days, Gauge>,
    /// Certificates issued to nodes' members of etcd.
    etcd_certificates_issued: Counter,
    /// Certificates in the list of revoked ones that etcd reads; counted by the leader, else 0.
    etcd_certificates_revoked: Gauge,
    /// Phase of the rotation of the authorities: 1 trust, 2 reissue, 3 drop; 0 without one. Shown by the leader, else 0.
    authority_rotation_phase: Gauge,
    /// What holds the phase of the rotation of the authorities up: replicas, nodes, members; counted by the leader, else 0.
    authority_rotation_held_up: Gauge,
    /// Seconds until the certificate of this agent's node ends; 0 without one.
    agent_certificate_seconds: Gauge<f64, AtomicU64>,
    /// Certificates that this agent has received.
    agent_certificates_received: Counter,
    /// 1 while this agent has a session, which keeps its node ready, else 0.
    agent_session: Gauge,
    /// Sessions that this agent has opened.
    agent_sessions_opened: Counter,
    /// 1 while the etcd of this agent's node runs, else 0.
    agent_etcd_running: Gauge,
    /// 1 while the etcd of this agent's node says that it is healthy, else 0.
    agent_etcd_healthy: Gauge,
    /// 1 while the etcd of this agent's node does not start because the data of its member is lost, else 0.
    agent_etcd_data_lost: Gauge,
    /// Times that this agent has started etcd.
    agent_etcd_starts: Counter,
    /// Seconds until the etcd certificate of this agent's node ends; 0 without one.
    agent_etcd_certificate_seconds: Gauge<f64, AtomicU64>,
    /// Calls of the control API answered by this replica, by method and gRPC code.
    control_calls: Family<ControlCall, Counter>,
    /// TLS handshakes at the control port, by result.
    control_handshakes: Family<Outcome, Counter>,
    /// Calls to join as a node, by result: the node was created, taken over or had joined before, or why it did not join.
    node_joins: Family<Outcome, Counter>,
    /// Sessions of agents that this replica serves.
    sessions: Gauge,
    /// Sessions of agents that have ended, by reason.
    sessions_ended: Family<Reason, Counter>,
    /// Heartbeats of agents that were taken.
    session_heartbeats: Counter,
    /// Volumes by state; counted by the leader, else 0.
    volumes: Family<State, Gauge>,
    /// Volumes and publications that have the condition Blocked, by its reason; a reason that none has has no series.
    volumes_blocked: Family<Blocked, Gauge>,
    /// Seconds since the volume or publication that has had the condition Blocked for the longest has had it; 0 without one.
    volumes_blocked_oldest_seconds: Family<Kind, Gauge>,
    /// Volumes that their plugin has published otherwise than the records say, by reason; counted by the leader, else 0.
    volumes_drifted: Family<Reason, Gauge>,
    /// Volumes that wait for their plugin to have room for a step.
    volume_queue_depth: Gauge,
    /// Volumes whose failed steps were tried again.
    volume_retries: Counter,
    /// Secrets by state; counted by the leader, else 0.
    secrets: Family<State, Gauge>,
    /// Volumes on this node by state, with the mounts that have no publication; counted by an agent.
    agent_volumes: Family<State, Gauge>,
    /// Spans of traces that were dropped, since the collector took none for too long, or rejected them.
    trace_spans_dropped: Counter,
}

/// The metrics of one kind of certificates.
#[derive(Clone, Copy, Debug)]
pub struct CertificateMetrics<'m> {
    /// How many records have each state.
    pub states: &'m Family<State, Gauge>,
    /// How many certificates end within so many days.
    pub ending: &'m Family<Days, Gauge>,
    /// How many were issued.
    pub issued: &'m Counter,
}

impl Metrics {
    /// Those of the certificates of nodes.
    pub fn of_node_certificates(&self) -> CertificateMetrics<'_> {
        CertificateMetrics {
            states: &self.node_certificates,
            ending: &self.node_certificates_ending,
            issued: &self.node_certificates_issued,
        }
    }

    /// Those of the certificates of nodes' members of etcd.
    pub fn of_etcd_certificates(&self) -> CertificateMetrics<'_> {
        CertificateMetrics {
            states: &self.etcd_certificates,
            ending: &self.etcd_certificates_ending,
            issued: &self.etcd_certificates_issued,
        }
    }

    /// What the leader knows of a CSI plugin.
    pub fn set_csi_plugin(&self, driver: &str, is_ready: bool, waiting: usize, operations: usize) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let now = [i64::from(is_ready), count(waiting), count(operations)];
        for (family, now) in self.of_csi_plugins().into_iter().zip(now) {
            family.get_or_create(&Driver::of(driver)).set(now);
        }
    }

    /// A plugin is gone.
    pub fn forget_csi_plugin(&self, driver: &str) {
        for family in self.of_csi_plugins() {
            family.remove(&Driver::of(driver));
        }
    }

    /// This replica leads no more.
    pub fn forget_csi_plugins(&self) {
        for family in self.of_csi_plugins() {
            family.clear();
        }
    }

    fn of_csi_plugins(&self) -> [&Family<Driver, Gauge>; 3] {
        [
            &self.csi_plugin_ready,
            &self.csi_plugin_waiting_volumes,
            &self.csi_plugin_operations,
        ]
    }
}

impl Metrics {
    /// A fresh set, all at 0. `release` is that of this replica's bundle.
    pub fn new(release: &str) -> Self {
        let mut registry = Registry::with_prefix("quorate");
        let build = Info::new(vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("release", release.to_owned()),
        ]);
        registry.register("build", "This build and the release of its bundle", build);
        let metrics = Self::register(registry);
        series::start(&metrics);
        metrics
    }

    /// All metrics in OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail. If an encoder refused all the same, the metrics before it are served.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests;
