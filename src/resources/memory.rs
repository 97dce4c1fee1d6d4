//! The memory of a term about each object, from pass to pass.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::plan::{Fingerprint, Remembered};
use crate::kube::{Meta, ObjectRef};
use crate::retry::Policy;

/// Mends in a row that happen at once. After that many the object counts as contended, and mends wait.
const FREE_MENDS: u32 = 5;

/// The waits between mends of a contended object.
const CONTENDED: Policy = Policy::new(Duration::from_secs(1), Duration::from_secs(5 * 60));

/// An object is no longer contended after this time without a mend, or after this many times the last wait if that is
/// longer.
const CALM: Duration = Duration::from_secs(60);
const CALM_WAITS: u32 = 4;

/// The waits between attempts at an object that fails. The gate repeats a failed pass after 100 ms and more; the first
/// wait is shorter, so that the object may be written again when the pass comes.
const RETRY: Policy = Policy::new(Duration::from_millis(50), Duration::from_secs(10));

/// The memory about all objects.
#[derive(Debug, Default)]
pub(super) struct Memory(BTreeMap<ObjectRef, Known>);

#[derive(Debug, Default)]
struct Known {
    /// With when the term first saw it like this.
    in_sync: Option<(Fingerprint, Instant)>,
    /// The metadata of an object that the bundle no longer holds, as the last pass left it; what others may write at any
    /// time taken out.
    left: Option<Meta>,
    /// Whether its deletion was reported.
    is_deleted: bool,
    contention: Option<Contention>,
    failure: Option<Failure>,
}

/// Another writer keeps changing or deleting the object.

#[derive(Debug)]
struct Contention {
    mends: u32,
    last: Instant,
    /// Zero while the object is mended at once.
    wait: Duration,
    other_manager: Option<String>,
}

impl Contention {
    fn begin(now: Instant) -> Self {
        Self {
            mends: 0,
            last: now,
            wait: Duration::ZERO,
            other_manager: None,
        }
    }

    fn until(&self) -> Instant {
        self.last + self.wait
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= CALM.max(self.wait * CALM_WAITS)
    }
}

#[derive(Debug)]
struct Failure {
    /// Uid of the object that existed then. If another object, or none, has the name now, the next attempt may succeed
    /// and does not wait. A mere change ends no wait: a status may be written all the time.
    seen: Option<String>,
    in_a_row: u32,
    until: Instant,
    why: String,
}

impl Memory {
    /// What the plan of the next step has to know about the object as it was observed.
    pub(super) fn of(&self, object: &ObjectRef, observed: Option<&Meta>) -> Remembered<'_> {
        let Some(known) = self.0.get(object) else {
            return Remembered::default();
        };
        let uid = observed.map(|meta| meta.uid.as_str());
        let unchanged = |failure: &&Failure| failure.seen.as_deref() == uid;
        Remembered {
            in_sync: known.in_sync.as_ref().map(|(in_sync, since)| (in_sync, *since)),
            mend_after: known.contention.as_ref().map(Contention::until),
            retry_after: known
                .failure
                .as_ref()
                .filter(unchanged)
                .map(|failure| failure.until),
        }
    }

    /// Why the last attempt failed.
    pub(super) fn failure(&self, object: &ObjectRef) -> Option<&str> {
        Some(self.0.get(object)?.failure.as_ref()?.why.as_str())
    }

    /// The field manager that keeps changing the object, if known.
    pub(super) fn other_manager(&self, object: &ObjectRef) -> Option<&str> {
        self.0.get(object)?.contention.as_ref()?.other_manager.as_deref()
    }

    /// Whether the object is in place, as it was, with this fingerprint.
    pub(super) fn is_in_sync(&self, object: &ObjectRef, observed: &Fingerprint, now: Instant) -> bool {
        let known = self.0.get(object).and_then(|known| known.in_sync.as_ref());
        known.is_some_and(|(in_sync, since)| in_sync.is_still(*since, observed, now))
    }

    /// Whether the object waits, so that a change of it is no reason for a pass.
    pub(super) fn is_waiting(&self, object: &ObjectRef, now: Instant) -> bool {
        self.due(object).is_some_and(|due| due > now)
    }

    /// The fingerprint with which the object was last in place.
    pub(super) fn in_sync(&self, object: &ObjectRef) -> Option<&Fingerprint> {
        let (in_sync, _) = self.0.get(object)?.in_sync.as_ref()?;
        Some(in_sync)
    }

    /// Whether the term has written the object, or has tried to.
    pub(super) fn knows(&self, object: &ObjectRef) -> bool {
        let known = self.0.get(object);
        known.is_some_and(|known| known.in_sync.is_some() || known.failure.is_some())
    }

    /// Whether the object with this uid was in place.
    pub(super) fn was_in_place(&self, object: &ObjectRef, uid: &str) -> bool {
        self.in_sync(object).is_some_and(|in_sync| in_sync.uid == uid)
    }

    /// Notes an object that the bundle no longer holds, as it was observed.
    pub(super) fn left(&mut self, object: &ObjectRef, observed: Option<&Meta>) {
        self.0.entry(object.clone()).or_default().left = observed.map(of_policy);
    }

    /// Whether nothing about the object has changed, since it was left, that the deletion policy reads.
    pub(super) fn was_left(&self, object: &ObjectRef, now: &Meta) -> bool {
        let left = self.0.get(object).and_then(|known| known.left.as_ref());
        left.is_some_and(|left| *left == of_policy(now))
    }

    /// Notes that the deletion of the object begins.
    pub(super) fn deleting(&mut self, object: &ObjectRef) {
        self.0.entry(object.clone()).or_default().is_deleted = false;
    }

    /// Notes that the deletion of the object is reported. False if it was reported before.
    pub(super) fn deleted(&mut self, object: &ObjectRef) -> bool {
        let known = self.0.entry(object.clone()).or_default();
        !std::mem::replace(&mut known.is_deleted, true)
    }

    /// Whether the term has reported the deletion of the object.
    pub(super) fn is_deleted(&self, object: &ObjectRef) -> bool {
        self.0.get(object).is_some_and(|known| known.is_deleted)
    }

    /// Notes that the object is in place with this fingerprint.
    pub(super) fn settled(&mut self, object: &ObjectRef, in_sync: Fingerprint, now: Instant) {
        let known = self.0.entry(object.clone()).or_default();
        let before = known.in_sync.take();
        let before = before.filter(|(before, _)| before.is_like(&in_sync));
        known.in_sync = Some((in_sync, before.map_or(now, |(_, since)| since)));
        known.failure = None;
    }

    /// Notes that another writer changed or deleted the object after it was in place, and that it was restored.
    pub(super) fn mended(&mut self, object: &ObjectRef, other_manager: Option<&str>, now: Instant) {
        let known = self.0.entry(object.clone()).or_default();
        let ongoing = known
            .contention
            .take()
            .filter(|contention| !contention.is_over(now));
        let mut contention = ongoing.unwrap_or_else(|| Contention::begin(now));
        contention.mends = contention.mends.saturating_add(1);
        contention.last = now;
        if contention.mends >= FREE_MENDS {
            contention.wait = CONTENDED.delay(contention.mends - FREE_MENDS + 1);
        }
        if let Some(other_manager) = other_manager {
            contention.other_manager = Some(other_manager.to_owned());
        }
        known.contention = Some(contention);
    }

    /// Notes that an attempt failed. The next one waits at least as long as the server asked for.
    pub(super) fn failed(
        &mut self,
        object: &ObjectRef,
        observed: Option<&Meta>,
        why: String,
        at_least: Duration,
        now: Instant,
    ) {
        let known = self.0.entry(object.clone()).or_default();
        let before = known.failure.as_ref().map_or(0, |failure| failure.in_a_row);
        let in_a_row = before.saturating_add(1);
        known.failure = Some(Failure {
            seen: observed.map(|meta| meta.uid.clone()),
            in_a_row,
            until: now + RETRY.delay(in_a_row).max(at_least),
            why,
        });
    }

    /// Forgets an object that was pruned.
    pub(super) fn forget(&mut self, object: &ObjectRef) {
        self.0.remove(object);
    }

    /// The end of the object's waits, if it waits or waited.
    pub(super) fn due(&self, object: &ObjectRef) -> Option<Instant> {
        let known = self.0.get(object)?;
        let contention = known.contention.as_ref().filter(|known| !known.wait.is_zero());
        let failure = known.failure.as_ref().map(|failure| failure.until);
        failure.max(contention.map(Contention::until))
    }
}

