use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::etcd::{Event, KeyValue};
use crate::proto::{
    Network, NetworkSpec, NetworkStatus, Service, ServiceSpec, ServiceStatus, Task, TaskSpec, TaskStatus,
};
use crate::store::keys::DeallocatorKey;
use crate::store::object::Object;

fn keys() -> Keys {
    Keys::new("/q".parse().unwrap())
}

fn mark(marked: bool) -> Option<prost_types::Timestamp> {
    marked.then_some(prost_types::Timestamp {
        seconds: 1_700_000_000,
        nanos: 0,
    })
}

/// A value, as a random run writes it.
#[derive(Clone, Debug, PartialEq)]
enum Thing {
    Service {
        networks: Vec<u8>,
        task_networks: Vec<u8>,
        marked: bool,
    },
    Network {
        marked: bool,
    },
    Task {
        node: Option<u8>,
        finished: bool,
    },
    Node,
    Garbage,
}

/// What etcd holds, by key.
type Model = BTreeMap<Vec<u8>, (Thing, Revision)>;

fn name(number: u8) -> Name {
    format!("x{number}").parse().unwrap()
}

fn value(key: &[u8], object: &Thing) -> Vec<u8> {
    let texts = |numbers: &[u8]| numbers.iter().map(|n| name(*n).to_string()).collect();
    let own = String::from_utf8_lossy(key.rsplit(|byte| *byte == b'/').next().unwrap()).into_owned();
    match object {
        Thing::Service {
            networks,
            task_networks,
            marked,
        } => {
            let mut service = Service {
                metadata: None,
                spec: Some(ServiceSpec {
                    networks: texts(networks),
                    task_networks: texts(task_networks),
                }),
                status: Some(ServiceStatus {
                    delete_requested: mark(*marked),
                }),
            };
            service.metadata_mut().name = own;
            service.encode_to_vec()
        }
        Thing::Network { marked } => {
            let mut network = Network {
                metadata: None,
                spec: Some(NetworkSpec {}),
                status: Some(NetworkStatus {
                    delete_requested: mark(*marked),
                }),
            };
            network.metadata_mut().name = own;
            network.encode_to_vec()
        }
        Thing::Task { node, finished } => {
            let DeallocatorKey::Task { service, .. } = keys().parse_deallocator(key) else {
                panic!("not the key of a task");
            };
            let state = if *finished { 9 } else { 8 };
            let mut task = Task {
                metadata: None,
                spec: Some(TaskSpec {
                    service: String::from_utf8_lossy(service).into_owned(),
                    node: node.map(|node| name(node).to_string()).unwrap_or_default(),
                }),
                status: Some(TaskStatus { state }),
            };
            task.metadata_mut().name = own;
            task.encode_to_vec()
        }
        Thing::Node => b"any value".to_vec(),
        Thing::Garbage => vec![0xff, 0xff],
    }
}

fn kv(key: &[u8], object: &Thing, mod_revision: Revision) -> KeyValue {
    KeyValue {
        key: key.to_vec(),
        value: value(key, object),
        create_revision: mod_revision,
        mod_revision,
        lease: None,
    }
}

