//! The results of the requests about objects: taken in as they come, and recorded together.

use std::collections::HashSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::time::timeout_at;
use tracing::info;

use super::act::{Job, PruneResult, Write, WriteResult};
use super::controller::{Reconciler, api_server, etcd};
use super::inventory::Entry;
use super::jobs::Ended;
use super::memory::Memory;
use super::report::{Act, Outcome, Report, Stopped};
use crate::etcd::Fence;
use crate::kube::{Error as ApiError, ObjectRef};
use crate::store::writer::COMPARES;

/// A pass in which no result comes for this long ends early if another object of the bundle changed meanwhile. A server
/// under load answers within it.
const BRIEF: Duration = Duration::from_secs(1);

/// Results that are recorded together: what a transaction holds, since each is one compare.
const BATCH: usize = COMPARES;

/// Results that come within this time of the first are recorded with it: a write to etcd costs as much as a few requests, and
/// an API server on two cores takes about this long for a [`BATCH`]. The last result of a pass waits for no other. If the leader
/// dies meanwhile, the next one applies the objects again, which changes nothing.
const GATHER: Duration = Duration::from_millis(200);

impl Reconciler {
    /// Waits for the jobs of these objects, as far as they are answered in time, and takes in and records the results of all
    /// that end.
    pub(super) async fn finish(
        &mut self,
        fence: &Fence,
        mut objects: HashSet<ObjectRef>,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        loop {
            self.take_in_all(fence, std::mem::take(&mut objects), report)
                .await?;
            self.record_results(fence).await?;
            // Jobs end during the record as well. Nothing is decided about an object whose result is not taken in.
            if self.ended.is_empty() {
                return Ok(());
            }
        }
    }

    /// The same, but the last results are recorded with the next ones: the jobs that follow wait for no write to
    /// etcd.
    pub(super) async fn take_in_all(
        &mut self,
        fence: &Fence,
        mut objects: HashSet<ObjectRef>,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        loop {
            let ended = self.next_results(&objects).await;
            if ended.is_empty() {
                return Ok(());
            }
            let subjects: Vec<ObjectRef> = ended.iter().map(|ended| ended.subject.clone()).collect();
            self.take_in(fence, ended, report).await?;
            for object in subjects {
                // One that is recreated goes on.
                if !self.jobs.is_busy(&object) {
                    objects.remove(&object);
                }
            }
            if !objects.is_empty() {
                self.record_results(fence).await?;
            }
        }
    }

    /// The results to record together: what came during the last record, or else the next result; and what follows it
    /// soon. Empty once no object of these is waited for any more.
    async fn next_results(&mut self, objects: &HashSet<ObjectRef>) -> Vec<Ended<ObjectRef, Job>> {
        // They stay in `self.ended` until they are complete: a pass that is cut short loses none.
        if self.ended.is_empty() && !objects.is_empty() {
            let next = self.next_result().await;
            self.ended.extend(next);
        }
        let is_awaited = |ended: &&Ended<ObjectRef, Job>| objects.contains(&ended.subject);
        let mut awaited = objects.len() - self.ended.iter().filter(is_awaited).count();
        let until = tokio::time::Instant::now() + GATHER;
        while !self.ended.is_empty() && awaited > 0 && self.ended.len() < BATCH {
            let next = self.jobs.next(self.settings.in_flight);
            let Ok(Some(more)) = timeout_at(until, next).await else {
                break;
            };
            awaited -= usize::from(is_awaited(&&more));
            self.ended.push(more);
        }
        std::mem::take(&mut self.ended)
    }

    /// The next result that the pass waits for; `None` once the rest lingers, or once another object needs a pass while no
    /// result comes.
    async fn next_result(&mut self) -> Option<Ended<ObjectRef, Job>> {
        let quiet_at = tokio::time::Instant::now() + BRIEF;
        let mut quiet = false;
        loop {
            tokio::select! {
                biased;
                next = self.jobs.next(self.settings.in_flight) => return next,
                () = tokio::time::sleep_until(quiet_at), if !quiet => quiet = true,
                () = self.watches.noted(), if quiet => {}
            }
            if quiet && self.has_news() {
                return None;
            }
        }
    }

