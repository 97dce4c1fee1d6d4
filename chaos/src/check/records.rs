//! What is on record of each key and process, from the events of a history.

use std::collections::BTreeMap;
use std::ops::Bound;

use prost::Message;
use quorate::etcd::KeyRange;
use quorate::release::Release;
use quorate::store::Keys;
use quorate::store::keys::BadPrefix;

use crate::history::{
    At, Change, Changed, Event, History, Life, Op, Outcome, Process, ReplicaRelease, Revision, Role, Signal,
    StoreCall, What,
};

/// A history with its events in order of keys and processes.
pub struct Records<'h> {
    pub history: &'h History,
    pub keys: Keys,
    pub lives: BTreeMap<&'h Process, Span<'h>>,
    versions: BTreeMap<&'h [u8], Vec<Version<'h>>>,
    /// The transactions that wrote, by the revision of their writes.
    writers: BTreeMap<Revision, usize>,
    /// The revision of the snapshot with which each epoch after the first begins.
    snapshots: Vec<i64>,
    /// After each event, the last revision that the watch had brought.
    revisions: Vec<Revision>,
    /// When the harness did not run.
    stalls: Vec<(At, At)>,
}

/// A key from one change to the next.
#[derive(Clone, Copy, Debug)]
pub struct Version<'h> {
    pub revision: Revision,
    /// The index of the event that brought it, and when it came.
    pub event: usize,
    pub at: At,
    /// None: the key was deleted.
    pub value: Option<&'h [u8]>,
    pub created: i64,
    pub lease: i64,
}

/// A process from its start to its end.
pub struct Span<'h> {
    pub role: &'h Role,
    pub started: At,
    pub signals: Vec<(At, Signal, usize)>,
    pub exited: Option<(At, Option<i32>, usize)>,
}

impl<'h> Records<'h> {
    pub fn of(history: &'h History) -> Result<Self, BadPrefix> {
        let mut records = Self {
            history,
            keys: Keys::new(history.run.prefix.parse()?),
            lives: lives(&history.events),
            versions: BTreeMap::new(),
            writers: BTreeMap::new(),
            snapshots: Vec::new(),
            revisions: Vec::new(),
            stalls: Vec::new(),
        };
        records.read_store();
        Ok(records)
    }

    fn read_store(&mut self) {
        let mut last = Revision::default();
        for (index, event) in self.history.events.iter().enumerate() {
            match &event.what {
                What::Changed(changed) => {
                    last = last.max(changed.revision);
                    let version = Version::of(index, event.at, changed);
                    self.versions.entry(&changed.key.0).or_default().push(version);
                }
                What::Store(call) => {
                    if let Some(applied) = call.outcome.done().filter(|done| done.succeeded)
                        && call.then.iter().any(is_write)
                    {
                        self.writers.insert(applied.revision, index);
                    }
                }
                What::Restored { epoch, revision } => {
                    self.snapshots.push(*revision);
                    last = last.max(Revision {
                        epoch: *epoch,
                        revision: *revision,
                    });
                }
                What::Stalled { until } => self.stalls.push((event.at, *until)),
                _ => {}
            }
            self.revisions.push(last);
        }
        for versions in self.versions.values_mut() {
            versions.sort_by_key(|version| version.revision);
        }
    }

    pub fn events(&self) -> impl Iterator<Item = (usize, &'h Event)> + use<'h> {
        self.history.events.iter().enumerate()
    }

    /// The changes of keys, without those that a watch from before a restored snapshot repeats.
    pub fn changes(&self) -> impl Iterator<Item = (usize, At, &'h Changed)> {
        self.events().filter_map(|(index, event)| match &event.what {
            What::Changed(changed) => {
                let is_new = changed.revision.revision > self.snapshot(changed.revision.epoch).unwrap_or(0);
                is_new.then_some((index, event.at, changed))
            }
            _ => None,
        })
    }

    /// The transactions of processes.
    pub fn store_calls(&self) -> impl Iterator<Item = (usize, At, &'h StoreCall)> + use<'h> {
        self.events().filter_map(|(index, event)| match &event.what {
            What::Store(call) => Some((index, event.at, call)),
            _ => None,
        })
    }

    /// The transactions of replicas that write below the prefix, with their writes there.
    pub fn replicas_writes(&self) -> impl Iterator<Item = (usize, At, &'h StoreCall, Vec<&'h Op>)> {
        let prefix = self.below("/");
        self.store_calls()
            .filter(move |(_, _, call)| self.is_replica(&call.by))
            .filter_map(move |(index, at, call)| {
                let below = |op: &&Op| written(op).is_some_and(|key| prefix.contains(key));
                let writes: Vec<&Op> = call.then.iter().filter(below).collect();
                (!writes.is_empty()).then_some((index, at, call, writes))
            })
    }

    /// The range of the keys that begin with the prefix and this text.
    pub fn below(&self, rest: &str) -> KeyRange {
        KeyRange::prefix(format!("{}{rest}", self.keys.prefix()))
    }

    /// The revision of the snapshot with which an epoch begins; none for the first.
    pub fn snapshot(&self, epoch: u32) -> Option<i64> {
        let before = usize::try_from(epoch).ok()?.checked_sub(1)?;
        self.snapshots.get(before).copied()
    }

    /// The key as it was at a revision. A deletion is a version without a value.
    pub fn at(&self, key: &[u8], revision: Revision) -> Option<Version<'h>> {
        let versions = self.versions.get(key)?;
        let until = versions.partition_point(|version| version.revision <= revision);
        let last = until.checked_sub(1).map(|last| versions[last]);
        let own = last.filter(|version| version.revision.epoch == revision.epoch);
        own.or_else(|| {
            let snapshot = self.snapshot(revision.epoch)?;
            let before = Revision {
                epoch: revision.epoch - 1,
                revision: snapshot.min(revision.revision),
            };
            self.at(key, before)
        })
    }

    /// The value of a key at a revision.
    pub fn value_at(&self, key: &[u8], revision: Revision) -> Option<&'h [u8]> {
        self.at(key, revision)?.value
    }

