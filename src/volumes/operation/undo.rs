//! Undoing what is at the backend and in no record.

use prost::Message;

use super::{Compensation, Failure, Interrupted, PublishedTo, Run};
use crate::csi::class::effect;
use crate::csi::{Effect, Method};
use crate::etcd::{KeyValue, Revision, Stop};
use crate::proto::publication_status::State;
use crate::proto::{Publication, Tombstone, Undo, Volume};
use crate::store::Name;
use crate::store::object::publication::{state, stored_node_id};
use crate::store::object::volume::legible;
use crate::store::object::{Object, decode, tombstone};
use crate::store::writer::Unit;
use crate::volumes::record;

/// What is undone, as the tombstone says it to the next leader.
fn undo_of(compensation: &Compensation) -> Undo {
    let status = compensation.volume.status.as_ref();
    let volume_id = status.map_or("", |status| &status.volume_id).to_owned();
    match &compensation.publication {
        None => Undo {
            volume_id,
            ..Undo::default()
        },
        Some(made) => Undo {
            volume_id,
            node: made.node.to_string(),
            publication_uid: made.uid.clone(),
            csi_node_id: made.csi_node_id.clone(),
        },
    }
}

/// The tombstone with the intent to undo a result: from now on, the volume is only removed, or only taken back to be unpublished
/// first.
fn with_intent(tombstone: &Tombstone, compensation: &Compensation) -> Tombstone {
    let mut tombstone = tombstone.clone();
    let undo = undo_of(compensation);
    if !tombstone.undoing.contains(&undo) {
        tombstone.undoing.push(undo);
    }
    let volume = tombstone.volume.get_or_insert_default();
    let Some(made) = &compensation.publication else {
        volume.status.get_or_insert_default().delete_attempted = true;
        return tombstone;
    };
    // Another one may have been asked for since, and have its intent.
    let intends =
        |left: &Publication| state(left) == State::PendingPublish && stored_node_id(left) == made.csi_node_id;
    let concerned = |left: &&mut Publication| left.uid() == made.uid || intends(left);
    let mut publications = tombstone.publications.iter_mut().filter(concerned).peekable();
    if publications.peek().is_none() {
        // It was forgotten before its volume.
        *volume = record::with_stray(volume, &made.csi_node_id);
    }
    for publication in publications {
        let is_wanted = state(publication) == State::PendingPublish;
        *publication = record::detached(publication, is_wanted);
    }
    tombstone
}

/// A tombstone as it was before an intent was added to it.
struct Before {
    uid: Name,
    value: Vec<u8>,
    /// The revision of the intent.
    intended: Revision,
}

/// The uid in the record of a volume; `None` if nothing can be read of it.
fn uid_of(record: &KeyValue) -> Option<String> {
    legible(&record.value).map(|volume| volume.uid().to_owned())
}

