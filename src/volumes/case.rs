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
    /// How many passes in a row left a failure.
    failed: u32,
    /// What failed in the pass before, is to be tried again, and did not succeed since.
    failing: BTreeSet<Target>,
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
        self.failing.clear();
        self.finals.clear();
        self.begin_pass();
    }

    /// The plugin was connected to anew, and says of itself what it said before. What it refused for good may have been
    /// mended: that is tried again, slowly. What rests rests on: of a plugin whose connection ends with every call,
    /// each would otherwise end the rest of the one before (INV-9).
    pub fn reconnected(&mut self) {
        self.tried.append(&mut self.finals);
        for trouble in self.tried.values_mut() {
            trouble.pace.get_or_insert(Pace::Slow);
        }
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
    pub fn fail(&mut self, target: Target, trouble: Trouble) -> bool {
        let is_first = self.failed == 0 && !self.finals.contains_key(&target);
        self.tried.insert(target, trouble);
        is_first
    }

    /// A step succeeded. Where that ends the last failure, what comes next has failed never yet.
    pub fn succeed(&mut self, target: &Target) {
        if self.failing.remove(target) && self.failing.is_empty() {
            self.failed = 0;
        }
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
        let finals = self.tried.iter().filter(|(_, trouble)| trouble.pace.is_none());
        let finals = finals.map(|(target, trouble)| (target.clone(), trouble.clone()));
        self.finals.extend(finals);
        let pace = self.tried.values().filter_map(|trouble| trouble.pace).min()?;
        self.failed = self.failed.saturating_add(1);
        let again = self.tried.iter().filter(|(_, trouble)| trouble.pace.is_some());
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
            && self.undo.is_empty()
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

    fn trouble(pace: Option<Pace>) -> Trouble {
        Trouble {
            why: Blocked {
                reason: "Internal".to_owned(),
                message: "no".to_owned(),
            },
            pace,
            is_quiet: false,
        }
    }

    /// The rest after a pass in which these failed, in milliseconds.
    fn rest_after(case: &mut Case, failed: &[Target]) -> Option<u128> {
        case.begin_pass();
        for target in failed {
            case.fail(target.clone(), trouble(Some(Pace::Quick)));
        }
        case.end_pass(0.0).map(|rest| rest.as_millis())
    }

    fn known(own: bool, revision: i64) -> Known {
        let kv = KeyValue {
            key: b"k".to_vec(),
            value: Vec::new(),
            create_revision: Revision(1),
            mod_revision: Revision(revision),
            lease: None,
        };
        Known {
            key: b"k".to_vec(),
            now: Ok(kv),
            own,
        }
    }

    #[test]
    fn rests_grow_from_pass_to_pass_until_somebody_changes_something() {
        let mut case = Case::default();
        let rests: Vec<_> = (0..3).map(|_| rest_after(&mut case, &[Target::Volume])).collect();
        assert_eq!(rests, [Some(200), Some(400), Some(800)]);
        case.reset();
        assert_eq!(rest_after(&mut case, &[Target::Volume]), Some(200));
    }

    #[test]
    fn what_comes_after_a_success_has_failed_never_yet() {
        let mut case = Case::default();
        rest_after(&mut case, &[Target::Volume]);
        rest_after(&mut case, &[Target::Volume]);
        case.begin_pass();
        // It is created at last; then its first publication fails.
        case.succeed(&Target::Volume);
        case.fail(node("n1"), trouble(Some(Pace::Quick)));
        assert_eq!(case.end_pass(0.0).unwrap().as_millis(), 200);
    }

    #[test]
    fn the_success_of_one_node_does_not_make_the_failure_of_another_hot() {
        let mut case = Case::default();
        rest_after(&mut case, &[node("n1"), node("n2")]);
        case.begin_pass();
        case.succeed(&node("n2"));
        case.fail(node("n1"), trouble(Some(Pace::Quick)));
        assert_eq!(case.end_pass(0.0).unwrap().as_millis(), 400);
        // Nor where it failed before the other succeeded.
        case.begin_pass();
        case.fail(node("n1"), trouble(Some(Pace::Quick)));
        case.succeed(&node("n3"));
        assert_eq!(case.end_pass(0.0).unwrap().as_millis(), 800);
    }

    #[test]
    fn what_is_final_rests_from_pass_to_pass_and_makes_no_rest_by_itself() {
        let mut case = Case::default();
        case.fail(node("n1"), trouble(None));
        assert_eq!(case.end_pass(0.0), None);
        assert_eq!(
            rest_after(&mut case, &[node("n2")]),
            Some(200),
            "it counts as none"
        );
        case.begin_pass();
        assert_eq!(case.resting(), [node("n1")].into());
        assert!(case.blocked(&node("n1")).is_some() && !case.is_closed());
        case.succeed(&node("n2"));
        assert_eq!(rest_after(&mut case, &[node("n2")]), Some(200));
        case.reset();
        assert!(case.resting().is_empty() && case.is_closed());
    }

    /// INV-9: a plugin that drops its connection with every call comes back each time.
    #[test]
    fn a_plugin_that_comes_back_ends_no_rest_and_what_it_refused_for_good_is_tried_again_slowly() {
        let mut case = Case::default();
        rest_after(&mut case, &[Target::Volume]);
        case.reconnected();
        assert_eq!(case.resting(), [Target::Volume].into());
        assert_eq!(rest_after(&mut case, &[Target::Volume]), Some(400));

        let mut case = Case::default();
        case.fail(node("n1"), trouble(None));
        assert_eq!(case.end_pass(0.0), None);
        case.reconnected();
        assert!(case.blocked(&node("n1")).is_some(), "its condition stays");
        assert_eq!(case.end_pass(0.0).unwrap().as_millis(), 25_600);
        case.begin_pass();
        assert!(case.resting().is_empty());
    }

    #[test]
    fn of_the_paces_in_a_pass_the_quickest_counts() {
        let mut case = Case::default();
        case.fail(node("n1"), trouble(Some(Pace::Slow)));
        case.fail(node("n2"), trouble(Some(Pace::Quick)));
        assert_eq!(case.end_pass(0.0).unwrap().as_millis(), 200);
    }

    #[test]
    fn an_own_write_is_no_news_and_one_by_somebody_else_during_a_step_is() {
        let mut case = Case::default();
        case.heard(Revision(7));
        assert!(!case.end_step(&[known(true, 7)]));
        case.heard(Revision(7));
        assert!(case.end_step(&[known(true, 8)]));
        case.heard(Revision(7));
        assert!(case.end_step(&[known(false, 7)]), "it was only read");
        assert!(!case.end_step(&[]), "it was told");
        case.grow_stale();
        assert!(case.end_step(&[]));
    }

    #[test]
    fn a_failure_is_told_once_and_again_after_it_was_over() {
        let mut case = Case::default();
        assert!(case.fail(Target::Volume, trouble(Some(Pace::Quick))));
        case.end_pass(0.0);
        case.begin_pass();
        assert!(!case.fail(Target::Volume, trouble(Some(Pace::Quick))));
        case.begin_pass();
        case.succeed(&Target::Volume);
        assert!(case.fail(Target::Volume, trouble(None)));
        case.end_pass(0.0);
        case.begin_pass();
        assert!(!case.fail(Target::Volume, trouble(None)), "final, and told");
    }

    #[test]
    fn what_changes_again_and_again_under_a_step_rests_in_the_end() {
        let mut case = Case::default();
        let looks = (0..20).take_while(|_| case.look()).count();
        assert_eq!(looks, 8);
        case.begin_pass();
        assert!(case.look());
    }

    #[test]
    fn a_quiet_failure_leaves_the_condition_that_stands() {
        let mut case = Case::default();
        case.fail(Target::Volume, Trouble::restless());
        assert!(case.is_quiet(&Target::Volume) && case.blocked(&Target::Volume).is_none());
        assert!(!case.is_quiet(&node("n1")));
    }
}
