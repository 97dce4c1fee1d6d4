//! Keeps a bundle in place: looks at the cluster, decides object by object, acts with bounded concurrency.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use tracing::{debug, warn};

use super::act::{Acted, Actor, Pruned, Subject};
use super::bundle::{Bundle, Manifest};
use super::inventory::{Entry, Inventory};
use super::kinds;
use super::memory::Memory;
use super::observe::{Seen, Target, Unseen, World};
use super::plan::{Step, Wanted, plan};
use super::report::{Outcome, Report, Stopped};
use super::watches::{Change, Watches};
use crate::etcd::{Fence, FencedError};
use crate::kube::{self, Discovery, KubeClient, ObjectRef, Resource};
use crate::metrics::Metrics;
use crate::retry::Delays;

/// Limits of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Requests at a time.
    pub in_flight: usize,
    /// For an object that is created anew to be gone.
    pub gone_within: Duration,
    /// For a CustomResourceDefinition to be taken up by the server.
    pub established_within: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // An API server on two cores is busy with four; more only queue up in front of it.
            in_flight: 8,
            gone_within: Duration::from_secs(30),
            established_within: Duration::from_secs(10),
        }
    }
}

/// Keeps one bundle in place, for one term.
pub struct Reconciler {
    kube: KubeClient,
    bundle: Arc<Bundle>,
    wanted: HashSet<ObjectRef>,
    inventory: Inventory,
    metrics: Metrics,
    settings: Settings,
    discovery: Discovery,
    memory: Memory,
    established: HashSet<ObjectRef>,
    watches: Watches,
    /// When the first object that is held back is due.
    due: Option<Instant>,
}

/// An object to be written.
struct Todo<'a> {
    manifest: &'a Manifest,
    resource: Resource,
    observed: Option<kube::Meta>,
    inventory_uid: Option<String>,
    step: Step,
}

impl Reconciler {
    /// Nothing is looked at, and nothing sent, before the first pass.
    pub fn new(
        kube: KubeClient,
        bundle: Arc<Bundle>,
        inventory: Inventory,
        metrics: Metrics,
        settings: Settings,
    ) -> Self {
        let wanted = bundle
            .manifests
            .iter()
            .map(|manifest| manifest.object.clone())
            .collect();
        Self {
            kube,
            bundle,
            wanted,
            inventory,
            metrics,
            settings,
            discovery: Discovery::default(),
            memory: Memory::default(),
            established: HashSet::new(),
            watches: Watches::default(),
            due: None,
        }
    }

    /// One pass over everything. Never fails as a whole: the report says what became of each object, and what kept
    /// the pass from coming to all of them. It ends when the fence's window closes, cancelling its calls (INV-3). May be
    /// cancelled at any time.
    pub async fn pass(&mut self, fence: &Fence) -> Report {
        let started = Instant::now();
        let mut report = Report::default();
        let window = fence.window().clone();
        let stopped = tokio::select! {
            // First: what is ready at the same moment as the end must not start another call.
            biased;
            () = window.closed() => Err(Stopped::LostLeadership),
            result = self.look_and_act(fence, &mut report) => result,
        };
        if let Err(stopped) = stopped {
            report.stop(stopped);
        }
        self.due = report
            .objects()
            .iter()
            .filter(|(_, outcome)| outcome.trouble().is_some())
            .filter_map(|(object, _)| self.memory.due(object))
            .min();
        report.record(&self.metrics, started.elapsed().as_secs_f64());
        report
    }

    /// Resolves when a managed object changed in a way that this reconciler did not cause, when a watch missed changes,
    /// or when an object that was held back is due. Safe to cancel.
    pub async fn changed(&mut self) {
        loop {
            let changes = self.watches.take();
            if changes.lost_track {
                return;
            }
            let now = Instant::now();
            let mut changed = changes.objects.iter();
            if let Some((object, change)) =
                changed.find(|(object, change)| self.concerns(object, change, now))
            {
                debug!(%object, deleted = change.deleted, version = change.now.resource_version, "changed");
                return;
            }
            let due = self.due;
            tokio::select! {
                () = self.watches.noted() => {}
                () = async { tokio::time::sleep_until(due.unwrap_or(now).into()).await }, if due.is_some() => {
                    self.due = None;
                    return;
                }
            }
        }
    }

    fn concerns(&self, object: &ObjectRef, change: &Change, now: Instant) -> bool {
        if !self.wanted.contains(object) {
            // Of what was kept, an annotation may have changed; what else carries the label is none of our business.
            return self.inventory.get(object).is_some();
        }
        if self.memory.is_held_back(object, now) {
            return false;
        }
        match change.deleted {
            true => self.memory.was_in_place(object, &change.now.uid),
            false => !self.memory.is_in_sync(object, &change.now),
        }
    }

