//! Observed roles of nodes without a member: a promotion takes effect at once, and a desired worker without a member
//! becomes a worker. Pure. Membership itself is decided in [`super::plan`].

use super::index::Index;
use super::node_update;
use crate::etcd::Revision;
use crate::proto::Role;
use crate::store::writer::{Proof, Unit};
use crate::store::{Keys, Name};

/// A node whose observed role becomes its desired role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The node.
    pub node: Name,
    /// The observed role so far.
    pub from: Role,
    /// The observed role from now on.
    pub to: Role,
}

/// The transitions that can be made now, each with its write, of nodes whose key is free.
pub fn transitions(
    index: &Index,
    keys: &Keys,
    is_free: impl Fn(&[u8]) -> bool,
) -> impl Iterator<Item = (Transition, Unit)> {
    // A node or join that was not read yet must not lead to a change.
    let mismatches = index.is_complete().then(|| index.role_mismatches());
    mismatches.into_iter().flatten().filter_map(move |(name, facts)| {
        let node: Name = name.parse().ok()?;
        let key = keys.node(&node);
        let roles = facts.roles;
        let to_worker = roles.desired == Role::Worker;
        if !is_free(&key) || (to_worker && index.may_be_member(name)) {
            return None;
        }
        let value = node_update::with_role(&facts.value, roles.desired);
        let unpaused = Proof::Unchanged(keys.roles_pause(), Revision::ABSENT);
        let unit = Unit::new().put(key, roles.revision, value).proving(unpaused);
        let unit = match to_worker {
            // So that no add can be decided meanwhile, and no member was tied to the node by hand during a pause: the write may have
            // waited for its turn.
            true => unit
                .proving(Proof::Unchanged(keys.join(&node), index.join(name).1))
                .proving(Proof::Unchanged(keys.last_roles_pause(), index.last_pause())),
            false => unit,
        };
        let transition = Transition {
            node,
            from: roles.observed,
            to: roles.desired,
        };
        Some((transition, unit))
    })
}
