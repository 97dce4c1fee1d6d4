//! The series that exist from the start, so that a scraper sees their first event as an increase.

use super::Metrics;
use super::labels::{AlarmKind, Days, Kind, MemberKind, Outcome, Reason, RoleChange, State};

/// Creates them, at 0.
pub(super) fn start(metrics: &Metrics) {
    of_nodes(metrics);
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
    for kind in ["volume", "publication"] {
        drop(
            metrics
                .volumes_blocked_oldest_seconds
                .get_or_create(&Kind { kind }),
        );
    }
    for reason in ["NotPublished", "NotRecorded"] {
        drop(metrics.volumes_drifted.get_or_create(&Reason { reason }));
    }
    for state in ["encrypted", "plain", "kubernetes", "unreadable"] {
        drop(metrics.secrets.get_or_create(&State { state }));
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

/// Certificates, joins and sessions.
fn of_nodes(metrics: &Metrics) {
    for reason in [
        "aged",
        "authority",
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
    for state in ["pending", "issued", "failed", "rotate", "malformed"] {
        drop(metrics.node_certificates.get_or_create(&State { state }));
        drop(metrics.etcd_certificates.get_or_create(&State { state }));
    }
    for days in ["0", "1", "7", "30"] {
        drop(metrics.node_certificates_ending.get_or_create(&Days { days }));
        drop(metrics.etcd_certificates_ending.get_or_create(&Days { days }));
    }
    for result in [
        "created",
        "failed",
        "known",
        "limited",
        "name_in_use",
        "refused",
        "taken_over",
    ] {
        drop(metrics.node_joins.get_or_create(&Outcome { result }));
    }
    for result in ["done", "failed", "timed_out", "made_way", "not_ready"] {
        drop(metrics.control_handshakes.get_or_create(&Outcome { result }));
    }
}
