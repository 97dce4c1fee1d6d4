//! The Replica kind for commands: registrations of running controllers, and the election.

use std::collections::BTreeMap;

use super::{Affected, Kind, Shown, Words};
use crate::cli::objects::view::{Item, View};
use crate::cli::output::{Description, NONE, UNKNOWN, or_none, yes_no};
use crate::store::keys::{KeySpace, NodeKey};
use crate::store::object::replica::{self, Replica};
use crate::store::object::{Malformed, time};

/// The kind.
pub static REPLICAS: Kind = Kind {
    beside: |keys, _| vec![keys.candidates()],
    affected: |keys, key| match keys.parse_node(key) {
        NodeKey::Node(_) | NodeKey::Registration(_) => Affected::Nothing,
        // The key of a candidate affects the old leader and the new one.
        NodeKey::Other => Affected::All,
    },
    ..Kind::new(
        Words::new(replica::KIND, "replica", "replicas", &["rep"]),
        KeySpace::REGISTRATIONS,
        &["NAME", "RELEASE", "LEADER", "PROCESS", "REGISTERED"],
        &["VERSION", "LEASE"],
        show,
        describe,
        Err("a replica is listed for as long as its process runs"),
    )
};

/// The leader is the candidate whose key was created first. The value of that key is the leader's id.
fn leader(view: &View) -> Option<&[u8]> {
    let candidates = view.below(&view.keys.candidates());
    let leader = candidates.min_by_key(|kv| kv.create_revision);
    leader.map(|kv| kv.value.as_slice())
}

fn replica(item: &Item<'_>) -> Result<(Replica, bool), Malformed> {
    let replica = replica::decode(item.name, &item.stored.value)?;
    Ok((replica, leader(item.view) == Some(item.name.as_bytes())))
}

/// A registration without a lease outlives its process.
fn lease(item: &Item<'_>) -> String {
    item.stored
        .lease
        .map_or_else(|| NONE.to_owned(), |lease| lease.to_string())
}

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let (replica, leads) = replica(item)?;
    let registered = replica.registered_at.map(|at| time::age(at, item.now));
    let document = replica::to_document(&replica, item.revision(), leads);
    let cells = vec![
        replica.version.release.to_string(),
        yes_no(leads).to_owned(),
        replica.process,
        registered.unwrap_or_else(|| UNKNOWN.to_owned()),
        replica.version.to_string(),
        lease(item),
    ];
    Ok(Shown::new(BTreeMap::new(), cells, document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    match replica(item) {
        Ok((replica, leads)) => {
            description
                .field("Release", replica.version.release.to_string())
                .field("Version", replica.version.to_string())
                .field("Leader", yes_no(leads))
                .field("Process", or_none(&replica.process));
            if let Some(at) = replica.registered_at {
                description.field("Registered", time::since(at, item.now));
            }
        }
        Err(malformed) => description.malformed(item, &malformed),
    }
    description
        .field("Lease", lease(item))
        .field("Resource Version", item.revision().to_string());
}
