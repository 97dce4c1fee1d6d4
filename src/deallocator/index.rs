//! What was seen of services, networks, tasks and nodes, at one revision, and what follows from it. Pure.

mod entries;
mod read;
mod whole;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use entries::{
    Content, NetworkEntry, NetworkObject, Raw, Seen, ServiceEntry, ServiceObject, Since, TaskEntry,
};

use crate::etcd::{Event, Revision};
use crate::store::{Keys, Name, Update};

/// Seen in etcd, as of [`Index::revision`].
#[derive(Debug)]
pub struct Index {
    keys: Keys,
    services: HashMap<Raw, ServiceEntry>,
    networks: HashMap<Arc<str>, NetworkEntry>,
    nodes: HashMap<Arc<str>, Seen>,
    unreadable_services: usize,
    marked_services: HashMap<Name, Since>,
    marked_networks: HashMap<Name, Since>,
    free_services: BTreeSet<Name>,
    free_networks: BTreeSet<Name>,
    orphans: BTreeSet<TaskId>,
    lost_nodes: HashSet<Arc<str>>,
    list: Seen,
    revision: Revision,
    complete: bool,
}

/// An object that is taken care of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// A service to be deleted.
    Service(Name),
    /// A network to be deleted.
    Network(Name),
    /// A task to be orphaned.
    Task(TaskId),
}

/// An unfinished task of a node that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// Its service.
    pub service: Name,
    /// Its own name.
    pub name: Name,
}

/// A service that is marked and has no task.
#[derive(Debug)]
pub struct FreeService<'i> {
    /// When it was last written.
    pub mod_revision: Revision,
    /// The networks that it uses.
    pub networks: &'i [Arc<str>],
}

/// A network that is there and marked.
#[derive(Clone, Copy, Debug)]
pub struct MarkedNetwork {
    /// When it was last written, which is at or after its mark.
    pub mod_revision: Revision,
    /// How many services use it.
    pub users: usize,
}

