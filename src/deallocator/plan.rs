//! What goes next, and why. Pure: an index and what is under way in, a step out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::index::{Index, Item, TaskId};
use crate::etcd::Revision;
use crate::store::Name;

/// What etcd takes in one transaction: 128 compares (`--max-txn-ops`), one of which is the fence.
const COMPARES: usize = 127;

/// A service compares itself and the range of its tasks.
const SERVICE_COMPARES: usize = 2;

/// A network compares itself.
const NETWORK_COMPARES: usize = 1;

/// An orphaned task compares itself and its node.
const MOST_ORPHANS: usize = COMPARES / 2;

/// What is not to be decided on now.
#[derive(Debug, Default)]
pub struct Busy {
    /// In a transaction that is under way, or that failed a short while ago.
    pub taken: BTreeSet<Item>,
    /// Was in a transaction of several that failed: goes by itself, so that it delays no other (INV-8).
    pub alone: BTreeSet<Item>,
}

/// What is to be done, in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// These are marked, and at the revision of the index nothing used them.
    Delete(Batch),
    /// These are unfinished, and at the revision of the index their nodes did not exist.
    Orphan(Vec<TaskId>),
}

/// Services and networks that go in one transaction, each with its mod revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Have no task.
    pub services: BTreeMap<Name, Revision>,
    /// Are used by nobody, or by these services alone.
    pub networks: BTreeMap<Name, Revision>,
}

impl Batch {
    /// Every object of it.
    pub fn items(&self) -> impl Iterator<Item = Item> {
        let services = self.services.keys().cloned().map(Item::Service);
        services.chain(self.networks.keys().cloned().map(Item::Network))
    }

    fn is_single(&self) -> bool {
        self.services.len() == 1 || (self.services.is_empty() && self.networks.len() == 1)
    }

    fn is_empty(&self) -> bool {
        self.services.is_empty() && self.networks.is_empty()
    }

    fn compares(&self) -> usize {
        self.services.len() * SERVICE_COMPARES + self.networks.len() * NETWORK_COMPARES
    }
}

impl Step {
    /// Whether it cannot be made smaller: one service with the networks that go with it, one network, or one task.
    pub fn is_single(&self) -> bool {
        match self {
            Self::Delete(batch) => batch.is_single(),
            Self::Orphan(tasks) => tasks.len() == 1,
        }
    }

    /// Every object that it is about.
    pub fn items(&self) -> Vec<Item> {
        match self {
            Self::Delete(batch) => batch.items().collect(),
            Self::Orphan(tasks) => tasks.iter().cloned().map(Item::Task).collect(),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delete(Batch { services, networks }) => {
                let parts = [
                    ("marked and without tasks", "service", services),
                    ("marked and unused", "network", networks),
                ];
                let mut separator = "";
                for (reason, kind, names) in parts.into_iter().filter(|(_, _, names)| !names.is_empty()) {
                    write!(f, "{separator}{reason}: {}", named(kind, names.keys()))?;
                    separator = "; ";
                }
                Ok(())
            }
            Self::Orphan(tasks) => {
                let names = tasks.iter().map(|task| format!("{}/{}", task.service, task.name));
                write!(
                    f,
                    "unfinished on nodes that do not exist: {}",
                    named("task", names)
                )
            }
        }
    }
}

/// `services a, b, c and 60 more`.
fn named(kind: &str, names: impl ExactSizeIterator<Item: fmt::Display>) -> String {
    const SHOWN: usize = 3;
    let (all, plural) = (names.len(), if names.len() == 1 { "" } else { "s" });
    let shown: Vec<String> = names.take(SHOWN).map(|name| name.to_string()).collect();
    let more = match all.saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{kind}{plural} {}{more}", shown.join(", "))
}

/// The next step; `None` while nothing can be done, and while not everything is known: what was not observed is no
/// reason to change anything.
pub fn plan(index: &Index, busy: &Busy) -> Option<Step> {
    if !index.is_complete() {
        return None;
    }
    let deletion = plan_deletion(index, busy).map(Step::Delete);
    deletion.or_else(|| plan_orphans(index, busy).map(Step::Orphan))
}

fn plan_deletion(index: &Index, busy: &Busy) -> Option<Batch> {
    let mut batch = Batch::default();
    // How many users of a network go in this batch.
    let mut going: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, service) in index.free_services() {
        let item = Item::Service(name.clone());
        if busy.taken.contains(&item) {
            continue;
        }
        let alone = busy.alone.contains(&item);
        if alone && !batch.is_empty() {
            continue;
        }
        let room = COMPARES.checked_sub(batch.compares() + SERVICE_COMPARES);
        let mut networks = Vec::new();
        for network in service.networks {
            let users = going.get(&**network).copied().unwrap_or(0) + 1;
            networks.extend(last_user_goes(index, busy, network, users));
        }
        // With it, in the same revision, where they fit; a service that comes first goes with as many as fit.
        if !batch.is_empty() && room.is_none_or(|room| networks.len() > room) {
            return Some(batch);
        }
        networks.truncate(room.unwrap_or(0));
        for network in service.networks {
            *going.entry(network).or_default() += 1;
        }
        batch.services.insert(name.clone(), service.mod_revision);
        batch.networks.extend(networks);
        if alone {
            return Some(batch);
        }
    }
    if index.unreadable_services() == 0 {
        for (name, network) in index.free_networks() {
            let item = Item::Network(name.clone());
            let alone = busy.alone.contains(&item);
            if busy.taken.contains(&item) || (alone && !batch.is_empty()) {
                continue;
            }
            if COMPARES < batch.compares() + NETWORK_COMPARES {
                break;
            }
            batch.networks.insert(name.clone(), network.mod_revision);
            if alone {
                break;
            }
        }
    }
    (!batch.is_empty()).then_some(batch)
}

/// The network, if it is marked and these users of it are all that there are. A service that cannot be read may be one
/// more.
fn last_user_goes(index: &Index, busy: &Busy, network: &str, users: usize) -> Option<(Name, Revision)> {
    let marked = index.marked_network(network)?;
    let name: Name = network.parse().ok()?;
    let free = marked.users == users && index.unreadable_services() == 0;
    let idle = !busy.taken.contains(&Item::Network(name.clone()));
    (free && idle).then_some((name, marked.mod_revision))
}

fn plan_orphans(index: &Index, busy: &Busy) -> Option<Vec<TaskId>> {
    let mut tasks = Vec::new();
    for task in index.orphans() {
        let item = Item::Task(task.clone());
        let alone = busy.alone.contains(&item);
        if busy.taken.contains(&item) || (alone && !tasks.is_empty()) {
            continue;
        }
        tasks.push(task.clone());
        if alone || tasks.len() == MOST_ORPHANS {
            break;
        }
    }
    (!tasks.is_empty()).then_some(tasks)
}

#[cfg(test)]
mod tests;
