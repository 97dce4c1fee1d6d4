//! Secrets, as the commands show them: by name and keys. Their values are never printed.

use jiff::Timestamp;

use super::{Kind, Shown, Words};
use crate::cli::objects::delete::{Deletable, used_by_volumes::DeleteUsed};
use crate::cli::objects::description;
use crate::cli::objects::view::View;
use crate::cli::output::{Column, one_line, or_none};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::Secret;
use crate::store::object::change::{Codec, Of};
use crate::store::object::{Object, secret};
use crate::store::{Id, Keys};

/// The kind.
pub struct Secrets;

static WORDS: Words = Words {
    kind: Secret::KIND,
    singular: "secret",
    plural: "secrets",
    short: &[],
};

static CODEC: Of<Secret> = Of::new();

static DELETE: DeleteUsed = DeleteUsed {
    singular: "secret",
    key: Keys::secret,
    uses: |volume, name| {
        let secrets = volume.spec.iter().flat_map(|spec| &spec.secrets);
        secrets.into_iter().any(|entry| entry.secret == name)
    },
};

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("KEYS"),
    Column::new("AGE"),
    Column::wide("UID"),
    Column::wide("LABELS"),
];

fn keys_of(secret: &Secret) -> String {
    let keys: Vec<&str> = secret.data.keys().map(String::as_str).collect();
    one_line(or_none(&keys.join(",")))
}

impl Kind for Secrets {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange> {
        match id {
            None => vec![keys.secrets()],
            Some(id) => vec![KeyRange::key(self.key(keys, id))],
        }
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        keys.secret(&id.name)
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        keys.parse_secret(key)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, _view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        Shown::object(COLUMNS, name, kv, now, |stored: &Secret| {
            let document = secret::to_document(stored, kv.mod_revision);
            (vec![keys_of(stored)], document)
        })
    }

    fn describe(&self, _view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        description::object(name, kv, now, |description, stored: Option<&Secret>| {
            if let Some(stored) = stored {
                let keys = format!("{} (values are never shown)", keys_of(stored));
                description.field(0, "Keys", keys);
            }
        })
    }

    fn applied(&self) -> Option<&'static dyn Codec> {
        Some(&CODEC)
    }

    fn deleted(&self) -> Option<&'static dyn Deletable> {
        Some(&DELETE)
    }
}