/// What the index should hold, computed from the model in the simplest way.
fn expected(model: &Model) -> String {
    let all = |prefix: &str| {
        let prefix = prefix.as_bytes().to_vec();
        model
            .iter()
            .filter_map(move |(key, (object, _))| Some((key.strip_prefix(&*prefix)?, object)))
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let in_force = |network: &str| {
        all("/q/services/").any(|(_, object)| match object {
            Thing::Service {
                networks,
                task_networks,
                ..
            } => {
                let list = if task_networks.is_empty() {
                    networks
                } else {
                    task_networks
                };
                list.iter().any(|number| name(*number).as_str() == network)
            }
            _ => false,
        })
    };
    let services: Vec<String> = all("/q/services/")
        .filter(|(_, object)| matches!(object, Thing::Service { marked: true, .. }))
        .map(|(name, _)| text(name))
        .collect();
    let free: Vec<&String> = services
        .iter()
        .filter(|name| all(&format!("/q/tasks/{name}/")).next().is_none())
        .collect();
    let networks: Vec<String> = all("/q/networks/")
        .filter(|(_, object)| matches!(object, Thing::Network { marked: true }))
        .map(|(name, _)| text(name))
        .collect();
    let unused: Vec<&String> = networks.iter().filter(|name| !in_force(name)).collect();
    let unreadable = all("/q/services/")
        .filter(|(_, object)| **object == Thing::Garbage)
        .count();
    let nodes: Vec<&[u8]> = all("/q/nodes/").map(|(name, _)| name).collect();
    let orphans: Vec<String> = all("/q/tasks/")
        .filter(|(_, object)| match object {
            Thing::Task {
                node: Some(node),
                finished: false,
            } => !nodes.contains(&name(*node).as_str().as_bytes()),
            _ => false,
        })
        .map(|(id, _)| text(id))
        .collect();
    format!(
        "{} {free:?} {} {unused:?} {unreadable} {orphans:?}",
        services.len(),
        networks.len()
    )
}

fn found(index: &Index) -> String {
    let due = |name: fn(&Item) -> Option<String>| index.due().filter_map(name).collect::<Vec<_>>();
    let free = due(|item| match item {
        Item::Service(name) => Some(name.to_string()),
        _ => None,
    });
    let unused = due(|item| match item {
        Item::Network(name) => Some(name.to_string()),
        _ => None,
    });
    let orphans = due(|item| match item {
        Item::Task(id) => Some(format!("{}/{}", id.service, id.name)),
        _ => None,
    });
    let (services, networks) = index.pending();
    format!(
        "{services} {free:?} {networks} {unused:?} {} {orphans:?}",
        index.unreadable_services()
    )
}

fn list(index: &mut Index, model: &Model, page: usize, revision: Revision) {
    let all: Vec<KeyValue> = model
        .iter()
        .map(|(key, (object, modified))| kv(key, object, *modified))
        .collect();
    let mut first = true;
    for keys in all.chunks(page.max(1)) {
        index.take_in(Update::Page {
            first,
            keys: keys.to_vec(),
        });
        first = false;
    }
    if first {
        index.take_in(Update::Page {
            first,
            keys: Vec::new(),
        });
    }
    index.take_in(Update::Listed(revision));
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        (0..3_u8).prop_map(|n| format!("/q/services/x{n}")),
        (0..3_u8).prop_map(|n| format!("/q/networks/x{n}")),
        (0..3_u8, 0..3_u8).prop_map(|(n, m)| format!("/q/tasks/x{n}/x{m}")),
        (0..3_u8).prop_map(|n| format!("/q/nodes/x{n}")),
    ];
    text.prop_map(String::into_bytes)
}

/// A key, what is done to it, and two lists of networks.
type Change = (Vec<u8>, u8, bool, Vec<u8>, Vec<u8>);

/// Changes of keys. The watch brings them, or it was interrupted and everything is listed again in pages of this size.
#[derive(Clone, Debug)]
struct Batch {
    changes: Vec<Change>,
    list: Option<usize>,
}

fn batch() -> impl Strategy<Value = Batch> {
    let networks = || proptest::collection::vec(0..3_u8, 0..3);
    let change = (key(), 0..8_u8, any::<bool>(), networks(), networks());
    (
        proptest::collection::vec(change, 1..6),
        proptest::option::weighted(0.2, 1..8_usize),
    )
        .prop_map(|(changes, list)| Batch { changes, list })
}

