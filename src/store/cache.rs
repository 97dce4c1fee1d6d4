//! A range held in memory, decoded: kept by list and watch, with the deletes that a compaction hid.

use std::collections::HashMap;

use crate::etcd::{Etcd, Event, KeyRange, KeyValue, Revision};

use super::follow::{Follower, Update};

/// What became of one key. A key that was there before and after has both values.
#[derive(Debug)]
pub struct Change<'a, V> {
    /// The whole key.
    pub key: &'a [u8],
    /// The value before.
    pub before: Option<V>,
    /// The value now.
    pub after: Option<&'a V>,
}

/// A decoded copy of a range.
pub struct Cache<V> {
    follower: Follower,
    decode: Box<dyn Fn(&KeyValue) -> V + Send + Sync>,
    entries: HashMap<Box<[u8]>, Entry<V>>,
    /// Number of the list under way or complete.
    list: u32,
    revision: Revision,
    complete: bool,
}

struct Entry<V> {
    value: V,
    mod_revision: Revision,
    /// The list or watch after it that last showed the key.
    seen_in: u32,
}

impl<V> Cache<V> {
    /// An empty cache of this range; [`Cache::next`] fills it. `decode` never fails: what cannot be parsed is a
    /// value of its own kind, so that one bad object hides no other (INV-8).
    pub fn new(
        etcd: &Etcd,
        range: KeyRange,
        decode: impl Fn(&KeyValue) -> V + Send + Sync + 'static,
    ) -> Self {
        Self {
            follower: Follower::new(etcd, range),
            decode: Box::new(decode),
            entries: HashMap::new(),
            list: 0,
            revision: Revision::ABSENT,
            complete: false,
        }
    }

    /// Takes in the next step, telling every change that it makes. Safe to cancel.
    pub async fn next(&mut self, on_change: impl FnMut(Change<'_, V>)) {
        let update = self.follower.next().await;
        self.take_in(update, on_change);
    }

    /// Whether the cache holds a whole list: false until the first is complete, and while a new one is read.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// The revision that the cache is at: no key of the range changed between the last change in it and this.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value under a key, with the revision that dates it.
    pub fn get(&self, key: &[u8]) -> Option<(&V, Revision)> {
        self.entries
            .get(key)
            .map(|entry| (&entry.value, entry.mod_revision))
    }

    /// All keys and values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        self.entries.iter().map(|(key, entry)| (&**key, &entry.value))
    }

    fn take_in(&mut self, update: Update, mut on_change: impl FnMut(Change<'_, V>)) {
        match update {
            Update::Page { first, keys } => {
                if first {
                    self.complete = false;
                    self.list = self.list.wrapping_add(1);
                }
                for kv in keys {
                    self.put(kv, &mut on_change);
                }
            }
            Update::Listed(revision) => {
                // What the list did not show was deleted while no watch saw it.
                let list = self.list;
                self.entries
                    .extract_if(|_, entry| entry.seen_in != list)
                    .for_each(|(key, gone)| {
                        on_change(Change {
                            key: &key,
                            before: Some(gone.value),
                            after: None,
                        });
                    });
                self.revision = revision;
                self.complete = true;
            }
            Update::Events(events) => {
                for event in events {
                    self.revision = self.revision.max(event.revision());
                    match event {
                        Event::Put(kv) => self.put(kv, &mut on_change),
                        Event::Delete { key, .. } => {
                            if let Some(gone) = self.entries.remove(&*key) {
                                on_change(Change {
                                    key: &key,
                                    before: Some(gone.value),
                                    after: None,
                                });
                            }
                        }
                    }
                }
            }
        }
    }

    fn put(&mut self, kv: KeyValue, on_change: &mut impl FnMut(Change<'_, V>)) {
        let seen_in = self.list;
        if let Some(known) = self.entries.get_mut(&*kv.key) {
            known.seen_in = seen_in;
            if known.mod_revision == kv.mod_revision {
                return;
            }
            known.mod_revision = kv.mod_revision;
            let before = std::mem::replace(&mut known.value, (self.decode)(&kv));
            on_change(Change {
                key: &kv.key,
                before: Some(before),
                after: Some(&known.value),
            });
        } else {
            let entry = Entry {
                value: (self.decode)(&kv),
                mod_revision: kv.mod_revision,
                seen_in,
            };
            on_change(Change {
                key: &kv.key,
                before: None,
                after: Some(&entry.value),
            });
            self.entries.insert(kv.key.into_boxed_slice(), entry);
        }
    }
}
