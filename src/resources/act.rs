//! Carries out the step for one object: the calls, and what follows from their errors. Runs only as part of a pass, which
//! checks the window before each call and drops the calls when the window closes (INV-3).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;

use super::bundle::{ADOPT, Bundle, Manifest};
use super::inventory::Entry;
use super::ownership::folded;
use super::plan::{ApplyReason, Fingerprint, Next, Remembered, Step, Wanted, next_after, plan, replanned};
use super::report::{Act, Outcome};
use crate::kube::{
    Cause, Dependants, Error as ApiError, FIELD_MANAGER, KubeClient, ManagedFields, Meta, ObjectRef, Resource,
};

/// Attempts at an object that changes while it is written, within one pass. One change is chance. An object that changes
/// every time has another writer at work; the next pass looks again.
pub(super) const ATTEMPTS: u32 = 4;

/// Conflicts within one pass after which the object is found as it was. A second one is no conflict, whatever its code: an admission
/// webhook may refuse with any code.
pub(super) const MOST_UNCHANGED: u32 = 1;

/// Whether two looks found the same state of an object.
pub(super) fn is_same(before: Option<&Meta>, after: Option<&Meta>) -> bool {
    match (before, after) {
        (None, None) => true,
        (Some(before), Some(after)) => {
            before.uid == after.uid && before.resource_version == after.resource_version
        }
        _ => false,
    }
}

/// Writes and deletes objects.
#[derive(Clone)]
pub(super) struct Actor {
    pub(super) kube: KubeClient,
    pub(super) bundle: Arc<Bundle>,
    /// The limit for a deleted object to disappear.
    pub(super) gone_within: Duration,
}

/// An object to write, as it was observed and planned.
#[derive(Clone)]
pub(super) struct Write {
    pub(super) manifest: Manifest,
    pub(super) resource: Resource,
    pub(super) observed: Option<Meta>,
    /// The entry in the inventory; an empty one if it has none.
    pub(super) recorded: Entry,
    pub(super) step: Step,
    /// Set if the object has to be recreated, and the inventory says so.
    pub(super) recreation: Option<Recreation>,
}

/// That an object has to be recreated.
#[derive(Clone)]
pub(super) struct Recreation {
    /// The immutable fields.
    why: String,
    dependants: Dependants,
    /// The object that has them.
    seen: Meta,
}

/// The result of a write.
pub(super) struct WriteResult {
    pub(super) outcome: Outcome,
    /// The object as it was left, if it is in place.
    pub(super) in_sync: Option<Fingerprint>,
    /// Set if the write restored an object that had been in place. The inner value is the field manager that changed it,
    /// if known.
    pub(super) mended: Option<Option<String>>,
    /// What was deleted.
    pub(super) act: Option<Act>,
    /// The object as the write left it, if the server said so.
    pub(super) left: Option<Meta>,
    /// The wait that the server asked for.
    pub(super) at_least: Duration,
    /// The error that the write ended with. If the server as a whole is unusable, the pass ends.
    pub(super) error: Option<ApiError>,
    /// Set if the object has to be recreated, once the inventory says that its uid may be another one (INV-3).
    pub(super) recreates: Option<Recreation>,
}