impl Run<'_> {
    /// Records that the volume is unpublished from where a call has published it for a publication that is gone.
    pub(super) async fn record_stray(&mut self, made: &PublishedTo) -> Result<(), Interrupted> {
        let stored = self.stored_volume();
        let settled = self.settle(stored, |volume| {
            Some(record::with_stray(volume, &made.csi_node_id))
        });
        // Where the record is gone by now, its tombstone says what is undone.
        settled
            .await?
            .is_written()?
            .then_some(())
            .ok_or(Interrupted::Stale)
    }

    /// Undoes a result of which no record is left.
    pub(super) async fn compensate(&mut self, compensation: &Compensation) -> Result<(), Interrupted> {
        let volume = &compensation.volume;
        let before = self.intend_to_undo(compensation).await?;
        let (method, answer) = match &compensation.publication {
            Some(made) => {
                let answer = self.call_unpublish(volume, &made.csi_node_id).await;
                (Method::ControllerUnpublishVolume, answer)
            }
            None => (Method::DeleteVolume, self.call_delete(volume).await),
        };
        if let (Err(Interrupted::Failed(failure)), Some(before)) = (&answer, before)
            && failure
                .code
                .is_none_or(|code| effect(method, code) == Effect::None)
        {
            // The call did nothing, or none was made. If the intent stays nevertheless, the volume is not taken back.
            let key = self.env.store.keys.tombstone(&before.uid);
            let unit = Unit::new().put(key, before.intended, before.value);
            let _ = self.env.writer.write(unit).await;
        }
        answer?;
        self.end_undoing(compensation).await
    }

    /// Commits to the tombstone that the result is undone, so that a command that takes the volume back sees it (INV-3, INV-6).
    /// Returns the tombstone as it was, unless an earlier attempt had done that.
    async fn intend_to_undo(&mut self, compensation: &Compensation) -> Result<Option<Before>, Interrupted> {
        let uid = compensation
            .volume
            .uid()
            .parse::<Name>()
            .map_err(|_| Interrupted::Stale)?;
        let key = self.env.store.keys.tombstone(&uid);
        let (stored, _) = self.env.store.etcd.get(&key).await?;
        let Some(stored) = stored else {
            // It was taken back, or the tombstone was deleted by hand.
            return self.prove_forgotten(&compensation.volume).await.map(|()| None);
        };
        let tombstone = decode::<Tombstone>(uid.as_str(), &stored.value);
        let tombstone = tombstone.map_err(|_| self.unreadable_elsewhere(&stored))?;
        let intended = with_intent(&tombstone, compensation);
        if intended == tombstone {
            return Ok(None);
        }
        let unit = Unit::new().put(key, stored.mod_revision, intended.encode_to_vec());
        let intended = self.env.writer.write(unit).await.map_err(Stop::from)?;
        Ok(Some(Before {
            uid,
            value: stored.value,
            intended,
        }))
    }

    /// Fails unless no record has the volume's uid, by etcd: what the controller has seen of the records may be older than the
    /// end of the tombstone.
    async fn prove_forgotten(&mut self, volume: &Volume) -> Result<(), Interrupted> {
        let own = self.env.store.keys.volume(&self.operation.volume);
        let own = self.read(own).await?;
        // While the volume's own record is there, no other one has its uid.
        let records = match own {
            Some(own) if uid_of(&own).as_deref() == Some(volume.uid()) => vec![own],
            _ => self.env.store.etcd.list(&self.env.store.keys.volumes()).await?.0,
        };
        let mut unreadable = None;
        for record in records {
            match uid_of(&record) {
                Some(uid) if uid == volume.uid() => {
                    self.seen(record);
                    return Err(Interrupted::Stale);
                }
                Some(_) => {}
                None => unreadable = Some(record),
            }
        }
        unreadable.map_or(Ok(()), |record| Err(self.unreadable_elsewhere(&record).into()))
    }

    fn unreadable_elsewhere(&self, record: &KeyValue) -> Failure {
        Failure::unreadable_elsewhere(&record.key).until_changed(&self.env.store.keys, record)
    }

    /// Takes out of the tombstone what is undone, or deletes it where nothing of the volume is left at the backend.
    async fn end_undoing(&mut self, compensation: &Compensation) -> Result<(), Interrupted> {
        if compensation.publication.is_none() {
            self.remove_tombstone(&compensation.volume).await?;
        }
        let Ok(uid) = compensation.volume.uid().parse::<Name>() else {
            return Ok(());
        };
        let key = self.env.store.keys.tombstone(&uid);
        let (stored, _) = self.env.store.etcd.get(&key).await?;
        let Some(stored) = stored else { return Ok(()) };
        let Ok(mut left) = decode::<Tombstone>(uid.as_str(), &stored.value) else {
            return Ok(());
        };
        let before = left.undoing.len();
        let undone = undo_of(compensation);
        left.undoing.retain(|undo| *undo != undone);
        if left.undoing.len() == before {
            return Ok(());
        }
        let unit = Unit::new().put(key, stored.mod_revision, left.encode_to_vec());
        match self.env.writer.write(unit).await.map_err(Stop::from) {
            // Where it is stale, it was taken back or deleted. A leader that finds it undoes it once more, which does nothing.
            Ok(_) | Err(Stop::Stale) => Ok(()),
            Err(stop) => Err(stop.into()),
        }
    }

    /// Deletes the tombstone of a volume of which nothing is left at the backend.
    pub(super) async fn remove_tombstone(&mut self, volume: &Volume) -> Result<(), Interrupted> {
        let Ok(uid) = volume.uid().parse::<Name>() else {
            return Ok(());
        };
        let key = self.env.store.keys.tombstone(&uid);
        let (stored, _) = self.env.store.etcd.get(&key).await?;
        let Some(stored) = stored else { return Ok(()) };
        let left = decode::<Tombstone>(uid.as_str(), &stored.value);
        if !left.is_ok_and(|left| tombstone::is_volume_alone(&left)) {
            return Ok(());
        }
        let unit = Unit::new().delete(key, stored.mod_revision);
        match self.env.writer.write(unit).await.map_err(Stop::from) {
            // Where it is stale, someone else has changed or deleted it.
            Ok(_) | Err(Stop::Stale) => Ok(()),
            Err(stop) => Err(stop.into()),
        }
    }
}
