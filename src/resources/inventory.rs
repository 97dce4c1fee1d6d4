//! The inventory: one key in etcd for each object ever applied. Only objects in the inventory are pruned. The entry is
//! written before the object, so a leader that dies in between leaves an entry without an object, never an object without
//! an entry (INV-3).

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures::future;
use jiff::Timestamp;
use prost::Message as _;
use tracing::{info, warn};

mod drops;

use super::observe::{GroupKind, Target};
use crate::etcd::{self, Fence, FencedError, Revision};
use crate::kube::ObjectRef;
use crate::proto::{Applied, ResourceState};
use crate::store::Store;
use crate::store::object::time;
use crate::store::writer::{Proof, Unit, writer};

/// The entry of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// API version of the last apply, without the group.
    pub version: String,
    /// Uid of the object; empty until the first apply succeeded.
    pub uid: String,
    /// Name of the bundle of the last apply; empty if an older release wrote the entry.
    pub bundle: String,
    /// Digest of the manifest that was last in place; 0 if none was.
    pub manifest: u64,
    /// Digest of the object's fingerprint when it was last in place; 0 if it never was.
    pub fingerprint: u64,
    /// Whether the object was never written, so that the entry holds nothing but its state.
    pub unwritten: bool,
    /// Whether the object is deleted to be created again, so that its uid is not known yet.
    pub recreating: bool,
    /// Whether a deletion was begun, because the bundle no longer holds the object. It may have been carried out, or may
    /// still be, whatever the state says.
    pub deleting: bool,
    /// How many objects the bundle held when it dropped this one; 0 while it holds it.
    pub dropped_of: u32,
    /// How the last pass left the object.
    pub state: Option<State>,
}

/// How a pass left an object, as the entry holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// [`IN_PLACE`], or the word of the outcome.
    pub outcome: String,
    /// The reason of an outcome that has one.
    pub message: String,
    /// When the outcome became this one; of an object in place, when it was last written.
    pub since: Option<Timestamp>,
    /// When the object is tried again, if that is not within seconds.
    pub retry_at: Option<Timestamp>,
    /// Whether the bundle no longer holds the object.
    pub dropped: bool,
}

/// The outcome of an object that is as the bundle says.
pub const IN_PLACE: &str = "in place";

/// Two times of the next try that differ by less are the same one.
const SAME_TRY: Duration = Duration::from_secs(5);

impl State {
    /// This state as it is recorded: where it says nothing new, the one before. An outcome that stays keeps its beginning.
    fn following(self, before: Option<&Self>) -> Self {
        let Some(before) = before.filter(|before| before.outcome == self.outcome) else {
            return self;
        };
        let same_try = match (before.retry_at, self.retry_at) {
            (Some(before), Some(now)) => before.duration_since(now).unsigned_abs() < SAME_TRY,
            (before, now) => before == now,
        };
        Self {
            since: before.since,
            retry_at: if same_try { before.retry_at } else { self.retry_at },
            ..self
        }
    }
}

impl Entry {
    /// Whether an object with this uid and the label of this bundle is the one that the entry records. Without a uid it is
    /// only while the object is recreated: a creation that failed leaves the name to others.
    pub(super) fn is_of(&self, uid: &str, label: &str) -> bool {
        self.bundle == label && (self.recreating || self.uid == uid)
    }

    fn from_proto(stored: Applied) -> Self {
        Self {
            version: stored.version,
            uid: stored.uid,
            bundle: stored.bundle,
            manifest: stored.manifest,
            fingerprint: stored.fingerprint,
            unwritten: stored.unwritten,
            recreating: stored.recreating,
            deleting: stored.deleting,
            dropped_of: stored.dropped_of,
            state: stored.state.map(|state| State {
                outcome: state.outcome,
                message: state.message,
                since: time::from_proto(state.since.as_ref()),
                retry_at: time::from_proto(state.retry_at.as_ref()),
                dropped: state.dropped,
            }),
        }
    }

    fn to_proto(&self) -> Applied {
        let state = self.state.clone();
        Applied {
            version: self.version.clone(),
            uid: self.uid.clone(),
            bundle: self.bundle.clone(),
            manifest: self.manifest,
            fingerprint: self.fingerprint,
            unwritten: self.unwritten,
            recreating: self.recreating,
            deleting: self.deleting,
            dropped_of: self.dropped_of,
            state: state.map(|state| ResourceState {
                outcome: state.outcome,
                message: state.message,
                since: state.since.map(time::to_proto),
                retry_at: state.retry_at.map(time::to_proto),
                dropped: state.dropped,
            }),
        }
    }
}

/// An entry as etcd holds it.
#[derive(Debug)]
struct Recorded {
    entry: Entry,
    /// Mod revision of the key.
    revision: Revision,
}

