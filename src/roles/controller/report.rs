//! What an operator sees of all this: conditions, Events, metrics.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use prost::Message;
use tracing::{info, warn};

use crate::etcd::{MemberId, Txn};
use crate::kube::events::{Notice, Severity};
use crate::metrics::{MemberKind, Metrics, RoleChange};
use crate::proto::Role;
use crate::roles::index::Index;
use crate::roles::plan::{Blocked, Picture, Step, Subject, Whose, cause_words};
use crate::roles::reason::{EVICTION_BLOCKED, ROLE_CHANGE_BLOCKED, Reason};
use crate::roles::transitions::Transition;
use crate::roles::writes;
use crate::store::{Keys, Name};
use crate::term::Notices;

/// Where it goes.
pub struct Reporter {
    metrics: Metrics,
    notices: Notices,
    /// What was told, so that nothing is told over and over.
    told: BTreeMap<Subject, (Reason, String)>,
    unmanaged: BTreeSet<MemberId>,
}

impl Reporter {
    pub fn new(metrics: Metrics, notices: Notices) -> Self {
        Self {
            metrics,
            notices,
            told: BTreeMap::new(),
            unmanaged: BTreeSet::new(),
        }
    }

    pub fn tell(&self, severity: Severity, reason: &'static str, note: String) {
        match severity {
            Severity::Normal => info!("{note}"),
            Severity::Warning => warn!("{note}"),
        }
        self.notices.send(Notice {
            severity,
            reason,
            action: "ChangeRoles",
            note,
        });
    }

    /// Counts a transition.
    fn count(&self, from: &'static str, to: &'static str, result: &'static str, by: usize) {
        let change = RoleChange { from, to, result };
        let counter = self.metrics.role_transitions.get_or_create(&change);
        counter.inc_by(by as u64);
    }

    /// Tells of a step that was taken.
    pub fn taken(&self, step: &Step, picture: &Picture) {
        if let Step::Remove { member, .. } | Step::Forget(member) = step
            && let Some(tie) = picture.seat(*member).and_then(|seat| seat.record.as_ref())
            && let Whose::Node(known) = tie.owner
            && (known.desired, known.observed) == (Role::Worker, Role::Manager)
        {
            self.count("manager", "worker", "done", 1);
            self.tell(
                Severity::Normal,
                "RoleChanged",
                format!("worker now: {}", tie.node),
            );
        }
        let node = |id: &MemberId| {
            let tie = picture.seat(*id).and_then(|seat| seat.record.as_ref());
            tie.map_or("of no node", |tie| tie.node.as_str())
        };
        match step {
            Step::Remove { member, .. } => {
                let seat = picture.seat(*member);
                let cause = seat.and_then(|seat| seat.record.as_ref()?.removal);
                let from = match seat.and_then(|seat| seat.listed.as_ref()) {
                    Some(place) if place.learner => "learner",
                    _ => "voter",
                };
                self.count(from, "none", "done", 1);
                let why = cause.map_or("", cause_words);
                let note = format!("member {member} of node {} was removed, {why}", node(member));
                self.tell(Severity::Normal, "MemberRemoved", note);
            }
            Step::Promote { member, .. } => {
                self.count("learner", "voter", "done", 1);
                let note = format!("member {member} of node {} votes", node(member));
                self.tell(Severity::Normal, "MemberPromoted", note);
            }
            Step::Add { node, .. } | Step::Record { node, .. } => {
                self.count("none", "learner", "done", 1);
                self.tell(
                    Severity::Normal,
                    "MemberAdded",
                    format!("node {node} joins as a learner"),
                );
            }
            Step::Note {
                node,
                progress: crate::proto::join::Progress::Refused,
                why: Some((reason, message)),
                ..
            } => {
                self.count("none", "learner", "refused", 1);
                let note = format!("node {node} does not join, refused by rule {reason}: {message}");
                self.tell(Severity::Warning, "JoinRefused", note);
            }
            other => info!("done: {other}"),
        }
    }

    /// Tells once of a step that failed, and why.
    pub fn failed(&mut self, step: &Step, reason: Reason, message: &str) {
        let (from, to) = match step {
            Step::Add { .. } => ("none", "learner"),
            Step::Promote { .. } => ("learner", "voter"),
            Step::Remove { .. } | Step::MoveLeadership { .. } => ("voter", "none"),
            _ => return info!("to be tried again ({step}): {message}"),
        };
        self.count(from, to, "failed", 1);
        info!("to be tried again ({step}): {reason}: {message}");
    }

    /// Tells of nodes without a member that have another role now.
    pub fn changed_roles(&self, batch: &[Transition]) {
        let words = |role: Role| match role {
            Role::Manager => "manager",
            Role::Worker => "worker",
            Role::Unspecified => "none",
        };
        let mut counts: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for one in batch {
            let names = counts.entry((words(one.from), words(one.to))).or_default();
            names.push(one.node.as_str());
        }
        for ((from, to), names) in counts {
            self.count(from, to, "done", names.len());
            let (shown, more) = names.split_at(names.len().min(3));
            let more = match more.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let note = format!("{to} now: {}{more}", shown.join(", "));
            self.tell(Severity::Normal, "RoleChanged", note);
        }
    }

