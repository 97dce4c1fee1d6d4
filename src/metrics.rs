//! Every metric in one place: its name, its labels and its handle.
//!
//! Units are base units. Labels come from fixed sets of words: no object name is ever a label.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Labels of `etcd_request_seconds`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Request {
    /// `range`, `txn`, `lease_grant`, …
    pub operation: &'static str,
    /// The name of a gRPC code ([`crate::grpc_code::name`]), `OK` among them.
    pub code: &'static str,
}

/// Labels of `csi_operations_seconds`, named as the sidecars of CSI name theirs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CsiOperation {
    /// The name of the driver: of those with a Plugin object, since no other is called.
    pub driver_name: String,
    /// `/csi.v1.Controller/CreateVolume`, …
    pub method_name: &'static str,
    /// The name of a gRPC code ([`crate::grpc_code::name`]), `OK` among them.
    pub grpc_status_code: &'static str,
}

/// Labels of `control_calls`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ControlCall {
    /// `Join`, `CertificateStatus`, `Renew`, …
    pub method: &'static str,
    /// The name of a gRPC code ([`crate::grpc_code::name`]), `OK` among them.
    pub code: &'static str,
}

/// A single label `driver_name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Driver {
    /// The name of a Plugin.
    pub driver_name: String,
}

impl Driver {
    fn of(driver: &str) -> Self {
        Self {
            driver_name: driver.to_owned(),
        }
    }
}

/// A single label `reason`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// Of a watch `canceled`, `closed`, `compacted`, `error`, `other_history`, `silent`, `too_large`; of a session `aged`,
    /// `certificate`, `closed`, `gone`, `lapsed`, `pending`, `refused`, `removed`, `role`, `stale`, `stopped`, `superseded`, `unreadable`
    pub reason: &'static str,
}

/// A single label `result`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Outcome {
    /// From a fixed set of words.
    pub result: &'static str,
}

/// A single label `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Kind {
    /// `service`, `network`
    pub kind: &'static str,
}

/// Labels of `role_transitions`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RoleChange {
    /// `worker`, `manager`, `none`, `learner`, `voter`
    pub from: &'static str,
    /// The same words.
    pub to: &'static str,
    /// `done`, `refused`, `failed`, `blocked`
    pub result: &'static str,
}

/// Labels of `members`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct MemberKind {
    /// `voter`, `learner`
    pub kind: &'static str,
    /// `healthy`, `unhealthy`
    pub health: &'static str,
}

/// A single label `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AlarmKind {
    /// `NOSPACE`, `CORRUPT`
    pub kind: &'static str,
}

/// A single label `state`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct State {
    /// Of a volume `creating`, `created`, `deleting`, `malformed`; of a certificate `pending`, `issued`, `failed`, `rotate`,
    /// `malformed`; of a volume on a node `publishing`, `published`, `unpublishing`, `blocked`, `foreign`, `stray`
    pub state: &'static str,
}

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
    /// Certificates issued to nodes.
    node_certificates_issued: Counter,
    /// Seconds until the certificate of this agent's node ends; 0 without one.
    agent_certificate_seconds: Gauge<f64, AtomicU64>,
    /// Certificates that this agent has received.
    agent_certificates_received: Counter,
    /// 1 while this agent has a session, which keeps its node ready, else 0.
    agent_session: Gauge,
    /// Sessions that this agent has opened.
    agent_sessions_opened: Counter,
    /// Calls of the control API answered by this replica, by method and gRPC code.
    control_calls: Family<ControlCall, Counter>,
    /// TLS handshakes at the control port, by result.
    control_handshakes: Family<Outcome, Counter>,
    /// Nodes that have joined through this replica, or were taken over by an agent.
    nodes_joined: Counter,
    /// Sessions of agents that this replica serves.
    sessions: Gauge,
    /// Sessions of agents that have ended, by reason.
    sessions_ended: Family<Reason, Counter>,
    /// Heartbeats of agents that were taken.
    session_heartbeats: Counter,
    /// Volumes by state; counted by the leader, else 0.
    volumes: Family<State, Gauge>,
    /// Volumes that wait for their plugin to have room for a step.
    volume_queue_depth: Gauge,
    /// Volumes whose failed steps were tried again.
    volume_retries: Counter,
    /// Volumes on this node by state, with the mounts that have no publication; counted by an agent.
    agent_volumes: Family<State, Gauge>,
}

