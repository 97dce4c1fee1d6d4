//! Observe, plan, act, under one term.
//!
//! One loop over everything that happens: records that change, operations that end, plugins that connect, rests that are
//! over. Each wakes volumes, and a woken volume is planned again from its records. The operations of one volume follow each
//! other; those of different volumes run side by side, as many at a time as their plugin takes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, SelectAll, unfold};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::index::{Change, Index, Part};
use super::lanes::Lane;
use super::operation::{Action, Completion, Env, Failure, Held, Interrupted, WaitsFor};
use super::plan::{Step, Target};
use super::plugin_state::PluginState;
use super::retry_state::{RetryState, Unsettled};
use crate::csi::{Code, Plugins};
use crate::etcd::{Fence, Revision};
use crate::failpoint;
use crate::kube::events::{Notice, Severity};
use crate::store::writer::writer;
use crate::store::{Follower, Name, Store, Update};
use crate::term::{Notices, TermOver};

mod advance;
mod compensation;
mod gauges;
mod in_flight;
mod plugins;
mod status;

use gauges::Gauges;
use in_flight::InFlight;
use plugins::PluginEvent;

/// Woken volumes that are planned before the loop looks for events again.
const PLANNED_AT_ONCE: usize = 256;

/// Volumes that are tried again for the capacity that one has left. Were it all that wait, the deletion of many would have all ask
/// for it many times.
const TRIED_FOR_CAPACITY: usize = 16;

/// Between two looks at sessions that have ended, at lists that are due, and at the gauges.
const TICK: Duration = Duration::from_secs(1);

/// The waits of the controller.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Between two comparisons with a plugin's list of volumes, for plugins whose list has the nodes.
    pub compare_every: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            compare_every: Duration::from_secs(600),
        }
    }
}

/// The reconciler of volumes in one term.
pub struct VolumeController {
    /// etcd, and the keys of the records.
    pub store: Store,
    /// The term.
    pub fence: Fence,
    /// The waits of the controller.
    pub times: Times,
    /// Publishes Kubernetes Events.
    pub notices: Notices,
}

impl VolumeController {
    /// Reconciles volumes until leadership is lost.
    pub async fn run(self) {
        let (writer, writing) = writer(&self.store.etcd, &self.fence);
        let metrics = self.store.etcd.metrics().clone();
        let window = self.fence.window().clone();
        let state = TermState {
            index: Index::new(self.store.keys.clone()),
            env: Env {
                store: self.store,
                fence: self.fence,
                writer,
            },
            csi_plugins: Plugins::new(metrics.clone()),
            plugins: HashMap::new(),
            unsettled: Unsettled::default(),
            in_flight: InFlight::default(),
            woken: VecDeque::new(),
            operations: FuturesUnordered::new(),
            plugin_events: FuturesUnordered::new(),
            times: self.times,
            notices: self.notices,
            gauges: Gauges::new(metrics),
        };
        tokio::select! {
            // First: dropping the state cancels its calls, connections and lists with the window (INV-3).
            biased;
            () = window.closed() => {}
            () = state.run() => {}
            () = writing => {}
        }
    }
}

/// The state of one term.
struct TermState {
    env: Env,
    index: Index,
    csi_plugins: Plugins,
    plugins: HashMap<Name, PluginState>,
    unsettled: Unsettled,
    /// The volumes for which a call is under way. No other call is made for them under another name (INV-6).
    in_flight: InFlight,
    /// Volumes to plan, the longest waiting first.
    woken: VecDeque<Name>,
    operations: FuturesUnordered<BoxFuture<'static, Completion>>,
    plugin_events: FuturesUnordered<BoxFuture<'static, PluginEvent>>,
    times: Times,
    notices: Notices,
    gauges: Gauges,
}

