//! What is going on about one volume: what failed, when it is tried again, what is under way. Nothing is kept about a
//! volume that is as it should be.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::operation::{Compensation, Failure, RecordSnapshot};
use super::plan::{Drift, Target};
use super::record::Blocked;
use super::retry::{Pace, rest};
use crate::etcd::Revision;

/// One volume that is not settled.
#[derive(Debug, Default)]
pub struct RetryState {
    /// A step is under way. Never two (INV-6).
    pub is_busy: bool,
    /// It is in its plugin's queue.
    pub is_queued: bool,
    /// When what failed is tried again.
    pub due: Option<Instant>,
    /// How many passes in a row left a failure.
    failed: u32,
    /// What failed in the pass before, is to be tried again, and did not succeed since.
    failing: BTreeSet<Target>,
    /// What failed in this pass.
    tried: BTreeMap<Target, Failure>,
    /// What cannot succeed before something changes.
    finals: BTreeMap<Target, Failure>,
    /// How often in this pass something was not as it had been seen.
    looks: u32,
    /// Something is wanted that its plugin does not offer.
    pub is_waiting: bool,
    /// Whether the conditions were written in this pass.
    pub conditions_written: bool,
    /// Records that were written while a step was under way, by it or by somebody else.
    news: Vec<Revision>,
    /// Something else changed meanwhile.
    is_stale: bool,
    /// Results whose records are gone.
    pub compensations: Vec<Compensation>,
    /// What a comparison found.
    pub drift: Drift,
}

/// More than that in a pass is no coincidence: it rests, like a failure.
const MOST_LOOKS: u32 = 8;

impl RetryState {
    /// Somebody else changed something: everything may be tried again, at once.
    pub fn reset(&mut self) {
        self.failed = 0;
        self.failing.clear();
        self.finals.clear();
        self.begin_pass();
    }

    /// The plugin was connected to anew, and says of itself what it said before. What it refused for good may have been
    /// mended: that is tried again, slowly. What rests rests on: of a plugin whose connection ends with every call,
    /// each would otherwise end the rest of the one before (INV-9).
    pub fn reconnected(&mut self) {
        self.tried.append(&mut self.finals);
        for failure in self.tried.values_mut() {
            failure.pace.get_or_insert(Pace::Slow);
        }
    }

    /// What failed is tried again.
    pub fn begin_pass(&mut self) {
        self.tried.clear();
        self.looks = 0;
        self.conditions_written = false;
        self.due = None;
    }

    /// A record was written, by the step that is under way or by somebody else.
    pub fn on_record_written(&mut self, revision: Revision) {
        self.news.push(revision);
    }

    /// Something that is no record of the volume changed while a step is under way.
    pub fn mark_stale(&mut self) {
        self.is_stale = true;
    }

