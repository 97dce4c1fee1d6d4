//! The releases that run, as a sum with what proves that it still holds. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::etcd::Revision;
use crate::release::Release;
use crate::store::keys::NodeKey;

/// What one key below `/nodes/` reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reported {
    /// No release: the node is no controller, or its release is not known yet.
    Nothing,
    /// A controller of this release.
    Release(Release),
    /// The value cannot be parsed, so that it may be a controller of any release (INV-8).
    Unreadable,
}

/// The first few of many, for messages, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Few<T> {
    /// The first ones in order, at most [`FEW`].
    pub first: Vec<T>,
    /// How many there are, `first` included.
    pub total: usize,
}

/// How many nodes a message names at most. In a cluster of 100,000 controllers that are all too old, naming all of them
/// after each event took 20 ms.
pub const FEW: usize = 5;

impl<T> From<Vec<T>> for Few<T> {
    fn from(all: Vec<T>) -> Self {
        Self::of(all.into_iter())
    }
}

impl<T> Few<T> {
    fn of(all: impl ExactSizeIterator<Item = T>) -> Self {
        Self {
            total: all.len(),
            first: all.take(FEW).collect(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }
}

/// The releases of all controllers, the own release included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Releases {
    /// The registered replicas with a release above the own one, by name: those that may lead instead. The record of a node
    /// is not asked: it outlives the process that reported it.
    pub newer: Arc<BTreeMap<String, Release>>,
    /// Controllers below the minimum or above the own release, ordered by release, then by node name.
    pub outside: Few<(Release, String)>,
    /// Names of nodes whose value cannot be parsed.
    pub unreadable: Few<String>,
    /// The last write of a node; `None` if there is no node. The sum holds until the next one.
    pub last_write: Option<LastWrite>,
}

/// The key below `/nodes/` with the latest write. The key at this revision, and no later write of another, prove that a sum
/// still holds also after a restore, where a revision alone would mean other writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWrite {
    /// The whole key.
    pub key: Vec<u8>,
    /// The revision of the write.
    pub revision: Revision,
    /// How many keys there are. More of them, although none was written since: a delete was undone, as a restore does.
    pub keys: u64,
}

/// Sums up what nodes report, one change at a time. The cost of a change grows with the number of distinct releases, and
/// with the logarithm of the number of nodes that hold the gate back.
#[derive(Debug)]
pub struct Tally {
    own: Release,
    minimum: Release,
    newer: Arc<BTreeMap<String, Release>>,
    /// Each with the number of its keys: a node and its registration are two keys with one name.
    outside: BTreeMap<(Release, String), usize>,
    unreadable: BTreeMap<String, usize>,
}

impl Tally {
    /// The own release alone. `minimum` is the least release that is compatible with it.
    pub fn new(own: Release, minimum: Release) -> Self {
        Self {
            own,
            minimum,
            newer: Arc::default(),
            outside: BTreeMap::new(),
            unreadable: BTreeMap::new(),
        }
    }

    /// Applies the change of one key below `/nodes/`.
    pub fn change(&mut self, key: NodeKey<'_>, before: Option<&Reported>, after: Option<&Reported>) {
        let (NodeKey::Node(name) | NodeKey::Registration(name)) = key else {
            return;
        };
        if key == NodeKey::Registration(name) {
            self.register(name, after);
        }
        for (reported, by) in [(before, -1), (after, 1)] {
            match reported {
                Some(&Reported::Release(release)) => {
                    if self.is_outside(release) {
                        count(&mut self.outside, (release, name.to_owned()), by);
                    }
                }
                Some(Reported::Unreadable) => count(&mut self.unreadable, name.to_owned(), by),
                Some(Reported::Nothing) | None => {}
            }
        }
    }

    /// Copies the newer replicas only where they change: the last sum has them as well.
    fn register(&mut self, name: &str, reported: Option<&Reported>) {
        let newer = match reported {
            Some(&Reported::Release(release)) if release > self.own => Some(release),
            _ => None,
        };
        if self.newer.get(name).copied() == newer {
            return;
        }
        let all = Arc::make_mut(&mut self.newer);
        match newer {
            Some(release) => all.insert(name.to_owned(), release),
            None => all.remove(name),
        };
    }