impl TermState {
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
            self.plan_woken();
            self.gauges.set_depth(&self.plugins);
            let is_more_woken = !self.woken.is_empty() && self.index.is_complete();
            tokio::select! {
                Some((part, update)) = updates.next() => self.take_in(part, update),
                Some(completion) = self.operations.next() => {
                    if let Err(TermOver) = self.on_completion(completion) {
                        return;
                    }
                }
                Some(event) = self.plugin_events.next() => self.on_plugin_event(event),
                due = self.unsettled.next_due() => {
                    self.gauges.metrics.volume_retries.inc_by(u64::try_from(due.len()).unwrap_or(u64::MAX));
                    self.woken.extend(due);
                }
                () = tokio::task::yield_now(), if is_more_woken => {}
                _ = tick.tick() => self.tick(),
            }
        }
    }

    fn take_in(&mut self, part: Part, update: Update) {
        let was_complete = self.index.is_complete();
        let changes = self.index.take_in(part, update);
        if !self.index.is_complete() {
            return;
        }
        if !was_complete {
            failpoint::abort_at("volumes.listed");
            self.wake_all();
            return;
        }
        for change in changes {
            match change {
                Change::Record(name, revision) => self.wake(name, Some(revision)),
                Change::Around(name) => self.wake(name, None),
                Change::Plugin(plugin) => {
                    self.configure(&plugin);
                    for name in self.volumes_of(&plugin) {
                        self.wake(name, None);
                    }
                }
            }
        }
    }

    /// Every range was listed. Plans every volume, and those whose records an interrupted list left out.
    fn wake_all(&mut self) {
        let mut names = self.index.names();
        let used = names.iter().filter_map(|name| self.index.driver(name));
        let drivers: BTreeSet<Name> = used.chain(self.index.plugins()).cloned().collect();
        for driver in drivers {
            self.configure(&driver);
        }
        debug!(volumes = names.len(), "planning every volume");
        let without_record = self.unsettled.iter().map(|(name, _)| name);
        names.extend(without_record.filter(|name| !self.index.has(name)).cloned());
        // What waits for the new leader goes first.
        names.sort_by_cached_key(|name| self.index.seems_settled(name));
        for name in names {
            self.wake(name, None);
        }
    }

    /// The volumes that a change of the plugin may concern: its own, and all whose records are gone, which are few.
    fn volumes_of(&self, plugin: &Name) -> BTreeSet<Name> {
        let orphaned = self
            .unsettled
            .iter()
            .filter(|(_, state)| !state.compensations.is_empty());
        let orphaned = orphaned.map(|(name, _)| name.clone());
        self.index.of_plugin(plugin).into_iter().chain(orphaned).collect()
    }

    /// Takes over the record of a plugin.
    fn configure(&mut self, plugin: &Name) {
        let compare_at = Instant::now() + self.times.compare_every;
        let state = self
            .plugins
            .entry(plugin.clone())
            .or_insert_with(|| PluginState::new(compare_at));
        let status = self.index.plugin_status(plugin).map(|(status, _)| status);
        state.configure(plugin, self.index.plugin(plugin), status, &self.csi_plugins);
        if state.plugin().is_none() {
            self.csi_plugins.retain(|name| name != plugin.as_str());
        }
    }

    /// Something about a volume changed: plans it again, with everything that failed. `written` is the revision of one of
    /// its records, if that is what changed.
    fn wake(&mut self, name: Name, written: Option<Revision>) {
        if self.unsettled.wake(&name, written) {
            self.woken.push_back(name);
        }
    }

    fn plan_woken(&mut self) {
        if !self.index.is_complete() {
            return;
        }
        for _ in 0..PLANNED_AT_ONCE {
            let Some(name) = self.woken.pop_front() else {
                return;
            };
            self.advance(&name);
        }
    }

    fn on_completion(&mut self, completion: Completion) -> Result<(), TermOver> {
        let Completion {
            volume: name,
            driver,
            action,
            result,
            records,
        } = completion;
        let (mut is_news, mut around) = (false, Vec::new());
        for record in &records {
            // A record that was only read was written by someone else. That counts as a change now: when the watch delivers
            // it, its revision is already known.
            let now = record.now.as_ref().map_err(|deleted| *deleted);
            let changes = self.index.note(&record.key, now);
            is_news |= !changes.is_empty() && !record.own;
            around.extend(changes.into_iter().filter_map(Change::around));
        }
        is_news |= self.unsettled.end_operation(&name, &records);
        let target = match &action {
            Action::Step(step) => step.target(),
            Action::SetConditions(_) => Target::Volume,
            Action::RecordStray(made) => Target::Stray(made.csi_node_id.clone()),
            Action::Compensate(_) => Target::Orphaned,
        };
        let timed_out = match &result {
            Ok(()) => (Lane::of(&action).0 != Lane::Record).then_some(false),
            Err(Interrupted::Failed(failure)) => failure.code.map(|code| code == Code::DeadlineExceeded),
            Err(_) => None,
        };
        match result {
            Ok(()) => self.on_success(&name, &driver, &action, &target),
            Err(Interrupted::Stale) => self.unsettled.observed_stale(&name, target),
            Err(Interrupted::Orphaned(compensation)) => {
                if compensation.held(&self.index, &name) == Held::Unreadable {
                    self.on_failure(&name, target, Failure::unreadable_record());
                }
                self.unsettled.state(&name).compensations.push(*compensation);
            }
            Err(Interrupted::Failed(failure)) => {
                let lacks_capacity = failure.waits_for == Some(WaitsFor::Capacity);
                self.on_failure(&name, target, failure);
                if lacks_capacity {
                    self.await_capacity(&name, &driver);
                }
            }
            Err(Interrupted::LostLeadership) => return Err(TermOver),
        }
        if is_news {
            self.unsettled.wake(&name, None);
        }
        self.woken.extend(self.in_flight.end(&name));
        // The watch delivers no news of what is noted already.
        for other in around {
            self.wake(other, None);
        }
        let (lane, node) = Lane::of(&action);
        self.on_called(&driver, timed_out);
        if let Some(plugin) = self.plugins.get_mut(&driver) {
            plugin.lanes.end(lane, node);
        }
        self.advance(&name);
        self.serve_queue(&driver, node);
        Ok(())
    }

    fn on_success(&mut self, name: &Name, driver: &Name, action: &Action, target: &Target) {
        let state = self.unsettled.state(name);
        match action {
            Action::SetConditions(_) => {}
            Action::RecordStray(made) => {
                state.compensations.remove(0);
                let id = &made.csi_node_id;
                info!(volume = %name, "publication forgotten during its call: to be unpublished from node id {id}");
                self.unsettled.succeed(name, target);
            }
            Action::Compensate(undone) => {
                state.compensations.remove(0);
                match &undone.publication {
                    Some(made) => self.wake_for_room(name, Some(&made.node)),
                    None => self.wake_for_capacity(driver),
                }
            }
            Action::Step(step) => {
                match step {
                    Step::Publish { node, .. } => state.mended(node),
                    Step::UnpublishStray { csi_node_id } => {
                        state.unpublished(csi_node_id);
                        let node = self
                            .index
                            .driver(name)
                            .and_then(|driver| self.index.node_of(driver, csi_node_id));
                        self.wake_for_room(name, node.as_ref());
                    }
                    Step::Unpublish { node, .. } => self.wake_for_room(name, Some(node)),
                    Step::Delete => self.wake_for_capacity(driver),
                    _ => {}
                }
                self.unsettled.succeed(name, target);
                info!(volume = %name, "{}", step.done_text());
            }
        }
    }

    /// A volume of the plugin was deleted at the backend: plans some of those again for which there was no capacity.
    fn wake_for_capacity(&mut self, driver: &Name) {
        self.in_flight.made_capacity(driver);
        for name in self.unsettled.made_capacity(driver, TRIED_FOR_CAPACITY) {
            // Without a new beginning: most of them fail as before, and that is no news.
            if self.unsettled.try_again(&name) {
                self.woken.push_back(name);
            }
        }
    }

    /// The plugin had no capacity for the volume. If another volume was deleted meanwhile, there may be some by now.
    fn await_capacity(&mut self, name: &Name, driver: &Name) {
        self.unsettled.await_capacity(driver, name);
        if self.in_flight.has_new_capacity(name) {
            self.unsettled.try_again(name);
        }
    }

    /// The volume has left this node: plans those again that wait for that.
    fn wake_for_room(&mut self, name: &Name, node: Option<&Name>) {
        let mut waiting = self.unsettled.left(name, node);
        // A call in flight may fail for what was there when it began.
        let running = |other: &Name| self.unsettled.get(other).is_some_and(RetryState::is_running);
        let there = node.into_iter().flat_map(|node| self.index.of_node(node));
        waiting.extend(there.filter(running));
        for other in waiting {
            self.wake(other, None);
        }
    }

    fn on_failure(&mut self, name: &Name, target: Target, failure: Failure) {
        let place = match &target {
            Target::Volume => String::new(),
            Target::Node(node) => format!(" on node {node}"),
            Target::Stray(id) => format!(" on node id {id}"),
            Target::Orphaned => ", whose record is gone".to_owned(),
        };
        let Failure { why, .. } = &failure;
        let note = format!("volume {name}{place}: {}: {}", why.reason, why.message);
        // Only the first failure in a row; metrics count the others.
        if !self.unsettled.fail(name, target, failure) {
            debug!("{note}");
            return;
        }
        warn!("{note}");
        self.notices.send(Notice {
            severity: Severity::Warning,
            reason: "VolumeBlocked",
            action: "Volumes",
            note,
        });
    }
}
