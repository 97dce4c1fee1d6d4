//! What calls have done for records that were gone by then: who undoes it.

use super::TermState;
use crate::store::Name;
use crate::store::object::{Object, volume};
use crate::volumes::index::VolumeSnapshot;
use crate::volumes::operation::{Action, Compensation, Held};
use crate::volumes::plan::{Plugin, Target};
use crate::volumes::retry_state::RetryState;

impl TermState {
    /// The first result of a call that no record holds. Results that a record holds by now are forgotten, and those whose
    /// record cannot be read stay (INV-12).
    fn next_compensation(&mut self, name: &Name) -> Option<Compensation> {
        let has_any = |state: &RetryState| !state.compensations.is_empty();
        self.unsettled.get(name).filter(|state| has_any(state))?;
        let compensations = &mut self.unsettled.state(name).compensations;
        compensations.retain(|one| one.held(&self.index, name) != Held::Recorded);
        let next = compensations
            .iter()
            .position(|one| one.held(&self.index, name) == Held::Gone)?;
        compensations.swap(0, next);
        compensations.first().cloned()
    }

    /// Begins to undo what the volume left at the backend without a record. False if there is nothing, or it cannot be done
    /// now.
    pub(super) fn begin_compensation(&mut self, name: &Name) -> bool {
        let Some(compensation) = self.next_compensation(name) else {
            return false;
        };
        let state = self.unsettled.get(name);
        if state.is_none_or(|state| state.resting().contains(&Target::Orphaned)) {
            return false;
        }
        match self.index.with_uid(compensation.volume.uid()) {
            Some(recorded) if compensation.publication.is_some() => {
                self.begin_recording(name, &recorded, compensation)
            }
            _ => self.begin_undoing(name, compensation),
        }
    }

    /// Begins to record that a publication is undone, in the record of its volume, which is `recorded` by now: whatever becomes of
    /// the call and of this leader, the volume is published to that node id again only after it (INV-3, INV-6).
    fn begin_recording(&mut self, name: &Name, recorded: &Name, compensation: Compensation) -> bool {
        if recorded != name {
            self.unsettled.state(name).compensations.remove(0);
            self.unsettled.state(recorded).compensations.push(compensation);
            self.woken.push_back(recorded.clone());
            return self.begin_compensation(name);
        }
        let snapshot = self.index.observe(name);
        let driver = self.index.driver(name).cloned();
        let (Some(made), Some(snapshot), Some(driver)) = (compensation.publication, snapshot, driver) else {
            return false;
        };
        // It makes no call: it does not wait for the plugin.
        self.observe_plugin(&driver, &snapshot.volume);
        self.begin_or_queue(name, &driver, snapshot, Action::RecordStray(made));
        true
    }

    /// Begins the call that undoes a result.
    fn begin_undoing(&mut self, name: &Name, compensation: Compensation) -> bool {
        let Ok(driver) = volume::driver(&compensation.volume).parse::<Name>() else {
            return false;
        };
        if self.is_held_back(name, &compensation.volume) {
            return false;
        }
        match self.observe_plugin(&driver, &compensation.volume) {
            Plugin::Offers(_) => {}
            // What was made at one backend is not undone at another.
            Plugin::OtherBackend => return false,
            Plugin::Missing | Plugin::Unknown => {
                self.park(name, &driver);
                return false;
            }
        }
        let snapshot = VolumeSnapshot {
            volume: compensation.volume.clone(),
            ..VolumeSnapshot::default()
        };
        let action = Action::Compensate(Box::new(compensation));
        self.begin_or_queue(name, &driver, snapshot, action);
        true
    }
}
