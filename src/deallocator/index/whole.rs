//! What takes a look at everything: after a list, and when nodes are gone.

use std::sync::Arc;

use super::entries::{NetworkEntry, Raw};
use super::{Index, TaskId, good_name};

impl Index {
    /// What the list did not show was deleted while no watch saw it.
    pub(super) fn forget_unseen(&mut self) {
        let list = self.list;
        let mut tasks: Vec<(Raw, Raw)> = Vec::new();
        let mut services: Vec<Raw> = Vec::new();
        for (service, entry) in &self.services {
            if entry.object.as_ref().is_some_and(|object| object.seen != list) {
                services.push(service.clone());
            }
            let gone = entry.tasks.iter().filter(|(_, task)| task.seen != list);
            tasks.extend(gone.map(|(name, _)| (service.clone(), name.clone())));
        }
        for (service, name) in tasks {
            self.set_task(&service, &name, None);
        }
        for service in services {
            self.set_service(&service, None);
        }
        let unseen = |entry: &NetworkEntry| entry.object.as_ref().is_some_and(|object| object.seen != list);
        let networks = self.networks.iter().filter(|(_, entry)| unseen(entry));
        let networks: Vec<Arc<str>> = networks.map(|(name, _)| name.clone()).collect();
        for network in networks {
            self.set_network(network.as_bytes(), None);
        }
        self.nodes.retain(|_, seen| *seen == list);
    }

    /// Adds the unfinished tasks whose node does not exist, among those on nodes that `concerned` names.
    pub(super) fn find_orphans(&mut self, concerned: impl Fn(&str) -> bool) {
        let mut found = Vec::new();
        for (service, entry) in &self.services {
            for (name, task) in &entry.tasks {
                let Some(node) = &task.node else { continue };
                if !concerned(node) || self.nodes.contains_key(node) {
                    continue;
                }
                if let (Some(service), Some(name)) = (good_name(service), good_name(name)) {
                    found.push(TaskId { service, name });
                }
            }
        }
        self.orphans.extend(found);
    }
}
