//! Reading and writing the records of an operation.

use super::{Failure, Interrupted, RecordSnapshot, Run};
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

/// What a result found of the record that it belongs into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The result is written.
    Written,
    /// The record is gone, or is another object's of the same name.
    Gone,
    /// There is a record, and it cannot be read. It may be the same one (INV-12).
    Unreadable,
}

impl Settled {
    /// Whether the result is written; false if its record is gone. For results that nothing has to undo.
    ///
    /// # Errors
    /// The failure of a record that cannot be read.
    pub(super) fn is_written(self) -> Result<bool, Interrupted> {
        match self {
            Self::Written => Ok(true),
            Self::Gone => Ok(false),
            Self::Unreadable => Err(Failure::unreadable_record().into()),
        }
    }
}

/// A record as it is now.
enum Now<O> {
    Same(Versioned<O>),
    Gone,
    Unreadable,
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

    /// Replaces a record, if the proofs hold.
    pub(super) async fn put<O: Object>(
        &mut self,
        stored: &mut Versioned<O>,
        after: O,
        proofs: impl IntoIterator<Item = Proof>,
    ) -> Result<(), Interrupted> {
        let value = Some(after.encode_to_vec());
        stored.revision = self.write(stored, value, proofs).await?;
        stored.object = after;
        Ok(())
    }

    /// Proofs that the volume, and the node of one of its publications, are as they were in the snapshot.
    pub(super) fn seen_of(&self, node: &Name) -> [Proof; 2] {
        let (keys, snapshot) = (&self.env.store.keys, &self.operation.snapshot);
        let of_node = snapshot.nodes.get(node);
        let of_node = of_node.map_or(Revision::ABSENT, |seen| seen.mod_revision);
        [
            Proof::Unchanged(keys.volume(&self.operation.volume), snapshot.revision),
            Proof::Unchanged(keys.node(node), of_node),
        ]
    }

    /// Reads both where a proof did not hold, so that the next plan does not wait for the watch.
    pub(super) async fn see_again(&mut self, node: &Name) -> Result<(), Interrupted> {
        let keys = &self.env.store.keys;
        for key in [keys.volume(&self.operation.volume), keys.node(node)] {
            self.read(key).await?;
        }
        Ok(())
    }

    /// Fails unless the record has its revision, and the proof holds. Writes nothing.
    pub(super) async fn prove<O>(&mut self, stored: &Versioned<O>, proof: Proof) -> Result<(), Interrupted> {
        let key = self.key(&stored.record);
        let unit = Unit::new()
            .proving(Proof::Unchanged(key.clone(), stored.revision))
            .proving(proof);
        let proved = self.env.writer.write(unit).await.map_err(Stop::from);
        if matches!(proved, Err(Stop::Stale)) {
            self.read(key).await?;
        }
        Ok(proved.map(drop)?)
    }

    /// Writes the result of a call into its record, as the record is by then: `result` is applied to it again whenever
    /// someone else has changed it. A `result` of `None` deletes the record.
    pub(super) async fn settle<O: Object>(
        &mut self,
        mut stored: Versioned<O>,
        result: impl Fn(&O) -> Option<O>,
    ) -> Result<Settled, Interrupted> {
        for _ in 0..RESULT_ATTEMPTS {
            let value = result(&stored.object).map(|after| after.encode_to_vec());
            match self.write(&stored, value, None).await {
                Err(Interrupted::Stale) => {}
                other => return other.map(|_| Settled::Written),
            }
            match self.read_again(&stored).await? {
                Now::Same(now) => stored = now,
                Now::Gone => return Ok(Settled::Gone),
                Now::Unreadable => return Ok(Settled::Unreadable),
            }
        }
        Err(Interrupted::Stale)
    }

    async fn read_again<O: Object>(&mut self, before: &Versioned<O>) -> Result<Now<O>, Interrupted> {
        let id = self.id(&before.record);
        let Some(kv) = self.read(self.key(&before.record)).await? else {
            return Ok(Now::Gone);
        };
        Ok(match decode::<O>(&id, &kv.value) {
            Err(_) => Now::Unreadable,
            Ok(object) if object.uid() != before.object.uid() => Now::Gone,
            Ok(object) => Now::Same(Versioned {
                record: before.record.clone(),
                object,
                revision: kv.mod_revision,
            }),
        })
    }

    /// Writes or deletes (`None`) a record that still has its revision, if the proofs hold.
    pub(super) async fn write<O>(
        &mut self,
        stored: &Versioned<O>,
        value: Option<Vec<u8>>,
        proofs: impl IntoIterator<Item = Proof>,
    ) -> Result<Revision, Interrupted> {
        let key = self.key(&stored.record);
        let unit = match value.clone() {
            Some(value) => Unit::new().put(key.clone(), stored.revision, value),
            None => Unit::new().delete(key.clone(), stored.revision),
        };
        let unit = proofs.into_iter().fold(unit, Unit::proving);
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

    pub(super) async fn read(&mut self, key: Vec<u8>) -> Result<Option<KeyValue>, Interrupted> {
        let (stored, revision) = self.env.store.etcd.get(&key).await?;
        self.records.push(RecordSnapshot {
            key,
            now: stored.clone().ok_or(revision),
            own: false,
        });
        Ok(stored)
    }

    /// A record that a list has shown.
    pub(super) fn seen(&mut self, record: KeyValue) {
        self.records.push(RecordSnapshot {
            key: record.key.clone(),
            now: Ok(record),
            own: false,
        });
    }
}
