//! The Publication kind: that a volume is, or is to be, published to a node. Commands ask for it, nobody applies it.

use serde_json::{Map, Value, json};

use super::fields::Fault;
use super::{Object, condition, document};
use crate::etcd::Revision;
use crate::proto::publication_status::State;
use crate::proto::{Metadata, Publication};
use crate::store::keys::Name;

const STATES: &[(&str, State)] = &[
    ("pendingPublish", State::PendingPublish),
    ("published", State::Published),
    ("pendingNodeUnpublish", State::PendingNodeUnpublish),
    ("pendingUnpublish", State::PendingUnpublish),
];

impl Object for Publication {
    const KIND: &'static str = "Publication";

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    fn metadata_mut(&mut self) -> &mut Metadata {
        self.metadata.get_or_insert_default()
    }

    fn owner(&self) -> Option<&str> {
        Some(self.spec.as_ref().map_or("", |spec| spec.volume.as_str()))
    }

    fn check(&self) -> Result<(), Fault> {
        let name = self
            .metadata
            .as_ref()
            .map_or("", |metadata| metadata.name.as_str());
        name.parse::<Name>()
            .map_err(|error| Fault::new("metadata.name", error.to_string()))?;
        match state(self) {
            State::Unspecified => Err(Fault::new("status.state", "unset, or of a later release")),
            State::PendingPublish
            | State::Published
            | State::PendingNodeUnpublish
            | State::PendingUnpublish => Ok(()),
        }
    }
}

/// How far it is.
pub fn state(publication: &Publication) -> State {
    publication
        .status
        .as_ref()
        .map_or(State::Unspecified, |status| status.state())
}

/// `pendingPublish` and so on.
pub fn state_word(state: State) -> &'static str {
    let found = STATES.iter().find(|(_, candidate)| *candidate == state);
    found.map_or("", |(word, _)| *word)
}

/// The document of a publication.
pub fn to_document(publication: &Publication, mod_revision: Revision) -> Value {
    let stored = publication.spec.clone().unwrap_or_default();
    let mut spec = Map::from_iter([
        ("volume".to_owned(), json!(stored.volume)),
        ("readOnly".to_owned(), json!(stored.read_only)),
    ]);
    if stored.again {
        spec.insert("again".to_owned(), json!(true));
    }
    let stored = publication.status.clone().unwrap_or_default();
    let mut status = Map::from_iter([
        ("state".to_owned(), json!(state_word(state(publication)))),
        ("nodeID".to_owned(), json!(stored.csi_node_id)),
    ]);
    if !stored.publish_context.is_empty() {
        status.insert("publishContext".to_owned(), json!(stored.publish_context));
    }
    if !stored.conditions.is_empty() {
        status.insert("conditions".to_owned(), condition::documents(&stored.conditions));
    }
    let parts = [("spec", spec), ("status", status)];
    let parts = parts
        .into_iter()
        .map(|(name, fields)| (name.to_owned(), Value::Object(fields)));
    document(
        Publication::KIND,
        publication.metadata.as_ref(),
        mod_revision,
        parts.collect(),
    )
}
