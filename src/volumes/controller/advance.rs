//! One volume: what is next, what it waits for, and what its conditions say of that.

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::Instant;
use tracing::{debug, info};

use super::{ASK_AGAIN, Event, Work};
use crate::etcd::Revision;
use crate::store::Name;
use crate::store::object::volume;
use crate::volumes::conditions::condition_changes;
use crate::volumes::index::VolumeSnapshot;
use crate::volumes::operation::{Job, Task, act};
use crate::volumes::plan::{Decision, Observed, Plugin, Step, Target, plan};
use crate::volumes::plugin_state::PluginState;
use crate::volumes::retry_state::RetryState;

impl Work<'_> {
    pub(super) fn decide(&mut self, name: &Name, seen: &VolumeSnapshot) -> Decision {
        let Some(driver) = self.index.driver(name).cloned() else {
            return Decision::default();
        };
        if !self.plugins.contains_key(&driver) {
            self.configure(&driver);
        }
        let plugin = self
            .plugins
            .get_mut(&driver)
            .map_or(Plugin::Missing, PluginState::known);
        let retry = self.unsettled.get(name);
        let resting = retry.map(RetryState::resting).unwrap_or_default();
        let drift = retry.map(|retry| retry.drift.clone()).unwrap_or_default();
        plan(&Observed {
            volume: &seen.volume,
            publications: &seen.publications,
            unreadable: &seen.unreadable,
            nodes: &seen.nodes,
            plugin,
            resting: &resting,
            drift: &drift,
        })
    }

    /// Looks at a volume and begins its next step, has it wait for its turn, or leaves it.
    pub(super) fn advance(&mut self, name: &Name) {
        if self
            .unsettled
            .get(name)
            .is_some_and(|retry| retry.is_busy || retry.is_queued)
        {
            return;
        }
        // First of all; but a volume that has the name since is not held up by what cannot be undone now.
        if self.compensate(name) {
            return;
        }
        let Some(seen) = self.index.observe(name) else {
            self.leave(name);
            return;
        };
        let Some(driver) = self.index.driver(name).cloned() else {
            return;
        };
        let decision = self.decide(name, &seen);
        let Some(step) = decision.step.clone() else {
            self.end_pass(name, &driver, seen, &decision);
            return;
        };
        if step == Step::Connect {
            self.park(name, &driver, seen, &decision);
            return;
        }
        self.begin_or_queue(name, &driver, seen, Task::Step(step));
    }

    /// Begins to undo what is left at the backend without a record. False if there is nothing, or it cannot be done now.
    pub(super) fn compensate(&mut self, name: &Name) -> bool {
        let Some(retry) = self.unsettled.get(name) else {
            return false;
        };
        let Some(compensation) = retry.compensations.first().cloned() else {
            return false;
        };
        if retry.resting().contains(&Target::Orphaned) {
            return false;
        }
        let Ok(driver) = volume::driver(&compensation.volume).parse::<Name>() else {
            return false;
        };
        if !self.plugins.contains_key(&driver) {
            self.configure(&driver);
        }
        let known = self.plugins.get_mut(&driver).map(PluginState::known);
        if !matches!(known, Some(Plugin::Offers(_))) {
            if let Some(plugin_state) = self.plugins.get_mut(&driver) {
                plugin_state.parked.insert(name.clone());
            }
            self.connect(&driver);
            return false;
        }
        let seen = VolumeSnapshot {
            volume: compensation.volume.clone(),
            revision: Revision::ABSENT,
            publications: Default::default(),
            revisions: Default::default(),
            unreadable: Default::default(),
            nodes: Default::default(),
        };
        self.begin_or_queue(name, &driver, seen, Task::Compensate(Box::new(compensation)));
        true
    }

    pub(super) fn begin_or_queue(&mut self, name: &Name, driver: &Name, seen: VolumeSnapshot, task: Task) {
        let Some(plugin_state) = self.plugins.get_mut(driver) else {
            return;
        };
        let retry = self.unsettled.entry(name.clone()).or_default();
        // In turn. Only the volume whose step just ended goes on before those that wait: what is begun is finished.
        if !plugin_state.has_room() {
            retry.is_queued = true;
            plugin_state.queue.push_back(name.clone());
            return;
        }
        plugin_state.running += 1;
        retry.is_busy = true;
        match &task {
            Task::Step(step) => debug!(volume = %name, "{step}"),
            Task::SetConditions(_) => {}
            Task::Compensate(_) => info!(volume = %name, "a result whose record is gone is undone"),
        }
        let job = Job {
            name: name.clone(),
            driver: driver.clone(),
            seen,
            task,
            session: plugin_state.session(),
            permits: plugin_state.permits.clone(),
        };
        let acting = act(self.env.clone(), job);
        self.under_way
            .push(acting.map(|ended| Event::Ended(Box::new(ended))).boxed());
    }

    /// Begins what waited for its turn.
    pub(super) fn serve_queue(&mut self, driver: &Name) {
        while let Some(plugin_state) = self.plugins.get_mut(driver)
            && plugin_state.has_room()
            && let Some(name) = plugin_state.queue.pop_front()
        {
            if let Some(retry) = self.unsettled.get_mut(&name) {
                retry.is_queued = false;
            }
            self.advance(&name);
        }
    }

    /// It waits until its plugin is ready.
    pub(super) fn park(&mut self, name: &Name, driver: &Name, seen: VolumeSnapshot, decision: &Decision) {
        if let Some(plugin_state) = self.plugins.get_mut(driver) {
            plugin_state.parked.insert(name.clone());
        }
        self.connect(driver);
        self.end_pass(name, driver, seen, decision);
    }

    /// Has somebody wait for the plugin, unless somebody does.
    pub(super) fn connect(&mut self, driver: &Name) {
        let Some(plugin_state) = self.plugins.get_mut(driver) else {
            return;
        };
        let Some(plugin) = plugin_state.plugin().filter(|_| !plugin_state.connecting) else {
            return;
        };
        plugin_state.connecting = true;
        let (driver, generation) = (driver.clone(), plugin_state.generation);
        let again = plugin_state.not_ready.is_some();
        let connecting = async move {
            if again {
                tokio::time::sleep(ASK_AGAIN).await;
            }
            // It answers from memory where it was asked just now, so that asking often is no load (INV-9).
            Event::Connected(driver, generation, plugin.session().await)
        };
        self.within_window(connecting.boxed());
    }

    /// What talks to a plugin ends with the term (INV-3).
    pub(super) fn within_window(&self, future: BoxFuture<'static, Event>) {
        let window = self.env.fence.window().clone();
        let guarded = async move {
            tokio::select! {
                biased;
                () = window.closed() => Event::Over,
                event = future => event,
            }
        };
        self.under_way.push(guarded.boxed());
    }

    /// Nothing more can be done now: the conditions say so, and what failed rests.
    pub(super) fn end_pass(&mut self, name: &Name, driver: &Name, seen: VolumeSnapshot, decision: &Decision) {
        let unready = self.plugins.get(driver).and_then(PluginState::blocked);
        let retry = self.unsettled.get(name);
        let changes = condition_changes(retry, &seen, decision, unready.as_ref());
        let written = retry.is_some_and(|retry| retry.conditions_written);
        if !changes.is_empty() && !written {
            self.unsettled.entry(name.clone()).or_default().conditions_written = true;
            self.begin_or_queue(name, driver, seen, Task::SetConditions(changes));
            return;
        }
        // What is wanted and impossible may become possible with the plugin's next session.
        let is_waiting = decision.waits.iter().any(|wait| wait.is_fault);
        if is_waiting || self.unsettled.contains_key(name) {
            self.unsettled.entry(name.clone()).or_default().is_waiting = is_waiting;
        }
        self.rest(name);
    }

    pub(super) fn rest(&mut self, name: &Name) {
        let Some(retry) = self.unsettled.get_mut(name) else {
            return;
        };
        // It rests already; it was only looked at.
        if retry.due.is_some() {
            return;
        }
        // What was mended, or is no longer as it was found.
        let resting = retry.resting();
        retry
            .drift
            .lost
            .retain(|node| resting.contains(&Target::Node(node.clone())));
        retry
            .drift
            .strays
            .retain(|id| resting.contains(&Target::Stray(id.clone())));
        if let Some(delay) = retry.end_pass(random()) {
            let at = Instant::now() + delay;
            retry.due = Some(at);
            self.due.insert((at, name.clone()));
        }
        if retry.is_closed() {
            self.unsettled.remove(name);
        }
    }

    /// There is no record, or none that can be read.
    pub(super) fn leave(&mut self, name: &Name) {
        let Some(retry) = self.unsettled.get(name) else {
            return;
        };
        if !retry.compensations.is_empty() {
            self.rest(name);
            return;
        }
        if let Some(at) = retry.due {
            self.due.remove(&(at, name.clone()));
        }
        self.unsettled.remove(name);
    }
}

/// From 0 to 1, other every time. A random UUID is at hand, a generator is not.
fn random() -> f64 {
    let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
    // The first 48 bits are random in a UUID of version 4; 32 of them fill an f64 without rounding.
    let bits = u32::try_from(high >> 32).unwrap_or(u32::MAX);
    f64::from(bits) / f64::from(u32::MAX)
}
