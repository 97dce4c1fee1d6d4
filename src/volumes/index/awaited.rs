//! Records for which volumes wait though they are none of their own. Pure.

use super::{Index, Part};
use crate::etcd::Revision;
use crate::store::{Keys, Name};

/// A record whose change ends the wait of volumes that it does not name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Awaited {
    /// The tombstone of this name.
    Tombstone(Name),
    /// The record of the volume of this name.
    Volume(Name),
}

impl Awaited {
    /// The record with this key. `None` for a key that the index ignores, whose changes wake no volume.
    pub fn of_key(keys: &Keys, key: &[u8]) -> Option<Self> {
        let name = |text: &str| text.parse::<Name>().ok();
        match keys.parse_tombstone(key) {
            Some(tombstone) => name(tombstone).map(Self::Tombstone),
            None => keys.parse_volume(key).and_then(name).map(Self::Volume),
        }
    }
}

impl Index {
    /// Whether the record has changed since it was read at this mod revision, or is gone. False where the index has not come so far
    /// yet: then the change is still to come.
    pub fn has_changed(&self, record: &Awaited, read: Revision) -> bool {
        let volume = |name: &Name| self.volumes.get(name)?.volume.as_ref();
        let (part, known) = match record {
            Awaited::Tombstone(name) => (Part::Tombstones, self.tombstones.get(name).copied()),
            Awaited::Volume(name) => (Part::Volumes, volume(name).map(|stored| stored.mod_revision)),
        };
        match known {
            Some(known) => known > read,
            // Also while the range is listed again: it was there at that revision, and is not now.
            None => self.followed[part as usize].synced.revision() >= read,
        }
    }
}
