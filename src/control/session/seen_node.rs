//! A node, as far as its sessions are concerned. Pure.

use crate::proto::{Node, NodeSpec, Role};
use crate::store::Name;
use crate::store::object::node::{DUPLICATE_AGENT, is_accepted};
use crate::store::object::{condition, decode};

/// A node that could be read.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenNode {
    /// The uid that it got when it was created.
    pub uid: String,
    /// Its observed role.
    pub role: Role,
    /// Whether it is accepted.
    pub is_accepted: bool,
    /// What the operator wants of it.
    pub spec: NodeSpec,
    /// Whether it has the condition [`DUPLICATE_AGENT`].
    pub is_duplicate: bool,
}

impl SeenNode {
    /// Reads a stored node; `None` if it cannot be read.
    pub fn read(name: &Name, value: &[u8]) -> Option<Self> {
        let node: Node = decode(name.as_str(), value).ok()?;
        let status = node.status.unwrap_or_default();
        let spec = node.spec.unwrap_or_default();
        Some(Self {
            is_accepted: is_accepted(&spec),
            role: status.role(),
            is_duplicate: condition::find(&status.conditions, DUPLICATE_AGENT).is_some(),
            spec,
            uid: node.metadata.unwrap_or_default().uid,
        })
    }
}
