//! Carries out the step for one object: the calls, and what follows from their errors. Runs only as part of a pass, which
//! checks the window before each call and drops the calls when the window closes (INV-3).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bundle::{Bundle, Manifest};
use super::plan::{
    ApplyReason, Next, ObjectVersion, Prune, Remembered, Step, Wanted, next_after, plan, plan_prune,
    replanned,
};
use super::report::Outcome;
use crate::failpoint;
use crate::kube::{
    Cause, Deleted, Error as ApiError, FIELD_MANAGER, KubeClient, Meta, ObjectRef, Precondition, Resource,
};
use crate::retry::Delays;

/// Attempts at an object that changes while it is written, within one pass. One change is chance. An object that changes
/// every time has another writer at work; the next pass looks again.
const ATTEMPTS: u32 = 4;

/// Writes and deletes objects.
pub(super) struct Actor {
    pub(super) kube: KubeClient,
    pub(super) bundle: Arc<Bundle>,
    /// The limit for a deleted object to disappear.
    pub(super) gone_within: Duration,
}

/// An object to write, as it was observed and planned.
pub(super) struct Write<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) resource: Resource,
    pub(super) observed: Option<Meta>,
    /// The uid in the inventory; empty if the inventory has none.
    pub(super) inventory_uid: String,
    pub(super) step: Step,
}

/// The result of a write.
pub(super) struct WriteResult {
    pub(super) outcome: Outcome,
    /// The version in which the object was left, if it is in place.
    pub(super) in_sync: Option<ObjectVersion>,
    /// Set if the write restored an object that had been in place. The inner value is the field manager that changed it,
    /// if known.
    pub(super) mended: Option<Option<String>>,
    /// The wait that the server asked for.
    pub(super) at_least: Duration,
    /// Set if the server as a whole is unusable: the pass ends.
    pub(super) server: Option<ApiError>,
}

impl WriteResult {
    fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            in_sync: None,
            mended: None,
            at_least: Duration::ZERO,
            server: None,
        }
    }

    fn failed(why: impl Into<String>) -> Self {
        Self::new(Outcome::Failed(why.into()))
    }

    fn in_place(outcome: Outcome, meta: &Meta) -> Self {
        Self {
            in_sync: Some(ObjectVersion::of(meta)),
            ..Self::new(outcome)
        }
    }

    /// The result of a step that writes nothing.
    pub(super) fn not_written(step: &Step, observed: Option<&Meta>) -> Self {
        match step {
            Step::Refuse(foreign) => Self::failed(foreign.to_string()),
            Step::AwaitDeletion => Self::failed(being_deleted(observed)),
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
        let mended = match step {
            Step::Create { mends: true } => Some(None),
            Step::Apply {
                why: ApplyReason::Changed,
                ..
            } if changed => {
                let who = observed.and_then(|seen| seen.last_manager_besides(FIELD_MANAGER));
                Some(who.map(str::to_owned))
            }
            _ => None,
        };
        Self {
            mended,
            ..Self::in_place(outcome, meta)
        }
    }
}

impl From<ApiError> for WriteResult {
    fn from(error: ApiError) -> Self {
        Self {
            at_least: error.cause.retry_after().unwrap_or_default(),
            server: error.cause.is_the_server().then(|| error.clone()),
            ..Self::failed(error.to_string())
        }
    }
}

/// The result of pruning an object.
pub(super) enum PruneResult {
    /// Nothing of ours is left. The caller removes the object from the inventory.
    Gone(Outcome),
    /// The object still exists, or its deletion is under way.
    Stays(Outcome),
}

impl Actor {
    /// Carries out [`Step::Create`] or [`Step::Apply`]. If the object is not as it was observed, reads it and plans again.
    pub(super) async fn put_in_place(&self, write: &Write<'_>) -> WriteResult {
        self.try_put(write).await.unwrap_or_else(WriteResult::from)
    }

    async fn try_put(&self, write: &Write<'_>) -> Result<WriteResult, ApiError> {
        let (manifest, resource) = (write.manifest, &write.resource);
        let object = &manifest.object;
        let mut observed = write.observed.clone();
        let mut step = write.step.clone();
        for _ in 0..ATTEMPTS {
            let Some(precondition) = step.precondition() else {
                return Ok(WriteResult::not_written(&step, observed.as_ref()));
            };
            let applied = self.kube.apply(resource, object, &manifest.body, precondition);
            let error = match applied.await {
                Ok(meta) => return Ok(WriteResult::applied(&step, observed.as_ref(), &meta)),
                Err(error) => error,
            };
            match (next_after(&error.cause, &step, manifest.recreate), &observed) {
                (Next::Recreate(_), Some(seen)) => {
                    if let Some(result) = self.recreate(write, seen).await? {
                        return Ok(result);
                    }
                }
                (Next::LookAgain | Next::Recreate(_), _) => {}
                (Next::Fail(why), _) => return Ok(WriteResult::failed(why)),
                (Next::GiveUp, _) => return Err(error),
            }
            observed = self.kube.meta(resource, object).await?;
            step = replanned(&step, self.plan_again(write, observed.as_ref()));
        }
        Ok(WriteResult::failed(format!(
            "changed {ATTEMPTS} times during the apply"
        )))
    }

