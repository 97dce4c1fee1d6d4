//! What the API server says of itself, and of what this client may do.

use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::client::{Call, KubeClient, Representation};
use super::discovery::parse;
use super::error::Error;
use super::operand::{Action, Operand, Permission};

#[derive(Deserialize)]
struct Review {
    status: Verdict,
}

#[derive(Deserialize)]
struct Verdict {
    #[serde(default)]
    allowed: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerVersion {
    git_version: String,
}

impl KubeClient {
    /// Whether this client has a permission (SelfSubjectAccessReview). Every authenticated user may ask.
    ///
    /// # Errors
    /// [`Error`] if the server did not say.
    pub async fn may(&self, permission: &Permission) -> Result<bool, Error> {
        // A plural has no dot, and a group begins after the first.
        let (plural, group) = permission
            .resource
            .split_once('.')
            .unwrap_or((&permission.resource, ""));
        let attributes = json!({
            "verb": permission.verb,
            "group": group,
            "resource": plural,
            "name": permission.name,
            "namespace": permission.namespace.as_deref().unwrap_or(""),
        });
        let body = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        });
        let call = Call {
            action: Action::Review,
            operand: operand(
                format!("the permission to {permission}"),
                "selfsubjectaccessreviews.authorization.k8s.io",
            ),
            method: Method::POST,
            uri: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned(),
            representation: Representation::Full,
            body: Some(("application/json", body.to_string().into_bytes())),
        };
        let review: Review = parse(&call, &self.call(&call).await?)?;
        Ok(review.status.allowed)
    }

    /// The version of the server, such as `v1.31.4`.
    ///
    /// # Errors
    /// [`Error`] if the server did not say.
    pub async fn server_version(&self) -> Result<String, Error> {
        let call = Call {
            action: Action::Discover,
            operand: operand("the version of the server".to_owned(), "/version"),
            method: Method::GET,
            uri: "/version".to_owned(),
            representation: Representation::Full,
            body: None,
        };
        let version: ServerVersion = parse(&call, &self.call(&call).await?)?;
        Ok(version.git_version)
    }
}

fn operand(shown: String, resource: &str) -> Operand {
    Operand {
        shown,
        resource: resource.to_owned(),
        name: String::new(),
        namespace: None,
        bound_role: None,
    }
}
