//! Each alert in a real Prometheus, raised by the series that its fault makes. The series are the program's own: made by its
//! handles, and published as it publishes them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use quorate::metrics::{
    AlarmKind, CsiOperation, Days, Kind, MemberKind, Metrics, Outcome, Reason, Request as EtcdRequest,
    RoleChange, State as Word,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::prometheus::{Alert, Prometheus, Target};
use super::rules::rules;
use crate::support::wait::{SOON, eventually};

/// How often a fault goes on, so that a counter grows between any two scrapes.
const EVERY: Duration = Duration::from_millis(100);

/// Two replicas, or two agents, with nothing wrong; in a namespace of their own, so that each fault has an installation to itself.
struct Site {
    a: Metrics,
    b: Metrics,
    is_b_down: bool,
}

impl Site {
    fn sound() -> Self {
        let (a, b) = (Metrics::new("1.0.0"), Metrics::new("1.0.0"));
        a.leader.set(1);
        a.sessions.set(5);
        a.members.get_or_create(&voters("healthy")).set(3);
        for metrics in [&a, &b] {
            metrics.ready.set(1);
            metrics.agent_session.set(1);
            // 60 days.
            metrics.agent_certificate_seconds.set(5_184_000.0);
        }
        Self {
            a,
            b,
            is_b_down: false,
        }
    }

    fn page(&self, instance: &str) -> Option<String> {
        match instance {
            "a" => Some(self.a.encode()),
            "b" if !self.is_b_down => Some(self.b.encode()),
            _ => None,
        }
    }
}

fn voters(health: &'static str) -> MemberKind {
    MemberKind {
        kind: "voter",
        health,
    }
}

fn transactions(metrics: &Metrics, code: &'static str, seconds: f64) {
    let operation = "txn";
    let family = &metrics.etcd_request_seconds;
    family
        .get_or_create(&EtcdRequest { operation, code })
        .observe(seconds);
}

fn calls(metrics: &Metrics, grpc_status_code: &'static str) {
    let call = CsiOperation {
        driver_name: "demo.csi".to_owned(),
        method_name: "/csi.v1.Controller/CreateVolume",
        grpc_status_code,
    };
    metrics.csi_operations_seconds.get_or_create(&call).observe(0.1);
}

fn resources(metrics: &Metrics, result: &'static str) {
    metrics.resources.get_or_create(&Outcome { result }).set(2);
}

fn certificates(metrics: &Metrics, state: &'static str) {
    metrics.node_certificates.get_or_create(&Word { state }).set(2);
}

fn ending(metrics: &Metrics, days: &'static str) {
    metrics
        .node_certificates_ending
        .get_or_create(&Days { days })
        .set(2);
}

fn sessions_ended(metrics: &Metrics, reason: &'static str) {
    metrics.sessions_ended.get_or_create(&Reason { reason }).inc();
}

/// Makes the fault of an alert, or goes on with it.
fn fault(alert: &str, site: &mut Site) {
    let Site { a, b, is_b_down } = site;
    match alert {
        "QuorateReplicaDown" | "QuorateAgentDown" => *is_b_down = true,
        "QuorateNoLeader" => _ = a.leader.set(0),
        "QuorateTwoLeaders" => _ = b.leader.set(1),
        "QuorateLeaderChangesOften" => _ = a.leader_transitions.inc(),
        "QuorateReplicaNotReady" => _ = b.ready.set(0),
        "QuorateReplicaRefused" => _ = b.etcd_refuses.set(1),
        "QuorateKeepalivesFail" => _ = a.keepalive_failures.inc_by(2),
        "QuorateUpgradeUnfinished" => {
            *b = Metrics::new("2.0.0");
            b.ready.set(1);
        }
        _ => fault_of_etcd(alert, site),
    }
}

fn fault_of_etcd(alert: &str, site: &mut Site) {
    let Site { a, b, .. } = site;
    match alert {
        "QuorateEtcdQuorumLost" => {
            a.etcd_quorum_lost.set(1);
            b.etcd_quorum_lost.set(1);
        }
        "QuorateReplicaCutOff" => _ = b.etcd_quorum_lost.set(1),
        "QuorateEtcdRequestsFail" => {
            transactions(a, "OK", 0.01);
            transactions(a, "Unavailable", 0.01);
        }
        "QuorateEtcdSlow" => transactions(a, "OK", 1.0),
        "QuorateEtcdAlarm" => _ = a.etcd_alarms.get_or_create(&AlarmKind { kind: "CORRUPT" }).set(1),
        "QuorateEtcdDatabaseLarge" => _ = a.etcd_database_bytes.set(2_000_000_000),
        "QuorateMemberUnhealthy" => {
            a.members.get_or_create(&voters("healthy")).set(4);
            a.members.get_or_create(&voters("unhealthy")).set(1);
        }
        "QuorateQuorumAtRisk" => {
            a.members.get_or_create(&voters("healthy")).set(2);
            a.members.get_or_create(&voters("unhealthy")).set(1);
        }
        "QuorateMembersUnmanaged" => _ = a.members_unmanaged.set(1),
        "QuorateEndpointRefused" => _ = b.etcd_endpoints_refused.set(1),
        "QuorateRoleChangeBlocked" => _ = a.quorum_blocked.set(1),
        "QuorateRoleChangesFail" => {
            let change = RoleChange {
                from: "learner",
                to: "voter",
                result: "failed",
            };
            a.role_transitions.get_or_create(&change).inc();
        }
        "QuorateLearnerStuck" => {
            let learner = MemberKind {
                kind: "learner",
                health: "unhealthy",
            };
            a.members.get_or_create(&learner).set(1);
        }
        "QuorateRolesPaused" => _ = a.roles_paused.set(1),
        _ => fault_of_work(alert, a),
    }
}