    fn plan_again(&self, write: &Write<'_>, observed: Option<&Meta>) -> Step {
        let wanted = Wanted {
            bundle: &self.bundle.name,
            adopt: write.manifest.adopt,
        };
        plan(
            wanted,
            observed,
            &write.inventory_uid,
            Remembered::default(),
            Instant::now(),
        )
    }

    /// Deletes an object with immutable fields, waits until it is gone and creates it. `None` if the object is no longer
    /// the one that was observed.
    ///
    /// A process that dies after the deletion leaves an inventory entry without an object. The next pass, by any leader,
    /// creates the object (INV-3).
    async fn recreate(&self, write: &Write<'_>, seen: &Meta) -> Result<Option<WriteResult>, ApiError> {
        let (manifest, resource) = (write.manifest, &write.resource);
        let object = &manifest.object;
        let deletion = self
            .kube
            .delete(resource, object, &seen.uid, &seen.resource_version);
        match deletion.await {
            Ok(Deleted::Gone) => {}
            Ok(Deleted::Pending) => {
                if let Some(still) = self.wait_until_gone(resource, object, &seen.uid).await? {
                    return Ok(Some(WriteResult::failed(being_deleted(Some(&still)))));
                }
            }
            Err(error) if matches!(error.cause, Cause::Conflict(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
        failpoint::abort_at("resources.deleted");
        let creation = self
            .kube
            .apply(resource, object, &manifest.body, Precondition::Absent);
        match creation.await {
            Ok(meta) => Ok(Some(WriteResult::in_place(Outcome::Recreated, &meta))),
            Err(error) if matches!(error.cause, Cause::Conflict(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until the object with this uid is gone. Returns the object if it still exists after the limit.
    async fn wait_until_gone(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        uid: &str,
    ) -> Result<Option<Meta>, ApiError> {
        let deadline = tokio::time::Instant::now() + self.gone_within;
        let mut delays = Delays::new(Duration::from_millis(20), Duration::from_millis(500));
        loop {
            match self.kube.meta(resource, object).await? {
                Some(meta) if meta.uid == uid => {
                    if tokio::time::Instant::now() >= deadline {
                        return Ok(Some(meta));
                    }
                }
                _ => return Ok(None),
            }
            delays.wait().await;
        }
    }

    /// Deletes an object that the bundle no longer holds, if the plan allows it.
    pub(super) async fn prune(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        observed: Option<&Meta>,
        inventory_uid: &str,
    ) -> Result<PruneResult, ApiError> {
        let mut observed = observed.cloned();
        for _ in 0..ATTEMPTS {
            let (uid, resource_version) = match plan_prune(object, observed.as_ref(), inventory_uid) {
                Prune::Forget(_) => return Ok(PruneResult::Gone(Outcome::Pruned)),
                Prune::Keep => return Ok(PruneResult::Stays(Outcome::Kept)),
                Prune::AwaitDeletion => return Ok(PruneResult::Stays(Outcome::Pruned)),
                Prune::Delete {
                    uid,
                    resource_version,
                } => (uid, resource_version),
            };
            match self.kube.delete(resource, object, &uid, &resource_version).await {
                Ok(Deleted::Gone) => return Ok(PruneResult::Gone(Outcome::Pruned)),
                Ok(Deleted::Pending) => return Ok(PruneResult::Stays(Outcome::Pruned)),
                Err(error) if matches!(error.cause, Cause::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
            observed = self.kube.meta(resource, object).await?;
        }
        Ok(PruneResult::Stays(Outcome::Failed(format!(
            "changed {ATTEMPTS} times during the deletion"
        ))))
    }

    /// Waits until the server has established a CustomResourceDefinition.
    ///
    /// # Errors
    /// The reason why it is not established within the limit.
    pub(super) async fn wait_established(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        within: Duration,
    ) -> Result<(), String> {
        let deadline = tokio::time::Instant::now() + within;
        let mut delays = Delays::new(Duration::from_millis(20), Duration::from_millis(250));
        loop {
            let read = self
                .kube
                .get(resource, object)
                .await
                .map_err(|error| error.to_string())?;
            let conditions = conditions(read.as_ref());
            if conditions
                .get("Established")
                .is_some_and(|(status, _)| *status == "True")
            {
                return Ok(());
            }
            if tokio::time::Instant::now() >= deadline {
                let why = conditions
                    .values()
                    .find(|(status, _)| *status == "False")
                    .map_or("the server gives no reason", |(_, message)| message);
                return Err(format!("not established within {within:?}: {why}"));
            }
            delays.wait().await;
        }
    }
}

/// Status and message of each condition, by type.
fn conditions(read: Option<&serde_json::Value>) -> BTreeMap<&str, (&str, &str)> {
    let all = read.and_then(|object| object["status"]["conditions"].as_array());
    all.into_iter()
        .flatten()
        .filter_map(|condition| {
            let text = |field: &str| condition[field].as_str();
            Some((
                text("type")?,
                (text("status")?, text("message").unwrap_or_default()),
            ))
        })
        .collect()
}

fn being_deleted(observed: Option<&Meta>) -> String {
    let finalizers = observed
        .map(|meta| meta.finalizers.join(", "))
        .unwrap_or_default();
    match finalizers.is_empty() {
        true => "is being deleted; will be created once it is gone".to_owned(),
        false => {
            format!("is being deleted, held by finalizers {finalizers}; will be created once it is gone")
        }
    }
}