impl Index {
    /// Nothing seen yet.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            services: HashMap::new(),
            networks: HashMap::new(),
            nodes: HashMap::new(),
            unreadable_services: 0,
            marked_services: HashMap::new(),
            marked_networks: HashMap::new(),
            free_services: BTreeSet::new(),
            free_networks: BTreeSet::new(),
            orphans: BTreeSet::new(),
            lost_nodes: HashSet::new(),
            list: 0,
            revision: Revision::ABSENT,
            complete: false,
        }
    }

    /// Takes in a step of following [`Keys::in_use`].
    pub fn take_in(&mut self, update: Update) {
        match update {
            Update::Page { first, keys } => {
                if first {
                    self.complete = false;
                    self.list = self.list.wrapping_add(1);
                }
                for kv in keys {
                    self.put(&kv);
                }
            }
            Update::Listed(revision) => {
                self.forget_unseen();
                self.revision = revision;
                self.complete = true;
                // Nodes and tasks came one after the other; only now all of both are known.
                self.find_orphans(|_| true);
                self.lost_nodes.clear();
            }
            Update::Events(events) => {
                for event in events {
                    self.revision = self.revision.max(event.revision());
                    match event {
                        Event::Put(kv) => self.put(&kv),
                        Event::Delete { key, .. } => self.delete(&key),
                    }
                }
                if self.complete && !self.lost_nodes.is_empty() {
                    // One pass over the tasks, however many nodes went.
                    let lost = std::mem::take(&mut self.lost_nodes);
                    self.find_orphans(|node| lost.contains(node));
                }
            }
        }
    }

    /// Whether this is all there is: decisions are made only then.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Everything here is as it was at this revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The services that are marked and have no task, in order.
    pub fn free_services(&self) -> impl Iterator<Item = (&Name, FreeService<'_>)> {
        self.free_services
            .iter()
            .filter_map(|name| match self.service(name)? {
                ServiceObject {
                    mod_revision,
                    content: Content::Readable { networks, .. },
                    ..
                } => Some((
                    name,
                    FreeService {
                        mod_revision: *mod_revision,
                        networks,
                    },
                )),
                _ => None,
            })
    }

    /// The networks that are marked and that no readable service uses, in order.
    pub fn free_networks(&self) -> impl Iterator<Item = (&Name, MarkedNetwork)> {
        self.free_networks
            .iter()
            .filter_map(|name| Some((name, self.marked_network(name.as_str())?)))
    }

    /// A network, if it is there, can be read and is marked.
    pub fn marked_network(&self, name: &str) -> Option<MarkedNetwork> {
        let entry = self.networks.get(name)?;
        let object = entry.object.as_ref().filter(|object| object.marked.is_some())?;
        Some(MarkedNetwork {
            mod_revision: object.mod_revision,
            users: entry.users,
        })
    }

    /// Whether a service is there as it was last written at this revision.
    pub fn holds_service(&self, name: &Name, mod_revision: Revision) -> bool {
        self.service(name)
            .is_some_and(|object| object.mod_revision == mod_revision)
    }

    /// Whether a network is there as it was last written at this revision.
    pub fn holds_network(&self, name: &Name, mod_revision: Revision) -> bool {
        let object = self
            .networks
            .get(name.as_str())
            .and_then(|entry| entry.object.as_ref());
        object.is_some_and(|object| object.mod_revision == mod_revision)
    }

    /// How many services cannot be read. As long as there is one, no network goes.
    pub fn unreadable_services(&self) -> usize {
        self.unreadable_services
    }

    /// The unfinished tasks of nodes that do not exist, in order.
    pub fn orphans(&self) -> impl Iterator<Item = &TaskId> {
        self.orphans.iter()
    }

    /// Whether something would be done about this object if nothing else were in the way.
    pub fn is_due(&self, item: &Item) -> bool {
        match item {
            Item::Service(name) => self.free_services.contains(name),
            Item::Network(name) => self.free_networks.contains(name),
            Item::Task(id) => self.orphans.contains(id),
        }
    }

    /// How many services, and how many networks, are marked.
    pub fn pending(&self) -> (usize, usize) {
        (self.marked_services.len(), self.marked_networks.len())
    }

    /// When the mark that stands longest was set, in seconds since 1970.
    pub fn oldest_mark(&self) -> Option<i64> {
        let marks = self.marked_services.values().chain(self.marked_networks.values());
        marks.copied().filter(|since| *since > 0).min()
    }

    fn service(&self, name: &Name) -> Option<&ServiceObject> {
        self.services.get(name.as_str().as_bytes())?.object.as_ref()
    }

    fn set_service(&mut self, name: &[u8], object: Option<ServiceObject>) {
        // The new references are counted before the old ones are let go, so that no name in between is forgotten.
        if let Some(ServiceObject { content, .. }) = &object {
            match content {
                Content::Unreadable => self.unreadable_services += 1,
                Content::Readable { networks, .. } => {
                    for network in networks {
                        if let Some(entry) = self.networks.get_mut(network) {
                            entry.users += 1;
                        }
                        self.judge_network(network);
                    }
                }
            }
        }
        let entry = self.services.entry(name.into()).or_default();
        let before = std::mem::replace(&mut entry.object, object);
        match before.map(|object| object.content) {
            None => {}
            Some(Content::Unreadable) => self.unreadable_services -= 1,
            Some(Content::Readable { networks, .. }) => {
                for network in networks {
                    if let Some(entry) = self.networks.get_mut(&network) {
                        entry.users -= 1;
                    }
                    self.judge_network(&network);
                }
            }
        }
        self.judge_service(name);
    }

    fn set_network(&mut self, name: &[u8], object: Option<NetworkObject>) {
        // No service can refer to a name that is no name, and such a network does not go.
        if let Some(name) = text(name) {
            let name = self.network_name(name);
            if let Some(entry) = self.networks.get_mut(&name) {
                entry.object = object;
            }
            self.judge_network(&name);
        }
    }

    fn set_task(&mut self, service: &[u8], name: &[u8], task: Option<TaskEntry>) {
        if let (Some(service), Some(name)) = (good_name(service), good_name(name)) {
            let id = TaskId { service, name };
            let node = task.as_ref().and_then(|task| task.node.as_ref());
            match node.is_some_and(|node| !self.nodes.contains_key(node)) {
                // While a list is read, the nodes are not all known.
                true if self.complete => self.orphans.insert(id),
                _ => self.orphans.remove(&id),
            };
        }
        let entry = self.services.entry(service.into()).or_default();
        match task {
            Some(task) => entry.tasks.insert(name.into(), task),
            None => entry.tasks.remove(name),
        };
        self.judge_service(service);
    }

    fn set_node(&mut self, name: &[u8], exists: bool) {
        // A task names its node in UTF-8.
        let Some(name) = text(name) else { return };
        if exists {
            self.lost_nodes.remove(name);
            let returned = match self.nodes.get_mut(name) {
                Some(seen) => {
                    *seen = self.list;
                    false
                }
                None => {
                    self.nodes.insert(name.into(), self.list);
                    true
                }
            };
            if returned && !self.orphans.is_empty() {
                let orphans = std::mem::take(&mut self.orphans);
                self.orphans = orphans
                    .into_iter()
                    .filter(|id| self.node_of(id) != Some(name))
                    .collect();
            }
        } else if let Some((name, _)) = self.nodes.remove_entry(name) {
            self.lost_nodes.insert(name);
        }
    }

    fn node_of(&self, id: &TaskId) -> Option<&str> {
        let entry = self.services.get(id.service.as_str().as_bytes())?;
        entry.tasks.get(id.name.as_str().as_bytes())?.node.as_deref()
    }

    /// Sorts a service in by what is known of it now.
    fn judge_service(&mut self, name: &[u8]) {
        let Some(entry) = self.services.get(name) else {
            return;
        };
        let marked = match &entry.object {
            Some(ServiceObject {
                content: Content::Readable { marked, .. },
                ..
            }) => *marked,
            _ => None,
        };
        let free = marked.is_some() && entry.tasks.is_empty();
        if entry.object.is_none() && entry.tasks.is_empty() {
            self.services.remove(name);
        }
        if let Some(name) = good_name(name) {
            keep(&mut self.marked_services, &name, marked);
            match free {
                true => self.free_services.insert(name),
                false => self.free_services.remove(&name),
            };
        }
    }

    /// Sorts a network in by what is known of it now.
    fn judge_network(&mut self, name: &str) {
        let Some(entry) = self.networks.get(name) else {
            return;
        };
        let marked = entry.object.as_ref().and_then(|object| object.marked);
        let free = marked.is_some() && entry.users == 0;
        if entry.object.is_none() && entry.users == 0 {
            self.networks.remove(name);
        }
        if let Ok(name) = name.parse::<Name>() {
            keep(&mut self.marked_networks, &name, marked);
            match free {
                true => self.free_networks.insert(name),
                false => self.free_networks.remove(&name),
            };
        }
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn good_name(name: &[u8]) -> Option<Name> {
    text(name)?.parse().ok()
}

fn keep(marks: &mut HashMap<Name, Since>, name: &Name, marked: Option<Since>) {
    match marked {
        Some(since) => {
            marks.insert(name.clone(), since);
        }
        None => {
            marks.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
