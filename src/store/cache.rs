//! A decoded copy of a range in memory, which reports every change.

use std::borrow::Cow;
use std::collections::HashMap;

use super::follow::Follower;
use super::index::{Indexed, Synced};
use crate::etcd::{Etcd, KeyRange, KeyValue, Revision};

/// A change of one key. A key that existed before and still exists has both values, which are equal where a list shows a
/// key again.
#[derive(Debug)]
pub struct Change<'a, V> {
    /// The whole key.
    pub key: &'a [u8],
    /// The value before.
    pub before: Option<V>,
    /// The value now.
    pub after: Option<&'a V>,
}

/// A decoded copy of a range, kept by list and watch.
pub struct Cache<V> {
    follower: Follower,
    synced: Synced,
    decode: Decode<V>,
    entries: Entries<V>,
    newest: Newest,
}

/// The existing key with the latest write.
#[derive(Debug)]
enum Newest {
    Known(Option<(Box<[u8]>, Revision)>),
    /// It was deleted. The one before it has not been looked for yet.
    Deleted,
}

type Decode<V> = Box<dyn Fn(&KeyValue) -> V + Send + Sync>;

type Entries<V> = HashMap<Box<[u8]>, Entry<V>>;

struct Entry<V> {
    value: V,
    mod_revision: Revision,
}

impl<V> Cache<V> {
    /// An empty cache of this range; [`Cache::next`] fills it. `decode` never fails: a value that cannot be parsed is a
    /// value of its own kind, so that one bad object hides no other (INV-8).
    pub fn new(
        etcd: &Etcd,
        range: KeyRange,
        decode: impl Fn(&KeyValue) -> V + Send + Sync + 'static,
    ) -> Self {
        Self {
            follower: Follower::new(etcd, range),
            synced: Synced::default(),
            decode: Box::new(decode),
            entries: HashMap::new(),
            newest: Newest::Known(None),
        }
    }

    /// Waits for the next step of following the range and takes it in. Calls `on_change` for every change. Safe to cancel.
    pub async fn next(&mut self, on_change: impl FnMut(Change<'_, V>)) {
        let update = self.follower.next().await;
        let mut feed = Feed {
            entries: &mut self.entries,
            decode: &self.decode,
            newest: &mut self.newest,
            on_change,
        };
        self.synced.take_in(update, &mut feed);
    }

    /// Whether the cache holds a whole list: false before the first list has ended, and while another is read.
    pub fn is_complete(&self) -> bool {
        self.synced.is_complete()
    }

    /// The revision that the cache has come to: no key of the range changed between the last change in it and this.
    pub fn revision(&self) -> Revision {
        self.synced.revision()
    }

    /// The existing key with the latest write, and its revision. Looks at every key once that key was deleted.
    pub fn newest(&mut self) -> Option<(&[u8], Revision)> {
        if let Newest::Deleted = self.newest {
            let last = self.entries.iter().max_by_key(|(_, entry)| entry.mod_revision);
            self.newest = Newest::Known(last.map(|(key, entry)| (key.clone(), entry.mod_revision)));
        }
        match &self.newest {
            Newest::Known(Some((key, revision))) => Some((key, *revision)),
            Newest::Known(None) | Newest::Deleted => None,
        }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the range holds no key.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value under a key, with the revision at which the key was last written.
    pub fn get(&self, key: &[u8]) -> Option<(&V, Revision)> {
        self.entries
            .get(key)
            .map(|entry| (&entry.value, entry.mod_revision))
    }

    /// Every key with its value, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        self.entries.iter().map(|(key, entry)| (&**key, &entry.value))
    }
}

/// The entries of a cache while they take in one step.
struct Feed<'a, V, F> {
    entries: &'a mut Entries<V>,
    decode: &'a Decode<V>,
    newest: &'a mut Newest,
    on_change: F,
}

impl Newest {
    fn put(&mut self, kv: &KeyValue) {
        let Self::Known(newest) = self else { return };
        match newest {
            Some((key, revision)) if kv.mod_revision < *revision => {
                // Only a restored store has the same key at an earlier revision.
                if **key == *kv.key {
                    *self = Self::Deleted;
                }
            }
            _ => *newest = Some((kv.key.as_slice().into(), kv.mod_revision)),
        }
    }

    fn delete(&mut self, deleted: &[u8]) {
        if let Self::Known(Some((key, _))) = self
            && **key == *deleted
        {
            *self = Self::Deleted;
        }
    }
}

impl<V, F: FnMut(Change<'_, V>)> Indexed for Feed<'_, V, F> {
    fn put(&mut self, kv: KeyValue) {
        self.newest.put(&kv);
        let Some(known) = self.entries.get_mut(&*kv.key) else {
            let entry = Entry {
                value: (self.decode)(&kv),
                mod_revision: kv.mod_revision,
            };
            (self.on_change)(Change {
                key: &kv.key,
                before: None,
                after: Some(&entry.value),
            });
            self.entries.insert(kv.key.into_boxed_slice(), entry);
            return;
        };
        // Also at the same revision, which a restored store may have given to another value.
        known.mod_revision = kv.mod_revision;
        let before = std::mem::replace(&mut known.value, (self.decode)(&kv));
        (self.on_change)(Change {
            key: &kv.key,
            before: Some(before),
            after: Some(&known.value),
        });
    }

    fn delete(&mut self, key: &[u8], _: Revision) {
        self.newest.delete(key);
        if let Some(deleted) = self.entries.remove(key) {
            (self.on_change)(Change {
                key,
                before: Some(deleted.value),
                after: None,
            });
        }
    }

    fn keys(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        self.entries.keys().map(|key| Cow::Borrowed(&**key))
    }
}
