//! Keeps a bundle in place: looks at the cluster, decides object by object, acts with bounded concurrency.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use tracing::debug;

use super::act::{Actor, Subject, WriteResult};
use super::bundle::{Bundle, Manifest};
use super::inventory::{Entry, Inventory};
use super::kinds;
use super::memory::Memory;
use super::observe::{ClusterState, Target};
use super::plan::{Step, Wanted, plan};
use super::report::{Outcome, Report, Stopped};
use super::watches::{Change, Watches};
use crate::etcd::{Fence, FencedError};
use crate::kube::{Discovery, Error as ApiError, KubeClient, Meta, ObjectRef, Resource};
use crate::metrics::Metrics;

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
            // What finalizers take where their controllers run; of others, a later pass creates the object.
            gone_within: Duration::from_secs(30),
            // A healthy server takes a definition up within a second.
            established_within: Duration::from_secs(10),
        }
    }
}

/// Keeps one bundle in place, for one term.
pub struct Reconciler {
    pub(super) kube: KubeClient,
    pub(super) bundle: Arc<Bundle>,
    wanted: HashSet<ObjectRef>,
    pub(super) inventory: Inventory,
    metrics: Metrics,
    pub(super) settings: Settings,
    pub(super) discovery: Discovery,
    pub(super) memory: Memory,
    pub(super) established: HashSet<ObjectRef>,
    watches: Watches,
    /// When the first object that is held back is due.
    due: Option<Instant>,
}

/// An object to be written.
struct Todo<'a> {
    manifest: &'a Manifest,
    resource: Resource,
    observed: Option<Meta>,
    inventory_uid: String,
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
            // First, and so before every step: what is ready at the same moment as the end must not start another call.
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
        self.discovery.forget_doubted();
        let obsolete = self.inventory.obsolete(|object| self.wanted.contains(object));
        let bundle = self.bundle.clone();
        let (foundation, rest): (Vec<&Manifest>, Vec<&Manifest>) = bundle
            .manifests
            .iter()
            .partition(|manifest| kinds::is_foundation(&manifest.object.group, &manifest.object.kind));

        let mut targets: Vec<Target> = bundle.manifests.iter().map(Target::from).collect();
        targets.extend(obsolete.iter().cloned());
        let in_flight = self.settings.in_flight;
        let mut cluster = ClusterState::observe(&self.kube, &mut self.discovery, &targets, in_flight)
            .await
            .map_err(api_server)?;
        // Before anything is written: a server remembers few of the changes that a watch has to be told of afterwards.
        self.watches.follow(&self.kube, &cluster);
        self.settle(fence, &foundation, &cluster, report).await?;
        let defined = self.await_definitions(&foundation, &cluster, report).await?;
        let late = self.await_kinds(&rest, &cluster, &defined).await?;
        // All objects of those kinds, not only the late ones: a kind is listed once, and in all their namespaces.
        targets.retain(|target| late.contains(&target.kind()));
        if !targets.is_empty() {
            cluster
                .look_again(&self.kube, &mut self.discovery, &targets, in_flight)
                .await
                .map_err(api_server)?;
            self.watches.follow(&self.kube, &cluster);
        }
        self.settle(fence, &rest, &cluster, report).await?;
        self.prune(fence, obsolete, &mut cluster, report).await
    }

    pub(super) fn actor(&self) -> Actor {
        Actor {
            kube: self.kube.clone(),
            bundle: self.bundle.clone(),
            gone_within: self.settings.gone_within,
        }
    }

    /// Puts these objects in place.
    async fn settle(
        &mut self,
        fence: &Fence,
        manifests: &[&Manifest],
        cluster: &ClusterState,
        report: &mut Report,
    ) -> Result<(), Stopped> {
        let mut todo = Vec::new();
        for manifest in manifests {
            match self.decide(manifest, cluster) {
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

        let actor = self.actor();
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
    fn decide<'a>(&self, manifest: &'a Manifest, cluster: &ClusterState) -> Result<Todo<'a>, Outcome> {
        let object = &manifest.object;
        let (resource, observed) = cluster
            .look_up(&self.discovery, object, &manifest.version)
            .map_err(|error| Outcome::Failed(error.to_string()))?;
        let inventory_uid = self.inventory.uid(object);
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
                inventory_uid: inventory_uid.to_owned(),
                step,
            }),
            Step::BackOff { .. } => Err(Outcome::Contended(match self.memory.other_manager(object) {
                Some(other_manager) => format!("field manager \"{other_manager}\" keeps changing it back"),
                None => "someone keeps changing it back or deleting it".to_owned(),
            })),
            Step::RetryLater { .. } => Err(Outcome::Failed(
                self.memory.failure(object).unwrap_or("failed before").to_owned(),
            )),
            Step::AwaitDeletion | Step::Refuse(_) => Err(Actor::no_longer(&step, observed).outcome),
        }
    }
}

fn entry(manifest: &Manifest, uid: &str) -> Entry {
    Entry {
        version: manifest.version.clone(),
        uid: uid.to_owned(),
    }
}

async fn put_in_place<'a>(actor: &Actor, todo: Todo<'a>) -> (&'a Manifest, Option<Meta>, WriteResult) {
    let subject = Subject {
        manifest: todo.manifest,
        resource: &todo.resource,
        observed: todo.observed.as_ref(),
        inventory_uid: &todo.inventory_uid,
    };
    let acted = actor.put_in_place(&subject, todo.step).await;
    (todo.manifest, todo.observed, acted)
}

/// Keeps what the next pass has to know of it.
fn remember(memory: &mut Memory, object: &ObjectRef, observed: Option<&Meta>, acted: WriteResult) -> Outcome {
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

pub(super) fn api_server(error: ApiError) -> Stopped {
    // The cause alone: which of a thousand objects it was asked for first says nothing.
    Stopped::ApiServer(error.cause.to_string())
}

pub(super) fn etcd(error: FencedError) -> Stopped {
    match error {
        FencedError::LostLeadership(_) => Stopped::LostLeadership,
        error => Stopped::Etcd(format!("the inventory cannot be written: {error}")),
    }
}