    fn is_outside(&self, release: Release) -> bool {
        release < self.minimum || release > self.own
    }

    /// The sum, with the last write that is in it.
    pub fn sum(&self, last_write: Option<LastWrite>) -> Releases {
        Releases {
            newer: self.newer.clone(),
            outside: Few::of(self.outside.keys().cloned()),
            unreadable: Few::of(self.unreadable.keys().cloned()),
            last_write,
        }
    }
}

/// Counts `by` more of `key`; at zero the entry goes.
fn count<K: Ord + Clone>(counts: &mut BTreeMap<K, usize>, key: K, by: isize) {
    let count = counts.entry(key.clone()).or_default();
    *count = count.saturating_add_signed(by);
    if *count == 0 {
        counts.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(minor: u32) -> Release {
        Release::new(1, minor, 0)
    }

    /// The record of the node `a`.
    const A: NodeKey<'_> = NodeKey::Node("a");

    #[test]
    fn without_any_node_nothing_is_in_the_way() {
        let sum = Tally::new(release(5), release(3)).sum(None);
        assert!(sum.newer.is_empty());
        assert!(sum.outside.is_empty() && sum.unreadable.is_empty());
    }

    #[test]
    fn a_release_counts_until_its_last_node_leaves_it() {
        let mut tally = Tally::new(release(5), release(3));
        let old = Reported::Release(release(2));
        tally.change(A, None, Some(&old));
        tally.change(NodeKey::Node("b"), None, Some(&old));
        tally.change(A, Some(&old), Some(&Reported::Release(release(5))));
        assert_eq!(tally.sum(None).outside.first, [(release(2), "b".to_owned())]);
        tally.change(NodeKey::Node("b"), Some(&old), None);
        assert!(tally.sum(None).outside.is_empty());
    }

    #[test]
    fn a_node_that_cannot_be_parsed_is_named_until_it_is_corrected() {
        let mut tally = Tally::new(release(5), release(3));
        tally.change(A, None, Some(&Reported::Unreadable));
        assert_eq!(tally.sum(None).unreadable.first, ["a"]);
        tally.change(A, Some(&Reported::Unreadable), Some(&Reported::Nothing));
        assert!(tally.sum(None).unreadable.is_empty());
    }

    #[test]
    fn a_node_above_the_own_release_is_in_the_way_and_only_a_registered_one_can_lead() {
        let mut tally = Tally::new(release(5), release(3));
        let newer = Reported::Release(release(6));
        tally.change(A, None, Some(&newer));
        let sum = tally.sum(None);
        assert_eq!(sum.outside.first, [(release(6), "a".to_owned())]);
        assert!(sum.newer.is_empty(), "the record may outlive the process");
        let registration = NodeKey::Registration("b");
        tally.change(registration, None, Some(&newer));
        assert_eq!(*tally.sum(None).newer, [("b".to_owned(), release(6))].into());
        tally.change(registration, Some(&newer), Some(&Reported::Release(release(7))));
        assert_eq!(*tally.sum(None).newer, [("b".to_owned(), release(7))].into());
        tally.change(registration, Some(&Reported::Release(release(7))), None);
        assert!(tally.sum(None).newer.is_empty());
    }

    #[test]
    fn a_node_and_its_registration_are_one_node_until_both_keys_are_gone() {
        let mut tally = Tally::new(release(5), release(3));
        let old = Reported::Release(release(2));
        tally.change(A, None, Some(&old));
        tally.change(NodeKey::Registration("a"), None, Some(&old));
        assert_eq!(tally.sum(None).outside.total, 1);
        tally.change(NodeKey::Registration("a"), Some(&old), None);
        assert_eq!(tally.sum(None).outside.first, [(release(2), "a".to_owned())]);
        tally.change(A, Some(&old), None);
        assert!(tally.sum(None).outside.is_empty());
    }

    #[test]
    fn of_many_nodes_the_oldest_few_are_named_and_all_are_counted() {
        let mut tally = Tally::new(release(50), release(40));
        for minor in (0..30).rev() {
            tally.change(A, None, Some(&Reported::Release(release(minor))));
        }
        let outside = tally.sum(None).outside;
        assert_eq!((outside.total, outside.first.len()), (30, FEW));
        assert_eq!(outside.first[0], (release(0), "a".to_owned()));
    }
}
