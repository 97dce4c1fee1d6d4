//! What an operator sees of the changes of roles: Events, the log and metrics.

use std::collections::{BTreeMap, BTreeSet};

use tracing::{info, warn};

use crate::etcd::MemberId;
use crate::etcd::members::Alarm;
use crate::kube::events::{Notice, Severity};
use crate::metrics::{AlarmKind, MemberKind, Metrics, RoleChange};
use crate::proto::Role;
use crate::proto::join::Progress;
use crate::roles::blocked::{Blocked, Subject};
use crate::roles::index::Index;
use crate::roles::membership::{Member, Membership};
use crate::roles::owner::Owner;
use crate::roles::plan::{Step, cause_words};
use crate::roles::reason::Reason;
use crate::roles::transitions::Transition;
use crate::store::Prefix;
use crate::term::{Notices, TermGauges};

/// Reports one term. What has been reported is not repeated.
pub struct Reporter {
    metrics: Metrics,
    notices: Notices,
    blocked: BTreeMap<Subject, Reason>,
    unmanaged: BTreeSet<MemberId>,
    unreadable: BTreeSet<MemberId>,
    alarms: BTreeSet<Alarm>,
    paused: bool,
    _end_with_the_term: TermGauges,
}

/// Every label of the gauge of members.
const MEMBER_KINDS: [MemberKind; 4] = [
    member_kind("voter", "healthy"),
    member_kind("voter", "unhealthy"),
    member_kind("learner", "healthy"),
    member_kind("learner", "unhealthy"),
];

/// Every label of the gauge of alarms.
const ALARM_KINDS: [&str; 2] = [Alarm::NOSPACE, Alarm::CORRUPT];

const fn member_kind(kind: &'static str, health: &'static str) -> MemberKind {
    MemberKind { kind, health }
}

impl Reporter {
    pub fn new(metrics: Metrics, notices: Notices) -> Self {
        let members = MEMBER_KINDS.map(|kind| metrics.members.get_or_create(&kind).clone());
        let others = [
            &metrics.etcd_database_bytes,
            &metrics.members_unmanaged,
            &metrics.removed_nodes,
            &metrics.quorum_blocked,
            &metrics.roles_paused,
        ];
        let alarms = ALARM_KINDS.map(|kind| metrics.etcd_alarms.get_or_create(&AlarmKind { kind }).clone());
        let gauges = members.into_iter().chain(alarms).chain(others.map(Clone::clone));
        Self {
            _end_with_the_term: TermGauges::new(gauges),
            metrics,
            notices,
            blocked: BTreeMap::new(),
            unmanaged: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            alarms: BTreeSet::new(),
            paused: false,
        }
    }

    /// Whether roles are paused.
    pub fn paused(&mut self, paused: bool) {
        if std::mem::replace(&mut self.paused, paused) == paused {
            return;
        }
        self.metrics.roles_paused.set(i64::from(paused));
        match paused {
            true => {
                let note =
                    "an operator has paused roles: no role and no member changes (quorate resume roles)";
                self.publish(Severity::Warning, "RolesPaused", note.to_owned());
            }
            false => self.publish(Severity::Normal, "RolesResumed", "roles are resumed".to_owned()),
        }
    }

    /// etcd has a quorum again, and these words say since when it had none.
    pub fn quorum_returned(&self, reason: &'static str, words: String) {
        self.publish(Severity::Warning, reason, words);
    }

