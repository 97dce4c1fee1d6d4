//! The guards that a build for this alone takes out of the replicas (`src/mutation.rs` of the product), and what brings out that each
//! is gone.

use crate::check::Rule;

/// A guard that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// Its name, as a replica takes it from its environment.
    pub guard: &'static str,
    /// What is broken without it.
    pub rule: Rule,
    /// Kinds of faults under which that shows soon.
    pub under: &'static [&'static str],
}

const fn mutation(guard: &'static str, invariant: u8, under: &'static [&'static str]) -> Mutation {
    Mutation {
        guard,
        rule: Rule::Inv(invariant),
        under,
    }
}

const CUTS: &[&str] = &["black-hole", "replies-lost"];
const PLUGINS: &[&str] = &["plugin-hangs", "plugin-fails", "plugin-dies"];
const NODES: &[&str] = &["kill-agent", "pause-agent"];
const ROLLS: &[&str] = &["roll", "pause-replica"];

/// Every mutation, in the order of the invariants.
pub const ALL: [Mutation; 21] = [
    mutation("Fence", 1, CUTS),
    mutation("Window", 2, CUTS),
    mutation("Intent", 3, PLUGINS),
    mutation("Registration", 4, &["roll", "black-hole"]),
    mutation("Nodes", 4, ROLLS),
    mutation("Releases", 4, ROLLS),
    mutation("Quorum", 5, &["kill-etcd", "pause-etcd"]),
    mutation("Learner", 5, NODES),
    mutation("Unpublish", 6, NODES),
    mutation("Confirmation", 6, NODES),
    mutation("InFlight", 6, PLUGINS),
    mutation("NodeId", 6, NODES),
    mutation("Tasks", 7, CUTS),
    mutation("Mark", 7, CUTS),
    mutation("Unreadable", 8, CUTS),
    mutation("Backoff", 9, &["plugin-fails", "kill-apiserver"]),
    mutation("Join", 10, &["roll"]),
    mutation("OwnStore", 11, &["restore-under-replicas"]),
    mutation("Removed", 12, NODES),
    mutation("Role", 13, NODES),
    mutation("Node", 13, NODES),
];

/// The mutation of this name.
pub fn named(guard: &str) -> Option<Mutation> {
    ALL.into_iter().find(|mutation| mutation.guard == guard)
}
