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
    /// The check that has to find that, by what it demands. Another one may find what follows from it, and proves nothing of this one.
    pub check: &'static str,
    /// Kinds of faults under which that shows soon.
    pub under: &'static [&'static str],
    /// What the workload does for it; empty: everything.
    pub deeds: &'static [&'static str],
    /// How many times as long it takes from one fault to the next: what comes about only in a cluster that works needs time for that.
    pub pace: u64,
    /// How many faults a run has.
    pub faults: u32,
}

const fn mutation(
    guard: &'static str,
    invariant: u8,
    check: &'static str,
    under: &'static [&'static str],
) -> Mutation {
    Mutation {
        guard,
        rule: Rule::Inv(invariant),
        check,
        under,
        deeds: &[],
        pace: 1,
        faults: 40,
    }
}

impl Mutation {
    const fn doing(self, deeds: &'static [&'static str]) -> Self {
        Self { deeds, ..self }
    }

    const fn at_pace(self, pace: u64, faults: u32) -> Self {
        Self { pace, faults, ..self }
    }
}

const CUTS: &[&str] = &["black-hole", "replies-lost", "requests-lost"];
const PLUGINS: &[&str] = &["plugin-hangs", "plugin-fails", "plugin-dies"];
const NODES: &[&str] = &["kill-agent", "pause-agent", "agent-network"];
const ROLLS: &[&str] = &["roll", "pause-replica"];

const VOLUMES: &[&str] = &[
    "apply-volume",
    "publish",
    "publish-nowhere",
    "unpublish",
    "delete-volume",
];
const SERVICES: &[&str] = &[
    "apply-network",
    "apply-service",
    "apply-task",
    "delete-task",
    "delete-service",
    "delete-network",
    "end-service",
];
const ROLES: &[&str] = &["promote", "demote", "rotate"];

/// Every mutation, in the order of the invariants.
pub const ALL: [Mutation; 21] = [
    mutation("Fence", 1, "replicas write unfenced only what they own", CUTS),
    mutation("Window", 2, "a leader writes within its window", CUTS),
    mutation("Intent", 3, "an intent stands before its call", PLUGINS)
        .doing(&["apply-volume", "delete-volume"]),
    mutation(
        "Registration",
        4,
        "no replica serves that the status excludes",
        &["roll", "black-hole"],
    ),
    mutation("Nodes", 4, "a restriction proves that no node changed", ROLLS),
    // A release that the next one excludes has to run, and to have reconciled, when that one takes the lead.
    mutation(
        "Releases",
        4,
        "a restriction excludes no registered release",
        &["roll"],
    )
    .at_pace(5, 30),
    // Both agents keep voters, two other voters are lost, and a third is to go.
    mutation(
        "Quorum",
        5,
        "a change is decided with a healthy quorum after it",
        &["kill-most-etcd"],
    )
    .doing(&["promote", "demote-at-risk"])
    .at_pace(20, 12),
    mutation("Learner", 5, "voters are added as learners", NODES).doing(ROLES),
    mutation("Unpublish", 6, "no volume is deleted while published", NODES).doing(VOLUMES),
    mutation("Confirmation", 6, "nothing is detached without a word", NODES).doing(VOLUMES),
    mutation("InFlight", 6, "one call at a time for a volume", PLUGINS).doing(VOLUMES),
    mutation("NodeId", 6, "no call carries an empty node id", NODES).doing(VOLUMES),
    mutation("Tasks", 7, "services are deleted without tasks", CUTS).doing(SERVICES),
    mutation("Mark", 7, "networks are deleted marked and unused", CUTS).doing(SERVICES),
    mutation("Unreadable", 8, "one bad object delays only itself", CUTS).doing(SERVICES),
    mutation(
        "Backoff",
        9,
        "no retry is hot",
        &["plugin-fails", "apiserver-refuses"],
    ),
    mutation(
        "Join",
        10,
        "nothing happens after the lease is revoked",
        &["roll"],
    ),
    mutation(
        "OwnStore",
        11,
        "no replica goes on over a restored store",
        &["restore-under-replicas"],
    ),
    // Between two removals a node joins again, and becomes a voter.
    mutation("Removed", 12, "what ends has its record", NODES)
        .doing(&["promote", "rotate", "apply-volume", "remove-node"])
        .at_pace(6, 20),
    mutation("Role", 13, "a certificate says the observed role", NODES).doing(ROLES),
    mutation("Node", 13, "a certificate says the observed role", NODES).doing(ROLES),
];

/// The mutation of this name.
pub fn named(guard: &str) -> Option<Mutation> {
    ALL.into_iter().find(|mutation| mutation.guard == guard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::names;
    use crate::schedule::KINDS;
    use crate::workload::DEEDS;

    #[test]
    fn every_mutation_names_a_check_of_its_rule_and_faults_and_deeds_that_there_are() {
        for mutation in ALL {
            let guard = mutation.guard;
            let check = (mutation.rule, mutation.check);
            assert!(names().any(|known| known == check), "{guard}");
            assert!(mutation.under.iter().all(|kind| KINDS.contains(kind)), "{guard}");
            let known = |deed: &&str| DEEDS.iter().any(|(name, ..)| name == deed);
            assert!(mutation.deeds.iter().all(known), "{guard}");
        }
    }
}
