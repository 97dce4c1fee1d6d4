//! What the index keeps of a node and of a member record.

use jiff::Timestamp;

use crate::etcd::KeyValue;
use crate::proto::{Condition, Member, Node, Role};
use crate::roles::membership::NodeRoles;
use crate::roles::reason::{EVICTION_BLOCKED, ROLE_CHANGE_BLOCKED};
use crate::store::object::{decode, member, time};

/// A node, as far as its role is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// The uid that the node got when it was created.
    pub uid: String,
    /// Its roles, and when it was last written.
    pub roles: NodeRoles,
    /// Its condition `RoleChangeBlocked`.
    pub blocked: Option<Condition>,
    /// The generation of its spec.
    pub generation: i64,
    /// The stored bytes, from which new values are made. Empty for a worker that stays one: no write is due there.
    pub value: Vec<u8>,
}

impl NodeFacts {
    pub(super) fn read(name: &str, kv: &KeyValue) -> Option<Self> {
        let node: Node = decode(name, &kv.value).ok()?;
        let metadata = node.metadata.unwrap_or_default();
        let status = node.status.unwrap_or_default();
        let mut facts = Self {
            uid: metadata.uid,
            roles: NodeRoles {
                desired: node.spec.unwrap_or_default().desired_role(),
                observed: status.role(),
                revision: kv.mod_revision,
            },
            blocked: condition(&status.conditions, ROLE_CHANGE_BLOCKED),
            generation: metadata.generation,
            value: Vec::new(),
        };
        let NodeRoles {
            desired, observed, ..
        } = facts.roles;
        if desired != Role::Worker || observed != Role::Worker || facts.blocked.is_some() {
            facts.value = kv.value.clone();
        }
        Some(facts)
    }

    /// Whether the desired role differs from the observed one, and this release knows both.
    pub fn differs(&self) -> bool {
        matches!(
            (self.roles.desired, self.roles.observed),
            (Role::Manager, Role::Worker | Role::Unspecified)
                | (Role::Worker, Role::Manager | Role::Unspecified)
        )
    }
}

/// A member record that can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecord {
    /// The record as stored.
    pub member: Member,
    /// When the member joined.
    pub joined_at: Option<Timestamp>,
    /// Its condition `EvictionBlocked`.
    pub blocked: Option<Condition>,
}

impl StoredRecord {
    pub(super) fn read(kv: &KeyValue) -> Option<Self> {
        let member = member::decode_member(&kv.value).ok()?;
        Some(Self {
            joined_at: time::from_proto(member.joined_at.as_ref()),
            blocked: condition(&member.conditions, EVICTION_BLOCKED),
            member,
        })
    }
}

fn condition(conditions: &[Condition], kind: &str) -> Option<Condition> {
    let of_kind = |condition: &&Condition| condition.r#type == kind;
    conditions.iter().find(of_kind).cloned()
}
