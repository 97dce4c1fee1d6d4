//! Puts the objects of the bundle in place: decides, starts the requests, and records the outcomes.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::act::{Job, Write, WriteResult};
use super::bundle::Manifest;
use super::controller::{Reconciler, etcd};
use super::inventory::{Entry, IN_PLACE, State};
use super::plan::{Fingerprint, Step, Wanted, plan};
use super::report::{Outcome, Report, Stopped};
use crate::etcd::Fence;
use crate::kube::{Meta, ObjectRef, Resource};
use crate::span;
use crate::store::writer::COMPARES;

/// Longer than every wait between attempts at an object that fails. The end of a wait that the server asked for, or of a
/// contention, may be later; that one is recorded.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(15);

/// The objects that are decided, and their entries recorded, before the first ones are written: as many as a transaction holds.
/// Beside the requests for those, twice as many are, and so on: etcd records several in the time in which the API server writes
/// one.
const TOGETHER: usize = COMPARES;

impl Reconciler {
    /// Puts the objects of these manifests in place, and meanwhile records the entries that the first of `next` need, which
    /// then follow without a wait for etcd. Those whose requests linger are left under way.
    pub(super) async fn settle(
        &mut self,
        fence: &Fence,
        manifests: &[&Manifest],
        next: &[&Manifest],
        report: &mut Report,
    ) -> Result<(), Stopped> {
        let idle = manifests
            .iter()
            .filter(|manifest| !self.jobs.is_busy(&manifest.object));
        let idle: Vec<&Manifest> = idle.copied().collect();
        let mut objects = HashSet::new();
        let (mut rest, mut together) = (idle.as_slice(), TOGETHER);
        while !rest.is_empty() {
            let (some, later) = rest.split_at(together.min(rest.len()));
            let (mut writes, mut entries) = (Vec::new(), Vec::new());
            for manifest in some {
                self.recall(manifest);
                match self.decide(manifest) {
                    Ok(write) => {
                        entries.extend(self.first_entry(manifest));
                        writes.push(write);
                    }
                    Err(outcome) => {
                        // Its entry may be missing yet: a pass that is cut short does not record all of its results.
                        let in_sync = self.memory.in_sync(&manifest.object);
                        if let Some(in_sync) = in_sync.filter(|_| outcome == Outcome::Unchanged) {
                            entries.push((manifest.object.clone(), self.entry_of(manifest, Some(in_sync))));
                        }
                        report.set(manifest.object.clone(), outcome);
                    }
                }
            }
            self.record_beside_jobs(fence, entries).await?;
            for write in writes {
                objects.insert(write.manifest.object.clone());
                self.put_in_place(write);
            }
            rest = later;
            together *= 2;
        }
        if next.is_empty() || objects.is_empty() {
            self.finish(fence, objects, report).await?;
        } else {
            let writable = next.iter().filter(|manifest| self.step(manifest).is_ok());
            let entries = writable.filter_map(|manifest| self.first_entry(manifest));
            let entries = entries.take(TOGETHER).collect();
            self.record_beside_jobs(fence, entries).await?;
            self.take_in_all(fence, objects, report).await?;
        }
        for manifest in manifests {
            self.report_busy(&manifest.object, report);
        }
        Ok(())
    }

    /// The entry that an object needs before it is written for the first time; `None` if it was written before.
    fn first_entry(&self, manifest: &Manifest) -> Option<(ObjectRef, Entry)> {
        let recorded = self.inventory.get(&manifest.object);
        let is_new = recorded.is_none_or(|entry| entry.unwritten);
        is_new.then(|| (manifest.object.clone(), self.entry_of(manifest, None)))
    }

    pub(super) fn put_in_place(&mut self, write: Write) {
        let actor = self.actor();
        self.jobs.add(write.manifest.object.clone(), async move {
            // Begins with the request, and not while the object waits for its turn.
            let step = span::step("resources", "put in place", &write.manifest.object);
            let outcome = |result: &WriteResult| result.outcome.code();
            let result = span::within(step, actor.put_in_place(&write), outcome).await;
            Job::Written(Box::new((write, result)))
        });
    }

    /// Reports an object whose request is not answered yet.
    pub(super) fn report_busy(&self, object: &ObjectRef, report: &mut Report) {
        if self.jobs.is_busy(object) {
            let before = self.memory.failure(object);
            let why = before.unwrap_or("the API server has not answered the request for it yet");
            report.set(object.clone(), Outcome::Failed(why.to_owned()));
        }
    }

    pub(super) fn failed_before(&self, object: &ObjectRef) -> Outcome {
        Outcome::Failed(self.memory.failure(object).unwrap_or("failed before").to_owned())
    }

