//! Observes the cluster: one list per kind, whatever the number of objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::{StreamExt, stream};
use tracing::warn;

use crate::kube::{Discovery, Error as ApiError, KubeClient, Meta, ObjectList, ObjectRef, Resource};

use super::bundle::{LABEL, Manifest};

/// An object to observe, and the API version to read it through.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) object: ObjectRef,
    pub(super) version: String,
}

impl Target {
    pub(super) fn kind(&self) -> GroupKind {
        (self.object.group.clone(), self.object.kind.clone())
    }
}

impl From<&Manifest> for Target {
    fn from(manifest: &Manifest) -> Self {
        Self {
            object: manifest.object.clone(),
            version: manifest.version.clone(),
        }
    }
}

/// Group and kind. The inventory and ownership are independent of the API version.
pub(super) type GroupKind = (String, String);

/// The cluster as a pass observed it.
#[derive(Debug, Default)]
pub(super) struct ClusterState {
    kinds: BTreeMap<GroupKind, KindState>,
}

/// What a pass observed of one kind.
#[derive(Debug)]
pub(super) enum KindState {
    /// The server does not serve the kind.
    NotServed,
    /// Discovery or the list failed: nothing is known.
    Unknown(ApiError),
    /// The objects with the bundle label were listed.
    Listed {
        resource: Resource,
        /// The namespace that was listed; `None` for all.
        namespace: Option<String>,
        /// The version of the list; a watch continues from here.
        resource_version: String,
        /// By namespace and name.
        objects: HashMap<(Option<String>, String), Meta>,
    },
}

/// Why the state of an object is unknown.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum LookupError {
    #[error("no matches for kind \"{kind}\" in version \"{api_version}\"")]
    NotServed { kind: String, api_version: String },
    #[error(transparent)]
    Unknown(ApiError),
    #[error("metadata.namespace is required: {0} is namespaced")]
    NeedsNamespace(String),
    #[error("metadata.namespace must be omitted: {0} is cluster-scoped")]
    TakesNoNamespace(String),
}

impl ClusterState {
    /// Lists the kinds of these objects. If all objects of a kind are in one namespace, only that namespace is listed, so
    /// that a permission for it is enough.
    ///
    /// # Errors
    /// [`ApiError`] if the server as a whole is unusable. An error that concerns one kind is kept as
    /// [`KindState::Unknown`].
    pub(super) async fn observe(
        kube: &KubeClient,
        discovery: &mut Discovery,
        targets: &[Target],
        in_flight: usize,
    ) -> Result<Self, ApiError> {
        let mut cluster = Self::default();
        cluster.look_again(kube, discovery, targets, in_flight).await?;
        match cluster.server_error() {
            Some(error) => Err(error.clone()),
            None => Ok(cluster),
        }
    }

    /// Lists the kinds of these objects again, and replaces what was observed of them. Unlike [`ClusterState::observe`],
    /// this does not conclude that the server is unusable if none of the kinds can be read: other kinds could.
    ///
    /// # Errors
    /// [`ApiError`] if the server as a whole is unusable.
    pub(super) async fn look_again(
        &mut self,
        kube: &KubeClient,
        discovery: &mut Discovery,
        targets: &[Target],
        in_flight: usize,
    ) -> Result<(), ApiError> {
        let unknown = discover(kube, discovery, targets, in_flight).await?;
        let mut versions: BTreeMap<GroupKind, Vec<&Target>> = BTreeMap::new();
        for target in targets {
            versions.entry(target.kind()).or_default().push(target);
        }
        let mut lists = Vec::new();
        for ((group, kind), targets) in versions {
            let served = targets
                .iter()
                .find_map(|target| discovery.known(&group, &target.version, &kind).flatten());
            if let Some(resource) = served {
                lists.push(list(kube, resource.clone(), only_namespace(&targets)));
                continue;
            }
            let failed = targets
                .iter()
                .find_map(|target| unknown.get(&(group.clone(), target.version.clone())));
            let seen = failed.map_or(KindState::NotServed, |error| KindState::Unknown(error.clone()));
            // The next pass reads the group again: a definition of the kind may have come.
            discovery.doubt(&group);
            self.kinds.insert((group, kind), seen);
        }
        let mut listing = stream::iter(lists).buffer_unordered(in_flight);
        while let Some((resource, namespace, listed)) = listing.next().await {
            let kind = (resource.group.clone(), resource.kind.clone());
            let seen = match listed {
                Ok(ObjectList {
                    items,
                    resource_version,
                }) => KindState::Listed {
                    resource,
                    namespace,
                    resource_version,
                    objects: items
                        .into_iter()
                        .map(|meta| ((meta.namespace.clone(), meta.name.clone()), meta))
                        .collect(),
                },
                Err(error) if error.cause.is_the_server() => return Err(error),
                Err(error) => {
                    // The kind may be gone. The next pass reads the group again.
                    discovery.doubt(&kind.0);
                    KindState::Unknown(error)
                }
            };
            self.kinds.insert(kind, seen);
        }
        Ok(())
    }