/// The object that a change writes under a key; `None` deletes it.
fn object(key: &[u8], what: u8, flag: bool, networks: Vec<u8>, task_networks: Vec<u8>) -> Option<Thing> {
    let kind = keys();
    match (what, kind.parse_deallocator(key)) {
        (0 | 1, _) => None,
        (2, DeallocatorKey::Service(_) | DeallocatorKey::Network(_) | DeallocatorKey::Task { .. }) => {
            Some(Thing::Garbage)
        }
        (_, DeallocatorKey::Service(_)) => Some(Thing::Service {
            networks,
            task_networks,
            marked: flag,
        }),
        (_, DeallocatorKey::Network(_)) => Some(Thing::Network { marked: flag }),
        (_, DeallocatorKey::Task { .. }) => Some(Thing::Task {
            node: networks.first().copied(),
            finished: flag,
        }),
        (_, _) => Some(Thing::Node),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn over_events_and_lists_the_index_agrees_with_a_model_of_everything(
        batches in proptest::collection::vec(batch(), 1..30)
    ) {
        let mut model = Model::new();
        let mut index = Index::new(keys());
        let mut revision = Revision(1);
        list(&mut index, &model, 1, revision);
        for Batch { changes, list: page } in batches {
            let mut events = Vec::new();
            for (key, what, flag, networks, task_networks) in changes {
                revision = revision.next();
                match object(&key, what, flag, networks, task_networks) {
                    Some(object) => {
                        events.push(Event::Put(kv(&key, &object, revision)));
                        model.insert(key, (object, revision));
                    }
                    None => {
                        if model.remove(&key).is_some() {
                            events.push(Event::Delete { key, revision });
                        }
                    }
                }
            }
            match page {
                // A compaction hid the events.
                Some(page) => list(&mut index, &model, page, revision),
                None => index.take_in(Update::Events(events)),
            }
            prop_assert!(index.synced().is_complete());
            prop_assert_eq!(found(&index), expected(&model));
            for item in index.due() {
                match item {
                    Item::Service(name) => {
                        let (_, modified) = &model[&keys().service(name)];
                        prop_assert_eq!(index.free_service(name).unwrap().mod_revision, *modified);
                    }
                    Item::Network(name) => {
                        let (_, modified) = &model[&keys().network(name)];
                        let network = index.marked_network(name.as_str()).unwrap();
                        prop_assert_eq!((network.mod_revision, network.users), (*modified, 0));
                    }
                    Item::Task(_) => {}
                }
            }
        }
    }
}

#[test]
fn the_index_is_incomplete_while_a_list_is_read() {
    let mut index = Index::new(keys());
    assert!(!index.synced().is_complete());
    let model: Model = [(
        b"/q/networks/x0".to_vec(),
        (Thing::Network { marked: true }, Revision(3)),
    )]
    .into();
    list(&mut index, &model, 1, Revision(3));
    assert!(index.synced().is_complete());
    index.take_in(Update::Page {
        first: true,
        keys: Vec::new(),
    });
    assert!(!index.synced().is_complete(), "the second list has only begun");
    list(&mut index, &model, 1, Revision(5));
    assert_eq!(
        (index.synced().is_complete(), index.synced().revision()),
        (true, Revision(5))
    );
}

#[test]
fn names_that_no_object_can_have_hold_what_they_may_use() {
    let mut index = Index::new(keys());
    list(&mut index, &Model::new(), 1, Revision(1));
    let service = Thing::Service {
        networks: Vec::new(),
        task_networks: Vec::new(),
        marked: true,
    };
    let puts = [
        kv(b"/q/services/x0", &service, Revision(2)),
        kv(b"/q/tasks/x0/\xff", &Thing::Garbage, Revision(3)),
        kv(b"/q/services/A", &service, Revision(4)),
    ];
    index.take_in(Update::Events(puts.map(Event::Put).to_vec()));
    assert_eq!(index.due().count(), 0);
    assert_eq!(index.unreadable_services(), 1, "A is no valid name");
    index.take_in(Update::Events(vec![Event::Delete {
        key: b"/q/tasks/x0/\xff".to_vec(),
        revision: Revision(5),
    }]));
    assert_eq!(index.due().count(), 1);
}
