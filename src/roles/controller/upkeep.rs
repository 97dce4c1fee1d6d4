//! Writes that no step waits for: roles of nodes without a member, conditions, and the deletion of records that are
//! no longer needed. Each is a unit of its own, so that one that cannot be written delays no other.

use std::time::Duration;

use jiff::Timestamp;

use crate::etcd::{FencedError, KeyRange, Revision, Stop};
use crate::failpoint;
use crate::roles::index::Index;
use crate::roles::owner::Owner;
use crate::roles::transitions::{Transition, transitions};
use crate::span;
use crate::store::object::member::is_ended;
use crate::store::object::time;
use crate::store::writer::{Proof, Unit, Writer};
use crate::store::{Keys, Name};
use crate::term::{Acts, NodeWrites};

/// Units under way at once: twice what the writer has in transactions, so that it never waits for more.
const MOST: usize = 1000;

/// The writes under way.
pub struct Upkeep {
    writer: Writer,
    node_writes: NodeWrites,
    nodes: KeyRange,
    acts: Acts<'static, Vec<u8>, Ended>,
}

/// A write that has ended.
pub struct Ended {
    /// The transition that was written, if it was one.
    pub transition: Option<Transition>,
    /// The revision of the write.
    pub result: Result<Revision, FencedError>,
}

impl Upkeep {
    pub fn new(writer: Writer, node_writes: NodeWrites, keys: &Keys) -> Self {
        Self {
            writer,
            node_writes,
            nodes: keys.nodes(),
            acts: Acts::default(),
        }
    }

    /// The index is at this revision.
    pub fn seen(&mut self, revision: Revision) {
        self.acts.seen(|written| written <= revision);
    }

    /// Whether the index shows what this key holds, and a write of it has not just failed.
    pub fn is_free(&self, key: &[u8]) -> bool {
        self.acts.is_free(&key.to_vec())
    }

    /// Begins the transitions that can be made now.
    pub fn begin_transitions(&mut self, index: &Index, keys: &Keys) {
        let room = MOST.saturating_sub(self.acts.under_way());
        let due: Vec<_> = transitions(index, keys, |key| self.is_free(key))
            .take(room)
            .collect();
        for (transition, unit) in due {
            self.begin(unit, Some(transition));
        }
    }

    /// Begins to write the units whose key is free. Returns whether all of them were.
    pub fn begin_all(&mut self, units: impl IntoIterator<Item = Unit>) -> bool {
        let mut all = true;
        for unit in units {
            match self.is_free(key_of(&unit)) {
                true => self.begin(unit, None),
                false => all = false,
            }
        }
        all
    }

    fn begin(&mut self, unit: Unit, transition: Option<Transition>) {
        let key = key_of(&unit).to_vec();
        let writer = self.writer.clone();
        // Other writes refuse no restriction.
        let held_back = self.nodes.contains(&key).then(|| self.node_writes.clone());
        let step = span::step("roles", "write", String::from_utf8_lossy(&key));
        self.acts.begin(key, async move {
            if let Some(node_writes) = held_back {
                node_writes.allowed().await;
            }
            if transition.is_some() {
                failpoint::abort_at("roles.changing-roles");
            }
            let outcome = |done: &Result<_, _>| if done.is_ok() { "OK" } else { "NotWritten" };
            let result = span::within(step, writer.write(unit), outcome).await;
            if transition.is_some() {
                failpoint::abort_at("roles.changed-roles");
            }
            Ended { transition, result }
        });
    }

    /// Resolves when writes have ended, with all that have, or when a failed one may be repeated. Safe to cancel.
    pub async fn next(&mut self) -> Vec<Ended> {
        let ended = self.acts.next(|_| true).await;
        for (key, Ended { result, .. }) in &ended {
            match result {
                Ok(revision) => self.acts.done(key.clone(), *revision),
                Err(error) => {
                    let policy = Stop::from(error.clone()).policy();
                    self.acts.failed(key.clone(), policy);
                }
            }
        }
        ended.into_iter().map(|(_, ended)| ended).collect()
    }

    /// How long until the next record of a removed node expires; `None` if there is none that can be deleted then.
    pub fn next_expiry(&self, index: &Index, keys: &Keys, now: Timestamp) -> Option<Duration> {
        let mut expiring = index.expiring();
        let (expiry, ..) = expiring.find(|(_, uid, _)| self.is_free(&keys.removed(uid)))?;
        Some(Duration::try_from(expiry.duration_since(now)).unwrap_or_default())
    }
}

/// A unit of upkeep writes a single key.
fn key_of(unit: &Unit) -> &[u8] {
    unit.writes().first().map_or(&[], |write| &write.key)
}

/// Deletes the records of removed nodes that have expired.
pub fn expired_nodes(index: &Index, keys: &Keys, now: Timestamp) -> impl Iterator<Item = Unit> {
    let expired = index.expiring().take_while(move |(expiry, ..)| *expiry <= now);
    expired.map(|(_, uid, revision)| Unit::new().delete(keys.removed(uid), revision))
}

/// Deletes joins that ended at least `keep` ago and whose node was removed. The write proves that no node has come in its
/// place: as long as a node exists, its join says how far it has come.
pub fn ended_joins(index: &Index, keys: &Keys, now: Timestamp, keep: Duration) -> impl Iterator<Item = Unit> {
    let ended = index.joins().filter_map(move |(node, join, revision)| {
        let uid = &join.request.as_ref()?.node_uid;
        // A removed node requests no join, and an add that may still be made has not ended.
        let gone = index.owner_of(node, uid) == Owner::Removed && !index.may_be_member(node);
        let ended = time::from_proto(join.changed_at.as_ref())?;
        let passed = Duration::try_from(now.duration_since(ended)).unwrap_or_default();
        let due = is_ended(join) && gone && passed >= keep;
        due.then(|| Some((node.parse::<Name>().ok()?, revision)))?
    });
    ended.map(|(name, revision)| {
        let node = Proof::Unchanged(keys.node(&name), index.node_revision(name.as_str()));
        Unit::new().delete(keys.join(&name), revision).proving(node)
    })
}

#[cfg(test)]
mod tests;
