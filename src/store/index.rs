//! How a copy of a range follows it: what a list leaves out, and which revision the copy has come to.

use std::borrow::Cow;
use std::collections::HashSet;

use super::follow::Update;
use crate::etcd::{Event, KeyValue, Revision};

/// A copy of a range, fed key by key. It need not know of lists.
pub trait Indexed {
    /// A key as it is now. After a watch was interrupted, the same state of a key comes again.
    fn put(&mut self, kv: KeyValue);

    /// A key that does not exist at this revision. The copy may never have held it.
    fn delete(&mut self, key: &[u8], at: Revision);

    /// Every key that the copy holds, in any order. Only a list after the first asks, so that no key is stored twice.
    fn keys(&self) -> impl Iterator<Item = Cow<'_, [u8]>>;
}

/// What a copy of a range has seen so far.
#[derive(Debug, Default)]
pub struct Synced {
    revision: Revision,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// Nothing was listed yet.
    #[default]
    Empty,
    /// A list is read. `shown` are its keys so far; `None` for the first list, which fills an empty copy.
    Listing { shown: Option<HashSet<Box<[u8]>>> },
    /// The copy is whole.
    Complete,
}

impl Synced {
    /// Feeds a copy with a step of following its range. The end of a list deletes what the list did not show: that was
    /// deleted while no watch saw it.
    pub fn take_in(&mut self, update: Update, index: &mut impl Indexed) {
        match update {
            Update::Page { first, keys } => {
                if first {
                    let shown = (!matches!(self.state, State::Empty)).then(HashSet::new);
                    self.state = State::Listing { shown };
                }
                for kv in keys {
                    if let State::Listing { shown: Some(shown) } = &mut self.state {
                        shown.insert(kv.key.as_slice().into());
                    }
                    index.put(kv);
                }
            }
            Update::Listed(revision) => {
                let before = std::mem::replace(&mut self.state, State::Complete);
                if let State::Listing { shown: Some(shown) } = before {
                    let unlisted = index.keys().filter(|key| !shown.contains(&**key));
                    let unlisted: Vec<Vec<u8>> = unlisted.map(Cow::into_owned).collect();
                    for key in unlisted {
                        index.delete(&key, revision);
                    }
                }
                self.revision = revision;
            }
            Update::Events(events) => {
                for event in events {
                    self.revision = self.revision.max(event.revision());
                    match event {
                        Event::Put(kv) => index.put(kv),
                        Event::Delete { key, revision } => index.delete(&key, revision),
                    }
                }
            }
        }
    }