    async fn look_and_act(&mut self, fence: &Fence, report: &mut Report) -> Result<(), Stopped> {
        let unreadable = |error| Stopped::Etcd(format!("the inventory cannot be read: {error}"));
        self.inventory.load().await.map_err(unreadable)?;
        let obsolete = self.obsolete();
        let bundle = self.bundle.clone();
        let (foundation, rest): (Vec<&Manifest>, Vec<&Manifest>) = bundle
            .manifests
            .iter()
            .partition(|manifest| kinds::is_foundation(&manifest.object.group, &manifest.object.kind));

        let mut targets: Vec<Target> = bundle.manifests.iter().map(target).collect();
        targets.extend(obsolete.iter().cloned());
        let mut world = self.observe(&targets).await?;
        self.settle(fence, &foundation, &world, report).await?;
        let defined = self.await_definitions(fence, &foundation, &world, report).await?;
        let late = self.await_kinds(&rest, &world, &defined).await?;
        if !late.is_empty() {
            world.extend(self.observe(&late).await?);
        }
        self.settle(fence, &rest, &world, report).await?;
        self.prune(fence, obsolete, &mut world, report).await?;
        self.watches.follow(&self.kube, &world);
        Ok(())
    }

    async fn observe(&mut self, targets: &[Target]) -> Result<World, Stopped> {
        World::observe(&self.kube, &mut self.discovery, targets, self.settings.in_flight)
            .await
            .map_err(api_server)
    }

    /// What the inventory holds and the bundle does not; Namespaces and definitions last.
    fn obsolete(&self) -> Vec<Target> {
        let mut obsolete: Vec<Target> = self
            .inventory
            .objects()
            .filter(|(object, _)| !self.wanted.contains(object))
            .map(|(object, entry)| Target {
                object: object.clone(),
                version: match entry.version.is_empty() {
                    true => "v1".to_owned(),
                    false => entry.version.clone(),
                },
            })
            .collect();
        obsolete.sort_by_key(|target| kinds::is_foundation(&target.object.group, &target.object.kind));
        obsolete
    }

    /// Puts these objects in place.
    async fn settle(
        &mut self,
        fence: &Fence,
        manifests: &[&Manifest],
        world: &World,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        let mut todo = Vec::new();
        for manifest in manifests {
            match self.decide(manifest, world) {
                Ok(next) => todo.push(next),
                Err(outcome) => report.set(manifest.object.clone(), outcome),
            }
        }
        let unrecorded = todo
            .iter()
            .filter(|todo| self.inventory.get(&todo.manifest.object).is_none())
            .map(|todo| (todo.manifest.object.clone(), entry(todo.manifest, "")))
            .collect();
        self.inventory.record(fence, unrecorded).await.map_err(etcd)?;

        let bundle = self.bundle.clone();
        let actor = Actor {
            kube: &self.kube,
            window: fence.window(),
            bundle: &bundle.name,
            gone_within: self.settings.gone_within,
        };
        let mut writes = Vec::with_capacity(todo.len());
        for todo in todo {
            writes.push(put_in_place(&actor, todo));
        }
        let mut acting = stream::iter(writes).buffer_unordered(self.settings.in_flight);
        let mut written = Vec::new();
        let mut down = None;
        while let Some((manifest, observed, acted)) = acting.next().await {
            if let Some(error) = acted.server {
                down = Some(error);
                break;
            }
            if let Some(in_sync) = &acted.in_sync {
                written.push((manifest.object.clone(), entry(manifest, &in_sync.uid)));
            }
            let outcome = remember(&mut self.memory, &manifest.object, observed.as_ref(), acted);
            report.set(manifest.object.clone(), outcome);
        }
        drop(acting);
        self.inventory.record(fence, written).await.map_err(etcd)?;
        down.map_or(Ok(()), |error| Err(api_server(error)))
    }

