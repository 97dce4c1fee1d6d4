//! When to survey the members again: after a failure or a wait, soon at first, then less and less often; and at once when
//! something changes (INV-9).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::retry::{Backoff, Delays, Policy, sleep_until};
use crate::roles::blocked::{Blocked, Subject};
use crate::roles::plan::Step;
use crate::roles::reason::Reason;

/// For waits that are usually over in no time.
const SOON: Duration = Duration::from_millis(20);

/// For waits on a member, an operator or a timer of etcd.
pub const LATER: Duration = Duration::from_millis(250);

/// When to survey again, in one term.
pub struct Schedule {
    /// The longest time between two attempts.
    most: Duration,
    /// The longest time between two attempts of what etcd refuses again and again.
    refused_most: Duration,
    /// When the next survey is due; `None` while one is under way.
    next: Option<Instant>,
    failed: Backoff<Subject>,
    /// How each of the `failed` failed last.
    failures: BTreeMap<Subject, Failure>,
    /// What the last plan said is blocked.
    waits: BTreeMap<Subject, Wait>,
    unreadable: Delays,
}

struct Failure {
    reason: Reason,
    message: String,
    /// The step was a note on why a join waits.
    of_note: bool,
}

#[derive(Clone, Copy)]
struct Wait {
    since: Instant,
    /// It waits for a learner to start or to catch up. etcd reports neither, so the learner is asked.
    for_learner: bool,
}

impl Wait {
    fn next_survey(self, now: Instant, most: Duration) -> Duration {
        let waited = now.saturating_duration_since(self.since);
        match self.for_learner {
            // A change is seen at most a tenth later than it happened.
            true => (waited / 10).clamp(SOON.min(most), most),
            false => (waited / 2).clamp(LATER.min(most), most),
        }
    }
}

impl Schedule {
    pub fn new(most: Duration, resync: Duration) -> Self {
        Self {
            most,
            refused_most: resync.max(most),
            next: Some(Instant::now()),
            failed: Backoff::default(),
            failures: BTreeMap::new(),
            waits: BTreeMap::new(),
            unreadable: Delays::new(LATER.min(most), most),
        }
    }

    fn policy(&self, reason: Reason) -> Policy {
        let first = match reason {
            Reason::Pending | Reason::LearnerNotInSync => SOON,
            _ => LATER,
        };
        let most = match reason {
            Reason::EtcdRefused | Reason::EtcdDenied => self.refused_most,
            _ => self.most,
        };
        Policy::new(first.min(self.most), most)
    }

    /// A step failed. It rests, longer with every failure for the same reason.
    pub fn failed(&mut self, step: &Step, reason: Reason, message: String) {
        let subject = step.subject();
        let of_note = matches!(step, Step::Note { .. });
        let failure = Failure {
            reason,
            message,
            of_note,
        };
        let before = self.failures.insert(subject.clone(), failure);
        // A step and its note fail in turn, each for a reason of its own.
        if before.is_some_and(|before| before.reason != reason && before.of_note == of_note) {
            self.failed.succeeded(&subject);
        }
        self.failed.failed(subject, self.policy(reason));
    }

    /// A step succeeded, so a next failure is a new one.
    pub fn succeeded(&mut self, subject: &Subject) {
        self.failed.succeeded(subject);
        self.failures.remove(subject);
    }

    /// The list could be read.
    pub fn unreadable_no_more(&mut self) {
        self.unreadable.reset();
    }

    /// Something changed: every step may be tried at once. A step that fails again rests longer than before.
    pub fn wake(&mut self) {
        self.failed.wake_all();
        self.next = Some(Instant::now());
    }

    /// The steps that rest, and why they failed.
    pub fn resting(&self) -> BTreeMap<Subject, (Reason, String)> {
        let why = |failure: &Failure| (failure.reason, failure.message.clone());
        let resting = self.resting_failures();
        resting
            .map(|(subject, failure)| (subject.clone(), why(failure)))
            .collect()
    }

