//! Nodes that ask to join: one learner at a time, the others queue.

use std::fmt;

use super::rule::{Limits, Plan, first};
use super::step::Step;
use crate::etcd::MemberId;
use crate::etcd::members::{Listener, same_urls};
use crate::proto::join::Progress;
use crate::proto::{Join, Role};
use crate::roles::blocked::{Blocked, Subject};
use crate::roles::checks::Refusal;
use crate::roles::membership::{Membership, PendingJoin, Reachability};
use crate::roles::owner::NodeRoles;
use crate::roles::quorum::Quorum;
use crate::roles::reason::Reason;
use crate::store::object::member::{is_answered, member_of};

mod rejoin;

impl PendingJoin {
    /// The peer URLs of the request.
    pub fn peer_urls(&self) -> &[String] {
        self.join
            .request
            .as_ref()
            .map_or(&[], |request| &request.peer_urls)
    }

    /// The uid of the node that the request is for.
    pub fn uid(&self) -> &str {
        self.join.request.as_ref().map_or("", |request| &request.node_uid)
    }

    /// Whether the peer URLs are used untested.
    fn is_untested(&self) -> bool {
        self.join.request.as_ref().is_some_and(|request| request.no_dial)
    }

    /// The member that is removed before this node joins, if there is one.
    pub fn replaces(&self) -> Option<MemberId> {
        let replaces = self.join.request.as_ref()?.replaces;
        (replaces != 0).then_some(MemberId(replaces))
    }

    /// Whether that member is removed even if it answers.
    pub(super) fn is_forced(&self) -> bool {
        self.join.request.as_ref().is_some_and(|request| request.forced)
    }

    /// Whether an add of the very node and on the very peer URLs of the request is decided. The member of another node would be
    /// recorded for that one.
    fn is_decided(&self) -> bool {
        let join = &self.join;
        self.is_adding() && join.node_uid == self.uid() && same_urls(&join.peer_urls, self.peer_urls())
    }

    /// Whether the add was decided for this request, rather than for an earlier one that asked for the same.
    fn is_decided_for_it(&self) -> bool {
        self.is_decided() && is_answered(&self.join)
    }

    /// Whether its node may still become a member.
    fn is_eligible(&self) -> bool {
        let manager = |roles: NodeRoles| roles.observed == Role::Manager && roles.desired != Role::Worker;
        self.roles.is_some_and(manager) && !self.removed
    }

    fn block(&self, reason: Reason, message: impl fmt::Display) -> Blocked {
        Blocked::new(Subject::Join(self.node.clone()), &self.node, reason, message)
    }

    fn note(&self, progress: Progress, member: Option<MemberId>, why: Option<(Reason, String)>) -> Step {
        Step::Note {
            node: self.node.clone(),
            member,
            progress,
            why,
        }
    }
}

/// Records members that were added for an intent: a learner without a record that has the peer URLs of the intent. It
/// can belong to no other node, because no member had one of these URLs when the add was decided, and no other intent
/// has one.
pub fn record(membership: &Membership, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let adding = membership.joins.iter().filter(|pending| pending.is_adding());
    let made = adding.filter_map(|pending| {
        let member = membership.members.iter().find(|member| {
            let unrecorded = member.is_learner() && member.record.is_none();
            unrecorded && same_urls(member.peer_urls(), &pending.join.peer_urls)
        })?;
        let step = Step::Record {
            node: pending.node.clone(),
            member: member.id,
        };
        Some((&*pending.node, Ok(step)))
    });
    first(membership, plan, made)
}

/// Ends joins whose member votes, or is gone.
pub fn conclude(membership: &Membership, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let added = membership
        .joins
        .iter()
        .filter(|pending| pending.join.progress() == Progress::Learner && is_answered(&pending.join));
    let ended = added.filter_map(|pending| {
        let id = member_of(&pending.join);
        let note = match id.and_then(|id| membership.member(id)) {
            Some(member) if member.is_voter() && member.cause().is_none() => {
                pending.note(Progress::Voter, id, None)
            }
            // It is still a learner, or it is being removed, which ends the join as well.
            Some(_) => return None,
            None => {
                let message = "its member is no longer in etcd's list".to_owned();
                pending.note(Progress::Removed, id, Some((Reason::Overtaken, message)))
            }
        };
        Some((&*pending.node, Ok(note)))
    });
    first(membership, plan, ended)
}

