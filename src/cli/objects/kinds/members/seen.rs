//! What is known of one member: from etcd's list, from its record, and from what the members say.

use std::collections::BTreeSet;

use crate::cli::objects::view::View;
use crate::cli::output::{NONE, UNKNOWN};
use crate::etcd::members::{ListedMember, Status, latest_raft_leader, most_committed};
use crate::etcd::{KeyValue, MemberId, Revision};
use crate::proto::condition::Status as ConditionStatus;
use crate::proto::{Condition, Member};
use crate::roles::membership as roles;
use crate::roles::reason::{QUORUM_LOST, UNMANAGED_MEMBER};
use crate::store::object::{Malformed, condition, member};

/// Everything that is known of one member.
pub(super) struct Seen<'v> {
    pub(super) id: MemberId,
    /// The member as it was observed; its record is older than the one that is shown.
    pub(super) member: Option<&'v roles::Member>,
    pub(super) record: Option<Member>,
    /// Whether it is etcd's leader; `None` if no member says which one is.
    pub(super) leads: Option<bool>,
    /// Entries that it has yet to apply, of those that any member knows to be committed.
    pub(super) lag: Option<u64>,
    pub(super) alarms: Vec<&'v str>,
    /// Why etcd has no quorum, as far as the command can see; `None` if it has one.
    quorum_lost: Option<String>,
}

impl<'v> Seen<'v> {
    pub(super) fn new(view: &'v View, id: MemberId, stored: &KeyValue) -> Result<Self, Malformed> {
        let record = match stored.mod_revision {
            Revision::ABSENT => None,
            _ => Some(member::decode_member(&stored.value)?),
        };
        let members = view
            .membership()
            .map_or(&[][..], |membership| &membership.members);
        let all = || members.iter().map(|member| &member.evidence);
        let member = members.iter().find(|member| member.id == id);
        let statuses = all().filter_map(|evidence| evidence.status.answer());
        let alarms = statuses.flat_map(|status| &status.alarms);
        let own: BTreeSet<&str> = alarms
            .filter(|alarm| alarm.member == id)
            .map(|alarm| alarm.kind.as_str())
            .collect();
        let mut seen = Self {
            id,
            member,
            record,
            leads: latest_raft_leader(all()).map(|leader| leader == id),
            lag: None,
            alarms: own.into_iter().collect(),
            quorum_lost: quorum_lost(view),
        };
        let lag = |status: &Status| most_committed(all()).saturating_sub(status.applied);
        seen.lag = seen.status().map(lag);
        Ok(seen)
    }

    pub(super) fn listed(&self) -> Option<&'v ListedMember> {
        self.member.and_then(|member| member.listed.as_ref())
    }

    pub(super) fn status(&self) -> Option<&'v Status> {
        self.member.and_then(|member| member.evidence.status.answer())
    }

    pub(super) fn role(&self) -> &'static str {
        match self.listed() {
            Some(listed) if listed.learner => "learner",
            Some(_) => "voter",
            None => NONE,
        }
    }

    pub(super) fn health(&self) -> &'static str {
        let record = self.record.as_ref();
        let decided = record.is_some_and(|record| record.removal.is_some());
        match (self.listed(), self.illness()) {
            (None, _) => "not listed",
            (Some(_), _) if decided => "removing",
            (Some(listed), _) if !listed.is_started() => "not started",
            (Some(_), None) => "healthy",
            (Some(_), Some(_)) => "unhealthy",
        }
    }

    /// Why it is not healthy; `None` if it is, or if it is not listed.
    pub(super) fn illness(&self) -> Option<String> {
        self.listed()?;
        self.member?.illness()
    }

    pub(super) fn node(&self) -> &str {
        self.record.as_ref().map_or("", |record| &record.node)
    }

    pub(super) fn conditions(&self) -> Vec<Condition> {
        let mut conditions = match &self.record {
            Some(record) => record.conditions.clone(),
            None => vec![computed(
                UNMANAGED_MEMBER,
                "NoRecord",
                "Quorate has no record of it and leaves it alone; quorate adopt makes one",
            )],
        };
        if let Some(why) = &self.quorum_lost {
            condition::clear(&mut conditions, QUORUM_LOST);
            conditions.push(computed(QUORUM_LOST, "NoLinearizableRead", why));
        }
        conditions
    }
}

/// A condition that is not stored.
fn computed(r#type: &str, reason: &str, message: &str) -> Condition {
    Condition {
        r#type: r#type.to_owned(),
        status: ConditionStatus::True.into(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..Condition::default()
    }
}

fn quorum_lost(view: &View) -> Option<String> {
    let membership = view.membership().filter(|_| view.is_quorum_lost())?;
    let voters = membership.voters().count();
    let answers = membership.voters();
    let answers = answers.filter(|voter| voter.evidence.status.answer().is_some());
    Some(format!(
        "no voter answers a linearizable read: of {voters} voters {} answer here, and {} are needed",
        answers.count(),
        voters / 2 + 1
    ))
}

/// The value, or that it is not known.
pub(super) fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}
