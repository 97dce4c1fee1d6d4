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

use super::index::{Index, Part};
use super::lanes::Lane;
use super::operation::{Action, Completion, Env, Failure, Held, Interrupted};
use super::plan::{Step, Target};
use super::plugin_state::PluginState;
use super::retry_state::{Due, Unsettled};
use super::summary::{VolumesSummary, summary};
use crate::csi::{Code, Plugins};
use crate::etcd::Fence;
use crate::failpoint;
use crate::secrets::Reader;
use crate::store::writer::writer;
use crate::store::{Follower, Name, Store, Update};
use crate::summary::{Latest, Summarizer};
use crate::term::{Notices, TermOver};

mod advance;
mod comparing;
mod compensation;
mod gauges;
mod history;
mod in_flight;
mod plugins;
mod reports;
mod status;
mod wakes;

use comparing::Comparing;
use gauges::Gauges;
use in_flight::InFlight;
use plugins::PluginEvent;
use reports::note;

/// Woken volumes that are planned before the loop looks for events again.
const PLANNED_AT_ONCE: usize = 256;

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
    /// Reads the values of Secrets.
    pub secrets: Reader,
    /// Publishes Kubernetes Events.
    pub notices: Notices,
    /// Gets what the volumes are like, for people.
    pub summaries: Latest<VolumesSummary>,
}

impl VolumeController {
    /// Reconciles volumes until leadership is lost.
    pub async fn run(self) {
        let (writer, writing) = writer(&self.store.etcd, &self.fence);
        let metrics = self.store.etcd.metrics().clone();
        let window = self.fence.window().clone();
        let state = TermState {
            index: Index::new(self.store.keys.clone()),
            is_listed: false,
            env: Env {
                store: self.store,
                fence: self.fence,
                writer,
                secrets: self.secrets,
            },
            csi_plugins: Plugins::new(metrics.clone()),
            plugins: HashMap::new(),
            unsettled: Unsettled::default(),
            in_flight: InFlight::default(),
            woken: VecDeque::new(),
            comparing: VecDeque::new(),
            operations: FuturesUnordered::new(),
            plugin_events: FuturesUnordered::new(),
            times: self.times,
            notices: self.notices,
            gauges: Gauges::new(metrics),
            summarizer: Summarizer::new(&self.summaries),
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
    /// Whether every range was listed once. Before that, nothing was planned.
    is_listed: bool,
    csi_plugins: Plugins,
    plugins: HashMap<Name, PluginState>,
    unsettled: Unsettled,
    /// The volumes for which a call is under way. No other call is made for them under another name (INV-6).
    in_flight: InFlight,
    /// Volumes to plan, the longest waiting first.
    woken: VecDeque<Name>,
    /// Lists of plugins that are being compared with the records.
    comparing: VecDeque<Comparing>,
    operations: FuturesUnordered<BoxFuture<'static, Completion>>,
    plugin_events: FuturesUnordered<BoxFuture<'static, PluginEvent>>,
    times: Times,
    notices: Notices,
    gauges: Gauges,
    summarizer: Summarizer<VolumesSummary>,
}

impl TermState {
    async fn run(mut self) {
        if let Err(TermOver) = history::settle(&self.env, &self.notices).await {
            return;
        }
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
            self.compare_some();
            self.gauges.set_depth(&self.plugins);
            let is_complete = self.index.is_complete();
            let is_more_woken = !self.woken.is_empty() && is_complete;
            let is_more = is_more_woken || !self.comparing.is_empty();
            tokio::select! {
                Some((part, update)) = updates.next() => {
                    self.take_in(part, update);
                    if self.index.went_back() {
                        // The next term begins with what follows from that.
                        warn!("the term ends, since etcd was restored from a snapshot: its volumes are in an earlier state");
                        return;
                    }
                }
                Some(completion) = self.operations.next() => {
                    if let Err(TermOver) = self.on_completion(completion) {
                        return;
                    }
                }
                Some(event) = self.plugin_events.next() => self.on_plugin_event(event),
                due = self.unsettled.next_due() => self.on_due(due),
                () = tokio::task::yield_now(), if is_more => {}
                _ = tick.tick() => self.tick(),
                () = self.summarizer.due(), if is_complete => {
                    self.summarizer.publish(|| summary(&self.index));
                }
            }
        }
    }

    fn take_in(&mut self, part: Part, update: Update) {
        let changes = self.index.take_in(part, update);
        self.summarizer.note_change();
        if !self.is_listed {
            if self.index.is_complete() {
                self.is_listed = true;
                failpoint::abort_at("volumes.listed");
                self.take_over_undoing();
                self.wake_all();
            }
            return;
        }
        // A range that is listed again, as after a compaction, wakes what has changed in it, which is planned after the end of the
        // list. If it woke all volumes, each that rests after a failure would be tried at once.
        for change in changes {
            self.on_change(change);
        }
    }

    /// Every range was listed for the first time. Plans every volume.
    fn wake_all(&mut self) {
        let named = self.index.drivers().chain(self.index.plugins());
        let drivers: BTreeSet<Name> = named.cloned().collect();
        for driver in drivers {
            self.configure(&driver);
        }
        let names = self.index.names();
        debug!(volumes = names.len(), "planning every volume");
        // What waits for the new leader goes first.
        let names = names.into_iter();
        let (settled, open): (Vec<Name>, Vec<Name>) = names.partition(|name| self.index.seems_settled(name));
        for name in open.into_iter().chain(settled) {
            self.wake(name, None);
        }
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

    fn on_due(&mut self, due: Due) {
        let names = match due {
            Due::Retried(names) => {
                let retries = u64::try_from(names.len()).unwrap_or(u64::MAX);
                self.gauges.metrics.volume_retries.inc_by(retries);
                names
            }
            Due::Free(names) => names,
        };
        self.woken.extend(names);
    }

    fn on_completion(&mut self, completion: Completion) -> Result<(), TermOver> {
        let Completion {
            volume: name,
            driver,
            action,
            result,
            records,
        } = completion;
        let (mut is_news, mut noted) = (false, Vec::new());
        for record in &records {
            // A record that was only read was written by someone else. That counts as a change now: when the watch delivers
            // it, its revision is already known.
            let now = record.now.as_ref().map_err(|deleted| *deleted);
            let changes = self.index.note(&record.key, now);
            is_news |= !changes.is_empty() && !record.own;
            noted.extend(changes);
            self.summarizer.note_change();
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
        if let Some(timed_out) = timed_out {
            self.unsettled.called(&name, !timed_out);
        }
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
                let waits_for = failure.waits_for.clone();
                self.on_failure(&name, target, failure);
                is_news |= self.begin_wait(waits_for.as_ref(), &name, &driver);
            }
            Err(Interrupted::LostLeadership) => return Err(TermOver),
        }
        if is_news {
            self.unsettled.wake(&name, None);
        }
        self.woken.extend(self.in_flight.end(&name));
        // The watch delivers no news of what is noted already.
        for change in noted {
            self.on_noted(change);
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

    fn on_failure(&mut self, name: &Name, target: Target, failure: Failure) {
        let note = note(name, &target, &failure.why);
        // Only the first failure in a row; metrics count the others.
        if !self.unsettled.fail(name, target, failure) {
            debug!("{note}");
            return;
        }
        self.report_blocked(note);
    }
}