/// Carries on the joins that have not ended.
pub fn begin(membership: &Membership, limits: &Limits, plan: &mut Plan) -> Option<Step> {
    for pending in &membership.joins {
        let attempt = Attempt {
            membership,
            pending,
            limits,
        };
        let step = match attempt.step() {
            Ok(step) | Err(Instead::Step(step)) => membership.unless_resting(step, &pending.node),
            Err(Instead::AwaitMember) => continue,
            Err(Instead::Probe) => {
                plan.probe.push(Subject::Join(pending.node.clone()));
                Err(pending.block(Reason::Pending, "its peer URLs are being tested"))
            }
            Err(Instead::Blocked(blocked)) => Err(blocked),
        };
        let blocked = match step {
            Ok(step) => return Some(step),
            Err(blocked) => blocked,
        };
        let note = waiting_note(membership, pending, &blocked);
        plan.blocked.push(blocked);
        if note.is_some() {
            return note;
        }
    }
    None
}

/// Writes to the join why it waits, unless it says so already. Not before every member had its time to answer, and not for
/// a wait that is over in an instant, nor while etcd takes no writes, nor soon after a note that could not be written (INV-9).
/// Beside an intent, which stays, only a refusal that lasts is written.
fn waiting_note(membership: &Membership, pending: &PendingJoin, blocked: &Blocked) -> Option<Step> {
    let progress = match pending.is_adding() {
        true => Progress::Adding,
        false => Progress::Waiting,
    };
    let lasts = match progress {
        Progress::Adding => membership.lasts(blocked.reason),
        _ => blocked.reason != Reason::Pending,
    };
    let why = Some((blocked.reason, blocked.message.clone()));
    let known = says(&pending.join, progress, why.as_ref());
    let rests = membership.unnoted.contains(&Subject::Join(pending.node.clone()));
    let is_taken = membership.refuses_writes().is_none() && !membership.paused && !rests;
    (membership.complete && lasts && !known && is_taken).then(|| pending.note(progress, None, why))
}

/// Whether the leader's part of a join, which has no member, already says this. Beside an intent the reason is all that a note
/// writes, whichever request the intent answers (INV-9: a note that changes nothing would be written for ever).
fn says(join: &Join, progress: Progress, why: Option<&(Reason, String)>) -> bool {
    let (reason, message) = why.map_or(("", ""), |(reason, message)| (reason.as_str(), message));
    let is_intent = progress == Progress::Adding;
    let is_answer = is_answered(join) && join.progress() == progress && member_of(join).is_none();
    (is_intent || is_answer) && join.reason == reason && join.message == message
}

/// What a join does instead of adding a learner now.
enum Instead {
    /// Take this step.
    Step(Step),
    /// Nothing: the node's etcd starts next, or catches up.
    AwaitMember,
    /// Test the peer URLs before anything else.
    Probe,
    /// Nothing can be done now.
    Blocked(Blocked),
}

impl From<Blocked> for Instead {
    fn from(blocked: Blocked) -> Self {
        Self::Blocked(blocked)
    }
}

/// One join in one plan.
struct Attempt<'a> {
    membership: &'a Membership,
    pending: &'a PendingJoin,
    limits: &'a Limits,
}

