//! One volume: its next operation, or why it has none.

use futures::FutureExt;
use tracing::{debug, info};

use super::TermState;
use crate::mutation::{self, Guard};
use crate::proto::Volume;
use crate::span;
use crate::store::Name;
use crate::store::object::volume::made_at;
use crate::volumes::conditions::{condition_changes, new_waits};
use crate::volumes::index::VolumeSnapshot;
use crate::volumes::lanes::Lane;
use crate::volumes::operation::{Action, Completion, Operation};
use crate::volumes::plan::{Decision, Observed, Plugin, Step, plan};
use crate::volumes::record::Conditions;
use crate::volumes::retry_state::{Queued, RetryState};

impl TermState {
    /// Plans a volume and begins its next operation, or queues it, or ends its pass.
    pub(super) fn advance(&mut self, name: &Name) {
        let is_running = self.unsettled.get(name).is_some_and(RetryState::is_running);
        if is_running && !mutation::without(Guard::InFlight) {
            return;
        }
        self.leave_queue(name);
        // Whether it waits for a session, and of which plugin, is decided now.
        for plugin in self.plugins.values_mut() {
            plugin.parked.remove(name);
        }
        // Compensation goes first. Where it cannot be done now, it does not hold up another volume of the same name.
        if self.begin_compensation(name) {
            return;
        }
        let Some(snapshot) = self.index.observe(name) else {
            self.on_no_record(name);
            return;
        };
        let Some(driver) = self.index.driver(name).cloned() else {
            return;
        };
        if self.is_held_back(name, &snapshot.volume) {
            debug!(volume = %name, "waits for a call under a former name of the volume");
            return;
        }
        let mut decision = self.decide(name, &driver, &snapshot);
        if self.is_unrecorded(name) {
            decision.step = decision.step.filter(|step| *step == Step::Connect);
        }
        match decision.step.clone() {
            Some(Step::Connect) => {
                self.park(name, &driver);
                self.end_pass(name, &driver, snapshot, &decision);
            }
            Some(step) => _ = self.begin_or_queue(name, &driver, snapshot, Action::Step(step)),
            None => self.end_pass(name, &driver, snapshot, &decision),
        }
    }

    fn decide(&mut self, name: &Name, driver: &Name, snapshot: &VolumeSnapshot) -> Decision {
        let plugin = self.observe_plugin(driver, &snapshot.volume);
        let state = self.unsettled.get(name);
        let resting = state.map(RetryState::resting).unwrap_or_default();
        let lost = state.map(RetryState::to_mend).unwrap_or_default();
        plan(&Observed {
            volume: &snapshot.volume,
            publications: &snapshot.publications,
            unreadable: &snapshot.unreadable,
            twin: snapshot.twin.as_ref(),
            namesake: snapshot.namesake.as_ref(),
            nodes: &snapshot.nodes,
            removed: &snapshot.removed,
            plugin,
            resting: &resting,
            lost: &lost,
        })
    }

    pub(super) fn observe_plugin(&mut self, driver: &Name, volume: &Volume) -> Plugin {
        if !self.plugins.contains_key(driver) {
            self.configure(driver);
        }
        let made_at = made_at(volume);
        let has_created = self.index.has_created(driver);
        let plugin = self.plugins.get_mut(driver);
        plugin.map_or(Plugin::Missing, |plugin| plugin.observe(made_at, has_created))
    }

    /// Whether a call for the volume is under way under another name, which was forgotten by force. Its end plans the volume again.
    pub(super) fn is_held_back(&mut self, name: &Name, volume: &Volume) -> bool {
        self.in_flight.hold_back(name, volume, &self.index)
    }

