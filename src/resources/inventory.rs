//! The inventory: one key in etcd for each object ever applied. Only objects in the inventory are pruned. The entry is
//! written before the object, so a leader that dies in between leaves an entry without an object, never an object without
//! an entry (INV-3).

use std::collections::BTreeMap;

use futures::future;
use prost::Message as _;
use tracing::warn;

use super::kinds;
use super::observe::Target;
use crate::etcd::{self, Fence, FencedError, Txn};
use crate::kube::ObjectRef;
use crate::proto::Applied;
use crate::store::Store;

/// Keys per transaction. etcd's default limit is 128 operations.
const BATCH: usize = 100;

/// The entry of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// API version of the last apply, without the group.
    pub version: String,
    /// Uid of the object; empty until the first apply succeeded.
    pub uid: String,
}

/// The inventory. The leader of a term reads it once, and then only writes.
#[derive(Debug)]
pub struct Inventory {
    store: Store,
    entries: Option<BTreeMap<ObjectRef, Entry>>,
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
                |Applied { version, uid }| Entry { version, uid },
            );
            entries.insert(object, entry);
        }
        self.entries = Some(entries);
        Ok(())
    }

    /// The entry of an object; `None` if it has none, or if the inventory is not loaded.
    pub fn get(&self, object: &ObjectRef) -> Option<&Entry> {
        self.entries.as_ref()?.get(object)
    }

    /// Uid of an object at its last apply; empty if unknown.
    pub(super) fn uid(&self, object: &ObjectRef) -> &str {
        self.get(object).map_or("", |entry| entry.uid.as_str())
    }

    /// The objects that the inventory holds and the bundle does not, with the API version of their last apply.
    /// Namespaces and definitions come last.
    pub(super) fn obsolete(&self, is_wanted: impl Fn(&ObjectRef) -> bool) -> Vec<Target> {
        let entries = self.entries.iter().flatten();
        let mut obsolete: Vec<Target> = entries
            .filter(|(object, _)| !is_wanted(object))
            .map(|(object, entry)| Target {
                object: object.clone(),
                version: match entry.version.is_empty() {
                    // The entry could not be decoded; v1 is the likeliest version to find the object through.
                    true => "v1".to_owned(),
                    false => entry.version.clone(),
                },
            })
            .collect();
        obsolete.sort_by_key(|target| kinds::is_foundation(&target.object.group, &target.object.kind));
        obsolete
    }

    /// All objects in the inventory; none before it is loaded.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectRef, &Entry)> {
        self.entries.iter().flatten()
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
        let new: Vec<(ObjectRef, Entry)> = entries
            .into_iter()
            .filter(|(object, entry)| self.get(object) != Some(entry))
            .collect();
        let mut batches = Vec::new();
        for batch in new.chunks(BATCH) {
            batches.push(
                batch
                    .iter()
                    .fold(Txn::new(), |txn, (object, Entry { version, uid })| {
                        let applied = Applied {
                            version: version.clone(),
                            uid: uid.clone(),
                        };
                        txn.put(&self.key(object), applied.encode_to_vec())
                    }),
            );
        }
        self.commit(fence, batches).await?;
        if let Some(entries) = &mut self.entries {
            entries.extend(new);
        }
        Ok(())
    }

    /// Deletes the entries of these objects.
    ///
    /// # Errors
    /// [`FencedError`]; the inventory is then unloaded, because some entries may have been deleted.
    pub async fn forget(&mut self, fence: &Fence, objects: &[ObjectRef]) -> Result<(), FencedError> {
        let mut batches = Vec::new();
        for batch in objects.chunks(BATCH) {
            batches.push(
                batch
                    .iter()
                    .fold(Txn::new(), |txn, object| txn.delete(&self.key(object))),
            );
        }
        self.commit(fence, batches).await?;
        if let Some(entries) = &mut self.entries {
            for object in objects {
                entries.remove(object);
            }
        }
        Ok(())
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

    /// Commits the batches concurrently. They are independent, and etcd writes concurrent transactions to disk together.
    async fn commit(&mut self, fence: &Fence, batches: Vec<Txn>) -> Result<(), FencedError> {
        let mut committing = Vec::with_capacity(batches.len());
        for txn in batches {
            committing.push(self.store.etcd.fenced(fence, txn));
        }
        let committed = future::try_join_all(committing).await;
        if committed.is_err() {
            self.entries = None;
        }
        committed.map(drop)
    }
}
