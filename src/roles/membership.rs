//! The members of etcd with their records, nodes and health, and the joins under way: what the plan, the checks and the
//! commands read of membership. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::blocked::Subject;
use super::index::Index;
use super::owner::{NodeRoles, Owner};
use super::quorum::Vote;
use super::reason::Reason;
use crate::etcd::MemberId;
use crate::etcd::members::{
    Alarm, Evidence, ListedMember, Listener, NotAsked, alarms, corrupt, most_committed, same_urls,
};
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::proto::{self, Join, Readdress, Removal, Role};
use crate::store::object::member::is_ended;

/// What is known when a decision is made.
#[derive(Clone, Debug, Default)]
pub struct Membership {
    /// Members that are listed, recorded, or both, in the order of their ids.
    pub members: Vec<Member>,
    /// Joins that have not ended: those that are being added first, then the others in the order of their requests.
    pub joins: Vec<PendingJoin>,
    /// Whether every member has answered or had its time to answer.
    pub complete: bool,
    /// The raft leader, if a majority of the voters that stay agrees on it: of those that answered, once all had their time.
    pub raft_leader: Option<MemberId>,
    /// Steps that failed a short while ago, and why. They are not tried again yet.
    pub resting: BTreeMap<Subject, (Reason, String)>,
    /// Those of them whose last failure was a note on why they wait. The note is not tried again yet either.
    pub unnoted: BTreeSet<Subject>,
    /// Whether an operator has paused roles: no step is taken, and what is in the way of each change is said all the same.
    pub paused: bool,
}

/// A member that is listed, recorded, or both.
#[derive(Clone, Debug)]
pub struct Member {
    /// etcd's id of the member.
    pub id: MemberId,
    /// The member in etcd's list; `None` if the list does not have it.
    pub listed: Option<ListedMember>,
    /// The record below `/members/`; `None` if there is none, or if it cannot be read.
    pub record: Option<Record>,
    /// What the member was asked, and what it answered.
    pub evidence: Evidence,
    /// Whether etcd has raised the alarm CORRUPT for it: its data differs from that of the others.
    pub corrupt: bool,
    /// For how long a learner has made no progress, as far as the observer has seen.
    pub idle: Duration,
    /// Whether no call of a decided change of this member can be under way any more.
    pub quiet: bool,
    /// Who listens at the peer URLs that are decided for it.
    pub moved: Reachability,
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
    /// Why the member is removed, if that is decided.
    pub removal: Option<Cause>,
    /// Whether the promotion to a voter is decided.
    pub promotion: bool,
    /// The peer URLs that are decided for it, if it moves.
    pub readdress: Option<Readdress>,
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
    /// For how long the observer has seen the intent to add; zero if there is none.
    pub age: Duration,
}

/// Whether peer URLs can be reached, and who listens there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reachability {
    /// Not tested yet, or the test is under way.
    #[default]
    Pending,
    /// Each host answered or refused the connection: an etcd that joins does not listen before it is added.
    Reached(Listener),
    /// A host did not answer in time, or its name is unknown; the reason in words.
    Unreachable(String),
}

impl Member {
    /// The member as a quorum counts it; `None` if it is not listed.
    pub fn vote(&self) -> Option<Vote> {
        self.listed.as_ref().map(|listed| Vote {
            id: self.id,
            learner: listed.learner,
            healthy: self.is_healthy(),
        })
    }

    /// Whether it has proved that it is healthy. A member that has not answered counts as unhealthy, and so does one whose
    /// data is corrupt, whatever it answers.
    pub fn is_healthy(&self) -> bool {
        !self.corrupt && self.evidence.is_healthy()
    }

    /// Why it is not healthy; `None` if it is.
    pub fn illness(&self) -> Option<String> {
        match self.corrupt {
            true => Some("etcd says that its data is corrupt (alarm CORRUPT)".to_owned()),
            false => self.evidence.health().err().map(|why| why.to_string()),
        }
    }

    /// The index of the last log entry that it has applied; 0 if it gave no status.
    pub fn applied_index(&self) -> u64 {
        self.evidence.status.answer().map_or(0, |status| status.applied)
    }

    /// Whether it has started at least once: only then the list has a name and client URLs of it.
    pub fn has_started(&self) -> bool {
        let started = |listed: &ListedMember| listed.is_started() && !listed.client_urls.is_empty();
        self.listed.as_ref().is_some_and(started)
    }

    /// The peer URLs in the list.
    pub fn peer_urls(&self) -> &[String] {
        self.listed.as_ref().map_or(&[], |listed| &listed.peer_urls)
    }

