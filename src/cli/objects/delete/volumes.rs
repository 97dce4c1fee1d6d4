//! Deleting volumes: a mark, which the leader follows, or by force at once, with a tombstone.

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use prost::Message;

use super::{Deletable, Deletion, EndsLater};
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::pending;
use crate::cli::objects::view::View;
use crate::etcd::{KeyRange, KeyValue, Revision, Txn};
use crate::proto::{Metadata, Publication, Tombstone, Volume};
use crate::store::object::mark::Marked;
use crate::store::object::publication::{state, state_word};
use crate::store::object::{Object, decode, time, tombstone};
use crate::store::{Id, Keys, Name, Store};

/// The kind, as `delete` sees it.
pub struct DeleteVolume;

impl Deletable for DeleteVolume {
    fn plan<'a>(
        &'a self,
        store: &'a Store,
        id: &'a Id,
        force: bool,
    ) -> BoxFuture<'a, Result<Deletion, Failure>> {
        async move {
            let key = store.keys.volume(&id.name);
            let stored = super::read(store, &key).await?;
            let range = store.keys.publications_of(&id.name);
            let (publications, read_at) = store.etcd.list(&range).await.map_err(Failure::failed)?;
            if force {
                return Ok(force_deletion(
                    &store.keys,
                    &id.name,
                    &stored,
                    &publications,
                    read_at,
                ));
            }
            let volume = decode::<Volume>(id.name.as_str(), &stored.value)
                .map_err(|malformed| super::malformed(&malformed))?;
            if volume.is_marked() {
                return Ok(Deletion {
                    statement: format!("volume/{id} is marked for deletion already"),
                    outcome: "is marked for deletion already",
                    txn: None,
                });
            }
            if !publications.is_empty() {
                return Err(published(&store.keys, id, &publications));
            }
            let mut after = volume;
            *after.mark_mut() = Some(time::to_proto(Timestamp::now()));
            Ok(Deletion {
                statement: format!(
                    "volume/{id} is marked for deletion, which cannot be taken back; it is deleted at its backend, \
                     and what is in it is lost"
                ),
                outcome: "marked for deletion",
                // From here on no publication can be added: whoever does compares the volume (INV-6).
                txn: Some(
                    Txn::new()
                        .when_unchanged(&key, stored.mod_revision)
                        .when_range_empty(&range)
                        .put(&key, after.encode_to_vec()),
                ),
            })
        }
        .boxed()
    }

    fn ends_later(&self) -> Option<&dyn EndsLater> {
        Some(self)
    }
}

fn published(keys: &Keys, id: &Id, publications: &[KeyValue]) -> Failure {
    let nodes: Vec<String> = publications
        .iter()
        .map(|kv| {
            let id = keys.parse_publication(&kv.key).unwrap_or_default();
            let node = id.split_once('/').map_or(id, |(_, node)| node);
            match decode::<Publication>(id, &kv.value) {
                Ok(publication) => format!("{node} ({})", state_word(state(&publication))),
                Err(_) => format!("{node} (malformed)"),
            }
        })
        .collect();
    let why = format!(
        "refused by rule Published: it is published to {}",
        nodes.join(", ")
    );
    Failure::new(Exit::Refused, why).hint(format!(
        "quorate unpublish {id} NODE first, or --force: that deletes the record alone, and leaves a tombstone"
    ))
}

/// The records go, and a tombstone says what may be left at the backend (INV-6: no backend volume is forgotten).
fn force_deletion(
    keys: &Keys,
    name: &Name,
    stored: &KeyValue,
    publications: &[KeyValue],
    read_at: Revision,
) -> Deletion {
    let now = Timestamp::now();
    let mut left = Tombstone {
        forced_at: Some(time::to_proto(now)),
        ..Tombstone::default()
    };
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    match decode::<Volume>(name.as_str(), &stored.value) {
        Ok(volume) => left.volume = Some(volume),
        Err(_) => {
            left.unreadable.insert(text(&stored.key), stored.value.clone());
        }
    }
    for kv in publications {
        let id = keys.parse_publication(&kv.key).unwrap_or_default();
        match decode::<Publication>(id, &kv.value) {
            Ok(publication) => left.publications.push(publication),
            Err(_) => {
                left.unreadable.insert(text(&kv.key), kv.value.clone());
            }
        }
    }
    let uid = left.volume.as_ref().and_then(|volume| volume.metadata.as_ref());
    let uid = uid.and_then(|metadata| metadata.uid.parse::<Name>().ok());
    // A volume that cannot be read has a tombstone of its own name and time.
    let uid = uid.or_else(|| format!("unreadable-{}", now.as_second()).parse().ok());
    let uid = uid.unwrap_or_else(|| name.clone());
    left.metadata = Some(Metadata {
        name: uid.to_string(),
        uid: uid.to_string(),
        creation_time: Some(time::to_proto(now)),
        generation: 1,
        ..Metadata::default()
    });
    let range = keys.publications_of(name);
    let key = keys.volume(name);
    let txn = Txn::new()
        .when_unchanged(&key, stored.mod_revision)
        .when_range_unwritten_since(&range, read_at)
        .delete(&key)
        .delete_range(&range)
        .put(&keys.tombstone(&uid), left.encode_to_vec());
    let nodes = match publications.len() {
        0 => String::new(),
        1 => ", with 1 publication".to_owned(),
        many => format!(", with {many} publications"),
    };
    Deletion {
        statement: format!(
            "volume/{name} is forgotten by force{nodes}; nothing is done at its backend, where this is left: {}; \
             tombstone/{uid} keeps that",
            tombstone::left_behind(&left)
        ),
        outcome: "forgotten by force, with a tombstone",
        txn: Some(txn),
    }
}

impl EndsLater for DeleteVolume {
    fn came_to_be(&self, view: &View, id: &Id) -> Option<Revision> {
        let stored = view.get(&view.keys.volume(&id.name));
        stored.map(|kv| kv.create_revision)
    }

    fn ranges(&self, keys: &Keys, id: &Id) -> Vec<KeyRange> {
        pending::volume_ranges(keys, Some(&id.name))
    }

    fn blockers(&self, view: &View, id: &Id) -> Vec<String> {
        let name = id.name.as_str();
        let Some(kv) = view.get(&view.keys.volume(&id.name)) else {
            return Vec::new();
        };
        match decode::<Volume>(name, &kv.value) {
            Ok(volume) => pending::of_volume(view, name, &volume),
            Err(malformed) => vec![format!("it cannot be read ({malformed})")],
        }
    }
}
