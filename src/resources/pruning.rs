//! Deletes the objects that the inventory holds and the bundle does not, stage by stage.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Instant;

use super::act::{ATTEMPTS, Actor, Job, MOST_UNCHANGED, PruneResult, being_deleted, is_same};
use super::controller::{Reconciler, api_server, etcd};
use super::deletion::{
    Deletions, ForgetReason, KeepReason, Prune, Stays, held_by, how_to_forget, kept_for, plan_prune, stage,
};
use super::inventory::Entry;
use super::jobs::{Ended, Jobs};
use super::kinds;
use super::observe::{LookupError, Target};
use super::report::{Act, DELETING, Outcome, Report, Stopped};
use crate::etcd::Fence;
use crate::kube::{Cause, Deleted, Dependants, Error as ApiError, Meta, ObjectRef, Resource};
use crate::span;

/// An object to delete, as it was observed.
struct Deletion {
    object: ObjectRef,
    resource: Resource,
    observed: Option<Meta>,
    recorded: Entry,
}

/// What a pass does about the objects that the bundle no longer holds.
#[derive(Default)]
struct Obsolete {
    /// Whether an object of the bundle is not in place. Then nothing is deleted: it may be what replaces an obsolete one.
    is_missing: bool,
    /// Nothing of ours exists under these names.
    forgotten: Vec<ObjectRef>,
    /// Those whose deletion was begun, and which are listed no more. One without its label is not listed either.
    unlisted: Vec<Deletion>,
    /// What may be deleted, by stage.
    stages: BTreeMap<u8, Vec<Deletion>>,
    /// The lowest stage in which an object is being deleted, or may exist, and why the later ones wait for it.
    pending: Option<(u8, KeepReason)>,
    /// The entries of objects of which nothing is known. Each may have to be deleted.
    unknown: Vec<Entry>,
    /// Those that stay, or may exist.
    stays: Vec<Stays>,
}

impl Obsolete {
    /// Has the later stages wait for this object.
    fn wait_for(&mut self, object: &ObjectRef, why: fn(ObjectRef) -> KeepReason) {
        let first = self.pending.as_ref().map(|(first, _)| *first);
        if first.is_none_or(|first| stage(object) < first) {
            self.pending = Some((stage(object), why(object.clone())));
        }
    }

    /// Nothing is known of the object: what follows it waits for a look that succeeds (INV-12).
    fn may_exist(&mut self, object: &ObjectRef) {
        self.stays.push(Stays::unseen(object));
        self.wait_for(object, KeepReason::WaitsForLook);
    }

    /// Sorts an object by its plan, and reports it where nothing is left to do.
    fn sort(&mut self, planned: Prune, deletion: Deletion, report: &mut Report) {
        let object = deletion.object.clone();
        match planned {
            Prune::Forget(_) => {
                report.set(object.clone(), Outcome::Pruned);
                self.forgotten.push(object);
            }
            Prune::Keep(why) => {
                self.stays.push(Stays {
                    object: object.clone(),
                    plural: Some(deletion.resource.plural),
                    is_seen: true,
                });
                report.set(object, Outcome::Kept(why.to_string()));
            }
            Prune::Delete { .. } if self.is_missing => {
                report.set(object, Outcome::Kept(KeepReason::WaitsForBundle.to_string()));
            }
            Prune::AwaitDeletion => {
                let held = being_deleted(deletion.observed.as_ref());
                self.wait_for(&object, KeepReason::WaitsFor);
                report.set(object, Outcome::Deleting(held));
            }
            Prune::Delete { .. } => self.stages.entry(stage(&object)).or_default().push(deletion),
        }
    }

