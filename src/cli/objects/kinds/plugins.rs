//! Plugins, as the commands show them.

use jiff::Timestamp;

use super::{Kind, Shown, Words};
use crate::cli::objects::delete::{Deletable, used_by_volumes::DeleteUsed};
use crate::cli::objects::description;
use crate::cli::objects::view::View;
use crate::cli::output::{Column, one_line};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::Plugin;
use crate::store::object::change::{Codec, Of};
use crate::store::object::{Object, plugin, volume};
use crate::store::{Id, Keys};

/// The kind.
pub struct Plugins;

static WORDS: Words = Words {
    kind: Plugin::KIND,
    singular: "plugin",
    plural: "plugins",
    short: &[],
};

static CODEC: Of<Plugin> = Of::new();

static DELETE: DeleteUsed = DeleteUsed {
    singular: "plugin",
    key: Keys::plugin,
    uses: |volume, name| volume::driver(volume) == name,
};

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("ENDPOINT"),
    Column::new("CONCURRENCY"),
    Column::new("TIMEOUT"),
    Column::new("AGE"),
    Column::wide("UID"),
    Column::wide("LABELS"),
];

impl Kind for Plugins {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange> {
        match id {
            None => vec![keys.plugins()],
            Some(id) => vec![KeyRange::key(self.key(keys, id))],
        }
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        keys.plugin(&id.name)
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        keys.parse_plugin(key)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, _view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        Shown::object(COLUMNS, name, kv, now, |stored: &Plugin| {
            let cells = vec![
                one_line(plugin::endpoint(stored)),
                plugin::concurrency(stored).to_string(),
                plugin::timeout_text(stored),
            ];
            (cells, plugin::to_document(stored, kv.mod_revision))
        })
    }

    fn describe(&self, _view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        description::object(name, kv, now, |description, stored: Option<&Plugin>| {
            let Some(stored) = stored else { return };
            let calls = plugin::concurrency(stored);
            description
                .field(0, "Endpoint", plugin::endpoint(stored))
                .field(0, "Concurrency", format!("{calls} calls at a time"))
                .field(0, "Timeout", format!("{} a call", plugin::timeout_text(stored)));
        })
    }

    fn applied(&self) -> Option<&'static dyn Codec> {
        Some(&CODEC)
    }

    fn deleted(&self) -> Option<&'static dyn Deletable> {
        Some(&DELETE)
    }
}
