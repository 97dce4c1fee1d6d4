//! Publications, as the commands show them: where volumes are, or are to be.

use jiff::Timestamp;

use super::{Kind, Shown, Words, age_cell};
use crate::cli::objects::description;
use crate::cli::objects::view::View;
use crate::cli::output::{Column, NONE, one_line, or_none, pairs, yes_no};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::Publication;
use crate::store::object::Object;
use crate::store::object::publication::{state, state_word, to_document};
use crate::store::{Id, Keys};
use crate::volumes::record::blocked;

/// The kind.
pub struct Publications;

static WORDS: Words = Words {
    kind: Publication::KIND,
    singular: "publication",
    plural: "publications",
    short: &["pub"],
};

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("STATE"),
    Column::new("READ ONLY"),
    Column::new("BLOCKED"),
    Column::new("AGE"),
    Column::wide("NODE ID"),
];

impl Kind for Publications {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn is_owned(&self) -> bool {
        true
    }

    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange> {
        match id {
            None => vec![keys.publications()],
            Some(id) => vec![KeyRange::key(self.key(keys, id))],
        }
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        // Every id of this kind was parsed with an owner.
        keys.publication(id.owner.as_ref().unwrap_or(&id.name), &id.name)
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        keys.parse_publication(key)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, _view: &View, id: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        Shown::decoded(COLUMNS, id, kv, |publication: &Publication, metadata| {
            let spec = publication.spec.clone().unwrap_or_default();
            let status = publication.status.clone().unwrap_or_default();
            let cells = vec![
                state_word(state(publication)).to_owned(),
                yes_no(spec.read_only).to_owned(),
                blocked(&status.conditions)
                    .map_or_else(|| NONE.to_owned(), |condition| one_line(&condition.reason)),
                age_cell(metadata.creation_time.as_ref(), now),
                one_line(or_none(&status.csi_node_id)),
            ];
            (cells, to_document(publication, kv.mod_revision))
        })
    }

    fn describe(&self, _view: &View, id: &str, kv: &KeyValue, now: Timestamp) -> String {
        description::object(id, kv, now, |description, publication: Option<&Publication>| {
            let Some(publication) = publication else { return };
            let spec = publication.spec.clone().unwrap_or_default();
            let status = publication.status.clone().unwrap_or_default();
            description
                .field(0, "State", state_word(state(publication)))
                .field(0, "Read Only", yes_no(spec.read_only))
                .field(0, "Publish Again", yes_no(spec.again))
                .field(0, "Node ID", or_none(&status.csi_node_id))
                .field(0, "Context", pairs(&status.publish_context));
            description.conditions(&status.conditions, now);
        })
    }
}
