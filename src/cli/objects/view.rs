//! The keys that commands read to show objects: a few ranges, read once or followed.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use futures::future::select_all;
use jiff::Timestamp;

use crate::cli::exit::Failure;
use crate::etcd::{Etcd, KeyRange, KeyValue, MemberId, Revision};
use crate::proto::Member;
use crate::roles::facts::Facts;
use crate::roles::membership::Membership;
use crate::store::object::member::decode_member;
use crate::store::object::{Malformed, Object, decode};
use crate::store::{Cache, Keys, Store};

/// The keys of some ranges, and etcd's members if the kind shows them.
#[derive(Debug)]
pub struct View {
    /// Builds and parses keys.
    pub keys: Keys,
    entries: BTreeMap<Vec<u8>, KeyValue>,
    revision: Revision,
    derived: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// See [`View::observe_members`].
    membership: Option<Membership>,
    quorum_lost: bool,
}

impl View {
    /// A view without keys.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            entries: BTreeMap::new(),
            revision: Revision::ABSENT,
            derived: OnceLock::new(),
            membership: None,
            quorum_lost: false,
        }
    }

    /// Reads the member list, and asks each member for its status.
    ///
    /// # Errors
    /// 1 if etcd did not answer.
    pub async fn observe_members(&mut self, store: &Store) -> Result<(), Failure> {
        let membership = Facts::to_show(store).await?.membership;
        self.derived.take();
        // Members without a record have a key without a value here, so that they are shown like the others.
        self.entries
            .retain(|_, kv| kv.mod_revision != Revision::ABSENT || !kv.value.is_empty());
        for member in membership.listed() {
            let key = self.keys.member(member.id);
            self.entries.entry(key.clone()).or_insert(KeyValue {
                key,
                value: Vec::new(),
                create_revision: Revision::ABSENT,
                mod_revision: Revision::ABSENT,
                lease: None,
            });
        }
        // Only a command that got no linearizable read makes others.
        self.quorum_lost = store.etcd.config().serializable && !membership.serves();
        self.membership = Some(membership);
        Ok(())
    }

    /// The members of etcd; `None` before [`View::observe_members`].
    pub fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// Whether no voter of etcd serves a linearizable read, so that this is what single members hold.
    pub fn is_quorum_lost(&self) -> bool {
        self.quorum_lost
    }

    /// Reads ranges. Each is read at a revision of its own: good enough to show, not to decide by.
    ///
    /// # Errors
    /// 1 if etcd did not answer.
    pub async fn read(store: &Store, ranges: &[KeyRange]) -> Result<Self, Failure> {
        let mut view = Self::new(store.keys.clone());
        view.read_further(store, ranges).await?;
        Ok(view)
    }

    /// Reads further ranges, each at a revision of its own.
    ///
    /// # Errors
    /// 1 if etcd did not answer.
    pub async fn read_further(&mut self, store: &Store, ranges: &[KeyRange]) -> Result<(), Failure> {
        self.derived.take();
        for range in ranges {
            let (keys, revision) = store.etcd.list(range).await?;
            self.revision = self.revision.max(revision);
            self.entries
                .extend(keys.into_iter().map(|kv| (kv.key.clone(), kv)));
        }
        Ok(())
    }

    /// The newest revision at which a range was read.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&KeyValue> {
        self.entries.get(key)
    }

    /// All keys, in order.
    pub fn iter(&self) -> impl Iterator<Item = &KeyValue> {
        self.entries.values()
    }

    /// The keys of a range that covers a prefix, in order.
    pub fn below(&self, prefix: &KeyRange) -> impl Iterator<Item = &KeyValue> + use<'_> {
        let start = prefix.start().to_vec();
        self.entries
            .range(start.clone()..)
            .take_while(move |(key, _)| key.starts_with(&start))
            .map(|(_, kv)| kv)
    }

    /// The member records that can be read, each with its key and value.
    pub fn member_records(&self) -> impl Iterator<Item = (MemberId, Member, &KeyValue)> {
        self.below(&self.keys.members()).filter_map(move |kv| {
            let record = decode_member(&kv.value).ok()?;
            Some((self.keys.parse_member(&kv.key)?, record, kv))
        })
    }

    /// Something that `derive` computes from the whole view. It is kept until the view changes, for all objects of the
    /// one kind that uses the view.
    pub fn derived<T: Any + Send + Sync>(&self, derive: impl Fn(&Self) -> T) -> Arc<T> {
        let kept = self.derived.get_or_init(|| Arc::new(derive(self)));
        let kept = Arc::clone(kept).downcast();
        kept.unwrap_or_else(|_| Arc::new(derive(self)))
    }

    /// Replaces or removes a key.
    pub fn set(&mut self, key: &[u8], value: Option<&KeyValue>) {
        self.derived.take();
        match value {
            Some(kv) => self.entries.insert(key.to_vec(), kv.clone()),
            None => self.entries.remove(key),
        };
    }
}

/// One object of a view.
#[derive(Clone, Copy)]
pub struct Item<'v> {
    /// Everything that was read with it.
    pub view: &'v View,
    /// Its name, or `OWNER/NAME`.
    pub name: &'v str,
    /// Its key and value.
    pub stored: &'v KeyValue,
    /// The time that ages are counted to.
    pub now: Timestamp,
}

impl Item<'_> {
    /// The stored object.
    ///
    /// # Errors
    /// Why the value cannot be read.
    pub fn object<O: Object>(&self) -> Result<O, Malformed> {
        decode(self.name, &self.stored.value)
    }

    /// When it was last written.
    pub fn revision(&self) -> Revision {
        self.stored.mod_revision
    }
}

/// A [`View`] that follows its ranges across broken connections and compactions.
pub struct LiveView {
    /// The keys as of the last [`LiveView::changes`].
    pub view: View,
    caches: Vec<Cache<KeyValue>>,
}

impl LiveView {
    /// Follows these ranges, from the first [`LiveView::changes`] on.
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

    /// Waits until all ranges are completely read, and returns the keys that changed; the first time, all keys. May
    /// return none.
    pub async fn changes(&mut self) -> Vec<Vec<u8>> {
        let mut changed = Vec::new();
        loop {
            let mut updates: Vec<Vec<(Vec<u8>, Option<KeyValue>)>> = vec![Vec::new(); self.caches.len()];
            let steps = self.caches.iter_mut().zip(&mut updates).map(|(cache, updates)| {
                Box::pin(cache.next(|change| {
                    if change.before.as_ref() != change.after {
                        updates.push((change.key.to_vec(), change.after.cloned()));
                    }
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
