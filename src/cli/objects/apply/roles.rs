//! A document that makes a manager a worker must pass the checks of `quorate demote`.

use super::input::Manifest;
use crate::cli::exit::Failure;
use crate::etcd::{KeyValue, Revision, Txn};
use crate::proto::{Node, Role};
use crate::roles::facts::Facts;
use crate::roles::owner::NodeRoles;
use crate::store::object::change::{Rejection, Step};
use crate::store::object::{Object, decode};
use crate::store::{Name, Store};

/// The demotion that a document requests, if any, with what its check reads.
#[derive(Default)]
pub struct Demotion(Option<Found>);

struct Found {
    name: Name,
    uid: String,
    observed: Role,
    facts: Facts,
}

/// Reads what the check of a demotion needs, if `step` is one.
///
/// # Errors
/// 1 if etcd did not answer.
pub async fn look_up(
    store: &Store,
    manifest: &Manifest,
    stored: Option<&KeyValue>,
    step: &Step,
) -> Result<Demotion, Failure> {
    let Some((name, uid, before)) = demoted(manifest, stored, step) else {
        return Ok(Demotion::default());
    };
    Ok(Demotion(Some(Found {
        name,
        uid,
        observed: before.observed,
        facts: Facts::with_health(store).await?,
    })))
}

/// The node that becomes a desired worker and is none yet, with its uid.
fn demoted(manifest: &Manifest, stored: Option<&KeyValue>, step: &Step) -> Option<(Name, String, NodeRoles)> {
    let (Step::Configure(after), Some(stored)) = (step, stored) else {
        return None;
    };
    if manifest.kind.words.kind != Node::KIND {
        return None;
    }
    let name = &manifest.name.name;
    let read = |value: &[u8]| {
        let node: Node = decode(name.as_str(), value).ok()?;
        Some((node.uid().to_owned(), NodeRoles::of(&node, Revision::ABSENT)))
    };
    let ((uid, before), (_, after)) = (read(&stored.value)?, read(after)?);
    let demoted = before.desired != Role::Worker && after.desired == Role::Worker;
    demoted.then(|| (name.clone(), uid, before))
}

impl Demotion {
    /// Why the demotion is refused. `earlier` are the nodes that earlier documents demote.
    pub fn rejection(&mut self, earlier: &[Name]) -> Option<Rejection> {
        let found = self.0.as_mut()?;
        let membership = &mut found.facts.membership;
        for name in earlier {
            membership.assume_desired(name.as_str(), Role::Worker);
        }
        let checked = membership.check_demotion(found.name.as_str(), &found.uid, found.observed);
        let refusal = checked.err()?;
        Some(Rejection::Refused {
            rule: refusal.rule.as_str(),
            message: refusal.to_string(),
        })
    }

    /// The node that is demoted.
    pub fn node(&self) -> Option<&Name> {
        self.0.as_ref().map(|found| &found.name)
    }

    /// Adds the compares of what the check read.
    pub fn compare(&self, txn: Txn, store: &Store) -> Txn {
        match &self.0 {
            Some(found) => found.facts.compare(txn, store, &found.name),
            None => txn,
        }
    }
}
