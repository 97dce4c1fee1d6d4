//! The records of volumes and publications, and the ways to them from plugins, nodes and secrets.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use prost::Message as _;

use super::{Change, Entry, Index, State, Stored, add, take, troubles};
use crate::etcd::Revision;
use crate::proto::{Condition, Volume, publication_status};
use crate::store::Name;
use crate::store::object::volume::{backend_id, driver, is_attempted, legible};
use crate::store::object::{Object, decode};

impl Index {
    /// Takes in the record of a volume. An older state than the known one is no change.
    pub(super) fn put_volume(&mut self, name: Name, mut stored: Stored) -> Option<Change> {
        self.changes += 1;
        let name = shared(&self.volumes, name);
        let entry = self.volumes.entry(name.clone()).or_default();
        let known = entry.volume.as_ref();
        if known.is_some_and(|known| known.mod_revision >= stored.mod_revision) {
            return None;
        }
        let after = decode::<Volume>(name.as_str(), &stored.value).ok();
        // What a newer release has written may be faulty here, and says all the same which volume it is (INV-12).
        let faulty = after.is_none().then(|| legible(&stored.value)).flatten();
        let revision = stored.mod_revision;
        stored.said = after.as_ref().map(troubles::of_volume).unwrap_or_default();
        let before = known.map_or(&[][..], |known| &*known.said);
        self.troubles.replace(before, &stored.said);
        entry.volume = Some(stored);
        entry.touched = self.changes;
        self.reindex(&name, after.as_ref(), true);
        self.point_to(&name, after.as_ref().or(faulty.as_ref()));
        Some(Change::Record(name, revision))
    }

    /// Updates the ways from plugins and secrets to the volume, and the counts by state. `exists` is false once the record is
    /// deleted.
    fn reindex(&mut self, name: &Name, after: Option<&Volume>, exists: bool) {
        let Some(entry) = self.volumes.get_mut(name) else {
            return;
        };
        let secrets = secrets_of(after);
        if secrets != entry.secrets {
            for secret in &entry.secrets {
                take(&mut self.by_secret, secret, name);
            }
            for secret in &secrets {
                add(&mut self.by_secret, secret.clone(), name);
            }
            entry.secrets = secrets;
        }
        if let Some(driver) = entry.driver.take() {
            take(&mut self.by_driver, &driver, name);
            if entry.is_created {
                count_down(&mut self.created, &driver);
            }
        }
        let named: Option<Name> = after.and_then(|volume| driver(volume).parse().ok());
        entry.driver = named.map(|driver| shared(&self.by_driver, driver));
        entry.is_created = after.is_some_and(is_attempted);
        if let Some(driver) = &entry.driver {
            add(&mut self.by_driver, driver.clone(), name);
            if entry.is_created {
                *self.created.entry(driver.clone()).or_default() += 1;
            }
        }
        let state = exists.then(|| state_of(after));
        if let Some(before) = std::mem::replace(&mut entry.state, state) {
            *self.counts.entry(before).or_default() -= 1;
        }
        if let Some(state) = state {
            *self.counts.entry(state).or_default() += 1;
        }
    }

    /// Updates the ways from uids and ids to the volume. A record of which nothing can be read may be that of the same volume as
    /// before (INV-12).
    fn point_to(&mut self, name: &Name, read: Option<&Volume>) {
        let Some(entry) = self.volumes.get_mut(name) else {
            return;
        };
        if read.is_some() || entry.volume.is_none() {
            let uid = read.map(|volume| volume.uid().into());
            point(&mut self.by_uid, &mut entry.uid, uid, name);
            let id = read.and_then(id_at_plugin);
            point(&mut self.by_volume_id, &mut entry.volume_id, id, name);
        }
    }

    /// Takes in the record of a publication. An older state than the known one is no change.
    pub(super) fn put_publication(&mut self, volume: Name, node: Name, mut stored: Stored) -> Option<Change> {
        self.changes += 1;
        let (volume, node) = (shared(&self.volumes, volume), shared(&self.by_node, node));
        let entry = self.volumes.entry(volume.clone()).or_default();
        let known = entry.publications.get_or_default(&node);
        if known.mod_revision >= stored.mod_revision {
            return None;
        }
        let revision = stored.mod_revision;
        let status = PublicationPart::status_of(&stored.value);
        stored.said = troubles::of_publication(&status.conditions);
        stored.is_published = status.state() == publication_status::State::Published && !status.unrecorded;
        self.troubles.replace(&known.said, &stored.said);
        *known = stored;
        entry.touched = self.changes;
        add(&mut self.by_node, node, &volume);
        Some(Change::Record(volume, revision))
    }

    /// Takes in that a volume has no record at this revision. A newer record stays.
    pub(super) fn remove_volume(&mut self, name: Name, at: Revision) -> Option<Change> {
        let entry = self.volumes.get_mut(&name)?;
        let gone = entry.volume.take_if(|known| known.mod_revision < at)?;
        self.troubles.replace(&gone.said, &[]);
        self.changes += 1;
        entry.touched = self.changes;
        self.reindex(&name, None, false);
        self.point_to(&name, None);
        self.drop_if_empty(&name);
        Some(Change::Record(name, at))
    }

