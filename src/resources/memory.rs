//! What is remembered of each object from pass to pass, within a term.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::plan::{ObjectVersion, Remembered};
use crate::kube::{Meta, ObjectRef};
use crate::retry::Delays;

/// Mends in a row that happen at once; whoever changes an object back more often is fought.
const FREE_MENDS: u32 = 5;

/// The waits of a fight: from a second, to no more than every five minutes.
const FIGHT_FIRST: Duration = Duration::from_secs(1);
const FIGHT_MOST: Duration = Duration::from_secs(5 * 60);

/// A fight is over once nothing was changed back for this long, or for this many times the last wait.
const CALM: Duration = Duration::from_secs(60);
const CALM_WAITS: u32 = 4;

/// Between attempts at an object that fails. Passes that fail are repeated after 100 ms and more; starting lower, an
/// object is due again when they are.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(10);

/// What is remembered of all objects.
#[derive(Debug, Default)]
pub(super) struct Memory(BTreeMap<ObjectRef, Known>);

#[derive(Debug, Default)]
struct Known {
    in_sync: Option<ObjectVersion>,
    fight: Option<Contention>,
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Contention {
    mends: u32,
    last: Instant,
    wait: Duration,
    delays: Delays,
    with: Option<String>,
}

#[derive(Debug)]
struct Failure {
    /// Uid of the object that was there then. Another one, or none, may make the difference; a mere change of it
    /// does not count, as it may be one of many (a status that is written all the time).
    seen: Option<String>,
    until: Instant,
    delays: Delays,
    why: String,
}

impl Memory {
    /// What bears on the next step for an object that looks so now.
    pub(super) fn of(&self, object: &ObjectRef, observed: Option<&Meta>) -> Remembered<'_> {
        let Some(known) = self.0.get(object) else {
            return Remembered::default();
        };
        let uid = observed.map(|meta| meta.uid.as_str());
        let unchanged = |failure: &&Failure| failure.seen.as_deref() == uid;
        Remembered {
            in_sync: known.in_sync.as_ref(),
            mend_after: known.fight.as_ref().map(|fight| fight.last + fight.wait),
            retry_after: known
                .failure
                .as_ref()
                .filter(unchanged)
                .map(|failure| failure.until),
        }
    }

    /// Why it failed last.
    pub(super) fn failure(&self, object: &ObjectRef) -> Option<&str> {
        Some(self.0.get(object)?.failure.as_ref()?.why.as_str())
    }

    /// The field manager that changes it back, as far as known.
    pub(super) fn other_manager(&self, object: &ObjectRef) -> Option<&str> {
        self.0.get(object)?.fight.as_ref()?.with.as_deref()
    }

    /// Whether it is as it was left, as far as this change shows.
    pub(super) fn is_in_sync(&self, object: &ObjectRef, now: &ObjectVersion) -> bool {
        self.0
            .get(object)
            .is_some_and(|known| known.in_sync.as_ref() == Some(now))
    }

    /// Whether it is held back now: a change of it is no reason to look at it before it is due.
    pub(super) fn is_held_back(&self, object: &ObjectRef, now: Instant) -> bool {
        self.due(object).is_some_and(|due| due > now)
    }

    /// Whether it was in place as the object with this uid.
    pub(super) fn was_in_place(&self, object: &ObjectRef, uid: &str) -> bool {
        let in_sync = self.0.get(object).and_then(|known| known.in_sync.as_ref());
        in_sync.is_some_and(|in_sync| in_sync.uid == uid)
    }

    /// It is in place now.
    pub(super) fn settled(&mut self, object: &ObjectRef, in_sync: ObjectVersion) {
        let known = self.0.entry(object.clone()).or_default();
        known.in_sync = Some(in_sync);
        known.failure = None;
    }

    /// It was in place, someone changed or deleted it, and it was put in place again.
    pub(super) fn mended(&mut self, object: &ObjectRef, with: Option<&str>, now: Instant) {
        let known = self.0.entry(object.clone()).or_default();
        let ongoing = known.fight.take().filter(|fight| {
            let calm = CALM.max(fight.wait * CALM_WAITS);
            now.saturating_duration_since(fight.last) < calm
        });
        let mut fight = ongoing.unwrap_or_else(|| Contention {
            mends: 0,
            last: now,
            wait: Duration::ZERO,
            delays: Delays::new(FIGHT_FIRST, FIGHT_MOST),
            with: None,
        });
        fight.mends = fight.mends.saturating_add(1);
        fight.last = now;
        if fight.mends >= FREE_MENDS {
            fight.wait = fight.delays.next_delay();
        }
        fight.with = with.map(str::to_owned).or(fight.with);
        known.fight = Some(fight);
    }

