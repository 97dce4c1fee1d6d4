//! Deleting volumes: the command sets a mark, and the leader deletes the volume. By force, the record goes at once and
//! a tombstone stays.

use futures::FutureExt;
use jiff::Timestamp;
use prost::Message;

use super::{Blockers, Deletable, Deletion, Ending, Request};
use crate::cli::exit::Failure;
use crate::cli::objects::pending;
use crate::cli::objects::view::View;
use crate::etcd::{KeyValue, Revision};
use crate::proto::{Metadata, Publication, Tombstone, Volume};
use crate::store::object::publication::{state, state_word};
use crate::store::object::{Object, decode, time, tombstone, volume};
use crate::store::{Id, Keys, Name};

/// Deletes a volume.
pub static VOLUME: Deletable = Deletable {
    plan: |request| plan(request).boxed(),
    plan_absent: None,
    ending: Some(Ending::of_marked(Blockers::Sentences(blockers))),
};

async fn plan(request: Request<'_>) -> Result<Deletion, Failure> {
    let Request { store, id, .. } = request;
    let range = store.keys.publications_of(&id.name);
    let (publications, read_at) = store.etcd.list(&range).await?;
    if request.force {
        return Ok(forget(&request, &publications, read_at));
    }
    let volume: Volume = request
        .object()
        .map_err(|malformed| super::malformed(&malformed))?;
    if volume.is_marked() {
        return Ok(request.marked_already("volume", ""));
    }
    if !publications.is_empty() {
        return Err(published(&store.keys, id, &publications));
    }
    let then = match volume::is_retained(&volume) {
        true => "it stays at its backend, and Quorate forgets it",
        false => "it is deleted at its backend, and what is in it is lost",
    };
    let statement = format!("volume/{id} is marked for deletion, which cannot be taken back; {then}");
    let mut marked = request.mark(volume, statement);
    // From here on no publication can be added: its writer compares the volume (INV-6).
    marked.txn = marked.txn.map(|txn| txn.when_range_empty(&range));
    Ok(marked)
}

fn blockers(view: &View, id: &Id) -> Vec<String> {
    let name = id.name.as_str();
    let Some(kv) = view.get(&view.keys.volume(&id.name)) else {
        return Vec::new();
    };
    match decode::<Volume>(name, &kv.value) {
        Ok(volume) => pending::of_volume(view, name, &volume),
        Err(malformed) => vec![format!("it cannot be read ({malformed})")],
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
    let why = format!("it is published to {}", nodes.join(", "));
    Failure::refused("Published", why).hint(format!(
        "quorate unpublish {id} NODE first, or --force: that deletes the record alone, and leaves a tombstone"
    ))
}

/// A larger tombstone goes without the publish contexts, which a plugin gives again: it has to fit into one record.
const MOST_WITH_CONTEXTS: usize = 512 << 10;

fn without_context(publication: &mut Publication) {
    let status = publication.status.get_or_insert_default();
    if !status.publish_context.is_empty() {
        status.publish_context.clear();
        status.unrecorded = true;
    }
}

/// Deletes the records. A tombstone lists what may be left at the backend (INV-6: no backend volume is forgotten).
fn forget(request: &Request<'_>, publications: &[KeyValue], read_at: Revision) -> Deletion {
    let (keys, stored) = (&request.store.keys, &request.stored);
    let name = &request.id.name;
    let now = Timestamp::now();
    let mut left = Tombstone {
        forced_at: Some(time::to_proto(now)),
        ..Tombstone::default()
    };
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    match request.object::<Volume>() {
        Ok(volume) => left.volume = Some(volume),
        Err(_) => {
            left.unreadable.insert(text(&stored.key), stored.value.clone());
        }
    }
    for kv in publications {
        let id = keys.parse_publication(&kv.key).unwrap_or_default();
        match decode::<Publication>(id, &kv.value) {
            Ok(mut publication) => {
                publication.status.get_or_insert_default().conditions.clear();
                left.publications.push(publication);
            }
            Err(_) => {
                left.unreadable.insert(text(&kv.key), kv.value.clone());
            }
        }
    }
    if left.encoded_len() > MOST_WITH_CONTEXTS {
        left.publications.iter_mut().for_each(without_context);
    }
    let uid = left
        .volume
        .as_ref()
        .and_then(|volume| volume.uid().parse::<Name>().ok());
    let uid = uid.unwrap_or_else(|| tombstone::unreadable_name(name));
    left.metadata = Some(Metadata::new(&uid, uid.as_str(), now));
    let nodes = match publications.len() {
        0 => String::new(),
        1 => ", with 1 publication".to_owned(),
        many => format!(", with {many} publications"),
    };
    let range = keys.publications_of(name);
    let key = keys.tombstone(&uid);
    // A tombstone never replaces another.
    let txn = request
        .when_unchanged()
        .when_absent(&key)
        .when_range_unwritten_since(&range, read_at)
        .delete(&stored.key)
        .delete_range(&range)
        .put(&key, left.encode_to_vec());
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