    /// Takes in that a publication has no record at this revision. A newer record stays.
    pub(super) fn remove_publication(&mut self, volume: Name, node: &Name, at: Revision) -> Option<Change> {
        let entry = self.volumes.get_mut(&volume)?;
        let known = entry.publications.get(node);
        let known = known.filter(|known| known.mod_revision < at)?;
        self.troubles.replace(&known.said, &[]);
        entry.publications.remove(node);
        self.changes += 1;
        entry.touched = self.changes;
        take(&mut self.by_node, node, &volume);
        self.drop_if_empty(&volume);
        Some(Change::Record(volume, at))
    }

    fn drop_if_empty(&mut self, name: &Name) {
        let empty = |entry: &Entry| entry.volume.is_none() && entry.publications.is_empty();
        if self.volumes.get(name).is_some_and(empty) {
            self.volumes.remove(name);
        }
    }
}

fn count_down(counts: &mut HashMap<Name, usize>, key: &Name) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

/// The part of a publication that is decoded as it comes.
#[derive(Clone, PartialEq, prost::Message)]
struct PublicationPart {
    #[prost(message, optional, tag = "3")]
    status: Option<StatusPart>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusPart {
    #[prost(enumeration = "publication_status::State", tag = "1")]
    state: i32,
    #[prost(message, repeated, tag = "4")]
    conditions: Vec<Condition>,
    #[prost(bool, tag = "5")]
    unrecorded: bool,
}

impl PublicationPart {
    /// The status of a publication; empty if there is none that can be read.
    fn status_of(value: &[u8]) -> StatusPart {
        let status = Self::decode(value).ok().and_then(|record| record.status);
        status.unwrap_or_default()
    }
}

/// The name as the map has it, whose text is shared with every place that has it from there.
fn shared<V>(map: &HashMap<Name, V>, name: Name) -> Name {
    match map.get_key_value(&name) {
        Some((known, _)) => known.clone(),
        None => name,
    }
}

/// Replaces the one way to a volume in a map.
fn point(
    map: &mut HashMap<Arc<str>, Vec<Name>>,
    stored: &mut Option<Arc<str>>,
    now: Option<Arc<str>>,
    name: &Name,
) {
    if *stored == now {
        return;
    }
    if let Some(now) = &now {
        let names = map.entry(now.clone()).or_default();
        if names.is_empty() {
            names.reserve_exact(1);
        }
        if let Err(place) = names.binary_search(name) {
            names.insert(place, name.clone());
        }
    }
    if let Some(before) = std::mem::replace(stored, now)
        && let Some(names) = map.get_mut(&before)
    {
        names.retain(|other| other != name);
        if names.is_empty() {
            map.remove(&before);
        }
    }
}

/// The plugin and its id of the volume, once it has one or is to take it in.
pub fn id_at_plugin(volume: &Volume) -> Option<Arc<str>> {
    let id = Some(backend_id(volume)).filter(|id| !id.is_empty())?;
    Some(format!("{}\n{id}", driver(volume)).into())
}

fn secrets_of(volume: Option<&Volume>) -> BTreeSet<Name> {
    let entries = volume.and_then(|volume| volume.spec.as_ref());
    let entries = entries.into_iter().flat_map(|spec| &spec.secrets);
    entries.filter_map(|entry| entry.secret.parse().ok()).collect()
}

fn state_of(volume: Option<&Volume>) -> State {
    match volume {
        None => State::Malformed,
        Some(volume) if volume.is_marked() => State::Deleting,
        Some(volume) => match volume
            .status
            .as_ref()
            .is_some_and(|status| !status.volume_id.is_empty())
        {
            true => State::Created,
            false => State::Creating,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::KeyValue;
    use crate::proto::volume_spec::Driver;
    use crate::proto::{Metadata, VolumeSpec, VolumeStatus};
    use crate::store::Keys;

    /// INV-12: as a newer release writes it, whose access modes are not known here.
    #[test]
    fn a_faulty_record_says_which_volume_it_is_to_a_leader_that_never_read_it() {
        let (keys, name) = (Keys::new("/q".parse().unwrap()), "data".parse::<Name>().unwrap());
        let mut index = Index::new(keys.clone());
        let volume = Volume {
            metadata: Some(Metadata {
                name: name.to_string(),
                uid: "uid-1".to_owned(),
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
                volume_id: "vol-1".to_owned(),
                ..VolumeStatus::default()
            }),
        };
        let record = KeyValue::written_at(keys.volume(&name), volume.encode_to_vec(), 1);
        index.note(&record.key, Ok(&record));
        assert!(index.observe(&name).is_none(), "it is faulty");
        assert!(index.is_unreadable(&name));
        assert_eq!(index.with_uid("uid-1"), Some(name.clone()));
        let twin = Volume {
            metadata: None,
            ..volume
        };
        assert!(index.claiming(&twin).contains(&name));
    }
}