    /// Keeps what an object would be deleted with that stays: `wanted` ones of the bundle, and those that are kept.
    fn keep_what_holds(&mut self, wanted: Vec<Stays>, report: &mut Report) {
        self.stays.extend(wanted);
        for deletions in self.stages.values_mut() {
            deletions.retain(|Deletion { object, .. }| {
                let held_by = held_by(object, &self.stays);
                if let Some(other) = held_by {
                    report.set(object.clone(), Outcome::Kept(other.keeps().to_string()));
                }
                held_by.is_none()
            });
        }
        self.stages.retain(|_, deletions| !deletions.is_empty());
    }
}

impl Reconciler {
    /// Deletes the `obsolete` objects, as far as the policy allows, and removes the deleted ones from the inventory.
    pub(super) async fn prune(
        &mut self,
        fence: &Fence,
        mut obsolete: Vec<Target>,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        self.cluster
            .look_through_other_versions(&mut obsolete)
            .await
            .map_err(api_server)?;
        self.watches.follow(&self.kube, &mut self.cluster);
        let mut sorted = self.sort_out(obsolete, report);
        self.look_for(&mut sorted, report).await;
        sorted.keep_what_holds(self.wanted_to_stay(), report);
        let Obsolete {
            forgotten,
            stages,
            mut pending,
            unknown,
            ..
        } = sorted;
        self.forget(fence, &forgotten).await?;
        if let Some(why) = self.deletions(&stages, &unknown).held() {
            for deletion in stages.into_values().flatten() {
                report.set(deletion.object, Outcome::Held(why.clone()));
            }
            return Ok(());
        }
        for (number, deletions) in stages {
            if let Some((_, waits)) = pending.as_ref().filter(|(pending, _)| *pending < number) {
                for deletion in deletions {
                    report.set(deletion.object, Outcome::Kept(waits.to_string()));
                }
                continue;
            }
            let unfinished = self.delete(fence, deletions, report).await?;
            // The lowest stage that is not done holds back the later ones.
            let unfinished = unfinished.map(|object| (number, KeepReason::WaitsFor(object)));
            pending = unfinished.or(pending);
        }
        Ok(())
    }

    /// Plans each obsolete object, and reports those for which nothing is left to do.
    fn sort_out(&mut self, obsolete: Vec<Target>, report: &mut Report) -> Obsolete {
        // One that is fought over may be absent as well.
        let is_missing = self.wanted().any(|object| {
            let outcome = report.objects().get(object);
            outcome.is_some_and(|outcome| outcome.trouble().is_some())
        });
        let wanted_uids = self.wanted_uids();
        let left = self.left(&obsolete);
        let mut sorted = Obsolete {
            is_missing,
            ..Obsolete::default()
        };
        for Target { object, version } in obsolete {
            let recorded = self.inventory.entry(&object);
            let (resource, observed) = match self.cluster.look_up(&object, &version) {
                Ok((resource, observed)) => (resource.clone(), observed.cloned()),
                Err(error) => {
                    let outcome = unknown(&object, &recorded, &error);
                    sorted.stays.push(Stays::unseen(&object));
                    if matches!(outcome, Outcome::Failed(_)) {
                        sorted.unknown.push(recorded.clone());
                        sorted.may_exist(&object);
                    }
                    // Its kind may be served again in a moment, by what follows it.
                    if matches!(error, LookupError::NotServed { .. }) && self.is_defined(&object, &left) {
                        sorted.wait_for(&object, KeepReason::WaitsForLook);
                    }
                    report.set(object, outcome);
                    continue;
                }
            };
            let planned = self.plan(&wanted_uids, &object, observed.as_ref(), &recorded);
            let is_news = planned.shows_deletion() && self.was_deleted_without_a_reply(&object, &recorded);
            let is_absent = planned == Prune::Forget(ForgetReason::Absent);
            let deletion = Deletion {
                object,
                resource,
                observed,
                recorded,
            };
            if is_news && is_absent {
                sorted.unlisted.push(deletion);
                continue;
            }
            if is_news {
                self.note(Act::Deleted(deletion.object.clone()));
            }
            sorted.sort(planned, deletion, report);
        }
        sorted
    }