    fn publish(&self, severity: Severity, reason: &'static str, note: String) {
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

    fn count(&self, (from, to): (&'static str, &'static str), result: &'static str, by: usize) {
        let change = RoleChange { from, to, result };
        let counter = self.metrics.role_transitions.get_or_create(&change);
        counter.inc_by(by as u64);
    }

    /// The store below this prefix has not been read for too long.
    pub fn unread(&self, prefix: &Prefix) {
        let note = format!(
            "nodes and members below {prefix} cannot be read, so no role changes and no member is removed; the log has \
             etcd's errors"
        );
        self.publish(Severity::Warning, "NodesUnreadable", note);
    }

    /// A step was taken.
    pub fn step_taken(&self, step: &Step, membership: &Membership) {
        let record = |id: MemberId| membership.member(id).and_then(|member| member.record.as_ref());
        let node = |id: MemberId| record(id).map_or("", |record| &record.node);
        if let Step::Remove { member, .. } | Step::Forget(member) = *step
            && let Some(record) = record(member)
            && let Owner::Node(roles) = record.owner
            && (roles.desired, roles.observed) == (Role::Worker, Role::Manager)
        {
            self.count(("manager", "worker"), "done", 1);
            let note = format!("worker now: {}", record.node);
            self.publish(Severity::Normal, "RoleChanged", note);
        }
        match step {
            Step::Remove { member, .. } => {
                self.count((kind(membership, *member), "none"), "done", 1);
                let cause = membership.member(*member).and_then(Member::removal);
                let why = cause.map_or("", cause_words);
                let note = format!("member {member} of node {} was removed: {why}", node(*member));
                self.publish(Severity::Normal, "MemberRemoved", note);
            }
            Step::Promote { member, .. } => {
                self.count(("learner", "voter"), "done", 1);
                let note = format!("member {member} of node {} votes", node(*member));
                self.publish(Severity::Normal, "MemberPromoted", note);
            }
            Step::Add { node, .. } | Step::Record { node, .. } => {
                self.count(("none", "learner"), "done", 1);
                let note = format!("node {node} joins as a learner");
                self.publish(Severity::Normal, "MemberAdded", note);
            }
            Step::Note {
                node,
                progress: Progress::Refused,
                why: Some((reason, message)),
                ..
            } => {
                self.count(("none", "learner"), "refused", 1);
                let note = format!("node {node} does not join, refused by rule {reason}: {message}");
                self.publish(Severity::Warning, "JoinRefused", note);
            }
            other => info!("done: {other}"),
        }
    }

    /// A step failed and will be tried again.
    pub fn step_failed(&self, step: &Step, membership: &Membership, reason: Reason, message: &str) {
        let change = match step {
            Step::Add { .. } => ("none", "learner"),
            Step::Promote { .. } => ("learner", "voter"),
            Step::Remove { member, .. } => (kind(membership, *member), "none"),
            Step::MoveLeadership { .. } => ("voter", "none"),
            _ => return info!("failed, to be tried again: {step}: {message}"),
        };
        self.count(change, "failed", 1);
        info!("failed, to be tried again: {step}: {reason}: {message}");
    }

    /// Nodes without a member have changed their roles.
    pub fn roles_changed(&self, made: &[Transition]) {
        let word = |role: Role| match role {
            Role::Manager => "manager",
            Role::Worker => "worker",
            Role::Unspecified => "none",
        };
        let mut changes: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for one in made {
            let names = changes.entry((word(one.from), word(one.to))).or_default();
            names.push(one.node.as_str());
        }
        for (change, names) in changes {
            self.count(change, "done", names.len());
            let (shown, more) = names.split_at(names.len().min(3));
            let more = match more.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let note = format!("{} now: {}{more}", change.1, shown.join(", "));
            self.publish(Severity::Normal, "RoleChanged", note);
        }
    }

    /// Sets the gauges after all members had their time to answer, and reports new members without a record.
    pub fn observe(&mut self, index: &Index, membership: &Membership, blocked: &[Blocked]) {
        for kind in &MEMBER_KINDS {
            let count = membership
                .listed()
                .filter(|member| kind_of(member) == *kind)
                .count();
            self.metrics.members.get_or_create(kind).set(gauge(count));
        }
        self.observe_alarms(membership);
        let bytes = membership.db_size().unwrap_or(0);
        self.metrics
            .etcd_database_bytes
            .set(i64::try_from(bytes).unwrap_or(i64::MAX));
        let unmanaged = membership.members.iter().filter(|member| member.record.is_none());
        let unmanaged: BTreeSet<MemberId> = unmanaged.map(|member| member.id).collect();
        self.metrics.members_unmanaged.set(gauge(unmanaged.len()));
        self.metrics.removed_nodes.set(gauge(index.removed_len()));
        let at_risk = blocked.iter().any(|blocked| blocked.reason == Reason::QuorumRisk);
        self.metrics.quorum_blocked.set(i64::from(at_risk));
        let managed = membership.members.iter().any(|member| member.record.is_some());
        for id in unmanaged.difference(&self.unmanaged).filter(|_| managed) {
            let note = format!("etcd's member {id} belongs to no node and is left alone (quorate adopt)");
            self.publish(Severity::Warning, "UnmanagedMember", note);
        }
        self.unmanaged = unmanaged;
        self.report_unreadable(index);
    }

    /// Reports records that cannot be read: each may be that of any node's member.
    fn report_unreadable(&mut self, index: &Index) {
        let unreadable: BTreeSet<MemberId> = index.unreadable_records().collect();
        for id in unreadable.difference(&self.unreadable) {
            let note = format!(
                "the record of member {id} cannot be read: as long as it is there, no manager without a member becomes a \
                 worker, and member {id} is left alone (docs/troubleshooting.md says in which order to mend that)"
            );
            self.publish(Severity::Warning, "UnreadableMember", note);
        }
        self.unreadable = unreadable;
    }

    fn observe_alarms(&mut self, membership: &Membership) {
        let alarms: BTreeSet<Alarm> = membership.alarms().into_iter().cloned().collect();
        for kind in ALARM_KINDS {
            let count = alarms.iter().filter(|alarm| alarm.kind == kind).count();
            let gauge_of_kind = self.metrics.etcd_alarms.get_or_create(&AlarmKind { kind });
            gauge_of_kind.set(gauge(count));
        }
        for Alarm { member, kind } in alarms.difference(&self.alarms) {
            let note = format!(
                "etcd has raised the alarm {kind} of member {member} (quorate status says what to do)"
            );
            self.publish(Severity::Warning, "EtcdAlarm", note);
        }
        self.alarms = alarms;
    }

    /// Reports what is newly blocked, or blocked for another reason than before.
    pub fn blocked(&mut self, membership: &Membership, blocked: &[Blocked]) {
        for Blocked {
            subject,
            node,
            reason,
            message,
        } in blocked
        {
            if self.blocked.get(subject) == Some(reason) {
                continue;
            }
            let change = match (subject, reason) {
                (Subject::Join(_), _) => ("none", "learner"),
                (_, Reason::LearnerNotStarted | Reason::LearnerNotInSync) => ("learner", "voter"),
                (Subject::Member(id), _) => (kind(membership, *id), "none"),
            };
            let moves = matches!(reason, Reason::AddressUnproven | Reason::PeerMismatch)
                || matches!(subject, Subject::Member(id) if membership.member(*id).is_some_and(is_moving))
                    && !matches!(reason, Reason::NodeMissing | Reason::LeadershipNotMoved);
            let note = match moves {
                true => format!("the move of node {node} is not done, {reason}: {message}"),
                false => {
                    self.count(change, "blocked", 1);
                    format!("the role of node {node} cannot change now, {reason}: {message}")
                }
            };
            self.publish(Severity::Warning, "RoleChangeBlocked", note);
        }
        let now = blocked.iter().map(|one| (one.subject.clone(), one.reason));
        self.blocked = now.collect();
    }
}

/// Whether what is in the way of a change of this member is in the way of its move: it keeps its role. A node that is missing,
/// and leadership of a member with corrupt data, are in the way of more.
fn is_moving(member: &Member) -> bool {
    member.readdress().is_some() && member.cause().is_none()
}

fn kind(membership: &Membership, id: MemberId) -> &'static str {
    match membership.member(id).is_some_and(Member::is_learner) {
        true => "learner",
        false => "voter",
    }
}