    /// Those of them that rest because a note on why they wait could not be written.
    pub fn unnoted(&self) -> BTreeSet<Subject> {
        let notes = self.resting_failures().filter(|(_, failure)| failure.of_note);
        notes.map(|(subject, _)| subject.clone()).collect()
    }

    fn resting_failures(&self) -> impl Iterator<Item = (&Subject, &Failure)> {
        let resting = self.failed.resting();
        resting.filter_map(|subject| Some((subject, self.failures.get(subject)?)))
    }

    /// Takes over what a plan with all answers says is blocked. Failures that it no longer mentions are forgotten.
    pub fn settled(&mut self, blocked: &[Blocked]) {
        self.unreadable.reset();
        let before = std::mem::take(&mut self.waits);
        for one in blocked {
            let for_learner = matches!(one.reason, Reason::LearnerNotStarted | Reason::LearnerNotInSync);
            let known = before.get(&one.subject).copied();
            let wait = known.filter(|wait| wait.for_learner == for_learner);
            let since = Instant::now();
            let wait = wait.unwrap_or(Wait { since, for_learner });
            self.waits.insert(one.subject.clone(), wait);
        }
        let failed = &mut self.failed;
        let waits = &self.waits;
        self.failures.retain(|subject, _| {
            let kept = failed.is_resting(subject) || waits.contains_key(subject);
            if !kept {
                failed.succeeded(subject);
            }
            kept
        });
    }

    /// How long the subject has been blocked.
    pub fn waited(&self, subject: &Subject) -> Duration {
        let wait = self.waits.get(subject);
        wait.map_or(Duration::ZERO, |wait| wait.since.elapsed())
    }

    /// Schedules the next survey for what is blocked, and for `longest` from now at the latest. It comes earlier once a
    /// rest is over.
    pub fn survey_within(&mut self, longest: Duration) {
        let now = Instant::now();
        let waits = self.waits.values().map(|wait| wait.next_survey(now, self.most));
        self.next = Some(now + waits.min().unwrap_or(longest).min(longest));
    }

    /// Schedules the next survey after the list could not be read.
    pub fn list_unreadable(&mut self) {
        self.next = Some(Instant::now() + self.unreadable.next_delay());
    }

    /// Whether a survey is due. If so, the caller begins it, and no other is scheduled.
    pub fn take_due(&mut self) -> bool {
        self.next.take_if(|next| *next <= Instant::now()).is_some()
    }

    /// Resolves when a rest is over or, while `idle`, when a survey is due. Safe to cancel.
    pub async fn due(&mut self, idle: bool) {
        tokio::select! {
            _ = self.failed.next_due() => self.next = Some(Instant::now()),
            () = sleep_until(self.next), if idle => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::MemberId;
    use crate::proto::join::Progress;

    /// INV-9.
    #[test]
    fn a_step_and_its_note_rest_longer_each_time_though_each_fails_for_a_reason_of_its_own() {
        let mut schedule = Schedule::new(Duration::from_secs(5), Duration::from_secs(30));
        let node = || "n1".to_owned();
        let add = Step::Add {
            node: node(),
            through: MemberId(1),
        };
        let note = Step::Note {
            node: node(),
            member: None,
            progress: Progress::Waiting,
            why: None,
        };
        for _ in 0..5 {
            schedule.failed(&add, Reason::EtcdDenied, "no right".to_owned());
            assert_eq!(schedule.unnoted().len(), 0);
            schedule.failed(&note, Reason::EtcdUnavailable, "no room".to_owned());
            assert_eq!(schedule.unnoted().len(), 1);
        }
        assert_eq!(schedule.failed.failures(&Subject::Join(node())), 10);
        schedule.failed(&note, Reason::EtcdDenied, "no right".to_owned());
        assert_eq!(schedule.failed.failures(&Subject::Join(node())), 1);
    }
}