    /// The message under a key at a revision. None also for bytes that are no such message.
    pub fn message_at<M: Message + Default>(&self, key: &[u8], revision: Revision) -> Option<M> {
        M::decode(self.value_at(key, revision)?).ok()
    }

    /// The keys of a range that exist at a revision, with their values.
    pub fn range_at(&self, range: &KeyRange, revision: Revision) -> Vec<(&'h [u8], Version<'h>)> {
        let keys = self
            .versions
            .range::<[u8], _>((Bound::Included(range.start()), Bound::Unbounded))
            .map(|(key, _)| *key);
        keys.take_while(|key| range.contains(key))
            .filter_map(|key| Some((key, self.at(key, revision)?)))
            .filter(|(_, version)| version.value.is_some())
            .collect()
    }

    /// Every version of every key of a range, in the order of the keys.
    pub fn versions(&self, range: &KeyRange) -> Vec<(&'h [u8], Version<'h>)> {
        let keys = self
            .versions
            .range::<[u8], _>((Bound::Included(range.start()), Bound::Unbounded));
        keys.take_while(|(key, _)| range.contains(key))
            .flat_map(|(key, versions)| versions.iter().map(move |version| (*key, *version)))
            .collect()
    }

    /// The last revision that the watch had brought by an instant.
    pub fn revision_by(&self, at: At) -> Revision {
        let seen = self.history.events.partition_point(|event| event.at <= at);
        let last = seen.checked_sub(1).and_then(|last| self.revisions.get(last));
        last.copied().unwrap_or_default()
    }