fn kind_of(member: &Member) -> MemberKind {
    member_kind(
        if member.is_learner() { "learner" } else { "voter" },
        if member.is_healthy() {
            "healthy"
        } else {
            "unhealthy"
        },
    )
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::members::Listener;
    use crate::proto::removal::Cause;
    use crate::roles::membership::tests::fixtures::{surveyed, voter};

    fn reporter() -> Reporter {
        Reporter::new(Metrics::new("0.1.0"), Notices::default())
    }

    fn counted(reporter: &Reporter, change: (&'static str, &'static str), result: &'static str) -> u64 {
        let (from, to) = change;
        let change = RoleChange { from, to, result };
        reporter.metrics.role_transitions.get_or_create(&change).get()
    }

    #[test]
    fn a_move_that_waits_changes_no_role_whatever_it_waits_for() {
        let mut reporter = reporter();
        let membership = surveyed(vec![voter(1), voter(2).moving(Listener::Absent)]);
        for reason in [
            Reason::QuorumRisk,
            Reason::PeerUnreachable,
            Reason::AddressUnproven,
        ] {
            let subject = Subject::Member(MemberId(2));
            reporter.blocked(&membership, &[Blocked::new(subject, "n2", reason, "it waits")]);
        }
        assert_eq!(counted(&reporter, ("voter", "none"), "blocked"), 0);
        let leaving = surveyed(vec![voter(1), voter(2).demoted().moving(Listener::Absent)]);
        let blocked = |reason| {
            [Blocked::new(
                Subject::Member(MemberId(2)),
                "n2",
                reason,
                "it waits",
            )]
        };
        reporter.blocked(&leaving, &blocked(Reason::QuorumRisk));
        assert_eq!(counted(&reporter, ("voter", "none"), "blocked"), 1);
        // Of a member that moves, too.
        reporter.blocked(&membership, &blocked(Reason::NodeMissing));
        assert_eq!(counted(&reporter, ("voter", "none"), "blocked"), 2);
    }

    #[test]
    fn a_learner_that_is_not_removed_counts_as_a_learner() {
        let mut reporter = reporter();
        let leaving = |member: Member| member.leaving(Cause::Demoted);
        let membership = surveyed(vec![
            leaving(voter(1)),
            leaving(voter(2).learner()),
            voter(3).learner(),
        ]);
        let blocked = |id| {
            let subject = Subject::Member(MemberId(id));
            Blocked::new(subject, "n", Reason::EtcdRefused, "refused")
        };
        reporter.blocked(&membership, &[blocked(1), blocked(2)]);
        for member in [1, 2, 2].map(MemberId) {
            let through = MemberId(3);
            let remove = Step::Remove { member, through };
            reporter.step_failed(&remove, &membership, Reason::EtcdRefused, "refused");
        }
        assert_eq!(counted(&reporter, ("voter", "none"), "blocked"), 1);
        assert_eq!(counted(&reporter, ("learner", "none"), "blocked"), 1);
        assert_eq!(counted(&reporter, ("voter", "none"), "failed"), 1);
        assert_eq!(counted(&reporter, ("learner", "none"), "failed"), 2);
    }
}
