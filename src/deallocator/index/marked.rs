//! What the index tells people about marked objects.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::entries::{Content, MarkedAt};
use super::{Index, text};
use crate::store::Name;
use crate::summary::Names;

impl Index {
    /// The marked services, each with the time of its mark in seconds since 1970; 0 for a mark without a usable time.
    pub fn marked_services(&self) -> impl Iterator<Item = (&Name, MarkedAt)> {
        self.marked_services.iter().map(|(name, since)| (name, *since))
    }

    /// The marked networks, likewise.
    pub fn marked_networks(&self) -> impl Iterator<Item = (&Name, MarkedAt)> {
        self.marked_networks.iter().map(|(name, since)| (name, *since))
    }

    /// The tasks of a service, finished ones included.
    pub fn tasks_of(&self, service: &Name) -> Names {
        let entry = self.services.get(service.as_str().as_bytes());
        entry.map_or_else(Names::default, |entry| {
            Names::of_ordered(entry.tasks.keys().map(|name| shown(name)))
        })
    }

    /// The readable services that use each of these networks. One pass over all services.
    pub fn users_of<'n>(&self, networks: &BTreeSet<&'n str>) -> BTreeMap<&'n str, Names> {
        let mut users: BTreeMap<&str, Names> = BTreeMap::new();
        if networks.is_empty() {
            return users;
        }
        for (service, entry) in &self.services {
            let content = entry.object.as_ref().map(|object| &object.content);
            let Some(Content::Readable { networks: used, .. }) = content else {
                continue;
            };
            for network in used.iter().filter_map(|used| networks.get(&**used).copied()) {
                users.entry(network).or_default().add(&shown(service));
            }
        }
        users
    }
}

/// A name as it is in a key, which may hold any bytes.
fn shown(name: &[u8]) -> Cow<'_, str> {
    text(name).map_or_else(|| Cow::Owned(name.escape_ascii().to_string()), Cow::Borrowed)
}
