//! CustomResourceDefinitions and their objects in one pass: waits until the server serves the kinds just defined.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::act::Actor;
use super::bundle::Manifest;
use super::controller::{Reconciler, api_server};
use super::kinds;
use super::observe::{GroupKind, LookupError, Target};
use super::report::{Outcome, Report, Stopped};
use crate::kube::{ObjectRef, Resource};
use crate::retry::Delays;

impl Reconciler {
    /// Waits until the server has established the definitions of the bundle. Returns the kinds that they define.
    pub(super) async fn await_definitions(
        &mut self,
        foundation: &[&Manifest],
        report: &mut Report,
    ) -> Result<HashSet<GroupKind>, Stopped> {
        let in_place = |manifest: &Manifest| {
            let outcome = report.objects().get(&manifest.object);
            !matches!(outcome, None | Some(Outcome::Failed(_)))
        };
        let definitions: Vec<&Manifest> = foundation
            .iter()
            .copied()
            .filter(|manifest| kinds::is_definition(&manifest.object.group, &manifest.object.kind))
            .filter(|manifest| in_place(manifest))
            .collect();
        let actor = self.actor();
        let mut waits = Vec::new();
        for manifest in &definitions {
            if self.established.contains(&manifest.object) || self.is_served(manifest) {
                self.established.insert(manifest.object.clone());
                continue;
            }
            if let Ok((resource, _)) = self.cluster.look_up(&manifest.object, &manifest.version) {
                let within = self.patience(&manifest.object.to_string());
                waits.push(await_established(&actor, resource, manifest, within));
            }
        }
        let mut waiting = stream::iter(waits).buffer_unordered(self.settings.in_flight);
        let (mut newly, mut late) = (Vec::new(), Vec::new());
        while let Some((manifest, established)) = waiting.next().await {
            match established {
                Ok(()) => newly.push(manifest),
                Err(why) => {
                    late.push(manifest.object.to_string());
                    report.set(manifest.object.clone(), Outcome::Failed(why));
                }
            }
        }
        drop(waiting);
        self.late.extend(late);
        for manifest in newly {
            self.established.insert(manifest.object.clone());
        }
        Ok(definitions
            .into_iter()
            .filter(|manifest| self.established.contains(&manifest.object))
            .filter_map(|manifest| kinds::defined(&manifest.body))
            .map(|(group, kind)| (group.to_owned(), kind.to_owned()))
            .collect())
    }

    /// Whether the server serves the kind that a definition defines: it has established it.
    fn is_served(&self, definition: &Manifest) -> bool {
        // Another definition may define the same kind under another plural.
        let plural = definition.body["spec"]["names"]["plural"]
            .as_str()
            .unwrap_or_default();
        let defined = kinds::defined(&definition.body);
        defined.is_some_and(|(group, kind)| self.cluster.serves(group, kind, plural))
    }

    /// Whether the object waits for a definition of the bundle: its kind is not served, in its own version.
    pub(super) fn is_late(&self, manifest: &Manifest) -> bool {
        let seen = self.cluster.look_up(&manifest.object, &manifest.version);
        matches!(seen, Err(LookupError::NotServed { .. }))
    }

    /// How long a pass waits for this definition or kind: once as long as a healthy server may take, and no longer in the
    /// passes after one that waited in vain (INV-8).
    fn patience(&self, awaited: &str) -> Duration {
        match self.late.contains(awaited) {
            true => Duration::ZERO,
            false => self.settings.established_within,
        }
    }

    /// Waits until discovery shows the kinds in `defined` that were not served when the cluster was observed; discovery
    /// follows a definition with a delay. Returns the kinds of the objects concerned.
    pub(super) async fn await_kinds(
        &mut self,
        rest: &[&Manifest],
        defined: &HashSet<GroupKind>,
    ) -> Result<HashSet<GroupKind>, Stopped> {
        let late: Vec<Target> = rest
            .iter()
            .map(|manifest| Target::from(*manifest))
            .filter(|target| defined.contains(&target.kind()))
            .collect();
        let mut delays = Delays::new(Duration::from_millis(20), Duration::from_millis(250));
        let versions: BTreeMap<(&str, &str), HashSet<&str>> =
            late.iter().fold(BTreeMap::new(), |mut all, target| {
                let version = (target.object.group.as_str(), target.version.as_str());
                all.entry(version)
                    .or_default()
                    .insert(target.object.kind.as_str());
                all
            });
        for ((group, version), kinds) in versions {
            let awaited = format!("{group}/{version}");
            let begun = Instant::now();
            let deadline = begun + self.patience(&awaited);
            // A group that hangs is looked at for as long as any request of a pass.
            let limit = deadline.max(begun + self.settings.lingers_after);
            loop {
                match timeout_at(limit, self.kube.served(group, version)).await {
                    Ok(Ok(served)) => {
                        let complete = kinds
                            .iter()
                            .all(|kind| served.iter().any(|found| found.kind == *kind));
                        self.cluster.learn(group, version, served);
                        if complete {
                            self.late.remove(&awaited);
                            break;
                        }
                    }
                    Ok(Err(error)) if self.cluster.is_unusable(&error).await => {
                        return Err(api_server(error));
                    }
                    Ok(Err(error)) => debug!(%error, "waiting for a group version"),
                    Err(_) => debug!("group version {awaited} has not been answered yet"),
                }
                if Instant::now() >= deadline {
                    self.late.insert(awaited);
                    break;
                }
                delays.wait().await;
            }
        }
        Ok(late.iter().map(Target::kind).collect())
    }
}

async fn await_established<'a>(
    actor: &Actor,
    resource: &Resource,
    manifest: &'a Manifest,
    within: Duration,
) -> (&'a Manifest, Result<(), String>) {
    let established = actor.wait_established(resource, &manifest.object, within).await;
    (manifest, established)
}

impl Actor {
    /// Waits until the server has established a CustomResourceDefinition.
    ///
    /// # Errors
    /// The reason why it is not established within the limit.
    async fn wait_established(
        &self,
        resource: &Resource,
        object: &ObjectRef,
        within: Duration,
    ) -> Result<(), String> {
        let deadline = Instant::now() + within;
        let mut delays = Delays::new(Duration::from_millis(20), Duration::from_millis(250));
        loop {
            let read = self.kube.get(resource, object).await;
            let read = read.map_err(|error| error.about(object))?;
            let conditions = conditions(read.as_ref());
            if conditions
                .get("Established")
                .is_some_and(|(status, _)| *status == "True")
            {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let why = conditions
                    .values()
                    .find(|(status, _)| *status == "False")
                    .map_or("the server gives no reason", |(_, message)| message);
                return Err(format!("not established: {why}"));
            }
            delays.wait().await;
        }
    }
}

/// Status and message of each condition, by type.
fn conditions(read: Option<&serde_json::Value>) -> BTreeMap<&str, (&str, &str)> {
    let all = read.and_then(|object| object["status"]["conditions"].as_array());
    all.into_iter()
        .flatten()
        .filter_map(|condition| {
            let text = |field: &str| condition[field].as_str();
            Some((
                text("type")?,
                (text("status")?, text("message").unwrap_or_default()),
            ))
        })
        .collect()
}
