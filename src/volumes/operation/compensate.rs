//! What is at the backend and in no record.

use crate::proto::{Tombstone, Volume};
use crate::store::Name;
use crate::store::object::Object;
use crate::store::object::publication::stored_node_id;
use crate::store::object::volume::{backend_id, is_attempted};
use crate::volumes::index::Index;

/// A result of a call that its record did not take. It is undone at the backend once that record is gone (INV-6: no backend
/// volume is forgotten).
#[derive(Clone, Debug)]
pub struct Compensation {
    /// The record as it would be, with the volume's id.
    pub volume: Volume,
    /// The publication to undo; `None` deletes the volume.
    pub publication: Option<PublishedTo>,
}

/// A publication that a call made.
#[derive(Clone, Debug)]
pub struct PublishedTo {
    /// The node of the publication's record.
    pub node: Name,
    /// The uid of that record.
    pub uid: String,
    /// The node id of the call.
    pub csi_node_id: String,
}

/// Whether the records hold what a call made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// They do: what follows is planned from them.
    Recorded,
    /// The record cannot be read, and may hold it: nothing is undone (INV-12).
    Unreadable,
    /// They do not.
    Gone,
}

impl Compensation {
    /// What an earlier leader has begun to undo, by the tombstone of a volume, with the name that the volume had.
    pub fn left_by(tombstone: &Tombstone) -> Vec<(Name, Self)> {
        let Some(volume) = &tombstone.volume else {
            return Vec::new();
        };
        let Ok(name) = volume.name().parse::<Name>() else {
            return Vec::new();
        };
        let left = tombstone.undoing.iter().filter_map(|undo| {
            let mut volume = volume.clone();
            let status = volume.status.get_or_insert_default();
            status.volume_id.clone_from(&undo.volume_id);
            let publication = match undo.csi_node_id.as_str() {
                "" => None,
                csi_node_id => Some(PublishedTo {
                    node: undo.node.parse().ok()?,
                    uid: undo.publication_uid.clone(),
                    csi_node_id: csi_node_id.to_owned(),
                }),
            };
            Some((name.clone(), Self { volume, publication }))
        });
        left.collect()
    }

    /// Whether the records of the volume `name` hold the result by now, or those of another name, under which it was taken
    /// back or in.
    pub fn held(&self, index: &Index, name: &Name) -> Held {
        match self.held_by(index, name) {
            Held::Gone => self.claimed(index),
            held => held,
        }
    }

    /// The publication, where a record leads to its volume: the plan undoes it once that says so.
    pub fn to_record(&self, index: &Index) -> Option<&PublishedTo> {
        index.leading_to(&self.volume)?;
        self.publication.as_ref()
    }

    /// Whether a record of any name has what would be undone.
    fn claimed(&self, index: &Index) -> Held {
        let mut held = Held::Gone;
        for name in index.claiming(&self.volume) {
            let (has, is_unreadable) = match &self.publication {
                None => match index.volume(&name) {
                    Some(Ok(volume)) => (is_found(&volume), false),
                    Some(Err(_)) => (false, true),
                    None => (false, false),
                },
                Some(made) => (
                    index.node_ids(&name).contains(&made.csi_node_id),
                    index.is_unreadable(&name),
                ),
            };
            if has {
                return Held::Recorded;
            }
            if is_unreadable {
                held = Held::Unreadable;
            }
        }
        held
    }

    fn held_by(&self, index: &Index, name: &Name) -> Held {
        match &self.publication {
            None => held(index.volume(name), |volume| {
                volume.uid() == self.volume.uid() && is_found(volume)
            }),
            Some(made) => {
                // Without its volume, it is one of a put-back that is under way, and may be given up.
                let has_volume = index.with_uid(self.volume.uid()).as_ref() == Some(name);
                held(index.publication(name, &made.node), |publication| {
                    let is_this = publication.uid() == made.uid;
                    has_volume && is_this && stored_node_id(publication) == made.csi_node_id
                })
            }
        }
    }
}

/// Whether the record leads to the volume at the backend. With the intent, the same volume is found again, and is not
/// forgotten.
fn is_found(volume: &Volume) -> bool {
    is_attempted(volume) || !backend_id(volume).is_empty()
}

fn held<O, E>(record: Option<Result<O, E>>, has: impl Fn(&O) -> bool) -> Held {
    match record {
        Some(Err(_)) => Held::Unreadable,
        Some(Ok(object)) if has(&object) => Held::Recorded,
        Some(Ok(_)) | None => Held::Gone,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::etcd::KeyValue;
    use crate::proto::publication_status::State;
    use crate::proto::{Metadata, Publication, PublicationSpec, PublicationStatus};
    use crate::store::Keys;

    /// INV-6: the command that puts a volume back may be interrupted before it puts back the volume itself.
    #[test]
    fn a_publication_that_is_put_back_without_its_volume_holds_no_result() {
        let (keys, name) = (Keys::new("/q".parse().unwrap()), "data".parse::<Name>().unwrap());
        let node: Name = "n1".parse().unwrap();
        let metadata = |name: &Name, uid: &str| {
            Some(Metadata {
                name: name.to_string(),
                uid: uid.to_owned(),
                ..Metadata::default()
            })
        };
        let volume = Volume {
            metadata: metadata(&name, "uid-1"),
            ..Volume::default()
        };
        let publication = Publication {
            metadata: metadata(&node, "uid-2"),
            spec: Some(PublicationSpec {
                volume: name.to_string(),
                ..PublicationSpec::default()
            }),
            status: Some(PublicationStatus {
                state: State::PendingPublish.into(),
                csi_node_id: "csi-n1".to_owned(),
                ..PublicationStatus::default()
            }),
        };
        let compensation = Compensation {
            volume: volume.clone(),
            publication: Some(PublishedTo {
                node: node.clone(),
                uid: "uid-2".to_owned(),
                csi_node_id: "csi-n1".to_owned(),
            }),
        };
        let mut index = Index::new(keys.clone());
        let mut note = |key: Vec<u8>, value: Vec<u8>| {
            let record = KeyValue::written_at(key, value, 1);
            index.note(&record.key, Ok(&record));
            compensation.held(&index, &name)
        };
        let put_back = note(keys.publication(&name, &node), publication.encode_to_vec());
        assert_eq!(put_back, Held::Gone);
        assert_eq!(note(keys.volume(&name), volume.encode_to_vec()), Held::Recorded);
    }
}
