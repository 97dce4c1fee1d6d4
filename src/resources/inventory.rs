//! The inventory: one key in etcd for each object ever applied. Only objects in the inventory are pruned. The entry is
//! written before the object, so a leader that dies in between leaves an entry without an object, never an object without
//! an entry (INV-3).

use std::collections::BTreeMap;

use futures::future;
use prost::Message as _;
use tracing::warn;

use super::observe::Target;
use crate::etcd::{self, Fence, FencedError, Revision};
use crate::kube::ObjectRef;
use crate::proto::Applied;
use crate::store::Store;
use crate::store::writer::{Unit, writer};

/// The entry of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// API version of the last apply, without the group.
    pub version: String,
    /// Uid of the object; empty until the first apply succeeded.
    pub uid: String,
    /// Name of the bundle of the last apply; empty if an older release wrote the entry.
    pub bundle: String,
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
}

impl Inventory {
    /// An inventory that is not loaded yet.
    pub fn new(store: Store) -> Self {
        Self { store, entries: None }
    }

    /// Reads the inventory from etcd, unless it is loaded.
    ///
    /// # Errors
    /// [`etcd::Error`] unless all of it was read. The inventory then stays empty, and nothing may be pruned.
    pub async fn load(&mut self) -> Result<(), etcd::Error> {
        if self.entries.is_some() {
            return Ok(());
        }
        let (stored, _) = self.store.etcd.list(&self.store.keys.all_inventory()).await?;
        let mut entries = BTreeMap::new();
        for stored in stored {
            let Some((group, kind, namespace, name)) = self.store.keys.parse_inventory(&stored.key) else {
                warn!(key = %String::from_utf8_lossy(&stored.key), "ignoring an inventory key that names no object");
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
                |Applied { version, uid, bundle }| Entry { version, uid, bundle },
            );
            let revision = stored.mod_revision;
            entries.insert(object, Recorded { entry, revision });
        }
        self.entries = Some(entries);
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

    /// The number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.as_ref().map_or(0, BTreeMap::len)
    }

    /// The objects that the inventory holds and the bundle does not, with the API version of their last apply.
    pub(super) fn obsolete(&self, is_wanted: impl Fn(&ObjectRef) -> bool) -> Vec<Target> {
        let entries = self.entries.iter().flatten();
        entries
            .filter(|(object, _)| !is_wanted(object))
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

    /// Writes the entries that differ from the stored ones.
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
            .filter(|(object, entry)| self.get(object) != Some(entry))
            .collect();
        let put = |(object, Entry { version, uid, bundle }): &(ObjectRef, Entry)| {
            let applied = Applied {
                version: version.clone(),
                uid: uid.clone(),
                bundle: bundle.clone(),
            };
            Unit::new().put(self.key(object), self.revision(object), applied.encode_to_vec())
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
        committed
    }
}
