//! Carries out a step for one object: the calls, and what follows from their refusals. Runs only as a part of a pass,
//! which stands before each of its steps and ends it with the window (INV-3).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bundle::{Bundle, Manifest, RECREATE};
use super::plan::{ApplyReason, ObjectVersion, Prune, Remembered, Step, Wanted, plan, plan_prune};
use super::report::Outcome;
use crate::failpoint;
use crate::kube::{
    Cause, Deleted, Error as ApiError, FIELD_MANAGER, KubeClient, Meta, ObjectRef, Precondition, Resource,
};
use crate::retry::Delays;

/// How often an object that changes while it is written is looked at within one pass. One change in between is chance;
/// what changes each time is someone's work, and better left to the next pass.
const LOOKS: u32 = 4;

/// With what an object is written.
pub(super) struct Actor {
    pub(super) kube: KubeClient,
    pub(super) bundle: Arc<Bundle>,
    /// For a deleted object to be gone.
    pub(super) gone_within: Duration,
}

/// What became of an object.
pub(super) struct WriteResult {
    pub(super) outcome: Outcome,
    /// The object as it was left, if it is in place.
    pub(super) in_sync: Option<ObjectVersion>,
    /// It had been in place and was put in place again; who changed it, if known.
    pub(super) mended: Option<Option<String>>,
    /// How long the server asked to wait.
    pub(super) at_least: Duration,
    /// The server as a whole does not answer: the pass ends.
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

    fn because(error: ApiError) -> Self {
        Self {
            at_least: error.cause.retry_after().unwrap_or_default(),
            server: error.cause.is_the_server().then(|| error.clone()),
            ..Self::failed(error.to_string())
        }
    }

    fn done(outcome: Outcome, meta: &Meta) -> Self {
        Self {
            in_sync: Some(ObjectVersion::of(meta)),
            ..Self::new(outcome)
        }
    }
}

/// What was found out about an object that is to be pruned.
pub(super) enum PruneResult {
    /// Nothing of ours is left: out of the inventory with it.
    Gone(Outcome),
    /// It is still there, or on its way out.
    Stays(Outcome),
    /// The server as a whole does not answer.
    Server(ApiError),
}

/// The object to be written, as far as it was looked at.
pub(super) struct Subject<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) resource: &'a Resource,
    pub(super) observed: Option<&'a Meta>,
    pub(super) inventory_uid: &'a str,
}

impl Actor {
    /// Carries out [`Step::Create`] or [`Step::Apply`]. If the object turns out to be another than was looked at, it
    /// is looked at and decided on anew.
    pub(super) async fn put_in_place(&self, subject: &Subject<'_>, mut step: Step) -> WriteResult {
        let Subject {
            manifest, resource, ..
        } = subject;
        let object = &manifest.object;
        let mut observed = subject.observed.cloned();
        for _ in 0..LOOKS {
            let precondition = match &step {
                Step::Create { .. } => Precondition::Absent,
                Step::Apply { uid, .. } => Precondition::Uid(uid),
                other => return Self::no_longer(other, observed.as_ref()),
            };
            match self
                .kube
                .apply(resource, object, &manifest.body, precondition)
                .await
            {
                Ok(meta) => return Self::applied(&step, observed.as_ref(), &meta),
                Err(error) => match (&error.cause, &step) {
                    (Cause::Conflict(_), _) => {}
                    (Cause::Immutable(why), Step::Apply { .. }) => match &observed {
                        Some(seen) if manifest.recreate => match self.recreate(subject, seen).await {
                            Ok(Some(acted)) => return acted,
                            Ok(None) => {}
                            Err(error) => return WriteResult::because(error),
                        },
                        _ => {
                            return WriteResult::failed(format!(
                                "{why}; it is not deleted and created anew for that, unless its manifest is \
                                 annotated with {RECREATE}: \"true\""
                            ));
                        }
                    },
                    _ => return WriteResult::because(error),
                },
            }
            observed = match self.kube.meta(resource, object).await {
                Ok(observed) => observed,
                Err(error) => return WriteResult::because(error),
            };
            let wanted = Wanted {
                bundle: &self.bundle.name,
                adopt: manifest.adopt,
            };
            let again = plan(
                wanted,
                observed.as_ref(),
                subject.inventory_uid,
                Remembered::default(),
                Instant::now(),
            );
            // What it was for stays what it was for.
            step = match (again, &step) {
                (
                    Step::Apply {
                        uid,
                        why: ApplyReason::FirstLook,
                    },
                    Step::Apply {
                        why: ApplyReason::Changed,
                        ..
                    },
                ) => Step::Apply {
                    uid,
                    why: ApplyReason::Changed,
                },
                (Step::Create { .. }, Step::Create { mends }) => Step::Create { mends: *mends },
                (again, _) => again,
            };
        }
        WriteResult::failed(format!("it changed {LOOKS} times while it was being written"))
    }

