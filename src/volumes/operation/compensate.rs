//! Undoing at the backend what no record holds.

use super::{Compensation, Failure, Interrupted, Run};
use crate::etcd::FencedError;
use crate::proto::{Tombstone, Volume};
use crate::store::Name;
use crate::store::object::{decode, tombstone};
use crate::store::writer::Unit;

impl Run<'_> {
    pub(super) async fn compensate(&mut self, compensation: &Compensation) -> Result<(), Interrupted> {
        let volume = &compensation.volume;
        match &compensation.csi_node_id {
            Some(csi_node_id) => self.call_unpublish(volume, csi_node_id).await,
            None => {
                self.call_delete(volume).await?;
                self.remove_tombstone(volume).await
            }
        }
    }

    /// Deletes the tombstone of a volume of which nothing is left at the backend.
    pub(super) async fn remove_tombstone(&mut self, volume: &Volume) -> Result<(), Interrupted> {
        let uid = volume.metadata.clone().unwrap_or_default().uid;
        let Ok(uid) = uid.parse::<Name>() else {
            return Ok(());
        };
        let key = self.env.store.keys.tombstone(&uid);
        let read = self.env.store.etcd.get(&key).await;
        let (stored, _) = read.map_err(|error| Failure::etcd(&error))?;
        let Some(stored) = stored else { return Ok(()) };
        let left = decode::<Tombstone>(uid.as_str(), &stored.value);
        if !left.is_ok_and(|left| tombstone::is_volume_alone(&left)) {
            return Ok(());
        }
        let unit = Unit::new().delete(key, stored.mod_revision);
        match self.env.writer.write(unit).await {
            // On a conflict, someone else has changed or deleted it.
            Ok(_) | Err(FencedError::Conflict) => Ok(()),
            Err(FencedError::LostLeadership(_)) => Err(Interrupted::LostLeadership),
            Err(FencedError::Failed(error) | FencedError::Unknown(error)) => {
                Err(Failure::etcd(&error).into())
            }
        }
    }
}
