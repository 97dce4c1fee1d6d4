//! What was ever applied, one key an object in etcd. Only what is listed is ever pruned, and it is listed before its
//! first write: a leader that dies in between leaves an entry, never an object that nobody knows (INV-3).

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

/// Keys a transaction: etcd takes 128 operations unless told otherwise.
const BATCH: usize = 100;

/// What is known of an object that was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// API version without the group, as last applied.
    pub version: String,
    /// Empty until the first apply was answered.
    pub uid: String,
}

/// The inventory as the leader of one term knows it: read once, then only written.
#[derive(Debug)]
pub struct Inventory {
    store: Store,
    entries: Option<BTreeMap<ObjectRef, Entry>>,
}

impl Inventory {
    /// Not read yet.
    pub fn new(store: Store) -> Self {
        Self { store, entries: None }
    }

    /// Reads it, unless that is done.
    ///
    /// # Errors
    /// [`etcd::Error`] if it could not be read as a whole: then nothing is known, and nothing may be pruned.
    pub async fn load(&mut self) -> Result<(), etcd::Error> {
        if self.entries.is_some() {
            return Ok(());
        }
        let (stored, _) = self.store.etcd.list(&self.store.keys.all_inventory()).await?;
        let mut entries = BTreeMap::new();
        for stored in stored {
            let Some((group, kind, namespace, name)) = self.store.keys.parse_inventory(&stored.key) else {
                warn!(key = %String::from_utf8_lossy(&stored.key), "a key in the inventory names no object: it is left alone");
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
                    // The key says that it was ours; who it was is to be seen from the object.
                    warn!(%object, %error, "an entry of the inventory cannot be read: its uid counts as unknown");
                    Entry::default()
                },
                |Applied { version, uid }| Entry { version, uid },
            );
            entries.insert(object, entry);
        }
        self.entries = Some(entries);
        Ok(())
    }

    /// The entry of an object.
    pub fn get(&self, object: &ObjectRef) -> Option<&Entry> {
        self.entries.as_ref()?.get(object)
    }

    /// Uid of an object as it was applied last; empty where that is not known.
    pub(super) fn uid(&self, object: &ObjectRef) -> &str {
        self.get(object).map_or("", |entry| entry.uid.as_str())
    }

    /// What it holds and the bundle does not, each to be looked at through the version that it was applied with;
    /// Namespaces and definitions last.
    pub(super) fn obsolete(&self, is_wanted: impl Fn(&ObjectRef) -> bool) -> Vec<Target> {
        let entries = self.entries.iter().flatten();
        let mut obsolete: Vec<Target> = entries
            .filter(|(object, _)| !is_wanted(object))
            .map(|(object, entry)| Target {
                object: object.clone(),
                version: match entry.version.is_empty() {
                    // An entry that could not be read: the likeliest, for a first look.
                    true => "v1".to_owned(),
                    false => entry.version.clone(),
                },
            })
            .collect();
        obsolete.sort_by_key(|target| kinds::is_foundation(&target.object.group, &target.object.kind));
        obsolete
    }

    /// Every object in it; none before it is read.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectRef, &Entry)> {
        self.entries.iter().flatten()
    }

    /// Writes entries, those that would not change left out.
    ///
    /// # Errors
    /// [`FencedError`]; what is known is then read again before anything is decided on it.
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

    /// Drops entries.
    ///
    /// # Errors
    /// [`FencedError`]; what is known is then read again before anything is decided on it.
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

    /// Commits all of them at once: they have nothing to do with each other, and etcd writes them to disk together.
    async fn commit(&mut self, fence: &Fence, batches: Vec<Txn>) -> Result<(), FencedError> {
        let mut committing = Vec::with_capacity(batches.len());
        for txn in batches {
            committing.push(self.store.etcd.fenced(fence, txn));
        }
        let committed = future::try_join_all(committing).await;
        if committed.is_err() {
            // Some of it may have been written.
            self.entries = None;
        }
        committed.map(drop)
    }
}