    /// What there is to write for an object, or why nothing is written.
    fn decide<'a>(&self, manifest: &'a Manifest, world: &World) -> Result<Todo<'a>, Outcome> {
        let object = &manifest.object;
        let (resource, observed) = world
            .look_up(&self.discovery, object, &manifest.version)
            .map_err(|unseen| Outcome::Failed(unseen.to_string()))?;
        let inventory_uid = self
            .inventory
            .get(object)
            .map(|entry| entry.uid.as_str())
            .filter(|uid| !uid.is_empty());
        let wanted = Wanted {
            bundle: &self.bundle.name,
            adopt: manifest.adopt,
        };
        let remembered = self.memory.of(object, observed);
        let step = plan(wanted, observed, inventory_uid, remembered, Instant::now());
        match step {
            Step::Leave => Err(Outcome::Unchanged),
            Step::Create { .. } | Step::Apply { .. } => Ok(Todo {
                manifest,
                resource: resource.clone(),
                observed: observed.cloned(),
                inventory_uid: inventory_uid.map(str::to_owned),
                step,
            }),
            Step::Yield { .. } => Err(Outcome::Fighting(match self.memory.opponent(object) {
                Some(opponent) => format!("field manager \"{opponent}\" keeps changing it back"),
                None => "someone keeps changing it back or deleting it".to_owned(),
            })),
            Step::RetryLater { .. } => Err(Outcome::Failed(
                self.memory.failure(object).unwrap_or("failed before").to_owned(),
            )),
            Step::AwaitDeletion | Step::Refuse(_) => Err(Actor::no_longer(&step, observed).outcome),
        }
    }

    /// Waits until the server has taken up the definitions of the bundle. Answers the kinds that they define.
    async fn await_definitions(
        &mut self,
        fence: &Fence,
        foundation: &[&Manifest],
        world: &World,
        report: &mut Report,
    ) -> Result<HashSet<(String, String)>, Stopped> {
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
        let actor = Actor {
            kube: &self.kube,
            window: fence.window(),
            bundle: &self.bundle.name,
            gone_within: self.settings.gone_within,
        };
        let mut waits = Vec::new();
        for manifest in &definitions {
            if self.established.contains(&manifest.object) {
                continue;
            }
            if let Ok((resource, _)) = world.look_up(&self.discovery, &manifest.object, &manifest.version) {
                waits.push(await_established(
                    &actor,
                    resource,
                    manifest,
                    self.settings.established_within,
                ));
            }
        }
        let mut waiting = stream::iter(waits).buffer_unordered(self.settings.in_flight);
        let mut newly = Vec::new();
        while let Some((manifest, taken_up)) = waiting.next().await {
            match taken_up {
                Ok(()) => newly.push(manifest),
                Err(why) => report.set(manifest.object.clone(), Outcome::Failed(why)),
            }
        }
        drop(waiting);
        for manifest in newly {
            self.established.insert(manifest.object.clone());
            if let Some(group) = manifest.body["spec"]["group"].as_str() {
                self.discovery.forget(group);
            }
        }
        Ok(definitions
            .into_iter()
            .filter(|manifest| self.established.contains(&manifest.object))
            .filter_map(|manifest| {
                let spec = &manifest.body["spec"];
                Some((
                    spec["group"].as_str()?.to_owned(),
                    spec["names"]["kind"].as_str()?.to_owned(),
                ))
            })
            .collect())
    }

    /// Objects whose kind was not served when the cluster was looked at and is defined by now. Discovery follows a
    /// definition with a delay.
    async fn await_kinds(
        &mut self,
        rest: &[&Manifest],
        world: &World,
        defined: &HashSet<(String, String)>,
    ) -> Result<Vec<Target>, Stopped> {
        let late: Vec<Target> = rest
            .iter()
            .filter(|manifest| {
                let ObjectRef { group, kind, .. } = &manifest.object;
                let unserved = matches!(world.kind(group, kind), Some(Seen::NotServed));
                unserved && defined.contains(&(group.clone(), kind.clone()))
            })
            .map(|manifest| target(manifest))
            .collect();
        let deadline = tokio::time::Instant::now() + self.settings.established_within;
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
            loop {
                match self.kube.served(group, version).await {
                    Ok(served) => {
                        let complete = kinds
                            .iter()
                            .all(|kind| served.iter().any(|found| found.kind == *kind));
                        self.discovery.learn(group, version, served);
                        if complete {
                            break;
                        }
                    }
                    Err(error) if error.cause.is_the_server() => return Err(api_server(error)),
                    Err(error) => debug!(%error, "not served yet"),
                }
                if tokio::time::Instant::now() >= deadline {
                    break;
                }
                delays.wait().await;
            }
        }
        Ok(late)
    }

    /// Deletes what the bundle no longer holds.
    async fn prune(
        &mut self,
        fence: &Fence,
        obsolete: Vec<Target>,
        world: &mut World,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        let mut forgotten = Vec::new();
        let mut down = None;
        for target in obsolete {
            let Target { object, version } = &target;
            let version = self.current_version(object, version, world).await?;
            let looked_up = world.look_up(&self.discovery, object, &version);
            let pruned = match looked_up {
                Ok((resource, observed)) => {
                    let actor = Actor {
                        kube: &self.kube,
                        window: fence.window(),
                        bundle: &self.bundle.name,
                        gone_within: self.settings.gone_within,
                    };
                    let uid = self.inventory.get(object).map_or("", |entry| entry.uid.as_str());
                    actor.prune(resource, object, observed, uid).await
                }
                // With its kind, every object of it is gone.
                Err(Unseen::NotServed { .. }) => Pruned::Gone(Outcome::Pruned),
                Err(unseen) => Pruned::Stays(Outcome::Failed(unseen.to_string())),
            };
            match pruned {
                Pruned::Gone(outcome) => {
                    self.memory.forget(object);
                    report.set(object.clone(), outcome);
                    forgotten.push(object.clone());
                }
                Pruned::Stays(outcome) => report.set(object.clone(), outcome),
                Pruned::Server(error) => {
                    down = Some(error);
                    break;
                }
            }
        }
        self.inventory.forget(fence, &forgotten).await.map_err(etcd)?;
        down.map_or(Ok(()), |error| Err(api_server(error)))
    }

    /// The version to look at an object through, should the one that it was applied with not be served any more.
    async fn current_version(
        &mut self,
        object: &ObjectRef,
        applied: &str,
        world: &mut World,
    ) -> Result<String, Stopped> {
        let ObjectRef { group, kind, .. } = object;
        match world.kind(group, kind) {
            Some(Seen::Listed { resource, .. }) => return Ok(resource.version.clone()),
            Some(Seen::NotServed) => {}
            _ => return Ok(applied.to_owned()),
        }
        let preferred = match self.kube.preferred_version(group).await {
            Ok(Some(preferred)) if preferred != applied => preferred,
            Ok(_) => return Ok(applied.to_owned()),
            Err(error) if error.cause.is_the_server() => return Err(api_server(error)),
            Err(error) => {
                // Not knowing is no absence: the object stays in the inventory.
                warn!(%object, %error, "which versions are served is not known");
                world.unknown(group, kind, error);
                return Ok(applied.to_owned());
            }
        };
        let target = Target {
            object: object.clone(),
            version: preferred.clone(),
        };
        let later = self.observe(std::slice::from_ref(&target)).await?;
        world.extend(later);
        Ok(preferred)
    }
}

