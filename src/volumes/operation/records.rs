//! Reading and writing the records of an operation.

use super::{Interrupted, RecordSnapshot, Run};
use crate::etcd::{KeyValue, Revision, Stop};
use crate::proto::{Publication, Volume};
use crate::store::Name;
use crate::store::object::{Object, decode};
use crate::store::writer::{Proof, Unit};

/// How often a result is written into a record that others change at the same time.
const RESULT_ATTEMPTS: u32 = 20;

/// A record of the operation's volume.
#[derive(Clone)]
pub(super) enum Record {
    Volume,
    /// The publication to this node.
    Publication(Name),
}

/// An object with its record, and the revision that it was read at.
pub(super) struct Versioned<O> {
    record: Record,
    pub(super) object: O,
    revision: Revision,
}

impl Run<'_> {
    /// The volume's record in the snapshot.
    pub(super) fn stored_volume(&self) -> Versioned<Volume> {
        Versioned {
            record: Record::Volume,
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
        Ok(Versioned {
            record: Record::Publication(node.clone()),
            object,
            revision,
        })
    }

    fn key(&self, record: &Record) -> Vec<u8> {
        let (keys, volume) = (&self.env.store.keys, &self.operation.volume);
        match record {
            Record::Volume => keys.volume(volume),
            Record::Publication(node) => keys.publication(volume, node),
        }
    }

    /// The name of the record's object, after its owner's if it has one.
    fn id(&self, record: &Record) -> String {
        let volume = &self.operation.volume;
        match record {
            Record::Volume => volume.to_string(),
            Record::Publication(node) => format!("{volume}/{node}"),
        }
    }

    /// Replaces a record.
    pub(super) async fn put<O: Object>(
        &mut self,
        stored: &mut Versioned<O>,
        after: O,
        proof: Option<Proof>,
    ) -> Result<(), Interrupted> {
        let value = Some(after.encode_to_vec());
        stored.revision = self.write(stored, value, proof).await?;
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
            match self.write(&stored, value, None).await {
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
        let id = self.id(&before.record);
        let now = self.read(self.key(&before.record)).await?.and_then(|kv| {
            let object = decode::<O>(&id, &kv.value).ok()?;
            (object.uid() == before.object.uid()).then(|| Versioned {
                record: before.record.clone(),
                object,
                revision: kv.mod_revision,
            })
        });
        Ok(now)
    }

    /// Writes or deletes (`None`) a record that still has its revision.
    pub(super) async fn write<O>(
        &mut self,
        stored: &Versioned<O>,
        value: Option<Vec<u8>>,
        proof: Option<Proof>,
    ) -> Result<Revision, Interrupted> {
        let key = self.key(&stored.record);
        let unit = match value.clone() {
            Some(value) => Unit::new().put(key.clone(), stored.revision, value),
            None => Unit::new().delete(key.clone(), stored.revision),
        };
        let unit = proof.into_iter().fold(unit, Unit::proving);
        match self.env.writer.write(unit).await.map_err(Stop::from) {
            Ok(revision) => {
                let now = value.map(|value| KeyValue {
                    key: key.clone(),
                    value,
                    create_revision: Revision::ABSENT,
                    mod_revision: revision,
                    lease: None,
                });
                self.records.push(RecordSnapshot {
                    key,
                    now: now.ok_or(revision),
                    own: true,
                });
                Ok(revision)
            }
            Err(Stop::Stale) => {
                self.read(key).await?;
                Err(Interrupted::Stale)
            }
            Err(Stop::LostLeadership) => Err(Interrupted::LostLeadership),
            Err(Stop::Unavailable(error)) => {
                // It may have been written. The stored value decides what follows; only this leader writes that value.
                if let (Ok(Some(kv)), Some(value)) = (self.read(key).await, value)
                    && kv.value == value
                    && let Some(snapshot) = self.records.last_mut()
                {
                    snapshot.own = true;
                }
                Err(error.into())
            }
        }
    }

    async fn read(&mut self, key: Vec<u8>) -> Result<Option<KeyValue>, Interrupted> {
        let (stored, revision) = self.env.store.etcd.get(&key).await?;
        self.records.push(RecordSnapshot {
            key,
            now: stored.clone().ok_or(revision),
            own: false,
        });
        Ok(stored)
    }
}
