//! Retry state of the volumes that are not settled: what failed, when it is tried again, what is in flight.
//!
//! A volume goes through passes: in a pass, its steps follow each other until the plan has none left. What fails is left
//! out of the rest of the pass, and rests after it.
//!
//! ```text
//!             wake                begin               end_operation
//!   settled ────────▶ in a pass ─────────▶ running ─────────────────▶ in a pass
//!                     │   ▲  ▲ │   queue            served, or woken
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
//! - A volume that is woken while it is queued is planned again: it may want something by now that waits for nothing. It keeps its
//!   turn if it waits for the same as before.
//! - Its own writes wake no volume, so that a message which a failure leaves in a record does not make its retry hot.
//! - When its plugin is connected again and offers what it offered before ([`Unsettled::reconnected`]), a rest goes on: a
//!   plugin whose connection ends with every call would otherwise be called at once for ever (INV-9). But a held volume
//!   begins to rest, under the slow policy, since what the plugin refused for good may have been mended.
//! - After a call that got no answer in time, no call is made for the volume for a while, also where someone else
//!   changes something: the plugin may be at work on it still. The pass goes on after that, so that a node that never answers
//!   delays the others, and keeps none of them from its turn.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::drift::Drift;
use super::index::Awaited;
use super::lanes::Place;
use super::operation::{Compensation, Failure, RecordSnapshot, SLOW, WaitsFor};
use super::plan::Target;
use super::record::Blocked;
use crate::etcd::Revision;
use crate::mutation::{self, Guard};
use crate::retry::{Backoff, Policy};
use crate::store::Name;
use waiting::ForCapacity;

mod waiting;

/// Stale snapshots in one pass. More are no coincidence: the volume rests, as after a failure.
const MOST_STALE: u32 = 8;

/// How long no call is made for a volume whose last call got no answer: as long as the shortest rests of what failed. Never so long
/// as those, since what is asked for next may be urgent.
const NO_ANSWER: Policy = Policy::never_shorter(Duration::from_millis(200), Duration::from_secs(10));

/// Where a volume waits for its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The plugin.
    pub driver: Name,
    /// The place in the plugin's lanes.
    pub place: Place,
}

/// What is in flight about one volume.
#[derive(Debug, Default, PartialEq, Eq)]
enum Activity {
    #[default]
    Idle,
    /// It waits in its plugin's queue.
    Queued(Queued),
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
    /// Where it waited until it was planned.
    left: Option<Queued>,
    /// What failed in the pass before, is retried, and has not succeeded since.
    failing: BTreeSet<Target>,
    /// What failed in this pass.
    tried: BTreeMap<Target, Failure>,
    /// What cannot succeed before something changes.
    finals: BTreeMap<Target, Failure>,
    /// How many snapshots of this pass were stale.
    stale: u32,
    /// The records of others for which it has waited.
    awaited: HashSet<Awaited>,
    /// Whether something is wanted that the plugin does not offer; its next session may.
    pub waits_for_offer: bool,
    /// Whether the conditions were written in this pass, or since the plugin was connected again in it.
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
    pub fn queue(&mut self, at: Queued) {
        self.activity = Activity::Queued(at);
    }

    /// It is planned, whatever it waits for. Returns where it waits, if it does. An operation that runs goes on (INV-6).
    pub fn unqueue(&mut self) -> Option<Queued> {
        self.left = match std::mem::take(&mut self.activity) {
            Activity::Queued(at) => Some(at),
            other => {
                self.activity = other;
                None
            }
        };
        self.left.clone()
    }

    /// Where it waited at this plugin until it was planned.
    pub fn take_left(&mut self, driver: &Name) -> Option<Place> {
        let left = self.left.take().filter(|left| left.driver == *driver);
        left.map(|left| left.place)
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

/// The volumes whose rest is over.
#[derive(Debug, PartialEq, Eq)]
pub enum Due {
    /// What failed is tried again.
    Retried(Vec<Name>),
    /// The plugin had its time after a call without an answer: what is left of the pass goes on.
    Free(Vec<Name>),
}

/// The volumes that are not settled, and the ends of their rests.
#[derive(Debug, Default)]
pub struct Unsettled {
    states: HashMap<Name, RetryState>,
    backoff: Backoff<Name>,
    /// Volumes whose last calls got no answer.
    unanswered: Backoff<Name>,
    /// Volumes that waited for another volume, or another publication, when they last failed.
    for_other: BTreeSet<Name>,
    /// Volumes that waited for capacity when they last failed, by plugin.
    for_capacity: HashMap<Name, ForCapacity>,
    /// Volumes that waited for a record that is none of their own when they last failed.
    for_records: HashMap<Awaited, BTreeSet<Name>>,
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
            && !mutation::without(Guard::InFlight)
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

    /// Waits for the end of the next rest. Safe to cancel.
    pub async fn next_due(&mut self) -> Due {
        let retried = tokio::select! {
            retried = self.backoff.next_due() => retried,
            free = self.unanswered.next_due() => {
                // Of what is settled, nothing is remembered.
                for name in free.iter().filter(|name| !self.states.contains_key(*name)) {
                    self.unanswered.succeeded(name);
                }
                return Due::Free(free);
            }
        };
        for name in &retried {
            self.state(name).begin_pass();
        }
        Due::Retried(retried)
    }

    /// A call about the volume has ended; `answered` says whether the plugin answered it in time.
    pub fn called(&mut self, name: &Name, answered: bool) {
        match answered {
            true => self.unanswered.succeeded(name),
            false => self.unanswered.failed(name.clone(), NO_ANSWER),
        }
    }

    /// Whether the plugin may still be at work on an earlier call about the volume: then no other is made.
    pub fn is_unanswered(&self, name: &Name) -> bool {
        self.unanswered.is_resting(name)
    }

    /// The volume's operation has ended, with these records. True if someone else changed something meanwhile.
    pub fn end_operation(&mut self, name: &Name, records: &[RecordSnapshot]) -> bool {
        self.state(name).end_operation(records)
    }

    /// A target failed. True if it had not failed before, so that the failure is worth a warning.
    pub fn fail(&mut self, name: &Name, target: Target, failure: Failure) -> bool {
        match &failure.waits_for {
            Some(WaitsFor::Other) => _ = self.for_other.insert(name.clone()),
            Some(WaitsFor::Record(read)) => {
                let waiting = self.for_records.entry(read.record.clone()).or_default();
                waiting.insert(name.clone());
                self.state(name).awaited.insert(read.record.clone());
            }
            // Of the plugin that had too little.
            Some(WaitsFor::Capacity) | None => {}
        }
        let failures = self.backoff.failures(name);
        let state = self.state(name);
        let is_first = failures == 0 && !state.finals.contains_key(&target);
        state.tried.insert(target, failure);
        is_first
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
            // Its pass goes on, and what waited for the session may fail in it.
            state.conditions_written = false;
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
        let state = self.states.remove(name).unwrap_or_default();
        self.waits_no_more(name, &state.awaited);
        self.backoff.succeeded(name);
        // A rest after a call goes on: a volume with this id at the plugin may be asked for again.
        if !self.unanswered.is_resting(name) {
            self.unanswered.succeeded(name);
        }
    }
}

#[cfg(test)]
mod tests;
