//! What a pass would do now, object by object, by the server's dry run. Writes nothing.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use serde_json::Value;

use super::bundle::{Bundle, Manifest};
use super::controller::Settings;
use super::deletion::{KeepReason, Prune, Stays, held_by, plan_prune};
use super::difference::{Difference, differences};
use super::inventory::Inventory;
use super::kinds;
use super::observe::{Cluster, LookupError, Target, Targets};
use super::plan::{Next, Remembered, Step, Wanted, next_after, plan};
use crate::kube::{Cause, Error as ApiError, KubeClient, Meta, ObjectRef, Resource};

/// What a pass would do with an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Preview {
    /// Leave it as it is.
    Unchanged,
    /// Create it; it does not exist.
    Create,
    /// Change these fields.
    Change(Vec<Difference>),
    /// Delete and create it, because these fields are immutable.
    Recreate(String),
    /// Delete it; the bundle no longer holds it.
    Prune,
    /// Leave it in the cluster for this reason, although the bundle no longer holds it.
    Keep(String),
    /// Fail for this reason.
    Refused(String),
}

/// What a pass would do with the objects, and what the server says about them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Previews {
    /// By object.
    pub objects: BTreeMap<ObjectRef, Preview>,
    /// The server's warnings, such as of a version that a later Kubernetes serves no more.
    pub warnings: Vec<(ObjectRef, String)>,
}

/// Previews every object of the bundle and of the inventory, which has to be loaded.
///
/// # Errors
/// [`ApiError`] if the server as a whole is unusable.
pub async fn preview(
    kube: &KubeClient,
    bundle: &Bundle,
    inventory: &Inventory,
) -> Result<Previews, ApiError> {
    let wanted: HashSet<&ObjectRef> = bundle.manifests.iter().map(|manifest| &manifest.object).collect();
    let mut obsolete = inventory.obsolete(|object| wanted.contains(object));
    let wanted_targets: Vec<Target> = bundle.manifests.iter().map(Target::from).collect();
    let in_flight = Settings::default().in_flight;
    // A person waits for the limit of each request.
    let mut cluster = Cluster::new(kube.clone(), in_flight, Duration::from_secs(3600));
    let targets = Targets {
        wanted: &wanted_targets,
        obsolete: &obsolete,
    };
    cluster.observe(targets, |_| true).await?;
    cluster.look_through_other_versions(&mut obsolete).await?;
    let runner = DryRunner {
        kube,
        bundle,
        inventory,
        cluster: &cluster,
    };
    let mut previews = Previews::default();
    let mut runs = Vec::with_capacity(bundle.manifests.len());
    for manifest in &bundle.manifests {
        runs.push(runner.preview(manifest));
    }
    let mut running = stream::iter(runs).buffer_unordered(in_flight);
    while let Some((object, preview)) = running.next().await {
        let (preview, warnings) = match preview {
            Ok(preview) => preview,
            Err(error) if error.cause.is_the_server() => return Err(error),
            Err(error) => (Preview::Refused(error.about(object)), Vec::new()),
        };
        previews.objects.insert(object.clone(), preview);
        let warnings = warnings.into_iter().map(|warning| (object.clone(), warning));
        previews.warnings.extend(warnings);
    }
    drop(running);
    previews.warnings.sort();
    let wanted_uids = wanted.iter().map(|object| inventory.entry(object).uid);
    let wanted_uids: HashSet<String> = wanted_uids.filter(|uid| !uid.is_empty()).collect();
    let mut staying: Vec<Stays> = wanted_targets
        .iter()
        .map(|target| cluster.stays(target))
        .collect();
    let mut deletable = HashSet::new();
    for target in &obsolete {
        let Target { object, version } = target;
        let preview = match cluster.look_up(object, version) {
            Ok((_, observed)) => match plan_prune(
                &bundle.name,
                &wanted_uids,
                object,
                observed,
                &inventory.entry(object),
            ) {
                Prune::Forget(_) => continue,
                Prune::Keep(why) => Preview::Keep(why.to_string()),
                Prune::AwaitDeletion => Preview::Prune,
                Prune::Delete { .. } => {
                    deletable.insert(object.clone());
                    Preview::Prune
                }
            },
            Err(LookupError::NotServed { .. }) => Preview::Keep(KeepReason::NotServed.to_string()),
            Err(error) => Preview::Refused(error.about(object)),
        };
        if preview != Preview::Prune {
            staying.push(cluster.stays(target));
        }
        previews.objects.insert(object.clone(), preview);
    }
    keep_what_holds(&mut previews, &deletable, &staying);
    Ok(previews)
}

/// Keeps those of these objects that something which stays would be deleted with.
fn keep_what_holds(previews: &mut Previews, deletable: &HashSet<ObjectRef>, staying: &[Stays]) {
    for object in deletable {
        if let Some(other) = held_by(object, staying) {
            let kept = Preview::Keep(other.keeps().to_string());
            previews.objects.insert(object.clone(), kept);
        }
    }
}

struct DryRunner<'a> {
    kube: &'a KubeClient,
    bundle: &'a Bundle,
    inventory: &'a Inventory,
    cluster: &'a Cluster,
}

/// What a pass would do with an object, and the server's warnings.
type Tried = (Preview, Vec<String>);

impl<'a> DryRunner<'a> {
    async fn preview(&self, manifest: &'a Manifest) -> (&'a ObjectRef, Result<Tried, ApiError>) {
        let object = &manifest.object;
        let preview = match self.cluster.look_up(object, &manifest.version) {
            Ok((resource, _)) => self.dry_run(manifest, resource).await,
            Err(LookupError::NotServed { .. }) if self.defines_kind_of(object) => {
                Ok((Preview::Create, Vec::new()))
            }
            Err(error) => Ok((Preview::Refused(error.about(object)), Vec::new())),
        };
        (object, preview)
    }

    async fn dry_run(&self, manifest: &Manifest, resource: &Resource) -> Result<Tried, ApiError> {
        let object = &manifest.object;
        // Read in full, and even without the label, so that an object that is not ours is shown too.
        let live = self.kube.get(resource, object).await?;
        let meta: Option<Meta> = live
            .as_ref()
            .and_then(|live| serde_json::from_value(live["metadata"].clone()).ok());
        let wanted = Wanted {
            bundle: &self.bundle.name,
            adopt: manifest.adopt,
        };
        let recorded = self.inventory.entry(object);
        let step = plan(
            wanted,
            meta.as_ref(),
            &recorded,
            Remembered::default(),
            Instant::now(),
        );
        let Some(precondition) = step.precondition() else {
            let why = match &step {
                Step::Refuse(foreign) => foreign.to_string(),
                _ => "is being deleted".to_owned(),
            };
            return Ok((Preview::Refused(why), Vec::new()));
        };
        let applied = self
            .kube
            .apply_dry_run(resource, object, &manifest.body, precondition)
            .await;
        let error = match applied {
            Ok((after, warnings)) => return Ok((self.compare(object, live.as_ref(), &after), warnings)),
            Err(error) => error,
        };
        let preview = match next_after(&error.cause, &step, manifest.recreate) {
            Next::Recreate { why, .. } => Preview::Recreate(why),
            Next::Fail(why) => Preview::Refused(why),
            // A pass creates the namespace first; a dry run does not.
            _ if matches!(error.cause, Cause::Absent(_) | Cause::NotFound(_))
                && live.is_none()
                && self.makes_namespace_of(object) =>
            {
                Preview::Create
            }
            _ => return Err(error),
        };
        Ok((preview, Vec::new()))
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
