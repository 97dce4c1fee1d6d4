//! Taking a step: its intent before the call, its result after, each into the record that it was computed from (INV-3).

use jiff::Timestamp;
use tokio::sync::Semaphore;

use super::index::VolumeSnapshot;
use super::plan::{Lost, Step, Target};
use super::record::{self, Blocked};
use crate::csi::Session;
use crate::etcd::{Fence, KeyValue, Revision};
use crate::failpoint;
use crate::proto::{Publication, Volume};
use crate::store::writer::{Proof, Unit, Writer};
use crate::store::{Name, Store};

mod calls;
mod compensate;
mod failure;
mod records;
mod secrets;

pub use failure::Failure;

/// What every step needs.
#[derive(Clone, Debug)]
pub struct Env {
    /// Where the records lie.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// How they are written.
    pub writer: Writer,
}

/// One step of one volume.
#[derive(Clone, Debug)]
pub struct Job {
    /// Which volume.
    pub name: Name,
    /// Its plugin.
    pub driver: Name,
    /// As it was seen.
    pub seen: VolumeSnapshot,
    /// What to do.
    pub task: Task,
    /// The plugin, where one was needed to decide.
    pub session: Option<std::sync::Arc<Session>>,
    /// Calls of the plugin at a time.
    pub permits: std::sync::Arc<Semaphore>,
}

/// What a job does.
#[derive(Clone, Debug)]
pub enum Task {
    /// The next step.
    Step(Step),
    /// Says in the records what blocks, or that nothing does any more.
    SetConditions(Vec<(Target, Option<Blocked>)>),
    /// Undoes a result whose record is gone.
    Compensate(Box<Compensation>),
}

/// A result at the backend that no record stands for (INV-6: no backend volume is forgotten).
#[derive(Clone, Debug)]
pub struct Compensation {
    /// The record as it was.
    pub volume: Volume,
    /// The volume at the backend, whole or at one node.
    pub from: Option<String>,
}

/// A record as it is known to be.
#[derive(Clone, Debug)]
pub struct RecordSnapshot {
    /// Its key.
    pub key: Vec<u8>,
    /// What stands there, or when it was deleted.
    pub now: Result<KeyValue, Revision>,
    /// Whether this leader wrote it.
    pub own: bool,
}

impl RecordSnapshot {
    /// When it came to be so.
    pub fn revision(&self) -> Revision {
        self.now
            .as_ref()
            .map_or_else(|deleted| *deleted, |kv| kv.mod_revision)
    }
}

/// What became of a job.
#[derive(Debug)]
pub enum Outcome {
    /// Done.
    Done,
    /// What it was decided from is not the case any more.
    Stale,
    /// It failed.
    Failed(Failure),
    /// It happened at the backend, and its record is gone.
    Orphaned(Box<Compensation>),
    /// The term is over.
    LostLeadership,
}

/// A job that ended.
#[derive(Debug)]
pub struct Ended {
    /// The job's volume.
    pub name: Name,
    /// The plugin that it began with.
    pub driver: Name,
    /// What it did.
    pub task: Task,
    /// How it went.
    pub outcome: Outcome,
    /// The records that it wrote or read.
    pub known: Vec<RecordSnapshot>,
}

/// Reasons to stop, inside of a job.
enum Interrupted {
    Stale,
    Failed(Failure),
    Orphaned(Box<Compensation>),
    LostLeadership,
}

