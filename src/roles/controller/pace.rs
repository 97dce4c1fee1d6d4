//! When what failed or is held up is tried again (INV-9): soon at first, then more and more seldom, and at once when
//! something changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::retry::Delays;
use crate::roles::plan::{Blocked, Step, Subject};
use crate::roles::reason::Reason;

/// Where a wait is over in no time, as a rule.
const SOON: Duration = Duration::from_millis(20);

/// Where it takes a member, an operator or a timer of etcd.
pub const LATER: Duration = Duration::from_millis(250);

/// The longest rest after a refusal of etcd's own.
const REFUSED: Duration = Duration::from_secs(1);

/// The bookkeeping of one term.
pub struct Pace {
    most: Duration,
    failures: BTreeMap<Subject, Failure>,
    /// What is held up, by what kind of reason, and since when.
    held_up: BTreeMap<Subject, (bool, Instant)>,
    unreadable: Delays,
}

struct Failure {
    delays: Delays,
    until: Instant,
    reason: Reason,
    message: String,
}

/// Waiting for a learner: etcd tells nobody when one has started or caught up, so it is asked.
fn is_learner_wait(reason: Reason) -> bool {
    matches!(reason, Reason::LearnerNotStarted | Reason::LearnerNotInSync)
}

impl Pace {
    pub fn new(most: Duration) -> Self {
        Self {
            most,
            failures: BTreeMap::new(),
            held_up: BTreeMap::new(),
            unreadable: Delays::new(LATER.min(most), most),
        }
    }

    /// What is not to be tried now, and why it failed.
    pub fn resting(&self) -> BTreeMap<Subject, (Reason, String)> {
        let now = Instant::now();
        let resting = self.failures.iter().filter(|(_, failure)| failure.until > now);
        resting
            .map(|(subject, failure)| (subject.clone(), (failure.reason, failure.message.clone())))
            .collect()
    }

    /// A step failed. `soon`: it may work any moment.
    pub fn failed(&mut self, step: &Step, reason: Reason, message: String, soon: bool) {
        let first = if soon { SOON } else { LATER };
        // etcd counts a member 5 s after it connected: until then it refuses what it will take any moment.
        let most = match reason {
            Reason::EtcdRefused => self.most.min(REFUSED),
            _ => self.most,
        };
        let new = || Failure {
            delays: Delays::new(first.min(most), most),
            until: Instant::now(),
            reason,
            message: String::new(),
        };
        let failure = self.failures.entry(step.subject()).or_insert_with(new);
        if failure.reason != reason {
            *failure = new();
        }
        failure.until = Instant::now() + failure.delays.next_delay();
        failure.message = message;
    }

    /// A step was taken: whatever follows is new.
    pub fn done(&mut self, subject: &Subject) {
        self.failures.remove(subject);
        self.unreadable.reset();
    }

    /// Something changed: what failed may be tried at once; if it fails again, it rests for longer than before.
    pub fn try_again(&mut self) {
        let now = Instant::now();
        for failure in self.failures.values_mut() {
            failure.until = now;
        }
    }

    /// What is held up now.
    pub fn blocked(&mut self, blocked: &[Blocked]) {
        self.unreadable.reset();
        let now = Instant::now();
        let before = std::mem::take(&mut self.held_up);
        for one in blocked {
            let kind = is_learner_wait(one.reason);
            let since = before.get(&one.subject).filter(|(was, _)| *was == kind);
            let since = since.map_or(now, |(_, since)| *since);
            self.held_up.insert(one.subject.clone(), (kind, since));
        }
        let subjects: Vec<&Subject> = blocked.iter().map(|one| &one.subject).collect();
        self.failures
            .retain(|subject, failure| failure.until > now || subjects.contains(&subject));
    }

    /// How long it has been held up.
    pub fn since(&self, subject: &Subject) -> Duration {
        self.held_up
            .get(subject)
            .map_or(Duration::ZERO, |(_, since)| since.elapsed())
    }

    /// How long to wait until the next look; `None` if nothing is pending.
    pub fn next_look(&self) -> Option<Duration> {
        let now = Instant::now();
        // A tenth of the time waited so far: what comes is seen at most a tenth later than it came.
        let held_up = self.held_up.values().map(|(learner, since)| {
            let waited = now.saturating_duration_since(*since);
            match learner {
                true => (waited / 10).clamp(SOON.min(self.most), self.most),
                false => (waited / 2).clamp(LATER.min(self.most), self.most),
            }
        });
        let resting = self
            .failures
            .values()
            .map(|failure| failure.until.saturating_duration_since(now));
        held_up.chain(resting.filter(|left| !left.is_zero())).min()
    }

    /// How long to wait after the list could not be read.
    pub fn unreadable(&mut self) -> Duration {
        self.unreadable.next_delay()
    }
}
