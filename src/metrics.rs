//! Every metric, in one place, so that its name and labels can be read and kept stable.
//!
//! Base units, bounded labels: no object name is ever a label.

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
    /// gRPC code by its name, `Ok` among them.
    pub code: &'static str,
}

/// Labels of `csi_operations_seconds`, named as the sidecars of CSI name theirs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CsiOperation {
    /// The plugin: only drivers with a Plugin object are called.
    pub driver_name: String,
    /// `/csi.v1.Controller/CreateVolume`, …
    pub method_name: &'static str,
    /// gRPC code by its name, `OK` among them.
    pub grpc_status_code: &'static str,
}

/// A single label `reason`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// From a fixed set of words.
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
    /// From a fixed set of words.
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

/// A single label `state`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct State {
    /// From a fixed set of words.
    pub state: &'static str,
}

type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;

/// Handles to every metric; cheap to clone, all clones count into the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    /// 1 while this replica leads, else 0.
    pub leader: Gauge,
    /// Terms begun by this replica.
    pub leader_transitions: Counter,
    /// Seconds until the lease's local deadline; 0 without a lease.
    pub lease_margin_seconds: Gauge<f64, AtomicU64>,
    /// Keep-alive rounds that went unanswered.
    pub keepalive_failures: Counter,
    /// Writes that etcd refused because the term was over.
    pub fenced_writes_refused: Counter,
    /// Duration of requests to etcd.
    pub etcd_request_seconds: Seconds<Request>,
    /// Watches opened again, by why.
    pub watch_restarts: Family<Reason, Counter>,
    /// Passes over the Kubernetes resources.
    pub reconcile_passes: Counter,
    /// Passes in which something failed.
    pub reconcile_errors: Counter,
    /// Duration of passes.
    pub reconcile_seconds: Histogram,
    /// Managed objects by the result of the last pass.
    pub resources: Family<Outcome, Gauge>,
    /// 1 while the gate waits for nodes, else 0.
    pub gate_blocked: Gauge,
    /// Duration of calls to CSI plugins.
    pub csi_operations_seconds: Seconds<CsiOperation>,
    /// Services and networks that are marked for deletion and still there; counted by the leader, else 0.
    pub deallocator_pending: Family<Kind, Gauge>,
    /// Seconds since the oldest of these marks; 0 without one.
    pub deallocator_oldest_pending_seconds: Gauge,
    /// Services and networks that were deleted.
    pub deallocator_deletions: Family<Kind, Counter>,
    /// Unfinished tasks of nodes that do not exist, turned into orphans.
    pub deallocator_orphaned: Counter,
    /// Transactions of the deallocator that etcd refused because something had changed.
    pub deallocator_refused: Counter,
    /// Changes of roles and of membership, by what became of them.
    pub role_transitions: Family<RoleChange, Counter>,
    /// Members of etcd; counted by the leader, else 0.
    pub members: Family<MemberKind, Gauge>,
    /// Members of etcd that belong to no node.
    pub members_unmanaged: Gauge,
    /// 1 while a change waits because it would cost etcd its quorum.
    pub quorum_blocked: Gauge,
    /// Removed nodes on record.
    pub removed_nodes: Gauge,
    /// Volumes by where they are in their lives; counted by the leader, else 0.
    pub volumes: Family<State, Gauge>,
    /// Volumes that wait for their plugin to have room for a step.
    pub volume_queue_depth: Gauge,
    /// Volumes whose failed steps were tried again.
    pub volume_retries: Counter,
}

