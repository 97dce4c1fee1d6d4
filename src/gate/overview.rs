//! The state of the controller at a glance, as `quorate status` and `quorate dev` show it. No decision reads it.

use std::collections::HashMap;

use prost::Message as _;
use serde::Deserialize;

use super::status::{Degraded, Status, StatusError};
use crate::etcd::Error;
use crate::etcd::election::{Candidate, candidates};
use crate::etcd::members::Alarm;
use crate::proto::{Applied, Node, Pause, Registration};
use crate::release::Version;
use crate::store::Store;
use crate::store::keys::NodeKey;
use crate::store::object::node::makes_ready;

/// The state of the controller in etcd. Its parts are read one after the other, not at one revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Overview {
    /// The candidates, the leader first.
    pub candidates: Vec<Candidate>,
    /// The status key; `None` if it is absent.
    pub status: Option<Result<Status, StatusError>>,
    /// What is wrong according to the leader, from `status.json`.
    pub degraded: Option<Degraded>,
    /// How many objects of the inventory were applied.
    pub applied: usize,
    /// How many objects the inventory holds.
    pub inventory: usize,
    /// Since when roles are paused, and why; `None` if they are not.
    pub roles_paused: Option<Pause>,
    /// Whether this is what single members hold, because etcd answers no linearizable read.
    pub quorum_lost: bool,
    /// The alarms that etcd has raised; `None` if it did not list them.
    pub alarms: Option<Vec<Alarm>>,
    /// The registered replicas by name, each with its version; `None` if its record cannot be parsed.
    pub replicas: Vec<(String, Option<Version>)>,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many of them are ready.
    pub ready_nodes: usize,
}

/// The one part of `status.json` that is stored nowhere else.
#[derive(Deserialize)]
struct DegradedOnly {
    degraded: Option<Degraded>,
}

impl Overview {
    /// Reads the state.
    ///
    /// # Errors
    /// [`Error`] if etcd did not answer.
    pub async fn read(store: &Store) -> Result<Self, Error> {
        let Store { etcd, keys } = store;
        let candidates = candidates(etcd, &keys.election()).await?;
        let (status, _) = etcd.get(&keys.status()).await?;
        let (status_json, _) = etcd.get(&keys.status_json()).await?;
        let degraded = status_json
            .and_then(|json| serde_json::from_slice::<DegradedOnly>(&json.value).ok())
            .and_then(|json| json.degraded);
        let (inventory, _) = etcd.list(&keys.all_inventory()).await?;
        let applied = inventory
            .iter()
            .filter(|kv| Applied::decode(&*kv.value).is_ok_and(|applied| !applied.uid.is_empty()));
        let (pause, _) = etcd.get(&keys.roles_pause()).await?;
        // A value that cannot be read pauses all the same.
        let roles_paused = pause.map(|kv| Pause::decode(&*kv.value).unwrap_or_default());
        let (alive, _) = etcd.list(&keys.all_alive()).await?;
        let alive: HashMap<&str, &[u8]> = alive
            .iter()
            .filter_map(|kv| Some((keys.parse_alive(&kv.key)?, &*kv.value)))
            .collect();
        let (mut replicas, mut nodes, mut ready_nodes) = (Vec::new(), 0, 0);
        let mut pages = etcd.pages(keys.nodes());
        while let Some(page) = pages.next().await? {
            for kv in &page {
                match keys.parse_node(&kv.key) {
                    NodeKey::Registration(name) => replicas.push((name.to_owned(), version(&kv.value))),
                    NodeKey::Node(name) => {
                        nodes += 1;
                        let session = alive.get(name);
                        ready_nodes += usize::from(session.is_some_and(|alive| is_ready(&kv.value, alive)));
                    }
                    NodeKey::Other => {}
                }
            }
        }
        Ok(Self {
            quorum_lost: etcd.config().serializable,
            alarms: etcd.alarms().await.ok(),
            candidates,
            status: status.map(|status| Status::decode(&status.value)),
            degraded,
            applied: applied.count(),
            inventory: inventory.len(),
            roles_paused,
            replicas,
            nodes,
            ready_nodes,
        })
    }

    /// The candidate that leads.
    pub fn leader(&self) -> Option<&Candidate> {
        self.candidates.first()
    }

    /// Candidates whose keys are on no lease, as after a plain put by hand. Such a key outlives its process.
    pub fn candidates_without_lease(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates
            .iter()
            .filter(|candidate| candidate.lease.is_none())
    }
}

fn version(registration: &[u8]) -> Option<Version> {
    let registration = Registration::decode(registration).ok()?;
    Version::from_proto(registration.version.as_ref()).ok()
}

fn is_ready(node: &[u8], alive: &[u8]) -> bool {
    let node = Node::decode(node).ok().and_then(|node| node.metadata);
    node.is_some_and(|node| makes_ready(alive, &node.uid))
}
