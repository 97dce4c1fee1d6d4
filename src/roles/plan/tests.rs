use std::time::Duration;

use super::*;
use crate::etcd::MemberId;
use crate::etcd::members::Listener;
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::proto::{Join, JoinRequest, Role};
use crate::roles::blocked::Subject;
use crate::roles::membership::tests::fixtures::{manager, surveyed, voter};
use crate::roles::membership::{Member, PendingJoin, Reachability};
use crate::roles::owner::Owner;
use crate::roles::reason::Reason;

mod alarms;
mod cases;
mod every_cluster;
mod grounds;
mod guards;
mod joins;
mod later_requests;
mod liveness;
mod model;
mod readdress;

/// A join of node `n9` that has not begun.
fn new_join() -> PendingJoin {
    PendingJoin {
        node: "n9".to_owned(),
        join: Join {
            request: Some(JoinRequest {
                id: "r1".to_owned(),
                node_uid: "u9".to_owned(),
                peer_urls: vec!["http://10.0.0.9:2380".to_owned()],
                ..JoinRequest::default()
            }),
            ..Join::default()
        },
        roles: Some(manager()),
        removed: false,
        reachability: Reachability::Reached(Listener::Absent),
        age: Duration::ZERO,
    }
}

/// A join of this node at the peer URL of [`new_join`]; the add was decided just now.
fn adding(node: &str) -> PendingJoin {
    let mut pending = new_join();
    pending.node = node.to_owned();
    pending.join.progress = Progress::Adding.into();
    pending.join.answers = "r1".to_owned();
    pending.join.node_uid = "u9".to_owned();
    pending.join.peer_urls = vec!["http://10.0.0.9:2380".to_owned()];
    pending
}

fn next(membership: &Membership) -> Plan {
    plan(membership, &Limits::default())
}

/// The step after the intent of the first join has been seen for so long.
fn step_at(second: u64, membership: &Membership) -> Option<Step> {
    let mut membership = membership.clone();
    membership.joins[0].age = Duration::from_secs(second);
    step(&membership)
}

fn step(membership: &Membership) -> Option<Step> {
    next(membership).step
}

fn reasons(membership: &Membership) -> Vec<Reason> {
    let plan = next(membership);
    assert_eq!(plan.step, None);
    plan.blocked.into_iter().map(|blocked| blocked.reason).collect()
}

/// What a note says, and why.
fn noted(step: Option<Step>) -> Option<(Progress, Option<Reason>)> {
    match step {
        Some(Step::Note { progress, why, .. }) => Some((progress, why.map(|(reason, _)| reason))),
        _ => None,
    }
}