    /// The revisions at which etcd may have been between the two instants: from the last that the watch had brought by `from` to what it
    /// brought soon after `until`. None if etcd was restored meanwhile.
    pub fn revisions(&self, from: At, until: At) -> Option<impl Iterator<Item = Revision> + use<'h>> {
        let (first, last) = (self.revision_by(from), self.revision_by(self.seen_by(until)));
        let epoch = first.epoch;
        let all = (first.revision..=last.revision).map(move |revision| Revision { epoch, revision });
        (epoch == last.epoch).then_some(all)
    }

    /// The revisions that the watch brought long after this instant, although what they hold was sent by then: without a quorum it brings
    /// nothing, and what was committed just before may have been answered, or read.
    pub fn brought_late(&self, at: At) -> Vec<Revision> {
        let last = self.revision_by(self.seen_by(at));
        let is_later = |changed: &Changed| changed.revision > last && changed.revision.epoch == last.epoch;
        let mut late = Vec::new();
        for (_, _, changed) in self.changes().filter(|(_, _, changed)| is_later(changed)) {
            match self.writer(changed.revision) {
                Some((call, _)) if self.history.events[call].at > at => break,
                Some(_) => late.push(changed.revision),
                None if self.may_be_sent_by(changed, at) => late.push(changed.revision),
                None => {}
            }
        }
        late
    }

    /// Whether a transaction that had no answer, and was sent by this instant, puts this value.
    fn may_be_sent_by(&self, changed: &Changed, at: At) -> bool {
        let Change::Put { value, .. } = &changed.change else {
            return false;
        };
        let puts =
            |op: &Op| matches!(op, Op::Put { key, value: put, .. } if *key == changed.key && put == value);
        let mut calls = self.store_calls();
        calls.any(|(_, sent, call)| {
            sent <= at && matches!(call.outcome, Outcome::Unknown) && call.then.iter().any(puts)
        })
    }

    /// Whether etcd was restored at most this long before an instant: a process may not know yet.
    pub fn is_just_restored(&self, at: At, millis: u64) -> bool {
        let mut restored = self
            .events()
            .filter(|(_, event)| matches!(event.what, What::Restored { .. }));
        restored.any(|(_, event)| event.at <= at && at <= event.at.plus_millis(millis))
    }

    /// The transaction that wrote at this revision, if a process sent it through its proxy.
    pub fn writer(&self, revision: Revision) -> Option<(usize, &'h StoreCall)> {
        let index = *self.writers.get(&revision)?;
        match &self.history.events[index].what {
            What::Store(call) => Some((index, call)),
            _ => None,
        }
    }

    pub fn is_replica(&self, process: &Process) -> bool {
        self.lives
            .get(process)
            .is_some_and(|span| matches!(span.role, Role::Replica { .. }))
    }

    /// Whether a replica may have made a call: one did, or the caller is not known.
    pub fn may_be_replica(&self, caller: Option<&Process>) -> bool {
        caller.is_none_or(|process| self.is_replica(process))
    }

    /// The release of a replica, with its minimums.
    pub fn release_of(&self, process: &Process) -> Option<Minimums> {
        let Role::Replica { release, .. } = self.lives.get(process)?.role else {
            return None;
        };
        let listed = self.history.run.releases.iter();
        Minimums::of(listed.clone().find(|listed| listed.release == *release)?)
    }

    /// The earliest instant at which something may have happened that the harness saw at this one: it may not have run.
    pub fn earliest(&self, at: At) -> At {
        let slack = self.history.run.settings.slack;
        let meanwhile = self
            .stalls
            .iter()
            .filter(|(from, until)| *from <= at && at <= until.plus_millis(slack));
        meanwhile.map(|(from, _)| *from).min().unwrap_or(at)
    }

    /// A time by which the watch had brought everything that had happened by then.
    pub fn seen_by(&self, at: At) -> At {
        let slack = self.history.run.settings.watch_slack;
        self.stalls
            .iter()
            .fold(at.plus_millis(slack), |seen, (from, until)| {
                match *from <= seen && at <= *until {
                    true => seen.max(until.plus_millis(slack)),
                    false => seen,
                }
            })
    }
}

/// A release and its minimums, as the gate compares them.
#[derive(Clone, Copy)]
pub struct Minimums {
    pub release: Release,
    pub min_reconciler: Release,
    pub min_apiserver: Release,
}

impl Minimums {
    fn of(listed: &ReplicaRelease) -> Option<Self> {
        Some(Self {
            release: listed.release.parse().ok()?,
            min_reconciler: listed.min_reconciler.parse().ok()?,
            min_apiserver: listed.min_apiserver.parse().ok()?,
        })
    }
}

impl<'h> Version<'h> {
    fn of(event: usize, at: At, changed: &'h Changed) -> Self {
        let (value, created, lease) = match &changed.change {
            Change::Put {
                value,
                created,
                lease,
            } => (Some(value.0.as_slice()), *created, *lease),
            Change::Deleted => (None, 0, 0),
        };
        Self {
            revision: changed.revision,
            event,
            at,
            value,
            created,
            lease,
        }
    }
}

/// A caller in words.
pub fn who(caller: Option<&Process>) -> String {
    caller.map_or_else(|| "a replica".to_owned(), ToString::to_string)
}

/// The revision before a change.
pub fn before(revision: Revision) -> Revision {
    Revision {
        revision: revision.revision - 1,
        ..revision
    }
}

pub fn is_write(op: &Op) -> bool {
    written(op).is_some()
}

/// The key that an operation writes or deletes; of a range, its begin.
pub fn written(op: &Op) -> Option<&[u8]> {
    match op {
        Op::Put { key, .. } | Op::Delete { key, .. } => Some(&key.0),
        Op::Get { .. } => None,
    }
}

fn lives(events: &[Event]) -> BTreeMap<&Process, Span<'_>> {
    let mut lives: BTreeMap<&Process, Span<'_>> = BTreeMap::new();
    for (index, event) in events.iter().enumerate() {
        let What::Life(lived) = &event.what else { continue };
        match (&lived.life, lives.get_mut(&lived.process)) {
            (Life::Started(role), None) => {
                let span = Span {
                    role,
                    started: event.at,
                    signals: Vec::new(),
                    exited: None,
                };
                lives.insert(&lived.process, span);
            }
            (Life::Signalled(signal), Some(span)) => span.signals.push((event.at, *signal, index)),
            (Life::Exited { code }, Some(span)) => span.exited = Some((event.at, *code, index)),
            _ => {}
        }
    }
    lives
}
