//! The nodes that volumes are published to, read once for all nodes that a command deletes.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use tokio::sync::Mutex;

use crate::cli::exit::Failure;
use crate::etcd::{KeyValue, Revision};
use crate::proto::Publication;
use crate::store::object::publication::node_uid;
use crate::store::{Keys, Name, Store};

/// How often a command reads all publications. Where they are made faster than they are read, what was read is out of date
/// whenever it is compared.
const MOST_READS: u32 = 3;

/// Every publication, read for the first node that a command deletes, and again after a conflict.
#[derive(Default)]
pub struct Publications(Mutex<Snapshot>);

#[derive(Default)]
struct Snapshot {
    reads: u32,
    read_at: Revision,
    nodes: BTreeMap<String, PublishedTo>,
}

/// The publications to the nodes of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedTo {
    /// The revision at which they were read.
    pub read_at: Revision,
    /// The uids that they were made for.
    pub uids: BTreeSet<String>,
    /// Whether there may be others.
    is_unknown: bool,
}

impl PublishedTo {
    /// Whether a volume may be published to the node of this uid. Where it is not known, it may be (INV-12).
    pub fn may_have(&self, uid: &str) -> bool {
        self.is_unknown || self.uids.contains(uid)
    }
}

/// What a command reads once for all its objects, as it must be for one of them.
#[derive(Clone, Copy)]
pub struct Reads<'a> {
    /// What was read so far.
    pub publications: &'a Publications,
    /// It must be as new as this.
    pub since: Revision,
}

impl Reads<'_> {
    /// The publications to the nodes of this name.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn published_to(&self, store: &Store, name: &Name) -> Result<PublishedTo, Failure> {
        let mut seen = self.publications.0.lock().await;
        let is_due = seen.reads == 0 || seen.read_at < self.since;
        let is_read = is_due && seen.reads < MOST_READS;
        if is_read {
            let (publications, read_at) = store.etcd.list(&store.keys.publications()).await?;
            *seen = Snapshot {
                reads: seen.reads + 1,
                read_at,
                nodes: by_node(&store.keys, &publications),
            };
        }
        let mut to = seen.nodes.get(name.as_str()).cloned().unwrap_or_default();
        to.read_at = seen.read_at;
        to.is_unknown |= is_due && !is_read;
        Ok(to)
    }
}

fn by_node(keys: &Keys, publications: &[KeyValue]) -> BTreeMap<String, PublishedTo> {
    let mut nodes: BTreeMap<String, PublishedTo> = BTreeMap::new();
    for kv in publications {
        let id = keys.parse_publication(&kv.key);
        let Some((_, node)) = id.and_then(|id| id.split_once('/')) else {
            continue;
        };
        let to = nodes.entry(node.to_owned()).or_default();
        // Also one that is faulty here, as a newer release may write it.
        match Publication::decode(&*kv.value) {
            Ok(publication) => _ = to.uids.insert(node_uid(&publication).to_owned()),
            Err(_) => to.is_unknown = true,
        }
    }
    nodes
}
