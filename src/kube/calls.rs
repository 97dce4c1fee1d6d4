//! The requests about objects: list, get, delete. Repeating any of them is harmless.

use http::Method;
use serde_json::{Value, json};

use super::client::{Call, KubeClient, Representation};
use super::discovery::{Resource, parse};
use super::error::{Cause, Error};
use super::object::{Meta, ObjectRef, PartialList, PartialObject};
use super::operand::{Action, Operand};

/// The objects of a kind, and the version from which a watch continues.
#[derive(Clone, Debug, Default)]
pub struct ObjectList {
    /// Metadata of the objects, in the server's order.
    pub items: Vec<Meta>,
    /// The version of the list; a watch from here misses nothing.
    pub resource_version: String,
}

/// The result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The object no longer exists.
    Gone,
    /// The object has a deletion timestamp; finalizers or the kind's grace period hold it.
    Pending,
}

/// What happens to the objects that name the deleted one as their owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dependants {
    /// The garbage collector deletes them in the background.
    #[default]
    Deleted,
    /// They stay, without an owner.
    Orphaned,
}

/// Objects per page of a list. The metadata of one object takes about a kilobyte.
const PAGE: u32 = 5_000;

impl KubeClient {
    /// Lists the metadata of the objects of a kind that carry a label, in one namespace or in all.
    ///
    /// # Errors
    /// [`Error`] unless every page was read.
    pub async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        label: &str,
    ) -> Result<ObjectList, Error> {
        let mut listed = ObjectList::default();
        let mut next: Option<String> = None;
        let mut restarted = false;
        loop {
            let mut uri = format!(
                "{}?{}&limit={PAGE}",
                resource.collection(namespace),
                selector(label)
            );
            if let Some(token) = &next {
                uri.push_str("&continue=");
                uri.push_str(&super::client::segment(token));
            }
            let call = Call {
                action: Action::List,
                operand: whole_kind(resource, namespace),
                method: Method::GET,
                uri,
                representation: Representation::MetadataList,
                body: None,
            };
            let page: PartialList = match self.call(&call).await {
                Ok(body) => parse(&call, &body)?,
                // The revision that the pages share was compacted: start again at a newer one. Only once, because a list
                // that always outlives its revision would never end (INV-9).
                Err(error) if next.is_some() && !restarted && error.lost_track() => {
                    listed.items.clear();
                    next = None;
                    restarted = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            listed
                .items
                .extend(page.items.into_iter().flatten().map(|item| item.metadata));
            listed.resource_version = page.metadata.resource_version;
            next = page.metadata.next.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(listed);
            }
        }
    }

    /// Reads the metadata of one object; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error`] if the server did not say whether it exists.
    pub async fn meta(&self, resource: &Resource, object: &ObjectRef) -> Result<Option<Meta>, Error> {
        let call = get(resource, object, Representation::Metadata);
        match self.call(&call).await {
            Ok(body) => parse(&call, &body).map(|read: PartialObject| Some(read.metadata)),
            Err(error) if matches!(error.cause, Cause::Absent(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads one object in full; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error`] if the server did not say whether it exists.
    pub async fn get(&self, resource: &Resource, object: &ObjectRef) -> Result<Option<Value>, Error> {
        let call = get(resource, object, Representation::Full);
        match self.call(&call).await {
            Ok(body) => parse(&call, &body).map(Some),
            Err(error) if matches!(error.cause, Cause::Absent(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the object if it still has this uid and resource version.
    ///
    /// # Errors
    /// [`Error`]; [`Cause::Conflict`] if the object was changed or replaced.
    pub async fn delete(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        uid: &str,
        resource_version: &str,
        dependants: Dependants,
    ) -> Result<Deleted, Error> {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
            "propagationPolicy": match dependants {
                Dependants::Deleted => "Background",
                Dependants::Orphaned => "Orphan",
            },
        });
        let call = Call {
            action: Action::Delete,
            operand: one(resource, object, None),
            method: Method::DELETE,
            uri: resource.path(object),
            representation: Representation::Full,
            body: Some(("application/json", options.to_string().into_bytes())),
        };
        match self.call(&call).await {
            Ok(body) => {
                // The deleted object, or a Status if nothing is left of it. Only an object has a deletion timestamp.
                let answer: PartialObject = parse(&call, &body)?;
                let held = answer.metadata.deletion_timestamp.is_some();
                Ok(if held { Deleted::Pending } else { Deleted::Gone })
            }
            Err(error) if matches!(error.cause, Cause::Absent(_)) => Ok(Deleted::Gone),
            Err(error) => Err(error),
        }
    }
}

impl KubeClient {
    /// Replaces the field managers of the object, if it still has this resource version.
    ///
    /// # Errors
    /// [`Error`]; [`Cause::Conflict`] if the object was changed.
    pub async fn set_managed_fields(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        resource_version: &Value,
        managed_fields: Vec<Value>,
    ) -> Result<(), Error> {
        let patch = json!([
            {"op": "replace", "path": "/metadata/managedFields", "value": managed_fields},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
        ]);
        let call = Call {
            action: Action::Apply,
            operand: one(resource, object, None),
            method: Method::PATCH,
            uri: resource.path(object),
            representation: Representation::Metadata,
            body: Some(("application/json-patch+json", patch.to_string().into_bytes())),
        };
        self.call(&call).await.map(drop)
    }
}

/// `labelSelector=<label>`: objects that have the label, with any value.
pub(super) fn selector(label: &str) -> String {
    format!("labelSelector={}", super::client::segment(label))
}

/// A request about all objects of a kind.
pub(super) fn whole_kind(resource: &Resource, namespace: Option<&str>) -> Operand {
    let shown = match namespace {
        Some(namespace) => format!("{} in namespace {namespace}", resource.qualified()),
        None => resource.qualified(),
    };
    Operand {
        shown,
        resource: resource.qualified(),
        name: String::new(),
        namespace: namespace.map(str::to_owned),
        bound_role: None,
    }
}

/// A request about one object.
pub(super) fn one(resource: &Resource, object: &ObjectRef, bound_role: Option<(String, String)>) -> Operand {
    Operand {
        shown: object.to_string(),
        resource: resource.qualified(),
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        bound_role,
    }
}

/// A request to read one object.
pub(super) fn get(resource: &Resource, object: &ObjectRef, representation: Representation) -> Call {
    Call {
        action: Action::Get,
        operand: one(resource, object, None),
        method: Method::GET,
        uri: resource.path(object),
        representation,
        body: None,
    }
}