    /// True if the operation has begun.
    pub(super) fn begin_or_queue(
        &mut self,
        name: &Name,
        driver: &Name,
        snapshot: VolumeSnapshot,
        action: Action,
    ) -> bool {
        let (lane, node) = Lane::of(&action);
        // The plugin may be at work on the volume. The end of that rest plans it again.
        if lane != Lane::Record && self.unsettled.is_unanswered(name) {
            return false;
        }
        let Some(plugin) = self.plugins.get_mut(driver) else {
            return false;
        };
        let state = self.unsettled.state(name);
        // First come, first served in each lane; but a volume whose operation has just ended goes on before those that wait, so
        // that what was begun is completed.
        let left = state.take_left(driver);
        if let Err(place) = plugin.lanes.begin_or_queue(name, lane, node, left) {
            let driver = driver.clone();
            state.queue(Queued { driver, place });
            return false;
        }
        state.begin();
        match &action {
            Action::Step(step) => debug!(volume = %name, "next step: {step}"),
            Action::SetConditions(_) | Action::RecordStray(_) => {}
            Action::Compensate(_) => info!(volume = %name, "undoing a result whose record is gone"),
        }
        if lane != Lane::Record {
            self.in_flight.begin(name, &snapshot.volume);
        }
        let operation = Operation {
            volume: name.clone(),
            driver: driver.clone(),
            snapshot,
            action,
            session: plugin.session(),
            plaintext_secrets: plugin.allows_plaintext_secrets(),
            checks_capacity: plugin.checks_capacity(),
            permits: plugin.lanes.permits(lane),
        };
        let step = span::step("volumes", &operation.action, format_args!("volume/{name}"));
        let running = span::within(step, operation.run(self.env.clone()), Completion::outcome);
        self.operations.push(running.boxed());
        true
    }

    /// Plans queued volumes while their plugin has room. `node` is the node id of the operation that has just ended.
    pub(super) fn serve_queue(&mut self, driver: &Name, node: Option<&str>) {
        while let Some(plugin) = self.plugins.get_mut(driver)
            && let Some(name) = plugin.lanes.next(node)
        {
            self.advance(&name);
        }
    }

    /// Before a volume is planned, it leaves the queue: no volume is in one while it has an operation, or nothing to do (INV-6).
    fn leave_queue(&mut self, name: &Name) {
        if self.unsettled.get(name).is_some()
            && let Some(Queued { driver, place }) = self.unsettled.state(name).unqueue()
            && let Some(plugin) = self.plugins.get_mut(&driver)
        {
            plugin.lanes.leave(&place);
        }
    }

    /// Has a volume wait for a session of its plugin.
    pub(super) fn park(&mut self, name: &Name, driver: &Name) {
        self.await_session(name, driver);
        self.connect(driver);
    }

    /// The same, where the present session goes on: the volume waits for the one after it.
    pub(super) fn await_session(&mut self, name: &Name, driver: &Name) {
        if let Some(plugin) = self.plugins.get_mut(driver) {
            plugin.parked.insert(name.clone());
        }
    }

    /// No step can be taken now: writes the conditions, then ends the pass.
    fn end_pass(&mut self, name: &Name, driver: &Name, snapshot: VolumeSnapshot, decision: &Decision) {
        let state = self.unsettled.get(name);
        let changes = condition_changes(state, &snapshot, decision);
        let are_written = state.is_some_and(|state| state.conditions_written);
        if changes != Conditions::default() && !are_written {
            let waits = new_waits(&changes, decision);
            // A volume that is queued writes them when its turn comes.
            let has_begun = self.begin_or_queue(name, driver, snapshot, Action::SetConditions(changes));
            self.unsettled.state(name).conditions_written = has_begun;
            for wait in waits.into_iter().filter(|_| has_begun) {
                self.report_wait(name, wait);
            }
            return;
        }
        let waits_for_offer = decision.waits.iter().any(|wait| wait.reason.is_fault());
        if waits_for_offer || self.unsettled.get(name).is_some() {
            self.unsettled.state(name).waits_for_offer = waits_for_offer;
        }
        self.unsettled.end_pass(name);
    }

    /// The volume has no record, or none that can be read.
    fn on_no_record(&mut self, name: &Name) {
        let has_compensations = |state: &RetryState| !state.compensations.is_empty();
        match self.unsettled.get(name).is_some_and(has_compensations) {
            true => self.unsettled.end_pass(name),
            false => self.unsettled.forget(name),
        }
    }
}
