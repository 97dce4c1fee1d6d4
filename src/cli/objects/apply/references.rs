//! The objects that a document newly refers to. They must exist and be unmarked, and the transaction that writes the
//! document compares them.

use super::input::Manifest;
use crate::cli::exit::Failure;
use crate::cli::objects::kinds::registry::by_kind;
use crate::etcd::{KeyValue, Revision, Txn};
use crate::store::object::change::{Rejection, Step};
use crate::store::{Id, Store};

/// The new references of a document, as they are stored.
pub struct Used(Vec<Found>);

struct Found {
    /// The object in messages: `network front`.
    name: String,
    key: Vec<u8>,
    state: State,
}

enum State {
    /// It exists and is unmarked. The transaction compares this revision.
    Usable(Revision),
    Missing,
    Marked,
    Unreadable(String),
}

/// Reads the objects that the value in `step` refers to and the stored value does not.
///
/// # Errors
/// 1 if etcd did not answer.
pub async fn check(
    store: &Store,
    manifest: &Manifest,
    stored: Option<&KeyValue>,
    step: &Step,
) -> Result<Used, Failure> {
    let (Step::Create(after) | Step::Configure(after)) = step else {
        return Ok(Used(Vec::new()));
    };
    let before = stored.map(|kv| kv.value.as_slice());
    let id = manifest.name.to_string();
    let mut found = Vec::new();
    for reference in manifest.codec.new_references(&id, before, after) {
        let Some((kind, codec)) = by_kind(reference.kind).and_then(|kind| Some((kind, kind.applied?))) else {
            return Err(Failure::failed(format!(
                "{} objects cannot be referred to",
                reference.kind
            )));
        };
        let name = format!("{} {}", kind.words.singular, reference.name);
        let text = reference.name.to_string();
        let key = kind.space.key(&store.keys, &Id::from(reference.name));
        let (stored, _) = store.etcd.get(&key).await?;
        let state = match stored {
            None => State::Missing,
            Some(kv) => match codec.is_marked(&text, &kv.value) {
                Ok(false) => State::Usable(kv.mod_revision),
                Ok(true) => State::Marked,
                Err(malformed) => State::Unreadable(malformed.to_string()),
            },
        };
        found.push(Found { name, key, state });
    }
    Ok(Used(found))
}

impl Used {
    /// Why the document cannot be written, all reasons at once. A missing object may be among `created`, the keys that
    /// are written first.
    pub fn rejection(&self, created: &[Vec<u8>]) -> Option<Rejection> {
        let reasons: Vec<String> = self
            .0
            .iter()
            .filter_map(|found| match &found.state {
                State::Usable(_) => None,
                State::Missing if created.contains(&found.key) => None,
                State::Missing => Some(format!("{} does not exist", found.name)),
                State::Marked => Some(format!("{} is marked for deletion", found.name)),
                State::Unreadable(why) => Some(format!("{} cannot be read ({why})", found.name)),
            })
            .collect();
        (!reasons.is_empty()).then(|| Rejection::Refused {
            rule: "References",
            message: reasons.join("; "),
        })
    }

    /// Adds the compares. A network that is marked meanwhile has another revision, so nothing is written then (INV-7).
    pub fn compare(&self, txn: Txn) -> Txn {
        self.0.iter().fold(txn, |txn, found| match found.state {
            State::Usable(mod_revision) => txn.when_unchanged(&found.key, mod_revision),
            // `rejection` refuses these.
            State::Missing | State::Marked | State::Unreadable(_) => txn,
        })
    }
}
