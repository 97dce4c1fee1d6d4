//! Undoing at the backend what no record stands for.

use super::{Acting, Compensation, Failure, Interrupted};
use crate::etcd::FencedError;
use crate::proto::{Tombstone, Volume};
use crate::store::Name;
use crate::store::object::{decode, tombstone};
use crate::store::writer::Unit;
use crate::volumes::request;

impl Acting<'_> {
    pub(super) async fn compensate(&mut self, compensation: &Compensation) -> Result<(), Interrupted> {
        match &compensation.from {
            Some(csi_node_id) => self.unpublish_call(&compensation.volume, csi_node_id).await,
            None => {
                let session = self.session()?;
                let secrets = self.secrets(&compensation.volume).await?;
                let id = request::volume_id(&compensation.volume)?;
                let answer = self.call(session.delete_volume(&id, &secrets)).await?;
                answer.map_err(|error| Failure::of_call(&error))?;
                self.remove_tombstone(&compensation.volume).await
            }
        }
    }

    /// Nothing is left of the volume, so nobody needs to be reminded.
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
        let outcome = self
            .env
            .writer
            .write(Unit::new().delete(key, stored.mod_revision))
            .await;
        match outcome {
            // Somebody else saw to it.
            Ok(_) | Err(FencedError::Conflict) => Ok(()),
            Err(FencedError::LostLeadership(_)) => Err(Interrupted::LostLeadership),
            Err(FencedError::Failed(error) | FencedError::Unknown(error)) => {
                Err(Failure::etcd(&error).into())
            }
        }
    }
}
