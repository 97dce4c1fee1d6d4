//! What the index keeps of a node.

use crate::etcd::KeyValue;
use crate::proto::{Node, Role};
use crate::roles::owner::NodeRoles;
use crate::roles::reason::ROLE_CHANGE_BLOCKED;
use crate::store::object::{condition, decode};

/// A node, as far as its role is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// The uid that the node got when it was created.
    pub uid: String,
    /// Its roles, and when it was last written.
    pub roles: NodeRoles,
    /// Whether it has the condition `RoleChangeBlocked`.
    pub blocked: bool,
    /// The stored bytes, from which new values are made. Empty for a worker that stays one, where no record and no join named it
    /// when it was read: no write is due there.
    pub value: Vec<u8>,
}

impl NodeFacts {
    /// `is_named` is whether a record or a join names the node: the condition of a blocked change may be due on it, whatever
    /// its roles are.
    pub(super) fn read(name: &str, kv: &KeyValue, is_named: bool) -> Option<Self> {
        let node: Node = decode(name, &kv.value).ok()?;
        let roles = NodeRoles::of(&node, kv.mod_revision);
        let conditions = node.status.map(|status| status.conditions).unwrap_or_default();
        let blocked = condition::find(&conditions, ROLE_CHANGE_BLOCKED).is_some();
        let stays_worker = (roles.desired, roles.observed) == (Role::Worker, Role::Worker) && !blocked;
        Some(Self {
            uid: node.metadata.unwrap_or_default().uid,
            roles,
            blocked,
            value: match stays_worker && !is_named {
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
