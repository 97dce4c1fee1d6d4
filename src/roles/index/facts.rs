//! What the index keeps of a node and of a member record.

use jiff::Timestamp;

use crate::etcd::KeyValue;
use crate::proto::{Member, Node, Role};
use crate::roles::owner::NodeRoles;
use crate::roles::reason::ROLE_CHANGE_BLOCKED;
use crate::store::object::{condition, decode, member, time};

/// A node, as far as its role is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// The uid that the node got when it was created.
    pub uid: String,
    /// Its roles, and when it was last written.
    pub roles: NodeRoles,
    /// Whether it has the condition `RoleChangeBlocked`.
    pub blocked: bool,
    /// The stored bytes, from which new values are made. Empty for a worker that stays one: no write is due there.
    pub value: Vec<u8>,
}

impl NodeFacts {
    pub(super) fn read(name: &str, kv: &KeyValue) -> Option<Self> {
        let node: Node = decode(name, &kv.value).ok()?;
        let status = node.status.unwrap_or_default();
        let (desired, observed) = (node.spec.unwrap_or_default().desired_role(), status.role());
        let blocked = condition::find(&status.conditions, ROLE_CHANGE_BLOCKED).is_some();
        let stays_worker = (desired, observed) == (Role::Worker, Role::Worker) && !blocked;
        Some(Self {
            uid: node.metadata.unwrap_or_default().uid,
            roles: NodeRoles {
                desired,
                observed,
                revision: kv.mod_revision,
            },
            blocked,
            value: match stays_worker {
                true => Vec::new(),
                false => kv.value.clone(),
            },
        })
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
}

impl StoredRecord {
    pub(super) fn read(kv: &KeyValue) -> Option<Self> {
        let member = member::decode_member(&kv.value).ok()?;
        Some(Self {
            joined_at: time::from_proto(member.joined_at.as_ref()),
            member,
        })
    }
}