    /// Plans an obsolete object as it was seen.
    fn plan(
        &mut self,
        wanted_uids: &HashSet<String>,
        object: &ObjectRef,
        observed: Option<&Meta>,
        recorded: &Entry,
    ) -> Prune {
        self.memory.left(object, observed);
        plan_prune(&self.bundle.name, wanted_uids, object, observed, recorded)
    }

    /// Looks for the objects that are listed no more, and sorts them by what the server says: one whose label was removed is not
    /// listed either. Of a kind whose looks hang only a few linger, and the pass waits for them once (INV-8): an object of which the
    /// server has said nothing is looked for again by the next pass.
    async fn look_for(&mut self, sorted: &mut Obsolete, report: &mut Report) {
        let mut looks = Jobs::new(self.settings.lingers_after);
        let mut unlisted = HashMap::new();
        for deletion in std::mem::take(&mut sorted.unlisted) {
            let (kube, object) = (self.kube.clone(), deletion.object.clone());
            let resource = deletion.resource.clone();
            looks.add(deletion.object.clone(), async move {
                kube.meta(&resource, &object).await
            });
            unlisted.insert(deletion.object.clone(), deletion);
        }
        let wanted_uids = self.wanted_uids();
        while let Some(ended) = looks.next(self.settings.in_flight).await {
            let Ended {
                subject: object,
                result,
            } = ended;
            let Some(deletion) = unlisted.remove(&object) else {
                continue;
            };
            let observed = match result {
                Ok(observed) => observed,
                Err(error) => {
                    sorted.may_exist(&object);
                    report.set(object.clone(), Outcome::Failed(error.about(&object)));
                    continue;
                }
            };
            let planned = self.plan(&wanted_uids, &object, observed.as_ref(), &deletion.recorded);
            if planned.shows_deletion() {
                self.note(Act::Deleted(object));
            }
            sorted.sort(planned, Deletion { observed, ..deletion }, report);
        }
        for object in unlisted.into_keys() {
            sorted.may_exist(&object);
            let why = "the API server has not said whether it is deleted";
            report.set(object, Outcome::Failed(why.to_owned()));
        }
    }

    /// Whether a definition stands by which the server should serve the kind of an object: one of the bundle, all of which is
    /// in place before anything is deleted, or one of these `dropped` ones.
    fn is_defined(&self, object: &ObjectRef, dropped: &[ObjectRef]) -> bool {
        let kind = (object.group.as_str(), object.kind.as_str());
        let of_bundle = self.bundle.manifests.iter().any(|manifest| {
            kinds::may_serve(&manifest.object, kind.0)
                && kinds::defined(&manifest.body).is_none_or(|defined| defined == kind)
        });
        // The kind that a dropped one defines is not recorded.
        of_bundle || dropped.iter().any(|dropped| kinds::may_serve(dropped, kind.0))
    }

    /// The objects that the bundle has dropped, without those that are seen to be gone.
    fn left(&self, obsolete: &[Target]) -> Vec<ObjectRef> {
        let may_exist = |target: &&Target| {
            let seen = self.cluster.look_up(&target.object, &target.version);
            !matches!(seen, Ok((_, None)))
        };
        let left = obsolete.iter().filter(may_exist);
        left.map(|target| target.object.clone()).collect()
    }

    /// Whether a deletion that was begun is carried out by now, and nothing has said so: the reply to it was lost, or has yet
    /// to come, or the leader died before it came.
    fn was_deleted_without_a_reply(&self, object: &ObjectRef, recorded: &Entry) -> bool {
        let outcome = recorded.state.as_ref().map(|state| state.outcome.as_str());
        // A deletion that the server had accepted was reported then.
        recorded.deleting && outcome != Some(DELETING) && !self.memory.is_deleted(object)
    }

