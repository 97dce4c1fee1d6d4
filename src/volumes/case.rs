//! What is going on about one volume: what failed, when it is tried again, what is under way. Nothing is kept about a
//! volume that is as it should be.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::act::{Known, Trouble, Undo};
use super::plan::{Drift, Target};
use super::record::Blocked;
use super::retry::{Pace, rest};
use crate::etcd::Revision;

/// One volume that is not settled.
#[derive(Debug, Default)]
pub struct Case {
    /// A step is under way. Never two (INV-6).
    pub is_busy: bool,
    /// It is in its plugin's queue.
    pub is_queued: bool,
    /// When what failed is tried again.
    pub due: Option<Instant>,
    /// How often in a row.
    failed: u32,
    /// What failed in this pass.
    tried: BTreeMap<Target, Trouble>,
    /// What cannot succeed before something changes.
    finals: BTreeMap<Target, Trouble>,
    /// How often in this pass something was not as it had been seen.
    looks: u32,
    /// Something is wanted that its plugin does not offer.
    pub is_waiting: bool,
    /// Whether the conditions were written in this pass.
    pub is_noted: bool,
    /// Records that were written while a step was under way, by it or by somebody else.
    news: Vec<Revision>,
    /// Something else changed meanwhile.
    is_stale: bool,
    /// Results whose records are gone.
    pub undo: Vec<Undo>,
    /// What a comparison found.
    pub drift: Drift,
}

/// More than that in a pass is no coincidence: it rests, like a failure.
const MOST_LOOKS: u32 = 8;

impl Case {
    /// Somebody else changed something: everything may be tried again, at once.
    pub fn reset(&mut self) {
        self.failed = 0;
        self.due = None;
        self.finals.clear();
        self.begin_pass();
    }

    /// What failed is tried again.
    pub fn begin_pass(&mut self) {
        self.tried.clear();
        self.looks = 0;
        self.is_noted = false;
        self.due = None;
    }

    /// A record was written, by the step that is under way or by somebody else.
    pub fn heard(&mut self, revision: Revision) {
        self.news.push(revision);
    }

    /// Something that is no record of the volume changed while a step is under way.
    pub fn grow_stale(&mut self) {
        self.is_stale = true;
    }

    /// The step that was under way has ended. Whether somebody else changed something meanwhile.
    pub fn end_step(&mut self, known: &[Known]) -> bool {
        self.is_busy = false;
        let own = |revision: &Revision| {
            known.iter().any(|known| {
                let at = match &known.now {
                    Ok(kv) => kv.mod_revision,
                    Err(deleted) => *deleted,
                };
                known.own && at == *revision
            })
        };
        let foreign = self.news.iter().any(|revision| !own(revision));
        self.news.clear();
        std::mem::take(&mut self.is_stale) | foreign
    }

    /// What is not to be tried now.
    pub fn resting(&self) -> BTreeSet<Target> {
        self.tried.keys().chain(self.finals.keys()).cloned().collect()
    }

    /// Something failed. Whether it had not before.
    pub fn fail(&mut self, target: Target, trouble: Trouble) -> bool {
        let is_first = self.failed == 0 && !self.finals.contains_key(&target);
        self.tried.insert(target, trouble);
        is_first
    }

    /// Something was not as it had been seen. False if that happens too often.
    pub fn look(&mut self) -> bool {
        self.looks += 1;
        self.looks <= MOST_LOOKS
    }

    /// What blocks a target, if that is worth a condition.
    pub fn blocked(&self, target: &Target) -> Option<&Blocked> {
        let trouble = self.tried.get(target).or_else(|| self.finals.get(target))?;
        (!trouble.is_quiet).then_some(&trouble.why)
    }

    /// Whether a failure of this target is not worth a condition: then the one that stands stays.
    pub fn is_quiet(&self, target: &Target) -> bool {
        self.tried.get(target).is_some_and(|trouble| trouble.is_quiet)
    }

    /// Nothing more can be done in this pass. Says how long what failed rests; `None` if nothing is to be tried by
    /// itself.
    pub fn end_pass(&mut self, random: f64) -> Option<std::time::Duration> {
        let paces: Vec<Pace> = self.tried.values().filter_map(|trouble| trouble.pace).collect();
        let finals = self.tried.iter().filter(|(_, trouble)| trouble.pace.is_none());
        let finals: Vec<_> = finals
            .map(|(target, trouble)| (target.clone(), trouble.clone()))
            .collect();
        self.finals.extend(finals);
        let pace = paces.into_iter().min()?;
        self.failed = self.failed.saturating_add(1);
        Some(rest(self.failed, pace, random))
    }

    /// Whether there is nothing to remember.
    pub fn is_closed(&self) -> bool {
        !self.is_busy
            && !self.is_queued
            && !self.is_waiting
            && self.due.is_none()
            && self.finals.is_empty()
            && self.tried.is_empty()
            && self.undo.is_empty()
            && self.drift == Drift::default()
    }
}