    /// Whether the copy holds a whole list: false before the first list has ended, and while another is read. Until then
    /// no key is known to be absent.
    pub fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete)
    }

    /// The revision that the copy has come to: no key of the range changed between the last change in it and this.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Whether the copy shows what was written to its range at this revision: then one's own write has come back.
    pub fn shows(&self, written: Revision) -> bool {
        self.is_complete() && self.revision >= written
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Contents = BTreeMap<Vec<u8>, Revision>;

    /// A copy that knows only the key and when it was last written.
    #[derive(Debug, Default)]
    struct Copy {
        contents: Contents,
        deleted_at: Vec<Revision>,
    }

    impl Indexed for Copy {
        fn put(&mut self, kv: KeyValue) {
            self.contents.insert(kv.key, kv.mod_revision);
        }

        fn delete(&mut self, key: &[u8], at: Revision) {
            if self.contents.remove(key).is_some() {
                self.deleted_at.push(at);
            }
        }

        fn keys(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
            self.contents.keys().map(|key| Cow::Borrowed(&**key))
        }
    }

    fn kv(key: &[u8], mod_revision: Revision) -> KeyValue {
        KeyValue {
            key: key.to_vec(),
            value: Vec::new(),
            create_revision: mod_revision,
            mod_revision,
            lease: None,
        }
    }

    fn pages(contents: &Contents, size: usize) -> Vec<Update> {
        let all: Vec<KeyValue> = contents.iter().map(|(key, at)| kv(key, *at)).collect();
        let mut pages: Vec<Vec<KeyValue>> = all.chunks(size).map(<[KeyValue]>::to_vec).collect();
        if pages.is_empty() {
            pages.push(Vec::new());
        }
        let numbered = pages.into_iter().enumerate();
        let page = |(number, keys)| Update::Page {
            first: number == 0,
            keys,
        };
        numbered.map(page).collect()
    }

    /// Changes of the keys `0` to `4`, and how they reach the copy.
    #[derive(Clone, Debug)]
    struct Round {
        changes: Vec<(u8, bool)>,
        /// Events; or a list in pages of this size, begun this often before it ends.
        list: Option<(usize, usize)>,
    }

    fn round() -> impl Strategy<Value = Round> {
        let changes = proptest::collection::vec((0..5_u8, any::<bool>()), 0..6);
        let list = proptest::option::weighted(0.4, (1..4_usize, 0..3_usize));
        (changes, list).prop_map(|(changes, list)| Round { changes, list })
    }

    proptest! {
        #[test]
        fn over_events_and_lists_a_copy_ends_as_its_range_is(rounds in proptest::collection::vec(round(), 1..20)) {
            let (mut range, mut revision) = (Contents::new(), Revision(1));
            let (mut synced, mut copy) = (Synced::default(), Copy::default());
            prop_assert!(!synced.is_complete() && !synced.shows(Revision::ABSENT));
            for (number, Round { changes, list }) in rounds.into_iter().enumerate() {
                // Following begins with a list.
                let list = if number == 0 { list.or(Some((2, 0))) } else { list };
                let before = range.clone();
                let mut events = Vec::new();
                for (key, exists) in changes {
                    revision = revision.next();
                    let key = vec![key];
                    if exists {
                        range.insert(key.clone(), revision);
                        events.push(Event::Put(kv(&key, revision)));
                    } else if range.remove(&key).is_some() {
                        events.push(Event::Delete { key, revision });
                    } else {
                        revision = Revision(revision.0 - 1);
                    }
                }
                match list {
                    None => synced.take_in(Update::Events(events), &mut copy),
                    Some((size, interrupted)) => {
                        // A list of an older revision, which was compacted before its end.
                        for page in (0..interrupted).flat_map(|_| pages(&before, size)) {
                            synced.take_in(page, &mut copy);
                            prop_assert!(!synced.is_complete() && !synced.shows(Revision::ABSENT));
                        }
                        for page in pages(&range, size) {
                            synced.take_in(page, &mut copy);
                            prop_assert!(!synced.is_complete());
                        }
                        copy.deleted_at.clear();
                        synced.take_in(Update::Listed(revision), &mut copy);
                        prop_assert!(copy.deleted_at.iter().all(|at| *at == revision));
                    }
                }
                prop_assert_eq!(&copy.contents, &range);
                prop_assert!(synced.shows(revision) && !synced.shows(revision.next()));
                prop_assert_eq!(synced.revision(), revision);
            }
        }
    }

    #[test]
    fn the_first_list_asks_for_no_keys_and_an_interrupted_one_counts_as_one_before() {
        let a: Contents = [(b"a".to_vec(), Revision(1))].into();
        let (mut synced, mut copy) = (Synced::default(), Copy::default());
        for page in pages(&a, 1) {
            synced.take_in(page, &mut copy);
        }
        // Begun once more, and `a` is gone by then.
        synced.take_in(pages(&Contents::new(), 1).remove(0), &mut copy);
        assert_eq!(
            copy.contents.len(),
            1,
            "only the end of the list says what is gone"
        );
        synced.take_in(Update::Listed(Revision(5)), &mut copy);
        assert_eq!((copy.contents.len(), copy.deleted_at), (0, vec![Revision(5)]));
    }
}
