//! The services and networks that are marked for deletion, and what holds each back, for people. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::index::Index;
use crate::store::object::time;
use crate::summary::{Names, PendingDeletion, Rows};

/// The marked services and networks, the longest marked first.
pub type DeletionsSummary = Rows<PendingDeletion>;

const SERVICE: &str = "service";
const NETWORK: &str = "network";

/// What the index holds of deletions.
pub fn deletions(index: &Index) -> DeletionsSummary {
    let services = index
        .marked_services()
        .map(|(name, since)| (since, SERVICE, name));
    let networks = index
        .marked_networks()
        .map(|(name, since)| (since, NETWORK, name));
    let rows = Rows::least(services.chain(networks));
    let shown = rows.first.iter().filter(|(_, kind, _)| *kind == NETWORK);
    let users = index.users_of(&shown.map(|(_, _, name)| name.as_str()).collect());
    rows.map(|(since, kind, name)| PendingDeletion {
        kind,
        name: name.to_string(),
        // A mark without a usable time counts as one of 1970.
        since: Some(since).filter(|since| *since > 0).and_then(in_words),
        waits_for: match kind {
            SERVICE => tasks(&index.tasks_of(name)),
            _ => services_that_use(&users, name.as_str(), index.unreadable_services()),
        },
    })
}

fn in_words(seconds: i64) -> Option<String> {
    Timestamp::from_second(seconds).ok().map(time::rfc3339)
}

fn tasks(names: &Names) -> String {
    match names.total() {
        0 => NOTHING.to_owned(),
        1 => format!("the task {names}"),
        count => format!("{count} tasks: {names}"),
    }
}

/// What holds a network back: services that use it, and those that cannot be read, which may use any.
fn services_that_use(users: &BTreeMap<&str, Names>, network: &str, unreadable: usize) -> String {
    let mut parts = Vec::new();
    if let Some(users) = users.get(network) {
        let services = if users.total() == 1 { "service" } else { "services" };
        parts.push(format!("{services} {users}"));
    }
    if unreadable > 0 {
        let services = if unreadable == 1 { "service" } else { "services" };
        parts.push(format!("{unreadable} {services} that cannot be read"));
    }
    match parts.is_empty() {
        true => NOTHING.to_owned(),
        false => parts.join(", and "),
    }
}

/// What the deletion of an object waits for that nothing holds back.
const NOTHING: &str = "nothing: it is deleted next";

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::etcd::{KeyValue, Revision};
    use crate::proto::{
        Metadata, Network, NetworkStatus, Service, ServiceSpec, ServiceStatus, Task, TaskSpec,
    };
    use crate::store::{Keys, Update};

    fn metadata(name: &str) -> Option<Metadata> {
        Some(Metadata {
            name: name.to_owned(),
            uid: "uid".to_owned(),
            ..Metadata::default()
        })
    }

    fn marked(seconds: i64) -> Option<prost_types::Timestamp> {
        Some(prost_types::Timestamp { seconds, nanos: 0 })
    }

    fn kv(key: &str, value: Vec<u8>) -> KeyValue {
        KeyValue {
            key: format!("/q{key}").into_bytes(),
            value,
            create_revision: Revision(1),
            mod_revision: Revision(1),
            lease: None,
        }
    }

    fn service(name: &str, networks: &[&str], mark: Option<prost_types::Timestamp>) -> KeyValue {
        let service = Service {
            metadata: metadata(name),
            spec: Some(ServiceSpec {
                networks: networks.iter().map(ToString::to_string).collect(),
                ..ServiceSpec::default()
            }),
            status: Some(ServiceStatus {
                delete_requested: mark,
            }),
        };
        kv(&format!("/services/{name}"), service.encode_to_vec())
    }

    fn network(name: &str, mark: Option<prost_types::Timestamp>) -> KeyValue {
        let network = Network {
            metadata: metadata(name),
            status: Some(NetworkStatus {
                delete_requested: mark,
            }),
            ..Network::default()
        };
        kv(&format!("/networks/{name}"), network.encode_to_vec())
    }

    fn task(service: &str, name: &str) -> KeyValue {
        let task = Task {
            metadata: metadata(name),
            spec: Some(TaskSpec {
                service: service.to_owned(),
                node: "n1".to_owned(),
            }),
            ..Task::default()
        };
        kv(&format!("/tasks/{service}/{name}"), task.encode_to_vec())
    }

    fn rows(keys: Vec<KeyValue>) -> Vec<(&'static str, String, String)> {
        let mut index = Index::new(Keys::new("/q".parse().unwrap()));
        index.take_in(Update::Page { first: true, keys });
        index.take_in(Update::Listed(Revision(1)));
        let rows = deletions(&index).first.into_iter();
        rows.map(|row| (row.kind, row.name, row.waits_for)).collect()
    }

    #[test]
    fn each_marked_object_names_what_holds_it_back_the_longest_marked_first() {
        let seen = rows(vec![
            service("web", &["front"], marked(20)),
            service("api", &["front", "back"], None),
            service("old", &[], marked(30)),
            network("front", marked(10)),
            network("idle", marked(40)),
            network("back", None),
            task("web", "t1"),
            task("web", "t2"),
            task("api", "t3"),
        ]);
        let row = |kind, name: &str, waits_for: &str| (kind, name.to_owned(), waits_for.to_owned());
        assert_eq!(
            seen,
            [
                row(NETWORK, "front", "services api, web"),
                row(SERVICE, "web", "2 tasks: t1, t2"),
                row(SERVICE, "old", NOTHING),
                row(NETWORK, "idle", NOTHING),
            ]
        );
    }

    #[test]
    fn of_many_that_hold_an_object_back_a_few_are_named_and_all_are_counted() {
        let tasks = (0..2000).map(|number| task("web", &format!("t{number:04}")));
        let users = (0..2000).map(|number| service(&format!("s{number:04}"), &["front"], None));
        let held = [service("web", &[], marked(10)), network("front", marked(20))];
        let seen = rows(held.into_iter().chain(tasks).chain(users).collect());
        assert_eq!(seen[0].2, "2000 tasks: t0000, t0001, t0002 and 1997 more");
        assert_eq!(seen[1].2, "services s0000, s0001, s0002 and 1997 more");
    }

    #[test]
    fn a_service_that_cannot_be_read_holds_every_marked_network_back() {
        let broken = kv("/services/broken", vec![0xff]);
        let seen = rows(vec![broken, network("front", marked(10))]);
        assert_eq!(seen[0].2, "1 service that cannot be read");
    }
}
