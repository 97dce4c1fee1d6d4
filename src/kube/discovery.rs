//! Discovery: the kinds that the API server serves, and their plurals.

use std::collections::{BTreeMap, HashMap, HashSet};

use http::Method;
use serde::Deserialize;

use super::client::{Call, KubeClient, Representation, segment};
use super::error::{Cause, Error};
use super::object::ObjectRef;
use super::operand::{Action, Operand};

/// A kind as the API server serves it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: String,
    /// Without the group: `v1`.
    pub version: String,
    /// `ClusterRole`
    pub kind: String,
    /// `clusterroles`
    pub plural: String,
    /// Whether its objects are namespaced.
    pub namespaced: bool,
}

impl Resource {
    /// Plural with group, as in RBAC messages: `clusterroles.rbac.authorization.k8s.io`.
    pub(super) fn qualified(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Path of the collection, in one namespace or in all.
    pub(super) fn collection(&self, namespace: Option<&str>) -> String {
        let root = root(&self.group, &self.version);
        match namespace {
            Some(namespace) => format!("{root}/namespaces/{}/{}", segment(namespace), self.plural),
            None => format!("{root}/{}", self.plural),
        }
    }

    /// Path of one object.
    pub(super) fn path(&self, object: &ObjectRef) -> String {
        let collection = self.collection(object.namespace.as_deref());
        format!("{collection}/{}", segment(&object.name))
    }
}

fn api_version(group: &str, version: &str) -> String {
    match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    }
}

fn root(group: &str, version: &str) -> String {
    match group {
        "" => format!("/api/{}", segment(version)),
        group => format!("/apis/{}/{}", segment(group), segment(version)),
    }
}

/// The group versions that were read from the server so far. Each is read once, and again after a doubt.
#[derive(Debug, Default)]
pub struct Discovery {
    versions: HashMap<(String, String), BTreeMap<String, Resource>>,
    doubted: HashSet<String>,
    /// The versions of groups to read again. What is known of them stays until the answer.
    stale: HashSet<(String, String)>,
}

#[derive(Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<ServedResource>,
}

#[derive(Deserialize)]
struct ServedResource {
    name: String,
    kind: String,
    namespaced: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    preferred_version: GroupVersion,
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: String,
}

impl Discovery {
    /// The kind in this version. `None`: the group version was not read yet. `Some(None)`: the server does not serve the
    /// kind.
    pub fn known(&self, group: &str, version: &str, kind: &str) -> Option<Option<&Resource>> {
        let key = (group.to_owned(), version.to_owned());
        self.versions.get(&key).map(|kinds| kinds.get(kind))
    }

    /// Whether a version that was read serves the kind under this plural.
    pub fn serves(&self, group: &str, kind: &str, plural: &str) -> bool {
        let mut versions = self.versions.iter().filter(|((known, _), _)| known == group);
        versions.any(|(_, kinds)| kinds.get(kind).is_some_and(|served| served.plural == plural))
    }

    /// Stores the result of [`KubeClient::served`].
    pub fn learn(&mut self, group: &str, version: &str, resources: Vec<Resource>) {
        let version = (group.to_owned(), version.to_owned());
        self.stale.remove(&version);
        let kinds = resources
            .into_iter()
            .map(|resource| (resource.kind.clone(), resource))
            .collect();
        self.versions.insert(version, kinds);
    }

    /// Marks a group to be read again by the next pass, because a kind of it is not served, or no longer. What is known of
    /// the group stays until the answer, so that a late one changes nothing of its other kinds (INV-8).
    pub fn doubt(&mut self, group: &str) {
        self.doubted.insert(group.to_owned());
    }

    /// Has the groups in doubt read again. Called at the start of a pass.
    pub fn read_doubted(&mut self) {
        let doubted = std::mem::take(&mut self.doubted);
        let versions = self.versions.keys();
        let stale = versions.filter(|(group, _)| doubted.contains(group));
        self.stale.extend(stale.cloned());
    }

    /// Whether the version of the group was not read yet, or is in doubt.
    pub fn has_to_read(&self, group: &str, version: &str) -> bool {
        let version = (group.to_owned(), version.to_owned());
        !self.versions.contains_key(&version) || self.stale.contains(&version)
    }
}

