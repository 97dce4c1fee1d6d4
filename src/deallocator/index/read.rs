//! How the index takes in one key.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::entries::{Content, NetworkEntry, NetworkObject, ServiceObject, TaskEntry};
use super::{Index, text};
use crate::etcd::{KeyValue, Revision};
use crate::proto::{Network, Service, Task};
use crate::store::index::Indexed;
use crate::store::keys::DeallocatorKey;
use crate::store::object::mark::Marked;
use crate::store::object::service::networks_in_force;
use crate::store::object::{decode, task};

impl Indexed for Index {
    fn put(&mut self, kv: KeyValue) {
        match self.keys.parse_deallocator(&kv.key) {
            DeallocatorKey::Service(name) => {
                let object = ServiceObject {
                    mod_revision: kv.mod_revision,
                    content: self.read_service(name, &kv.value),
                };
                self.set_service(name, Some(object));
            }
            DeallocatorKey::Network(name) => {
                let network: Option<Network> = text(name).and_then(|name| decode(name, &kv.value).ok());
                let object = network.map(|network| NetworkObject {
                    mod_revision: kv.mod_revision,
                    marked: network.mark().map(|mark| mark.seconds),
                });
                self.set_network(name, object);
            }
            DeallocatorKey::Task { service, name } => {
                let node = self.read_task(service, name, &kv.value);
                self.set_task(service, name, Some(TaskEntry { node }));
            }
            DeallocatorKey::Node(name) => self.add_node(name),
            DeallocatorKey::Other => {}
        }
    }

    fn delete(&mut self, key: &[u8], _: Revision) {
        match self.keys.parse_deallocator(key) {
            DeallocatorKey::Service(name) => self.set_service(name, None),
            DeallocatorKey::Network(name) => self.set_network(name, None),
            DeallocatorKey::Task { service, name } => self.set_task(service, name, None),
            DeallocatorKey::Node(name) => self.remove_node(name),
            DeallocatorKey::Other => {}
        }
    }

    fn keys(&self) -> impl Iterator<Item = Cow<'_, [u8]>> {
        let services = self.services.iter().filter(|(_, entry)| entry.object.is_some());
        let services = services.map(|(name, _)| DeallocatorKey::Service(name));
        let tasks = self.services.iter().flat_map(|(service, entry)| {
            let names = entry.tasks.keys();
            names.map(|name| DeallocatorKey::Task { service, name })
        });
        let networks = self.networks.iter().filter(|(_, entry)| entry.object.is_some());
        let networks = networks.map(|(name, _)| DeallocatorKey::Network(name.as_bytes()));
        let nodes = self
            .nodes
            .iter()
            .map(|name| DeallocatorKey::Node(name.as_bytes()));
        let all = services.chain(tasks).chain(networks).chain(nodes);
        all.filter_map(|key| Some(Cow::Owned(self.keys.deallocator(key)?)))
    }
}

impl Index {
    fn read_service(&mut self, name: &[u8], value: &[u8]) -> Content {
        let Some(service) = text(name).and_then(|name| decode::<Service>(name, value).ok()) else {
            return Content::Unreadable;
        };
        let names: BTreeSet<&String> = networks_in_force(&service).iter().collect();
        let networks = names.into_iter().map(|name| self.network_name(name)).collect();
        Content::Readable {
            marked: service.mark().map(|mark| mark.seconds),
            networks,
        }
    }

    /// The one copy of a network's name.
    pub(super) fn network_name(&mut self, name: &str) -> Arc<str> {
        if let Some((known, _)) = self.networks.get_key_value(name) {
            return known.clone();
        }
        let name: Arc<str> = name.into();
        self.networks.insert(name.clone(), NetworkEntry::default());
        name
    }

    /// The node of an unfinished task. `None` for a task that cannot be read: it is left alone.
    fn read_task(&self, service: &[u8], name: &[u8], value: &[u8]) -> Option<Arc<str>> {
        let task: Task = decode(&format!("{}/{}", text(service)?, text(name)?), value).ok()?;
        let node = task.spec.as_ref().map_or("", |spec| spec.node.as_str());
        if node.is_empty() || task::is_finished(&task) {
            return None;
        }
        Some(self.nodes.get(node).cloned().unwrap_or_else(|| node.into()))
    }
}
