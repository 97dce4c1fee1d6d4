//! One look at the cluster: a list a kind, whatever the number of objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::{StreamExt, stream};
use tracing::warn;

use crate::kube::{Discovery, Error as ApiError, KubeClient, Meta, ObjectList, ObjectRef, Resource};

use super::bundle::{LABEL, Manifest};

/// An object to be looked at, and the API version to look through.
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

/// Group and kind: the inventory, and ownership, know no versions.
pub(super) type GroupKind = (String, String);

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct ClusterState {
    kinds: BTreeMap<GroupKind, KindState>,
}

/// A kind whose objects were listed, or could not be.
#[derive(Debug)]
pub(super) enum KindState {
    /// The server does not serve it.
    NotServed,
    /// That, or its objects, could not be read.
    Unknown(ApiError),
    /// Its objects that carry the label.
    Listed {
        resource: Resource,
        /// The namespace that was listed; `None` for all.
        namespace: Option<String>,
        resource_version: String,
        objects: HashMap<(Option<String>, String), Meta>,
    },
}

/// Why nothing can be said about an object.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum LookupError {
    #[error("the API server does not serve the kind {kind} of {api_version}")]
    NotServed { kind: String, api_version: String },
    #[error("{0}")]
    Unknown(ApiError),
    #[error("metadata.namespace is missing: a {0} lies in a namespace")]
    NeedsNamespace(String),
    #[error("metadata.namespace has to be left out: a {0} lies in no namespace")]
    TakesNoNamespace(String),
}

impl ClusterState {
    /// Looks at the kinds of these objects. Of a kind whose objects all lie in one namespace only that one is
    /// listed, so that the permission for it is enough.
    ///
    /// # Errors
    /// [`ApiError`] if the server as a whole does not answer; what concerns one kind is kept with that kind.
    pub(super) async fn observe(
        kube: &KubeClient,
        discovery: &mut Discovery,
        targets: &[Target],
        in_flight: usize,
    ) -> Result<Self, ApiError> {
        let mut cluster = Self::default();
        cluster.look_again(kube, discovery, targets, in_flight).await?;
        match cluster.nothing_answered() {
            Some(error) => Err(error.clone()),
            None => Ok(cluster),
        }
    }

    /// The same for some kinds, in the place of what was seen of them before. That none of these could be read says
    /// nothing about the server: others could.
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
            // Asked for anew next time: a definition of it may come.
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
                    // The kind may be gone: ask what is served before the next look.
                    discovery.doubt(&kind.0);
                    KindState::Unknown(error)
                }
            };
            self.kinds.insert(kind, seen);
        }
        Ok(())
    }

    /// If no kind at all could be read, and the server is why: one of the errors.
    fn nothing_answered(&self) -> Option<&ApiError> {
        let mut faults = self.kinds.values().map(|seen| match seen {
            KindState::Unknown(error) if error.cause.may_be_the_server() => Some(error),
            _ => None,
        });
        let first = faults.next().flatten()?;
        faults.all(|fault| fault.is_some()).then_some(first)
    }

    /// Looks at objects of the inventory whose version is served no more through whatever version of their kind is, and
    /// sets each one's version to the one that its kind was looked at through.
    ///
    /// # Errors
    /// [`ApiError`] if the server as a whole does not answer.
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
                        // Not knowing is no absence: the object stays in the inventory.
                        warn!(object = %target.object, %error, "which versions are served is not known");
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

    /// The resource to write an object through, and the object as it was seen.
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

    /// Every kind that was looked at.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (&GroupKind, &KindState)> {
        self.kinds.iter()
    }
}

/// Asks for every group version that is not known yet. What could not be known is returned by group version.
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