    /// The step that was under way has ended. Whether somebody else changed something meanwhile.
    pub fn end_step(&mut self, known: &[RecordSnapshot]) -> bool {
        self.is_busy = false;
        let own = |revision: &Revision| {
            let mut known = known.iter();
            known.any(|known| known.own && known.revision() == *revision)
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
    pub fn fail(&mut self, target: Target, failure: Failure) -> bool {
        let is_first = self.failed == 0 && !self.finals.contains_key(&target);
        self.tried.insert(target, failure);
        is_first
    }

    /// A step succeeded. Where that ends the last failure, what comes next has failed never yet.
    pub fn succeed(&mut self, target: &Target) {
        if self.failing.remove(target) && self.failing.is_empty() {
            self.failed = 0;
        }
    }

    /// Something was not as it had been seen. False if that happens too often.
    pub fn observed_stale(&mut self) -> bool {
        self.looks += 1;
        self.looks <= MOST_LOOKS
    }

    /// What blocks a target, if that is worth a condition.
    pub fn blocked(&self, target: &Target) -> Option<&Blocked> {
        let failure = self.tried.get(target).or_else(|| self.finals.get(target))?;
        (!failure.is_quiet).then_some(&failure.why)
    }

    /// Whether a failure of this target is not worth a condition: then the one that stands stays.
    pub fn is_quiet(&self, target: &Target) -> bool {
        self.tried.get(target).is_some_and(|failure| failure.is_quiet)
    }

    /// Nothing more can be done in this pass. Says how long what failed rests; `None` if nothing is to be tried by
    /// itself.
    pub fn end_pass(&mut self, random: f64) -> Option<std::time::Duration> {
        let finals = self.tried.iter().filter(|(_, failure)| failure.pace.is_none());
        let finals = finals.map(|(target, failure)| (target.clone(), failure.clone()));
        self.finals.extend(finals);
        let pace = self.tried.values().filter_map(|failure| failure.pace).min()?;
        self.failed = self.failed.saturating_add(1);
        let again = self.tried.iter().filter(|(_, failure)| failure.pace.is_some());
        self.failing = again.map(|(target, _)| target.clone()).collect();
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
            && self.compensations.is_empty()
            && self.drift == Drift::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::KeyValue;
    use crate::store::Name;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn node(text: &str) -> Target {
        Target::Node(name(text))
    }

    fn failure(pace: Option<Pace>) -> Failure {
        Failure {
            why: Blocked {
                reason: "Internal".to_owned(),
                message: "no".to_owned(),
            },
            pace,
            is_quiet: false,
        }
    }

    /// The rest after a pass in which these failed, in milliseconds.
    fn rest_after(retry: &mut RetryState, failed: &[Target]) -> Option<u128> {
        retry.begin_pass();
        for target in failed {
            retry.fail(target.clone(), failure(Some(Pace::Quick)));
        }
        retry.end_pass(0.0).map(|rest| rest.as_millis())
    }

    fn known(own: bool, revision: i64) -> RecordSnapshot {
        let kv = KeyValue {
            key: b"k".to_vec(),
            value: Vec::new(),
            create_revision: Revision(1),
            mod_revision: Revision(revision),
            lease: None,
        };
        RecordSnapshot {
            key: b"k".to_vec(),
            now: Ok(kv),
            own,
        }
    }

    #[test]
    fn rests_grow_from_pass_to_pass_until_somebody_changes_something() {
        let mut retry = RetryState::default();
        let rests: Vec<_> = (0..3)
            .map(|_| rest_after(&mut retry, &[Target::Volume]))
            .collect();
        assert_eq!(rests, [Some(200), Some(400), Some(800)]);
        retry.reset();
        assert_eq!(rest_after(&mut retry, &[Target::Volume]), Some(200));
    }

    #[test]
    fn what_comes_after_a_success_has_failed_never_yet() {
        let mut retry = RetryState::default();
        rest_after(&mut retry, &[Target::Volume]);
        rest_after(&mut retry, &[Target::Volume]);
        retry.begin_pass();
        // It is created at last; then its first publication fails.
        retry.succeed(&Target::Volume);
        retry.fail(node("n1"), failure(Some(Pace::Quick)));
        assert_eq!(retry.end_pass(0.0).unwrap().as_millis(), 200);
    }

    #[test]
    fn the_success_of_one_node_does_not_make_the_failure_of_another_hot() {
        let mut retry = RetryState::default();
        rest_after(&mut retry, &[node("n1"), node("n2")]);
        retry.begin_pass();
        retry.succeed(&node("n2"));
        retry.fail(node("n1"), failure(Some(Pace::Quick)));
        assert_eq!(retry.end_pass(0.0).unwrap().as_millis(), 400);
        // Nor where it failed before the other succeeded.
        retry.begin_pass();
        retry.fail(node("n1"), failure(Some(Pace::Quick)));
        retry.succeed(&node("n3"));
        assert_eq!(retry.end_pass(0.0).unwrap().as_millis(), 800);
    }

    #[test]
    fn what_is_final_rests_from_pass_to_pass_and_makes_no_rest_by_itself() {
        let mut retry = RetryState::default();
        retry.fail(node("n1"), failure(None));
        assert_eq!(retry.end_pass(0.0), None);
        assert_eq!(
            rest_after(&mut retry, &[node("n2")]),
            Some(200),
            "it counts as none"
        );
        retry.begin_pass();
        assert_eq!(retry.resting(), [node("n1")].into());
        assert!(retry.blocked(&node("n1")).is_some() && !retry.is_closed());
        retry.succeed(&node("n2"));
        assert_eq!(rest_after(&mut retry, &[node("n2")]), Some(200));
        retry.reset();
        assert!(retry.resting().is_empty() && retry.is_closed());
    }

    /// INV-9: a plugin that drops its connection with every call comes back each time.
    #[test]
    fn a_plugin_that_comes_back_ends_no_rest_and_what_it_refused_for_good_is_tried_again_slowly() {
        let mut retry = RetryState::default();
        rest_after(&mut retry, &[Target::Volume]);
        retry.reconnected();
        assert_eq!(retry.resting(), [Target::Volume].into());
        assert_eq!(rest_after(&mut retry, &[Target::Volume]), Some(400));

        let mut retry = RetryState::default();
        retry.fail(node("n1"), failure(None));
        assert_eq!(retry.end_pass(0.0), None);
        retry.reconnected();
        assert!(retry.blocked(&node("n1")).is_some(), "its condition stays");
        assert_eq!(retry.end_pass(0.0).unwrap().as_millis(), 25_600);
        retry.begin_pass();
        assert!(retry.resting().is_empty());
    }

    #[test]
    fn of_the_paces_in_a_pass_the_quickest_counts() {
        let mut retry = RetryState::default();
        retry.fail(node("n1"), failure(Some(Pace::Slow)));
        retry.fail(node("n2"), failure(Some(Pace::Quick)));
        assert_eq!(retry.end_pass(0.0).unwrap().as_millis(), 200);
    }

    #[test]
    fn an_own_write_is_no_news_and_one_by_somebody_else_during_a_step_is() {
        let mut retry = RetryState::default();
        retry.on_record_written(Revision(7));
        assert!(!retry.end_step(&[known(true, 7)]));
        retry.on_record_written(Revision(7));
        assert!(retry.end_step(&[known(true, 8)]));
        retry.on_record_written(Revision(7));
        assert!(retry.end_step(&[known(false, 7)]), "it was only read");
        assert!(!retry.end_step(&[]), "it was told");
        retry.mark_stale();
        assert!(retry.end_step(&[]));
    }

    #[test]
    fn a_failure_is_told_once_and_again_after_it_was_over() {
        let mut retry = RetryState::default();
        assert!(retry.fail(Target::Volume, failure(Some(Pace::Quick))));
        retry.end_pass(0.0);
        retry.begin_pass();
        assert!(!retry.fail(Target::Volume, failure(Some(Pace::Quick))));
        retry.begin_pass();
        retry.succeed(&Target::Volume);
        assert!(retry.fail(Target::Volume, failure(None)));
        retry.end_pass(0.0);
        retry.begin_pass();
        assert!(!retry.fail(Target::Volume, failure(None)), "final, and told");
    }

    #[test]
    fn what_changes_again_and_again_under_a_step_rests_in_the_end() {
        let mut retry = RetryState::default();
        let looks = (0..20).take_while(|_| retry.observed_stale()).count();
        assert_eq!(looks, 8);
        retry.begin_pass();
        assert!(retry.observed_stale());
    }

    #[test]
    fn a_quiet_failure_leaves_the_condition_that_stands() {
        let mut retry = RetryState::default();
        retry.fail(Target::Volume, Failure::restless());
        assert!(retry.is_quiet(&Target::Volume) && retry.blocked(&Target::Volume).is_none());
        assert!(!retry.is_quiet(&node("n1")));
    }
}