    /// It could not be put in place. The next attempt waits at least as long as the server asked for.
    pub(super) fn failed(
        &mut self,
        object: &ObjectRef,
        observed: Option<&Meta>,
        why: String,
        at_least: Duration,
        now: Instant,
    ) {
        let known = self.0.entry(object.clone()).or_default();
        let mut delays = known
            .failure
            .take()
            .map_or_else(|| Delays::new(RETRY_FIRST, RETRY_MOST), |failure| failure.delays);
        known.failure = Some(Failure {
            seen: observed.map(|meta| meta.uid.clone()),
            until: now + delays.next_delay().max(at_least),
            delays,
            why,
        });
    }

    /// It is no longer wanted.
    pub(super) fn forget(&mut self, object: &ObjectRef) {
        self.0.remove(object);
    }

    /// When an object that is held back may be tried again.
    pub(super) fn due(&self, object: &ObjectRef) -> Option<Instant> {
        let known = self.0.get(object)?;
        let fight = known.fight.as_ref().filter(|fight| !fight.wait.is_zero());
        let fight = fight.map(|fight| fight.last + fight.wait);
        known.failure.as_ref().map(|failure| failure.until).or(fight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> ObjectRef {
        ObjectRef {
            group: String::new(),
            kind: "ConfigMap".to_owned(),
            namespace: Some("default".to_owned()),
            name: "a".to_owned(),
        }
    }

    fn in_place() -> Memory {
        let mut memory = Memory::default();
        let in_sync = ObjectVersion {
            uid: "u".to_owned(),
            resource_version: "5".to_owned(),
        };
        memory.settled(&object(), in_sync);
        memory
    }

    fn wait(memory: &Memory, now: Instant) -> Duration {
        let until = memory.of(&object(), None).mend_after;
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    #[test]
    fn drift_is_mended_at_once_until_it_is_a_fight_whose_waits_grow() {
        let mut memory = in_place();
        let mut now = Instant::now();
        for mend in 1..FREE_MENDS {
            memory.mended(&object(), Some("fighter"), now);
            assert_eq!(wait(&memory, now), Duration::ZERO, "mend {mend}");
            now += Duration::from_millis(10);
        }
        let mut waits = Vec::new();
        for _ in 0..20 {
            memory.mended(&object(), Some("fighter"), now);
            waits.push(wait(&memory, now));
            now += wait(&memory, now);
        }
        assert!(waits[0] >= FIGHT_FIRST.mul_f64(0.75), "{waits:?}");
        assert!(waits[6] > waits[0] * 8, "{waits:?}");
        assert!(
            waits.iter().all(|wait| *wait <= FIGHT_MOST.mul_f64(1.25)),
            "{waits:?}"
        );
        assert!(waits[19] >= FIGHT_MOST.mul_f64(0.75), "{waits:?}");
        assert_eq!(memory.other_manager(&object()), Some("fighter"));
    }

    #[test]
    fn after_a_calm_time_drift_is_mended_at_once_again() {
        let mut memory = in_place();
        let mut now = Instant::now();
        for _ in 0..FREE_MENDS + 3 {
            memory.mended(&object(), None, now);
        }
        assert!(wait(&memory, now) > Duration::ZERO);
        now += CALM.max(wait(&memory, now) * CALM_WAITS);
        memory.mended(&object(), None, now);
        assert_eq!(wait(&memory, now), Duration::ZERO);
    }

    #[test]
    fn a_failure_waits_as_the_server_asked_and_is_void_once_the_object_changes() {
        let mut memory = Memory::default();
        let now = Instant::now();
        let asked = Duration::from_secs(7);
        memory.failed(&object(), None, "slow down".to_owned(), asked, now);
        let until = memory.of(&object(), None).retry_after.unwrap();
        assert!(until >= now + asked);
        assert_eq!(memory.due(&object()), Some(until));
        assert_eq!(memory.failure(&object()), Some("slow down"));
        let appeared = Meta::default();
        assert_eq!(memory.of(&object(), Some(&appeared)).retry_after, None);
    }

    #[test]
    fn success_ends_a_failure() {
        let mut memory = in_place();
        memory.failed(&object(), None, "no".to_owned(), Duration::ZERO, Instant::now());
        let in_sync = ObjectVersion {
            uid: "u".to_owned(),
            resource_version: "6".to_owned(),
        };
        memory.settled(&object(), in_sync.clone());
        assert_eq!(memory.failure(&object()), None);
        assert!(memory.is_in_sync(&object(), &in_sync));
        assert!(memory.was_in_place(&object(), "u") && !memory.was_in_place(&object(), "v"));
    }
}
