//! The comparison of a plugin's list of volumes with the records, some at a time: that of a hundred thousand takes longer than an
//! urgent detachment should wait. Pure.

use std::collections::{BTreeSet, HashMap};
use std::vec::IntoIter;

use super::drift::{self, Drift};
use super::index::Index;
use super::record;
use super::retry_state::{RetryState, Unsettled};
use crate::proto::Volume;
use crate::store::Name;

/// Volumes that are compared, or whose difference is taken over, before anything else has its turn: a few milliseconds.
pub const AT_ONCE: usize = 256;

/// The node ids that each listed volume is published to, by volume id.
pub type Listed = HashMap<String, BTreeSet<String>>;

/// What the list says of one volume, where that is of interest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The volume.
    pub name: Name,
    /// Whether its record says that the list differs.
    pub is_stored: bool,
    /// How the list differs.
    pub drift: Drift,
}

/// A list that is being compared with the records.
#[derive(Debug)]
pub struct Comparison {
    /// How many changes the index had taken in when the list was asked for.
    since: u64,
    listed: Listed,
    open: IntoIter<Name>,
    found: Vec<Found>,
    all: usize,
    differ: usize,
}

impl Comparison {
    /// The list, which was asked for after that many changes of the index, and the volumes of its plugin.
    pub fn new(since: u64, listed: Listed, volumes: Vec<Name>) -> Self {
        Self {
            since,
            listed,
            open: volumes.into_iter(),
            found: Vec::new(),
            all: 0,
            differ: 0,
        }
    }

    /// Compares the next volumes. `is_elsewhere` says whether a volume is at another backend than the plugin's.
    pub fn compare_some(
        &mut self,
        index: &Index,
        unsettled: &Unsettled,
        mut is_elsewhere: impl FnMut(&Volume) -> bool,
    ) {
        let some: Vec<Name> = self.open.by_ref().take(AT_ONCE).collect();
        for name in some {
            self.compare(name, index, unsettled, &mut is_elsewhere);
        }
    }

    fn compare(
        &mut self,
        name: Name,
        index: &Index,
        unsettled: &Unsettled,
        is_elsewhere: &mut impl FnMut(&Volume) -> bool,
    ) {
        let state = unsettled.get(&name);
        let before = state.and_then(|state| state.drift.as_ref());
        let differed = before.is_some_and(|drift| *drift != Drift::default());
        // What was last found of it counts until it is compared the next time.
        if self.has_changed(&name, index, unsettled) {
            self.all += usize::from(before.is_some());
            self.differ += usize::from(differed);
            return;
        }
        let Some(snapshot) = index.observe(&name) else {
            return;
        };
        // Another backend's list says nothing of the volume.
        if is_elsewhere(&snapshot.volume) {
            return;
        }
        let is_stored = record::is_drifted(&snapshot.volume);
        let drift = match drift::compare(&snapshot, &self.listed) {
            Some(drift) => {
                self.all += 1;
                self.differ += usize::from(drift != Drift::default());
                drift
            }
            // The list no longer has it: what an earlier one said is not known any more.
            None if is_stored || differed => Drift::default(),
            None => return,
        };
        // Of most volumes there is nothing to say.
        if drift != Drift::default() || is_stored || state.is_some() {
            self.found.push(Found {
                name,
                is_stored,
                drift,
            });
        }
    }

    /// A volume that changes, or has changed since the list was asked for, is compared the next time.
    fn has_changed(&self, name: &Name, index: &Index, unsettled: &Unsettled) -> bool {
        unsettled.get(name).is_some_and(RetryState::is_active) || index.touched_since(name, self.since)
    }

    /// Whether every volume was compared.
    pub fn is_compared(&self) -> bool {
        self.open.as_slice().is_empty()
    }

    /// How many volumes differ, of how many, if these are too many for anything to be done about them.
    pub fn too_many(&self) -> Option<(usize, usize)> {
        drift::is_too_many(self.differ, self.all).then_some((self.differ, self.all))
    }