impl Metrics {
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

/// The series that exist from the start, so that a scraper sees their first event as an increase.
fn start_series(metrics: &Metrics) {
    for reason in [
        "canceled",
        "closed",
        "compacted",
        "error",
        "other_history",
        "silent",
        "too_large",
    ] {
        drop(metrics.watch_restarts.get_or_create(&Reason { reason }));
    }
    for reason in [
        "aged",
        "certificate",
        "closed",
        "gone",
        "lapsed",
        "pending",
        "refused",
        "removed",
        "role",
        "stale",
        "stopped",
        "superseded",
        "unreadable",
    ] {
        drop(metrics.sessions_ended.get_or_create(&Reason { reason }));
    }
    for kind in ["service", "network"] {
        drop(metrics.deallocator_pending.get_or_create(&Kind { kind }));
        drop(metrics.deallocator_deletions.get_or_create(&Kind { kind }));
    }
    for (from, to) in [
        ("worker", "manager"),
        ("manager", "worker"),
        ("none", "learner"),
        ("learner", "voter"),
        ("learner", "none"),
        ("voter", "none"),
    ] {
        for result in ["done", "refused", "failed", "blocked"] {
            let change = RoleChange { from, to, result };
            drop(metrics.role_transitions.get_or_create(&change));
        }
    }
    for state in ["pending", "issued", "failed", "rotate", "malformed"] {
        drop(metrics.node_certificates.get_or_create(&State { state }));
    }
    for result in ["done", "failed", "timed_out", "made_way", "not_ready"] {
        drop(metrics.control_handshakes.get_or_create(&Outcome { result }));
    }
    for kind in ["NOSPACE", "CORRUPT"] {
        drop(metrics.etcd_alarms.get_or_create(&AlarmKind { kind }));
    }
    for kind in ["voter", "learner"] {
        for health in ["healthy", "unhealthy"] {
            drop(metrics.members.get_or_create(&MemberKind { kind, health }));
        }
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
        start_series(&metrics);
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
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_published_name() {
        let metrics = Metrics::new("1.2.3");
        let compacted = Reason { reason: "compacted" };
        metrics.watch_restarts.get_or_create(&compacted).inc();
        metrics
            .resources
            .get_or_create(&Outcome { result: "applied" })
            .set(3);
        metrics
            .etcd_request_seconds
            .get_or_create(&Request {
                operation: "txn",
                code: "OK",
            })
            .observe(0.002);
        let call = CsiOperation {
            driver_name: "hostpath.csi.k8s.io".to_owned(),
            method_name: "/csi.v1.Controller/CreateVolume",
            grpc_status_code: "OK",
        };
        metrics.csi_operations_seconds.get_or_create(&call).observe(0.01);
        let network = || Kind { kind: "network" };
        metrics.deallocator_pending.get_or_create(&network()).set(2);
        metrics.deallocator_deletions.get_or_create(&network()).inc();
        let promoted = RoleChange {
            from: "worker",
            to: "manager",
            result: "done",
        };
        metrics.role_transitions.get_or_create(&promoted).inc();
        let voters = MemberKind {
            kind: "voter",
            health: "healthy",
        };
        metrics.members.get_or_create(&voters).set(3);
        let created = State { state: "created" };
        metrics.volumes.get_or_create(&created).set(4);
        let text = metrics.encode();
        for line in [
            "quorate_node_certificates{state=\"pending\"} 0",
            "quorate_node_certificates_issued_total 0",
            "quorate_volumes{state=\"created\"} 4",
            "quorate_volume_queue_depth 0",
            "quorate_volume_retries_total 0",
            "quorate_leader 0",
            "quorate_election_yields 0",
            "quorate_etcd_refuses 0",
            "quorate_etcd_quorum_lost 0",
            "quorate_leader_transitions_total 0",
            "quorate_lease_margin_seconds 0",
            "quorate_keepalive_failures_total 0",
            "quorate_fenced_writes_refused_total 0",
            "quorate_etcd_request_seconds_count{operation=\"txn\",code=\"OK\"} 1",
            "quorate_watch_restarts_total{reason=\"compacted\"} 1",
            "quorate_watch_restarts_total{reason=\"silent\"} 0",
            "quorate_reconcile_passes_total 0",
            "quorate_reconcile_errors_total 0",
            "quorate_reconcile_seconds_count 0",
            "quorate_resources{result=\"applied\"} 3",
            "quorate_gate_blocked 0",
            "quorate_csi_operations_seconds_count{driver_name=\"hostpath.csi.k8s.io\",\
             method_name=\"/csi.v1.Controller/CreateVolume\",grpc_status_code=\"OK\"} 1",
            "quorate_deallocator_pending{kind=\"network\"} 2",
            "quorate_deallocator_oldest_pending_seconds 0",
            "quorate_deallocator_deletions_total{kind=\"network\"} 1",
            "quorate_deallocator_orphaned_tasks_total 0",
            "quorate_deallocator_refused_transactions_total 0",
            "quorate_role_transitions_total{from=\"worker\",to=\"manager\",result=\"done\"} 1",
            "quorate_members{kind=\"voter\",health=\"healthy\"} 3",
            "quorate_etcd_alarms{kind=\"NOSPACE\"} 0",
            "quorate_members_unmanaged 0",
            "quorate_quorum_blocked 0",
            "quorate_roles_paused 0",
            "quorate_removed_nodes 0",
            "release=\"1.2.3\"",
        ] {
            assert!(text.contains(line), "missing {line:?} in:\n{text}");
        }
    }

    #[test]
    fn every_metric_of_the_control_api_has_its_published_name() {
        let metrics = Metrics::new("1.2.3");
        let join = ControlCall {
            method: "Join",
            code: "OK",
        };
        metrics.control_calls.get_or_create(&join).inc();
        let text = metrics.encode();
        for line in [
            "quorate_control_calls_total{method=\"Join\",code=\"OK\"} 1",
            "quorate_control_handshakes_total{result=\"done\"} 0",
            "quorate_nodes_joined_total 0",
            "quorate_sessions 0",
            "quorate_sessions_ended_total{reason=\"superseded\"} 0",
            "quorate_session_heartbeats_total 0",
        ] {
            assert!(text.contains(line), "missing {line:?} in:\n{text}");
        }
    }
}
