//! Operations: one at a time on a volume. The intent is committed before a call and the result after it, each into the
//! record that it was computed from (INV-3).

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::index::VolumeSnapshot;
use super::plan::{Lost, Step};
use super::record::{self, Conditions};
use super::request;
use crate::csi::Session;
use crate::etcd::{Fence, KeyValue, Revision, Stop};
use crate::failpoint;
use crate::grpc_code;
use crate::proto::Publication;
use crate::secrets::Reader;
use crate::store::writer::{Proof, Writer};
use crate::store::{Name, Store};

mod calls;
mod compensate;
mod failure;
mod forgotten;
mod records;
mod secrets;
mod undo;

use records::Versioned;

pub use compensate::{Compensation, Held, PublishedTo};
pub use failure::{Failure, QUICK, ReadRecord, SLOW, WaitsFor};

/// What every operation of a term shares.
#[derive(Clone, Debug)]
pub struct Env {
    /// etcd, and the keys of the records.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// Writes the records.
    pub writer: Writer,
    /// Reads the values of Secrets.
    pub secrets: Reader,
}

/// One operation on one volume. A volume never has two (INV-6).
#[derive(Clone, Debug)]
pub struct Operation {
    /// The volume's name.
    pub volume: Name,
    /// Its plugin's name.
    pub driver: Name,
    /// The records that the operation was decided from.
    pub snapshot: VolumeSnapshot,
    /// What the operation does.
    pub action: Action,
    /// The plugin's session, if there was one when the operation was decided on.
    pub session: Option<Arc<Session>>,
    /// Whether secrets may be sent where they can be read on their way.
    pub plaintext_secrets: bool,
    /// Whether the plugin is asked for its capacity before a creation.
    pub checks_capacity: bool,
    /// One permit a call: the plugin's concurrency.
    pub permits: Arc<Semaphore>,
}

/// What an operation does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Takes the step that the plan chose.
    Step(Step),
    /// Writes conditions that are out of date.
    SetConditions(Conditions),
    /// Records that the volume is unpublished from where a call has published it for a publication that is gone: the plan does
    /// that from then on.
    RecordStray(PublishedTo),
    /// Undoes a result whose record is gone.
    Compensate(Box<Compensation>),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => step.fmt(f),
            Self::SetConditions(_) => f.write_str("set conditions"),
            Self::RecordStray(_) => f.write_str("record a node id to unpublish from"),
            Self::Compensate(_) => f.write_str("undo a result whose record is gone"),
        }
    }
}

/// A record as this leader last wrote or read it.
#[derive(Clone, Debug)]
pub struct RecordSnapshot {
    /// The record's key.
    pub key: Vec<u8>,
    /// The stored value, or the revision at which there was none.
    pub now: Result<KeyValue, Revision>,
    /// Whether this leader wrote it.
    pub own: bool,
}

impl RecordSnapshot {
    /// The revision of the value, or that at which there was none.
    pub fn revision(&self) -> Revision {
        self.now
            .as_ref()
            .map_or_else(|deleted| *deleted, |kv| kv.mod_revision)
    }
}

/// Why an operation did not reach its end.
#[derive(Debug)]
pub enum Interrupted {
    /// A record is not as it was in the snapshot: plan again.
    Stale,
    /// A call, a read or a write failed, or the operation lacks something.
    Failed(Failure),
    /// The call succeeded, and its result is in no record: the record is gone, or cannot be read.
    Orphaned(Box<Compensation>),
    /// The term is over.
    LostLeadership,
}

impl From<Failure> for Interrupted {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Stop> for Interrupted {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::LostLeadership => Self::LostLeadership,
            Stop::Stale => Self::Stale,
            Stop::Unavailable(error) => Self::Failed(Failure::etcd(&error)),
        }
    }
}

impl From<crate::etcd::Error> for Interrupted {
    fn from(error: crate::etcd::Error) -> Self {
        Stop::from(error).into()
    }
}

impl From<crate::csi::Empty> for Interrupted {
    fn from(empty: crate::csi::Empty) -> Self {
        Self::Failed(Failure::incomplete_record(&empty))
    }
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The operation's volume.
    pub volume: Name,
    /// The plugin's name when the operation began.
    pub driver: Name,
    /// What the operation did.
    pub action: Action,
    /// Whether it reached its end.
    pub result: Result<(), Interrupted>,
    /// The records that it wrote or read, in that order.
    pub records: Vec<RecordSnapshot>,
}

impl Completion {
    /// How the operation ended, in one word: for traces.
    pub fn outcome(&self) -> &'static str {
        match &self.result {
            Ok(()) => "OK",
            Err(Interrupted::Stale) => "Stale",
            Err(Interrupted::Failed(failure)) => failure.code.map_or("Failed", grpc_code::name),
            Err(Interrupted::Orphaned(_)) => "Orphaned",
            Err(Interrupted::LostLeadership) => "LostLeadership",
        }
    }
}

impl Operation {
    /// Runs to completion. Dropping the future cancels the call in flight.
    pub async fn run(self, env: Env) -> Completion {
        let mut run = Run {
            env: &env,
            operation: &self,
            records: Vec::new(),
        };
        let result = match &self.action {
            Action::Step(step) => run.step(step).await,
            Action::SetConditions(changes) => run.set_conditions(changes).await,
            Action::RecordStray(made) => run.record_stray(made).await,
            Action::Compensate(compensation) => run.compensate(compensation).await,
        };
        let records = run.records;
        Completion {
            volume: self.volume,
            driver: self.driver,
            action: self.action,
            result,
            records,
        }
    }
}

