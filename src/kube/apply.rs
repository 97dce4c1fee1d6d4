//! Server-side apply with a precondition: update this object, or create it if none has the name.

use http::Method;
use serde_json::{Value, json};

use super::FIELD_MANAGER;
use super::calls::one;
use super::client::{Call, KubeClient, Representation};
use super::discovery::{Resource, parse};
use super::error::{Cause, Error};
use super::object::{Meta, ObjectRef, PartialObject};
use super::operand::Action;

/// What must hold for the server to carry out an apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition<'a> {
    /// No object has the name.
    Absent,
    /// The object has this uid.
    Uid(&'a str),
}

/// No object ever has this resource version: etcd counts revisions from 1, and the first write makes revision 2. The
/// server answers an apply that carries it with a conflict if the object exists, and creates the object otherwise.
const NO_OBJECT_HAS: &str = "1";

impl KubeClient {
    /// Server-side apply of a manifest. Takes over fields that other managers own. Returns the object's metadata; its
    /// resource version is unchanged if the apply changed nothing.
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
        let condition = ApplyMode::from(precondition);
        let call = apply(
            resource,
            object,
            manifest,
            condition,
            Representation::Metadata,
            "",
        );
        match self.call(&call).await {
            Ok(body) => parse(&call, &body).map(|applied: PartialObject| applied.metadata),
            Err(error) if matches!(error.cause, Cause::NoPrecondition(_)) => {
                self.create_unconditionally(resource, object, manifest).await
            }
            Err(error) => Err(error),
        }
    }

    /// Creates an object of a kind that accepts no precondition. The object did not exist a moment ago. If it exists by
    /// now, the unforced apply takes no field from another manager, and a second apply gives back the fields that became
    /// ours.
    async fn create_unconditionally(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        manifest: &Value,
    ) -> Result<Meta, Error> {
        let metadata = Representation::Metadata;
        let call = apply(resource, object, manifest, ApplyMode::Unforced, metadata, "");
        let body = self.call(&call).await?;
        let created: PartialObject = parse(&call, &body)?;
        if created.metadata.last_manager_besides(FIELD_MANAGER).is_none() {
            return Ok(created.metadata);
        }
        // A manager that applies no field owns none.
        let nothing = json!({
            "apiVersion": manifest["apiVersion"],
            "kind": manifest["kind"],
            "metadata": {"name": object.name},
        });
        let uid = ApplyMode::Uid(&created.metadata.uid);
        self.call(&apply(resource, object, &nothing, uid, metadata, ""))
            .await?;
        Err(call.error(Cause::Conflict(format!(
            "{object} appeared while it was being created"
        ))))
    }

    /// The object as [`KubeClient::apply`] would leave it, and the server's warnings. Writes nothing.
    ///
    /// # Errors
    /// The same as of [`KubeClient::apply`].
    pub async fn apply_dry_run(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        manifest: &Value,
        precondition: Precondition<'_>,
    ) -> Result<(Value, Vec<String>), Error> {
        let dry = |condition| {
            apply(
                resource,
                object,
                manifest,
                condition,
                Representation::Full,
                "&dryRun=All",
            )
        };
        let call = dry(precondition.into());
        let received = match self.receive(&call).await {
            Err(error) if matches!(error.cause, Cause::NoPrecondition(_)) => {
                self.receive(&dry(ApplyMode::Unforced)).await?
            }
            result => result?,
        };
        Ok((parse(&call, &received.body)?, received.warnings))
    }
}

/// How an apply is sent.
#[derive(Clone, Copy)]
enum ApplyMode<'a> {
    /// Forced, only if the object does not exist.
    Absent,
    /// Forced, only if the object has this uid.
    Uid(&'a str),
    /// Without a condition; fields of other managers are a conflict.
    Unforced,
}

impl<'a> From<Precondition<'a>> for ApplyMode<'a> {
    fn from(precondition: Precondition<'a>) -> Self {
        match precondition {
            Precondition::Absent => Self::Absent,
            Precondition::Uid(uid) => Self::Uid(uid),
        }
    }
}

fn apply(
    resource: &Resource,
    object: &ObjectRef,
    manifest: &Value,
    condition: ApplyMode<'_>,
    representation: Representation,
    more: &str,
) -> Call {
    let mut body = manifest.clone();
    let force = match condition {
        ApplyMode::Absent => {
            body["metadata"]["resourceVersion"] = NO_OBJECT_HAS.into();
            "&force=true"
        }
        ApplyMode::Uid(uid) => {
            body["metadata"]["uid"] = uid.into();
            "&force=true"
        }
        ApplyMode::Unforced => "",
    };
    Call {
        action: Action::Apply,
        operand: one(resource, object, bound_role(manifest)),
        method: Method::PATCH,
        uri: format!(
            "{}?fieldManager={FIELD_MANAGER}{force}{more}",
            resource.path(object)
        ),
        representation,
        // The media type of server-side apply is YAML, and JSON is YAML.
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
        let sent = |condition| {
            let call = apply(&resource, &object, &manifest, condition, Representation::Full, "");
            let (_, body) = call.body.unwrap();
            serde_json::from_slice::<Value>(&body).unwrap()
        };
        assert_eq!(
            sent(ApplyMode::Absent),
            json!({"metadata": {"name": "a", "resourceVersion": "1"}})
        );
        assert_eq!(
            sent(ApplyMode::Uid("u")),
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
