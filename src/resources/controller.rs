//! Keeps a bundle in place: observes the cluster, plans each object, and writes with bounded concurrency.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use tracing::debug;

use super::act::{Actor, Write, WriteResult};
use super::bundle::{Bundle, Manifest};
use super::inventory::{Entry, Inventory};
use super::kinds;
use super::memory::Memory;
use super::observe::{ClusterState, Target};
use super::plan::{Step, Wanted, plan};
use super::report::{Outcome, Report, Stopped};
use super::watches::{Latest, Watches};
use crate::causes;
use crate::etcd::{Fence, FencedError};
use crate::kube::{Discovery, Error as ApiError, KubeClient, ObjectRef};
use crate::metrics::Metrics;
use crate::retry::sleep_until;

/// Limits of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Requests in flight at a time.
    pub in_flight: usize,
    /// The limit for an object that is recreated to disappear.
    pub gone_within: Duration,
    /// The limit for the server to establish a CustomResourceDefinition and serve its kind.
    pub established_within: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // Four requests keep an API server on two cores busy; more than eight would only queue in front of it.
            in_flight: 8,
            // Finalizers take this long if their controllers run. Otherwise a later pass creates the object.
            gone_within: Duration::from_secs(30),
            // A healthy server establishes a definition within a second.
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
    /// The earliest time at which an object that waits may be written again.
    due: Option<Instant>,
}

impl Reconciler {
    /// Sends nothing before the first pass.
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

    /// Makes one pass over the bundle and the inventory. The report holds the outcome of each object, and the error that
    /// ended the pass early, if one did. The pass ends and drops its calls when the fence's window closes (INV-3). Cancel
    /// safe.
    pub async fn pass(&mut self, fence: &Fence) -> Report {
        let started = Instant::now();
        let mut report = Report::default();
        let window = fence.window().clone();
        let stopped = tokio::select! {
            // Polled first, before every step: a call must not start at the moment at which the window closes.
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

    /// Resolves when another writer changed a managed object, when a watch missed changes, or when an object that waits
    /// may be written again. Cancel safe.
    pub async fn changed(&mut self) {
        loop {
            let changes = self.watches.take();
            if changes.lost_track {
                return;
            }
            let now = Instant::now();
            let mut changed = changes.objects.iter();
            if let Some((object, latest)) =
                changed.find(|(object, latest)| self.needs_pass(object, latest, now))
            {
                debug!(%object, deleted = latest.deleted, version = latest.version.resource_version, "changed");
                return;
            }
            tokio::select! {
                () = self.watches.noted() => {}
                () = sleep_until(self.due) => {
                    self.due = None;
                    return;
                }
            }
        }
    }

    fn needs_pass(&self, object: &ObjectRef, latest: &Latest, now: Instant) -> bool {
        if !self.wanted.contains(object) {
            // An annotation of a kept object may have changed. Other objects with the label are not ours.
            return self.inventory.get(object).is_some();
        }
        if self.memory.is_waiting(object, now) {
            return false;
        }
        match latest.deleted {
            true => self.memory.was_in_place(object, &latest.version.uid),
            false => !self.memory.is_in_sync(object, &latest.version),
        }
    }

    async fn look_and_act(&mut self, fence: &Fence, report: &mut Report) -> Result<(), Stopped> {
        let unreadable = |error| Stopped::Etcd(format!("cannot read the inventory: {error}"));
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
        // The watches start before the first write: a server keeps only a short history for a watch to catch up with.
        self.watches.follow(&self.kube, &cluster);
        self.settle(fence, &foundation, &cluster, report).await?;
        let defined = self.await_definitions(&foundation, &cluster, report).await?;
        let late = self.await_kinds(&rest, &cluster, &defined).await?;
        // The list of a kind replaces what was observed of it, so it has to cover all objects of the kind.
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

    /// Puts the objects of these manifests in place.
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
                Ok(write) => todo.push(write),
                Err(outcome) => report.set(manifest.object.clone(), outcome),
            }
        }
        let unrecorded = todo
            .iter()
            .filter(|write| self.inventory.get(&write.manifest.object).is_none())
            .map(|write| (write.manifest.object.clone(), entry(write.manifest, "")))
            .collect();
        self.inventory.record(fence, unrecorded).await.map_err(etcd)?;

        let actor = self.actor();
        let mut writes = Vec::with_capacity(todo.len());
        for write in &todo {
            writes.push(put_in_place(&actor, write));
        }
        let mut acting = stream::iter(writes).buffer_unordered(self.settings.in_flight);
        let mut written = Vec::new();
        let mut down = None;
        while let Some((write, result)) = acting.next().await {
            if let Some(error) = result.server {
                down = Some(error);
                break;
            }
            let object = &write.manifest.object;
            if let Some(in_sync) = &result.in_sync {
                written.push((object.clone(), entry(write.manifest, &in_sync.uid)));
            }
            report.set(object.clone(), remember(&mut self.memory, write, result));
        }
        drop(acting);
        self.inventory.record(fence, written).await.map_err(etcd)?;
        down.map_or(Ok(()), |error| Err(api_server(error)))
    }

    /// Plans an object. `Err` holds the outcome of an object for which nothing is written.
    fn decide<'a>(&self, manifest: &'a Manifest, cluster: &ClusterState) -> Result<Write<'a>, Outcome> {
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
            Step::Create { .. } | Step::Apply { .. } => Ok(Write {
                manifest,
                resource: resource.clone(),
                observed: observed.cloned(),
                inventory_uid: inventory_uid.to_owned(),
                step,
            }),
            Step::BackOff { .. } => Err(Outcome::Contended(match self.memory.other_manager(object) {
                Some(other_manager) => {
                    format!("field manager \"{other_manager}\" keeps changing it; backing off")
                }
                None => "another client keeps changing or deleting it; backing off".to_owned(),
            })),
            Step::RetryLater { .. } => Err(Outcome::Failed(
                self.memory.failure(object).unwrap_or("failed before").to_owned(),
            )),
            Step::AwaitDeletion | Step::Refuse(_) => Err(WriteResult::not_written(&step, observed).outcome),
        }
    }
}

fn entry(manifest: &Manifest, uid: &str) -> Entry {
    Entry {
        version: manifest.version.clone(),
        uid: uid.to_owned(),
    }
}

async fn put_in_place<'a>(actor: &Actor, write: &'a Write<'a>) -> (&'a Write<'a>, WriteResult) {
    (write, actor.put_in_place(write).await)
}

/// Updates the memory with the result of a write.
fn remember(memory: &mut Memory, write: &Write<'_>, result: WriteResult) -> Outcome {
    let now = Instant::now();
    let object = &write.manifest.object;
    if let Some(in_sync) = result.in_sync {
        memory.settled(object, in_sync);
    }
    if let Some(other_manager) = result.mended {
        memory.mended(object, other_manager.as_deref(), now);
    }
    if let Outcome::Failed(why) = &result.outcome {
        memory.failed(object, write.observed.as_ref(), why.clone(), result.at_least, now);
    }
    result.outcome
}

pub(super) fn api_server(error: ApiError) -> Stopped {
    // The cause alone: it concerns the server, whichever object the request was about.
    Stopped::ApiServer(error.cause.to_string())
}

pub(super) fn etcd(error: FencedError) -> Stopped {
    match error {
        FencedError::LostLeadership(_) => Stopped::LostLeadership,
        error => Stopped::Etcd(format!("cannot write the inventory: {}", causes::chain(&error))),
    }
}
