//! Services, networks, tasks and nodes as they were at one revision, and what can be deleted or orphaned then. Pure.

mod entries;
mod marked;
mod read;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use entries::{
    Content, MarkedAt, NetworkEntry, NetworkObject, RawName, ServiceEntry, ServiceObject, TaskEntry,
};

use crate::etcd::Revision;
use crate::mutation::{self, Guard};
use crate::store::index::Synced;
use crate::store::{Keys, Name, Update};

/// A copy of [`Keys::deallocator_range`], with what follows from it.
#[derive(Debug)]
pub struct Index {
    keys: Keys,
    synced: Synced,
    services: HashMap<RawName, ServiceEntry>,
    networks: HashMap<Arc<str>, NetworkEntry>,
    nodes: HashSet<Arc<str>>,
    unreadable_services: usize,
    marked_services: HashMap<Name, MarkedAt>,
    marked_networks: HashMap<Name, MarkedAt>,
    due: BTreeSet<Item>,
    /// Nodes that were deleted in the step that is taken in.
    lost_nodes: HashSet<Arc<str>>,
}

/// An object to deallocate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Item {
    /// A service to delete.
    Service(Name),
    /// A network to delete.
    Network(Name),
    /// A task to orphan.
    Task(TaskId),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "service/{name}"),
            Self::Network(name) => write!(f, "network/{name}"),
            Self::Task(TaskId { service, name }) => write!(f, "task/{service}/{name}"),
        }
    }
}

/// What identifies a task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The task's service.
    pub service: Name,
    /// The task's name within its service.
    pub name: Name,
}

/// A service that is marked and has no task.
#[derive(Clone, Copy, Debug)]
pub struct FreeService<'i> {
    /// When it was last written.
    pub mod_revision: Revision,
    /// The networks that it uses.
    pub networks: &'i [Arc<str>],
}

/// A network that exists and is marked.
#[derive(Clone, Copy, Debug)]
pub struct MarkedNetwork {
    /// When it was last written, which is at or after its mark.
    pub mod_revision: Revision,
    /// How many readable services use it.
    pub users: usize,
}

