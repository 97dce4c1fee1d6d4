use std::collections::BTreeSet;

use prost::Message;

use super::*;
use crate::etcd::{Event, KeyValue};
use crate::proto::{Metadata, Network, NetworkStatus, Service, ServiceSpec, ServiceStatus};
use crate::store::{Keys, Update};

fn keys() -> Keys {
    Keys::new("/q".parse().unwrap())
}

fn metadata(name: &str) -> Option<Metadata> {
    Some(Metadata {
        name: name.to_owned(),
        ..Metadata::default()
    })
}

const MARK: Option<prost_types::Timestamp> = Some(prost_types::Timestamp { seconds: 1, nanos: 0 });

/// An index that is written key by key, each at a revision of its own.
struct Cluster {
    index: Index,
    revision: Revision,
}

impl Cluster {
    fn new() -> Self {
        let mut index = Index::new(keys());
        index.take_in(Update::Page {
            first: true,
            keys: Vec::new(),
        });
        index.take_in(Update::Listed(Revision(1)));
        Self {
            index,
            revision: Revision(1),
        }
    }

    fn put(mut self, key: Vec<u8>, value: Vec<u8>) -> Self {
        self.revision = self.revision.next();
        let kv = KeyValue {
            key,
            value,
            create_revision: self.revision,
            mod_revision: self.revision,
            lease: None,
        };
        self.index.take_in(Update::Events(vec![Event::Put(kv)]));
        self
    }

    /// A marked service.
    fn service(self, name: &str, networks: &[String]) -> Self {
        let service = Service {
            metadata: metadata(name),
            spec: Some(ServiceSpec {
                networks: networks.to_vec(),
                task_networks: Vec::new(),
            }),
            status: Some(ServiceStatus {
                delete_requested: MARK,
            }),
        };
        self.put(
            format!("/q/services/{name}").into_bytes(),
            service.encode_to_vec(),
        )
    }

    /// A marked network.
    fn network(self, name: &str) -> Self {
        let network = Network {
            metadata: metadata(name),
            spec: None,
            status: Some(NetworkStatus {
                delete_requested: MARK,
            }),
        };
        self.put(
            format!("/q/networks/{name}").into_bytes(),
            network.encode_to_vec(),
        )
    }

    /// What is planned while nothing is held back.
    fn actions(&self) -> Vec<Action> {
        plan(&self.index, |_| false, usize::MAX)
    }
}

/// Each action by itself.
fn each(actions: &[Action]) -> Vec<String> {
    let alone = |action| Summary(std::slice::from_ref(action)).to_string();
    actions.iter().map(alone).collect()
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("n{number:03}")).collect()
}

#[test]
fn a_service_takes_the_networks_that_only_it_uses_along() {
    let (front, back) = ("front".to_owned(), "back".to_owned());
    let cluster = Cluster::new()
        .network("front")
        .network("back")
        .service("web", &[front, back.clone()]);
    assert_eq!(
        each(&cluster.actions()),
        ["service web (no tasks) and networks back, front (unused)"]
    );
    let cluster = cluster
        .put(b"/q/tasks/db/1".to_vec(), vec![0xff])
        .service("db", &[back]);
    assert_eq!(
        each(&cluster.actions()),
        ["service web (no tasks) and network front (unused)"],
        "db has a task, and uses back"
    );
}

#[test]
fn a_network_that_two_services_use_goes_after_both() {
    let front = ["front".to_owned()];
    let mut cluster = Cluster::new()
        .network("front")
        .service("a", &front)
        .service("b", &front);
    assert_eq!(
        each(&cluster.actions()),
        ["service a (no tasks)", "service b (no tasks)"]
    );
    for (name, expected) in [
        ("a", "service b (no tasks) and network front (unused)"),
        ("b", "network front (unused)"),
    ] {
        cluster.revision = cluster.revision.next();
        let deleted = Event::Delete {
            key: format!("/q/services/{name}").into_bytes(),
            revision: cluster.revision,
        };
        cluster.index.take_in(Update::Events(vec![deleted]));
        assert_eq!(each(&cluster.actions()), [expected]);
    }
}

#[test]
fn a_service_that_cannot_be_read_holds_every_network_and_no_service() {
    let cluster = Cluster::new()
        .network("front")
        .network("free")
        .service("web", &["front".to_owned()])
        .put(b"/q/services/bad".to_vec(), vec![0xff]);
    assert_eq!(each(&cluster.actions()), ["service web (no tasks)"]);
}

#[test]
fn a_service_with_more_networks_than_a_transaction_takes_goes_with_as_many_as_fit() {
    let mut cluster = Cluster::new();
    for name in names(150) {
        cluster = cluster.network(&name);
    }
    let cluster = cluster.service("web", &names(150));
    let [Action::DeleteService { networks, .. }] = &cluster.actions()[..] else {
        panic!("no deletion of a service alone");
    };
    assert_eq!(
        networks.len(),
        125,
        "of 128 compares, without those of the fence, web and its tasks"
    );
}

#[test]
fn what_is_held_back_is_not_planned_and_no_more_than_there_is_room_for() {
    let cluster = Cluster::new()
        .service("a", &[])
        .service("b", &[])
        .service("c", &[])
        .network("x");
    let held: BTreeSet<Item> = [Item::Service("a".parse().unwrap())].into();
    let planned = |room| each(&plan(&cluster.index, |item| held.contains(item), room));
    assert_eq!(planned(2), ["service b (no tasks)", "service c (no tasks)"]);
    assert_eq!(planned(3)[2], "network x (unused)");
    assert_eq!(planned(0), [""; 0]);
}

#[test]
fn a_summary_names_three_of_each_kind_and_counts_the_rest() {
    let mut cluster = Cluster::new();
    for name in names(5) {
        cluster = cluster.service(&name, &[]).network(&name);
    }
    assert_eq!(
        Summary(&cluster.actions()).to_string(),
        "services n000, n001, n002 and 2 more (no tasks) and networks n000, n001, n002 and 2 more (unused)"
    );
    let task = |name: &str| {
        Action::Orphan(TaskId {
            service: "web".parse().unwrap(),
            name: name.parse().unwrap(),
        })
    };
    assert_eq!(
        Summary(&[task("1")]).to_string(),
        "task web/1 (its node does not exist)"
    );
    assert_eq!(
        Summary(&[task("1"), task("2")]).to_string(),
        "tasks web/1, web/2 (their nodes do not exist)"
    );
}

#[test]
fn nothing_is_planned_before_everything_is_known() {
    let mut index = Index::new(keys());
    let actions = |index: &Index| plan(index, |_| false, usize::MAX).len();
    assert_eq!(actions(&index), 0);
    let cluster = Cluster::new().network("front");
    assert_eq!(actions(&cluster.index), 1);
    index = cluster.index;
    index.take_in(Update::Page {
        first: true,
        keys: Vec::new(),
    });
    assert_eq!(actions(&index), 0, "while a list is read");
}
