//! What commands read from etcd to show objects: a few ranges, as they are now or followed.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use futures::future::select_all;

use crate::cli::exit::Failure;
use crate::cli::roles::facts;
use crate::etcd::members::{MemberList, MemberReport};
use crate::etcd::{Etcd, KeyRange, KeyValue, Revision};
use crate::store::{Cache, Keys, Store};

/// The keys of some ranges.
#[derive(Debug)]
pub struct View {
    /// How keys are called.
    pub keys: Keys,
    entries: BTreeMap<Vec<u8>, KeyValue>,
    revision: Revision,
    derived: OnceLock<Box<dyn Any + Send + Sync>>,
    members: Option<MembersNow>,
}

/// What etcd says of its members at one moment, beside the records below `/members/`.
#[derive(Debug)]
pub struct MembersNow {
    /// Which there are.
    pub list: MemberList,
    /// What those answered that were asked: one that is being removed is not (REQ-M-7).
    pub surveys: Vec<MemberReport>,
}

impl View {
    /// Without any key.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            entries: BTreeMap::new(),
            revision: Revision::ABSENT,
            derived: OnceLock::new(),
            members: None,
        }
    }

    /// Asks etcd for its members, and each of those how it fares.
    ///
    /// # Errors
    /// A failure if there is no list.
    pub async fn look_at_members(&mut self, store: &Store) -> Result<(), Failure> {
        let list = store.etcd.list_members().await.map_err(Failure::failed)?;
        let (records, _) = facts::records(store).await?;
        let surveys = facts::survey(store, &list, &records).await;
        self.derived.take();
        // Members without a record are shown like the others.
        self.entries
            .retain(|_, kv| kv.mod_revision != Revision::ABSENT || !kv.value.is_empty());
        for member in &list.members {
            let key = self.keys.member(member.id);
            self.entries.entry(key.clone()).or_insert(KeyValue {
                key,
                value: Vec::new(),
                create_revision: Revision::ABSENT,
                mod_revision: Revision::ABSENT,
                lease: None,
            });
        }
        self.members = Some(MembersNow { list, surveys });
        Ok(())
    }

    /// What etcd says of its members, for kinds that look at them.
    pub fn members(&self) -> Option<&MembersNow> {
        self.members.as_ref()
    }

    /// Reads ranges. Each is at one revision, but not all at the same: good enough to look at, not to decide by.
    ///
    /// # Errors
    /// A failure if etcd did not answer.
    pub async fn read(store: &Store, ranges: &[KeyRange]) -> Result<Self, Failure> {
        let mut view = Self::new(store.keys.clone());
        for range in ranges {
            let (keys, revision) = store.etcd.list(range).await.map_err(Failure::failed)?;
            view.revision = view.revision.max(revision);
            view.entries
                .extend(keys.into_iter().map(|kv| (kv.key.clone(), kv)));
        }
        Ok(view)
    }

    /// The newest revision that something was read at.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// One key.
    pub fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        self.entries.get(key)
    }

    /// All keys, in order.
    pub fn iter(&self) -> impl Iterator<Item = &KeyValue> {
        self.entries.values()
    }

    /// The keys of a range that begins where their prefix does, in order.
    pub fn below(&self, prefix: &KeyRange) -> impl Iterator<Item = &KeyValue> + use<'_> {
        let start = prefix.start().to_vec();
        self.entries
            .range(start.clone()..)
            .take_while(move |(key, _)| key.starts_with(&start))
            .map(|(_, kv)| kv)
    }

    /// What a kind makes of all keys, made once for all of its objects and anew after a change. A view is used by one
    /// kind, so there is one such thing.
    pub fn derived<T: Any + Send + Sync>(&self, derive: impl Fn(&Self) -> T) -> Derived<'_, T> {
        let made = self.derived.get_or_init(|| Box::new(derive(self)));
        match made.downcast_ref() {
            Some(made) => Derived::Kept(made),
            None => Derived::Made(derive(self)),
        }
    }

    /// Takes in a key as it is now.
    pub fn set(&mut self, key: &[u8], value: Option<&KeyValue>) {
        self.derived.take();
        match value {
            Some(kv) => self.entries.insert(key.to_vec(), kv.clone()),
            None => self.entries.remove(key),
        };
    }
}

/// See [`View::derived`].
pub enum Derived<'v, T> {
    /// Made before.
    Kept(&'v T),
    /// Made for this question.
    Made(T),
}

impl<T> std::ops::Deref for Derived<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Kept(kept) => kept,
            Self::Made(made) => made,
        }
    }
}

/// A [`View`] that follows its ranges, over broken connections and compactions.
pub struct LiveView {
    /// As of now.
    pub view: View,
    caches: Vec<Cache<KeyValue>>,
}

impl LiveView {
    /// Follows these ranges; nothing is read before [`LiveView::changes`].
    pub fn new(etcd: &Etcd, keys: Keys, ranges: Vec<KeyRange>) -> Self {
        let caches = ranges
            .into_iter()
            .map(|range| Cache::new(etcd, range, KeyValue::clone))
            .collect();
        Self {
            view: View::new(keys),
            caches,
        }
    }

    /// The keys that changed, once all ranges are wholly known; the first time, all there are. May be empty.
    pub async fn changes(&mut self) -> Vec<Vec<u8>> {
        let mut changed = Vec::new();
        loop {
            let mut updates: Vec<Vec<(Vec<u8>, Option<KeyValue>)>> = vec![Vec::new(); self.caches.len()];
            let steps = self.caches.iter_mut().zip(&mut updates).map(|(cache, updates)| {
                Box::pin(cache.next(|change| {
                    updates.push((change.key.to_vec(), change.after.cloned()));
                }))
            });
            select_all(steps).await;
            for (key, value) in updates.into_iter().flatten() {
                self.view.set(&key, value.as_ref());
                changed.push(key);
            }
            if self.caches.iter().all(Cache::is_complete) {
                return changed;
            }
        }
    }
}
