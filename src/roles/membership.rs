//! The members of etcd with their records, nodes and health, and the joins under way: what a decision about membership is
//! made from. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::blocked::Subject;
use super::index::{Index, StoredRecord};
use super::owner::{NodeRoles, Owner};
use super::quorum::Vote;
use super::reason::Reason;
use crate::etcd::members::{ListedMember, Status};
use crate::etcd::{MemberId, Revision};
use crate::proto::removal::Cause;
use crate::proto::{Join, Removal, Role};
use crate::store::object::member::is_ended;

/// What is known when a decision is made.
#[derive(Clone, Debug, Default)]
pub struct Membership {
    /// Members that are listed, recorded, or both, in the order of their ids.
    pub members: Vec<Member>,
    /// Joins that have not ended: those that have begun first, then the others in the order of their requests.
    pub joins: Vec<PendingJoin>,
    /// Whether every member has answered or had its time to answer.
    pub complete: bool,
    /// The raft leader, if a majority of the voters that stay agrees on it.
    pub raft_leader: Option<MemberId>,
    /// Steps that failed a short while ago, and why. They are not tried again yet.
    pub resting: BTreeMap<Subject, (Reason, String)>,
}

/// A member that is listed, recorded, or both.
#[derive(Clone, Debug)]
pub struct Member {
    /// etcd's id of the member.
    pub id: MemberId,
    /// The member in etcd's list; `None` if the list does not have it.
    pub listed: Option<Listing>,
    /// The record below `/members/`; `None` if there is none, or if it cannot be read.
    pub record: Option<Record>,
}

/// A member in etcd's list.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Learners do not vote.
    pub learner: bool,
    /// Whether the member has started at least once: only then it has a name and client URLs.
    pub started: bool,
    /// The URLs at which the other members reach it.
    pub peer_urls: Vec<String>,
    /// Whether it has proved that it is healthy. A member that has not answered counts as unhealthy.
    pub healthy: bool,
    /// The index of the last log entry that it has applied; 0 if it gave no status.
    pub applied: u64,
}

/// A member's record.
#[derive(Clone, Debug)]
pub struct Record {
    /// The name of the member's node.
    pub node: String,
    /// The uid of the member's node.
    pub uid: String,
    /// The node that the record belongs to.
    pub owner: Owner,
    /// When the member joined.
    pub joined_at: Option<Timestamp>,
    /// Why the member is removed, if that is decided.
    pub removal: Option<Cause>,
    /// Whether the promotion to a voter is decided.
    pub promotion: bool,
}

/// A join that has not ended.
#[derive(Clone, Debug)]
pub struct PendingJoin {
    /// The name of the node.
    pub node: String,
    /// The join as stored.
    pub join: Join,
    /// The roles of the node with this name and the uid of the request, if it exists.
    pub roles: Option<NodeRoles>,
    /// Whether that uid is recorded as removed.
    pub removed: bool,
    /// Whether the peer URLs of the request can be reached.
    pub reachability: Reachability,
}

/// Whether the peer URLs of a request can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// Not tested yet, or the test is under way.
    Pending,
    /// Each host answered or refused the connection: an etcd that joins does not listen before it is added.
    Reached {
        /// Whether a listener accepted the connection at each URL.
        listening: bool,
    },
    /// A host did not answer in time, or its name is unknown; the reason in words.
    Unreachable(String),
}

/// What one member answered in time.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Whether the member proved that it is healthy.
    pub healthy: bool,
    /// What the member says of itself.
    pub status: Option<Status>,
}

impl Member {
    /// The member as a quorum counts it; `None` if it is not listed.
    pub fn vote(&self) -> Option<Vote> {
        self.listed.as_ref().map(|listing| Vote {
            id: self.id,
            learner: listing.learner,
            healthy: listing.healthy,
        })
    }

    /// Whether its node is a desired manager.
    pub fn is_wanted(&self) -> bool {
        let owner = self.record.as_ref().map(|record| record.owner);
        matches!(owner, Some(Owner::Node(roles)) if roles.desired == Role::Manager)
    }

    /// Why the member must go: the recorded cause if its removal is decided, else what its node says. `None` if it stays.
    pub fn cause(&self) -> Option<Cause> {
        let record = self.record.as_ref()?;
        record.removal.or(match record.owner {
            Owner::Gone => Some(Cause::NodeGone),
            Owner::Node(roles) if roles.desired == Role::Worker => Some(Cause::Demoted),
            Owner::Node(_) | Owner::Unknown => None,
        })
    }