fn fault_of_work(alert: &str, a: &Metrics) {
    match alert {
        "QuorateGateBlocked" => _ = a.gate_blocked.set(1),
        "QuorateResourcesFailed" => resources(a, "failed"),
        "QuorateResourcesContested" => resources(a, "fighting"),
        "QuoratePruneHeld" => resources(a, "held"),
        "QuorateResourceDeletionPending" => resources(a, "deleting"),
        "QuorateReconcileFails" => {
            a.reconcile_passes.inc();
            a.reconcile_errors.inc();
        }
        // One pass, and no other after it.
        "QuorateReconcileStalled" if a.reconcile_passes.get() == 0 => _ = a.reconcile_passes.inc(),
        "QuorateReconcileStalled" => {}
        "QuorateDeallocationPending" => _ = a.deallocator_oldest_pending_seconds.set(10_000),
        "QuoratePluginNotReady" => a.set_csi_plugin("demo.csi", false, 3, 0),
        "QuoratePluginCallsFail" => {
            calls(a, "OK");
            calls(a, "Internal");
            calls(a, "Unavailable");
        }
        "QuorateVolumesBlocked" => {
            let oldest = &a.volumes_blocked_oldest_seconds;
            oldest.get_or_create(&Kind { kind: "publication" }).set(10_000);
        }
        "QuorateVolumesDrifted" => {
            let reason = "NotRecorded";
            a.volumes_drifted.get_or_create(&Reason { reason }).set(1);
        }
        "QuorateVolumeRecordsMalformed" => {
            let state = "malformed";
            a.volumes.get_or_create(&Word { state }).set(1);
        }
        "QuorateSecretsUnreadable" => {
            let state = "unreadable";
            a.secrets.get_or_create(&Word { state }).set(1);
        }
        _ => fault_of_nodes(alert, a),
    }
}

fn fault_of_nodes(alert: &str, a: &Metrics) {
    match alert {
        "QuorateCertificatesEndSoon" => ending(a, "7"),
        "QuorateCertificatesEnded" => {
            ending(a, "0");
            ending(a, "7");
        }
        "QuorateCertificatesPending" => certificates(a, "pending"),
        "QuorateCertificatesRefused" => certificates(a, "failed"),
        "QuorateCertificateRecordsMalformed" => certificates(a, "malformed"),
        "QuorateAuthorityEndsSoon" => _ = a.node_authority_seconds.set(60),
        "QuorateRotationHeldUp" => _ = a.authority_rotation_held_up.set(2),
        "QuorateJoinsRefused" => _ = a.node_joins.get_or_create(&Outcome { result: "refused" }).inc(),
        "QuorateSessionsLost" => sessions_ended(a, "stale"),
        "QuorateSessionsDropped" => _ = a.sessions.set(1),
        "QuorateDuplicateAgent" => sessions_ended(a, "superseded"),
        "QuorateControlPortNotReady" => {
            let result = "not_ready";
            a.control_handshakes.get_or_create(&Outcome { result }).inc();
        }
        "QuorateEtcdCertificatesEndSoon" => {
            let days = "1";
            a.etcd_certificates_ending.get_or_create(&Days { days }).set(2);
        }
        "QuorateAgentWithoutSession" => _ = a.agent_session.set(0),
        "QuorateAgentCertificateEndsSoon" => _ = a.agent_certificate_seconds.set(60.0),
        "QuorateAgentVolumesBlocked" => {
            let state = "stray";
            a.agent_volumes.get_or_create(&Word { state }).set(1);
        }
        "QuorateAgentEtcdDataLost" => _ = a.agent_etcd_data_lost.set(1),
        "QuorateAgentEtcdUnhealthy" => _ = a.agent_etcd_running.set(1),
        "QuorateAgentEtcdRestarts" => _ = a.agent_etcd_starts.inc(),
        other => panic!("no fault is known that raises {other}"),
    }
}

/// Alerts that the fault of another one rightly raises, too.
const CONSEQUENCES: [(&str, &str); 1] = [("QuorateQuorumAtRisk", "QuorateMemberUnhealthy")];