    fn deletions(&self, stages: &BTreeMap<u8, Vec<Deletion>>, unknown: &[Entry]) -> Deletions {
        let all = || stages.values().flatten().map(|deletion| &deletion.recorded);
        let renamed = |recorded: &Entry| !recorded.bundle.is_empty() && recorded.bundle != self.bundle.name;
        let of = all().chain(unknown).map(|recorded| recorded.dropped_of).min();
        Deletions {
            count: all().count() + unknown.len(),
            renamed: all().any(renamed),
            retired: self.bundle.manifests.is_empty(),
            of: of.map_or(0, |of| usize::try_from(of).unwrap_or(usize::MAX)),
            allowed: self.settings.allow_prune,
        }
    }

    /// The objects that the bundle holds.
    fn wanted_to_stay(&self) -> Vec<Stays> {
        let targets = self.bundle.manifests.iter().map(Target::from);
        targets.map(|target| self.cluster.stays(&target)).collect()
    }

    /// The uids of the objects that the bundle holds.
    fn wanted_uids(&self) -> HashSet<String> {
        let uids = self.wanted().map(|object| self.inventory.entry(object).uid);
        uids.filter(|uid| !uid.is_empty()).collect()
    }

    /// Deletes the objects of one stage. Returns one that is not gone yet, if there is one.
    async fn delete(
        &mut self,
        fence: &Fence,
        deletions: Vec<Deletion>,
        report: &mut Report,
    ) -> Result<Option<ObjectRef>, Stopped> {
        let objects: Vec<ObjectRef> = deletions.iter().map(|deletion| deletion.object.clone()).collect();
        let wanted_uids = self.wanted_uids();
        let now = Instant::now();
        let (waiting, due): (Vec<Deletion>, Vec<Deletion>) = deletions
            .into_iter()
            .filter(|deletion| !self.jobs.is_busy(&deletion.object))
            .partition(|deletion| self.memory.is_waiting(&deletion.object, now));
        for deletion in waiting {
            report.set(deletion.object.clone(), self.failed_before(&deletion.object));
        }
        let begun: Vec<ObjectRef> = due.iter().map(|deletion| deletion.object.clone()).collect();
        self.inventory
            .begin_deletions(fence, &begun)
            .await
            .map_err(etcd)?;
        for deletion in due {
            let (actor, wanted_uids) = (self.actor(), wanted_uids.clone());
            let object = deletion.object.clone();
            self.memory.deleting(&object);
            self.jobs.add(object, async move {
                let step = span::step("resources", "prune", &deletion.object);
                let outcome = |result: &Result<PruneResult, ApiError>| match result {
                    Ok(pruned) => pruned.outcome.code(),
                    Err(error) => error.cause.word(),
                };
                let pruning = actor.prune(&deletion, &wanted_uids);
                Job::Pruned(span::within(step, pruning, outcome).await)
            });
        }
        let finished = self
            .finish(fence, objects.iter().cloned().collect(), report)
            .await;
        for object in self.withdraw_deletions() {
            let why = "its deletion waits for those under way, which the API server has not answered yet";
            report.set(object, Outcome::Failed(why.to_owned()));
        }
        finished?;
        for object in &objects {
            self.report_busy(object, report);
        }
        let gone = |object: &ObjectRef| report.objects().get(object) == Some(&Outcome::Pruned);
        Ok(objects.into_iter().find(|object| !gone(object)))
    }

    /// Drops the deletions that were not sent, and returns their objects. None outlives its pass: the next one decides again,
    /// and proves the entry again, since the object may be forgotten until then (INV-12).
    pub(super) fn withdraw_deletions(&mut self) -> Vec<ObjectRef> {
        let wanted = &self.wanted;
        self.jobs.withdraw(|object| !wanted.contains(object))
    }

    /// Removes objects that are gone from the inventory.
    pub(super) async fn forget(&mut self, fence: &Fence, objects: &[ObjectRef]) -> Result<(), Stopped> {
        self.inventory.forget(fence, objects).await.map_err(etcd)?;
        // Until then the next pass finds the entry, and must not report the deletion again. Nor must a reply that has yet to
        // come.
        for object in objects {
            if !self.jobs.is_busy(object) {
                self.memory.forget(object);
            }
        }
        Ok(())
    }
}

