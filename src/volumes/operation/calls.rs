//! The calls of the steps: a step's intent is committed before its call, and its result after it (INV-3).

use std::sync::Arc;

use jiff::Timestamp;

use super::records::{Settled, Versioned};
use super::{Compensation, Failure, Interrupted, PublishedTo, Run};
use crate::csi::{CallError, Capability, CsiNodeId, Effect, Session};
use crate::failpoint;
use crate::mutation::{self, Guard};
use crate::proto::publication_status::State;
use crate::proto::volume_secret::Call;
use crate::proto::{Publication, Volume};
use crate::store::Name;
use crate::store::object::Object;
use crate::store::object::publication::state;
use crate::store::object::volume::capacity;
use crate::store::writer::Proof;
use crate::volumes::{record, request};

impl Run<'_> {
    pub(super) async fn create(&mut self) -> Result<(), Interrupted> {
        let session = self.session()?;
        let mut stored = self.stored_volume();
        // Before the intent: a volume whose secrets are missing was never attempted.
        let secrets = self.secrets(&stored.object, Call::Create).await?;
        failpoint::abort_at("volumes.creating");
        let intent = record::intend_create(
            &stored.object,
            &request::backend(&session),
            self.env.fence.term().0,
            Timestamp::now(),
        );
        let is_first_attempt = intent.is_some();
        if let Some(intent) = intent {
            self.check_capacity(&session, &intent).await?;
            match mutation::without(Guard::Intent) {
                true => stored.object = intent,
                false => self.put(&mut stored, intent, None).await?,
            }
        }
        failpoint::abort_at("volumes.create-intended");
        let wanted = request::create(&stored.object)?;
        let answer = self.attempt(session.create_volume(&wanted, &secrets)).await?;
        failpoint::abort_at("volumes.create-called");
        let created = match answer {
            Ok(created) => request::created(created),
            Err(error) => return Err(self.refused(&mut stored, &error, is_first_attempt).await?.into()),
        };
        let mut volume = stored.object.clone();
        let status = volume.status.get_or_insert_default();
        status.volume_id.clone_from(&created.volume_id);
        let now = Timestamp::now();
        let settled = self
            .settle(stored, |volume| {
                Some(record::created(volume, created.clone(), now))
            })
            .await?;
        or_orphaned(settled, volume, None)?;
        failpoint::abort_at("volumes.create-recorded");
        Ok(())
    }

    /// Fails if the plugin tells that it has no room for the volume: then its creation is not attempted. A plugin that does not
    /// tell it now is asked to create the volume all the same.
    async fn check_capacity(&self, session: &Session, volume: &Volume) -> Result<(), Interrupted> {
        let wanted = request::create(volume)?;
        let required = wanted.capacity.map_or(0, |range| range.required_bytes);
        let is_asked = self.operation.checks_capacity && session.offers(Capability::GetCapacity);
        if required == 0 || !is_asked {
            return Ok(());
        }
        match self.attempt(session.capacity_for(&wanted)).await? {
            Ok(most) if most < required => Err(Failure::no_capacity(required).into()),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Takes in a volume that exists at the backend.
    pub(super) async fn take_in(&mut self) -> Result<(), Interrupted> {
        let session = self.session()?;
        let mut stored = self.stored_volume();
        let secrets = self.secrets(&stored.object, Call::Create).await?;
        let taken_in = record::taken_in(&stored.object, &request::backend(&session));
        if session.offers(Capability::ControllerService) {
            // As it will be used: the access mode depends on what the plugin tells.
            let wanted = request::validate(&taken_in)?;
            self.call(session.validate_volume(&wanted, &secrets)).await?;
        }
        let leaving = self.leaving_forgotten(taken_in).await?;
        self.put(&mut stored, leaving, None).await
    }

    /// Takes the name as the id at a plugin that creates nothing: the volume may exist there.
    pub(super) async fn take_name(&mut self) -> Result<(), Interrupted> {
        let backend = request::backend(&*self.session()?);
        let mut stored = self.stored_volume();
        let named = record::name_taken(&stored.object, &backend, Timestamp::now());
        let leaving = self.leaving_forgotten(named).await?;
        self.put(&mut stored, leaving, None).await
    }

    /// The plugin did not create the volume. Records that nothing is there, if that is so.
    async fn refused(
        &mut self,
        stored: &mut Versioned<Volume>,
        error: &CallError,
        is_first_attempt: bool,
    ) -> Result<Failure, Interrupted> {
        let mut failure = Failure::of_call(error);
        if error.effect() != Effect::None {
            return Ok(failure);
        }
        if is_first_attempt {
            let refused = record::create_refused(&stored.object);
            let blocked = record::volume_blocked(&refused, Some(&failure.why), Timestamp::now());
            self.put(stored, blocked.unwrap_or(refused), None).await?;
        } else if stored.object.is_marked() {
            // What an earlier attempt did is unknown, and a plugin may refuse a request before it looks for an earlier volume
            // (INV-6).
            failure.why.message += &format!(
                "; an earlier call may have created the volume, so that this one is repeated before it is deleted; quorate \
                 delete volume {} --force deletes its record alone, and leaves a tombstone",
                self.operation.volume
            );
        }
        Ok(failure)
    }

    pub(super) async fn expand(&mut self) -> Result<(), Interrupted> {
        let session = self.session()?;
        let stored = self.stored_volume();
        let secrets = self.secrets(&stored.object, Call::Expand).await?;
        let wanted = request::expand(&stored.object)?;
        failpoint::abort_at("volumes.expanding");
        let expanded = self.call(session.expand_volume(&wanted, &secrets)).await?;
        failpoint::abort_at("volumes.expanded");
        let asked = capacity(&stored.object);
        let now = Timestamp::now();
        let settled = self
            .settle(stored, |volume| {
                Some(record::expanded(volume, asked, expanded, now))
            })
            .await?;
        // Nothing to undo: what is left of the volume is deleted whatever its size.
        settled.is_written()?.then_some(()).ok_or(Interrupted::Stale)
    }

    pub(super) async fn publish(&mut self, node: &Name, csi_node_id: &str) -> Result<(), Interrupted> {
        let session = self.session()?;
        let volume = self.operation.snapshot.volume.clone();
        let mut stored = self.stored_publication(node)?;
        let was_published = state(&stored.object) == State::Published;
        let secrets = self.secrets(&volume, Call::Publish).await?;
        failpoint::pause_at("volumes.publishing").await;
        if let Some(intent) = record::intend_publish(&stored.object, csi_node_id) {
            self.put_begun(&mut stored, intent, node).await?;
        }
        failpoint::abort_at("volumes.publish-intended");
        let wanted = request::publish(&volume, &stored.object, csi_node_id)?;
        let context = self.call(session.publish_volume(&wanted, &secrets)).await?;
        failpoint::abort_at("volumes.publish-called");
        let made = PublishedTo {
            node: node.clone(),
            uid: stored.object.uid().to_owned(),
            csi_node_id: csi_node_id.to_owned(),
        };
        let settled = self
            .settle(stored, |publication| {
                Some(record::published(publication, context.clone()))
            })
            .await?;
        match was_published {
            // The node may have used it since before the call, which gave it nothing that could be undone (INV-12).
            true => _ = settled.is_written()?,
            false => or_orphaned(settled, volume, Some(made))?,
        }
        failpoint::abort_at("volumes.publish-recorded");
        Ok(())
    }

    /// Records that a publication begins. Since the snapshot, the volume may be about to be unpublished from the node id, and the
    /// volume or the node may be drained.
    pub(super) async fn put_begun(
        &mut self,
        stored: &mut Versioned<Publication>,
        after: Publication,
        node: &Name,
    ) -> Result<(), Interrupted> {
        if !self.operation.snapshot.nodes.contains_key(node) {
            return Err(Interrupted::Stale);
        }
        let begun = self.put(stored, after, self.seen_of(node)).await;
        if matches!(begun, Err(Interrupted::Stale)) {
            self.see_again(node).await?;
        }
        begun
    }

    pub(super) async fn delete(&mut self) -> Result<(), Interrupted> {
        let session = self.session()?;
        let mut stored = self.stored_volume();
        let secrets = self.secrets(&stored.object, Call::Delete).await?;
        failpoint::abort_at("volumes.deleting");
        let proof = Proof::Empty(self.env.store.keys.publications_of(&self.operation.volume));
        match record::intend_delete(&stored.object) {
            Some(intent) => self.put(&mut stored, intent, [proof]).await?,
            // The record may have been put back from a tombstone since, with publications.
            None => self.prove(&stored, proof).await?,
        }
        failpoint::abort_at("volumes.delete-intended");
        let id = request::volume_id(&stored.object)?;
        self.call(session.delete_volume(&id, &secrets)).await?;
        failpoint::abort_at("volumes.delete-called");
        let volume = stored.object.clone();
        if !self.settle(stored, |_| None).await?.is_written()? {
            // It was forgotten by force meanwhile, which left a tombstone for what is gone now.
            self.remove_tombstone(&volume).await?;
        }
        failpoint::abort_at("volumes.delete-recorded");
        Ok(())
    }

    /// DeleteVolume for a volume that has no record; the intent is in its tombstone, if it has one.
    pub(super) async fn call_delete(&self, volume: &Volume) -> Result<(), Interrupted> {
        let session = self.session()?;
        let secrets = self.secrets(volume, Call::Delete).await?;
        let id = request::volume_id(volume)?;
        self.call(session.delete_volume(&id, &secrets)).await
    }

    pub(super) async fn call_unpublish(&self, volume: &Volume, csi_node_id: &str) -> Result<(), Interrupted> {
        let session = self.session()?;
        let secrets = self.secrets(volume, Call::Unpublish).await?;
        let id = request::volume_id(volume)?;
        let node = CsiNodeId::new(csi_node_id)?;
        self.call(session.unpublish_volume(&id, &node, &secrets)).await
    }

    pub(super) fn session(&self) -> Result<Arc<Session>, Interrupted> {
        self.operation.session.clone().ok_or(Interrupted::Stale)
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T, Interrupted> {
        let answer = self.attempt(call).await?;
        answer.map_err(|error| Failure::of_call(&error).into())
    }

    /// Makes a call under one of the plugin's permits, and only while the window of the term is open (INV-3). When the
    /// window closes, the controller drops the operation and with it the call.
    async fn attempt<T>(
        &self,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<Result<T, CallError>, Interrupted> {
        // The semaphore is never closed.
        let permit = self.operation.permits.acquire().await;
        let _permit = permit.map_err(|_| Interrupted::LostLeadership)?;
        match self.env.fence.window().is_open() {
            true => Ok(call.await),
            false => Err(Interrupted::LostLeadership),
        }
    }
}

fn or_orphaned(
    settled: Settled,
    volume: Volume,
    publication: Option<PublishedTo>,
) -> Result<(), Interrupted> {
    match settled {
        Settled::Written => Ok(()),
        Settled::Gone | Settled::Unreadable => Err(Interrupted::Orphaned(Box::new(Compensation {
            volume,
            publication,
        }))),
    }
}
