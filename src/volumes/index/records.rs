//! The records of volumes and publications, and the ways to them from plugins, nodes and secrets.

use std::collections::BTreeSet;

use super::{Change, Entry, Index, State, Stored, add, parsed, take};
use crate::proto::Volume;
use crate::store::Name;
use crate::store::object::volume::driver;
use crate::store::object::{Object, decode};

impl Index {
    pub(super) fn put_volume(&mut self, key: &[u8], stored: Stored, changes: &mut Vec<Change>) {
        let Some(name) = parsed(self.keys.parse_volume(key)) else {
            return;
        };
        self.changes += 1;
        let entry = self.volumes.entry(name.clone()).or_default();
        if let Some(known) = &mut entry.volume {
            known.seen_in = stored.seen_in;
            if known.mod_revision >= stored.mod_revision {
                return;
            }
        }
        let before = entry
            .volume
            .as_ref()
            .and_then(|known| decode::<Volume>(name.as_str(), &known.value).ok());
        let after = decode::<Volume>(name.as_str(), &stored.value).ok();
        let revision = stored.mod_revision;
        entry.volume = Some(stored);
        entry.touched = self.changes;
        self.reindex(&name, before.as_ref(), after.as_ref(), true);
        changes.push(Change::Record(name, revision));
    }

    /// Updates the ways from plugins and secrets to the volume, and the counts by state. `there` is false once the record is
    /// deleted.
    fn reindex(&mut self, name: &Name, before: Option<&Volume>, after: Option<&Volume>, there: bool) {
        for secret in secrets_of(before) {
            take(&mut self.by_secret, &secret, name);
        }
        for secret in secrets_of(after) {
            add(&mut self.by_secret, secret, name);
        }
        let Some(entry) = self.volumes.get_mut(name) else {
            return;
        };
        if let Some(driver) = entry.driver.take()
            && let Some(names) = self.by_driver.get_mut(&driver)
        {
            names.remove(name);
            if names.is_empty() {
                self.by_driver.remove(&driver);
            }
        }
        entry.driver = after.and_then(|volume| driver(volume).parse().ok());
        if let Some(driver) = &entry.driver {
            let names = self.by_driver.entry(driver.clone()).or_default();
            names.insert(name.clone());
        }
        let state = there.then(|| state_of(after));
        if let Some(before) = std::mem::replace(&mut entry.state, state) {
            *self.counts.entry(before).or_default() -= 1;
        }
        if let Some(state) = state {
            *self.counts.entry(state).or_default() += 1;
        }
    }

    pub(super) fn put_publication(&mut self, key: &[u8], stored: Stored, changes: &mut Vec<Change>) {
        let Some((volume, node)) = self.parse_publication(key) else {
            return;
        };
        self.changes += 1;
        let entry = self.volumes.entry(volume.clone()).or_default();
        let known = entry.publications.entry(node.clone()).or_default();
        known.seen_in = stored.seen_in;
        if known.mod_revision >= stored.mod_revision {
            return;
        }
        let revision = stored.mod_revision;
        *known = stored;
        entry.touched = self.changes;
        add(&mut self.by_node, node, &volume);
        changes.push(Change::Record(volume, revision));
    }

    pub(super) fn parse_publication(&self, key: &[u8]) -> Option<(Name, Name)> {
        let (volume, node) = self.keys.parse_publication(key)?.split_once('/')?;
        Some((volume.parse().ok()?, node.parse().ok()?))
    }

    pub(super) fn remove_volume(&mut self, name: &Name) {
        self.changes += 1;
        let Some(entry) = self.volumes.get_mut(name) else {
            return;
        };
        entry.touched = self.changes;
        let before = entry.volume.take();
        let before = before.and_then(|known| decode::<Volume>(name.as_str(), &known.value).ok());
        self.reindex(name, before.as_ref(), None, false);
        self.drop_if_empty(name);
    }

    pub(super) fn remove_publication(&mut self, volume: &Name, node: &Name) {
        self.changes += 1;
        if let Some(entry) = self.volumes.get_mut(volume) {
            entry.touched = self.changes;
            entry.publications.remove(node);
        }
        take(&mut self.by_node, node, volume);
        self.drop_if_empty(volume);
    }

    fn drop_if_empty(&mut self, name: &Name) {
        let empty = |entry: &Entry| entry.volume.is_none() && entry.publications.is_empty();
        if self.volumes.get(name).is_some_and(empty) {
            self.volumes.remove(name);
        }
    }
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
