//! What is known of one node, one member record, one join.

use jiff::Timestamp;

use crate::etcd::{KeyValue, Revision};
use crate::proto::{Condition, Member, Node, Role};
use crate::roles::reason::{EVICTION_BLOCKED, ROLE_CHANGE_BLOCKED};
use crate::store::object::{decode, member, time};

/// A node, as far as its role goes.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// Given at its creation.
    pub uid: String,
    /// What the operator wants.
    pub desired: Role,
    /// What the leader found.
    pub observed: Role,
    /// Its condition [`ROLE_CHANGE_BLOCKED`].
    pub blocked: Option<Condition>,
    /// Counts the changes of its spec.
    pub generation: i64,
    /// The stored bytes: what is written anew keeps everything else. Empty for workers that are to stay workers.
    pub value: Vec<u8>,
}

impl NodeFacts {
    pub(super) fn read(name: &str, kv: &KeyValue) -> Option<Self> {
        let node: Node = decode(name, &kv.value).ok()?;
        let metadata = node.metadata.unwrap_or_default();
        let status = node.status.unwrap_or_default();
        let mut facts = Self {
            uid: metadata.uid,
            desired: node.spec.unwrap_or_default().desired_role(),
            observed: status.role(),
            blocked: condition(&status.conditions, ROLE_CHANGE_BLOCKED),
            generation: metadata.generation,
            value: Vec::new(),
        };
        if facts.desired != Role::Worker || facts.observed != Role::Worker || facts.blocked.is_some() {
            facts.value = kv.value.clone();
        }
        Some(facts)
    }

    /// Whether it wants another role than it has, and both are known to this release.
    pub fn differs(&self) -> bool {
        matches!(
            (self.desired, self.observed),
            (Role::Manager, Role::Worker | Role::Unspecified)
                | (Role::Worker, Role::Manager | Role::Unspecified)
        )
    }
}

/// A member record, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// As stored.
    pub member: Member,
    /// When it joined.
    pub joined_at: Option<Timestamp>,
    /// Its condition [`EVICTION_BLOCKED`].
    pub blocked: Option<Condition>,
}

impl Record {
    pub(super) fn read(kv: &KeyValue) -> Option<Self> {
        let member = member::decode_member(&kv.value).ok()?;
        Some(Self {
            joined_at: time::from_proto(member.joined_at.as_ref()),
            blocked: condition(&member.conditions, EVICTION_BLOCKED),
            member,
        })
    }
}

/// Whose a member or a join is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Owner<'a> {
    /// This node, last written then.
    Node(&'a NodeFacts, Revision),
    /// A node whose value cannot be read, or one that is not identified. Nothing is done about its member.
    Unknown,
    /// No node has its uid.
    Gone,
}

fn condition(conditions: &[Condition], kind: &str) -> Option<Condition> {
    let of_kind = |condition: &&Condition| condition.r#type == kind;
    conditions.iter().find(of_kind).cloned()
}
