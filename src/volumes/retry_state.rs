//! Retry state of the volumes that are not settled: what failed, when it is tried again, what is in flight.
//!
//! A volume goes through passes: in a pass, its steps follow each other until the plan has none left. What fails is left
//! out of the rest of the pass, and rests after it.
//!
//! ```text
//!             wake                begin               end_operation
//!   settled ────────▶ in a pass ─────────▶ running ─────────────────▶ in a pass
//!                     │   ▲  ▲ │   queue                served
//!                     │   │  │ └──────────▶ queued ─────────────────▶ in a pass
//!          end_pass   │   │  │
//!        ┌────────────┘   │  │ wake: someone else changed something. The failures are forgotten,
//!        │                │  │       the final ones too, and their count begins at 0 again.
//!        ├─▶ settled      │  │
//!        ├─▶ held ────────┼──┘ only final failures are left: nothing is tried before a change
//!        └─▶ resting ─────┘    a failure waits for its retry; when that is due, all but the final ones are tried again
//! ```
//!
//! - A volume that is woken while an operation runs stays running. The end of the operation then counts as the change.
//! - Its own writes wake no volume, so that a message which a failure leaves in a record does not make its retry hot.
//! - When its plugin is connected again and offers what it offered before ([`Unsettled::reconnected`]), a rest goes on: a
//!   plugin whose connection ends with every call would otherwise be called at once for ever (INV-9). But a held volume
//!   begins to rest, under the slow policy, since what the plugin refused for good may have been mended.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use super::drift::Drift;
use super::operation::{Compensation, Failure, RecordSnapshot, SLOW, WaitsFor};
use super::plan::Target;
use super::record::Blocked;
use crate::etcd::Revision;
use crate::retry::{Backoff, Policy};
use crate::store::Name;

/// Stale snapshots in one pass. More are no coincidence: the volume rests, as after a failure.
const MOST_STALE: u32 = 8;

/// What is in flight about one volume.
#[derive(Debug, Default, PartialEq, Eq)]
enum Activity {
    #[default]
    Idle,
    /// It waits in its plugin's queue.
    Queued,
    /// It has an operation. Never two (INV-6).
    Running {
        /// Revisions of its records that were written meanwhile, by the operation or by someone else.
        written: Vec<Revision>,
        /// Whether something else that it depends on changed meanwhile.
        is_stale: bool,
    },
}

/// One volume that is not settled.
#[derive(Debug, Default)]
pub struct RetryState {
    activity: Activity,
    /// What failed in the pass before, is retried, and has not succeeded since.
    failing: BTreeSet<Target>,
    /// What failed in this pass.
    tried: BTreeMap<Target, Failure>,
    /// What cannot succeed before something changes.
    finals: BTreeMap<Target, Failure>,
    /// How many snapshots of this pass were stale.
    stale: u32,
    /// Whether something is wanted that the plugin does not offer; its next session may.
    pub waits_for_offer: bool,
    /// Whether the conditions were written in this pass.
    pub conditions_written: bool,
    /// Results that no record holds.
    pub compensations: Vec<Compensation>,
    /// What the last comparison with the plugin's list found; `None` if the volume was not compared.
    pub drift: Option<Drift>,
}

impl RetryState {
    /// Whether an operation runs or waits for its turn.
    pub fn is_active(&self) -> bool {
        self.activity != Activity::Idle
    }

    /// Whether an operation runs.
    pub fn is_running(&self) -> bool {
        matches!(self.activity, Activity::Running { .. })
    }

    /// Its operation waits for its turn.
    pub fn queue(&mut self) {
        self.activity = Activity::Queued;
    }

    /// Its turn has come.
    pub fn unqueue(&mut self) {
        self.activity = Activity::Idle;
    }

    /// Its operation begins.
    pub fn begin(&mut self) {
        self.activity = Activity::Running {
            written: Vec::new(),
            is_stale: false,
        };
    }

    /// Its operation has ended. True if someone else changed something meanwhile.
    fn end_operation(&mut self, records: &[RecordSnapshot]) -> bool {
        let Activity::Running { written, is_stale } = std::mem::take(&mut self.activity) else {
            return false;
        };
        let is_own = |revision: &Revision| {
            let mut records = records.iter();
            records.any(|record| record.own && record.revision() == *revision)
        };
        is_stale || !written.iter().all(is_own)
    }

