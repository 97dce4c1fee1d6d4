//! The Publication kind: a volume that is published to a node, or requested there. Commands request it; `apply` does not
//! accept it.

use serde_json::{Value, json};

use super::document::{document, given, present};
use super::fields::Fault;
use super::words::word;
use super::{Object, condition};
use crate::etcd::Revision;
use crate::proto::publication_status::State;
use crate::proto::{Publication, PublicationSpec};

const STATES: &[(&str, State)] = &[
    ("pendingPublish", State::PendingPublish),
    ("published", State::Published),
    ("pendingNodeUnpublish", State::PendingNodeUnpublish),
    ("pendingUnpublish", State::PendingUnpublish),
];

impl Object for Publication {
    kind_with_metadata!("Publication");

    fn owner(&self) -> Option<&str> {
        Some(self.spec.as_ref().map_or("", |spec| spec.volume.as_str()))
    }

    fn check(&self) -> Result<(), Fault> {
        Fault::check_name("metadata.name", self.name())?;
        match state(self) {
            State::Unspecified => Err(Fault::new("status.state", "unset, or of a later release")),
            State::PendingPublish
            | State::Published
            | State::PendingNodeUnpublish
            | State::PendingUnpublish => Ok(()),
        }
    }
}

/// The state of the publication.
pub fn state(publication: &Publication) -> State {
    publication
        .status
        .as_ref()
        .map_or(State::Unspecified, |status| status.state())
}

/// Whether the volume is published to the node, and no call for that has yet to succeed.
pub fn is_published(publication: &Publication) -> bool {
    let status = publication.status.as_ref();
    status.is_some_and(|status| status.state() == State::Published && !status.unrecorded)
}

/// Whether the node has the volume, so that the node can confirm what it has done there.
pub fn is_on_node(publication: &Publication) -> bool {
    matches!(state(publication), State::Published | State::PendingNodeUnpublish)
}

/// The node id that the volume was published with, or that a call may have used.
pub fn stored_node_id(publication: &Publication) -> &str {
    let status = publication.status.as_ref();
    status.map_or("", |status| &status.csi_node_id)
}

/// The node id of a publication of which a call to publish the volume there, or to unpublish it, may be under way. A node may use what
/// is published: no call for that may take it away (INV-12).
pub fn undecided_node_id(publication: &Publication) -> Option<&str> {
    let is_undecided = matches!(
        state(publication),
        State::PendingPublish | State::PendingUnpublish
    );
    Some(stored_node_id(publication)).filter(|id| is_undecided && !id.is_empty())
}

/// The uid of the node that it was made for; empty if the record names none.
pub fn node_uid(publication: &Publication) -> &str {
    publication.spec.as_ref().map_or("", |spec| &spec.node_uid)
}

/// The state's word, such as `pendingPublish`; empty if the state is unset or only a later release knows it.
pub fn state_word(state: State) -> &'static str {
    word(STATES, &state)
}

/// The state's word for people, which says too whether a call has yet to succeed for what is published by the record.
pub fn shown_state(publication: &Publication) -> &'static str {
    match state(publication) {
        State::Published if !is_published(publication) => "published (unrecorded)",
        state => state_word(state),
    }
}

/// Whether the node only reads once it is published again.
pub fn reads_only_next(spec: &PublicationSpec) -> bool {
    spec.again_read_only.unwrap_or(spec.read_only)
}

/// Whether the node may write the volume, now or once it is published again.
pub fn may_write(publication: &Publication) -> bool {
    let spec = publication.spec.as_ref();
    spec.is_none_or(|spec| !spec.read_only || (spec.again && !reads_only_next(spec)))
}

/// The document of a publication.
pub fn to_document(publication: &Publication, mod_revision: Revision) -> Value {
    let spec = publication.spec.clone().unwrap_or_default();
    let status = publication.status.clone().unwrap_or_default();
    let spec = json!({
        "volume": spec.volume,
        "readOnly": spec.read_only,
        "again": given(&spec.again),
        "againReadOnly": spec.again_read_only,
    });
    let status = json!({
        "state": state_word(state(publication)),
        "unrecorded": given(&status.unrecorded),
        "nodeID": status.csi_node_id,
        "publishContext": given(&status.publish_context),
        "expandedBytes": given(&status.expanded_bytes),
        "conditions": condition::documents(&status.conditions),
    });
    let parts = json!({"spec": present(spec), "status": present(status)});
    document(
        Publication::KIND,
        publication.metadata.as_ref(),
        mod_revision,
        parts,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::PublicationStatus;

    #[test]
    fn what_a_call_has_yet_to_publish_is_not_published_and_every_view_says_so() {
        let of = |state: State, unrecorded| Publication {
            status: Some(PublicationStatus {
                state: state.into(),
                unrecorded,
                ..PublicationStatus::default()
            }),
            ..Publication::default()
        };
        for (publication, published, shown) in [
            (of(State::Published, false), true, "published"),
            (of(State::Published, true), false, "published (unrecorded)"),
            (of(State::PendingUnpublish, true), false, "pendingUnpublish"),
            (Publication::default(), false, ""),
        ] {
            assert_eq!(
                (is_published(&publication), shown_state(&publication)),
                (published, shown)
            );
        }
        let document = to_document(&of(State::Published, true), Revision(1));
        assert_eq!(document["status"]["state"], "published");
        assert_eq!(document["status"]["unrecorded"], true);
        let document = to_document(&of(State::Published, false), Revision(1));
        assert!(document["status"].get("unrecorded").is_none(), "{document}");
    }
}