impl WriteResult {
    fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            in_sync: None,
            mended: None,
            act: None,
            left: None,
            at_least: Duration::ZERO,
            error: None,
            recreates: None,
        }
    }

    /// The result of a write that found out that the object has to be recreated.
    fn recreates(recreation: Recreation) -> Self {
        let why = format!("has to be recreated (immutable fields: {})", recreation.why);
        Self {
            recreates: Some(recreation),
            ..Self::failed(why)
        }
    }

    pub(super) fn failed(why: impl Into<String>) -> Self {
        Self::new(Outcome::Failed(why.into()))
    }

    /// The result of a write of this object that ended with an error.
    pub(super) fn refused(object: &ObjectRef, error: &ApiError) -> Self {
        Self {
            at_least: error.cause.retry_after().unwrap_or_default(),
            error: Some(error.clone()),
            ..Self::failed(error.about(object))
        }
    }

    pub(super) fn in_place(outcome: Outcome, meta: &Meta) -> Self {
        Self {
            in_sync: Some(Fingerprint::of(meta)),
            left: Some(meta.clone()),
            ..Self::new(outcome)
        }
    }

    pub(super) fn having(self, act: Act) -> Self {
        Self {
            act: Some(act),
            ..self
        }
    }

    /// The result of a step that writes nothing.
    pub(super) fn not_written(step: &Step, observed: Option<&Meta>) -> Self {
        match step {
            Step::Refuse(foreign) => Self::failed(foreign.to_string()),
            Step::AwaitDeletion => Self::failed(format!(
                "{}; will be created once it is gone",
                being_deleted(observed)
            )),
            _ => Self::failed("changed during the apply"),
        }
    }

    /// The result of an apply that the server carried out and that left the object as `meta`.
    fn applied(step: &Step, observed: Option<&Meta>, meta: &Meta) -> Self {
        let changed = observed.is_none_or(|seen| seen.resource_version != meta.resource_version);
        let outcome = match step {
            Step::Create { .. } => Outcome::Created,
            _ if changed => Outcome::Applied,
            _ => Outcome::Unchanged,
        };
        let is_mend = match step {
            Step::Create { mends } => *mends,
            Step::Apply { why, .. } => match why {
                ApplyReason::Changed => changed && restores(observed, meta),
                ApplyReason::Adopted { again } => changed && *again,
                ApplyReason::FirstLook => false,
            },
            _ => false,
        };
        let mended = is_mend.then(|| {
            let who = observed.and_then(|seen| seen.last_manager_besides(FIELD_MANAGER));
            who.map(str::to_owned)
        });
        Self {
            mended,
            ..Self::in_place(outcome, meta)
        }
    }
}

/// Whether an apply gave fields back to us. The version alone proves nothing: a status may have been written between the
/// look and the apply.
fn restores(observed: Option<&Meta>, after: &Meta) -> bool {
    let ours = |meta: &Meta| -> Option<ManagedFields> { meta.applied_by(FIELD_MANAGER).cloned() };
    observed.and_then(ours) != ours(after)
}

/// The result of pruning an object.
pub(super) struct PruneResult {
    pub(super) outcome: Outcome,
    /// Nothing of ours is left: the object leaves the inventory.
    pub(super) gone: bool,
    pub(super) act: Option<Act>,
}

impl PruneResult {
    pub(super) fn gone() -> Self {
        Self {
            outcome: Outcome::Pruned,
            gone: true,
            act: None,
        }
    }

    pub(super) fn stays(outcome: Outcome) -> Self {
        Self {
            outcome,
            gone: false,
            act: None,
        }
    }
}

/// What a job about an object came to.
pub(super) enum Job {
    Written(Box<(Write, WriteResult)>),
    Pruned(Result<PruneResult, ApiError>),
}

impl Actor {
    /// Carries out [`Step::Create`] or [`Step::Apply`]. If the object is not as it was observed, reads it and plans again.
    pub(super) async fn put_in_place(&self, write: &Write) -> WriteResult {
        let tried = self.try_put(write).await;
        tried.unwrap_or_else(|error| WriteResult::refused(&write.manifest.object, &error))
    }