    fn begin_pass(&mut self) {
        self.tried.clear();
        self.stale = 0;
        self.conditions_written = false;
    }

    fn reset(&mut self) {
        self.failing.clear();
        self.finals.clear();
        self.begin_pass();
    }

    /// What is not tried now.
    pub fn resting(&self) -> BTreeSet<Target> {
        self.tried.keys().chain(self.finals.keys()).cloned().collect()
    }

    /// The condition of a target that failed.
    pub fn blocked(&self, target: &Target) -> Option<&Blocked> {
        let failure = self.tried.get(target).or_else(|| self.finals.get(target))?;
        (!failure.is_quiet).then_some(&failure.why)
    }

    /// Whether a target waits for this; with a node, whether the publication to that node does.
    fn waits_for(&self, what: WaitsFor, node: Option<&Name>) -> bool {
        let mut failures = self.tried.iter().chain(&self.finals);
        failures.any(|(target, failure)| {
            let is_there = match (node, target) {
                (Some(node), Target::Node(target)) => node == target,
                (Some(_), _) => false,
                (None, _) => true,
            };
            failure.waits_for == Some(what) && is_there
        })
    }

    /// Whether the failure of this target leaves the condition as it is.
    pub fn is_quiet(&self, target: &Target) -> bool {
        self.tried.get(target).is_some_and(|failure| failure.is_quiet)
    }

    /// Ends a pass. Returns the policy of the rest; `None` if nothing is retried by itself.
    fn end_pass(&mut self) -> Option<Policy> {
        let finals = self.tried.iter().filter(|(_, failure)| failure.retry.is_none());
        let finals = finals.map(|(target, failure)| (target.clone(), failure.clone()));
        self.finals.extend(finals);
        let retried = self.tried.iter().filter(|(_, failure)| failure.retry.is_some());
        let retried: BTreeSet<Target> = retried.map(|(target, _)| target.clone()).collect();
        // The least policy is the soonest.
        let soonest = self.tried.values().filter_map(|failure| failure.retry).min()?;
        self.failing = retried;
        Some(soonest)
    }

    /// The nodes that the volume is published to again.
    pub fn to_mend(&self) -> BTreeSet<Name> {
        self.drift.as_ref().map(Drift::to_mend).unwrap_or_default()
    }

    /// The volume was unpublished from a node id that no publication stores.
    pub fn unpublished(&mut self, csi_node_id: &str) {
        if let Some(drift) = &mut self.drift {
            drift.strays.remove(csi_node_id);
        }
    }

    /// The volume was published to the node again.
    pub fn mended(&mut self, node: &Name) {
        if let Some(drift) = &mut self.drift {
            drift.lost.remove(node);
        }
    }

    fn is_settled(&self) -> bool {
        !self.is_active()
            && !self.waits_for_offer
            && self.finals.is_empty()
            && self.tried.is_empty()
            && self.compensations.is_empty()
            && self.drift.as_ref().is_none_or(|drift| *drift == Drift::default())
    }
}

/// The volumes that are not settled, and the ends of their rests.
#[derive(Debug, Default)]
pub struct Unsettled {
    states: HashMap<Name, RetryState>,
    backoff: Backoff<Name>,
    /// Volumes that waited for another volume, or another publication, when they last failed.
    for_other: BTreeSet<Name>,
    /// Volumes that waited for capacity when they last failed, by plugin.
    for_capacity: HashMap<Name, ForCapacity>,
}

/// The volumes of one plugin that waited for capacity when they last failed.
#[derive(Debug, Default)]
struct ForCapacity {
    waiting: BTreeSet<Name>,
    /// The last of these that was tried again for the capacity that another has left.
    last_tried: Option<Name>,
}

impl Unsettled {
    /// The state of a volume; `None` for a settled one.
    pub fn get(&self, name: &Name) -> Option<&RetryState> {
        self.states.get(name)
    }

    /// The state of a volume, which is not settled from now on.
    pub fn state(&mut self, name: &Name) -> &mut RetryState {
        self.states.entry(name.clone()).or_default()
    }

