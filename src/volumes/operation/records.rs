//! Reading and writing the records of an operation.

use super::{Failure, Interrupted, RecordSnapshot, Run};
use crate::etcd::{FencedError, KeyValue, Revision};
use crate::proto::{Publication, Volume};
use crate::store::Name;
use crate::store::object::{Object, decode};
use crate::store::writer::{Proof, Unit};

/// How often a result is written into a record that others change at the same time.
const RESULT_ATTEMPTS: u32 = 20;

/// An object, with its key and the revision that it was read at.
pub(super) struct Versioned<O> {
    pub(super) key: Vec<u8>,
    /// The object's name, with its owner's before it, as in `data/n1`.
    id: String,
    pub(super) object: O,
    pub(super) revision: Revision,
}

impl Run<'_> {
    /// The volume's record in the snapshot.
    pub(super) fn stored_volume(&self) -> Versioned<Volume> {
        let name = &self.operation.volume;
        Versioned {
            key: self.env.store.keys.volume(name),
            id: name.to_string(),
            object: self.operation.snapshot.volume.clone(),
            revision: self.operation.snapshot.revision,
        }
    }

    /// A publication's record in the snapshot.
    pub(super) fn stored_publication(&self, node: &Name) -> Result<Versioned<Publication>, Interrupted> {
        let snapshot = &self.operation.snapshot;
        let publication = snapshot.publications.get(node).cloned();
        let revision = snapshot.revisions.get(node).copied();
        let (object, revision) = publication.zip(revision).ok_or(Interrupted::Stale)?;
        let volume = &self.operation.volume;
        Ok(Versioned {
            key: self.env.store.keys.publication(volume, node),
            id: format!("{volume}/{node}"),
            object,
            revision,
        })
    }

    /// Replaces a record.
    pub(super) async fn put<O: Object>(
        &mut self,
        stored: &mut Versioned<O>,
        after: O,
        proof: Option<Proof>,
    ) -> Result<(), Interrupted> {
        let value = Some(after.encode_to_vec());
        stored.revision = self.write(&stored.key, stored.revision, value, proof).await?;
        stored.object = after;
        Ok(())
    }

    /// Writes the result of a call into its record, as the record is by then: `result` is applied to it again whenever
    /// someone else has changed it. A `result` of `None` deletes the record. False if the record is gone, or is another
    /// object's of the same name.
    pub(super) async fn settle<O: Object>(
        &mut self,
        mut stored: Versioned<O>,
        result: impl Fn(&O) -> Option<O>,
    ) -> Result<bool, Interrupted> {
        for _ in 0..RESULT_ATTEMPTS {
            let value = result(&stored.object).map(|after| after.encode_to_vec());
            match self.write(&stored.key, stored.revision, value, None).await {
                Err(Interrupted::Stale) => {}
                other => return other.map(|_| true),
            }
            match self.read_again(&stored).await? {
                Some(now) => stored = now,
                None => return Ok(false),
            }
        }
        Err(Interrupted::Stale)
    }

    /// The record as it is now. `None` if it is gone, cannot be read, or is another object's of the same name.
    async fn read_again<O: Object>(
        &mut self,
        before: &Versioned<O>,
    ) -> Result<Option<Versioned<O>>, Interrupted> {
        let uid = |object: &O| object.metadata().map(|metadata| metadata.uid.clone());
        let now = self.read(&before.key).await?.and_then(|kv| {
            let object = decode::<O>(&before.id, &kv.value).ok()?;
            (uid(&object) == uid(&before.object)).then(|| Versioned {
                key: before.key.clone(),
                id: before.id.clone(),
                object,
                revision: kv.mod_revision,
            })
        });
        Ok(now)
    }

    /// Writes or deletes (`None`) a record that has the revision `expected`.
    pub(super) async fn write(
        &mut self,
        key: &[u8],
        expected: Revision,
        value: Option<Vec<u8>>,
        proof: Option<Proof>,
    ) -> Result<Revision, Interrupted> {
        let unit = match value.clone() {
            Some(value) => Unit::new().put(key.to_vec(), expected, value),
            None => Unit::new().delete(key.to_vec(), expected),
        };
        let unit = proof.into_iter().fold(unit, Unit::proving);
        match self.env.writer.write(unit).await {
            Ok(revision) => {
                let now = value.map(|value| KeyValue {
                    key: key.to_vec(),
                    value,
                    create_revision: Revision::ABSENT,
                    mod_revision: revision,
                    lease: None,
                });
                self.records.push(RecordSnapshot {
                    key: key.to_vec(),
                    now: now.ok_or(revision),
                    own: true,
                });
                Ok(revision)
            }
            Err(FencedError::Conflict) => {
                self.read(key).await?;
                Err(Interrupted::Stale)
            }
            Err(FencedError::LostLeadership(_)) => Err(Interrupted::LostLeadership),
            Err(FencedError::Failed(error) | FencedError::Unknown(error)) => {
                // It may have been written. The stored value decides what follows; only this leader writes that value.
                if let (Ok(Some(kv)), Some(value)) = (self.read(key).await, value)
                    && kv.value == value
                    && let Some(snapshot) = self.records.last_mut()
                {
                    snapshot.own = true;
                }
                Err(Failure::etcd(&error).into())
            }
        }
    }

    async fn read(&mut self, key: &[u8]) -> Result<Option<KeyValue>, Interrupted> {
        let read = self.env.store.etcd.get(key).await;
        let (stored, revision) = read.map_err(|error| Failure::etcd(&error))?;
        self.records.push(RecordSnapshot {
            key: key.to_vec(),
            now: stored.clone().ok_or(revision),
            own: false,
        });
        Ok(stored)
    }
}