    /// The entry of an object: in place with this fingerprint, or about to be written for the first time.
    pub(super) fn entry_of(&self, manifest: &Manifest, in_sync: Option<&Fingerprint>) -> Entry {
        let entry = Entry {
            version: manifest.version.clone(),
            bundle: self.bundle.name.clone(),
            ..Entry::default()
        };
        let Some(in_sync) = in_sync else { return entry };
        Entry {
            uid: in_sync.uid.clone(),
            manifest: manifest.digest,
            fingerprint: in_sync.recorded(),
            state: Some(State {
                outcome: IN_PLACE.to_owned(),
                message: String::new(),
                since: Some(Timestamp::now()),
                retry_at: None,
                dropped: false,
            }),
            ..entry
        }
    }

    /// Takes over what an earlier leader recorded: an object that is as that leader left it, by the same manifest, is in
    /// place.
    fn recall(&mut self, manifest: &Manifest) {
        let object = &manifest.object;
        let Some(entry) = self.inventory.get(object) else {
            return;
        };
        if entry.fingerprint == 0 || entry.manifest != manifest.digest || self.memory.knows(object) {
            return;
        }
        let Ok((_, Some(meta))) = self.cluster.look_up(object, &manifest.version) else {
            return;
        };
        let now = Fingerprint::of(meta);
        if now.uid == entry.uid && now.recorded() == entry.fingerprint {
            self.memory.settled(object, now, Instant::now());
        }
    }

    /// Records the outcomes that are others than those before. The outcome of an object without an entry is recorded, too,
    /// in an entry that says that the object was never written.
    pub(super) async fn record_states(&mut self, fence: &Fence, report: &Report) -> Result<(), Stopped> {
        let now = (Instant::now(), Timestamp::now());
        let states = report.objects().iter().filter_map(|(object, outcome)| {
            if *outcome == Outcome::Pruned {
                return None;
            }
            let state = self.state_of(object, outcome, now);
            let recorded = self.inventory.get(object);
            let entry = match recorded {
                Some(entry) => Entry {
                    state: Some(state),
                    ..entry.clone()
                },
                None => Entry {
                    bundle: self.bundle.name.clone(),
                    unwritten: true,
                    state: Some(state),
                    ..Entry::default()
                },
            };
            Some((object.clone(), entry))
        });
        let states = states.collect();
        self.inventory.record(fence, states).await.map_err(etcd)
    }

    pub(super) fn state_of(&self, object: &ObjectRef, outcome: &Outcome, now: (Instant, Timestamp)) -> State {
        let waits = matches!(outcome, Outcome::Failed(_) | Outcome::Contended(_));
        let due = self.memory.due(object).filter(|_| waits);
        let wait = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(now.0));
        State {
            outcome: outcome.state().to_owned(),
            message: outcome.message().to_owned(),
            since: Some(now.1),
            // Without one where the clock of the machine is set to the end of the calendar.
            retry_at: Some(wait)
                .filter(|wait| *wait >= LONG_WAIT)
                .and_then(|wait| now.1.checked_add(wait).ok()),
            dropped: !self.is_wanted(object),
        }
    }

    /// Plans an object. `Err` holds the outcome of an object for which nothing is written.
    fn decide(&self, manifest: &Manifest) -> Result<Write, Outcome> {
        let (resource, observed, recorded, step) = self.step(manifest)?;
        Ok(Write {
            manifest: manifest.clone(),
            resource: resource.clone(),
            observed: observed.cloned(),
            recorded,
            step,
            recreation: None,
        })
    }

    /// The write that an object needs, and what that was planned from.
    fn step(&self, manifest: &Manifest) -> Result<(&Resource, Option<&Meta>, Entry, Step), Outcome> {
        let object = &manifest.object;
        let (resource, observed) = self
            .cluster
            .look_up(object, &manifest.version)
            .map_err(|error| Outcome::Failed(error.about(object)))?;
        if self.cluster.is_unlisted(object) && self.memory.in_sync(object).is_some() {
            return Err(Outcome::Unchanged);
        }
        let recorded = self.inventory.entry(object);
        let wanted = Wanted {
            bundle: &self.bundle.name,
            adopt: manifest.adopt,
        };
        let remembered = self.memory.of(object, observed);
        let step = plan(wanted, observed, &recorded, remembered, Instant::now());
        match step {
            Step::Leave => Err(Outcome::Unchanged),
            Step::Create { .. } | Step::Apply { .. } => Ok((resource, observed, recorded, step)),
            Step::BackOff { .. } => Err(Outcome::Contended(match self.memory.other_manager(object) {
                Some(other_manager) => {
                    format!("field manager \"{other_manager}\" keeps changing it; backing off")
                }
                None => "another client keeps changing or deleting it; backing off".to_owned(),
            })),
            Step::RetryLater { .. } => Err(self.failed_before(object)),
            Step::AwaitDeletion | Step::Refuse(_) => Err(WriteResult::not_written(&step, observed).outcome),
        }
    }
}
