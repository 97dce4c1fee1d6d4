//! Records: written from what was seen, read again where that has changed.

use prost::Message;

use super::{Acting, Compensation, Failure, Interrupted, RecordSnapshot};
use crate::etcd::{FencedError, KeyValue, Revision};
use crate::proto::{Publication, Volume};
use crate::store::Name;
use crate::store::object::{Object, decode};
use crate::store::writer::{Proof, Unit};
use crate::volumes::record;

/// How often the result of a call is written anew because others wrote the record meanwhile.
const RESULT_ATTEMPTS: u32 = 20;

impl Acting<'_> {
    pub(super) async fn put_volume(
        &mut self,
        volume: &Volume,
        proof: Option<Proof>,
    ) -> Result<Revision, Interrupted> {
        self.put_volume_at(volume, self.job.seen.revision, proof).await
    }

    pub(super) async fn put_volume_at(
        &mut self,
        volume: &Volume,
        revision: Revision,
        proof: Option<Proof>,
    ) -> Result<Revision, Interrupted> {
        let key = self.env.store.keys.volume(&self.job.name);
        let put = Unit::new().put(key, revision, volume.encode_to_vec());
        self.write(proof.into_iter().fold(put, Unit::proving)).await
    }

    pub(super) async fn put_publication(
        &mut self,
        node: &Name,
        publication: &Publication,
        revision: Revision,
        proof: Option<Proof>,
    ) -> Result<Revision, Interrupted> {
        let key = self.env.store.keys.publication(&self.job.name, node);
        let put = Unit::new().put(key, revision, publication.encode_to_vec());
        self.write(proof.into_iter().fold(put, Unit::proving)).await
    }

    /// Writes a unit and remembers what its records are afterwards.
    pub(super) async fn write(&mut self, unit: Unit) -> Result<Revision, Interrupted> {
        let writes = unit.writes().to_vec();
        let outcome = self.env.writer.write(unit).await;
        for write in writes {
            match &outcome {
                Ok(revision) => {
                    let now = write.value.map(|value| KeyValue {
                        key: write.key.clone(),
                        value,
                        create_revision: Revision::ABSENT,
                        mod_revision: *revision,
                        lease: None,
                    });
                    self.known.push(RecordSnapshot {
                        key: write.key,
                        now: now.ok_or(*revision),
                        own: true,
                    });
                }
                Err(FencedError::Conflict) => _ = self.read(&write.key).await?,
                Err(FencedError::LostLeadership(_)) => {}
                // It may have been written. What stands there decides what is next.
                Err(FencedError::Failed(_) | FencedError::Unknown(_)) => {
                    let read = self.read(&write.key).await;
                    // By its value: nobody else writes this one.
                    if let (Ok(Some(kv)), Some(value)) = (&read, &write.value)
                        && kv.value == *value
                        && let Some(known) = self.known.last_mut()
                    {
                        known.own = true;
                    }
                }
            }
        }
        outcome.map_err(|error| match error {
            FencedError::Conflict => Interrupted::Stale,
            FencedError::LostLeadership(_) => Interrupted::LostLeadership,
            FencedError::Failed(error) | FencedError::Unknown(error) => Failure::etcd(&error).into(),
        })
    }

    pub(super) async fn read(&mut self, key: &[u8]) -> Result<Option<KeyValue>, Interrupted> {
        let read = self.env.store.etcd.get(key).await;
        let (stored, revision) = read.map_err(|error| Failure::etcd(&error))?;
        self.known.push(RecordSnapshot {
            key: key.to_vec(),
            now: stored.clone().ok_or(revision),
            own: false,
        });
        Ok(stored)
    }

    /// The record of the volume as it is now, if it is still that of the same volume. It was just read.
    pub(super) async fn same_volume(&mut self) -> Result<Option<(Volume, Revision)>, Interrupted> {
        let key = self.env.store.keys.volume(&self.job.name);
        let uid = |volume: &Volume| volume.metadata.clone().unwrap_or_default().uid;
        let now = self.read(&key).await?.and_then(|kv| {
            let volume = decode::<Volume>(self.job.name.as_str(), &kv.value).ok()?;
            Some((volume, kv.mod_revision))
        });
        Ok(now.filter(|(now, _)| uid(now) == uid(&self.job.seen.volume)))
    }

    pub(super) async fn same_publication(
        &mut self,
        node: &Name,
        before: &Publication,
    ) -> Result<Option<(Publication, Revision)>, Interrupted> {
        let key = self.env.store.keys.publication(&self.job.name, node);
        let id = format!("{}/{node}", self.job.name);
        let uid = |publication: &Publication| publication.metadata.clone().unwrap_or_default().uid;
        let now = self.read(&key).await?.and_then(|kv| {
            let publication = decode::<Publication>(&id, &kv.value).ok()?;
            Some((publication, kv.mod_revision))
        });
        Ok(now.filter(|(now, _)| uid(now) == uid(before)))
    }

    /// Writes a result into the record of the volume, as it is by then.
    pub(super) async fn settle_volume(
        &mut self,
        mut volume: Volume,
        mut revision: Revision,
        compensation: Compensation,
        result: impl Fn(&Volume) -> Volume,
    ) -> Result<(), Interrupted> {
        for _ in 0..RESULT_ATTEMPTS {
            match self.put_volume_at(&result(&volume), revision, None).await {
                Err(Interrupted::Stale) => match self.same_volume().await? {
                    Some((now, at)) => (volume, revision) = (now, at),
                    None => return Err(Interrupted::Orphaned(Box::new(compensation))),
                },
                other => return other.map(drop),
            }
        }
        Err(Interrupted::Stale)
    }

    /// The same for a result that needs no undoing where the record is gone.
    pub(super) async fn settle_volume_if_there(
        &mut self,
        volume: Volume,
        revision: Revision,
        result: impl Fn(&Volume) -> Volume,
    ) -> Result<(), Interrupted> {
        let compensation = Compensation {
            volume: volume.clone(),
            from: None,
        };
        match self.settle_volume(volume, revision, compensation, result).await {
            Err(Interrupted::Orphaned(_)) => Err(Interrupted::Stale),
            other => other,
        }
    }

    pub(super) async fn settle_publication(
        &mut self,
        node: &Name,
        mut publication: Publication,
        mut revision: Revision,
        compensation: Compensation,
        result: impl Fn(&Publication) -> Publication,
    ) -> Result<(), Interrupted> {
        for _ in 0..RESULT_ATTEMPTS {
            let after = result(&publication);
            match self.put_publication(node, &after, revision, None).await {
                Err(Interrupted::Stale) => match self.same_publication(node, &publication).await? {
                    Some((now, at)) => (publication, revision) = (now, at),
                    None => return Err(Interrupted::Orphaned(Box::new(compensation))),
                },
                other => return other.map(drop),
            }
        }
        Err(Interrupted::Stale)
    }

    /// The record of a volume that is deleted at the backend goes, whatever was written to it meanwhile.
    pub(super) async fn forget_volume(&mut self, mut revision: Revision) -> Result<(), Interrupted> {
        let key = self.env.store.keys.volume(&self.job.name);
        for _ in 0..RESULT_ATTEMPTS {
            match self.write(Unit::new().delete(key.clone(), revision)).await {
                Err(Interrupted::Stale) => match self.same_volume().await? {
                    Some((_, now)) => revision = now,
                    // Forgotten by force meanwhile, with a tombstone for what is now gone.
                    None => return self.remove_tombstone(&self.job.seen.volume).await,
                },
                other => return other.map(drop),
            }
        }
        Err(Interrupted::Stale)
    }

    /// The record of a publication goes, or begins anew.
    pub(super) async fn end_publication(&mut self, node: &Name) -> Result<(), Interrupted> {
        let (mut publication, mut revision) = self.publication(node)?;
        let here = self.job.seen.nodes.get(node);
        let here = here.filter(|node| !node.out_of_service && !node.uid.is_empty());
        let marked = self.job.seen.volume.is_marked();
        let key = self.env.store.keys.publication(&self.job.name, node);
        for _ in 0..RESULT_ATTEMPTS {
            let anew = record::ended(&publication, here.map(|node| node.uid.as_str()), marked);
            let write = match anew {
                Some(anew) => Unit::new().put(key.clone(), revision, anew.encode_to_vec()),
                None => Unit::new().delete(key.clone(), revision),
            };
            match self.write(write).await {
                Err(Interrupted::Stale) => match self.same_publication(node, &publication).await? {
                    Some((now, at)) => (publication, revision) = (now, at),
                    None => return Ok(()),
                },
                other => return other.map(drop),
            }
        }
        Err(Interrupted::Stale)
    }
}
