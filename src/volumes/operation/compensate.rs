//! Undoing what is at the backend and in no record.

use super::{Compensation, Interrupted, Run};
use crate::etcd::Stop;
use crate::proto::{Tombstone, Volume};
use crate::store::Name;
use crate::store::object::{Object, decode, tombstone};
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
