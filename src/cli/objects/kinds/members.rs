//! Members of etcd, as the commands show them: etcd's own list, what each member says of itself, and the records that
//! tie them to nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Kind, Shown, Words};
use crate::cli::objects::view::View;
use crate::cli::output::{Column, Description, NONE, one_line, or_none, yes_no};
use crate::cli::roles::adopt;
use crate::etcd::members::ListedMember;
use crate::etcd::{KeyRange, KeyValue, MemberId};
use crate::store::object::{malformed_document, time};
use crate::store::{Id, Keys, keys::RoleKey};

mod detail;
mod seen;

use seen::{Seen, UNKNOWN, bytes, known};

/// The kind.
pub struct Members;

const KIND: &str = "Member";

static WORDS: Words = Words {
    kind: KIND,
    singular: "member",
    plural: "members",
    short: &["mem"],
};

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("ETCD NAME"),
    Column::new("NODE"),
    Column::new("ROLE"),
    Column::new("LEADER"),
    Column::new("HEALTH"),
    Column::new("VERSION"),
    Column::new("DB SIZE"),
    Column::new("LAG"),
    Column::new("ALARMS"),
    Column::wide("IN USE"),
    Column::wide("RAFT TERM"),
    Column::wide("PEER URLS"),
    Column::wide("CLIENT URLS"),
    Column::wide("JOINED"),
];

fn parse(keys: &Keys, key: &[u8]) -> Option<MemberId> {
    match keys.parse_role(key) {
        RoleKey::Member(id) => Some(id),
        _ => None,
    }
}

impl Kind for Members {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn ranges(&self, keys: &Keys, _id: Option<&Id>) -> Vec<KeyRange> {
        // All of them, also for one: how far it lags is seen beside the others.
        vec![keys.members()]
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        // What is no id is the name of none, and member 0 does not exist.
        let id = u64::from_str_radix(id.name.as_str(), 16).unwrap_or(0);
        keys.member(MemberId(id))
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        parse(keys, key)?;
        let text = std::str::from_utf8(key).ok()?;
        text.rsplit_once('/').map(|(_, id)| id)
    }

    fn locate(&self, view: &View, id: &Id) -> Vec<u8> {
        let key = self.key(&view.keys, id);
        if view.get(&key).is_some() {
            return key;
        }
        let named = view
            .members()
            .and_then(|members| adopt::find(&members.list, id.name.as_str()).first().copied());
        named.map_or(key, |member| view.keys.member(member.id))
    }

    fn looks_at_members(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        let id = parse(&view.keys, &kv.key).unwrap_or(MemberId(0));
        let seen = match Seen::new(view, id, kv) {
            Ok(seen) => seen,
            Err(malformed) => {
                let document = malformed_document(KIND, name, kv.mod_revision, &malformed);
                return Shown::malformed(document, name, COLUMNS, malformed.to_string());
            }
        };
        let status = seen.status();
        let listed = |pick: fn(&ListedMember) -> &[String]| {
            let urls = seen.listed.map_or(&[][..], pick);
            one_line(or_none(&urls.join(",")))
        };
        let joined = seen.record.as_ref().map(|record| {
            let joined = time::from_proto(record.joined_at.as_ref());
            joined.map_or_else(|| UNKNOWN.to_owned(), |joined| time::age(joined, now))
        });
        let cells = vec![
            one_line(name),
            one_line(or_none(seen.listed.map_or("", |listed| &listed.name))),
            one_line(or_none(seen.node())),
            seen.role().to_owned(),
            yes_no(seen.leads).to_owned(),
            seen.health().to_owned(),
            one_line(&known(status.map(|status| &status.version))),
            known(status.map(|status| bytes(status.db_size))),
            known(seen.lag),
            one_line(or_none(&seen.alarms.join(","))),
            known(status.map(|status| bytes(status.db_in_use))),
            known(status.map(|status| status.raft_term)),
            listed(|listed| &listed.peer_urls),
            listed(|listed| &listed.client_urls),
            joined.unwrap_or_else(|| NONE.to_owned()),
        ];
        Shown {
            labels: BTreeMap::new(),
            document: detail::document(&seen, kv.mod_revision),
            cells,
            malformed: None,
        }
    }

    fn describe(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        let mut description = Description::default();
        description.field(0, "Name", name).field(0, "Kind", KIND);
        let id = parse(&view.keys, &kv.key).unwrap_or(MemberId(0));
        match Seen::new(view, id, kv) {
            Ok(seen) => detail::describe(&mut description, &seen, now),
            Err(malformed) => description.malformed(kv, &malformed),
        }
        description.render()
    }
}