    /// The peer URLs that are decided for it, if it moves.
    pub fn readdress(&self) -> Option<&Readdress> {
        self.record.as_ref()?.readdress.as_ref()
    }

    /// Whether the list has these peer URLs for it.
    pub fn is_at(&self, peer_urls: &[String]) -> bool {
        same_urls(self.peer_urls(), peer_urls)
    }

    /// Whether it was found at the peer URLs that are decided for it.
    pub fn is_found(&self) -> bool {
        self.moved == Reachability::Reached(Listener::Expected)
    }

    /// Whether the list has it as a learner.
    pub fn is_learner(&self) -> bool {
        self.listed.as_ref().is_some_and(|listed| listed.learner)
    }

    /// `learner` or `voter`.
    pub fn kind_word(&self) -> &'static str {
        match self.is_learner() {
            true => "learner",
            false => "voter",
        }
    }

    /// Whether the list has it as a voter.
    pub fn is_voter(&self) -> bool {
        self.listed.as_ref().is_some_and(|listed| !listed.learner)
    }

    /// The name of its node; empty if it has no record.
    pub fn node(&self) -> &str {
        self.record.as_ref().map_or("", |record| &record.node)
    }

    /// Whether its record ties it to the node with this name and uid.
    pub fn is_of(&self, node: &str, uid: &str) -> bool {
        let of_node = |record: &Record| record.node == node && record.uid == uid;
        self.record.as_ref().is_some_and(of_node)
    }

    /// The node that its record belongs to; `None` if it has no record.
    pub fn owner(&self) -> Option<Owner> {
        self.record.as_ref().map(|record| record.owner)
    }

    /// The roles of its node, if that exists.
    pub fn roles(&self) -> Option<NodeRoles> {
        self.owner()?.roles()
    }

    /// Whether its node is a desired manager.
    pub fn is_wanted(&self) -> bool {
        self.roles().is_some_and(|roles| roles.desired == Role::Manager)
    }

    /// Whether it stays: its node is a desired manager, and its removal is not decided.
    pub fn stays(&self) -> bool {
        self.is_wanted() && self.removal().is_none()
    }

    /// Why its removal is decided; `None` if it is not.
    pub fn removal(&self) -> Option<Cause> {
        self.record.as_ref()?.removal
    }

    /// Why the member must go: the recorded cause if its removal is decided, else what its node says. `None` if it stays.
    pub fn cause(&self) -> Option<Cause> {
        let record = self.record.as_ref()?;
        record.removal.or(match record.owner {
            Owner::Removed => Some(Cause::NodeGone),
            Owner::Node(roles) if roles.desired == Role::Worker => Some(Cause::Demoted),
            Owner::Node(_) | Owner::Unknown | Owner::Missing => None,
        })
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_learner() { "learner" } else { "member" };
        match self.node() {
            "" => write!(f, "{kind} {}, which has no node", self.id),
            node => write!(f, "{kind} {} of node {node}", self.id),
        }
    }
}

impl PendingJoin {
    /// Whether an add for it is decided.
    pub fn is_adding(&self) -> bool {
        self.join.progress() == Progress::Adding
    }

    /// When it was requested, for the order of the queue alone.
    fn requested(&self) -> (i64, i32) {
        let request = self.join.request.as_ref();
        let at = request.and_then(|request| request.requested_at);
        at.map_or((0, 0), |at| (at.seconds, at.nanos))
    }
}

impl Membership {
    /// The member with this id.
    pub fn member(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Members in etcd's list.
    pub fn listed(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.listed.is_some())
    }