/// The metadata without the versions and owners that a write of a status changes.
fn of_policy(meta: &Meta) -> Meta {
    Meta {
        resource_version: String::new(),
        generation: 0,
        managed_fields: Vec::new(),
        ..meta.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::settle::LONG_WAIT;
    use super::*;

    fn fingerprint(version: &str) -> Fingerprint {
        Fingerprint::of(&Meta {
            uid: "u".to_owned(),
            resource_version: version.to_owned(),
            ..Meta::default()
        })
    }

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
        memory.settled(&object(), fingerprint("5"), Instant::now());
        memory
    }

    fn wait(memory: &Memory, now: Instant) -> Duration {
        let until = memory.of(&object(), None).mend_after;
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    #[test]
    fn drift_is_mended_at_once_until_the_object_is_contended_and_its_waits_grow() {
        let mut memory = in_place();
        let mut now = Instant::now();
        for mend in 1..FREE_MENDS {
            memory.mended(&object(), Some("other"), now);
            assert_eq!(wait(&memory, now), Duration::ZERO, "mend {mend}");
            now += Duration::from_millis(10);
        }
        let mut waits = Vec::new();
        for _ in 0..20 {
            memory.mended(&object(), Some("other"), now);
            waits.push(wait(&memory, now));
            now += wait(&memory, now);
        }
        assert!(waits[0] >= Duration::from_millis(750), "{waits:?}");
        assert!(waits[6] > waits[0] * 8, "{waits:?}");
        assert!(
            waits.iter().all(|wait| *wait <= Duration::from_secs(375)),
            "{waits:?}"
        );
        assert!(waits[19] >= Duration::from_secs(225), "{waits:?}");
        assert_eq!(memory.other_manager(&object()), Some("other"));
    }

    #[test]
    fn after_a_calm_time_drift_is_mended_at_once_as_before() {
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
    fn a_failure_waits_as_the_server_asked_unless_the_object_appears_or_is_replaced() {
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
    fn no_wait_between_attempts_is_long_enough_to_be_recorded() {
        for attempt in 0..10_000 {
            let wait = RETRY.delay(1 + attempt % 20);
            assert!(wait < LONG_WAIT, "{wait:?}");
        }
    }

    #[test]
    fn success_ends_the_wait_after_a_failure() {
        let mut memory = in_place();
        memory.failed(&object(), None, "no".to_owned(), Duration::ZERO, Instant::now());
        let in_sync = fingerprint("6");
        let now = Instant::now();
        memory.settled(&object(), in_sync.clone(), now);
        assert_eq!(memory.failure(&object()), None);
        assert!(memory.is_in_sync(&object(), &in_sync, now));
        assert!(memory.was_in_place(&object(), "u") && !memory.was_in_place(&object(), "v"));
    }
}