/// The inventory. The leader of a term reads it once, and then only writes.
#[derive(Debug)]
pub struct Inventory {
    store: Store,
    entries: Option<BTreeMap<ObjectRef, Recorded>>,
    /// The keys that name no object.
    ignored: usize,
    /// When the keys were last counted.
    counted: Option<Instant>,
    /// Whether the last commit found an entry changed or deleted by hand.
    conflict: bool,
}

/// The entries are counted no more often than this.
const COUNT_EVERY: Duration = Duration::from_secs(5);

impl Inventory {
    /// An inventory that is not loaded yet.
    pub fn new(store: Store) -> Self {
        Self {
            store,
            entries: None,
            ignored: 0,
            counted: None,
            conflict: false,
        }
    }

    /// Reads the inventory from etcd, unless it is loaded and no entry was forgotten by hand since.
    ///
    /// # Errors
    /// [`etcd::Error`] unless all of it was read. The inventory then stays empty, and nothing may be pruned.
    pub async fn load(&mut self) -> Result<(), etcd::Error> {
        self.conflict = false;
        if let Some(entries) = &self.entries {
            if self.counted.is_some_and(|at| at.elapsed() < COUNT_EVERY) {
                return Ok(());
            }
            let (count, _) = self.store.etcd.count(&self.store.keys.all_inventory()).await?;
            self.counted = Some(Instant::now());
            let known = entries.len() + self.ignored;
            if usize::try_from(count) == Ok(known) {
                return Ok(());
            }
            info!("the inventory has {count} keys instead of {known}: reading it again");
            self.entries = None;
        }
        let (stored, _) = self.store.etcd.list(&self.store.keys.all_inventory()).await?;
        let mut entries = BTreeMap::new();
        self.ignored = 0;
        for stored in stored {
            let Some((group, kind, namespace, name)) = self.store.keys.parse_inventory(&stored.key) else {
                warn!(key = %String::from_utf8_lossy(&stored.key), "ignoring an inventory key that names no object");
                self.ignored += 1;
                continue;
            };
            let object = ObjectRef {
                group: group.to_owned(),
                kind: kind.to_owned(),
                namespace: namespace.map(str::to_owned),
                name: name.to_owned(),
            };
            let entry = Applied::decode(stored.value.as_slice()).map_or_else(
                |error| {
                    // The key proves that the object was ours; the plan of a prune checks the object itself.
                    warn!(%object, %error, "cannot decode an inventory entry; treating its uid as unknown");
                    Entry::default()
                },
                Entry::from_proto,
            );
            let revision = stored.mod_revision;
            entries.insert(object, Recorded { entry, revision });
        }
        self.entries = Some(entries);
        self.counted = Some(Instant::now());
        Ok(())
    }

    /// The entry of an object; `None` if it has none, or if the inventory is not loaded.
    pub fn get(&self, object: &ObjectRef) -> Option<&Entry> {
        Some(&self.recorded(object)?.entry)
    }

    fn recorded(&self, object: &ObjectRef) -> Option<&Recorded> {
        self.entries.as_ref()?.get(object)
    }

    /// The entry of an object; an empty one if it has none.
    pub(super) fn entry(&self, object: &ObjectRef) -> Entry {
        self.get(object).cloned().unwrap_or_default()
    }

    /// The kinds of all entries.
    pub(super) fn kinds(&self) -> HashSet<GroupKind> {
        let entries = self.entries.iter().flatten();
        entries
            .map(|(object, _)| (object.group.clone(), object.kind.clone()))
            .collect()
    }

    /// The objects that the bundle does not hold and that were never written.
    pub(super) fn unwritten(&self, is_wanted: impl Fn(&ObjectRef) -> bool) -> Vec<ObjectRef> {
        let entries = self.entries.iter().flatten();
        entries
            .filter(|(object, recorded)| recorded.entry.unwritten && !is_wanted(object))
            .map(|(object, _)| object.clone())
            .collect()
    }

    /// The objects that were written and that the bundle does not hold, with the API version of their last apply.
    pub(super) fn obsolete(&self, is_wanted: impl Fn(&ObjectRef) -> bool) -> Vec<Target> {
        let entries = self.entries.iter().flatten();
        entries
            .filter(|(object, recorded)| !recorded.entry.unwritten && !is_wanted(object))
            .map(|(object, Recorded { entry, .. })| Target {
                object: object.clone(),
                version: match entry.version.is_empty() {
                    // The entry could not be decoded; v1 is the likeliest version to find the object through.
                    true => "v1".to_owned(),
                    false => entry.version.clone(),
                },
            })
            .collect()
    }

