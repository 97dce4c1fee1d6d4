//! The decisions of the gate. Pure.

use std::fmt;

use super::releases::{FEW, Releases};
use super::status::{State, Status};
use crate::release::{Release, Version};

/// The version of a bundle and its two minimums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleVersions {
    /// The version that the status names once everything is reconciled.
    pub version: Version,
    /// The least release that must have reconciled the state before a process with this bundle may serve.
    pub min_reconciler: Release,
    /// The least release that is compatible with the state that this bundle describes.
    pub min_apiserver: Release,
}

impl BundleVersions {
    /// The status once everything is reconciled.
    pub fn final_status(&self) -> Status {
        Status::new(State::Done, self.version.clone(), self.min_apiserver)
    }
}

/// How a new leader deals with the stored status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// There is no status: reconcile, then create it. Until then no process is admitted.
    Create,
    /// There is no status, but there was one: processes that it admitted may run. Wait until none that the new state excludes
    /// does, then reconcile and create the status.
    CreateAgain,
    /// It is the final status already: leave it, and reconcile.
    Leave,
    /// It admits no release that the new state excludes: set it to WORKING.
    Work(Status),
    /// It admits releases that the new state excludes: first write this narrower status, once no such release runs.
    Restrict(Status),
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create => f.write_str("there is no status yet: reconcile, then create it"),
            Self::CreateAgain => {
                f.write_str("the status is gone: reconcile once no node is excluded, then create it")
            }
            Self::Leave => f.write_str("the status is up to date: leave it"),
            Self::Work(_) => f.write_str("the status is compatible: set it to WORKING"),
            Self::Restrict(to) => {
                write!(f, "the status admits incompatible releases: restrict it to {to}")
            }
        }
    }
}

/// Chooses a plan by the stored status; `None` if it is absent or malformed. `preceded`: an earlier leader has begun, by what
/// it left.
pub fn plan(stored: Option<&Status>, preceded: bool, bundle: &BundleVersions) -> Plan {
    let Some(stored) = stored else {
        return if preceded { Plan::CreateAgain } else { Plan::Create };
    };
    if stored.says_the_same_as(&bundle.final_status()) {
        Plan::Leave
    } else if bundle.version.release >= stored.version.release
        && stored.minimum_compatible >= bundle.min_apiserver
    {
        Plan::Work(stored.in_state(State::Working))
    } else {
        Plan::Restrict(stored.intersection(&bundle.version, bundle.min_apiserver))
    }
}

/// A node that keeps the status from being restricted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// It runs a release that the new state excludes.
    Below {
        /// Node name.
        node: String,
        /// The release that it runs.
        release: Release,
        /// The least release that would not be in the way.
        needs: Release,
    },
    /// It runs a newer release, which should reconcile instead.
    Above {
        /// Node name.
        node: String,
        /// The release that it runs.
        release: Release,
    },
    /// Its value cannot be parsed.
    Unreadable {
        /// Node name.
        node: String,
    },
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Below { node, release, needs } => write!(f, "node {node} at {release}, needs {needs}"),
            Self::Above { node, release } => write!(f, "node {node} at {release}, which is newer"),
            Self::Unreadable { node } => write!(f, "node {node}, whose record cannot be parsed"),
        }
    }
}

