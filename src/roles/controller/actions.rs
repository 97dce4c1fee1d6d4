//! Turns a step into its transaction and its calls of etcd. Copies what it needs from the index, so that an action
//! borrows nothing. Pure.

use jiff::Timestamp;
use prost::Message;

use crate::etcd::members::ListedMember;
use crate::etcd::{MemberId, Revision, Txn};
use crate::proto::{Member, Promotion, Readdress};
use crate::roles::index::Index;
use crate::roles::membership::Membership;
use crate::roles::owner::Owner;
use crate::roles::plan::Step;
use crate::store::object::time;
use crate::store::{Keys, Name};

mod joins;
mod removal;

pub use joins::NewMemberRecord;

/// What to commit and call for a step.
pub enum Action {
    /// Commits the transaction.
    Commit(Txn),
    /// Confirms on a quorum of the witnesses that the member is removed, then commits.
    Forget {
        member: MemberId,
        witnesses: Vec<Witness>,
        forget: Txn,
    },
    /// Removes the member, then does what `Forget` does.
    Remove {
        victim: ListedMember,
        through: ListedMember,
        witnesses: Vec<Witness>,
        forget: Txn,
    },
    /// Transfers raft leadership.
    MoveLeadership { from: ListedMember, to: MemberId },
    /// Promotes the learner to a voter.
    Promote {
        through: ListedMember,
        learner: MemberId,
    },
    /// Adds a learner, then commits its record.
    Add {
        through: ListedMember,
        record: Box<NewMemberRecord>,
    },
    /// Gives a voter other peer URLs.
    Readdress {
        through: ListedMember,
        member: MemberId,
        peer_urls: Vec<String>,
    },
}

/// A voter that stays while another member is removed, and that can confirm the removal.
pub struct Witness {
    pub voter: ListedMember,
    /// Whether the voter has, or had, that member in its own list.
    pub knew_member: bool,
}

/// The names of the failpoints before and after a step.
pub fn failpoints(step: &Step) -> (&'static str, &'static str) {
    match step {
        Step::Forget(_) => ("roles.forgetting", "roles.forgotten"),
        Step::DecideRemoval(..) => ("roles.deciding-removal", "roles.decided-removal"),
        Step::Withdraw(_) => ("roles.withdrawing", "roles.withdrawn"),
        Step::MoveLeadership { .. } => ("roles.moving-leadership", "roles.moved-leadership"),
        Step::Remove { .. } => ("roles.removing", "roles.removed"),
        Step::DecidePromotion(_) => ("roles.deciding-promotion", "roles.decided-promotion"),
        Step::Promote { .. } => ("roles.promoting", "roles.promoted"),
        Step::DecideAdd(_) => ("roles.deciding-add", "roles.decided-add"),
        Step::Add { .. } => ("roles.adding", "roles.added"),
        Step::Record { .. } => ("roles.recording", "roles.recorded"),
        Step::DecideReaddress { .. } => ("roles.deciding-readdress", "roles.decided-readdress"),
        Step::Readdress { .. } => ("roles.readdressing", "roles.readdressed"),
        Step::EndReaddress(_) => ("roles.ending-readdress", "roles.ended-readdress"),
        Step::Note { .. } => ("roles.noting", "roles.noted"),
    }
}

/// What a step is turned into an action from.
pub struct Context<'a> {
    pub index: &'a Index,
    pub membership: &'a Membership,
    pub keys: &'a Keys,
    /// The term of the leader.
    pub term: Revision,
    pub now: Timestamp,
}

