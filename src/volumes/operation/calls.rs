//! The calls: an intent before each that needs one, its result after (INV-3).

use jiff::Timestamp;

use super::{Acting, Compensation, Failure, Interrupted};
use crate::csi::{CallError, Class, Effect, Session};
use crate::failpoint;
use crate::proto::Volume;
use crate::store::Name;
use crate::store::object::volume::required_bytes;
use crate::store::writer::Proof;
use crate::volumes::{record, request};

impl Acting<'_> {
    pub(super) async fn create(&mut self) -> Result<(), Interrupted> {
        let session = self.session()?;
        let mut volume = self.job.seen.volume.clone();
        let mut revision = self.job.seen.revision;
        // Before the intent: a volume whose secrets are missing was never attempted.
        let secrets = self.secrets(&volume).await?;
        failpoint::abort_at("volumes.creating");
        let term = self.env.fence.term().0;
        let intended = record::intend_create(&volume, term, Timestamp::now());
        let is_first_attempt = intended.is_some();
        if let Some(intended) = intended {
            revision = self.put_volume(&intended, None).await?;
            volume = intended;
        }
        failpoint::abort_at("volumes.create-intended");
        let wanted = request::create(&volume)?;
        let answer = self.call(session.create_volume(&wanted, &secrets)).await?;
        failpoint::abort_at("volumes.create-called");
        match answer {
            Ok(created) => {
                let created = request::created(created);
                let mut made = volume.clone();
                made.status
                    .get_or_insert_default()
                    .volume_id
                    .clone_from(&created.volume_id);
                let compensation = Compensation {
                    volume: made,
                    from: None,
                };
                self.settle_volume(volume, revision, compensation, |volume| {
                    record::created(volume, created.clone())
                })
                .await?;
                failpoint::abort_at("volumes.create-recorded");
                Ok(())
            }
            Err(error) => {
                let failure = Failure::of_call(&error);
                // Of an earlier attempt it is not known what became of it, and a plugin may refuse a request before it
                // looks whether it carried that out before: then it may be there, and is not forgotten (INV-6).
                let nothing_is_there = is_first_attempt && error.effect() == Effect::None;
                if error.class() == Class::Final && nothing_is_there {
                    let refused = record::create_refused(&volume);
                    let refused = record::volume_blocked(&refused, Some(&failure.why), Timestamp::now())
                        .unwrap_or(refused);
                    self.put_volume_at(&refused, revision, None).await?;
                }
                Err(failure.into())
            }
        }
    }

    pub(super) async fn expand(&mut self) -> Result<(), Interrupted> {
        let session = self.session()?;
        let (volume, revision) = (self.job.seen.volume.clone(), self.job.seen.revision);
        let secrets = self.secrets(&volume).await?;
        let wanted = request::expand(&volume)?;
        failpoint::abort_at("volumes.expanding");
        let answer = self.call(session.expand_volume(&wanted, &secrets)).await?;
        failpoint::abort_at("volumes.expanded");
        let expanded = answer.map_err(|error| Failure::of_call(&error))?;
        let asked = required_bytes(&volume);
        let has = expanded.capacity.map_or(0, request::to_bytes);
        self.settle_volume_if_there(volume, revision, |volume| record::expanded(volume, asked, has))
            .await
    }

    pub(super) async fn publish(&mut self, node: &Name, csi_node_id: &str) -> Result<(), Interrupted> {
        let session = self.session()?;
        let volume = self.job.seen.volume.clone();
        let (mut publication, mut revision) = self.publication(node)?;
        let secrets = self.secrets(&volume).await?;
        failpoint::abort_at("volumes.publishing");
        if let Some(intended) = record::intend_publish(&publication, csi_node_id) {
            revision = self.put_publication(node, &intended, revision, None).await?;
            publication = intended;
        }
        failpoint::abort_at("volumes.publish-intended");
        let wanted = request::publish(&volume, &publication, csi_node_id)?;
        let answer = self.call(session.publish_volume(&wanted, &secrets)).await?;
        failpoint::abort_at("volumes.publish-called");
        let context = answer.map_err(|error| Failure::of_call(&error))?;
        let compensation = Compensation {
            volume,
            from: Some(csi_node_id.to_owned()),
        };
        self.settle_publication(node, publication, revision, compensation, |publication| {
            record::published(publication, context.clone())
        })
        .await?;
        failpoint::abort_at("volumes.publish-recorded");
        Ok(())
    }

    pub(super) async fn unpublish_call(
        &mut self,
        volume: &Volume,
        csi_node_id: &str,
    ) -> Result<(), Interrupted> {
        let session = self.session()?;
        let secrets = self.secrets(volume).await?;
        let id = request::volume_id(volume)?;
        let node = crate::csi::CsiNodeId::new(csi_node_id)?;
        let answer = self.call(session.unpublish_volume(&id, &node, &secrets)).await?;
        answer.map_err(|error| Failure::of_call(&error).into())
    }

    pub(super) async fn delete(&mut self) -> Result<(), Interrupted> {
        let session = self.session()?;
        let volume = self.job.seen.volume.clone();
        let mut revision = self.job.seen.revision;
        let secrets = self.secrets(&volume).await?;
        failpoint::abort_at("volumes.deleting");
        if let Some(intended) = record::intend_delete(&volume) {
            let proof = Proof::Empty(self.env.store.keys.publications_of(&self.job.name));
            revision = self.put_volume(&intended, Some(proof)).await?;
        }
        failpoint::abort_at("volumes.delete-intended");
        let id = request::volume_id(&volume)?;
        let answer = self.call(session.delete_volume(&id, &secrets)).await?;
        failpoint::abort_at("volumes.delete-called");
        answer.map_err(|error| Failure::of_call(&error))?;
        self.forget_volume(revision).await?;
        failpoint::abort_at("volumes.delete-recorded");
        Ok(())
    }

    pub(super) fn session(&self) -> Result<std::sync::Arc<Session>, Interrupted> {
        self.job.session.clone().ok_or(Interrupted::Stale)
    }

    /// A call, within the plugin's number of calls at a time and within the window of the term (INV-3).
    pub(super) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<Result<T, CallError>, Interrupted> {
        // Never closed.
        let _permit = self
            .job
            .permits
            .acquire()
            .await
            .map_err(|_| Interrupted::LostLeadership)?;
        let window = self.env.fence.window();
        if !window.is_open() {
            return Err(Interrupted::LostLeadership);
        }
        tokio::select! {
            biased;
            () = window.closed() => Err(Interrupted::LostLeadership),
            answer = call => Ok(answer),
        }
    }
}
