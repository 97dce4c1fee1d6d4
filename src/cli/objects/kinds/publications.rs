//! The Publication kind for commands: on which nodes volumes are or will be.

use super::{Kind, Shown, Words, age};
use crate::cli::objects::view::Item;
use crate::cli::output::{Description, or_none, pairs, yes_no};
use crate::proto::Publication;
use crate::store::keys::KeySpace;
use crate::store::object::publication::{reads_only_next, shown_state, to_document};
use crate::store::object::volume::format_bytes;
use crate::store::object::{Malformed, Object};
use crate::volumes::record::blocked;

/// The kind.
pub static PUBLICATIONS: Kind = Kind {
    owned: Some("VOLUME/NODE"),
    ..Kind::new(
        Words::new(Publication::KIND, "publication", "publications", &["pub"]),
        KeySpace::PUBLICATIONS,
        &["NAME", "STATE", "READ ONLY", "BLOCKED", "AGE"],
        &["NODE ID"],
        show,
        describe,
        Err("quorate unpublish VOLUME NODE ends one"),
    )
};

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let publication: Publication = item.object()?;
    let document = to_document(&publication, item.revision());
    let state = shown_state(&publication).to_owned();
    let metadata = publication.metadata.unwrap_or_default();
    let read_only = publication.spec.unwrap_or_default().read_only;
    let status = publication.status.unwrap_or_default();
    let blocked = blocked(&status.conditions).map(|condition| condition.reason.clone());
    let cells = vec![
        state,
        yes_no(read_only).to_owned(),
        blocked.unwrap_or_default(),
        age(metadata.creation_time.as_ref(), item.now),
        status.csi_node_id,
    ];
    Ok(Shown::new(metadata.labels, cells, document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    let Some(publication) = description.object::<Publication>(item) else {
        return;
    };
    let state = shown_state(&publication);
    let spec = publication.spec.unwrap_or_default();
    let again = match (spec.again, reads_only_next(&spec)) {
        (false, _) => "no",
        (true, false) => "yes",
        (true, true) => "yes, for reading only",
    };
    let status = publication.status.unwrap_or_default();
    description
        .field("State", state)
        .field("Read Only", yes_no(spec.read_only))
        .field("Publish Again", again)
        .field("Node ID", or_none(&status.csi_node_id))
        .field("Context", pairs(&status.publish_context));
    if status.expanded_bytes > 0 {
        description.field("Expanded To", format_bytes(status.expanded_bytes));
    }
    description.conditions(&status.conditions, item.now);
}