fn target(manifest: &Manifest) -> Target {
    Target {
        object: manifest.object.clone(),
        version: manifest.version.clone(),
    }
}

fn entry(manifest: &Manifest, uid: &str) -> Entry {
    Entry {
        version: manifest.version.clone(),
        uid: uid.to_owned(),
    }
}

async fn put_in_place<'a>(actor: &Actor<'_>, todo: Todo<'a>) -> (&'a Manifest, Option<kube::Meta>, Acted) {
    let subject = Subject {
        manifest: todo.manifest,
        resource: &todo.resource,
        observed: todo.observed.as_ref(),
        inventory_uid: todo.inventory_uid.as_deref(),
    };
    let acted = actor.put_in_place(&subject, todo.step).await;
    (todo.manifest, todo.observed, acted)
}

async fn await_established<'a>(
    actor: &Actor<'_>,
    resource: &Resource,
    manifest: &'a Manifest,
    within: Duration,
) -> (&'a Manifest, Result<(), String>) {
    let taken_up = actor.wait_established(resource, &manifest.object, within).await;
    (manifest, taken_up)
}

/// Keeps what the next pass has to know of it.
fn remember(memory: &mut Memory, object: &ObjectRef, observed: Option<&kube::Meta>, acted: Acted) -> Outcome {
    let now = Instant::now();
    if let Some(in_sync) = acted.in_sync {
        memory.settled(object, in_sync);
    }
    if let Some(who) = acted.mended {
        memory.mended(object, who.as_deref(), now);
    }
    if let Outcome::Failed(why) = &acted.outcome {
        memory.failed(object, observed, why.clone(), acted.at_least, now);
    }
    acted.outcome
}

fn api_server(error: kube::Error) -> Stopped {
    // The cause alone: which of a thousand objects it was asked for first says nothing.
    Stopped::ApiServer(error.cause.to_string())
}

fn etcd(error: FencedError) -> Stopped {
    match error {
        FencedError::LostLeadership(_) => Stopped::LostLeadership,
        error => Stopped::Etcd(format!("the inventory cannot be written: {error}")),
    }
}
