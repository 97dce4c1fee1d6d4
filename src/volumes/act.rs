//! Taking a step: its intent before the call, its result after, each into the record that it was computed from (INV-3).

use jiff::Timestamp;
use prost::Message;
use tokio::sync::Semaphore;

use super::index::Seen;
use super::plan::{Lost, Step, Target};
use super::record::{self, Blocked};
use super::request;
use super::write::{Proof, Write, Writer};
use crate::csi::{Class, Effect, Failure, Session};
use crate::etcd::{Fence, KeyValue, Revision};
use crate::failpoint;
use crate::proto::{Publication, Volume};
use crate::store::object::Object;
use crate::store::{Name, Store};

mod records;
mod secrets;
mod trouble;
mod undo;

pub use trouble::Trouble;

use records::RESULT_ATTEMPTS;

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
    pub seen: Seen,
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
    Note(Vec<(Target, Option<Blocked>)>),
    /// Undoes a result whose record is gone.
    Undo(Box<Undo>),
}

/// A result at the backend that no record stands for (INV-6: no backend volume is forgotten).
#[derive(Clone, Debug)]
pub struct Undo {
    /// The record as it was.
    pub volume: Volume,
    /// The volume at the backend, whole or at one node.
    pub from: Option<String>,
}

/// A record as it is known to be.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its key.
    pub key: Vec<u8>,
    /// What stands there, or when it was deleted.
    pub now: Result<KeyValue, Revision>,
    /// Whether this leader wrote it.
    pub own: bool,
}

impl Known {
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
    Look,
    /// It failed.
    Failed(Trouble),
    /// It happened at the backend, and its record is gone.
    Undo(Box<Undo>),
    /// The term is over.
    Lost,
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
    pub known: Vec<Known>,
}

/// Reasons to stop, inside of a job.
enum Stop {
    Look,
    Failed(Trouble),
    Undo(Box<Undo>),
    Lost,
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Self::Failed(trouble)
    }
}