impl Index {
    /// An empty index of the keys below this prefix.
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            synced: Synced::default(),
            services: HashMap::new(),
            networks: HashMap::new(),
            nodes: HashSet::new(),
            unreadable_services: 0,
            marked_services: HashMap::new(),
            marked_networks: HashMap::new(),
            due: BTreeSet::new(),
            lost_nodes: HashSet::new(),
        }
    }

    /// Takes in a step of following [`Keys::deallocator_range`].
    pub fn take_in(&mut self, update: Update) {
        let mut synced = std::mem::take(&mut self.synced);
        synced.take_in(update, self);
        self.synced = synced;
        if !self.lost_nodes.is_empty() {
            self.find_orphans();
        }
    }

    /// How far the index has followed its range. While it is not complete, nothing may be decided from it.
    pub fn synced(&self) -> &Synced {
        &self.synced
    }

    /// The marked services without tasks, the marked networks that no readable service uses, and the unfinished tasks
    /// of nodes that do not exist, in order.
    pub fn due(&self) -> impl Iterator<Item = &Item> {
        self.due.iter()
    }

    /// Whether [`Index::due`] has this object.
    pub fn is_due(&self, item: &Item) -> bool {
        self.due.contains(item)
    }

    /// A service, if it is marked and has no task.
    pub fn free_service(&self, name: &Name) -> Option<FreeService<'_>> {
        let entry = self.services.get(name.as_str().as_bytes())?;
        match entry.object.as_ref()? {
            ServiceObject {
                mod_revision,
                content:
                    Content::Readable {
                        marked: Some(_),
                        networks,
                    },
            } if entry.tasks.is_empty() => Some(FreeService {
                mod_revision: *mod_revision,
                networks,
            }),
            _ => None,
        }
    }

    /// A network, if it exists, can be read and is marked.
    pub fn marked_network(&self, name: &str) -> Option<MarkedNetwork> {
        let entry = self.networks.get(name)?;
        let is_marked = |object: &&NetworkObject| object.marked.is_some() || mutation::without(Guard::Mark);
        let object = entry.object.as_ref().filter(is_marked)?;
        Some(MarkedNetwork {
            mod_revision: object.mod_revision,
            users: entry.users,
        })
    }

    /// How many services cannot be read. While there is one, no network is deleted.
    pub fn unreadable_services(&self) -> usize {
        self.unreadable_services
    }

    /// How many services, and how many networks, are marked.
    pub fn pending(&self) -> (usize, usize) {
        (self.marked_services.len(), self.marked_networks.len())
    }

    /// When the oldest mark was set, in seconds since 1970.
    pub fn oldest_mark(&self) -> Option<i64> {
        let marks = self.marked_services.values().chain(self.marked_networks.values());
        marks.copied().filter(|since| *since > 0).min()
    }

    fn set_service(&mut self, name: &[u8], object: Option<ServiceObject>) {
        // New references are counted before old ones are released, so that no name in both is forgotten in between.
        self.count_references(object.as_ref(), 1);
        let entry = self.services.entry(name.into()).or_default();
        let before = std::mem::replace(&mut entry.object, object);
        self.count_references(before.as_ref(), -1);
        self.judge_service(name);
    }

    /// Counts `by` more of what a service refers to.
    fn count_references(&mut self, service: Option<&ServiceObject>, by: isize) {
        match service.map(|service| &service.content) {
            None => {}
            Some(Content::Unreadable) => {
                self.unreadable_services = self.unreadable_services.saturating_add_signed(by);
            }
            Some(Content::Readable { networks, .. }) => {
                for network in networks {
                    if let Some(entry) = self.networks.get_mut(network) {
                        entry.users = entry.users.saturating_add_signed(by);
                    }
                    self.judge_network(network);
                }
            }
        }
    }

    fn set_network(&mut self, name: &[u8], object: Option<NetworkObject>) {
        // No service can refer to a name that is not text, and such a network is not deleted.
        if let Some(name) = text(name) {
            let name = self.network_name(name);
            if let Some(entry) = self.networks.get_mut(&name) {
                entry.object = object;
            }
            self.judge_network(&name);
        }
    }

    fn set_task(&mut self, service: &[u8], name: &[u8], task: Option<TaskEntry>) {
        if let Some(id) = TaskId::parse(service, name) {
            let node = task.as_ref().and_then(|task| task.node.as_ref());
            let is_orphan = node.is_some_and(|node| !self.nodes.contains(node));
            self.set_due(Item::Task(id), is_orphan);
        }
        let entry = self.services.entry(service.into()).or_default();
        match task {
            Some(task) => entry.tasks.insert(name.into(), task),
            None => entry.tasks.remove(name),
        };
        self.judge_service(service);
    }

    fn add_node(&mut self, name: &[u8]) {
        // A task names its node in UTF-8.
        let Some(name) = text(name) else { return };
        self.lost_nodes.remove(name);
        if self.nodes.contains(name) {
            return;
        }
        self.nodes.insert(name.into());
        if !self.due.is_empty() {
            let mut due = std::mem::take(&mut self.due);
            due.retain(|item| match item {
                Item::Task(id) => self.node_of(id) != Some(name),
                Item::Service(_) | Item::Network(_) => true,
            });
            self.due = due;
        }
    }

    fn remove_node(&mut self, name: &[u8]) {
        if let Some(name) = text(name).and_then(|name| self.nodes.take(name)) {
            self.lost_nodes.insert(name);
        }
    }

    /// Finds the tasks of nodes that were deleted: one pass over all tasks, however many nodes there were.
    fn find_orphans(&mut self) {
        let lost = std::mem::take(&mut self.lost_nodes);
        for (service, entry) in &self.services {
            for (name, task) in &entry.tasks {
                if task.node.as_ref().is_some_and(|node| lost.contains(node))
                    && let Some(id) = TaskId::parse(service, name)
                {
                    self.due.insert(Item::Task(id));
                }
            }
        }
    }

    fn node_of(&self, id: &TaskId) -> Option<&str> {
        let entry = self.services.get(id.service.as_str().as_bytes())?;
        entry.tasks.get(id.name.as_str().as_bytes())?.node.as_deref()
    }

    /// Updates what follows from a service after any change of it or of its tasks.
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
        let is_free = marked.is_some() && entry.tasks.is_empty();
        if entry.object.is_none() && entry.tasks.is_empty() {
            self.services.remove(name);
        }
        if let Some(name) = parse(name) {
            set_mark(&mut self.marked_services, &name, marked);
            self.set_due(Item::Service(name), is_free);
        }
    }

    /// Updates what follows from a network after any change of it or of its users.
    fn judge_network(&mut self, name: &str) {
        let Some(entry) = self.networks.get(name) else {
            return;
        };
        let marked = entry.object.as_ref().and_then(|object| object.marked);
        let is_free = marked.is_some() && entry.users == 0;
        if entry.object.is_none() && entry.users == 0 {
            self.networks.remove(name);
        }
        if let Ok(name) = name.parse::<Name>() {
            set_mark(&mut self.marked_networks, &name, marked);
            self.set_due(Item::Network(name), is_free);
        }
    }

    fn set_due(&mut self, item: Item, is_due: bool) {
        match is_due {
            true => self.due.insert(item),
            false => self.due.remove(&item),
        };
    }
}

impl TaskId {
    fn parse(service: &[u8], name: &[u8]) -> Option<Self> {
        Some(Self {
            service: parse(service)?,
            name: parse(name)?,
        })
    }
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn parse(name: &[u8]) -> Option<Name> {
    text(name)?.parse().ok()
}

fn set_mark(marks: &mut HashMap<Name, MarkedAt>, name: &Name, marked: Option<MarkedAt>) {
    match marked {
        Some(since) => marks.insert(name.clone(), since),
        None => marks.remove(name),
    };
}

#[cfg(test)]
mod tests;
