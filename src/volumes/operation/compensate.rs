//! Undoing what is at the backend and in no record.

use super::{Interrupted, Run};
use crate::etcd::Stop;
use crate::proto::{Tombstone, Volume};
use crate::store::Name;
use crate::store::object::publication::stored_node_id;
use crate::store::object::volume::{backend_id, is_attempted};
use crate::store::object::{Object, decode, tombstone};
use crate::store::writer::Unit;
use crate::volumes::index::Index;

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
            Held::Gone if self.is_claimed(index) => Held::Recorded,
            held => held,
        }
    }

    fn is_claimed(&self, index: &Index) -> bool {
        let mut names = index.claiming(&self.volume).into_iter();
        match &self.publication {
            None => names.any(|name| {
                let volume = index.volume(&name).and_then(Result::ok);
                volume.is_some_and(|volume| is_found(&volume))
            }),
            Some(made) => names.any(|name| index.node_ids(&name).contains(&made.csi_node_id)),
        }
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

impl Run<'_> {
    pub(super) async fn compensate(&mut self, compensation: &Compensation) -> Result<(), Interrupted> {
        let volume = &compensation.volume;
        match &compensation.publication {
            Some(made) => self.call_unpublish(volume, &made.csi_node_id).await,
            None => {
                self.call_delete(volume).await?;
                self.remove_tombstone(volume).await
            }
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
