//! Observed roles of nodes that have no member: a promotion takes effect at once, and a desired worker that is not a
//! member is a worker. Pure; membership itself is decided in [`super::plan`].

use std::collections::BTreeSet;

use super::index::Index;
use super::writes;
use crate::etcd::{Revision, Txn};
use crate::proto::Role;
use crate::store::{Keys, Name};

/// Nodes in one transaction: each takes up to two compares of the 128 that etcd allows, and the fence one.
pub const BATCH: usize = 60;

/// A node that gets the role that is wanted of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Which.
    pub node: Name,
    /// What it was observed as.
    pub from: Role,
    /// What it becomes.
    pub to: Role,
    /// When it was last written.
    pub revision: Revision,
    /// When its join was last written; compared where it becomes a worker, so that no add is decided on meanwhile.
    join: Option<Revision>,
    /// What is written.
    value: Vec<u8>,
}

/// Transitions that can be made now, but for nodes that are `taken`: up to [`BATCH`].
pub fn plan_transitions(index: &Index, taken: &BTreeSet<Name>) -> Vec<Transition> {
    // What was not observed is no reason to change anything.
    if !index.is_complete() {
        return Vec::new();
    }
    let due = index.differing().filter_map(|(name, facts, revision)| {
        let node: Name = name.parse().ok()?;
        if taken.contains(&node) {
            return None;
        }
        let to_worker = facts.desired == Role::Worker;
        if to_worker && index.may_be_member(name) {
            return None;
        }
        Some(Transition {
            from: facts.observed,
            to: facts.desired,
            revision,
            join: to_worker.then(|| index.join(name).1),
            value: writes::with_role(&facts.value, facts.desired),
            node,
        })
    });
    due.take(BATCH).collect()
}

/// One transaction for all of them: each node as it was when this was decided.
pub fn transaction(keys: &Keys, transitions: &[Transition]) -> Txn {
    transitions.iter().fold(Txn::new(), |txn, transition| {
        let key = keys.node(&transition.node);
        let txn = txn
            .when_unchanged(&key, transition.revision)
            .put(&key, transition.value.clone());
        match transition.join {
            Some(revision) => txn.when_unchanged(&keys.join(&transition.node), revision),
            None => txn,
        }
    })
}