    /// Writes the entries that differ from the stored ones. A state that says nothing new does not count.
    ///
    /// # Errors
    /// [`FencedError`]; the inventory is then unloaded, because some entries may have been written.
    pub async fn record(
        &mut self,
        fence: &Fence,
        entries: Vec<(ObjectRef, Entry)>,
    ) -> Result<(), FencedError> {
        let changed: Vec<(ObjectRef, Entry)> = entries
            .into_iter()
            .map(|(object, entry)| {
                // An object that was written is in place since then.
                let before = self.get(&object);
                let before = before.filter(|before| before.fingerprint == entry.fingerprint);
                let before = before.and_then(|before| before.state.as_ref());
                let state = entry.state.map(|state| state.following(before));
                (object, Entry { state, ..entry })
            })
            .filter(|(object, entry)| self.get(object) != Some(entry))
            .collect();
        let put = |(object, entry): &(ObjectRef, Entry)| {
            let applied = entry.to_proto().encode_to_vec();
            Unit::new().put(self.key(object), self.revision(object), applied)
        };
        let units = changed.iter().map(put).collect();
        let revisions = self.commit(fence, units).await?;
        if let Some(entries) = &mut self.entries {
            for ((object, entry), revision) in changed.into_iter().zip(revisions) {
                entries.insert(object, Recorded { entry, revision });
            }
        }
        Ok(())
    }

    /// Records that deletions of these objects begin. Proves that each entry is still as it was read, also where it says so
    /// already: an object that was forgotten by hand is not deleted (INV-12).
    ///
    /// # Errors
    /// [`FencedError`]; the inventory is then unloaded, because some entries may have been written.
    pub(super) async fn begin_deletions(
        &mut self,
        fence: &Fence,
        objects: &[ObjectRef],
    ) -> Result<(), FencedError> {
        let (begun, new): (Vec<&ObjectRef>, Vec<&ObjectRef>) =
            objects.iter().partition(|object| self.entry(object).deleting);
        let prove = |object: &ObjectRef| {
            let unchanged = Proof::Unchanged(self.key(object), self.revision(object));
            Unit::new().proving(unchanged)
        };
        let proofs = begun.into_iter().map(prove).collect();
        self.commit(fence, proofs).await?;
        let entry = |object: &ObjectRef| Entry {
            deleting: true,
            ..self.entry(object)
        };
        let entries = new.into_iter().map(|object| (object.clone(), entry(object)));
        self.record(fence, entries.collect()).await
    }

    /// Deletes the entries of these objects.
    ///
    /// # Errors
    /// [`FencedError`]; the inventory is then unloaded, because some entries may have been deleted.
    pub async fn forget(&mut self, fence: &Fence, objects: &[ObjectRef]) -> Result<(), FencedError> {
        let delete = |object| Unit::new().delete(self.key(object), self.revision(object));
        let units = objects.iter().map(delete).collect();
        self.commit(fence, units).await?;
        if let Some(entries) = &mut self.entries {
            for object in objects {
                entries.remove(object);
            }
        }
        Ok(())
    }

    /// Whether the inventory was unloaded because an entry was changed or deleted by hand since it was read.
    pub(super) fn had_conflict(&self) -> bool {
        self.conflict
    }

    /// The revision that the key of an object must have when it is written.
    fn revision(&self, object: &ObjectRef) -> Revision {
        self.recorded(object)
            .map_or(Revision::ABSENT, |recorded| recorded.revision)
    }

    fn key(
        &self,
        ObjectRef {
            group,
            kind,
            namespace,
            name,
        }: &ObjectRef,
    ) -> Vec<u8> {
        self.store.keys.inventory(group, kind, namespace.as_deref(), name)
    }

    /// Commits all units. Returns the revision of each.
    async fn commit(&mut self, fence: &Fence, units: Vec<Unit>) -> Result<Vec<Revision>, FencedError> {
        let (writer, serving) = writer(&self.store.etcd, fence);
        // The block owns the writer, so `serving` ends with the last write.
        let writing =
            async move { future::try_join_all(units.into_iter().map(|unit| writer.write(unit))).await };
        let (committed, ()) = future::join(writing, serving).await;
        if committed.is_err() {
            self.entries = None;
        }
        self.conflict = matches!(committed, Err(FencedError::Conflict));
        committed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(outcome: &str, message: &str, since: i64, retry_at: Option<i64>) -> State {
        let at = |second| Timestamp::from_second(second).unwrap();
        State {
            outcome: outcome.to_owned(),
            message: message.to_owned(),
            since: Some(at(since)),
            retry_at: retry_at.map(at),
            dropped: false,
        }
    }

    #[test]
    fn a_state_that_says_nothing_new_stays_as_it_was() {
        let before = state("failed", "no", 100, Some(500));
        let following = |now: State| now.following(Some(&before));
        assert_eq!(following(state("failed", "no", 200, Some(502))), before);
        assert_eq!(
            following(state("failed", "never", 200, Some(900))),
            state("failed", "never", 100, Some(900))
        );
        let in_place = state(IN_PLACE, "", 200, None);
        assert_eq!(following(in_place.clone()), in_place);
        assert_eq!(in_place.clone().following(None), in_place);
    }
}
