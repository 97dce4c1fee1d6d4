//! Observe, plan, act, under one term.
//!
//! One loop over what happens: records that change, steps that end, plugins that become ready, rests that are over. Each
//! wakes volumes; a volume that is woken is observed and planned anew. Its steps are taken one after the other, those of
//! different volumes side by side, as many at a time as their plugin takes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, SelectAll, unfold};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::index::{Change, Index, Part, State};
use super::operation::{Ended, Env, Failure, Outcome, Task};
use super::plan::{Step, Target};
use super::plugin_state::PluginState;
use super::retry_state::RetryState;
use crate::csi::{CallError, ListedVolume, NotReady, Plugins, Session};
use crate::etcd::Fence;
use crate::failpoint;
use crate::kube::events::{Notice, Severity};
use crate::metrics::Metrics;
use crate::store::writer::writer;
use crate::store::{Follower, Name, Store, Update};
use crate::term::Notices;

mod advance;
mod plugins;

/// Volumes that are looked at between two looks at what happens, when there are many.
const AT_ONCE: usize = 256;

/// Between two questions whether a plugin is ready by now.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Between two looks at sessions that ended by themselves, and at the gauges.
const TICK: Duration = Duration::from_secs(1);

/// The waits of the controller.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Between two comparisons with the list of a plugin that tells where its volumes are.
    pub compare_every: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            compare_every: Duration::from_secs(600),
        }
    }
}

/// What a leader needs to see to volumes.
pub struct Volumes {
    /// Where the records lie.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// Its waits.
    pub times: Times,
    /// Where hindrances are reported.
    pub notices: Notices,
}

/// Something that happened.
enum Event {
    Ended(Box<Ended>),
    Connected(Name, u64, Result<std::sync::Arc<Session>, NotReady>),
    Listed(Name, u64, u64, Result<Vec<ListedVolume>, CallError>),
    /// The term is over.
    Over,
}

impl Volumes {
    /// Sees to volumes until leadership is lost.
    pub async fn run(self) {
        let (writer, writing) = writer(&self.store.etcd, &self.fence);
        let metrics = self.store.etcd.metrics().clone();
        let work = Work {
            env: Env {
                store: self.store.clone(),
                fence: self.fence.clone(),
                writer,
            },
            index: Index::new(self.store.keys.clone()),
            csi_plugins: Plugins::new(metrics.clone()),
            plugins: HashMap::new(),
            unsettled: HashMap::new(),
            due: BTreeSet::new(),
            woken: VecDeque::new(),
            under_way: FuturesUnordered::new(),
            gauges: Gauges(metrics),
            volumes: &self,
        };
        tokio::select! {
            () = work.run() => {}
            () = writing => {}
        }
    }
}

/// The state of one term.
struct Work<'v> {
    volumes: &'v Volumes,
    env: Env,
    index: Index,
    csi_plugins: Plugins,
    plugins: HashMap<Name, PluginState>,
    /// The volumes that are not settled.
    unsettled: HashMap<Name, RetryState>,
    due: BTreeSet<(Instant, Name)>,
    /// To be looked at, the longest waiting first.
    woken: VecDeque<Name>,
    under_way: FuturesUnordered<BoxFuture<'static, Event>>,
    gauges: Gauges,
}