    fn applied(step: &Step, observed: Option<&Meta>, meta: &Meta) -> WriteResult {
        let changed = observed.is_none_or(|seen| seen.resource_version != meta.resource_version);
        let mut acted = match step {
            Step::Create { .. } => WriteResult::done(Outcome::Created, meta),
            _ if changed => WriteResult::done(Outcome::Applied, meta),
            _ => WriteResult::done(Outcome::Unchanged, meta),
        };
        acted.mended = match step {
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
        acted
    }

    /// A step that turned out not to be a write.
    pub(super) fn no_longer(step: &Step, observed: Option<&Meta>) -> WriteResult {
        match step {
            Step::Refuse(foreign) => WriteResult::failed(foreign.to_string()),
            Step::AwaitDeletion => WriteResult::failed(held_back(observed)),
            _ => WriteResult::failed("it was changed in between"),
        }
    }

    /// Deletes an object whose fields cannot change, waits until it is gone and creates it. `None` if it is no longer
    /// what was looked at.
    ///
    /// A process that dies after the deletion leaves an inventory entry without an object: the next pass, of whichever
    /// leader, creates it (INV-3).
    async fn recreate(&self, subject: &Subject<'_>, seen: &Meta) -> Result<Option<WriteResult>, ApiError> {
        let Subject {
            manifest, resource, ..
        } = subject;
        let object = &manifest.object;
        let deleted = self
            .kube
            .delete(resource, object, &seen.uid, &seen.resource_version)
            .await;
        match deleted {
            Ok(Deleted::Gone) => {}
            Ok(Deleted::Pending) => {
                if let Some(still) = self.wait_until_gone(resource, object, &seen.uid).await? {
                    return Ok(Some(WriteResult::failed(held_back(Some(&still)))));
                }
            }
            Err(error) if matches!(error.cause, Cause::Conflict(_)) => return Ok(None),
            Err(error) => return Err(error),
        }
        failpoint::abort_at("resources.deleted");
        match self
            .kube
            .apply(resource, object, &manifest.body, Precondition::Absent)
            .await
        {
            Ok(meta) => Ok(Some(WriteResult::done(Outcome::Recreated, &meta))),
            Err(error) if matches!(error.cause, Cause::Conflict(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until the object with this uid is gone; the object, if it is not within the limit.
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

    /// Deletes an object that the bundle no longer holds, if it may be.
    pub(super) async fn prune(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        observed: Option<&Meta>,
        inventory_uid: &str,
    ) -> PruneResult {
        let mut observed = observed.cloned();
        for _ in 0..LOOKS {
            let (uid, resource_version) = match plan_prune(object, observed.as_ref(), inventory_uid) {
                Prune::Forget(_) => return PruneResult::Gone(Outcome::Pruned),
                Prune::Keep => return PruneResult::Stays(Outcome::Kept),
                Prune::AwaitDeletion => return PruneResult::Stays(Outcome::Pruned),
                Prune::Delete {
                    uid,
                    resource_version,
                } => (uid, resource_version),
            };
            match self.kube.delete(resource, object, &uid, &resource_version).await {
                Ok(Deleted::Gone) => return PruneResult::Gone(Outcome::Pruned),
                Ok(Deleted::Pending) => return PruneResult::Stays(Outcome::Pruned),
                Err(error) if matches!(error.cause, Cause::Conflict(_)) => {}
                Err(error) if error.cause.is_the_server() => return PruneResult::Server(error),
                Err(error) => return PruneResult::Stays(Outcome::Failed(error.to_string())),
            }
            observed = match self.kube.meta(resource, object).await {
                Ok(observed) => observed,
                Err(error) if error.cause.is_the_server() => return PruneResult::Server(error),
                Err(error) => return PruneResult::Stays(Outcome::Failed(error.to_string())),
            };
        }
        PruneResult::Stays(Outcome::Failed(format!(
            "it changed {LOOKS} times while it was being deleted"
        )))
    }

    /// Waits until the server has taken up a CustomResourceDefinition; why not, if it does not within the limit.
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
                    .map_or("the server says nothing about it", |(_, message)| message);
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

fn held_back(observed: Option<&Meta>) -> String {
    let finalizers = observed
        .map(|meta| meta.finalizers.join(", "))
        .unwrap_or_default();
    match finalizers.is_empty() {
        true => "is being deleted; it is created anew once it is gone".to_owned(),
        false => format!(
            "is being deleted, held by its finalizers ({finalizers}); it is created anew once it is gone"
        ),
    }
}
