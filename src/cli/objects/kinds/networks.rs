//! Networks, as the commands show them.

use std::marker::PhantomData;

use jiff::Timestamp;

use super::{Concerns, Kind, Shown, Words};
use crate::cli::objects::blockers::{self, Users};
use crate::cli::objects::delete::Deletable;
use crate::cli::objects::delete::marked::DeleteMarked;
use crate::cli::objects::describe;
use crate::cli::objects::view::View;
use crate::cli::output::{Column, Description, one_line, or_none, pairs, yes_no};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::Network;
use crate::store::keys::InUse;
use crate::store::object::change::{Codec, Of};
use crate::store::object::mark::Marked;
use crate::store::object::{Object, decode, malformed_document, network, time};
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
    blockers: |view, name| Users::of(view).blockers(name.as_str()),
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
        match keys.parse_in_use(key) {
            InUse::Network(_) => Concerns::One(key.to_vec()),
            // It may have let go of any.
            InUse::Service(_) => Concerns::All,
            InUse::Task { .. } | InUse::Node(_) | InUse::Other => Concerns::Nothing,
        }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        let network: Network = match decode(name, &kv.value) {
            Ok(network) => network,
            Err(malformed) => {
                let document = malformed_document(Network::KIND, name, kv.mod_revision, &malformed);
                return Shown::malformed(document, name, COLUMNS, malformed.to_string());
            }
        };
        let metadata = network.metadata.clone().unwrap_or_default();
        let users = Users::of(view);
        let holding = match network.is_marked() {
            true => users.blockers(name),
            false => Vec::new(),
        };
        let cells = vec![
            one_line(name),
            users.known(name).len().to_string(),
            yes_no(network.is_marked()).to_owned(),
            blockers::cell(&holding),
            time::from_proto(metadata.creation_time.as_ref())
                .map_or_else(|| "<unknown>".to_owned(), |created| time::age(created, now)),
            one_line(or_none(&metadata.uid)),
            one_line(&pairs(&metadata.labels)),
        ];
        Shown {
            document: network::to_document(&network, kv.mod_revision, &holding),
            labels: metadata.labels,
            cells,
            malformed: None,
        }
    }

    fn describe(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        let mut description = Description::default();
        description.field(0, "Name", name).field(0, "Kind", Network::KIND);
        let users = Users::of(view);
        match decode::<Network>(name, &kv.value) {
            Ok(network) => {
                describe::metadata(
                    &mut description,
                    &network.metadata.clone().unwrap_or_default(),
                    kv,
                    now,
                );
                description.field(0, "Services", users.known(name).len().to_string());
                describe::mark(&mut description, network.mark(), now);
                let holding = match network.is_marked() {
                    true => users.blockers(name),
                    false => Vec::new(),
                };
                blockers::describe(&mut description, &holding);
            }
            Err(malformed) => describe::malformed(&mut description, kv, &malformed),
        }
        description.render()
    }

    fn applied(&self) -> Option<&'static dyn Codec> {
        Some(&CODEC)
    }

    fn deleted(&self) -> Option<&'static dyn Deletable> {
        Some(&DELETE)
    }
}
