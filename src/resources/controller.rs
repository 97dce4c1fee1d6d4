//! Keeps a bundle in place: observes the cluster, plans each object, and writes with bounded concurrency.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::debug;

use super::act::{Actor, Job};
use super::bundle::{Bundle, Manifest};
use super::inventory::{Entry, Inventory};
use super::jobs::{Ended, Jobs};
use super::kinds;
use super::memory::Memory;
use super::observe::{Cluster, GroupKind, Target, Targets};
use super::plan::Fingerprint;
use super::report::{Act, Report, Stopped};
use super::watches::{Changes, Latest, Watches};
use crate::causes;
use crate::etcd::{Fence, FencedError, Window};
use crate::kube::{Error as ApiError, KubeClient, ObjectRef};
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
    /// A request about an object that takes longer than this lingers: the pass goes on without it.
    pub lingers_after: Duration,
    /// The number of objects that the operator allows a pass to prune, if it would hold that many back.
    pub allow_prune: usize,
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
            // A healthy server answers within a fraction of it, webhooks included.
            lingers_after: Duration::from_secs(3),
            allow_prune: 0,
        }
    }
}

/// Keeps one bundle in place, for one term.
pub struct Reconciler {
    pub(super) kube: KubeClient,
    pub(super) bundle: Arc<Bundle>,
    pub(super) wanted: HashSet<ObjectRef>,
    pub(super) inventory: Inventory,
    metrics: Metrics,
    pub(super) settings: Settings,
    pub(super) cluster: Cluster,
    pub(super) memory: Memory,
    pub(super) established: HashSet<ObjectRef>,
    /// Definitions and kinds that a pass has waited for in vain: later passes only look.
    pub(super) late: HashSet<String>,
    /// Requests about objects, at most one an object.
    pub(super) jobs: Jobs<ObjectRef, Job>,
    /// Results of jobs that ended between two passes, or while other results were recorded.
    pub(super) ended: Vec<Ended<ObjectRef, Job>>,
    /// What was deleted and not reported yet: a pass that is cut short reports nothing.
    pub(super) acts: Vec<Act>,
    /// Entries of results that were taken in, to record with the next ones.
    pub(super) unrecorded: Vec<(ObjectRef, Entry)>,
    /// The window of the term, once a pass was made.
    window: Option<Window>,
    pub(super) watches: Watches,
    /// The earliest time at which an object that waits may be written again.
    due: Option<Instant>,
    /// Whether the last pass left kinds for the next one to list, which comes at once.
    lists_next: bool,
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
            cluster: Cluster::new(kube.clone(), settings.in_flight, settings.lingers_after),
            kube,
            bundle,
            wanted,
            inventory,
            metrics,
            settings,
            memory: Memory::default(),
            established: HashSet::new(),
            late: HashSet::new(),
            jobs: Jobs::new(settings.lingers_after),
            ended: Vec::new(),
            acts: Vec::new(),
            unrecorded: Vec::new(),
            window: None,
            watches: Watches::default(),
            due: None,
            lists_next: false,
        }
    }

    /// Makes one pass over the bundle and the inventory. The report holds the outcome of each object, and the error that
    /// ended the pass early, if one did. A request that is not answered in time goes on after the pass, while
    /// [`Reconciler::changed`] is awaited and in later passes. The pass ends and drops its calls when the fence's window
    /// closes (INV-3). Safe to cancel.
    pub async fn pass(&mut self, fence: &Fence) -> Report {
        let started = Instant::now();
        let mut report = Report::default();
        let window = fence.window().clone();
        self.window = Some(window.clone());
        let stopped = tokio::select! {
            // Polled first, before every step: a call must not start at the moment at which the window closes.
            biased;
            () = window.closed() => Err(Stopped::LostLeadership),
            result = self.try_pass(fence, &mut report) => result,
        };
        if let Err(stopped) = stopped {
            if stopped == Stopped::LostLeadership {
                self.jobs.clear();
            }
            report.stop(stopped);
        } else {
            self.lists_next = self.cluster.has_unlisted();
        }
        for act in self.acts.drain(..) {
            report.did(act);
        }
        self.due = report
            .objects()
            .iter()
            .filter(|(object, outcome)| outcome.trouble().is_some() && !self.jobs.is_busy(object))
            .filter_map(|(object, _)| self.memory.due(object))
            // A wait that was over before the pass is no reason for another one.
            .filter(|due| *due > started)
            .min();
        report.record(&self.metrics, started.elapsed().as_secs_f64());
        report
    }

    /// Resolves when another writer changed a managed object, when a watch missed changes, when a request that outlasted
    /// its pass is answered, or when an object that waits may be written again. Safe to cancel.
    pub async fn changed(&mut self) {
        let Some(window) = self.window.clone() else {
            return std::future::pending().await;
        };
        // Those of a pass that was cut short.
        self.withdraw_deletions();
        loop {
            if self.take_changes() || std::mem::take(&mut self.lists_next) {
                return;
            }
            tokio::select! {
                biased;
                // The jobs send nothing any more (INV-3).
                () = window.closed() => return std::future::pending().await,
                ended = self.jobs.ended(self.settings.in_flight) => {
                    self.ended.push(ended);
                    return;
                }
                () = self.cluster.answered() => return,
                () = self.watches.noted() => {}
                () = sleep_until(self.due) => {
                    self.due = None;
                    return;
                }
            }
        }
    }

    /// Takes in what the watches delivered. Returns whether something of it needs a pass.
    fn take_changes(&mut self) -> bool {
        let Changes {
            objects,
            lost_track,
            failed,
        } = self.watches.take();
        for kind in lost_track.iter().chain(&failed) {
            self.cluster.doubt(kind);
        }
        let now = Instant::now();
        let mut needs_pass = !lost_track.is_empty();
        for (object, latest) in objects {
            let Latest { meta, deleted } = &latest;
            if self.cluster.note(&object, meta, *deleted) && self.needs_pass(&object, &latest, now) {
                debug!(%object, deleted, version = meta.resource_version, "changed");
                needs_pass = true;
            }
        }
        needs_pass
    }

    /// Whether a change of an object of the bundle was noted that needs a pass.
    pub(super) fn has_news(&self) -> bool {
        let now = Instant::now();
        self.watches.have(|object, latest| {
            self.wanted.contains(object)
                && self.cluster.is_news(object, &latest.meta)
                && self.needs_pass(object, latest, now)
        })
    }

    fn needs_pass(&self, object: &ObjectRef, latest: &Latest, now: Instant) -> bool {
        // The end of the job starts a pass, which looks again.
        if self.jobs.is_busy(object) {
            return false;
        }
        if !self.wanted.contains(object) {
            // An annotation of a kept object may have changed. Other objects with the label are not ours.
            return self.inventory.get(object).is_some()
                && (latest.deleted || !self.memory.was_left(object, &latest.meta));
        }
        if self.memory.is_waiting(object, now) {
            return false;
        }
        match latest.deleted {
            true => self.memory.was_in_place(object, &latest.meta.uid),
            false => {
                let observed = Fingerprint::of(&latest.meta);
                !self.memory.is_in_sync(object, &observed, now)
            }
        }
    }

    /// Begins again, once, if an entry was forgotten by hand since the inventory was read: that is no fault of etcd.
    async fn try_pass(&mut self, fence: &Fence, report: &mut Report) -> Result<(), Stopped> {
        match self.look_and_act(fence, report).await {
            Err(Stopped::Etcd(_)) if self.inventory.had_conflict() => {
                report.begin_again();
                self.look_and_act(fence, report).await
            }
            result => result,
        }
    }

    async fn look_and_act(&mut self, fence: &Fence, report: &mut Report) -> Result<(), Stopped> {
        self.withdraw_deletions();
        self.cluster.begin();
        let unreadable = |error| Stopped::Etcd(format!("cannot read the inventory: {error}"));
        self.inventory.load().await.map_err(unreadable)?;
        // What ended between two passes is taken in before anything is decided again.
        while let Some(ended) = self.jobs.try_next() {
            self.ended.push(ended);
        }
        while let Err(stopped) = self.finish(fence, HashSet::new(), report).await {
            // Whether the API server can be reached now is what this pass finds out.
            if !matches!(stopped, Stopped::ApiServer(_)) {
                return Err(stopped);
            }
        }
        self.take_changes();
        let unwritten = self.inventory.unwritten(|object| self.wanted.contains(object));
        self.forget(fence, &unwritten).await?;
        let wanted = &self.wanted;
        let noted = self.inventory.note_drops(fence, |object| wanted.contains(object));
        noted.await.map_err(etcd)?;
        let obsolete = self.inventory.obsolete(|object| self.wanted.contains(object));
        let bundle = self.bundle.clone();
        let (foundation, rest): (Vec<&Manifest>, Vec<&Manifest>) = bundle
            .manifests
            .iter()
            .partition(|manifest| kinds::is_foundation(&manifest.object.group, &manifest.object.kind));

        let mut wanted: Vec<Target> = bundle.manifests.iter().map(Target::from).collect();
        let targets = Targets {
            wanted: &wanted,
            obsolete: &obsolete,
        };
        let recorded = self.inventory.kinds();
        let has = |kind: &GroupKind| recorded.contains(kind);
        self.cluster.observe(targets, has).await.map_err(api_server)?;
        // The watches of what was listed start before the first write: a server keeps only a short history for a watch to
        // catch up with.
        self.watches.follow(&self.kube, &mut self.cluster);
        self.settle(fence, &foundation, &rest, report).await?;
        // A definition that is not established delays the objects of its kind alone (INV-8).
        let (later, now): (Vec<&Manifest>, Vec<&Manifest>) =
            rest.into_iter().partition(|manifest| self.is_late(manifest));
        self.settle(fence, &now, &[], report).await?;
        let defined = self.await_definitions(&foundation, report).await?;
        let late = self.await_kinds(&later, &defined).await?;
        // The list of a kind replaces what was observed of it, so it has to cover all objects of the kind.
        wanted.retain(|target| late.contains(&target.kind()));
        if !wanted.is_empty() {
            let obsolete: Vec<Target> = obsolete
                .iter()
                .filter(|target| late.contains(&target.kind()))
                .cloned()
                .collect();
            let targets = Targets {
                wanted: &wanted,
                obsolete: &obsolete,
            };
            self.cluster.look(targets, has).await.map_err(api_server)?;
            self.watches.follow(&self.kube, &mut self.cluster);
        }
        self.settle(fence, &later, &[], report).await?;
        self.prune(fence, obsolete, report).await?;
        self.record_states(fence, report).await
    }

    pub(super) fn is_wanted(&self, object: &ObjectRef) -> bool {
        self.wanted.contains(object)
    }

    /// The objects that the bundle holds.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &ObjectRef> {
        self.wanted.iter()
    }

    pub(super) fn actor(&self) -> Actor {
        Actor {
            kube: self.kube.clone(),
            bundle: self.bundle.clone(),
            gone_within: self.settings.gone_within,
        }
    }
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
