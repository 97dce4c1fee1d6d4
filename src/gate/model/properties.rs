//! What holds in every state.

use std::collections::BTreeSet;

use stateright::Property;

use super::replica::{Process, Replica};
use super::store::{Store, Stored};
use super::{Gate, Part, State};
use crate::gate::plan;
use crate::gate::status::Status;
use crate::release::Release;

/// INV-4, of what happens.
pub const SERVES: &str = "nothing serves that the reconciled state excludes";
/// INV-4, of what might happen.
pub const ADMITS: &str = "the status admits nothing that the reconciled state excludes";
/// INV-2.
pub const ALONE: &str = "at most one replica believes that it leads";
/// What can be completed is completed.
pub const SETTLED: &str = "where no step is left, the newest release has reconciled, or waits for what it excludes and what serves on";

/// All of them.
pub(super) fn all() -> Vec<Property<Gate>> {
    vec![
        Property::<Gate>::always(SERVES, Gate::serves_safely),
        Property::<Gate>::always(ADMITS, Gate::admits_safely),
        Property::<Gate>::always(ALONE, |_, state| {
            let processes = state
                .replicas
                .iter()
                .filter_map(|replica| replica.process.as_ref());
            let leads = processes.filter_map(|process| process.lead.as_ref());
            leads.filter(|lead| lead.open).count() < 2
        }),
        Property::<Gate>::always(SETTLED, |gate, state| {
            !gate.progress(state).is_empty() || gate.is_settled(state)
        }),
        Property::<Gate>::sometimes("a replica serves", |_, state| {
            let mut processes = state
                .replicas
                .iter()
                .filter_map(|replica| replica.process.as_ref());
            processes.any(Process::serves)
        }),
    ]
}

impl Gate {
    /// Whether the reconciled state excludes a release with this minimum.
    fn excludes(&self, store: &Store, release: Release, min_reconciler: Release) -> bool {
        let mut reconciled = store.reconciled.iter().map(|bundle| &self.bundles[*bundle]);
        reconciled.any(|state| release < state.min_apiserver || state.version.release < min_reconciler)
    }

    fn serves_safely(&self, state: &State) -> bool {
        let mut serving = state.replicas.iter().zip(&self.parts).filter(|(replica, _)| {
            let process = replica.process.as_ref();
            process.is_some_and(Process::serves)
        });
        serving.all(|(_, part)| {
            let bundle = &self.bundles[part.bundle];
            !self.excludes(&state.store, bundle.version.release, bundle.min_reconciler)
        })
    }

    fn admits_safely(&self, state: &State) -> bool {
        let status = state.store.status.as_ref().and_then(Stored::status);
        self.bundles.iter().all(|bundle| {
            let release = bundle.version.release;
            let is_admitted = |status: &Status| plan::admits(status, release, bundle.min_reconciler).is_ok();
            !(status.as_ref().is_some_and(is_admitted)
                && self.excludes(&state.store, release, bundle.min_reconciler))
        })
    }

    /// Whether what was asked for is done, as far as it can be.
    fn is_settled(&self, state: &State) -> bool {
        let staying = || {
            self.parts
                .iter()
                .zip(&state.replicas)
                .filter(|(part, _)| part.stays)
        };
        let newest = staying().map(|(part, _)| part.bundle);
        let Some(newest) = newest.max_by_key(|bundle| self.bundles[*bundle].version.release) else {
            return true;
        };
        let top = &self.bundles[newest];
        let is_excluded = |part: &Part| self.bundles[part.bundle].version.release < top.min_apiserver;
        let serves = |replica: &Replica| replica.process.as_ref().is_some_and(Process::serves);
        let status = state.store.status.as_ref().and_then(Stored::status);
        let is_done = status.is_some_and(|status| status.says_the_same_as(&top.final_status()))
            && state.store.reconciled == BTreeSet::from([newest]);
        if is_done {
            return staying().all(|(part, replica)| serves(replica) != is_excluded(part));
        }
        let mut in_the_way = staying().filter(|(part, _)| is_excluded(part)).peekable();
        in_the_way.peek().is_some() && in_the_way.all(|(_, replica)| serves(replica))
    }
}
