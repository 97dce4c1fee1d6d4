//! Deallocation on a real etcd, with the real program and with leaders of the library.

mod commands;
mod events;
mod faults;
mod history;
mod leaders;
mod malformed;
mod orphans;
mod random;
mod scenarios;

use std::ops::{Deref, DerefMut};

use futures::future::join_all;
use prost::Message;
use quorate::deallocator::act::{End, Outcome, act};
use quorate::deallocator::controller::Deallocator;
use quorate::deallocator::index::Index;
use quorate::deallocator::plan::{Action, Summary, plan};
use quorate::etcd::{Etcd, Fence, KeyRange, Revision, Stop, Txn};
use quorate::proto::task_status::State;
use quorate::proto::{Metadata, Network, Service, ServiceSpec, ServiceStatus, Task, TaskSpec, TaskStatus};
use quorate::store::writer::writer;
use quorate::store::{Follower, Name, Store};
use quorate::summary::Latest;
use quorate::term::Notices;

use crate::support::base::{Base, document};
use crate::support::leader::Leader;
use crate::support::wait::{SOON, eventually, same};

/// An etcd, a client of it, and the program on it, with what deallocation needs.
pub struct World(Base);

impl Deref for World {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.0
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Base {
        &mut self.0
    }
}

impl World {
    async fn start() -> Self {
        Self(Base::start().await)
    }

    /// Marks an object, such as `service/web`, for deletion.
    async fn mark(&self, id: &str) -> String {
        self.run(&["delete", id, "--yes"]).await.expect_done()
    }

    async fn put(&self, key: &str, value: impl Into<Vec<u8>>) -> Revision {
        self.commit(Txn::new().put(format!("/quorate{key}").as_bytes(), value))
            .await
    }

    async fn remove(&self, key: &str) -> Revision {
        self.commit(Txn::new().delete(format!("/quorate{key}").as_bytes()))
            .await
    }

    /// Puts a task, as the program that runs it does.
    async fn task(&self, id: &str, node: &str, state: State) -> Revision {
        self.put(&format!("/tasks/{id}"), task(id, node, state)).await
    }

    /// The keys of all services, networks and tasks, in order and without the prefix.
    async fn objects(&self) -> Vec<String> {
        let mut all = Vec::new();
        for kind in ["/quorate/networks/", "/quorate/services/", "/quorate/tasks/"] {
            let (keys, _) = self.store.etcd.list(&KeyRange::prefix(kind)).await.unwrap();
            all.extend(
                keys.iter()
                    .map(|kv| String::from_utf8_lossy(&kv.key)["/quorate".len()..].to_owned()),
            );
        }
        all
    }

    /// Waits until exactly these services, networks and tasks exist.
    async fn expect_objects(&self, expected: &[&str]) {
        let what = format!("the objects are {expected:?}");
        eventually(SOON, &what, async || {
            same(
                self.objects().await,
                expected.iter().map(ToString::to_string).collect::<Vec<_>>(),
            )
        })
        .await;
    }

    /// Waits until a service, network or task no longer exists.
    async fn expect_gone(&self, key: &str) {
        eventually(SOON, &format!("{key} is gone"), async || {
            match self.objects().await.iter().any(|there| there == key) {
                true => Err("it exists"),
                false => Ok(()),
            }
        })
        .await;
    }

    /// The mod revision of a key.
    async fn revision_of(&self, key: &str) -> Revision {
        let stored = self.read(format!("/quorate{key}").as_bytes()).await;
        stored.expect("the key exists").mod_revision
    }

    async fn leader(&self) -> Leader {
        deallocating(&self.store, "test").await
    }

    /// Waits until the leader has examined everything: it has deleted a service that was written after everything
    /// else.
    async fn settled(&self) {
        let sentinel = "/services/sentinel-of-the-test";
        let service = Service {
            metadata: Some(Metadata {
                name: "sentinel-of-the-test".to_owned(),
                ..Metadata::default()
            }),
            spec: Some(ServiceSpec::default()),
            status: Some(ServiceStatus {
                delete_requested: Some(prost_types::Timestamp::default()),
            }),
        };
        self.put(sentinel, service.encode_to_vec()).await;
        self.expect_gone(sentinel).await;
    }
}

/// What a leader would do now.
async fn decide(store: &Store) -> Vec<Action> {
    let mut index = Index::new(store.keys.clone());
    let mut follower = Follower::new(&store.etcd, store.keys.deallocator_range());
    while !index.synced().is_complete() {
        index.take_in(follower.next().await);
    }
    let actions = plan(&index, |_| false, usize::MAX);
    assert!(!actions.is_empty(), "there is nothing to do");
    actions
}

/// Carries out actions at the same time. Returns the outcome of each: `Done`, `Unneeded`, `Refused`, `Failed` or `LostLeadership`.
async fn attempt(store: &Store, fence: &Fence, actions: &[Action]) -> Vec<&'static str> {
    attempt_through(&store.etcd, store, fence, actions).await
}

/// The same, with the transactions over a connection of their own.
async fn attempt_through(etcd: &Etcd, store: &Store, fence: &Fence, actions: &[Action]) -> Vec<&'static str> {
    let (writer, transactions) = writer(etcd, fence);
    let acting = join_all(actions.iter().map(|action| act(store, &writer, action)));
    let outcomes = tokio::select! {
        outcomes = acting => outcomes,
        () = transactions => panic!("the writer ended before its units"),
    };
    let word = |outcome: Outcome| match outcome {
        Ok(End::Done(_)) => "Done",
        Ok(End::Unneeded(_)) => "Unneeded",
        Ok(End::Undone(_)) => "Undone",
        Err(Stop::Stale) => "Refused",
        Err(Stop::Unavailable(_)) => "Failed",
        Err(Stop::LostLeadership) => "LostLeadership",
    };
    outcomes.into_iter().map(word).collect()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn task(id: &str, node: &str, state: State) -> Vec<u8> {
    let (service, own) = id.split_once('/').unwrap();
    let task = Task {
        metadata: Some(Metadata {
            name: own.to_owned(),
            uid: "uid".to_owned(),
            ..Metadata::default()
        }),
        spec: Some(TaskSpec {
            service: service.to_owned(),
            node: node.to_owned(),
        }),
        status: Some(TaskStatus { state: state.into() }),
    };
    task.encode_to_vec()
}

/// The document of a service.
fn service(name: &str, spec: &str) -> String {
    document("Service", name, spec)
}

/// The document of a network.
fn network(name: &str) -> String {
    document("Network", name, "{}")
}

/// Has a leader deallocate.
fn deallocate(leader: &mut Leader) {
    let deallocator = Deallocator {
        store: leader.store.clone(),
        fence: leader.fence().clone(),
        notices: Notices::default(),
        summaries: Latest::default(),
    };
    leader.work(deallocator.run());
}

/// A leader in this process that deallocates and does nothing else.
async fn deallocating(store: &Store, name: &str) -> Leader {
    let mut leader = Leader::elect(store, name).await;
    deallocate(&mut leader);
    leader
}

fn decode_service(value: &[u8]) -> Option<Service> {
    Service::decode(value).ok()
}

fn decode_network(value: &[u8]) -> Option<Network> {
    Network::decode(value).ok()
}
