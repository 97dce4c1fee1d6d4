//! From a key and its value to what is kept of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::entries::{Content, NetworkEntry, NetworkObject, ServiceObject, TaskEntry};
use super::{Index, text};
use crate::etcd::KeyValue;
use crate::proto::{Network, Service, Task};
use crate::store::keys::InUse;
use crate::store::object::mark::Marked;
use crate::store::object::service::networks_in_force;
use crate::store::object::{decode, task};

impl Index {
    pub(super) fn put(&mut self, kv: &KeyValue) {
        match self.keys.parse_in_use(&kv.key) {
            InUse::Service(name) => {
                let content = self.read_service(name, &kv.value);
                let object = ServiceObject {
                    mod_revision: kv.mod_revision,
                    seen: self.list,
                    content,
                };
                self.set_service(name, Some(object));
            }
            InUse::Network(name) => {
                let network: Option<Network> = text(name).and_then(|name| decode(name, &kv.value).ok());
                let object = network.map(|network| NetworkObject {
                    mod_revision: kv.mod_revision,
                    seen: self.list,
                    marked: network.mark().map(|mark| mark.seconds),
                });
                self.set_network(name, object);
            }
            InUse::Task { service, name } => {
                let node = self.read_task(service, name, &kv.value);
                let seen = self.list;
                self.set_task(service, name, Some(TaskEntry { seen, node }));
            }
            InUse::Node(name) => self.set_node(name, true),
            InUse::Other => {}
        }
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        match self.keys.parse_in_use(key) {
            InUse::Service(name) => self.set_service(name, None),
            InUse::Network(name) => self.set_network(name, None),
            InUse::Task { service, name } => self.set_task(service, name, None),
            InUse::Node(name) => self.set_node(name, false),
            InUse::Other => {}
        }
    }

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

    /// The node of an unfinished task; `None` for one that cannot be read: it is left alone.
    fn read_task(&self, service: &[u8], name: &[u8], value: &[u8]) -> Option<Arc<str>> {
        let task: Task = decode(&format!("{}/{}", text(service)?, text(name)?), value).ok()?;
        let node = task.spec.as_ref().map_or("", |spec| spec.node.as_str());
        if node.is_empty() || task::is_finished(&task) {
            return None;
        }
        let known = self.nodes.get_key_value(node).map(|(known, _)| known.clone());
        Some(known.unwrap_or_else(|| node.into()))
    }
}
