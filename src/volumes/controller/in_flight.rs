//! The volumes for which calls are under way: one at a time for a volume, whatever names its records have (INV-6).
//!
//! Under one name, no two operations run. But a volume that is forgotten by force during a call is taken back, or in, under
//! another name while the call goes on.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::proto::Volume;
use crate::store::Name;
use crate::store::object::{Object, volume};
use crate::volumes::index::{Index, add, id_at_plugin, take};

/// A call, and the names that wait for its end.
#[derive(Debug)]
struct Running {
    volume: Volume,
    held_back: BTreeSet<Name>,
    /// Whether another volume of the plugin was deleted since.
    has_new_capacity: bool,
}

/// The volumes of the calls that are under way, by the names under which these were decided on.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    running: HashMap<Name, Running>,
    by_uid: HashMap<Box<str>, BTreeSet<Name>>,
    /// By plugin and the plugin's id.
    by_id: HashMap<Arc<str>, BTreeSet<Name>>,
}

impl InFlight {
    /// A call for the volume begins.
    pub(super) fn begin(&mut self, name: &Name, volume: &Volume) {
        add(&mut self.by_uid, volume.uid().into(), name);
        if let Some(id) = id_at_plugin(volume) {
            add(&mut self.by_id, id, name);
        }
        let running = Running {
            volume: volume.clone(),
            held_back: BTreeSet::new(),
            has_new_capacity: false,
        };
        self.running.insert(name.clone(), running);
    }

    /// The operation on the volume of this name has ended. Returns the names that waited for that.
    pub(super) fn end(&mut self, name: &Name) -> BTreeSet<Name> {
        let Some(Running {
            volume, held_back, ..
        }) = self.running.remove(name)
        else {
            return BTreeSet::new();
        };
        take(&mut self.by_uid, &volume.uid().into(), name);
        if let Some(id) = id_at_plugin(&volume) {
            take(&mut self.by_id, &id, name);
        }
        held_back
    }

    /// The names of the volumes for which calls are under way: a few, whatever there is.
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.running.keys()
    }

    /// A volume of the plugin was deleted.
    pub(super) fn made_capacity(&mut self, driver: &Name) {
        for running in self.running.values_mut() {
            running.has_new_capacity |= volume::driver(&running.volume) == driver.as_str();
        }
    }

    /// Whether another volume of its plugin was deleted since the call for this one began.
    pub(super) fn has_new_capacity(&self, name: &Name) -> bool {
        self.running
            .get(name)
            .is_some_and(|running| running.has_new_capacity)
    }

    /// Whether a call is under way under another name for what may be this volume. The end of that call returns `name`.
    pub(super) fn hold_back(&mut self, name: &Name, volume: &Volume, index: &Index) -> bool {
        let is_same = |other: &&Name| {
            let running = self.running.get(*other);
            running.is_some_and(|running| index.may_share_backend(&running.volume, volume))
        };
        let by_id = id_at_plugin(volume).and_then(|id| self.by_id.get(&id));
        let by_id = by_id.into_iter().flatten().filter(is_same);
        let by_uid = self.by_uid.get(volume.uid()).into_iter().flatten();
        let other = by_uid.chain(by_id).find(|other| *other != name).cloned();
        let running = other.and_then(|other| self.running.get_mut(&other));
        running
            .map(|running| running.held_back.insert(name.clone()))
            .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::volume_spec::Driver;
    use crate::proto::{Metadata, VolumeSpec, VolumeStatus};
    use crate::store::Keys;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn volume(uid: &str, id: &str) -> Volume {
        Volume {
            metadata: Some(Metadata {
                uid: uid.to_owned(),
                ..Metadata::default()
            }),
            spec: Some(VolumeSpec {
                driver: Some(Driver {
                    name: "p".to_owned(),
                    ..Driver::default()
                }),
                ..VolumeSpec::default()
            }),
            status: Some(VolumeStatus {
                volume_id: id.to_owned(),
                ..VolumeStatus::default()
            }),
        }
    }

    /// INV-6
    #[test]
    fn a_call_holds_back_what_may_be_its_volume_under_other_names_until_its_end() {
        let index = Index::new(Keys::new("/q".parse().unwrap()));
        let mut in_flight = InFlight::default();
        let (data, old, theirs) = (name("data"), name("old"), name("theirs"));
        in_flight.begin(&data, &volume("uid-1", "vol-1"));
        assert!(in_flight.names().eq([&data]));
        let mut held = |name: &Name, volume: &Volume| in_flight.hold_back(name, volume, &index);
        assert!(held(&old, &volume("uid-1", "")), "the same volume, taken back");
        assert!(
            held(&theirs, &volume("uid-2", "vol-1")),
            "the same volume, taken in"
        );
        assert!(!held(&name("other"), &volume("uid-3", "vol-3")));
        assert!(!held(&name("new"), &volume("uid-4", "")));
        assert!(!held(&data, &volume("uid-1", "vol-1")), "its own");
        in_flight.made_capacity(&name("q"));
        assert!(!in_flight.has_new_capacity(&data));
        in_flight.made_capacity(&name("p"));
        assert!(in_flight.has_new_capacity(&data) && !in_flight.has_new_capacity(&old));
        assert_eq!(in_flight.end(&data), [old.clone(), theirs].into());
        assert!(!in_flight.hold_back(&old, &volume("uid-1", "vol-1"), &index));
        assert!(in_flight.end(&data).is_empty());
        assert!(in_flight.names().next().is_none());
    }
}
