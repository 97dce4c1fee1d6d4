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
        "quorate_volumes{state=\"created\"} 4",
        "quorate_volume_queue_depth 0",
        "quorate_volume_retries_total 0",
        "quorate_leader 0",
        "quorate_ready 0",
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
        "quorate_etcd_database_bytes 0",
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
fn every_metric_of_certificates_has_its_published_name() {
    let text = Metrics::new("1.2.3").encode();
    for line in [
        "quorate_node_certificates{state=\"pending\"} 0",
        "quorate_node_certificates_ending{days=\"7\"} 0",
        "quorate_node_authority_seconds 0",
        "quorate_node_certificates_issued_total 0",
        "quorate_etcd_certificates{state=\"pending\"} 0",
        "quorate_etcd_certificates_ending{days=\"7\"} 0",
        "quorate_etcd_certificates_issued_total 0",
        "quorate_etcd_certificates_revoked 0",
        "quorate_authority_rotation_phase 0",
        "quorate_authority_rotation_held_up 0",
    ] {
        assert!(text.contains(line), "missing {line:?} in:\n{text}");
    }
}

#[test]
fn every_metric_of_what_is_wrong_with_volumes_has_its_published_name() {
    let metrics = Metrics::new("1.2.3");
    let blocked = Blocked {
        kind: "volume",
        reason: "Internal".to_owned(),
    };
    metrics.volumes_blocked.get_or_create(&blocked).set(2);
    let text = metrics.encode();
    for line in [
        "quorate_volumes_blocked{kind=\"volume\",reason=\"Internal\"} 2",
        "quorate_volumes_blocked_oldest_seconds{kind=\"publication\"} 0",
        "quorate_volumes_drifted{reason=\"NotRecorded\"} 0",
        "quorate_secrets{state=\"unreadable\"} 0",
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
        "quorate_node_joins_total{result=\"created\"} 0",
        "quorate_sessions 0",
        "quorate_sessions_ended_total{reason=\"superseded\"} 0",
        "quorate_session_heartbeats_total 0",
    ] {
        assert!(text.contains(line), "missing {line:?} in:\n{text}");
    }
}