    async fn try_put(&self, write: &Write) -> Result<WriteResult, ApiError> {
        let (manifest, resource) = (&write.manifest, &write.resource);
        let object = &manifest.object;
        let mut observed = write.observed.clone();
        let mut step = write.step.clone();
        let mut unchanged = 0;
        if let Some(Recreation {
            why,
            dependants,
            seen,
        }) = &write.recreation
        {
            if let Some(result) = self.recreate(write, seen, why, *dependants).await? {
                return Ok(result);
            }
            observed = self.kube.meta(resource, object).await?;
            step = replanned(&step, self.plan_again(write, observed.as_ref()));
        }
        for _ in 0..ATTEMPTS {
            let Some(precondition) = step.precondition() else {
                return Ok(WriteResult::not_written(&step, observed.as_ref()));
            };
            let adopted = match &step {
                Step::Apply {
                    uid,
                    why: ApplyReason::Adopted { .. },
                } => Some(uid),
                _ => None,
            };
            if let Some(uid) = adopted {
                self.take_fields(resource, object, uid).await?;
            }
            let applied = self.kube.apply(resource, object, &manifest.body, precondition);
            let error = match applied.await {
                Ok(meta) => {
                    if adopted.is_some() {
                        info!("took over {object}, as the annotation {ADOPT} of its manifest says");
                    }
                    let applied = WriteResult::applied(&step, observed.as_ref(), &meta);
                    // The reply to the deletion was lost, or the object took long to go, or someone else deleted it.
                    return Ok(match step {
                        Step::Create { .. } if write.recorded.recreating => {
                            applied.having(Act::Recreated(object.clone(), None))
                        }
                        _ => applied,
                    });
                }
                Err(error) => error,
            };
            match (next_after(&error.cause, &step, manifest.recreate), &observed) {
                (Next::Recreate { why, dependants }, Some(seen)) if !write.recorded.recreating => {
                    let seen = seen.clone();
                    return Ok(WriteResult::recreates(Recreation {
                        why,
                        dependants,
                        seen,
                    }));
                }
                (Next::Recreate { why, dependants }, Some(seen)) => {
                    if let Some(result) = self.recreate(write, seen, &why, dependants).await? {
                        return Ok(result);
                    }
                }
                (Next::LookAgain | Next::Recreate { .. }, _) => {}
                (Next::Fail(why), _) => return Ok(WriteResult::failed(why)),
                (Next::GiveUp, _) => return Err(error),
            }
            let now = self.kube.meta(resource, object).await?;
            unchanged += u32::from(is_same(observed.as_ref(), now.as_ref()));
            if unchanged > MOST_UNCHANGED {
                return Err(error);
            }
            observed = now;
            step = replanned(&step, self.plan_again(write, observed.as_ref()));
        }
        Ok(WriteResult::failed(format!(
            "changed {ATTEMPTS} times during the apply"
        )))
    }

    /// Makes the fields ours that the former managers of an object to adopt own. If the object has changed meanwhile, the
    /// apply that follows finds that out.
    async fn take_fields(&self, resource: &Resource, object: &ObjectRef, uid: &str) -> Result<(), ApiError> {
        let found = self.kube.get(resource, object).await?.unwrap_or_default();
        let managed = found["metadata"]["managedFields"].as_array();
        let Some(folded) = managed.and_then(|managed| folded(managed)) else {
            return Ok(());
        };
        if found["metadata"]["uid"] != uid {
            return Ok(());
        }
        let version = &found["metadata"]["resourceVersion"];
        match self
            .kube
            .set_managed_fields(resource, object, version, folded)
            .await
        {
            Err(error) if !matches!(error.cause, Cause::Conflict(_)) => Err(error),
            _ => Ok(()),
        }
    }

    fn plan_again(&self, write: &Write, observed: Option<&Meta>) -> Step {
        let wanted = Wanted {
            bundle: &self.bundle.name,
            adopt: write.manifest.adopt,
        };
        plan(
            wanted,
            observed,
            &write.recorded,
            Remembered::default(),
            Instant::now(),
        )
    }
}

/// That an object is being deleted, and what holds it.
pub(super) fn being_deleted(observed: Option<&Meta>) -> String {
    let finalizers = observed
        .map(|meta| meta.finalizers.join(", "))
        .unwrap_or_default();
    match finalizers.is_empty() {
        true => "is being deleted".to_owned(),
        false => format!("is being deleted, held by finalizers {finalizers}"),
    }
}