    /// What was found of the next volumes, unless they have changed since; `None` once that of all was taken over.
    pub fn take_some(&mut self, index: &Index, unsettled: &Unsettled) -> Option<Vec<Found>> {
        let is_too_many = self.too_many().is_some();
        let rest = self.found.len().saturating_sub(AT_ONCE);
        let mut some = self.found.split_off(rest);
        if some.is_empty() {
            return None;
        }
        some.retain(|found| !self.has_changed(&found.name, index, unsettled));
        for found in &mut some {
            found.drift.is_one_of_many = is_too_many && found.drift != Drift::default();
        }
        Some(some)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::etcd::{KeyValue, Revision};
    use crate::proto::access_mode::{Kind, Mount};
    use crate::proto::volume_spec::Driver;
    use crate::proto::{AccessMode, Metadata, VolumeSpec, VolumeStatus};
    use crate::store::Keys;

    fn keys() -> Keys {
        Keys::new("/q".parse().unwrap())
    }

    fn name(number: usize) -> Name {
        format!("v{number}").parse().unwrap()
    }

    fn put(index: &mut Index, number: usize, revision: i64) {
        let name = name(number);
        let volume = Volume {
            metadata: Some(Metadata {
                name: name.to_string(),
                uid: format!("uid-{number}"),
                ..Metadata::default()
            }),
            spec: Some(VolumeSpec {
                driver: Some(Driver {
                    name: "p".to_owned(),
                    ..Driver::default()
                }),
                access_mode: Some(AccessMode {
                    kind: Some(Kind::Mount(Mount::default())),
                    ..AccessMode::default()
                }),
                ..VolumeSpec::default()
            }),
            status: Some(VolumeStatus {
                volume_id: format!("vol-{number}"),
                ..VolumeStatus::default()
            }),
        };
        let record = KeyValue {
            key: keys().volume(&name),
            value: volume.encode_to_vec(),
            create_revision: Revision(1),
            mod_revision: Revision(revision),
            lease: None,
        };
        index.note(&record.key, Ok(&record));
    }

    /// So many volumes, and a list that has the first `strays` of them at a node which no record names.
    fn begun(volumes: usize, strays: usize) -> (Index, Comparison) {
        let mut index = Index::new(keys());
        (0..volumes).for_each(|number| put(&mut index, number, 2));
        let nodes = |number: usize| match number < strays {
            true => BTreeSet::from(["csi-n9".to_owned()]),
            false => BTreeSet::new(),
        };
        let listed = (0..volumes).map(|number| (format!("vol-{number}"), nodes(number)));
        let names = (0..volumes).map(name).collect();
        let comparison = Comparison::new(index.changes(), listed.collect(), names);
        (index, comparison)
    }

    fn compare_all(comparison: &mut Comparison, index: &Index) -> usize {
        let mut parts = 0;
        while !comparison.is_compared() {
            comparison.compare_some(index, &Unsettled::default(), |_| false);
            parts += 1;
        }
        parts
    }

    /// INV-8: what else is due has its turn between the parts.
    #[test]
    fn a_long_list_is_compared_and_taken_over_some_volumes_at_a_time() {
        let (index, mut comparison) = begun(4 * AT_ONCE, AT_ONCE + 1);
        let mut asked = 0;
        comparison.compare_some(&index, &Unsettled::default(), |_| {
            asked += 1;
            false
        });
        assert_eq!((asked, comparison.is_compared()), (AT_ONCE, false));
        assert_eq!(compare_all(&mut comparison, &index), 3);
        assert_eq!(comparison.too_many(), Some((AT_ONCE + 1, 4 * AT_ONCE)));
        let mut sizes = Vec::new();
        while let Some(found) = comparison.take_some(&index, &Unsettled::default()) {
            assert!(found.iter().all(|found| found.drift.is_one_of_many));
            sizes.push(found.len());
        }
        assert_eq!(sizes, [AT_ONCE, 1]);
    }

    #[test]
    fn a_volume_that_changes_between_two_parts_is_left_for_the_next_list() {
        let (mut index, mut comparison) = begun(2 * AT_ONCE, 4);
        comparison.compare_some(&index, &Unsettled::default(), |_| false);
        // One was compared by then, one was not.
        put(&mut index, 0, 3);
        put(&mut index, AT_ONCE, 3);
        compare_all(&mut comparison, &index);
        // So does one for which an operation has begun.
        let mut unsettled = Unsettled::default();
        unsettled.state(&name(1)).begin();
        let found = comparison.take_some(&index, &unsettled).unwrap();
        let mut names: Vec<Name> = found.into_iter().map(|found| found.name).collect();
        names.sort();
        assert_eq!(names, [name(2), name(3)]);
        assert_eq!(comparison.too_many(), None);
    }

    #[test]
    fn the_list_of_another_backend_says_nothing_of_a_volume() {
        let (index, mut comparison) = begun(2, 2);
        let is_first = |volume: &Volume| {
            let status = volume.status.as_ref();
            status.is_some_and(|status| status.volume_id == "vol-0")
        };
        comparison.compare_some(&index, &Unsettled::default(), is_first);
        let found = comparison.take_some(&index, &Unsettled::default()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, name(1));
        assert!(comparison.take_some(&index, &Unsettled::default()).is_none());
    }
}
