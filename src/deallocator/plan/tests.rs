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

/// An index made key by key; each write is a revision of its own.
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

    /// Every step that is planned if none of them ends.
    fn steps(&self) -> Vec<Step> {
        let mut busy = Busy::default();
        std::iter::from_fn(|| {
            let step = plan(&self.index, &busy)?;
            busy.taken.extend(step.items());
            Some(step)
        })
        .collect()
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("n{number:03}")).collect()
}

fn text(steps: &[Step]) -> Vec<String> {
    steps.iter().map(ToString::to_string).collect()
}

#[test]
fn a_service_takes_the_networks_that_only_it_uses_along() {
    let (front, back) = ("front".to_owned(), "back".to_owned());
    let cluster = Cluster::new()
        .network("front")
        .network("back")
        .service("web", &[front, back.clone()]);
    assert_eq!(
        text(&cluster.steps()),
        ["marked and without tasks: service web; marked and unused: networks back, front"]
    );
    let cluster = cluster
        .put(b"/q/tasks/db/1".to_vec(), vec![0xff])
        .service("db", &[back]);
    assert_eq!(
        text(&cluster.steps()),
        ["marked and without tasks: service web; marked and unused: network front"],
        "db has a task, and uses back"
    );
}

#[test]
fn two_services_that_go_together_take_the_network_along_that_both_use() {
    let front = ["front".to_owned()];
    let cluster = Cluster::new()
        .network("front")
        .service("a", &front)
        .service("b", &front);
    assert_eq!(
        text(&cluster.steps()),
        ["marked and without tasks: services a, b; marked and unused: network front"]
    );
    let mut busy = Busy::default();
    busy.taken.insert(Item::Service("a".parse().unwrap()));
    let step = plan(&cluster.index, &busy).unwrap();
    assert_eq!(
        step.to_string(),
        "marked and without tasks: service b",
        "whether a goes is not known yet"
    );
}

#[test]
fn a_service_that_cannot_be_read_holds_every_network_and_no_service() {
    let cluster = Cluster::new()
        .network("front")
        .network("free")
        .service("web", &["front".to_owned()])
        .put(b"/q/services/bad".to_vec(), vec![0xff]);
    assert_eq!(text(&cluster.steps()), ["marked and without tasks: service web"]);
}

#[test]
fn no_transaction_has_more_than_128_compares() {
    let mut cluster = Cluster::new();
    for name in names(200) {
        cluster = cluster.network(&name);
    }
    for service in 0..200 {
        let networks: Vec<String> = names(200).into_iter().skip(service % 7).step_by(40).collect();
        cluster = cluster.service(&format!("s{service}"), &networks);
    }
    let steps = cluster.steps();
    assert!(steps.len() >= 4, "{} steps", steps.len());
    let mut services = 0;
    for step in &steps {
        let Step::Delete(batch) = step else {
            panic!("{step}")
        };
        let compares = 1 + 2 * batch.services.len() + batch.networks.len();
        assert!(compares <= 128, "{compares}");
        services += batch.services.len();
    }
    assert_eq!(services, 200, "each once");
}

#[test]
fn a_service_with_more_networks_than_a_transaction_takes_goes_with_as_many_as_fit() {
    let mut cluster = Cluster::new();
    for name in names(150) {
        cluster = cluster.network(&name);
    }
    let cluster = cluster.service("web", &names(150)).service("zzz", &[]);
    let Some(Step::Delete(batch)) = plan(&cluster.index, &Busy::default()) else {
        panic!("no deletion");
    };
    assert_eq!((batch.services.len(), batch.networks.len()), (1, 125));
}

#[test]
fn what_failed_together_goes_one_by_one() {
    let cluster = Cluster::new()
        .service("a", &[])
        .service("b", &[])
        .service("c", &[])
        .network("x");
    let mut busy = Busy::default();
    for name in ["a", "b"] {
        busy.alone.insert(Item::Service(name.parse().unwrap()));
    }
    let mut steps = Vec::new();
    while let Some(step) = plan(&cluster.index, &busy) {
        busy.taken.extend(step.items());
        steps.push(step);
    }
    assert_eq!(
        text(&steps),
        [
            "marked and without tasks: service a",
            "marked and without tasks: service b",
            "marked and without tasks: service c; marked and unused: network x",
        ]
    );
}

#[test]
fn nothing_is_planned_before_everything_is_known() {
    let mut index = Index::new(keys());
    assert_eq!(plan(&index, &Busy::default()), None);
    let cluster = Cluster::new().network("front");
    assert!(plan(&cluster.index, &Busy::default()).is_some());
    index = cluster.index;
    index.take_in(Update::Page {
        first: true,
        keys: Vec::new(),
    });
    assert_eq!(plan(&index, &Busy::default()), None, "while a list is read");
}
