//! Networks, as the commands show them.

use std::marker::PhantomData;

use jiff::Timestamp;

use super::{Concerns, Kind, Shown, Words};
use crate::cli::objects::delete::Deletable;
use crate::cli::objects::delete::marked::DeleteMarked;
use crate::cli::objects::description;
use crate::cli::objects::pending::{self, NetworkUsers};
use crate::cli::objects::view::View;
use crate::cli::output::{Column, yes_no};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::Network;
use crate::store::keys::DeallocatorKey;
use crate::store::object::change::{Codec, Of};
use crate::store::object::mark::Marked;
use crate::store::object::{Object, network};
use crate::store::{Id, Keys, Name};

/// The kind.
pub struct Networks;

static WORDS: Words = Words {
    kind: Network::KIND,
    singular: "network",
    plural: "networks",
    short: &["net"],
};

static CODEC: Of<Network> = Of::new();

static DELETE: DeleteMarked<Network> = DeleteMarked {
    key: Keys::network,
    ranges: |keys, name| ranges(keys, Some(name)),
    blockers: |view, name| NetworkUsers::of(view).blockers(name.as_str()),
    condition: "it goes once no service uses it",
    kind: PhantomData,
};

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("SERVICES"),
    Column::new("DELETING"),
    Column::new("BLOCKERS"),
    Column::new("AGE"),
    Column::wide("UID"),
    Column::wide("LABELS"),
];

/// What holds a network back, if it is marked.
fn holding(users: &NetworkUsers, name: &str, network: &Network) -> Vec<String> {
    match network.is_marked() {
        true => users.blockers(name),
        false => Vec::new(),
    }
}

fn ranges(keys: &Keys, name: Option<&Name>) -> Vec<KeyRange> {
    let networks = match name {
        None => keys.networks(),
        Some(name) => KeyRange::key(keys.network(name)),
    };
    vec![networks, keys.services()]
}

impl Kind for Networks {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange> {
        ranges(keys, id.map(|id| &id.name))
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        keys.network(&id.name)
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        keys.parse_network(key)
    }

    fn concerns(&self, keys: &Keys, key: &[u8]) -> Concerns {
        match keys.parse_deallocator(key) {
            DeallocatorKey::Network(_) => Concerns::One(key.to_vec()),
            // It may have let go of any.
            DeallocatorKey::Service(_) => Concerns::All,
            DeallocatorKey::Task { .. } | DeallocatorKey::Node(_) | DeallocatorKey::Other => {
                Concerns::Nothing
            }
        }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        Shown::object(COLUMNS, name, kv, now, |network: &Network| {
            let users = NetworkUsers::of(view);
            let holding = holding(&users, name, network);
            let cells = vec![
                users.known(name).len().to_string(),
                yes_no(network.is_marked()).to_owned(),
                pending::cell(&holding),
            ];
            (cells, network::to_document(network, kv.mod_revision, &holding))
        })
    }

    fn describe(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        description::object(name, kv, now, |description, network: Option<&Network>| {
            let Some(network) = network else { return };
            let users = NetworkUsers::of(view);
            description.field(0, "Services", users.known(name).len().to_string());
            description.mark(network.mark(), now);
            description.blockers(&holding(&users, name, network));
        })
    }

    fn applied(&self) -> Option<&'static dyn Codec> {
        Some(&CODEC)
    }

    fn deleted(&self) -> Option<&'static dyn Deletable> {
        Some(&DELETE)
    }
}