/// The nodes that are in the way: the first few, least release first, and how many more. Prints as one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blockers {
    /// The nodes that are named, at most [`FEW`].
    pub named: Vec<Blocker>,
    /// How many others there are.
    pub more: usize,
}

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<String> = self.named.iter().map(Blocker::to_string).collect();
        write!(f, "waiting for {}", named.join("; "))?;
        match self.more {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// Whether the status may be restricted now: no node is in the way (INV-4). The transaction must prove that no node was
/// written since [`Releases::last_write`].
///
/// # Errors
/// [`Blockers`], at least one.
pub fn may_restrict(releases: &Releases, bundle: &BundleVersions) -> Result<(), Blockers> {
    let Releases {
        outside, unreadable, ..
    } = releases;
    if outside.is_empty() && unreadable.is_empty() {
        return Ok(());
    }
    let total = outside.total + unreadable.total;
    let outside = outside.first.iter().map(|(release, node)| {
        let (node, release) = (node.clone(), *release);
        if release < bundle.min_apiserver {
            Blocker::Below {
                node,
                release,
                needs: bundle.min_apiserver,
            }
        } else {
            Blocker::Above { node, release }
        }
    });
    let unreadable = unreadable.first.iter().cloned();
    let unreadable = unreadable.map(|node| Blocker::Unreadable { node });
    let named: Vec<Blocker> = outside.chain(unreadable).take(FEW).collect();
    Err(Blockers {
        more: total.saturating_sub(named.len()),
        named,
    })
}

/// Whether a release may serve.
///
/// # Errors
/// The reason why it may not, for people.
pub fn admits(status: &Status, release: Release, min_reconciler: Release) -> Result<(), String> {
    // WORKING does not block: what is compatible with both the old state and the new one may serve.
    if release < status.minimum_compatible {
        return Err(format!(
            "release {release} is below the minimum compatible release {} of the reconciled state",
            status.minimum_compatible
        ));
    }
    if status.version.release < min_reconciler {
        return Err(format!(
            "the state was reconciled by {}, but {release} needs at least {min_reconciler}",
            status.version
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn release(minor: u32) -> Release {
        Release::new(0, minor, 0)
    }

    fn bundle(version: u32, min_apiserver: u32) -> BundleVersions {
        BundleVersions {
            version: release(version).into(),
            min_reconciler: release(min_apiserver),
            min_apiserver: release(min_apiserver),
        }
    }

    fn stored(state: State, version: u32, minimum: u32) -> Status {
        Status::new(state, release(version).into(), release(minimum))
    }

    #[test]
    fn without_a_status_it_is_created_after_reconciling() {
        assert_eq!(plan(None, false, &bundle(5, 3)), Plan::Create);
    }

    #[test]
    fn a_status_that_is_gone_or_garbled_is_no_way_round_a_restriction() {
        assert_eq!(plan(None, true, &bundle(5, 3)), Plan::CreateAgain);
    }

    #[test]
    fn the_final_status_is_left_alone() {
        assert_eq!(
            plan(Some(&stored(State::Done, 5, 3)), true, &bundle(5, 3)),
            Plan::Leave
        );
    }

    #[test]
    fn a_compatible_status_becomes_working_and_keeps_its_numbers() {
        let plan_of = |status: &Status| plan(Some(status), true, &bundle(5, 3));
        assert_eq!(
            plan_of(&stored(State::Done, 4, 3)),
            Plan::Work(stored(State::Working, 4, 3))
        );
        // The same release was interrupted.
        assert_eq!(
            plan_of(&stored(State::Working, 5, 3)),
            Plan::Work(stored(State::Working, 5, 3))
        );
        // The stored state excludes more than the new one: no further release is admitted meanwhile.
        assert_eq!(
            plan_of(&stored(State::Done, 4, 4)),
            Plan::Work(stored(State::Working, 4, 4))
        );
    }

    #[test]
    fn a_raised_minimum_and_a_rollback_restrict_to_the_intersection() {
        let upgrade = plan(Some(&stored(State::Done, 4, 1)), true, &bundle(5, 3));
        assert_eq!(upgrade, Plan::Restrict(stored(State::Working, 4, 3)));
        let rollback = plan(Some(&stored(State::Done, 6, 4)), true, &bundle(5, 3));
        assert_eq!(rollback, Plan::Restrict(stored(State::Working, 5, 4)));
    }

    #[test]
    fn an_older_node_that_the_status_already_excludes_blocks_nothing() {
        // minimum 3 is stored; a node at 1 may run, but is not admitted, so nothing has to be restricted.
        assert!(matches!(
            plan(Some(&stored(State::Done, 4, 3)), true, &bundle(5, 3)),
            Plan::Work(_)
        ));
    }

    #[test]
    fn each_node_in_the_way_is_named_with_the_release_that_it_needs() {
        let releases = Releases {
            newer: Arc::default(),
            outside: vec![(release(1), "c2".to_owned()), (release(6), "b".to_owned())].into(),
            unreadable: vec!["x".to_owned()].into(),
            last_write: None,
        };
        let blockers = may_restrict(&releases, &bundle(5, 3)).unwrap_err();
        assert_eq!(
            blockers.to_string(),
            "waiting for node c2 at 0.1.0, needs 0.3.0; node b at 0.6.0, which is newer; \
             node x, whose record cannot be parsed"
        );
        let mut many = releases.clone();
        many.outside.total = 100_000;
        let message = may_restrict(&many, &bundle(5, 3)).unwrap_err().to_string();
        assert!(message.ends_with("; and 99998 more"), "{message}");
        let free = Releases {
            outside: Vec::new().into(),
            unreadable: Vec::new().into(),
            ..releases
        };
        assert_eq!(may_restrict(&free, &bundle(5, 3)), Ok(()));
    }

    #[test]
    fn the_reason_names_which_of_the_two_rules_excludes_a_release() {
        let status = stored(State::Working, 4, 3);
        assert_eq!(admits(&status, release(3), release(4)), Ok(()));
        assert!(
            admits(&status, release(2), release(1))
                .unwrap_err()
                .contains("below the minimum compatible")
        );
        assert!(
            admits(&status, release(5), release(5))
                .unwrap_err()
                .contains("needs at least 0.5.0")
        );
    }

    proptest! {
        /// INV-4: once the plan allows reconciling, each release that the status admits is compatible with both the
        /// stored state and the new one.
        #[test]
        fn no_plan_leaves_a_status_that_admits_what_either_state_excludes(
            stored_version in 0u32..6, stored_minimum in 0u32..6, version in 0u32..6, minimum in 0u32..6,
            candidate in 0u32..6, working in any::<bool>(),
        ) {
            prop_assume!(minimum <= version);
            let bundle = bundle(version, minimum);
            let state = if working { State::Working } else { State::Done };
            let before = stored(state, stored_version, stored_minimum);
            let during = match plan(Some(&before), true, &bundle) {
                Plan::Create | Plan::CreateAgain => unreachable!("there is a status"),
                Plan::Leave => before.clone(),
                Plan::Work(during) | Plan::Restrict(during) => during,
            };
            // Any release, with any minimum for the reconciler.
            for min_reconciler in 0..6 {
                if admits(&during, release(candidate), release(min_reconciler)).is_ok() {
                    prop_assert!(release(candidate) >= bundle.min_apiserver);
                    prop_assert!(release(candidate) >= before.minimum_compatible);
                    prop_assert!(bundle.version.release >= release(min_reconciler));
                    prop_assert!(before.version.release >= release(min_reconciler));
                }
            }
        }
    }
}
