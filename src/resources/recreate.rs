//! Deletes an object whose immutable fields have to change, and creates it again.

use std::time::Duration;

use serde_json::{Map, Value};
use tracing::info;

use super::act::{Actor, Write, WriteResult, being_deleted};
use super::report::{Act, Outcome};
use crate::failpoint;
use crate::kube::{Cause, Deleted, Dependants, Error as ApiError, Meta, ObjectRef, Precondition, Resource};
use crate::retry::Delays;

/// The name under which the server tries a creation, as a dry run, before the object is deleted.
pub(super) const PREFLIGHT: &str = "quorate-preflight";

/// The shortest wait after an object was put back: each attempt deletes it.
const PUT_BACK_WAIT: Duration = Duration::from_secs(5 * 60);

impl Actor {
    /// Proves that the new object would be accepted, deletes the old one, waits until it is gone and creates the new one.
    /// Puts the old one back if the new one is refused after all. `None` if the object is no longer the one that was
    /// observed.
    ///
    /// A process that dies after the deletion leaves an inventory entry without an object. The next pass, by any leader,
    /// creates the object (INV-3).
    pub(super) async fn recreate(
        &self,
        write: &Write,
        seen: &Meta,
        why: &str,
        dependants: Dependants,
    ) -> Result<Option<WriteResult>, ApiError> {
        let (manifest, resource) = (&write.manifest, &write.resource);
        let object = &manifest.object;
        if let Err(error) = self.preflight(resource, object, &manifest.body).await {
            let failed = WriteResult::failed(format!("cannot be recreated: {error}"));
            return Ok(Some(WriteResult {
                error: Some(error),
                ..failed
            }));
        }
        let Some(before) = self.kube.get(resource, object).await? else {
            return Ok(None);
        };
        let deletion = self
            .kube
            .delete(resource, object, &seen.uid, &seen.resource_version, dependants);
        let deleted = match deletion.await {
            Ok(deleted) => deleted,
            Err(error) if matches!(error.cause, Cause::Conflict(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Logged here, too: the window may close before there is a result.
        info!("the deletion of {object} was accepted, to recreate it (immutable fields: {why})");
        Ok(Some(self.create_again(write, seen, why, before, deleted).await))
    }

    /// Waits until the deleted object is gone and creates the new one. Whatever fails, the result holds the deletion.
    async fn create_again(
        &self,
        write: &Write,
        seen: &Meta,
        why: &str,
        before: Value,
        deleted: Deleted,
    ) -> WriteResult {
        let (manifest, resource) = (&write.manifest, &write.resource);
        let object = &manifest.object;
        let removed = |error: ApiError| {
            let removed = Act::Removed(object.clone(), error.about(object));
            WriteResult::refused(object, &error).having(removed)
        };
        if deleted == Deleted::Pending {
            match self.wait_until_gone(resource, object, &seen.uid).await {
                Ok(None) => {}
                Ok(Some(still)) => {
                    let held = being_deleted(Some(&still));
                    let failed = WriteResult::failed(format!("{held}; will be created once it is gone"));
                    return failed.having(Act::Removed(object.clone(), held));
                }
                Err(error) => return removed(error),
            }
        }
        failpoint::abort_at("resources.deleted");
        let creation = self
            .kube
            .apply(resource, object, &manifest.body, Precondition::Absent);
        match creation.await {
            Ok(meta) => {
                let recreated = WriteResult::in_place(Outcome::Recreated, &meta);
                recreated.having(Act::Recreated(object.clone(), Some(why.to_owned())))
            }
            // Another client was faster.
            Err(error) if matches!(error.cause, Cause::Conflict(_)) => removed(error),
            Err(error) => self.put_back(resource, object, before, error).await,
        }
    }

    /// Has the server try the creation under a reserved name, without writing: permissions, admission, validation. The
    /// refusal of an update proves none of these.
    async fn preflight(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        manifest: &Value,
    ) -> Result<(), ApiError> {
        let mut body = manifest.clone();
        body["metadata"]["name"] = PREFLIGHT.into();
        // Only one object of such a kind may exist beside the old one.
        if let Some(fields) = body.as_object_mut() {
            fields.remove("globalDefault");
        }
        let reserved = ObjectRef {
            name: PREFLIGHT.to_owned(),
            ..object.clone()
        };
        let tried = self
            .kube
            .apply_dry_run(resource, &reserved, &body, Precondition::Absent);
        tried.await.map(drop)
    }

    /// Creates the deleted object again as it was, because its successor was refused with this error.
    async fn put_back(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        before: Value,
        refused: ApiError,
    ) -> WriteResult {
        let body = without_server_fields(before);
        let creation = self.kube.apply(resource, object, &body, Precondition::Absent);
        let (failed, why) = (WriteResult::refused(object, &refused), refused.about(object));
        match creation.await {
            Ok(meta) => {
                let put_back = WriteResult {
                    left: Some(meta),
                    at_least: failed.at_least.max(PUT_BACK_WAIT),
                    ..failed
                };
                put_back.having(Act::PutBack(object.clone(), why))
            }
            Err(error) => failed.having(Act::Removed(
                object.clone(),
                format!("{why}; {}", error.about(object)),
            )),
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
}

/// An object as a manifest: without what the server sets.
fn without_server_fields(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        let kept = [
            "name",
            "namespace",
            "labels",
            "annotations",
            "finalizers",
            "ownerReferences",
        ];
        let all: Map<String, Value> = std::mem::take(metadata);
        metadata.extend(all.into_iter().filter(|(key, _)| kept.contains(&key.as_str())));
    }
    object
}