impl KubeClient {
    /// The kinds of one group version; empty if the server does not serve it.
    ///
    /// # Errors
    /// [`Error`] if the server did not say. A failed request never counts as an absent kind.
    pub async fn served(&self, group: &str, version: &str) -> Result<Vec<Resource>, Error> {
        let call = discovery_call(root(group, version), &api_version(group, version));
        let body = match self.call(&call).await {
            Ok(body) => body,
            Err(error) if matches!(error.cause, Cause::NotFound(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let list: ResourceList = parse(&call, &body)?;
        Ok(list
            .resources
            .into_iter()
            // A subresource (`pods/status`) has the kind of its parent or another one.
            .filter(|served| !served.name.contains('/'))
            .map(|served| Resource {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: served.kind,
                plural: served.name,
                namespaced: served.namespaced,
            })
            .collect())
    }

    /// Whether a request ended with this error because the server as a whole is unusable. After a 401 asks the server on a
    /// path that no extension serves: the one that rejected the credentials may be an aggregated API alone (INV-8).
    pub async fn is_unusable(&self, cause: &Cause) -> bool {
        match cause {
            Cause::Unauthorized(_) => self.served("", "v1").await.is_err_and(|error| {
                error.cause.is_the_server() || matches!(error.cause, Cause::Unauthorized(_))
            }),
            other => other.is_the_server(),
        }
    }

    /// The versions of a group, the preferred one first; empty if the server does not serve the group.
    ///
    /// # Errors
    /// [`Error`] if the server did not say.
    pub async fn versions(&self, group: &str) -> Result<Vec<String>, Error> {
        if group.is_empty() {
            return Ok(vec!["v1".to_owned()]);
        }
        let call = discovery_call(format!("/apis/{}", segment(group)), group);
        let body = match self.call(&call).await {
            Ok(body) => body,
            Err(error) if matches!(error.cause, Cause::NotFound(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let group: Group = parse(&call, &body)?;
        let others = group.versions.into_iter().map(|served| served.version);
        let mut versions = vec![group.preferred_version.version];
        versions.extend(
            others
                .filter(|version| *version != versions[0])
                .collect::<Vec<_>>(),
        );
        Ok(versions)
    }
}

fn discovery_call(uri: String, shown: &str) -> Call {
    Call {
        action: Action::Discover,
        operand: Operand {
            shown: shown.to_owned(),
            resource: uri.clone(),
            name: String::new(),
            namespace: None,
            bound_role: None,
        },
        method: Method::GET,
        uri,
        representation: Representation::Full,
        body: None,
    }
}

/// Parses the body of a response.
pub(super) fn parse<T: serde::de::DeserializeOwned>(call: &Call, body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| call.error(Cause::Malformed(error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(group: &str, kind: &str, plural: &str) -> Resource {
        Resource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced: true,
        }
    }

    #[test]
    fn paths_follow_the_api_conventions() {
        let config_maps = resource("", "ConfigMap", "configmaps");
        let object = ObjectRef {
            group: String::new(),
            kind: "ConfigMap".to_owned(),
            namespace: Some("kube-system".to_owned()),
            name: "a".to_owned(),
        };
        assert_eq!(
            config_maps.path(&object),
            "/api/v1/namespaces/kube-system/configmaps/a"
        );
        let roles = resource("rbac.authorization.k8s.io", "ClusterRole", "clusterroles");
        assert_eq!(
            roles.collection(None),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles"
        );
        assert_eq!(roles.qualified(), "clusterroles.rbac.authorization.k8s.io");
    }

    #[test]
    fn a_doubted_group_stays_known_until_it_is_read_again() {
        let mut discovery = Discovery::default();
        assert_eq!(discovery.known("example.com", "v1", "Toy"), None);
        discovery.learn(
            "example.com",
            "v1",
            vec![resource("example.com", "Ball", "balls")],
        );
        assert_eq!(discovery.known("example.com", "v1", "Toy"), Some(None));
        assert!(matches!(
            discovery.known("example.com", "v1", "Ball"),
            Some(Some(_))
        ));
        discovery.doubt("example.com");
        assert!(
            !discovery.has_to_read("example.com", "v1"),
            "a pass sees one state"
        );
        discovery.read_doubted();
        assert!(discovery.has_to_read("example.com", "v1"));
        assert!(matches!(
            discovery.known("example.com", "v1", "Ball"),
            Some(Some(_))
        ));
        discovery.learn("example.com", "v1", Vec::new());
        assert!(!discovery.has_to_read("example.com", "v1"));
        assert_eq!(discovery.known("example.com", "v1", "Ball"), Some(None));
    }
}
