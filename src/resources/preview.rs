//! What a pass would do now, object by object, by the server's own dry run. Writes nothing.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use futures::{StreamExt, stream};
use serde_json::Value;

use super::bundle::{Bundle, Manifest, RECREATE};
use super::controller::Settings;
use super::difference::{Difference, differences};
use super::inventory::Inventory;
use super::kinds;
use super::observe::{ClusterState, LookupError, Target};
use super::plan::{Prune, Remembered, Step, Wanted, plan, plan_prune};
use crate::kube::{Cause, Discovery, Error as ApiError, KubeClient, Meta, ObjectRef, Precondition, Resource};

/// What would become of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Preview {
    /// Nothing.
    Unchanged,
    /// It does not exist yet.
    Create,
    /// These fields would change.
    Change(Vec<Difference>),
    /// It would be deleted and created, for this reason.
    Recreate(String),
    /// The bundle no longer holds it, and it would be deleted.
    Prune,
    /// The bundle no longer holds it, and it would stay.
    Keep,
    /// It could not be put in place.
    Refused(String),
}

/// Looks at every object of the bundle and of the inventory, which has to be loaded.
///
/// # Errors
/// [`ApiError`] if the server as a whole does not answer.
pub async fn preview(
    kube: &KubeClient,
    bundle: &Bundle,
    inventory: &Inventory,
) -> Result<BTreeMap<ObjectRef, Preview>, ApiError> {
    let wanted: HashSet<&ObjectRef> = bundle.manifests.iter().map(|manifest| &manifest.object).collect();
    let mut obsolete = inventory.obsolete(|object| wanted.contains(object));
    let mut targets: Vec<Target> = bundle.manifests.iter().map(Target::from).collect();
    targets.extend(obsolete.iter().cloned());
    let in_flight = Settings::default().in_flight;
    let mut discovery = Discovery::default();
    let mut cluster = ClusterState::observe(kube, &mut discovery, &targets, in_flight).await?;
    cluster
        .look_through_other_versions(kube, &mut discovery, &mut obsolete, in_flight)
        .await?;
    let runner = DryRunner {
        kube,
        bundle,
        inventory,
        cluster: &cluster,
        discovery: &discovery,
    };
    let mut previews = BTreeMap::new();
    let mut looks = Vec::with_capacity(bundle.manifests.len());
    for manifest in &bundle.manifests {
        looks.push(runner.look(manifest));
    }
    let mut looking = stream::iter(looks).buffer_unordered(in_flight);
    while let Some((object, seen)) = looking.next().await {
        let preview = match seen {
            Ok(preview) => preview,
            Err(error) if error.cause.is_the_server() => return Err(error),
            Err(error) => Preview::Refused(error.to_string()),
        };
        previews.insert(object.clone(), preview);
    }
    drop(looking);
    for Target { object, version } in &obsolete {
        let preview = match cluster.look_up(&discovery, object, version) {
            Ok((_, observed)) => match plan_prune(object, observed, inventory.uid(object)) {
                Prune::Forget(_) => continue,
                Prune::Keep => Preview::Keep,
                Prune::AwaitDeletion | Prune::Delete { .. } => Preview::Prune,
            },
            Err(LookupError::NotServed { .. }) => continue,
            Err(error) => Preview::Refused(error.to_string()),
        };
        previews.insert(object.clone(), preview);
    }
    Ok(previews)
}

struct DryRunner<'a> {
    kube: &'a KubeClient,
    bundle: &'a Bundle,
    inventory: &'a Inventory,
    cluster: &'a ClusterState,
    discovery: &'a Discovery,
}

impl<'a> DryRunner<'a> {
    async fn look(&self, manifest: &'a Manifest) -> (&'a ObjectRef, Result<Preview, ApiError>) {
        let object = &manifest.object;
        let seen = match self.cluster.look_up(self.discovery, object, &manifest.version) {
            Ok((resource, _)) => self.dry_run(manifest, resource).await,
            Err(LookupError::NotServed { .. }) if self.defines_kind_of(object) => Ok(Preview::Create),
            Err(error) => Ok(Preview::Refused(error.to_string())),
        };
        (object, seen)
    }

    async fn dry_run(&self, manifest: &Manifest, resource: &Resource) -> Result<Preview, ApiError> {
        let object = &manifest.object;
        // In full, and whether or not it carries the label: what is in the way is to be shown as well.
        let live = self.kube.get(resource, object).await?;
        let meta: Option<Meta> = live
            .as_ref()
            .and_then(|live| serde_json::from_value(live["metadata"].clone()).ok());
        let wanted = Wanted {
            bundle: &self.bundle.name,
            adopt: manifest.adopt,
        };
        let inventory_uid = self.inventory.uid(object);
        let step = plan(
            wanted,
            meta.as_ref(),
            inventory_uid,
            Remembered::default(),
            Instant::now(),
        );
        let precondition = match &step {
            Step::Create { .. } => Precondition::Absent,
            Step::Apply { uid, .. } => Precondition::Uid(uid),
            Step::Refuse(foreign) => return Ok(Preview::Refused(foreign.to_string())),
            _ => return Ok(Preview::Refused("is being deleted".to_owned())),
        };
        let applied = self
            .kube
            .apply_dry_run(resource, object, &manifest.body, precondition)
            .await;
        match applied {
            Ok(after) => Ok(self.compare(object, live.as_ref(), &after)),
            Err(error) => match error.cause {
                Cause::Immutable(why) if manifest.recreate => Ok(Preview::Recreate(why)),
                Cause::Immutable(why) => Ok(Preview::Refused(format!(
                    "{why}; its manifest is not annotated with {RECREATE}: \"true\""
                ))),
                // The namespace comes with the bundle, only not in a dry run.
                Cause::NotFound(_) if live.is_none() && self.makes_namespace_of(object) => {
                    Ok(Preview::Create)
                }
                _ => Err(error),
            },
        }
    }

    fn compare(&self, object: &ObjectRef, live: Option<&Value>, after: &Value) -> Preview {
        let Some(live) = live else {
            return Preview::Create;
        };
        let changes = differences(object, live, after);
        match changes.is_empty() {
            true => Preview::Unchanged,
            false => Preview::Change(changes),
        }
    }

    fn defines_kind_of(&self, object: &ObjectRef) -> bool {
        self.bundle.manifests.iter().any(|manifest| {
            let spec = &manifest.body["spec"];
            kinds::is_definition(&manifest.object.group, &manifest.object.kind)
                && spec["group"] == object.group.as_str()
                && spec["names"]["kind"] == object.kind.as_str()
        })
    }

    fn makes_namespace_of(&self, object: &ObjectRef) -> bool {
        let namespace = object.namespace.as_deref();
        self.bundle.manifests.iter().any(|manifest| {
            kinds::is_namespace(&manifest.object.group, &manifest.object.kind)
                && namespace == Some(manifest.object.name.as_str())
        })
    }
}
