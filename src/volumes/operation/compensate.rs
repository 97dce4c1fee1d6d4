//! Undoing what is at the backend and in no record.

use prost::Message;

use super::{Failure, Interrupted, Run};
use crate::csi::class::effect;
use crate::csi::{Effect, Method};
use crate::etcd::{KeyValue, Revision, Stop};
use crate::proto::publication_status::State;
use crate::proto::{Publication, Tombstone, Volume};
use crate::store::object::publication::{state, stored_node_id};
use crate::store::object::volume::{backend_id, is_attempted};
use crate::store::object::{Object, decode, tombstone};
use crate::store::writer::Unit;
use crate::store::{Name, Store};
use crate::volumes::index::Index;
use crate::volumes::record;

/// A result of a call that its record did not take. It is undone at the backend once that record is gone (INV-6: no backend
/// volume is forgotten).
#[derive(Clone, Debug)]
pub struct Compensation {
    /// The record as it would be, with the volume's id.
    pub volume: Volume,
    /// The publication to undo; `None` deletes the volume.
    pub publication: Option<PublishedTo>,
}

/// A publication that a call made.
#[derive(Clone, Debug)]
pub struct PublishedTo {
    /// The node of the publication's record.
    pub node: Name,
    /// The uid of that record.
    pub uid: String,
    /// The node id of the call.
    pub csi_node_id: String,
}

/// Whether the records hold what a call made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// They do: what follows is planned from them.
    Recorded,
    /// The record cannot be read, and may hold it: nothing is undone (INV-12).
    Unreadable,
    /// They do not.
    Gone,
}

impl Compensation {
    /// Whether the records of the volume `name` hold the result by now, or those of another name, under which it was taken
    /// back or in.
    pub fn held(&self, index: &Index, name: &Name) -> Held {
        match self.held_by(index, name) {
            Held::Gone => self.claimed(index),
            held => held,
        }
    }

    /// Whether a record of any name has what would be undone.
    fn claimed(&self, index: &Index) -> Held {
        let mut held = Held::Gone;
        for name in index.claiming(&self.volume) {
            let (has, is_unreadable) = match &self.publication {
                None => match index.volume(&name) {
                    Some(Ok(volume)) => (is_found(&volume), false),
                    Some(Err(_)) => (false, true),
                    None => (false, false),
                },
                Some(made) => (
                    index.node_ids(&name).contains(&made.csi_node_id),
                    index.is_unreadable(&name),
                ),
            };
            if has {
                return Held::Recorded;
            }
            if is_unreadable {
                held = Held::Unreadable;
            }
        }
        held
    }

    fn held_by(&self, index: &Index, name: &Name) -> Held {
        match &self.publication {
            None => held(index.volume(name), |volume| {
                volume.uid() == self.volume.uid() && is_found(volume)
            }),
            Some(made) => held(index.publication(name, &made.node), |publication| {
                publication.uid() == made.uid && stored_node_id(publication) == made.csi_node_id
            }),
        }
    }
}

/// Whether the record leads to the volume at the backend. With the intent, the same volume is found again, and is not
/// forgotten.
fn is_found(volume: &Volume) -> bool {
    is_attempted(volume) || !backend_id(volume).is_empty()
}

fn held<O, E>(record: Option<Result<O, E>>, has: impl Fn(&O) -> bool) -> Held {
    match record {
        Some(Err(_)) => Held::Unreadable,
        Some(Ok(object)) if has(&object) => Held::Recorded,
        Some(Ok(_)) | None => Held::Gone,
    }
}

/// The tombstone with the intent to undo a result: from now on, the volume is only removed, or the publication only taken back
/// to be unpublished first.
fn with_intent(tombstone: &Tombstone, publication: Option<&PublishedTo>) -> Tombstone {
    let mut tombstone = tombstone.clone();
    match publication {
        None => {
            let volume = tombstone.volume.get_or_insert_default();
            volume.status.get_or_insert_default().delete_attempted = true;
        }
        Some(made) => {
            let same = |publication: &&mut Publication| publication.uid() == made.uid;
            if let Some(publication) = tombstone.publications.iter_mut().find(same) {
                let is_wanted = state(publication) == State::PendingPublish;
                *publication = record::detached(publication, is_wanted);
            }
        }
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

impl Run<'_> {
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
        match &compensation.publication {
            Some(_) => Ok(()),
            None => self.remove_tombstone(volume).await,
        }
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
            // It was taken back, or the record was deleted by hand.
            return match self.held_now(compensation).await? {
                Held::Gone => Ok(None),
                Held::Recorded | Held::Unreadable => Err(Interrupted::Stale),
            };
        };
        let tombstone = decode::<Tombstone>(uid.as_str(), &stored.value);
        let tombstone = tombstone.map_err(|_| Failure::unreadable_record())?;
        let intended = with_intent(&tombstone, compensation.publication.as_ref());
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

    /// Whether the records hold the result, by etcd: what the controller has seen of them may be older than the tombstone.
    async fn held_now(&self, compensation: &Compensation) -> Result<Held, Interrupted> {
        let Store { etcd, keys } = &self.env.store;
        let name = &self.operation.volume;
        let has_uid = |record: &KeyValue| {
            let id = keys.parse_volume(&record.key).unwrap_or_default();
            let volume = decode::<Volume>(id, &record.value);
            volume.is_ok_and(|volume| volume.uid() == compensation.volume.uid())
        };
        let (own, _) = etcd.get(&keys.volume(name)).await?;
        // While the volume's own record is there, no other one has its uid.
        let taken_back = match own.as_ref().is_some_and(has_uid) {
            true => Vec::new(),
            false => etcd.list(&keys.volumes()).await?.0,
        };
        let mut index = Index::new(keys.clone());
        for record in own.into_iter().chain(taken_back.into_iter().filter(has_uid)) {
            let id = keys.parse_volume(&record.key).unwrap_or_default();
            let of_volume = id.parse::<Name>().map(|name| keys.publications_of(&name));
            let (publications, _) = etcd.list(&of_volume.map_err(|_| Interrupted::Stale)?).await?;
            for record in std::iter::once(record).chain(publications) {
                index.note(&record.key, Ok(&record));
            }
        }
        Ok(compensation.held(&index, name))
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
