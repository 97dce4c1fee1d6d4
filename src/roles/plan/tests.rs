use super::*;
use crate::etcd::MemberId;
use crate::etcd::Revision;
use crate::proto::Join;
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::proto::{JoinRequest, Role};
use crate::roles::blocked::Subject;
use crate::roles::membership::{Listing, Member, PendingJoin, Reachability, Record};
use crate::roles::owner::{NodeRoles, Owner};
use crate::roles::reason::Reason;

mod cases;
mod every_cluster;
mod guards;

/// A healthy voter of a desired manager.
fn voter(id: u64) -> Member {
    Member {
        id: MemberId(id),
        listed: Some(Listing {
            learner: false,
            started: true,
            peer_urls: vec![format!("http://10.0.0.{id}:2380")],
            healthy: true,
            applied: 100 + id,
        }),
        record: Some(Record {
            node: format!("n{id}"),
            uid: format!("u{id}"),
            owner: Owner::Node(manager()),
            joined_at: Some(Timestamp::UNIX_EPOCH),
            removal: None,
            promotion: false,
        }),
    }
}

/// The roles of a manager that stays one.
fn manager() -> NodeRoles {
    NodeRoles {
        desired: Role::Manager,
        observed: Role::Manager,
        revision: Revision(1),
    }
}

impl Member {
    fn with_listing(mut self, change: impl FnOnce(&mut Listing)) -> Self {
        change(self.listed.as_mut().unwrap());
        self
    }

    fn with_record(mut self, change: impl FnOnce(&mut Record)) -> Self {
        change(self.record.as_mut().unwrap());
        self
    }

    fn owned_by(self, owner: Owner) -> Self {
        self.with_record(|record| record.owner = owner)
    }

    fn down(self) -> Self {
        self.with_listing(|listing| listing.healthy = false)
    }

    fn learner(self) -> Self {
        self.with_listing(|listing| listing.learner = true)
    }

    /// Never started, so down as well.
    fn unstarted(self) -> Self {
        self.down().with_listing(|listing| listing.started = false)
    }

    fn applied(self, index: u64) -> Self {
        self.with_listing(|listing| listing.applied = index)
    }

    fn at(self, peer_url: &str) -> Self {
        self.with_listing(|listing| listing.peer_urls = vec![peer_url.to_owned()])
    }

    fn unlisted(mut self) -> Self {
        self.listed = None;
        self
    }

    fn unmanaged(mut self) -> Self {
        self.record = None;
        self
    }

    fn desiring(self, desired: Role) -> Self {
        self.owned_by(Owner::Node(NodeRoles { desired, ..manager() }))
    }

    fn demoted(self) -> Self {
        self.desiring(Role::Worker)
    }

    fn nodeless(self) -> Self {
        self.owned_by(Owner::Gone)
    }

    fn undated(self) -> Self {
        self.with_record(|record| record.joined_at = None)
    }

    /// Its removal is decided.
    fn leaving(self, cause: Cause) -> Self {
        self.with_record(|record| record.removal = Some(cause))
    }

    /// Its promotion is decided.
    fn rising(self) -> Self {
        self.with_record(|record| record.promotion = true)
    }
}

/// All members have answered, and the first leads.
fn surveyed(members: Vec<Member>) -> Membership {
    Membership {
        complete: true,
        raft_leader: members.first().map(|member| member.id),
        members,
        ..Membership::default()
    }
}

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
        reachability: Reachability::Reached { listening: false },
    }
}

/// A join of this node at the peer URL of [`new_join`]; the add was decided at second 0.
fn adding(node: &str) -> PendingJoin {
    let mut pending = new_join();
    pending.node = node.to_owned();
    pending.join.progress = Progress::Adding.into();
    pending.join.answers = "r1".to_owned();
    pending.join.peer_urls = vec!["http://10.0.0.9:2380".to_owned()];
    pending.join.changed_at = Some(prost_types::Timestamp::default());
    pending
}

fn next(membership: &Membership) -> Plan {
    plan(membership, Timestamp::UNIX_EPOCH, &Limits::default())
}

fn step(membership: &Membership) -> Option<Step> {
    next(membership).step
}

fn reasons(membership: &Membership) -> Vec<Reason> {
    let plan = next(membership);
    assert_eq!(plan.step, None);
    plan.blocked.into_iter().map(|blocked| blocked.reason).collect()
}
