//! The Tombstone kind: what a forced deletion of a volume may have left at the backend.

use serde_json::{Value, json};

use super::document::{document, given, present};
use super::{Object, publication, time, volume};
use crate::etcd::Revision;
use crate::proto::Tombstone;
use crate::store::Name;

impl Object for Tombstone {
    kind_with_metadata!("Tombstone");
}

/// The name of a tombstone of what cannot be read: another one each time. The others are named after the uid of what was
/// forgotten.
pub fn unreadable_name(volume: &Name) -> Name {
    let name = format!("unreadable-{}", uuid::Uuid::new_v4());
    name.parse().unwrap_or_else(|_| volume.clone())
}

/// The name that the volume had.
pub fn volume_name(tombstone: &Tombstone) -> &str {
    tombstone.volume.as_ref().map_or("", Object::name)
}

/// The nodes that the volume may still be published to, each with its node id.
pub fn left_published(tombstone: &Tombstone) -> Vec<(String, String)> {
    let publications = tombstone.publications.iter();
    let ids = publications.filter_map(|publication| {
        let node = publication.metadata.as_ref()?.name.clone();
        let id = publication.status.as_ref()?.csi_node_id.clone();
        (!id.is_empty()).then_some((node, id))
    });
    ids.collect()
}

/// The node ids that the volume was being unpublished from, although no publication stored them.
pub fn left_node_ids(tombstone: &Tombstone) -> &[String] {
    let status = tombstone
        .volume
        .as_ref()
        .and_then(|volume| volume.status.as_ref());
    status.map_or(&[][..], |status| &status.detach_node_ids)
}

/// Whether nothing but the volume itself may be left: by all stored records it is published nowhere.
pub fn is_volume_alone(tombstone: &Tombstone) -> bool {
    let is_published = !left_published(tombstone).is_empty() || !left_node_ids(tombstone).is_empty();
    !tombstone.keeps_volume && tombstone.unreadable.is_empty() && !is_published
}

/// What may be left of the volume at the backend, in words, with the names that the backend knows.
pub fn left_behind(tombstone: &Tombstone) -> String {
    let volume = tombstone.volume.clone().unwrap_or_default();
    let (status, uid) = (volume.status.clone().unwrap_or_default(), volume.uid());
    if !tombstone.unreadable.is_empty() {
        return "unknown: a stored value could not be read".to_owned();
    }
    if tombstone.keeps_volume {
        return "nothing but what it may still be published to".to_owned();
    }
    match (status.r#static, status.volume_id.as_str(), status.create) {
        (true, ..) => "nothing that Quorate created".to_owned(),
        (false, "", None) => "nothing: it was never created".to_owned(),
        (false, "", Some(create)) if create.refused => "nothing: the plugin refused to create it".to_owned(),
        (false, "", Some(_)) => format!("maybe a volume named {uid}, without a known id"),
        (false, id, _) => format!("the volume with id {id}, created under the name {uid}"),
    }
}

/// The document of a tombstone.
pub fn to_document(tombstone: &Tombstone, mod_revision: Revision) -> Value {
    let volume = tombstone.volume.as_ref();
    let publications = tombstone.publications.iter();
    let publications: Vec<Value> = publications
        .map(|gone| publication::to_document(gone, Revision::ABSENT))
        .collect();
    let unreadable: Vec<&String> = tombstone.unreadable.keys().collect();
    let forced_at = time::document(tombstone.forced_at.as_ref());
    let parts = present(json!({
        "volume": volume.map(|volume| volume::to_document(volume, Revision::ABSENT)),
        "publications": publications,
        "unreadable": given(&unreadable),
        "status": present(json!({"left": left_behind(tombstone), "forcedAt": forced_at})),
    }));
    document(Tombstone::KIND, tombstone.metadata.as_ref(), mod_revision, parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Metadata, Publication, PublicationStatus};

    /// INV-6: what could not be read may be a publication, and is not forgotten.
    #[test]
    fn a_tombstone_of_the_volume_alone_has_no_publication_and_nothing_that_could_not_be_read() {
        let published = |id: &str| Publication {
            metadata: Some(Metadata::default()),
            status: Some(PublicationStatus {
                csi_node_id: id.to_owned(),
                ..PublicationStatus::default()
            }),
            ..Publication::default()
        };
        let mut tombstone = Tombstone::default();
        tombstone.publications.push(published(""));
        assert!(is_volume_alone(&tombstone), "no call was made for it");
        tombstone.unreadable.insert("n1".to_owned(), vec![0xff]);
        assert!(!is_volume_alone(&tombstone));
        tombstone.unreadable.clear();
        let volume = tombstone.volume.get_or_insert_default();
        let strays = &mut volume.status.get_or_insert_default().detach_node_ids;
        strays.push("csi-n9".to_owned());
        assert!(!is_volume_alone(&tombstone));
        tombstone.volume = None;
        tombstone.publications.push(published("csi-n1"));
        assert!(!is_volume_alone(&tombstone));
    }
}