impl From<Failure> for Interrupted {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<crate::csi::Empty> for Interrupted {
    fn from(empty: crate::csi::Empty) -> Self {
        Self::Failed(Failure {
            why: Blocked {
                reason: "RecordIncomplete".to_owned(),
                message: empty.to_string(),
            },
            pace: None,
            is_quiet: false,
        })
    }
}

/// Does a job. Whoever drops it cancels its call.
pub async fn act(env: Env, job: Job) -> Ended {
    let mut acting = Acting {
        env: &env,
        job: &job,
        known: Vec::new(),
    };
    let result = match &job.task {
        Task::Step(step) => acting.step(step).await,
        Task::SetConditions(changes) => acting.set_conditions(changes).await,
        Task::Compensate(compensation) => acting.compensate(compensation).await,
    };
    let known = acting.known;
    let Job {
        name, driver, task, ..
    } = job;
    let outcome = match result {
        Ok(()) => Outcome::Done,
        Err(Interrupted::Stale) => Outcome::Stale,
        Err(Interrupted::Failed(failure)) => Outcome::Failed(failure),
        Err(Interrupted::Orphaned(compensation)) => Outcome::Orphaned(compensation),
        Err(Interrupted::LostLeadership) => Outcome::LostLeadership,
    };
    Ended {
        name,
        driver,
        task,
        outcome,
        known,
    }
}

struct Acting<'a> {
    env: &'a Env,
    job: &'a Job,
    known: Vec<RecordSnapshot>,
}

impl Acting<'_> {
    async fn step(&mut self, step: &Step) -> Result<(), Interrupted> {
        match step {
            // The plugin is asked by whoever holds its line.
            Step::Connect => Err(Interrupted::Stale),
            Step::Create => self.create().await,
            Step::TakeName => {
                let taken = record::name_taken(&self.job.seen.volume, Timestamp::now());
                self.put_volume(&taken, None).await.map(drop)
            }
            Step::Expand => self.expand().await,
            Step::Publish { node, csi_node_id } => self.publish(node, csi_node_id).await,
            Step::PublishNothing { node } => {
                let (publication, revision) = self.publication(node)?;
                let published = record::published(&publication, Default::default());
                self.put_publication(node, &published, revision, None)
                    .await
                    .map(drop)
            }
            Step::Detach { node, lost, again } => {
                let (publication, revision) = self.publication(node)?;
                let detached = record::detached(&publication, *again);
                let key = self.env.store.keys.node(node);
                let proof = lost.as_ref().map(|lost| match lost {
                    Lost::Absent => Proof::Unchanged(key, Revision::ABSENT),
                    Lost::Unchanged(revision) => Proof::Unchanged(key, *revision),
                });
                self.put_publication(node, &detached, revision, proof)
                    .await
                    .map(drop)
            }
            Step::Unpublish { node, csi_node_id } => {
                failpoint::abort_at("volumes.unpublishing");
                self.unpublish_call(&self.job.seen.volume, csi_node_id).await?;
                failpoint::abort_at("volumes.unpublished");
                self.end_publication(node).await?;
                failpoint::abort_at("volumes.unpublish-recorded");
                Ok(())
            }
            Step::UnpublishStray { csi_node_id } => {
                self.unpublish_call(&self.job.seen.volume, csi_node_id).await
            }
            Step::Forget { node } => self.end_publication(node).await,
            Step::Delete => self.delete().await,
            Step::Drop => {
                let keys = &self.env.store.keys;
                let proof = Proof::Empty(keys.publications_of(&self.job.name));
                let drop = Unit::new().delete(keys.volume(&self.job.name), self.job.seen.revision);
                self.write(drop.proving(proof)).await?;
                Ok(())
            }
        }
    }

    async fn set_conditions(&mut self, changes: &[(Target, Option<Blocked>)]) -> Result<(), Interrupted> {
        let now = Timestamp::now();
        for (target, why) in changes {
            match target {
                Target::Volume => {
                    if let Some(after) = record::volume_blocked(&self.job.seen.volume, why.as_ref(), now) {
                        self.put_volume(&after, None).await?;
                    }
                }
                Target::Node(node) => {
                    let (publication, revision) = self.publication(node)?;
                    if let Some(after) = record::publication_blocked(&publication, why.as_ref(), now) {
                        self.put_publication(node, &after, revision, None).await?;
                    }
                }
                // No record stands for them.
                Target::Stray(_) | Target::Orphaned => {}
            }
        }
        Ok(())
    }

    fn publication(&self, node: &Name) -> Result<(Publication, Revision), Interrupted> {
        let seen = &self.job.seen;
        let publication = seen.publications.get(node).cloned();
        let revision = seen.revisions.get(node).copied();
        publication.zip(revision).ok_or(Interrupted::Stale)
    }
}