    /// Every volume that is not settled.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &RetryState)> {
        self.states.iter()
    }

    /// Someone else changed something: a record of the volume, at the revision `written`, or something else that it
    /// depends on. Everything that failed may be tried again. False if an operation runs: then its end sees to it.
    pub fn wake(&mut self, name: &Name, written: Option<Revision>) -> bool {
        let Some(state) = self.states.get_mut(name) else {
            return true;
        };
        if let Activity::Running {
            written: revisions,
            is_stale,
        } = &mut state.activity
        {
            match written {
                Some(revision) => revisions.push(revision),
                None => *is_stale = true,
            }
            return false;
        }
        self.reset(name);
        true
    }

    fn reset(&mut self, name: &Name) {
        if let Some(state) = self.states.get_mut(name) {
            state.reset();
            self.backoff.succeeded(name);
        }
    }

    /// What failed may succeed by now, which is not certain: it is tried again, and its backoff keeps its count. False if an
    /// operation runs or waits for its turn.
    pub fn try_again(&mut self, name: &Name) -> bool {
        let state = self.states.get_mut(name).filter(|state| !state.is_active());
        state.map(RetryState::begin_pass).is_some()
    }

    /// Waits for the end of the next rest, and returns the volumes whose rest is over. Safe to cancel.
    pub async fn next_due(&mut self) -> Vec<Name> {
        let due = self.backoff.next_due().await;
        for name in &due {
            self.state(name).begin_pass();
        }
        due
    }

    /// The volume's operation has ended, with these records. True if someone else changed something meanwhile.
    pub fn end_operation(&mut self, name: &Name, records: &[RecordSnapshot]) -> bool {
        self.state(name).end_operation(records)
    }

    /// A target failed. True if it had not failed before, so that the failure is worth a warning.
    pub fn fail(&mut self, name: &Name, target: Target, failure: Failure) -> bool {
        if failure.waits_for == Some(WaitsFor::Other) {
            self.for_other.insert(name.clone());
        }
        let failures = self.backoff.failures(name);
        let state = self.state(name);
        let is_first = failures == 0 && !state.finals.contains_key(&target);
        state.tried.insert(target, failure);
        is_first
    }

    /// The volume has left this node. Returns the volumes that waited for that: those that want to the node, and the volume
    /// itself.
    pub fn left(&mut self, volume: &Name, node: Option<&Name>) -> Vec<Name> {
        let states = &self.states;
        let waits = |name: &Name, node| {
            let state = states.get(name);
            state.is_some_and(|state| state.waits_for(WaitsFor::Other, node))
        };
        let own = waits(volume, None).then(|| volume.clone());
        if node.is_none() {
            return Vec::from_iter(own);
        }
        self.for_other.retain(|name| waits(name, None));
        let others = self.for_other.iter().filter(|name| waits(name, node));
        own.into_iter().chain(others.cloned()).collect()
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
            state.is_some_and(|state| state.waits_for(WaitsFor::Capacity, None))
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

    /// The snapshot of an operation was stale: the volume is planned again, unless that happens too often.
    pub fn observed_stale(&mut self, name: &Name, target: Target) {
        let state = self.state(name);
        state.stale += 1;
        if state.stale > MOST_STALE {
            self.fail(name, target, Failure::restless());
        }
    }

    /// A step succeeded. If that was the last target that had failed, the next failure is the first again.
    pub fn succeed(&mut self, name: &Name, target: &Target) {
        let failing = &mut self.state(name).failing;
        if failing.remove(target) && failing.is_empty() {
            self.backoff.succeeded(name);
        }
    }

    /// The volume's plugin was connected again, and offers what it offered before. What it refused for good is tried
    /// again, slowly.
    pub fn reconnected(&mut self, name: &Name) {
        if let Some(state) = self.states.get_mut(name) {
            state.tried.append(&mut state.finals);
            for failure in state.tried.values_mut() {
                failure.retry.get_or_insert(SLOW);
            }
        }
    }

    /// Nothing more can be done in this pass: what failed rests, and a volume with nothing to remember is settled.
    pub fn end_pass(&mut self, name: &Name) {
        let Some(state) = self.states.get_mut(name) else {
            return;
        };
        // It was only planned again while it rests.
        if self.backoff.is_resting(name) {
            return;
        }
        if let Some(policy) = state.end_pass() {
            self.backoff.failed(name.clone(), policy);
        } else if state.is_settled() {
            self.forget(name);
        }
    }

    /// The volume is settled, or its record is gone.
    pub fn forget(&mut self, name: &Name) {
        self.states.remove(name);
        self.backoff.succeeded(name);
    }
}

#[cfg(test)]
mod tests;
