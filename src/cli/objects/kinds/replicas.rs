//! Replicas of the controller, as the commands show them: registrations and the election.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Concerns, Kind, Shown, Words};
use crate::cli::objects::view::View;
use crate::cli::output::{Column, Description, one_line, or_none, yes_no};
use crate::etcd::{KeyRange, KeyValue};
use crate::store::object::{malformed_document, replica, time};
use crate::store::{Id, Keys, keys::NodeKey};

/// The kind.
pub struct Replicas;

static WORDS: Words = Words {
    kind: replica::KIND,
    singular: "replica",
    plural: "replicas",
    short: &["rep"],
};

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("RELEASE"),
    Column::new("LEADER"),
    Column::new("PROCESS"),
    Column::new("REGISTERED"),
    Column::wide("VERSION"),
    Column::wide("LEASE"),
];

/// The leader is the candidate whose key came to be first; the key's value is its id.
fn leader(view: &View) -> Option<&[u8]> {
    let election = view.keys.election().into_bytes();
    view.iter()
        .filter(|kv| kv.key.starts_with(&election))
        .min_by_key(|kv| kv.create_revision)
        .map(|kv| kv.value.as_slice())
}

impl Kind for Replicas {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange> {
        let registrations = match id {
            None => keys.nodes(),
            Some(id) => KeyRange::key(keys.registration(&id.name)),
        };
        vec![registrations, keys.candidates()]
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        keys.registration(&id.name)
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        match keys.parse_node(key) {
            NodeKey::Registration(name) => Some(name),
            NodeKey::Node(_) | NodeKey::Other => None,
        }
    }

    fn concerns(&self, keys: &Keys, key: &[u8]) -> Concerns {
        match keys.parse_node(key) {
            NodeKey::Registration(_) => Concerns::One(key.to_vec()),
            NodeKey::Node(_) => Concerns::Nothing,
            // A candidate's key: it concerns the old leader and the new one.
            NodeKey::Other => Concerns::All,
        }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        let replica = match replica::decode(name, &kv.value) {
            Ok(replica) => replica,
            Err(malformed) => {
                let document = malformed_document(replica::KIND, name, kv.mod_revision, &malformed);
                return Shown::malformed(document, name, COLUMNS, malformed.to_string());
            }
        };
        let leads = leader(view) == Some(name.as_bytes());
        let cells = vec![
            one_line(name),
            replica.version.release.to_string(),
            yes_no(leads).to_owned(),
            one_line(or_none(&replica.process)),
            replica
                .registered_at
                .map_or_else(|| "<unknown>".to_owned(), |since| time::age(since, now)),
            replica.version.to_string(),
            lease(kv),
        ];
        Shown {
            labels: BTreeMap::new(),
            document: replica::to_document(&replica, kv.mod_revision, leads),
            cells,
            malformed: None,
        }
    }

    fn describe(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        let mut description = Description::default();
        description.field(0, "Name", name).field(0, "Kind", replica::KIND);
        match replica::decode(name, &kv.value) {
            Ok(replica) => {
                let leads = leader(view) == Some(name.as_bytes());
                description
                    .field(0, "Release", replica.version.release.to_string())
                    .field(0, "Version", replica.version.to_string())
                    .field(0, "Leader", yes_no(leads))
                    .field(0, "Process", or_none(&replica.process));
                if let Some(since) = replica.registered_at {
                    description.field(0, "Registered", time::since(since, now));
                }
            }
            Err(malformed) => description.malformed(kv, &malformed),
        }
        description.field(0, "Lease", lease(kv));
        description.field(0, "Resource Version", kv.mod_revision.to_string());
        description.render()
    }
}

/// A registration without a lease outlives its process; the reader should notice.
fn lease(kv: &KeyValue) -> String {
    kv.lease
        .map_or_else(|| "<none>".to_owned(), |lease| lease.to_string())
}