impl Metrics {
    /// A fresh set, all at zero. `release` is this replica's.
    pub fn new(release: &str) -> Self {
        // 1 ms to 16 s: an etcd round trip on one machine to a pass over a large bundle.
        fn seconds() -> Histogram {
            Histogram::new(exponential_buckets(0.001, 2.0, 15))
        }
        let mut registry = Registry::with_prefix("quorate");
        let mut metrics = Self {
            registry: Arc::default(),
            leader: Gauge::default(),
            leader_transitions: Counter::default(),
            lease_margin_seconds: Gauge::default(),
            keepalive_failures: Counter::default(),
            fenced_writes_refused: Counter::default(),
            etcd_request_seconds: Family::new_with_constructor(seconds),
            watch_restarts: Family::default(),
            reconcile_passes: Counter::default(),
            reconcile_errors: Counter::default(),
            reconcile_seconds: seconds(),
            resources: Family::default(),
            gate_blocked: Gauge::default(),
            csi_operations_seconds: Family::new_with_constructor(seconds),
            deallocator_pending: Family::default(),
            deallocator_oldest_pending_seconds: Gauge::default(),
            deallocator_deletions: Family::default(),
            deallocator_orphaned: Counter::default(),
            deallocator_refused: Counter::default(),
            role_transitions: Family::default(),
            members: Family::default(),
            members_unmanaged: Gauge::default(),
            quorum_blocked: Gauge::default(),
            removed_nodes: Gauge::default(),
            volumes: Family::default(),
            volume_queue_depth: Gauge::default(),
            volume_retries: Counter::default(),
        };
        let m = &metrics;
        registry.register("leader", "1 while this replica leads", m.leader.clone());
        registry.register(
            "leader_transitions",
            "Terms begun by this replica",
            m.leader_transitions.clone(),
        );
        registry.register(
            "lease_margin_seconds",
            "Seconds until the election lease's local deadline, 0 without one",
            m.lease_margin_seconds.clone(),
        );
        registry.register(
            "keepalive_failures",
            "Lease keep-alive rounds that went unanswered",
            m.keepalive_failures.clone(),
        );
        registry.register(
            "fenced_writes_refused",
            "Writes that etcd refused because the term was over",
            m.fenced_writes_refused.clone(),
        );
        registry.register(
            "etcd_request_seconds",
            "Duration of requests to etcd by operation and gRPC code",
            m.etcd_request_seconds.clone(),
        );
        registry.register(
            "watch_restarts",
            "Watches opened again, by reason",
            m.watch_restarts.clone(),
        );
        registry.register(
            "reconcile_passes",
            "Passes over the Kubernetes resources",
            m.reconcile_passes.clone(),
        );
        registry.register(
            "reconcile_errors",
            "Passes in which something failed",
            m.reconcile_errors.clone(),
        );
        registry.register(
            "reconcile_seconds",
            "Duration of passes",
            m.reconcile_seconds.clone(),
        );
        registry.register(
            "resources",
            "Managed objects by the result of the last pass",
            m.resources.clone(),
        );
        registry.register(
            "gate_blocked",
            "1 while the gate waits for nodes",
            m.gate_blocked.clone(),
        );
        registry.register(
            "csi_operations_seconds",
            "Duration of calls to CSI plugins by driver, method and gRPC code",
            m.csi_operations_seconds.clone(),
        );
        registry.register(
            "deallocator_pending",
            "Objects that are marked for deletion and still there, by kind",
            m.deallocator_pending.clone(),
        );
        registry.register(
            "deallocator_oldest_pending_seconds",
            "Age of the oldest mark for deletion, 0 without one",
            m.deallocator_oldest_pending_seconds.clone(),
        );
        registry.register(
            "deallocator_deletions",
            "Objects deleted because nothing used them, by kind",
            m.deallocator_deletions.clone(),
        );
        registry.register(
            "deallocator_orphaned_tasks",
            "Unfinished tasks of nodes that do not exist, turned into orphans",
            m.deallocator_orphaned.clone(),
        );
        registry.register(
            "deallocator_refused_transactions",
            "Transactions refused because something had changed since they were decided on",
            m.deallocator_refused.clone(),
        );
        registry.register(
            "role_transitions",
            "Changes of roles and of etcd's membership, by what became of them",
            m.role_transitions.clone(),
        );
        registry.register("members", "Members of etcd by kind and health", m.members.clone());
        registry.register(
            "members_unmanaged",
            "Members of etcd that belong to no node",
            m.members_unmanaged.clone(),
        );
        registry.register(
            "quorum_blocked",
            "1 while a change of roles waits because it would cost etcd its quorum",
            m.quorum_blocked.clone(),
        );
        registry.register(
            "removed_nodes",
            "Removed nodes on record",
            m.removed_nodes.clone(),
        );
        registry.register(
            "volumes",
            "Volumes by where they are in their lives",
            m.volumes.clone(),
        );
        registry.register(
            "volume_queue_depth",
            "Volumes that wait for their plugin to have room for a step",
            m.volume_queue_depth.clone(),
        );
        registry.register(
            "volume_retries",
            "Volumes whose failed steps were tried again",
            m.volume_retries.clone(),
        );
        let info = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("release", release.to_owned()),
        ];
        registry.register(
            "build",
            "This build and the release that it runs",
            Info::new(info),
        );
        metrics.registry = Arc::new(registry);
        metrics
    }

    /// The exposition in OpenMetrics text format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail; should an encoder ever refuse, what it wrote so far is served.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// A sample in an exposition, by its full name with labels; `None` if it is not there.
pub fn sample(exposition: &str, name: &str) -> Option<f64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    exposition.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_its_published_name() {
        let metrics = Metrics::new("1.2.3");
        metrics
            .watch_restarts
            .get_or_create(&Reason { reason: "compacted" })
            .inc();
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
            "quorate_volumes{state=\"created\"} 4",
            "quorate_volume_queue_depth 0",
            "quorate_volume_retries_total 0",
            "quorate_leader 0",
            "quorate_leader_transitions_total 0",
            "quorate_lease_margin_seconds 0",
            "quorate_keepalive_failures_total 0",
            "quorate_fenced_writes_refused_total 0",
            "quorate_etcd_request_seconds_count{operation=\"txn\",code=\"OK\"} 1",
            "quorate_watch_restarts_total{reason=\"compacted\"} 1",
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
            "quorate_members_unmanaged 0",
            "quorate_quorum_blocked 0",
            "quorate_removed_nodes 0",
            "release=\"1.2.3\"",
        ] {
            assert!(text.contains(line), "missing {line:?} in:\n{text}");
        }
    }
}