impl From<crate::csi::Empty> for Stop {
    fn from(empty: crate::csi::Empty) -> Self {
        Self::Failed(Trouble {
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
        Task::Note(notes) => acting.note(notes).await,
        Task::Undo(undo) => acting.undo(undo).await,
    };
    let known = acting.known;
    let Job {
        name, driver, task, ..
    } = job;
    let outcome = match result {
        Ok(()) => Outcome::Done,
        Err(Stop::Look) => Outcome::Look,
        Err(Stop::Failed(trouble)) => Outcome::Failed(trouble),
        Err(Stop::Undo(undo)) => Outcome::Undo(undo),
        Err(Stop::Lost) => Outcome::Lost,
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
    known: Vec<Known>,
}

impl Acting<'_> {
    async fn step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            // The plugin is asked by whoever holds its line.
            Step::Connect => Err(Stop::Look),
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
                    Lost::Absent => Proof::Absent(key),
                    Lost::Unchanged(revision) => Proof::Unchanged(key, *revision),
                });
                self.put_publication(node, &detached, revision, proof)
                    .await
                    .map(drop)
            }
            Step::Unpublish { node, csi_node_id } => {
                failpoint::hit("volumes.unpublishing");
                self.unpublish_call(&self.job.seen.volume, csi_node_id).await?;
                failpoint::hit("volumes.unpublished");
                self.end_publication(node).await?;
                failpoint::hit("volumes.unpublish-recorded");
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
                let write = Write::delete(keys.volume(&self.job.name), self.job.seen.revision);
                self.write(write.proving(proof)).await.map(drop)
            }
        }
    }

    async fn create(&mut self) -> Result<(), Stop> {
        let session = self.session()?;
        let mut volume = self.job.seen.volume.clone();
        let mut revision = self.job.seen.revision;
        // Before the intent: a volume whose secrets are missing was never attempted.
        let secrets = self.secrets(&volume).await?;
        failpoint::hit("volumes.creating");
        let term = self.env.fence.term().0;
        let intended = record::intend_create(&volume, term, Timestamp::now());
        let is_first_attempt = intended.is_some();
        if let Some(intended) = intended {
            revision = self.put_volume(&intended, None).await?;
            volume = intended;
        }
        failpoint::hit("volumes.create-intended");
        let wanted = request::create(&volume)?;
        let answer = self.call(session.create_volume(&wanted, &secrets)).await?;
        failpoint::hit("volumes.create-called");
        match answer {
            Ok(created) => {
                let created = request::created(created);
                let mut made = volume.clone();
                made.status
                    .get_or_insert_default()
                    .volume_id
                    .clone_from(&created.volume_id);
                let undo = Undo {
                    volume: made,
                    from: None,
                };
                self.settle_volume(volume, revision, undo, |volume| {
                    record::created(volume, created.clone())
                })
                .await?;
                failpoint::hit("volumes.create-recorded");
                Ok(())
            }
            Err(failure) => {
                let trouble = Trouble::of_call(&failure);
                // Of an earlier attempt it is not known what became of it, and a plugin may refuse a request before it
                // looks whether it carried that out before: then it may be there, and is not forgotten (INV-6).
                let nothing_is_there = is_first_attempt && failure.effect() == Effect::None;
                if failure.class() == Class::Final && nothing_is_there {
                    let refused = record::create_refused(&volume);
                    let refused = record::volume_blocked(&refused, Some(&trouble.why), Timestamp::now())
                        .unwrap_or(refused);
                    self.put_volume_at(&refused, revision, None).await?;
                }
                Err(trouble.into())
            }
        }
    }

    async fn expand(&mut self) -> Result<(), Stop> {
        let session = self.session()?;
        let (volume, revision) = (self.job.seen.volume.clone(), self.job.seen.revision);
        let secrets = self.secrets(&volume).await?;
        let wanted = request::expand(&volume)?;
        failpoint::hit("volumes.expanding");
        let answer = self.call(session.expand_volume(&wanted, &secrets)).await?;
        failpoint::hit("volumes.expanded");
        let expanded = answer.map_err(|failure| Trouble::of_call(&failure))?;
        let asked = crate::store::object::volume::required_bytes(&volume);
        let has = expanded.capacity.map_or(0, request::to_bytes);
        self.settle_volume_if_there(volume, revision, |volume| record::expanded(volume, asked, has))
            .await
    }

    async fn publish(&mut self, node: &Name, csi_node_id: &str) -> Result<(), Stop> {
        let session = self.session()?;
        let volume = self.job.seen.volume.clone();
        let (mut publication, mut revision) = self.publication(node)?;
        let secrets = self.secrets(&volume).await?;
        failpoint::hit("volumes.publishing");
        if let Some(intended) = record::intend_publish(&publication, csi_node_id) {
            revision = self.put_publication(node, &intended, revision, None).await?;
            publication = intended;
        }
        failpoint::hit("volumes.publish-intended");
        let wanted = request::publish(&volume, &publication, csi_node_id)?;
        let answer = self.call(session.publish_volume(&wanted, &secrets)).await?;
        failpoint::hit("volumes.publish-called");
        let context = answer.map_err(|failure| Trouble::of_call(&failure))?;
        let undo = Undo {
            volume,
            from: Some(csi_node_id.to_owned()),
        };
        self.settle_publication(node, publication, revision, undo, |publication| {
            record::published(publication, context.clone())
        })
        .await?;
        failpoint::hit("volumes.publish-recorded");
        Ok(())
    }

    async fn unpublish_call(&mut self, volume: &Volume, csi_node_id: &str) -> Result<(), Stop> {
        let session = self.session()?;
        let secrets = self.secrets(volume).await?;
        let id = request::volume_id(volume)?;
        let node = crate::csi::CsiNodeId::new(csi_node_id)?;
        let answer = self.call(session.unpublish_volume(&id, &node, &secrets)).await?;
        answer.map_err(|failure| Trouble::of_call(&failure).into())
    }

    async fn delete(&mut self) -> Result<(), Stop> {
        let session = self.session()?;
        let volume = self.job.seen.volume.clone();
        let mut revision = self.job.seen.revision;
        let secrets = self.secrets(&volume).await?;
        failpoint::hit("volumes.deleting");
        if let Some(intended) = record::intend_delete(&volume) {
            let proof = Proof::Empty(self.env.store.keys.publications_of(&self.job.name));
            revision = self.put_volume(&intended, Some(proof)).await?;
        }
        failpoint::hit("volumes.delete-intended");
        let id = request::volume_id(&volume)?;
        let answer = self.call(session.delete_volume(&id, &secrets)).await?;
        failpoint::hit("volumes.delete-called");
        answer.map_err(|failure| Trouble::of_call(&failure))?;
        self.forget_volume(revision).await?;
        failpoint::hit("volumes.delete-recorded");
        Ok(())
    }

    /// The record of a volume that is deleted at the backend goes, whatever was written to it meanwhile.
    async fn forget_volume(&mut self, mut revision: Revision) -> Result<(), Stop> {
        let key = self.env.store.keys.volume(&self.job.name);
        for _ in 0..RESULT_ATTEMPTS {
            match self.write(Write::delete(key.clone(), revision)).await {
                Err(Stop::Look) => match self.same_volume().await? {
                    Some((_, now)) => revision = now,
                    // Forgotten by force meanwhile, with a tombstone for what is now gone.
                    None => return self.remove_tombstone(&self.job.seen.volume).await,
                },
                other => return other.map(drop),
            }
        }
        Err(Stop::Look)
    }

    /// The record of a publication goes, or begins anew.
    async fn end_publication(&mut self, node: &Name) -> Result<(), Stop> {
        let (mut publication, mut revision) = self.publication(node)?;
        let here = self.job.seen.nodes.get(node);
        let here = here.filter(|node| !node.out_of_service && !node.uid.is_empty());
        let marked = self.job.seen.volume.is_marked();
        let key = self.env.store.keys.publication(&self.job.name, node);
        for _ in 0..RESULT_ATTEMPTS {
            let anew = record::ended(&publication, here.map(|node| node.uid.as_str()), marked);
            let write = match anew {
                Some(anew) => Write::put(key.clone(), revision, anew.encode_to_vec()),
                None => Write::delete(key.clone(), revision),
            };
            match self.write(write).await {
                Err(Stop::Look) => match self.same_publication(node, &publication).await? {
                    Some((now, at)) => (publication, revision) = (now, at),
                    None => return Ok(()),
                },
                other => return other.map(drop),
            }
        }
        Err(Stop::Look)
    }

    async fn note(&mut self, notes: &[(Target, Option<Blocked>)]) -> Result<(), Stop> {
        let now = Timestamp::now();
        for (target, why) in notes {
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
                Target::Stray(_) | Target::Leftover => {}
            }
        }
        Ok(())
    }

    fn session(&self) -> Result<std::sync::Arc<Session>, Stop> {
        self.job.session.clone().ok_or(Stop::Look)
    }

    fn publication(&self, node: &Name) -> Result<(Publication, Revision), Stop> {
        let seen = &self.job.seen;
        let publication = seen.publications.get(node).cloned();
        let revision = seen.revisions.get(node).copied();
        publication.zip(revision).ok_or(Stop::Look)
    }

    /// A call, within the plugin's number of calls at a time and within the window of the term (INV-3).
    async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<Result<T, Failure>, Stop> {
        // Never closed.
        let _permit = self.job.permits.acquire().await.map_err(|_| Stop::Lost)?;
        let window = self.env.fence.window();
        if !window.is_open() {
            return Err(Stop::Lost);
        }
        tokio::select! {
            biased;
            () = window.closed() => Err(Stop::Lost),
            answer = call => Ok(answer),
        }
    }
}