    /// Remembers and reports results, and keeps the entries that follow from them.
    ///
    /// # Errors
    /// [`Stopped::ApiServer`] if one of them says that the server as a whole is unusable. All jobs are dropped then.
    async fn take_in(
        &mut self,
        fence: &Fence,
        ended: Vec<Ended<ObjectRef, Job>>,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        let (mut forgotten, mut recreated, mut errors) = (Vec::new(), Vec::new(), Vec::new());
        for Ended {
            subject: object,
            result,
        } in ended
        {
            let (outcome, act) = match result {
                Job::Written(result) => {
                    let (mut write, result) = *result;
                    if result.recreates.is_some() {
                        write.recreation = result.recreates;
                        recreated.push(write);
                        continue;
                    }
                    if let Some(in_sync) = &result.in_sync {
                        let entry = self.entry_of(&write.manifest, Some(in_sync));
                        self.unrecorded.push((object.clone(), entry));
                    }
                    if let Some(meta) = &result.left {
                        self.cluster.note(&object, meta, false);
                    }
                    errors.extend(result.error.clone());
                    let act = result.act.clone();
                    (remember(&mut self.memory, &write, result), act)
                }
                Job::Pruned(Ok(result)) => self.take_in_pruned(&object, result, &mut forgotten),
                // A pass has seen that the object is gone, and has forgotten it, before the request ended.
                Job::Pruned(Err(error)) if self.inventory.get(&object).is_none() => {
                    self.memory.forget(&object);
                    errors.push(error);
                    continue;
                }
                Job::Pruned(Err(error)) => {
                    let why = remember_refusal(&mut self.memory, &object, &error);
                    errors.push(error);
                    (Outcome::Failed(why), None)
                }
            };
            if let Some(act) = act {
                self.note(act);
            }
            report.set(object, outcome);
        }
        let down = self.unusable(errors).await;
        // A process that dies before the new uid is recorded leaves an entry that fits whatever object we made.
        let intents = recreated.iter().map(|write| {
            let entry = Entry {
                // The label of the present object names the bundle that wrote it.
                bundle: self.inventory.entry(&write.manifest.object).bundle,
                recreating: true,
                ..self.entry_of(&write.manifest, None)
            };
            (write.manifest.object.clone(), entry)
        });
        let intents: Vec<(ObjectRef, Entry)> = intents.collect();
        if !intents.is_empty() || down.is_some() {
            self.unrecorded.extend(intents);
            self.record_results(fence).await?;
        }
        self.forget(fence, &forgotten).await?;
        for mut write in recreated {
            write.recorded = self.inventory.entry(&write.manifest.object);
            self.put_in_place(write);
        }
        let Some(error) = down else { return Ok(()) };
        self.jobs.clear();
        Err(api_server(error))
    }

    /// Takes in what became of a deletion.
    fn take_in_pruned(
        &mut self,
        object: &ObjectRef,
        result: PruneResult,
        forgotten: &mut Vec<ObjectRef>,
    ) -> (Outcome, Option<Act>) {
        if result.gone {
            self.cluster.remove(object);
            forgotten.push(object.clone());
        }
        if let Outcome::Failed(why) = &result.outcome {
            let now = Instant::now();
            self.memory.failed(object, None, why.clone(), Duration::ZERO, now);
        }
        (result.outcome, result.act)
    }

    /// Logs an act, and keeps it for the report of the pass. A deletion that a pass saw before the reply came is no second one.
    pub(super) fn note(&mut self, act: Act) {
        if let Act::Deleted(object) = &act
            && !self.memory.deleted(object)
        {
            return;
        }
        info!("{act}");
        self.acts.push(act);
    }

    /// The first of these errors that says that the server as a whole is unusable.
    async fn unusable(&mut self, errors: Vec<ApiError>) -> Option<ApiError> {
        for error in errors {
            if self.cluster.is_unusable(&error).await {
                return Some(error);
            }
        }
        None
    }

    /// Records the results that were taken in.
    async fn record_results(&mut self, fence: &Fence) -> Result<(), Stopped> {
        let entries = std::mem::take(&mut self.unrecorded);
        self.record_beside_jobs(fence, entries).await
    }

    /// Records entries while the jobs go on: no slot stays empty while etcd writes.
    pub(super) async fn record_beside_jobs(
        &mut self,
        fence: &Fence,
        entries: Vec<(ObjectRef, Entry)>,
    ) -> Result<(), Stopped> {
        let mut recorded = pin!(self.inventory.record(fence, entries));
        loop {
            tokio::select! {
                biased;
                result = &mut recorded => return result.map_err(etcd),
                ended = self.jobs.ended(self.settings.in_flight) => self.ended.push(ended),
            }
        }
    }
}

/// Updates the memory with the error of a deletion, and says it.
fn remember_refusal(memory: &mut Memory, object: &ObjectRef, error: &ApiError) -> String {
    let why = error.about(object);
    let at_least = error.cause.retry_after().unwrap_or_default();
    memory.failed(object, None, why.clone(), at_least, Instant::now());
    why
}

/// Updates the memory with the result of a write.
fn remember(memory: &mut Memory, write: &Write, result: WriteResult) -> Outcome {
    let now = Instant::now();
    let object = &write.manifest.object;
    if let Some(in_sync) = result.in_sync {
        memory.settled(object, in_sync, now);
    }
    if let Some(other_manager) = result.mended {
        memory.mended(object, other_manager.as_deref(), now);
    }
    if let Outcome::Failed(why) = &result.outcome {
        let seen = result.left.as_ref().or(write.observed.as_ref());
        memory.failed(object, seen, why.clone(), result.at_least, now);
    }
    result.outcome
}
