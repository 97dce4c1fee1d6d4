//! What to deallocate next, and why. Pure.

use std::fmt;

use super::index::{Index, Item, TaskId};
use crate::etcd::Revision;
use crate::mutation::{self, Guard};
use crate::store::Name;
use crate::store::writer::COMPARES;

/// The deletion of a service needs two compares of a transaction: one for its record, one for its tasks.
const MOST_NETWORKS: usize = COMPARES - 2;

/// What to do in one revision, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Delete a service that is marked and has no task, and with it the marked networks that only it uses.
    DeleteService {
        /// The service.
        name: Name,
        /// When the service was last written.
        mod_revision: Revision,
        /// The networks, and when each was last written.
        networks: Vec<(Name, Revision)>,
    },
    /// Delete a network that is marked and that no service uses.
    DeleteNetwork {
        /// The network.
        name: Name,
        /// When the network was last written.
        mod_revision: Revision,
    },
    /// Orphan an unfinished task of a node that does not exist.
    Orphan(TaskId),
}

impl Action {
    /// What it does, in a word.
    pub fn word(&self) -> &'static str {
        match self {
            Self::DeleteService { .. } | Self::DeleteNetwork { .. } => "delete",
            Self::Orphan(_) => "orphan",
        }
    }

    /// The object that the action is for.
    pub fn item(&self) -> Item {
        match self {
            Self::DeleteService { name, .. } => Item::Service(name.clone()),
            Self::DeleteNetwork { name, .. } => Item::Network(name.clone()),
            Self::Orphan(task) => Item::Task(task.clone()),
        }
    }
}

/// The next actions, at most this many, without those for objects that are held back. None before everything is known:
/// what was not observed is no reason to change anything.
pub fn plan(index: &Index, is_held: impl Fn(&Item) -> bool, at_most: usize) -> Vec<Action> {
    if !index.synced().is_complete() {
        return Vec::new();
    }
    if mutation::without(Guard::Unreadable) && index.unreadable_services() > 0 {
        return Vec::new();
    }
    let next = index.due().filter(|item| !is_held(item));
    next.filter_map(|item| action(index, item))
        .take(at_most)
        .collect()
}

fn action(index: &Index, item: &Item) -> Option<Action> {
    // A service that cannot be read may use any network.
    let networks_are_known = index.unreadable_services() == 0;
    match item {
        Item::Service(name) => {
            let service = index.free_service(name)?;
            let only_user = |network: &str| {
                let marked = index.marked_network(network)?;
                let name = network.parse().ok()?;
                (networks_are_known && marked.users == 1).then_some((name, marked.mod_revision))
            };
            let networks = service.networks.iter().filter_map(|network| only_user(network));
            Some(Action::DeleteService {
                name: name.clone(),
                mod_revision: service.mod_revision,
                // Further ones are deleted once the service is gone.
                networks: networks.take(MOST_NETWORKS).collect(),
            })
        }
        Item::Network(name) if networks_are_known => Some(Action::DeleteNetwork {
            name: name.clone(),
            mod_revision: index.marked_network(name.as_str())?.mod_revision,
        }),
        Item::Network(_) => None,
        Item::Task(task) => Some(Action::Orphan(task.clone())),
    }
}

/// Names what actions are for, each kind with its reason: `services a, b, c and 60 more (no tasks) and network x (unused)`.
#[derive(Debug)]
pub struct Summary<'a>(pub &'a [Action]);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut services, mut all_networks, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
        for action in self.0 {
            match action {
                Action::DeleteService { name, networks, .. } => {
                    services.push(name.to_string());
                    all_networks.extend(networks.iter().map(|(name, _)| name.to_string()));
                }
                Action::DeleteNetwork { name, .. } => all_networks.push(name.to_string()),
                Action::Orphan(TaskId { service, name }) => tasks.push(format!("{service}/{name}")),
            }
        }
        let node = if tasks.len() == 1 {
            "its node does not exist"
        } else {
            "their nodes do not exist"
        };
        let parts = [
            ("service", services, "no tasks"),
            ("network", all_networks, "unused"),
            ("task", tasks, node),
        ];
        let parts = parts.iter().filter(|(_, names, _)| !names.is_empty());
        let parts = parts.map(|(kind, names, reason)| format!("{} ({reason})", named(kind, names)));
        f.write_str(&parts.collect::<Vec<_>>().join(" and "))
    }
}

/// `services a, b, c and 60 more`.
fn named(kind: &str, names: &[String]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    let (shown, more) = names.split_at(names.len().min(3));
    let more = match more.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{kind}{plural} {}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests;