    /// Voters in etcd's list.
    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.is_voter())
    }

    /// Listed members that have a record of a node with this name, which may be an earlier one.
    pub fn members_of<'a>(&'a self, node: &str) -> impl Iterator<Item = &'a Member> {
        self.listed()
            .filter(move |member| member.record.is_some() && member.node() == node)
    }

    /// Listed members that a record ties to this node; more than one only if records were written by hand.
    pub fn members_of_node(&self, node: &str, uid: &str) -> impl Iterator<Item = &Member> {
        self.listed().filter(move |member| member.is_of(node, uid))
    }

    /// The listed member that a record ties to this node.
    pub fn member_of_node(&self, node: &str, uid: &str) -> Option<&Member> {
        self.members_of_node(node, uid).next()
    }

    /// Assumes that the desired role of a node is this one.
    pub fn assume_desired(&mut self, node: &str, desired: Role) {
        let records = self
            .members
            .iter_mut()
            .filter_map(|member| member.record.as_mut());
        for record in records.filter(|record| record.node == node) {
            if let Owner::Node(roles) = &mut record.owner {
                roles.desired = desired;
            }
        }
    }

    /// The highest log index that a member knows to be committed.
    pub fn most_committed(&self) -> u64 {
        most_committed(self.members.iter().map(|member| &member.evidence))
    }

    /// The alarms that etcd has raised, as far as the members know.
    pub fn alarms(&self) -> BTreeSet<&Alarm> {
        alarms(self.members.iter().map(|member| &member.evidence))
    }

    /// Why etcd refuses to write intents and results; `None` if it does not.
    pub fn refuses_writes(&self) -> Option<String> {
        let Alarm { member, kind } = self.alarms().into_iter().find(|alarm| alarm.stops_writes())?;
        Some(format!(
            "etcd refuses writes while the alarm {kind} of member {member} is raised (quorate status says what to do)"
        ))
    }

    /// The size of etcd's data in bytes: the largest that a voter reports; `None` if none does.
    pub fn db_size(&self) -> Option<u64> {
        let statuses = self.voters().filter_map(|member| member.evidence.status.answer());
        statuses.map(|status| status.db_size).max()
    }

    /// Whether a voter has answered a linearizable read. One answer proves a quorum, even if the asking machine reaches no other
    /// voter.
    pub fn serves(&self) -> bool {
        self.voters().any(|voter| voter.evidence.is_healthy())
    }

    /// The listed members, as a quorum counts them.
    pub fn votes(&self) -> Vec<Vote> {
        self.members.iter().filter_map(Member::vote).collect()
    }
}

/// Builds the membership from what is known so far. A member without evidence has not answered yet or, where `complete`
/// is set, not in time.
pub fn membership(
    index: &Index,
    list: &[ListedMember],
    evidence: Vec<Evidence>,
    complete: bool,
) -> Membership {
    let corrupt = corrupt(&evidence);
    let mut evidence: BTreeMap<MemberId, Evidence> = evidence.into_iter().map(|of| (of.member, of)).collect();
    let listed: BTreeMap<MemberId, &ListedMember> = list.iter().map(|listed| (listed.id, listed)).collect();
    let recorded = index.records().map(|(id, ..)| id);
    let ids: BTreeSet<MemberId> = listed.keys().copied().chain(recorded).collect();
    let members: Vec<Member> = ids
        .into_iter()
        .map(|id| {
            let listed = listed.get(&id).copied().cloned();
            let unasked = || match &listed {
                Some(listed) => Evidence::not_asked(id, listed.learner, NotAsked::NotYet),
                None => Evidence::not_asked(id, false, NotAsked::NotListed),
            };
            Member {
                id,
                evidence: evidence.remove(&id).unwrap_or_else(unasked),
                corrupt: corrupt.contains(&id),
                listed,
                record: index.record(id).map(|(stored, _)| record(index, stored)),
                idle: Duration::ZERO,
                quiet: false,
                moved: Reachability::Pending,
            }
        })
        .collect();
    let mut joins: Vec<PendingJoin> = index
        .joins()
        .filter(|(_, join, _)| !is_ended(join))
        .map(|(node, join, _)| pending_join(index, node, join))
        .collect();
    joins.sort_by_key(|pending| (!pending.is_adding(), pending.requested()));
    Membership {
        complete,
        raft_leader: raft_leader(&members, complete),
        members,
        joins,
        resting: BTreeMap::new(),
        unnoted: BTreeSet::new(),
        paused: index.is_paused(),
    }
}

fn record(index: &Index, stored: &proto::Member) -> Record {
    Record {
        node: stored.node.clone(),
        uid: stored.node_uid.clone(),
        owner: index.owner(stored),
        removal: stored.removal.as_ref().map(Removal::cause),
        promotion: stored.promotion.is_some(),
        readdress: stored.readdress.clone(),
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
        age: Duration::ZERO,
    }
}

/// The raft leader in the view of a majority of the voters that stay. While some may still answer, their votes are open; once
/// all had their time (`complete`), those without an answer have none. A wrong leader costs etcd an election at most.
pub(super) fn raft_leader(members: &[Member], complete: bool) -> Option<MemberId> {
    let mut votes: BTreeMap<MemberId, usize> = BTreeMap::new();
    let mut voters = 0;
    for member in members {
        if !member.is_voter() || member.removal().is_some() {
            continue;
        }
        let status = member.evidence.status.answer();
        voters += usize::from(!complete || status.is_some());
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
pub(crate) mod tests;