    /// Whether the list has it as a learner.
    pub fn is_learner(&self) -> bool {
        self.listed.as_ref().is_some_and(|listing| listing.learner)
    }

    /// Whether the list has it as a voter.
    pub fn is_voter(&self) -> bool {
        self.listed.as_ref().is_some_and(|listing| !listing.learner)
    }

    /// The name of its node; empty if it has no record.
    pub fn node(&self) -> &str {
        self.record.as_ref().map_or("", |record| &record.node)
    }
}

impl Membership {
    /// The member with this id.
    pub fn member(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The listed member that a record ties to this node.
    pub fn member_of_node(&self, node: &str, uid: &str) -> Option<&Member> {
        self.members.iter().find(|member| {
            let own = |record: &Record| record.node == node && record.uid == uid;
            member.listed.is_some() && member.record.as_ref().is_some_and(own)
        })
    }
}

/// Builds the membership from what is known so far. A member without an answer has not answered yet or, where `complete`
/// is set, not in time.
pub fn membership(
    index: &Index,
    list: &[ListedMember],
    answers: &BTreeMap<MemberId, Answer>,
    complete: bool,
) -> Membership {
    let ids: BTreeSet<MemberId> = list
        .iter()
        .map(|member| member.id)
        .chain(index.records().map(|(id, ..)| id))
        .collect();
    let members: Vec<Member> = ids
        .into_iter()
        .map(|id| Member {
            id,
            listed: list
                .iter()
                .find(|member| member.id == id)
                .map(|member| listing(member, answers.get(&id))),
            record: index.record(id).map(|(stored, _)| record(index, stored)),
        })
        .collect();
    let raft_leader = raft_leader(&members, answers);
    let mut joins: Vec<(Revision, PendingJoin)> = index
        .joins()
        .filter(|(_, join, _)| !is_ended(join))
        .map(|(node, join, revision)| (revision, pending_join(index, node, join)))
        .collect();
    // Until a join has begun, only requests are written to it, so its revision is the order of the requests.
    joins.sort_by_key(|(revision, pending)| (pending.join.progress == 0, *revision));
    Membership {
        complete,
        members,
        joins: joins.into_iter().map(|(_, pending)| pending).collect(),
        raft_leader,
        resting: BTreeMap::new(),
    }
}

fn listing(member: &ListedMember, answer: Option<&Answer>) -> Listing {
    let status = answer.and_then(|answer| answer.status.as_ref());
    Listing {
        learner: member.learner,
        started: member.is_started() && !member.client_urls.is_empty(),
        peer_urls: member.peer_urls.clone(),
        healthy: answer.is_some_and(|answer| answer.healthy),
        applied: status.map_or(0, |status| status.applied),
    }
}

fn record(index: &Index, stored: &StoredRecord) -> Record {
    let StoredRecord {
        member, joined_at, ..
    } = stored;
    Record {
        node: member.node.clone(),
        uid: member.node_uid.clone(),
        owner: index.owner(member),
        joined_at: *joined_at,
        removal: member.removal.as_ref().map(Removal::cause),
        promotion: member.promotion.is_some(),
    }
}

fn pending_join(index: &Index, node: &str, join: &Join) -> PendingJoin {
    let request = join.request.as_ref();
    let uid = request.map_or("", |request| request.node_uid.as_str());
    PendingJoin {
        node: node.to_owned(),
        join: join.clone(),
        roles: index.roles_of(node, uid),
        removed: index.is_removed(uid),
        reachability: Reachability::Pending,
    }
}

/// The raft leader in the view of a majority of the voters that stay, as far as they have answered.
fn raft_leader(members: &[Member], answers: &BTreeMap<MemberId, Answer>) -> Option<MemberId> {
    let stays = |member: &&Member| {
        let leaving = member
            .record
            .as_ref()
            .is_some_and(|record| record.removal.is_some());
        member.is_voter() && !leaving
    };
    let mut votes: BTreeMap<MemberId, usize> = BTreeMap::new();
    let mut voters = 0;
    for member in members.iter().filter(stays) {
        voters += 1;
        let status = answers.get(&member.id).and_then(|answer| answer.status.as_ref());
        if let Some(leader) = status.and_then(|status| status.raft_leader) {
            *votes.entry(leader).or_default() += 1;
        }
    }
    let majority = voters / 2 + 1;
    votes
        .into_iter()
        .find(|(_, votes)| *votes >= majority)
        .map(|(id, _)| id)
}

#[cfg(test)]
mod tests;