/// Raised where a busy machine answers several scrapes too late; those of the leader hide that it leads.
const OF_A_BUSY_MACHINE: [&str; 3] = ["QuorateReplicaDown", "QuorateAgentDown", "QuorateNoLeader"];

/// The alert of every installation at once.
const ABSENT: &str = "QuorateAbsent";

/// What is published: an installation for each alert, by its name.
struct Installations {
    sites: BTreeMap<String, Mutex<Site>>,
    /// Whether the faults go on.
    are_faulty: AtomicBool,
    /// Whether every page fails.
    is_silent: AtomicBool,
}

impl Installations {
    fn new() -> Self {
        let alerts = rules().into_iter().map(|rule| rule.alert);
        let alerts = alerts.filter(|alert| alert != ABSENT);
        Self {
            sites: alerts.map(|alert| (alert, Mutex::new(Site::sound()))).collect(),
            are_faulty: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
        }
    }

    fn page(&self, path: &str) -> Option<String> {
        let (alert, instance) = path.strip_prefix('/')?.split_once('/')?;
        let site = self.sites.get(alert)?.lock().unwrap();
        site.page(instance)
            .filter(|_| !self.is_silent.load(Ordering::SeqCst))
    }

    /// Goes on with the faults, while there are any. Never ends.
    async fn go_on(self: Arc<Self>) {
        let mut every = tokio::time::interval(EVERY);
        loop {
            every.tick().await;
            for (alert, site) in &self.sites {
                let mut site = site.lock().unwrap();
                // With the lock held: no fault comes after it was mended.
                if self.are_faulty.load(Ordering::SeqCst) {
                    fault(alert, &mut site);
                }
            }
        }
    }

    fn mend(&self) {
        self.are_faulty.store(false, Ordering::SeqCst);
        for site in self.sites.values() {
            *site.lock().unwrap() = Site::sound();
        }
    }

    fn targets(&self, port: u16) -> Vec<Target> {
        let of_site = |alert: &String| {
            ["a", "b"].map(|instance| Target {
                job: job_of(alert),
                port,
                path: format!("/{alert}/{instance}"),
                namespace: alert.clone(),
                instance: instance.to_owned(),
            })
        };
        self.sites.keys().flat_map(of_site).collect()
    }
}

/// Of agents alone are the alerts that say so, and not the one that replicas raise for agents.
fn job_of(alert: &str) -> &'static str {
    match alert.starts_with("QuorateAgent") {
        true => "quorate-agent",
        false => "quorate",
    }
}

async fn serve(State(published): State<Arc<Installations>>, request: Request) -> Response {
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match published.page(request.uri().path()) {
        Some(page) => ([(header::CONTENT_TYPE, content_type)], page).into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

/// Waits until each alert has fired in its installation, and returns all that fired, with their installations.
async fn until_each_fires(
    published: &Installations,
    prometheus: &Prometheus,
) -> BTreeMap<(String, String), Alert> {
    let mut fired = BTreeMap::new();
    eventually(3 * SOON, "each alert fires", async || {
        for alert in prometheus.firing().await {
            let place = alert.labels.get("namespace").cloned().unwrap_or_default();
            fired.insert((place, alert.name().to_owned()), alert);
        }
        let is_missing = |alert: &&String| !fired.contains_key(&((*alert).clone(), (*alert).clone()));
        let missing: Vec<&String> = published.sites.keys().filter(is_missing).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(format!("{missing:?} have not")),
        }
    })
    .await;
    fired
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_alert_fires_by_its_fault_alone_and_clears_after_it() {
    let published = Arc::new(Installations::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = Router::new().fallback(serve).with_state(published.clone());
    let mut work = JoinSet::new();
    work.spawn(async move { axum::serve(listener, router).await.unwrap() });
    work.spawn(published.clone().go_on());
    let prometheus = Prometheus::of(&published.targets(port)).await;

    published.are_faulty.store(true, Ordering::SeqCst);
    let fired = until_each_fires(&published, &prometheus).await;
    let expected = |place: &str, name: &str| {
        place == name || CONSEQUENCES.contains(&(place, name)) || OF_A_BUSY_MACHINE.contains(&name)
    };
    let others: BTreeSet<_> = fired
        .keys()
        .filter(|(place, name)| !expected(place, name))
        .collect();
    assert!(others.is_empty(), "fired beside the fault: {others:?}");
    for alert in fired.values() {
        for (annotation, said) in &alert.annotations {
            // What Go writes where a template has no value, or fails.
            let is_whole = !["<no value>", "<error", "%!"]
                .iter()
                .any(|fault| said.contains(fault));
            assert!(is_whole, "{}: {annotation}: {said}", alert.name());
        }
    }

    published.mend();
    prometheus.clears().await;

    published.is_silent.store(true, Ordering::SeqCst);
    prometheus.fires(&[ABSENT]).await;
    published.is_silent.store(false, Ordering::SeqCst);
    prometheus.clears().await;
}
