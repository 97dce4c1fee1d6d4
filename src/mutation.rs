//! Guards that can be taken out of a build for this alone (`--cfg quorate_mutations`), to prove that the checker of `chaos/` notices.
//!
//! In any other build [`without`] is a constant, and the compiler takes it out with what it guards.

/// A guard that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The first compare of every write of the leader (INV-1).
    Fence,
    /// The end of the window of a lease (INV-2, INV-3).
    Window,
    /// The intent before a volume is created (INV-3).
    Intent,
    /// The end of serving with the registration (INV-4).
    Registration,
    /// The proof of a restriction that no node changed (INV-4).
    Nodes,
    /// The look at the releases that run, before a restriction (INV-4).
    Releases,
    /// The healthy quorum after a change of members (INV-5).
    Quorum,
    /// Members begin as learners (INV-5).
    Learner,
    /// A publication ends at the plugin before its record does (INV-6).
    Unpublish,
    /// The confirmation of the node (INV-6).
    Confirmation,
    /// One operation at a time for a volume (INV-6).
    InFlight,
    /// A call needs a node id (INV-6).
    NodeId,
    /// The proof that a service has no task (INV-7).
    Tasks,
    /// The mark of a network (INV-7).
    Mark,
    /// What cannot be read delays nothing else (INV-8).
    Unreadable,
    /// The delays between attempts (INV-9).
    Backoff,
    /// The end of the work before the lease is given back (INV-10).
    Join,
    /// The check of every answer against the store that was read (INV-11).
    OwnStore,
    /// The record of a removed node, compared by what ends with it (INV-12).
    Removed,
    /// The observed role in a certificate (INV-13).
    Role,
    /// The node, compared by the record of its certificate (INV-13).
    Node,
}

/// Whether this process runs without the guard.
#[cfg(not(quorate_mutations))]
pub const fn without(_: Guard) -> bool {
    false
}

#[cfg(quorate_mutations)]
pub use chosen::without;

#[cfg(quorate_mutations)]
mod chosen {
    use std::sync::OnceLock;

    use super::Guard;

    /// The name of a [`Guard`], in the environment of a process.
    const VARIABLE: &str = "QUORATE_MUTATION";

    /// Whether this process runs without the guard: the one that its environment names, as the enum spells it.
    pub fn without(guard: Guard) -> bool {
        static CHOSEN: OnceLock<String> = OnceLock::new();
        let chosen = CHOSEN.get_or_init(|| std::env::var(VARIABLE).unwrap_or_default());
        *chosen == format!("{guard:?}")
    }
}
