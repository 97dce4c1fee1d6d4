//! Tombstones, as the commands show them: what forced deletions may have left at a backend.

use jiff::Timestamp;

use super::{Kind, Shown, Words, age_cell};
use crate::cli::objects::delete::{Deletable, tombstones::DeleteTombstone};
use crate::cli::objects::description;
use crate::cli::objects::view::View;
use crate::cli::output::{Column, NONE, one_line, or_none, pairs};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::Tombstone;
use crate::store::object::{Object, time, tombstone, volume};
use crate::store::{Id, Keys};

/// The kind.
pub struct Tombstones;

static WORDS: Words = Words {
    kind: Tombstone::KIND,
    singular: "tombstone",
    plural: "tombstones",
    short: &[],
};

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("VOLUME"),
    Column::new("DRIVER"),
    Column::new("VOLUME ID"),
    Column::new("NODES"),
    Column::new("AGE"),
    Column::wide("LABELS"),
];

fn driver_of(stored: &Tombstone) -> &str {
    stored.volume.as_ref().map_or("", volume::driver)
}

fn volume_id(stored: &Tombstone) -> &str {
    let status = stored.volume.as_ref().and_then(|volume| volume.status.as_ref());
    status.map_or("", |status| status.volume_id.as_str())
}

impl Kind for Tombstones {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange> {
        match id {
            None => vec![keys.tombstones()],
            Some(id) => vec![KeyRange::key(self.key(keys, id))],
        }
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        keys.tombstone(&id.name)
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        keys.parse_tombstone(key)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, _view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        Shown::decoded(COLUMNS, name, kv, |stored: &Tombstone, metadata| {
            let nodes: Vec<String> = tombstone::left_published(stored)
                .into_iter()
                .map(|(node, _)| node)
                .collect();
            let cells = vec![
                one_line(or_none(tombstone::volume_name(stored))),
                one_line(or_none(driver_of(stored))),
                one_line(or_none(volume_id(stored))),
                one_line(or_none(&nodes.join(","))),
                age_cell(stored.forced_at.as_ref(), now),
                one_line(&pairs(&metadata.labels)),
            ];
            (cells, tombstone::to_document(stored, kv.mod_revision))
        })
    }

    fn describe(&self, _view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        description::object(name, kv, now, |description, stored: Option<&Tombstone>| {
            let Some(stored) = stored else { return };
            let forced = time::from_proto(stored.forced_at.as_ref());
            let forced = forced.map_or_else(|| "<unknown>".to_owned(), |at| time::since(at, now));
            description
                .field(0, "Volume", or_none(tombstone::volume_name(stored)))
                .field(0, "Driver", or_none(driver_of(stored)))
                .field(0, "Forced", forced)
                .field(0, "Left Behind", tombstone::left_behind(stored));
            let published = tombstone::left_published(stored).into_iter();
            let published = published.map(|(node, id)| format!("maybe to node {node} (node id {id})"));
            description.list("Published", published, NONE);
        })
    }

    fn deleted(&self) -> Option<&'static dyn Deletable> {
        Some(&DeleteTombstone)
    }
}
