//! The state of the controller at a glance, as `quorate status` and `quorate dev` show it. No decision reads it.

use std::collections::{BTreeMap, HashMap};

use jiff::{SignedDuration, Timestamp};
use prost::Message as _;
use serde::Deserialize;

use super::status::{Degraded, Status, StatusError};
use crate::etcd::Error;
use crate::etcd::election::{Candidate, candidates};
use crate::etcd::members::Alarm;
use crate::proto::{Applied, Node, NodeCertificate, Pause, Registration, Role};
use crate::release::Version;
use crate::store::Store;
use crate::store::keys::{KeySpace, NodeKey};
use crate::store::object::node::makes_ready;
use crate::store::object::time;

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
    /// The addresses of the status pages of those that have one, by the name of the replica.
    pub pages: BTreeMap<String, String>,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many of them are ready.
    pub ready_nodes: usize,
    /// When the certificates of managers' members of etcd end, by the names of the nodes: of those that end within ten days.
    pub members_ending: Vec<(String, Timestamp)>,
}

/// A certificate of a member is shown this long before it ends. One of 30 days is replaced before 12 of them are over.
const ENDING: SignedDuration = SignedDuration::from_hours(10 * 24);

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
        let ends = ends_of_members(store).await?;
        let mut members_ending = Vec::new();
        let (mut replicas, mut pages, mut nodes, mut ready_nodes) = (Vec::new(), BTreeMap::new(), 0, 0);
        let mut lists = etcd.pages(keys.nodes());
        while let Some(list) = lists.next().await? {
            for kv in &list {
                match keys.parse_node(&kv.key) {
                    NodeKey::Registration(name) => {
                        let (version, page) = registered(&kv.value);
                        pages.extend(page.map(|page| (name.to_owned(), page)));
                        replicas.push((name.to_owned(), version));
                    }
                    NodeKey::Node(name) => {
                        nodes += 1;
                        let node = Node::decode(&*kv.value).unwrap_or_default();
                        let session = alive.get(name);
                        ready_nodes += usize::from(session.is_some_and(|alive| is_ready(&node, alive)));
                        members_ending.extend(end_of_member(&node, &ends).map(|end| (name.to_owned(), end)));
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
            pages,
            nodes,
            ready_nodes,
            members_ending,
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

/// The version of a replica and the address of its status page, as far as it has registered them.
fn registered(registration: &[u8]) -> (Option<Version>, Option<String>) {
    let registration = Registration::decode(registration).unwrap_or_default();
    let page = Some(registration.page).filter(|page| !page.is_empty());
    (Version::from_proto(registration.version.as_ref()).ok(), page)
}

fn is_ready(node: &Node, alive: &[u8]) -> bool {
    let metadata = node.metadata.as_ref();
    metadata.is_some_and(|metadata| makes_ready(alive, &metadata.uid))
}

/// When the certificates of members end that end soon, by the uids of their nodes.
async fn ends_of_members(store: &Store) -> Result<HashMap<String, Timestamp>, Error> {
    let Store { etcd, keys } = store;
    let (records, _) = etcd.list(&KeySpace::ETCD_CERTIFICATES.all(keys)).await?;
    let soon = Timestamp::now() + ENDING;
    let ends = records.iter().filter_map(|kv| {
        let uid = KeySpace::ETCD_CERTIFICATES.name(keys, &kv.key)?;
        let record = NodeCertificate::decode(&*kv.value).ok()?;
        let end = time::from_proto(record.not_after.as_ref())?;
        (end < soon).then(|| (uid.to_owned(), end))
    });
    Ok(ends.collect())
}

/// That of the member of this node, if the node is a manager: what others once had is of no use any more.
fn end_of_member(node: &Node, ends: &HashMap<String, Timestamp>) -> Option<Timestamp> {
    let is_manager = node.status.as_ref()?.role() == Role::Manager;
    ends.get(&node.metadata.as_ref()?.uid)
        .copied()
        .filter(|_| is_manager)
}
