//! Who waits for what, beside the end of a rest.

use std::collections::{BTreeSet, HashSet};
use std::ops::Bound;

use super::{RetryState, Unsettled};
use crate::store::Name;
use crate::volumes::index::Awaited;
use crate::volumes::operation::{Failure, WaitsFor};
use crate::volumes::plan::Target;

/// The volumes of one plugin that waited for capacity when they last failed.
#[derive(Debug, Default)]
pub(super) struct ForCapacity {
    waiting: BTreeSet<Name>,
    /// The last of these that was tried again for the capacity that another has left.
    last_tried: Option<Name>,
}

impl RetryState {
    fn failures(&self) -> impl Iterator<Item = (&Target, &Failure)> {
        self.tried.iter().chain(&self.finals)
    }

    /// Whether a target waits for this; with a node, whether the publication to that node does.
    fn waits_for(&self, what: &WaitsFor, node: Option<&Name>) -> bool {
        self.failures().any(|(target, failure)| {
            let is_there = match (node, target) {
                (Some(node), Target::Node(target)) => node == target,
                (Some(_), _) => false,
                (None, _) => true,
            };
            failure.waits_for.as_ref() == Some(what) && is_there
        })
    }

    fn awaits(&self, record: &Awaited) -> bool {
        let is_it =
            |waits_for: &WaitsFor| matches!(waits_for, WaitsFor::Record(read) if read.record == *record);
        let mut failures = self.failures();
        failures.any(|(_, failure)| failure.waits_for.as_ref().is_some_and(is_it))
    }
}

impl Unsettled {
    /// The volume has left this node. Returns the volumes that waited for that: those that want to the node, and the volume
    /// itself.
    pub fn left(&mut self, volume: &Name, node: Option<&Name>) -> Vec<Name> {
        let states = &self.states;
        let waits = |name: &Name, node| {
            let state = states.get(name);
            state.is_some_and(|state| state.waits_for(&WaitsFor::Other, node))
        };
        let own = waits(volume, None).then(|| volume.clone());
        if node.is_none() {
            return Vec::from_iter(own);
        }
        self.for_other.retain(|name| waits(name, None));
        let others = self.for_other.iter().filter(|name| waits(name, node));
        own.into_iter().chain(others.cloned()).collect()
    }

    /// The volume waits for nothing, and has waited for these records.
    pub(super) fn waits_no_more(&mut self, name: &Name, awaited: &HashSet<Awaited>) {
        self.for_other.remove(name);
        self.for_capacity.retain(|_, of_plugin| {
            of_plugin.waiting.remove(name);
            !of_plugin.waiting.is_empty()
        });
        for record in awaited {
            if let Some(waiting) = self.for_records.get_mut(record) {
                waiting.remove(name);
                if waiting.is_empty() {
                    self.for_records.remove(record);
                }
            }
        }
    }

    /// The plugin had no capacity for the volume.
    pub fn await_capacity(&mut self, driver: &Name, name: &Name) {
        let of_plugin = self.for_capacity.entry(driver.clone()).or_default();
        of_plugin.waiting.insert(name.clone());
    }

    /// A volume of the plugin was deleted. Returns up to `most` of its volumes for which there was no capacity, others each time:
    /// one that is too large for what was left keeps no other from it.
    pub fn made_capacity(&mut self, driver: &Name, most: usize) -> Vec<Name> {
        let Some(ForCapacity { waiting, last_tried }) = self.for_capacity.get_mut(driver) else {
            return Vec::new();
        };
        let waits = |name: &Name| {
            let state = self.states.get(name);
            state.is_some_and(|state| state.waits_for(&WaitsFor::Capacity, None))
        };
        let begin = last_tried.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let next = waiting.range::<Name, _>((begin, Bound::Unbounded));
        let before = last_tried
            .iter()
            .flat_map(|last| waiting.range::<Name, _>(..=last));
        let (mut chosen, mut over) = (Vec::new(), Vec::new());
        for name in next.chain(before) {
            if chosen.len() == most {
                break;
            }
            let list = if waits(name) { &mut chosen } else { &mut over };
            list.push(name.clone());
        }
        for name in over {
            waiting.remove(&name);
        }
        if let Some(last) = chosen.last() {
            *last_tried = Some(last.clone());
        }
        if waiting.is_empty() {
            self.for_capacity.remove(driver);
        }
        chosen
    }

    /// A record has changed, or is gone. Returns the volumes that waited for that.
    pub fn changed(&mut self, record: &Awaited) -> Vec<Name> {
        let waiting = self.for_records.remove(record).unwrap_or_default();
        let awaits = |name: &Name| self.states.get(name).is_some_and(|state| state.awaits(record));
        waiting.into_iter().filter(awaits).collect()
    }
}
