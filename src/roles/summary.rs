//! Nodes, members of etcd and joins, for people. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use super::blocked::{Blocked, Subject};
use super::index::{Index, NodeFacts};
use super::membership::{Member, Membership};
use super::plan::{cause_words, progress_word};
use crate::etcd::MemberId;
use crate::proto::Role;
use crate::store::object::node::role_word;
use crate::store::object::time;
use crate::summary::Rows;

/// What the leader knows of roles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolesSummary {
    /// Whether an operator has paused roles.
    pub paused: bool,
    /// The members of etcd; `None` before all of them were asked for the first time.
    pub members: Option<MembersSummary>,
    /// The nodes, as far as their roles are concerned. The page shows them by another table, which more than the leader may know.
    #[serde(skip)]
    pub nodes: Arc<NodesSummary>,
}

/// The members of etcd when the leader has last asked all of them: as soon as something changes, else every 30 s.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MembersSummary {
    /// When they were asked, in RFC 3339.
    pub asked_at: String,
    /// The members that etcd lists or that have a record.
    pub members: Rows<MemberRow>,
    /// The joins that have not ended.
    pub joins: Rows<JoinRow>,
    /// The changes that cannot be made now.
    pub blocked: Rows<ChangeRow>,
    /// The alarms that etcd has raised, each with its member.
    pub alarms: Vec<String>,
}

/// A member of etcd.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberRow {
    /// Its id, in 16 hexadecimal digits.
    pub id: String,
    /// The name of its node; `None` without a record.
    pub node: Option<String>,
    /// `voter`, `learner`; `not listed` where only a record is left
    pub kind: &'static str,
    /// Whether it has proved that it is healthy.
    pub healthy: bool,
    /// Whether the others follow it.
    pub raft_leader: bool,
    /// Why it is not healthy, or what is decided about it, in words.
    pub remarks: Vec<String>,
}

/// A join that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRow {
    /// The name of the node.
    pub node: String,
    /// `requested`, `waiting`, `adding`, `learner`
    pub progress: &'static str,
}

/// A change that cannot be made now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangeRow {
    /// The name of the node; empty if the member has none.
    pub node: String,
    /// The member or join.
    pub subject: String,
    /// The rule that blocks it, in one word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// The nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodesSummary {
    /// How many are ready; `None` where that is not known, because this replica serves no agents.
    pub ready: Option<usize>,
    /// How many have each observed role, by its word; `unknown` for those that have none or cannot be read.
    pub roles: BTreeMap<&'static str, usize>,
    /// The nodes: first those of which something differs from what is wanted.
    pub nodes: Rows<NodeRow>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Whether its agent has a session; `None` where that is not known.
    pub ready: Option<bool>,
    /// The role that the operator wants; empty if it is unset or the record cannot be read.
    pub desired_role: String,
    /// The role that the leader has recorded; empty likewise.
    pub observed_role: String,
    /// What else is unusual, in words.
    pub remarks: Vec<&'static str>,
}

/// The word under which a role is counted.
pub fn counted_role(role: Role) -> &'static str {
    match role {
        Role::Manager => "manager",
        Role::Worker => "worker",
        Role::Unspecified => "unknown",
    }
}

/// The nodes of the index.
pub fn nodes(index: &Index) -> NodesSummary {
    let mut roles = BTreeMap::new();
    let all = index.nodes().map(|(name, facts)| {
        let observed = facts.map_or(Role::Unspecified, |facts| facts.roles.observed);
        *roles.entry(counted_role(observed)).or_default() += 1;
        let is_unusual = facts.is_none_or(|facts| facts.blocked || facts.differs());
        (!is_unusual, name)
    });
    let nodes = Rows::least(all).map(|(_, name)| {
        let facts = index.node(name).and_then(|entry| entry.value.as_ref());
        node(name, facts)
    });
    NodesSummary {
        ready: None,
        roles,
        nodes,
    }
}

fn node(name: &str, facts: Option<&NodeFacts>) -> NodeRow {
    let word = |role: Role| role_word(role.into());
    NodeRow {
        name: name.to_owned(),
        ready: None,
        desired_role: facts.map(|facts| word(facts.roles.desired)).unwrap_or_default(),
        observed_role: facts.map(|facts| word(facts.roles.observed)).unwrap_or_default(),
        remarks: match facts {
            None => vec![UNREADABLE],
            Some(facts) if facts.blocked => vec!["its role cannot change now"],
            Some(_) => Vec::new(),
        },
    }
}

/// The remark on a node whose record cannot be read.
pub const UNREADABLE: &str = "its record cannot be read";

/// The members after all of them had their time to answer, and what cannot be done about them.
pub fn members(membership: &Membership, blocked: &[Blocked], now: Timestamp) -> MembersSummary {
    let joins = membership.joins.iter().map(|pending| JoinRow {
        node: pending.node.clone(),
        progress: progress_word(pending.join.progress()),
    });
    let raft_leader = membership.raft_leader;
    let alarms = membership.alarms().into_iter();
    MembersSummary {
        asked_at: time::rfc3339(now),
        members: Rows::least(membership.members.iter().map(|one| member(one, raft_leader))),
        joins: Rows::least(joins),
        blocked: Rows::least(blocked.iter().map(change)),
        alarms: alarms
            .map(|alarm| format!("{} of member {}", alarm.kind, alarm.member))
            .collect(),
    }
}

fn member(member: &Member, raft_leader: Option<MemberId>) -> MemberRow {
    let mut remarks = Vec::new();
    remarks.extend(member.illness());
    if let Some(cause) = member.removal() {
        remarks.push(format!("it is removed: {}", cause_words(cause)));
    }
    if member.readdress().is_some() {
        remarks.push("it moves to other peer URLs".to_owned());
    }
    if member.record.is_none() {
        remarks.push("it belongs to no node (quorate adopt)".to_owned());
    }
    MemberRow {
        id: member.id.to_string(),
        node: Some(member.node().to_owned()).filter(|node| !node.is_empty()),
        kind: match (member.is_voter(), member.is_learner()) {
            (true, _) => "voter",
            (_, true) => "learner",
            (false, false) => "not listed",
        },
        healthy: member.is_healthy(),
        raft_leader: raft_leader == Some(member.id),
        remarks,
    }
}

fn change(blocked: &Blocked) -> ChangeRow {
    ChangeRow {
        node: blocked.node.clone(),
        subject: match &blocked.subject {
            Subject::Member(id) => format!("member {id}"),
            Subject::Join(_) => "join".to_owned(),
        },
        reason: blocked.reason.as_str().to_owned(),
        message: blocked.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::membership::tests::fixtures::{surveyed, voter};
    use crate::roles::reason::Reason;

    #[test]
    fn each_member_says_whether_it_is_healthy_and_what_is_decided_about_it() {
        let membership = surveyed(vec![voter(1), voter(2).demoted()]);
        let subject = Subject::Member(MemberId(2));
        let blocked = Blocked::new(subject, "n2", Reason::QuorumRisk, "1 of 2 voters is healthy");
        let summary = members(&membership, &[blocked], Timestamp::UNIX_EPOCH);
        let kinds: Vec<(&str, &str)> = summary
            .members
            .first
            .iter()
            .map(|row| (row.id.as_str(), row.kind))
            .collect();
        assert_eq!(
            kinds,
            [("0000000000000001", "voter"), ("0000000000000002", "voter")]
        );
        let change = &summary.blocked.first[0];
        assert_eq!(
            (
                change.node.as_str(),
                change.subject.as_str(),
                change.reason.as_str()
            ),
            ("n2", "member 0000000000000002", "QuorumRisk")
        );
    }
}