    /// One of the errors, if every kind failed with one that may be the server's.
    fn server_error(&self) -> Option<&ApiError> {
        let mut faults = self.kinds.values().map(|seen| match seen {
            KindState::Unknown(error) if error.cause.may_be_the_server() => Some(error),
            _ => None,
        });
        let first = faults.next().flatten()?;
        faults.all(|fault| fault.is_some()).then_some(first)
    }

    /// Lists the kinds of obsolete objects whose API version is no longer served through any version that is, and sets
    /// the version of each object to the one that its kind was listed through.
    ///
    /// # Errors
    /// [`ApiError`] if the server as a whole is unusable.
    pub(super) async fn look_through_other_versions(
        &mut self,
        kube: &KubeClient,
        discovery: &mut Discovery,
        obsolete: &mut [Target],
        in_flight: usize,
    ) -> Result<(), ApiError> {
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut others = Vec::new();
        for target in obsolete.iter() {
            if !matches!(self.kinds.get(&target.kind()), Some(KindState::NotServed)) {
                continue;
            }
            let group = &target.object.group;
            if !groups.contains_key(group) {
                match kube.versions(group).await {
                    Ok(versions) => groups.insert(group.clone(), versions),
                    Err(error) if error.cause.is_the_server() => return Err(error),
                    Err(error) => {
                        // A failed request does not prove that the kind is gone: the object stays in the inventory.
                        warn!(object = %target.object, %error, "cannot read the versions of a group");
                        self.kinds.insert(target.kind(), KindState::Unknown(error));
                        continue;
                    }
                };
            }
            let versions = groups.get(group).into_iter().flatten();
            others.extend(versions.map(|version| Target {
                object: target.object.clone(),
                version: version.clone(),
            }));
        }
        if !others.is_empty() {
            self.look_again(kube, discovery, &others, in_flight).await?;
        }
        for target in obsolete {
            if let Some(KindState::Listed { resource, .. }) = self.kinds.get(&target.kind()) {
                target.version.clone_from(&resource.version);
            }
        }
        Ok(())
    }

    /// The resource to write an object through, and the object as it was observed.
    pub(super) fn look_up<'a>(
        &'a self,
        discovery: &'a Discovery,
        object: &ObjectRef,
        version: &str,
    ) -> Result<(&'a Resource, Option<&'a Meta>), LookupError> {
        let ObjectRef {
            group,
            kind,
            namespace,
            name,
        } = object;
        let not_served = || LookupError::NotServed {
            kind: kind.clone(),
            api_version: match group.as_str() {
                "" => version.to_owned(),
                group => format!("{group}/{version}"),
            },
        };
        match self.kinds.get(&(group.clone(), kind.clone())) {
            None | Some(KindState::NotServed) => Err(not_served()),
            Some(KindState::Unknown(error)) => Err(LookupError::Unknown(error.clone())),
            Some(KindState::Listed { objects, .. }) => {
                let resource = discovery
                    .known(group, version, kind)
                    .flatten()
                    .ok_or_else(not_served)?;
                match (resource.namespaced, namespace) {
                    (true, None) => return Err(LookupError::NeedsNamespace(kind.clone())),
                    (false, Some(_)) => return Err(LookupError::TakesNoNamespace(kind.clone())),
                    _ => {}
                }
                Ok((resource, objects.get(&(namespace.clone(), name.clone()))))
            }
        }
    }

    /// All kinds that were observed.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (&GroupKind, &KindState)> {
        self.kinds.iter()
    }
}

/// Reads every group version of the targets that is not known yet. Returns the errors by group version.
async fn discover(
    kube: &KubeClient,
    discovery: &mut Discovery,
    targets: &[Target],
    in_flight: usize,
) -> Result<HashMap<(String, String), ApiError>, ApiError> {
    let wanted: BTreeSet<(String, String)> = targets
        .iter()
        .filter(|target| {
            let ObjectRef { group, kind, .. } = &target.object;
            discovery.known(group, &target.version, kind).is_none()
        })
        .map(|target| (target.object.group.clone(), target.version.clone()))
        .collect();
    let mut asks = Vec::new();
    for (group, version) in wanted {
        asks.push(ask(kube, group, version));
    }
    let mut asking = stream::iter(asks).buffer_unordered(in_flight);
    let mut unknown = HashMap::new();
    while let Some((group, version, served)) = asking.next().await {
        match served {
            Ok(resources) => discovery.learn(&group, &version, resources),
            Err(error) if error.cause.is_the_server() => return Err(error),
            Err(error) => {
                unknown.insert((group, version), error);
            }
        }
    }
    Ok(unknown)
}

async fn ask(
    kube: &KubeClient,
    group: String,
    version: String,
) -> (String, String, Result<Vec<Resource>, ApiError>) {
    let served = kube.served(&group, &version).await;
    (group, version, served)
}

async fn list(
    kube: &KubeClient,
    resource: Resource,
    namespace: Option<String>,
) -> (Resource, Option<String>, Result<ObjectList, ApiError>) {
    let listed = kube.list(&resource, namespace.as_deref(), LABEL).await;
    (resource, namespace, listed)
}

fn only_namespace(targets: &[&Target]) -> Option<String> {
    let mut namespaces = targets.iter().map(|target| target.object.namespace.as_ref());
    let first = namespaces.next().flatten()?;
    namespaces
        .all(|other| other == Some(first))
        .then(|| first.clone())
}