impl Work<'_> {
    async fn run(mut self) {
        let followed = Part::ALL.map(|part| {
            let follower = Follower::new(&self.env.store.etcd, part.range(&self.env.store.keys));
            let updates = unfold(follower, move |mut follower| async move {
                let update = follower.next().await;
                Some(((part, update), follower))
            });
            updates.boxed()
        });
        let mut updates: SelectAll<_> = followed.into_iter().collect();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            self.look_at_woken();
            self.gauges.set_depth(&self.plugins);
            let first_due = self.due.first().map(|(at, _)| *at);
            let rested = async {
                match first_due {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let more_woken = async {
                match self.woken.is_empty() || !self.index.is_complete() {
                    true => std::future::pending().await,
                    false => tokio::task::yield_now().await,
                }
            };
            tokio::select! {
                Some((part, update)) = updates.next() => self.take_in(part, update),
                Some(event) = self.under_way.next() => {
                    if !self.on_event(event) {
                        return;
                    }
                }
                () = rested => self.wake_rested(),
                () = more_woken => {}
                _ = tick.tick() => self.tick(),
            }
        }
    }

    fn take_in(&mut self, part: Part, update: Update) {
        let before = self.index.is_complete();
        let changes = self.index.take_in(part, update);
        if !self.index.is_complete() {
            return;
        }
        if !before {
            failpoint::abort_at("volumes.listed");
            // Whatever was there, and whatever a list that was interrupted left out.
            let drivers: BTreeSet<Name> = self
                .index
                .names()
                .iter()
                .filter_map(|name| self.index.driver(name).cloned())
                .collect();
            for driver in drivers {
                self.configure(&driver);
            }
            let mut names = self.index.names();
            debug!(volumes = names.len(), "everything is examined");
            let unsettled = self.unsettled.keys().filter(|name| !self.index.has(name));
            names.extend(unsettled.cloned());
            names.into_iter().for_each(|name| self.wake(name, None));
            return;
        }
        for change in changes {
            match change {
                Change::Record(name, revision) => self.wake(name, Some(revision)),
                Change::Around(name) => self.wake(name, None),
                Change::Plugin(plugin) => {
                    self.configure(&plugin);
                    for name in self.of_plugin(&plugin) {
                        self.wake(name, None);
                    }
                }
            }
        }
    }

    /// Volumes that a change of the plugin may concern: its own, and all whose records are gone, which are few.
    fn of_plugin(&self, plugin: &Name) -> BTreeSet<Name> {
        let leftovers = self
            .unsettled
            .iter()
            .filter(|(_, retry)| !retry.compensations.is_empty());
        let leftovers = leftovers.map(|(name, _)| name.clone());
        self.index
            .of_plugin(plugin)
            .into_iter()
            .chain(leftovers)
            .collect()
    }

    /// Takes over the record of a plugin.
    fn configure(&mut self, plugin: &Name) {
        let compare_at = Instant::now() + self.volumes.times.compare_every;
        let plugin_state = self
            .plugins
            .entry(plugin.clone())
            .or_insert_with(|| PluginState::new(compare_at));
        plugin_state.configure(plugin, self.index.plugin(plugin), &self.csi_plugins);
        if plugin_state.plugin().is_none() {
            self.csi_plugins.retain(|name| name != plugin.as_str());
        }
    }

    /// Something changed: what failed may be tried again at once. During a step the change waits for its end.
    fn wake(&mut self, name: Name, written: Option<crate::etcd::Revision>) {
        if let Some(retry) = self.unsettled.get_mut(&name) {
            if retry.is_busy {
                match written {
                    Some(revision) => retry.on_record_written(revision),
                    None => retry.mark_stale(),
                }
                return;
            }
            if let Some(at) = retry.due {
                self.due.remove(&(at, name.clone()));
            }
            retry.reset();
        }
        self.woken.push_back(name);
    }

    fn wake_rested(&mut self) {
        let now = Instant::now();
        while let Some((at, _)) = self.due.first()
            && *at <= now
            && let Some((_, name)) = self.due.pop_first()
        {
            if let Some(retry) = self.unsettled.get_mut(&name) {
                retry.begin_pass();
                self.gauges.0.volume_retries.inc();
                self.woken.push_back(name);
            }
        }
    }

    fn look_at_woken(&mut self) {
        if !self.index.is_complete() {
            return;
        }
        for _ in 0..AT_ONCE {
            let Some(name) = self.woken.pop_front() else {
                return;
            };
            self.advance(&name);
        }
    }

    /// False if the term is over.
    fn on_event(&mut self, event: Event) -> bool {
        match event {
            Event::Over => return false,
            Event::Ended(ended) => return self.on_ended(*ended),
            Event::Connected(driver, generation, outcome) => self.on_connected(&driver, generation, outcome),
            Event::Listed(driver, generation, since, outcome) => {
                self.on_listed(&driver, generation, since, outcome);
            }
        }
        true
    }

    fn on_ended(&mut self, ended: Ended) -> bool {
        let Ended {
            name,
            driver,
            task,
            outcome,
            known,
        } = ended;
        // What was read, not written, is somebody else's; where the watch has not brought it yet, it never will as news.
        let mut is_news = false;
        for record in &known {
            let now = record.now.as_ref().map_err(|deleted| *deleted);
            is_news |= self.index.note(&record.key, now) && !record.own;
        }
        let retry = self.unsettled.entry(name.clone()).or_default();
        is_news |= retry.end_step(&known);
        let target = match &task {
            Task::Step(step) => step.target(),
            Task::SetConditions(_) => Target::Volume,
            Task::Compensate(_) => Target::Orphaned,
        };
        match outcome {
            Outcome::LostLeadership => return false,
            Outcome::Done => self.on_done(&name, &task, &target),
            Outcome::Stale => {
                let retry = self.unsettled.entry(name.clone()).or_default();
                if !retry.observed_stale() {
                    retry.fail(target, Failure::restless());
                }
            }
            Outcome::Orphaned(compensation) => retry.compensations.push(*compensation),
            Outcome::Failed(failure) => self.on_failed(&name, target, failure),
        }
        if is_news && let Some(retry) = self.unsettled.get_mut(&name) {
            retry.reset();
        }
        if let Some(plugin_state) = self.plugins.get_mut(&driver) {
            plugin_state.running = plugin_state.running.saturating_sub(1);
        }
        self.advance(&name);
        self.serve_queue(&driver);
        true
    }

    fn on_done(&mut self, name: &Name, task: &Task, target: &Target) {
        let Some(retry) = self.unsettled.get_mut(name) else {
            return;
        };
        match task {
            Task::SetConditions(_) => {}
            Task::Compensate(_) => {
                retry.compensations.remove(0);
            }
            Task::Step(step) => {
                match step {
                    Step::Publish { node, .. } => {
                        retry.drift.lost.remove(node);
                    }
                    Step::UnpublishStray { csi_node_id } => {
                        retry.drift.strays.remove(csi_node_id);
                    }
                    _ => {}
                }
                retry.succeed(target);
                info!(volume = %name, "done: {step}");
            }
        }
    }

    fn on_failed(&mut self, name: &Name, target: Target, failure: Failure) {
        let place = match &target {
            Target::Volume => String::new(),
            Target::Node(node) => format!(" on node {node}"),
            Target::Stray(id) => format!(" on node id {id}"),
            Target::Orphaned => ", whose record is gone".to_owned(),
        };
        let note = format!(
            "volume {name}{place}: {}: {}",
            failure.why.reason, failure.why.message
        );
        let retry = self.unsettled.entry(name.clone()).or_default();
        // Once; the repetitions are in the metrics.
        if retry.fail(target, failure) {
            warn!("{note}");
            self.volumes.notices.send(Notice {
                severity: Severity::Warning,
                reason: "VolumeBlocked",
                action: "Volumes",
                note,
            });
        } else {
            debug!("{note}");
        }
    }
}

/// The gauges of this term; zero after it.
struct Gauges(Metrics);

impl Gauges {
    fn set_depth(&self, plugins: &HashMap<Name, PluginState>) {
        let depth: usize = plugins
            .values()
            .map(|plugin_state| plugin_state.queue.len())
            .sum();
        self.0
            .volume_queue_depth
            .set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    fn set_states(&self, index: &Index) {
        for (state, word) in State::ALL {
            let label = crate::metrics::State { state: word };
            self.0.volumes.get_or_create(&label).set(index.count(state));
        }
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.0.volume_queue_depth.set(0);
        for (_, word) in State::ALL {
            let label = crate::metrics::State { state: word };
            self.0.volumes.get_or_create(&label).set(0);
        }
    }
}