    /// Sets the gauges from a whole picture, and tells of members that are nobody's.
    pub fn observe(&mut self, index: &Index, picture: &Picture, blocked: &[Blocked]) {
        let mut counts: BTreeMap<(&'static str, &'static str), i64> = BTreeMap::new();
        for kind in ["voter", "learner"] {
            for health in ["healthy", "unhealthy"] {
                counts.insert((kind, health), 0);
            }
        }
        let mut unmanaged = BTreeSet::new();
        for seat in &picture.seats {
            let Some(place) = &seat.listed else { continue };
            let kind = if place.learner { "learner" } else { "voter" };
            let health = if place.healthy { "healthy" } else { "unhealthy" };
            *counts.entry((kind, health)).or_default() += 1;
            if seat.record.is_none() {
                unmanaged.insert(seat.id);
            }
        }
        for ((kind, health), count) in counts {
            let gauge = self.metrics.members.get_or_create(&MemberKind { kind, health });
            gauge.set(count);
        }
        self.metrics.members_unmanaged.set(gauge(unmanaged.len()));
        self.metrics.removed_nodes.set(gauge(index.removed_len()));
        let at_risk = blocked.iter().any(|blocked| blocked.reason == Reason::QuorumRisk);
        self.metrics.quorum_blocked.set(i64::from(at_risk));
        let managed = picture.seats.iter().any(|seat| seat.record.is_some());
        for id in unmanaged.difference(&self.unmanaged).filter(|_| managed) {
            let note =
                format!("etcd has member {id}, which belongs to no node: it is left alone (quorate adopt)");
            self.tell(Severity::Warning, "UnmanagedMember", note);
        }
        self.unmanaged = unmanaged;
    }

    /// Tells of what newly cannot be done.
    pub fn tell_blocked(&mut self, blocked: &[Blocked]) {
        let now: BTreeMap<Subject, (Reason, String)> = blocked
            .iter()
            .map(|blocked| (blocked.subject.clone(), (blocked.reason, blocked.message.clone())))
            .collect();
        for blocked in blocked {
            let known = self
                .told
                .get(&blocked.subject)
                .is_some_and(|(reason, _)| *reason == blocked.reason);
            if known || blocked.reason == Reason::Pending {
                continue;
            }
            let Blocked {
                node,
                reason,
                message,
                ..
            } = blocked;
            let note = format!("the role of node {node} cannot change now, {reason}: {message}");
            let (from, to) = match (&blocked.subject, reason) {
                (Subject::Join(_), _) => ("none", "learner"),
                (_, Reason::LearnerNotStarted | Reason::LearnerNotInSync) => ("learner", "voter"),
                (Subject::Member(_), _) => ("voter", "none"),
            };
            self.count(from, to, "blocked", 1);
            self.tell(Severity::Warning, "RoleChangeBlocked", note);
        }
        self.told = now;
    }
}

/// The gauges are this leader's: zero after its term.
impl Drop for Reporter {
    fn drop(&mut self) {
        for kind in ["voter", "learner"] {
            for health in ["healthy", "unhealthy"] {
                self.metrics
                    .members
                    .get_or_create(&MemberKind { kind, health })
                    .set(0);
            }
        }
        self.metrics.members_unmanaged.set(0);
        self.metrics.removed_nodes.set(0);
        self.metrics.quorum_blocked.set(0);
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The transaction that makes one stored condition say what is the case; `None` where all do. One object at a time, so
/// that one that cannot be written delays no other.
pub fn conditions(
    index: &Index,
    keys: &Keys,
    picture: &Picture,
    blocked: &[Blocked],
    now: Timestamp,
) -> Vec<Txn> {
    let mut txns = Vec::new();
    let mut wanted: BTreeMap<&str, &Blocked> = BTreeMap::new();
    let mut evictions: BTreeMap<MemberId, &Blocked> = BTreeMap::new();
    for one in blocked {
        let Subject::Member(id) = one.subject else {
            continue;
        };
        let owner = picture
            .seat(id)
            .and_then(|seat| seat.record.as_ref())
            .map(|tie| tie.owner);
        match owner {
            Some(Whose::Node(_)) => _ = wanted.insert(&one.node, one),
            Some(Whose::Gone) => _ = evictions.insert(id, one),
            Some(Whose::Unknown) | None => {}
        }
    }
    let no_longer = index
        .blocked()
        .filter(|(name, ..)| !wanted.contains_key(name))
        .map(|(name, facts, revision)| (name, facts, revision, None));
    let now_blocked = wanted.iter().filter_map(|(name, one)| {
        let entry = index.node(name)?;
        Some((*name, entry.value.as_ref()?, entry.mod_revision, Some(*one)))
    });
    for (name, facts, revision, one) in no_longer.chain(now_blocked) {
        let Ok(node) = name.parse::<Name>() else { continue };
        let condition = one.map(|one| {
            let why = (one.reason, one.message.as_str());
            writes::blocked(
                ROLE_CHANGE_BLOCKED,
                facts.blocked.as_ref(),
                why,
                facts.generation,
                now,
            )
        });
        if condition == facts.blocked {
            continue;
        }
        if let Some(value) = writes::with_blocked(&facts.value, condition) {
            let key = keys.node(&node);
            txns.push(Txn::new().when_unchanged(&key, revision).put(&key, value));
        }
    }
    for (id, record, revision) in index.records() {
        let condition = evictions.get(&id).map(|one| {
            let why = (one.reason, one.message.as_str());
            writes::blocked(EVICTION_BLOCKED, record.blocked.as_ref(), why, 0, now)
        });
        if condition != record.blocked {
            let mut member = record.member.clone();
            writes::set_condition(&mut member.conditions, EVICTION_BLOCKED, condition);
            let key = keys.member(id);
            txns.push(
                Txn::new()
                    .when_unchanged(&key, revision)
                    .put(&key, member.encode_to_vec()),
            );
        }
    }
    txns
}