impl Context<'_> {
    /// The action of a step; `None` if the index or the list no longer has what the step is about.
    pub fn to_action(&self, step: &Step) -> Option<Action> {
        let action = match step {
            Step::Forget(id) => Action::Forget {
                member: *id,
                witnesses: self.witnesses(*id),
                forget: self.forget(*id)?,
            },
            Step::DecideRemoval(id, cause) => Action::Commit(self.decide_removal(*id, *cause)?),
            Step::Withdraw(id) => Action::Commit(self.withdraw(*id)?),
            Step::MoveLeadership { from, to } => Action::MoveLeadership {
                from: self.listed(*from)?,
                to: *to,
            },
            Step::Remove { member, through } => Action::Remove {
                victim: self.listed(*member)?,
                through: self.listed(*through)?,
                witnesses: self.witnesses(*member),
                forget: self.forget(*member)?,
            },
            Step::DecidePromotion(id) => Action::Commit(self.decide_promotion(*id)?),
            Step::Promote { member, through } => Action::Promote {
                through: self.listed(*through)?,
                learner: *member,
            },
            Step::DecideAdd(node) => Action::Commit(self.decide_add(node)?),
            Step::Add { node, through } => Action::Add {
                through: self.listed(*through)?,
                record: Box::new(self.new_record(node)?),
            },
            Step::Record { node, member } => Action::Commit(self.new_record(node)?.txn(*member)),
            Step::DecideReaddress { node, member } => Action::Commit(self.decide_readdress(node, *member)?),
            Step::Readdress { member, through } => Action::Readdress {
                through: self.listed(*through)?,
                member: *member,
                peer_urls: self
                    .index
                    .record(*member)?
                    .0
                    .readdress
                    .as_ref()?
                    .peer_urls
                    .clone(),
            },
            Step::EndReaddress(id) => Action::Commit(self.end_readdress(*id)?),
            Step::Note {
                node,
                member,
                progress,
                why,
            } => Action::Commit(self.note(node, *member, *progress, why.as_ref())?),
        };
        Some(action)
    }

    fn listed(&self, id: MemberId) -> Option<ListedMember> {
        self.membership.member(id)?.listed.clone()
    }

    /// The record of a member with a change, compared with what was read.
    fn changed_record(&self, id: MemberId, change: impl FnOnce(&mut Member)) -> Option<Txn> {
        let (record, revision) = self.index.record(id)?;
        let mut member = record.clone();
        change(&mut member);
        let key = self.keys.member(id);
        Some(
            Txn::new()
                .when_unchanged(&key, revision)
                .put(&key, member.encode_to_vec()),
        )
    }

    /// The intent to give a voter the peer URLs of a join, with the proof that its node still asks for them.
    fn decide_readdress(&self, node: &str, id: MemberId) -> Option<Txn> {
        let (join, join_revision) = self.index.join(node);
        let request = join?.request.as_ref()?;
        let txn = self.changed_record(id, |member| {
            member.readdress = Some(Readdress {
                peer_urls: request.peer_urls.clone(),
                decided_at: Some(time::to_proto(self.now)),
                term: self.term.0,
                no_dial: request.no_dial,
            });
        })?;
        let roles = self.index.roles_of(node, &request.node_uid)?;
        let name: Name = node.parse().ok()?;
        let txn = txn
            .when_unchanged(&self.keys.join(&name), join_revision)
            .when_unchanged(&self.keys.node(&name), roles.revision)
            .when_absent(&self.keys.removed(&request.node_uid));
        Some(txn)
    }

    /// The end of a move, with the peer URLs that the list shows.
    fn end_readdress(&self, id: MemberId) -> Option<Txn> {
        let listed = self.listed(id)?;
        self.changed_record(id, |member| {
            member.readdress = None;
            member.peer_urls = listed.peer_urls;
        })
    }

    /// The intent to promote a learner, with the proof that its node is unchanged.
    fn decide_promotion(&self, id: MemberId) -> Option<Txn> {
        let txn = self.changed_record(id, |member| {
            member.promotion = Some(Promotion {
                decided_at: Some(time::to_proto(self.now)),
                term: self.term.0,
            });
        })?;
        let (record, _) = self.index.record(id)?;
        let Owner::Node(roles) = self.index.owner(record) else {
            return None;
        };
        let name: Name = record.node.parse().ok()?;
        Some(txn.when_unchanged(&self.keys.node(&name), roles.revision))
    }
}
