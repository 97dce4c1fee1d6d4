//! The requests about objects: list, read, apply, delete. Each may be repeated without harm.

use http::Method;
use serde_json::{Value, json};

use super::FIELD_MANAGER;
use super::client::{Call, KubeClient, Representation};
use super::discovery::{Resource, parse};
use super::error::{Action, Cause, Error, Operand};
use super::object::{Meta, ObjectRef, PartialList, PartialObject};

/// The objects of a kind, and where a watch goes on from.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// Their metadata.
    pub items: Vec<Meta>,
    /// Of the list as a whole.
    pub resource_version: String,
}

/// What must be so for an apply to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition<'a> {
    /// There is no object of that name.
    Absent,
    /// The object is still this one.
    Uid(&'a str),
}

/// How far a deletion went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone.
    Gone,
    /// It is marked; finalizers, or the kind's own grace period, hold it.
    Pending,
}

/// Objects a page of a list. Their metadata takes about a kilobyte each.
const PAGE: u32 = 5_000;

/// No object ever has this resource version: etcd counts revisions from 1, which no write has. An apply that carries
/// it is refused with a conflict if there is an object, and creates it if there is none.
const NO_OBJECT_HAS: &str = "1";

impl KubeClient {
    /// Lists the metadata of the objects of a kind that carry a label, in one namespace or in all.
    ///
    /// # Errors
    /// [`Error`] if the list could not be read as a whole.
    pub async fn list(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        label: &str,
    ) -> Result<Listed, Error> {
        let mut listed = Listed::default();
        let mut next: Option<String> = None;
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
                // The pages' common revision was compacted away: from the start, at a newer one.
                Err(error) if next.is_some() && matches!(error.cause, Cause::Gone(_)) => {
                    listed.items.clear();
                    next = None;
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
    /// [`Error`] if that cannot be known.
    pub async fn meta(&self, resource: &Resource, object: &ObjectRef) -> Result<Option<Meta>, Error> {
        let call = get(resource, object, Representation::Metadata);
        match self.call(&call).await {
            Ok(body) => parse(&call, &body).map(|read: PartialObject| Some(read.metadata)),
            Err(error) if matches!(error.cause, Cause::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads one object in full; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error`] if that cannot be known.
    pub async fn get(&self, resource: &Resource, object: &ObjectRef) -> Result<Option<Value>, Error> {
        let call = get(resource, object, Representation::Full);
        match self.call(&call).await {
            Ok(body) => parse(&call, &body).map(Some),
            Err(error) if matches!(error.cause, Cause::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Server-side apply of a manifest, taking over fields that others own. The answer is the object's metadata;
    /// its resource version is the one before if nothing had to change.
    ///
    /// # Errors
    /// [`Error`]; [`Cause::Conflict`] if the precondition does not hold.
    pub async fn apply(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        manifest: &Value,
        precondition: Precondition<'_>,
    ) -> Result<Meta, Error> {
        let call = apply(
            resource,
            object,
            manifest,
            precondition,
            Representation::Metadata,
            "",
        );
        let body = self.call(&call).await?;
        parse(&call, &body).map(|applied: PartialObject| applied.metadata)
    }

    /// What [`KubeClient::apply`] would make of the object; writes nothing.
    ///
    /// # Errors
    /// As of [`KubeClient::apply`].
    pub async fn apply_dry_run(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        manifest: &Value,
        precondition: Precondition<'_>,
    ) -> Result<Value, Error> {
        let call = apply(
            resource,
            object,
            manifest,
            precondition,
            Representation::Full,
            "&dryRun=All",
        );
        let body = self.call(&call).await?;
        parse(&call, &body)
    }

    /// Deletes an object if it is still this one in this state. What depends on it goes in the background.
    ///
    /// # Errors
    /// [`Error`]; [`Cause::Conflict`] if it is another object by now, or was changed.
    pub async fn delete(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        uid: &str,
        resource_version: &str,
    ) -> Result<Deleted, Error> {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
            "propagationPolicy": "Background",
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
                // The object that was, or a Status once nothing is left of it. Only the first has a uid of its own.
                let answer: PartialObject = parse(&call, &body)?;
                let held = answer.metadata.deletion_timestamp.is_some();
                Ok(if held { Deleted::Pending } else { Deleted::Gone })
            }
            Err(error) if matches!(error.cause, Cause::NotFound(_)) => Ok(Deleted::Gone),
            Err(error) => Err(error),
        }
    }
}

/// `labelSelector=<label>`: the label is there, whatever its value.
pub(super) fn selector(label: &str) -> String {
    format!("labelSelector={}", super::client::segment(label))
}

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

fn one(resource: &Resource, object: &ObjectRef, bound_role: Option<(String, String)>) -> Operand {
    Operand {
        shown: object.to_string(),
        resource: resource.qualified(),
        name: object.name.clone(),
        namespace: object.namespace.clone(),
        bound_role,
    }
}

fn get(resource: &Resource, object: &ObjectRef, representation: Representation) -> Call {
    Call {
        action: Action::Get,
        operand: one(resource, object, None),
        method: Method::GET,
        uri: resource.path(object),
        representation,
        body: None,
    }
}

fn apply(
    resource: &Resource,
    object: &ObjectRef,
    manifest: &Value,
    precondition: Precondition<'_>,
    representation: Representation,
    more: &str,
) -> Call {
    let mut body = manifest.clone();
    let (field, value) = match precondition {
        Precondition::Absent => ("resourceVersion", NO_OBJECT_HAS),
        Precondition::Uid(uid) => ("uid", uid),
    };
    body["metadata"][field] = value.into();
    Call {
        action: Action::Apply,
        operand: one(resource, object, bound_role(manifest)),
        method: Method::PATCH,
        uri: format!(
            "{}?fieldManager={FIELD_MANAGER}&force=true{more}",
            resource.path(object)
        ),
        representation,
        // JSON is YAML, and what the server takes for server-side apply is called YAML.
        body: Some(("application/apply-patch+yaml", body.to_string().into_bytes())),
    }
}

/// Resource and name of the role that a binding refers to.
fn bound_role(manifest: &Value) -> Option<(String, String)> {
    let role = manifest.get("roleRef")?;
    let plural = match role.get("kind")?.as_str()? {
        "ClusterRole" => "clusterroles",
        _ => "roles",
    };
    let name = role.get("name")?.as_str()?;
    Some((format!("{plural}.rbac.authorization.k8s.io"), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_map() -> (Resource, ObjectRef) {
        let resource = Resource {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            plural: "configmaps".to_owned(),
            namespaced: true,
        };
        let object = ObjectRef {
            group: String::new(),
            kind: "ConfigMap".to_owned(),
            namespace: Some("default".to_owned()),
            name: "a".to_owned(),
        };
        (resource, object)
    }

    #[test]
    fn an_apply_carries_its_precondition_and_leaves_the_manifest_alone() {
        let (resource, object) = config_map();
        let manifest = json!({"metadata": {"name": "a"}});
        let sent = |precondition| {
            let call = apply(
                &resource,
                &object,
                &manifest,
                precondition,
                Representation::Full,
                "",
            );
            let (_, body) = call.body.unwrap();
            serde_json::from_slice::<Value>(&body).unwrap()
        };
        assert_eq!(
            sent(Precondition::Absent),
            json!({"metadata": {"name": "a", "resourceVersion": "1"}})
        );
        assert_eq!(
            sent(Precondition::Uid("u")),
            json!({"metadata": {"name": "a", "uid": "u"}})
        );
        assert_eq!(manifest, json!({"metadata": {"name": "a"}}));
    }

    #[test]
    fn a_binding_names_the_role_that_it_binds() {
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": "cluster-admin"}});
        assert_eq!(
            bound_role(&binding),
            Some((
                "clusterroles.rbac.authorization.k8s.io".to_owned(),
                "cluster-admin".to_owned()
            ))
        );
        assert_eq!(bound_role(&json!({})), None);
    }
}
