//! The releases that run, summed up with the revision at which that holds. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::etcd::Revision;
use crate::release::Release;

/// What one key below `/nodes/` says of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reported {
    /// Nothing: a node that is no controller, or has not reported.
    Nothing,
    /// A controller of this release.
    Release(Release),
    /// Nobody knows: it cannot be parsed, and may be anything (INV-8).
    Unreadable,
}

/// The releases of all controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Releases {
    /// The least, the own one among them.
    pub least: Release,
    /// The greatest, the own one among them.
    pub greatest: Release,
    /// Controllers below the minimum or above the own release, by node name.
    pub outside: Vec<(String, Release)>,
    /// Nodes whose value cannot be parsed.
    pub unreadable: Vec<String>,
    /// No node changed between what this sums up and this revision.
    pub revision: Revision,
}

/// Adds up what nodes report, a change at a time. Costs per change grow with the number of distinct releases
/// alone.
#[derive(Debug)]
pub struct Tally {
    own: Release,
    minimum: Release,
    count_by_release: BTreeMap<Release, usize>,
    /// Few or none in a healthy cluster, so that naming them costs nothing there.
    outside: BTreeMap<Box<[u8]>, (String, Release)>,
    unreadable: BTreeMap<Box<[u8]>, String>,
}

impl Tally {
    /// Nothing but the own release; `minimum` is the least that the own one gets along with.
    pub fn new(own: Release, minimum: Release) -> Self {
        Self {
            own,
            minimum,
            count_by_release: BTreeMap::new(),
            outside: BTreeMap::new(),
            unreadable: BTreeMap::new(),
        }
    }

    /// Takes in the change of one key of the node called `name`.
    pub fn change(&mut self, key: &[u8], name: &str, before: Option<&Reported>, after: Option<&Reported>) {
        match before {
            Some(Reported::Release(release)) => {
                if let Some(count) = self.count_by_release.get_mut(release) {
                    *count -= 1;
                    if *count == 0 {
                        self.count_by_release.remove(release);
                    }
                }
                self.outside.remove(key);
            }
            Some(Reported::Unreadable) => {
                self.unreadable.remove(key);
            }
            Some(Reported::Nothing) | None => {}
        }
        match after {
            Some(&Reported::Release(release)) => {
                *self.count_by_release.entry(release).or_default() += 1;
                if release < self.minimum || release > self.own {
                    self.outside.insert(key.into(), (name.to_owned(), release));
                }
            }
            Some(Reported::Unreadable) => {
                self.unreadable.insert(key.into(), name.to_owned());
            }
            Some(Reported::Nothing) | None => {}
        }
    }

    /// The sum as it holds at `revision`.
    pub fn sum(&self, revision: Revision) -> Releases {
        let least = self
            .count_by_release
            .first_key_value()
            .map_or(self.own, |(least, _)| *least);
        let greatest = self
            .count_by_release
            .last_key_value()
            .map_or(self.own, |(greatest, _)| *greatest);
        // A node and its registration are two keys of one name.
        let outside: BTreeSet<_> = self.outside.values().cloned().collect();
        let unreadable: BTreeSet<_> = self.unreadable.values().cloned().collect();
        Releases {
            least: least.min(self.own),
            greatest: greatest.max(self.own),
            outside: outside.into_iter().collect(),
            unreadable: unreadable.into_iter().collect(),
            revision,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(minor: u32) -> Release {
        Release::new(1, minor, 0)
    }

    #[test]
    fn without_any_node_the_own_release_is_least_and_greatest() {
        let sum = Tally::new(release(5), release(3)).sum(Revision(7));
        assert_eq!(
            (sum.least, sum.greatest, sum.revision),
            (release(5), release(5), Revision(7))
        );
        assert!(sum.outside.is_empty() && sum.unreadable.is_empty());
    }

    #[test]
    fn a_release_counts_until_its_last_node_leaves_it() {
        let mut tally = Tally::new(release(5), release(3));
        let old = Reported::Release(release(2));
        tally.change(b"a", "a", None, Some(&old));
        tally.change(b"b", "b", None, Some(&old));
        tally.change(b"a", "a", Some(&old), Some(&Reported::Release(release(5))));
        assert_eq!(tally.sum(Revision(1)).least, release(2));
        assert_eq!(tally.sum(Revision(1)).outside, [("b".to_owned(), release(2))]);
        tally.change(b"b", "b", Some(&old), None);
        assert_eq!(tally.sum(Revision(2)).least, release(5));
        assert!(tally.sum(Revision(2)).outside.is_empty());
    }

    #[test]
    fn a_node_that_cannot_be_parsed_is_named_until_it_is_mended() {
        let mut tally = Tally::new(release(5), release(3));
        tally.change(b"a", "a", None, Some(&Reported::Unreadable));
        assert_eq!(tally.sum(Revision(1)).unreadable, ["a"]);
        tally.change(b"a", "a", Some(&Reported::Unreadable), Some(&Reported::Nothing));
        assert!(tally.sum(Revision(2)).unreadable.is_empty());
    }

    #[test]
    fn a_node_above_the_own_release_is_the_greatest_and_named() {
        let mut tally = Tally::new(release(5), release(3));
        tally.change(b"a", "a", None, Some(&Reported::Release(release(6))));
        let sum = tally.sum(Revision(1));
        assert_eq!(
            (sum.greatest, &*sum.outside),
            (release(6), &[("a".to_owned(), release(6))][..])
        );
    }
}
