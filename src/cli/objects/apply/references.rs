//! What a document newly refers to: there, unmarked, and the same in the transaction that writes the document.

use super::input::Manifest;
use crate::cli::exit::Failure;
use crate::cli::objects::kinds::registry::by_kind;
use crate::etcd::{KeyValue, Revision, Txn};
use crate::store::object::change::{Rejection, Step};
use crate::store::{Id, Store};

/// The new references of a document, as they were found.
pub struct Used(Vec<Found>);

struct Found {
    /// `network front`
    name: String,
    key: Vec<u8>,
    state: State,
}

enum State {
    /// To be compared.
    Usable(Revision),
    Missing,
    Marked,
    Unreadable(String),
}

/// Looks up what the value that `step` writes refers to and the stored one does not.
///
/// # Errors
/// A failure if etcd did not answer: what could not be read is no proof of anything.
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
        let Some((kind, codec)) = by_kind(reference.kind).and_then(|kind| Some((kind, kind.applied()?)))
        else {
            return Err(Failure::failed(format!(
                "{} objects cannot be referred to",
                reference.kind
            )));
        };
        let name = format!("{} {}", kind.words().singular, reference.name);
        let text = reference.name.to_string();
        let key = kind.key(&store.keys, &Id::from(reference.name));
        let (stored, _) = store.etcd.get(&key).await.map_err(Failure::failed)?;
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
    /// Why it cannot be written, all reasons at once. What is missing may be among `created`, the keys that are
    /// written before.
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

    /// Adds the compares. A network that is marked meanwhile has changed, so that nothing is written (INV-7).
    pub fn compare(&self, txn: Txn) -> Txn {
        self.0.iter().fold(txn, |txn, found| match found.state {
            State::Usable(mod_revision) => txn.when_unchanged(&found.key, mod_revision),
            // Refused before.
            State::Missing | State::Marked | State::Unreadable(_) => txn,
        })
    }
}