/// The outcome of an object of which nothing is known. Of a protected object, and of one that was kept when it was last seen,
/// that says nothing about what the bundle holds, so no status waits for it.
fn unknown(object: &ObjectRef, recorded: &Entry, error: &LookupError) -> Outcome {
    match error {
        LookupError::NotServed { .. } => Outcome::Kept(KeepReason::NotServed.to_string()),
        // The permissions for a later bundle do not cover what an earlier one left behind.
        LookupError::Unknown(error) if matches!(error.cause, Cause::Forbidden { .. }) => {
            // The recorded reason stays: it is what the next look that is refused goes by.
            match kept_for(recorded) {
                Some(reason) => Outcome::Kept(reason.to_owned()),
                None if kinds::is_protected(&object.group, &object.kind) => {
                    Outcome::Kept(error.about(object))
                }
                None => Outcome::Failed(error.about(object)),
            }
        }
        // A kind changes its scope only by being deleted and defined again, and its objects went with it. That is no
        // proof (INV-12), so a person decides.
        LookupError::NeedsNamespace(_) | LookupError::TakesNoNamespace(_) => Outcome::Failed(format!(
            "its kind has another scope by now, so that it cannot be looked at; if it is gone: {}",
            how_to_forget(object)
        )),
        error => Outcome::Failed(error.about(object)),
    }
}

impl Actor {
    /// Deletes an object that the bundle no longer holds. If the object is not as it was observed, reads it and plans
    /// again.
    async fn prune(
        &self,
        deletion: &Deletion,
        wanted_uids: &HashSet<String>,
    ) -> Result<PruneResult, ApiError> {
        let Deletion {
            object,
            resource,
            observed,
            recorded,
        } = deletion;
        let mut observed = observed.clone();
        let (mut asked, mut unchanged) = (false, 0);
        for _ in 0..ATTEMPTS {
            let planned = plan_prune(
                &self.bundle.name,
                wanted_uids,
                object,
                observed.as_ref(),
                recorded,
            );
            // A request whose reply is lost is repeated, and then conflicts with the change that it made itself.
            let act = (asked && planned.shows_deletion()).then(|| Act::Deleted(object.clone()));
            let (uid, resource_version) = match planned {
                Prune::Forget(_) => {
                    return Ok(PruneResult {
                        act,
                        ..PruneResult::gone()
                    });
                }
                Prune::Keep(why) => return Ok(PruneResult::stays(Outcome::Kept(why.to_string()))),
                Prune::AwaitDeletion => {
                    let deleting = Outcome::Deleting(being_deleted(observed.as_ref()));
                    return Ok(PruneResult {
                        act,
                        ..PruneResult::stays(deleting)
                    });
                }
                Prune::Delete {
                    uid,
                    resource_version,
                } => (uid, resource_version),
            };
            let deletion = self
                .kube
                .delete(resource, object, &uid, &resource_version, Dependants::Deleted);
            let result = match deletion.await {
                Ok(Deleted::Gone) => PruneResult::gone(),
                Ok(Deleted::Pending) => {
                    PruneResult::stays(Outcome::Deleting(being_deleted(observed.as_ref())))
                }
                Err(error) if matches!(error.cause, Cause::Conflict(_)) => {
                    let now = self.kube.meta(resource, object).await?;
                    unchanged += u32::from(is_same(observed.as_ref(), now.as_ref()));
                    if unchanged > MOST_UNCHANGED {
                        return Err(error);
                    }
                    observed = now;
                    asked = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            return Ok(PruneResult {
                act: Some(Act::Deleted(object.clone())),
                ..result
            });
        }
        Ok(PruneResult::stays(Outcome::Failed(format!(
            "changed {ATTEMPTS} times during the deletion"
        ))))
    }
}