/// An operation that runs.
struct Run<'a> {
    env: &'a Env,
    operation: &'a Operation,
    /// Becomes [`Completion::records`].
    records: Vec<RecordSnapshot>,
}

impl Run<'_> {
    async fn step(&mut self, step: &Step) -> Result<(), Interrupted> {
        match step {
            // Never reached: the controller connects instead of starting an operation.
            Step::Connect => Err(Interrupted::Stale),
            Step::Create => self.create().await,
            Step::TakeIn => self.take_in().await,
            Step::TakeBackend => {
                let backend = request::backend(&*self.session()?);
                let stored = &mut self.stored_volume();
                let named = record::with_backend(&stored.object, backend);
                self.put(stored, named, None).await
            }
            Step::TakeName => self.take_name().await,
            Step::Expand => self.expand().await,
            Step::EndNodeExpansion { bytes } => {
                let stored = self.stored_volume();
                let settled = self.settle(stored, |volume| Some(record::node_expanded(volume, *bytes)));
                settled.await?.is_written().map(drop)
            }
            Step::Publish { node, csi_node_id } => self.publish(node, csi_node_id).await,
            Step::PublishNothing { node } => {
                let stored = &mut self.stored_publication(node)?;
                let published = record::published_without_call(&stored.object);
                self.put_begun(stored, published, node).await
            }
            Step::Detach { node, lost, again } => self.detach(node, lost.as_ref(), *again).await,
            Step::Unpublish {
                node,
                csi_node_id,
                restart,
            } => {
                failpoint::abort_at("volumes.unpublishing");
                let volume = &self.operation.snapshot.volume;
                self.call_unpublish(volume, csi_node_id).await?;
                failpoint::abort_at("volumes.unpublished");
                self.end_publication(node, restart.as_deref()).await?;
                failpoint::abort_at("volumes.unpublish-recorded");
                Ok(())
            }
            Step::UnpublishStray { csi_node_id } => {
                let volume = &self.operation.snapshot.volume;
                self.call_unpublish(volume, csi_node_id).await?;
                self.drop_stray(csi_node_id).await
            }
            Step::DropStray { csi_node_id } => self.drop_stray(csi_node_id).await,
            Step::EndPublication { node, restart } => self.end_publication(node, restart.as_deref()).await,
            Step::Delete => self.delete().await,
            Step::DeleteRecord => {
                let stored = self.stored_volume();
                let proof = Proof::Empty(self.env.store.keys.publications_of(&self.operation.volume));
                self.write(&stored, None, [proof]).await.map(drop)
            }
        }
    }

    async fn drop_stray(&mut self, csi_node_id: &str) -> Result<(), Interrupted> {
        let stored = self.stored_volume();
        // Where the record is gone, so is what asked for it.
        let settled = self.settle(stored, |volume| Some(record::without_stray(volume, csi_node_id)));
        settled.await?.is_written().map(drop)
    }

    async fn detach(&mut self, node: &Name, lost: Option<&Lost>, again: bool) -> Result<(), Interrupted> {
        let stored = &mut self.stored_publication(node)?;
        let keys = &self.env.store.keys;
        let proof = lost.map(|lost| match lost {
            Lost::Removed { uid, revision } => Proof::Unchanged(keys.removed(uid), *revision),
            Lost::OutOfService(revision) => Proof::Unchanged(keys.node(node), *revision),
        });
        let detached = record::detached(&stored.object, again);
        self.put(stored, detached, proof).await
    }

    /// Ends a publication of which nothing is left at the backend: starts it over, if that was asked for, or deletes it.
    async fn end_publication(&mut self, node: &Name, restart: Option<&str>) -> Result<(), Interrupted> {
        let stored = self.stored_publication(node)?;
        if restart.is_none() {
            return self.delete_publication(node, &stored).await;
        }
        // Where the record is gone, someone else has ended it.
        let uid = Uuid::new_v4().to_string();
        let settled = self.settle(stored, |publication| record::ended(publication, restart, &uid));
        settled.await?.is_written().map(drop)
    }

    /// Deletes a publication that does not start over. A request for that which came in since is decided on by the next plan, and one
    /// that stands is given up only for the volume and the node as they are now: the node may have been drained, or another one, when
    /// the step was planned.
    async fn delete_publication(
        &mut self,
        node: &Name,
        stored: &Versioned<Publication>,
    ) -> Result<(), Interrupted> {
        let spec = stored.object.spec.as_ref();
        let is_requested = spec.is_some_and(|spec| spec.again);
        let proofs = is_requested.then(|| self.seen_of(node));
        let deleted = self.write(stored, None, proofs.into_iter().flatten()).await;
        if matches!(deleted, Err(Interrupted::Stale)) {
            self.see_again(node).await?;
        }
        deleted.map(drop)
    }

    async fn set_conditions(&mut self, changes: &Conditions) -> Result<(), Interrupted> {
        let now = Timestamp::now();
        let stored = &mut self.stored_volume();
        if let Some(why) = &changes.volume
            && let Some(after) = record::volume_blocked(&stored.object, why.as_ref(), now)
        {
            self.put(stored, after, None).await?;
        }
        if let Some(why) = &changes.drift
            && let Some(after) = record::volume_drifted(&stored.object, why.as_ref(), now)
        {
            self.put(stored, after, None).await?;
        }
        if changes.capacity_accepted
            && let Some(after) = record::capacity_accepted(&stored.object, now)
        {
            self.put(stored, after, None).await?;
        }
        for (node, why) in &changes.nodes {
            let stored = &mut self.stored_publication(node)?;
            if let Some(after) = record::publication_blocked(&stored.object, why.as_ref(), now) {
                self.put(stored, after, None).await?;
            }
        }
        Ok(())
    }
}