impl Attempt<'_> {
    fn step(&self) -> Result<Step, Instead> {
        // Refusals come before waits: what can never be done must not wait. Only then the peer URLs are tested, since that
        // takes its time, and last what depends on the other members.
        self.await_earlier_add()?;
        self.await_member()?;
        self.refuse()?;
        self.rejoin()?;
        self.test()?;
        self.await_address()?;
        self.queue_behind_learner()?;
        self.require_quorum()?;
        self.add()
    }

    /// An add that is decided may still be made although its node no longer wants it: until that is ruled out, the list
    /// is watched for it.
    fn await_earlier_add(&self) -> Result<(), Instead> {
        match self.pending.is_decided() && self.pending.is_eligible() {
            true => Ok(()),
            false => self.rule_out_add(),
        }
    }

    fn rule_out_add(&self) -> Result<(), Instead> {
        let pending = self.pending;
        match pending.is_adding() && pending.age < self.limits.add_doubt {
            true => self.block(Reason::Pending, "an add that was begun earlier may still be made"),
            false => Ok(()),
        }
    }

    fn await_member(&self) -> Result<(), Instead> {
        let join = &self.pending.join;
        match join.progress() == Progress::Learner && is_answered(join) {
            true => Err(Instead::AwaitMember),
            false => Ok(()),
        }
    }

    fn refuse(&self) -> Result<(), Instead> {
        let pending = self.pending;
        let checked = self
            .membership
            .check_join(
                &pending.node,
                pending.uid(),
                pending.roles,
                pending.removed,
                pending.peer_urls(),
            )
            .and_then(|()| match pending.is_decided() {
                true => Ok(()),
                false => self.check_other_adds(),
            });
        checked.map_err(|refusal| self.refused(&refusal))
    }

    /// A member that turns up in the list with these peer URLs must belong to a single node.
    fn check_other_adds(&self) -> Result<(), Refusal> {
        let (pending, joins) = (self.pending, self.membership.joins.iter());
        let taken = joins
            .filter(|other| other.node != pending.node && other.is_adding())
            .find_map(|other| {
                let mut urls = pending.peer_urls().iter();
                Some((urls.find(|url| other.join.peer_urls.contains(url))?, &other.node))
            });
        taken.map_or(Ok(()), |(url, node)| {
            let message = format_args!("peer URL {url} belongs to node {node}, which is being added");
            Err(Refusal::new(Reason::PeerUrlTaken, message))
        })
    }

    /// Who listens at the peer URLs. An add that is decided goes on although its address has become unreachable; with the
    /// next request, it is tested again.
    fn test(&self) -> Result<Listener, Instead> {
        let pending = self.pending;
        let untested = |why: &str| Ok(Listener::Unproven(why.to_owned()));
        match &pending.reachability {
            _ if pending.is_untested() => untested("it was not asked"),
            Reachability::Reached(listener) => Ok(listener.clone()),
            Reachability::Pending => Err(Instead::Probe),
            Reachability::Unreachable(_) if pending.is_decided_for_it() => {
                untested("it cannot be reached any more")
            }
            Reachability::Unreachable(why) => {
                // The refusal takes the place of an intent.
                self.rule_out_add()?;
                Err(self.refused(&Refusal::new(Reason::PeerUnreachable, why)))
            }
        }
    }

    /// A member that leaves may have the peer URL still, as where one machine gets another node.
    fn await_address(&self) -> Result<(), Instead> {
        let urls = self.pending.peer_urls();
        let mut leaving = self.membership.listed().filter(|member| member.cause().is_some());
        match leaving.find(|member| member.peer_urls().iter().any(|url| urls.contains(url))) {
            Some(member) if !self.pending.is_decided() => self.block(
                Reason::RemovalPending,
                format!("{member} has its peer URL, and is being removed"),
            ),
            _ => Ok(()),
        }
    }

    fn queue_behind_learner(&self) -> Result<(), Instead> {
        let replaces = self.pending.replaces();
        let mut learners = self.membership.listed().filter(|member| member.is_learner());
        let Some(learner) = learners.find(|learner| Some(learner.id) != replaces) else {
            return Ok(());
        };
        let hint = match &learner.record {
            Some(_) => String::new(),
            None => format!(" (etcdctl member remove {} removes it)", learner.id),
        };
        let message = format!("{learner} is in etcd's list, which takes one learner at a time{hint}");
        self.block(Reason::LearnerPending, message)
    }

    fn require_quorum(&self) -> Result<(), Instead> {
        let quorum = Quorum::of(&self.membership.votes());
        match quorum.holds() {
            true => Ok(()),
            false => self.block(
                Reason::QuorumRisk,
                format!("etcd has no healthy quorum: {quorum}"),
            ),
        }
    }

    /// Commits the intent to add a learner, then adds it. An intent is renewed before it is so old that the member would
    /// no longer be looked for, and for a later request, which it answers then.
    fn add(&self) -> Result<Step, Instead> {
        let node = self.pending.node.clone();
        if !self.pending.is_decided() {
            self.await_room()?;
            return Ok(Step::DecideAdd(node));
        }
        if !self.pending.is_decided_for_it() || self.pending.age >= self.limits.add_doubt / 2 {
            return Ok(Step::DecideAdd(node));
        }
        let through = self.through()?;
        Ok(Step::Add { node, through })
    }

    /// A voter that is replaced has had its place already, and may have it again unless another has taken it.
    fn await_room(&self) -> Result<(), Instead> {
        let (voters, most) = (self.membership.voters().count(), self.limits.max_voters);
        let request = self.pending.join.request.as_ref();
        let had = request.map_or(0, |request| request.voters as usize);
        match voters < most.max(had) {
            true => Ok(()),
            false => self.block(
                Reason::VoterLimit,
                format!("etcd has {voters} voters, and the leader's --max-voters is {most}"),
            ),
        }
    }

    fn through(&self) -> Result<MemberId, Blocked> {
        let through = self.membership.through(None);
        through.ok_or_else(|| self.pending.block(Reason::EtcdUnavailable, "no voter answers"))
    }

    fn refused(&self, refusal: &Refusal) -> Instead {
        let why = (refusal.rule, refusal.to_string());
        Instead::Step(self.pending.note(Progress::Refused, None, Some(why)))
    }

    fn block(&self, reason: Reason, message: impl fmt::Display) -> Result<(), Instead> {
        Err(self.pending.block(reason, message).into())
    }
}
