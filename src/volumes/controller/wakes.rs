//! What plans a volume again: a change, or the end of something that it waits for.

use std::collections::BTreeSet;

use super::TermState;
use crate::etcd::Revision;
use crate::store::Name;
use crate::volumes::index::{Awaited, Change};
use crate::volumes::operation::{Compensation, WaitsFor};

/// Volumes that are tried again for the capacity that one has left. If all that wait were, the deletion of many volumes would have each
/// of them ask many times.
const TRIED_FOR_CAPACITY: usize = 16;

impl TermState {
    /// Plans again what depends on a change that a watch or a list has shown.
    pub(super) fn on_change(&mut self, change: Change) {
        match change {
            Change::Record(name, revision) => {
                self.wake_awaiting(&Awaited::Volume(name.clone()));
                self.wake(name, Some(revision));
            }
            Change::Around(name) => self.wake(name, None),
            Change::Plugin(plugin) => {
                self.configure(&plugin);
                for name in self.volumes_of(&plugin) {
                    self.wake(name, None);
                }
            }
            Change::Secret(secret) => {
                for name in self.users_of(&secret) {
                    self.wake(name, None);
                }
            }
            Change::Tombstone(name) => self.wake_awaiting(&Awaited::Tombstone(name)),
        }
    }

    /// The same for a change of records that an operation has written or read. What follows for their own volume is decided where the
    /// operation ends.
    pub(super) fn on_noted(&mut self, change: Change) {
        match change {
            Change::Record(name, _) => self.wake_awaiting(&Awaited::Volume(name)),
            other => self.on_change(other),
        }
    }

    /// A record has changed, or is gone: plans the volumes that wait for that.
    fn wake_awaiting(&mut self, record: &Awaited) {
        for name in self.unsettled.changed(record) {
            self.wake(name, None);
        }
    }

    /// The volumes that a change of the plugin may concern: its own, and all whose records are gone, which are few.
    fn volumes_of(&self, plugin: &Name) -> BTreeSet<Name> {
        let orphaned = self
            .unsettled
            .iter()
            .filter(|(_, state)| !state.compensations.is_empty());
        let orphaned = orphaned.map(|(name, _)| name.clone());
        self.index.of_plugin(plugin).into_iter().chain(orphaned).collect()
    }

    /// The volumes that name the secret, and those whose records are gone and that need it to be undone.
    fn users_of(&self, secret: &Name) -> BTreeSet<Name> {
        let names_it = |one: &Compensation| {
            let spec = one.volume.spec.iter();
            let mut secrets = spec.flat_map(|spec| &spec.secrets);
            secrets.any(|entry| entry.secret == secret.as_str())
        };
        let orphaned = self.unsettled.iter();
        let orphaned = orphaned.filter(|(_, state)| state.compensations.iter().any(names_it));
        let orphaned = orphaned.map(|(name, _)| name.clone());
        self.index.of_secret(secret).chain(orphaned).collect()
    }

    /// Something about a volume changed: plans it again, with everything that failed. `written` is the revision of one of
    /// its records, if that is what changed.
    pub(super) fn wake(&mut self, name: Name, written: Option<Revision>) {
        if self.unsettled.wake(&name, written) {
            self.woken.push_back(name);
        }
    }

    /// A volume of the plugin was deleted at the backend: plans some of those again for which there was no capacity.
    pub(super) fn wake_for_capacity(&mut self, driver: &Name) {
        self.in_flight.made_capacity(driver);
        for name in self.unsettled.made_capacity(driver, TRIED_FOR_CAPACITY) {
            // Without a new beginning: most of them fail as before, and that is no news.
            if self.unsettled.try_again(&name) {
                self.woken.push_back(name);
            }
        }
    }

    /// A failed operation waits for this. Returns whether it has come while the operation ran.
    pub(super) fn begin_wait(&mut self, waits_for: Option<&WaitsFor>, name: &Name, driver: &Name) -> bool {
        match waits_for {
            Some(WaitsFor::Record(read)) => self.index.has_changed(&read.record, read.revision),
            Some(WaitsFor::Capacity) => {
                self.unsettled.await_capacity(driver, name);
                if self.in_flight.has_new_capacity(name) {
                    // Its backoff keeps its count: there may be too little all the same.
                    self.unsettled.try_again(name);
                }
                false
            }
            Some(WaitsFor::Other) | None => false,
        }
    }

    /// The volume has left this node: plans those again that wait for that.
    pub(super) fn wake_for_room(&mut self, name: &Name, node: Option<&Name>) {
        let mut waiting = self.unsettled.left(name, node);
        // A call in flight may fail for what was there when it began. Of the volumes of a node, which may be all there are, only those
        // with a call are looked at.
        if let Some(node) = node {
            let in_flight = self.in_flight.names();
            let others = in_flight.filter(|other| *other != name);
            let there = others.filter(|other| self.index.is_published_to(other, node));
            waiting.extend(there.cloned());
        }
        for other in waiting {
            self.wake(other, None);
        }
    }
}
