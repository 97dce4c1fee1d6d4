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
        self.newest.among(&self.entries)
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
    fn among<V>(&mut self, entries: &Entries<V>) -> Option<(&[u8], Revision)> {
        if let Self::Deleted = self {
            let last = entries.iter().max_by_key(|(_, entry)| entry.mod_revision);
            *self = Self::Known(last.map(|(key, entry)| (key.clone(), entry.mod_revision)));
        }
        match self {
            Self::Known(Some((key, revision))) => Some((key, *revision)),
            Self::Known(None) | Self::Deleted => None,
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::Event;
    use crate::store::follow::Update;

    fn kv(key: &str, revision: i64) -> KeyValue {
        KeyValue {
            key: key.into(),
            value: format!("{key} at {revision}").into(),
            create_revision: Revision(revision),
            mod_revision: Revision(revision),
            lease: None,
        }
    }

    fn put(key: &str, revision: i64) -> Event {
        Event::Put(kv(key, revision))
    }

    fn deleted(key: &str, revision: i64) -> Event {
        Event::Delete {
            key: key.into(),
            revision: Revision(revision),
        }
    }

    #[test]
    fn the_newest_key_is_the_one_that_was_written_last_of_those_that_exist() {
        let (mut synced, mut entries, mut known) = (Synced::default(), Entries::new(), Newest::Known(None));
        let decode: Decode<String> = Box::new(|kv| String::from_utf8_lossy(&kv.value).into_owned());
        let mut take_in = |events: Vec<Event>| {
            let mut changes = Vec::new();
            let mut feed = Feed {
                entries: &mut entries,
                decode: &decode,
                newest: &mut known,
                on_change: |change: Change<'_, String>| changes.push((change.before, change.after.cloned())),
            };
            synced.take_in(Update::Events(events), &mut feed);
            let newest = known.among(&entries);
            let newest = newest.map(|(key, at)| (String::from_utf8_lossy(key).into_owned(), at.0));
            (newest, changes)
        };
        let newest = |key: &str, at: i64| Some((key.to_owned(), at));
        assert_eq!(take_in(vec![put("/a", 1), put("/b", 2)]).0, newest("/b", 2));
        assert_eq!(take_in(vec![put("/a", 3)]).0, newest("/a", 3));
        assert_eq!(take_in(vec![deleted("/a", 4)]).0, newest("/b", 2));
        assert_eq!(take_in(vec![put("/c", 5), deleted("/b", 6)]).0, newest("/c", 5));
        // A restored store has keys at revisions of before.
        let (now, changes) = take_in(vec![put("/d", 6), put("/c", 2), put("/d", 1)]);
        assert_eq!(now, newest("/c", 2));
        let texts = |before: &str, after: &str| (Some(before.to_owned()), Some(after.to_owned()));
        assert_eq!(
            changes[1..],
            [texts("/c at 5", "/c at 2"), texts("/d at 6", "/d at 1")]
        );
        assert_eq!(take_in(vec![deleted("/c", 7), deleted("/d", 8)]).0, None);
    }
}
