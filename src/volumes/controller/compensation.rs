//! What calls have done for records that were gone by then: who undoes it.

use super::TermState;
use crate::store::Name;
use crate::store::object::volume;
use crate::volumes::index::VolumeSnapshot;
use crate::volumes::operation::{Action, Compensation, Held, PublishedTo};
use crate::volumes::plan::{Plugin, Target};
use crate::volumes::retry_state::RetryState;

impl TermState {
    /// What an earlier leader has begun to undo, and had no answer about, is undone by this one (INV-3). A volume that was taken in since
    /// has a record that says so itself.
    pub(super) fn take_over_undoing(&mut self) {
        let left = self.index.undoing().flat_map(Compensation::left_by);
        let forgotten = left.filter(|(_, one)| self.index.leading_to(&one.volume).is_none());
        let forgotten: Vec<_> = forgotten.collect();
        for (name, compensation) in forgotten {
            self.unsettled.state(&name).compensations.push(compensation);
            self.woken.push_back(name);
        }
    }

    /// Results of volumes that were taken back, or in, under other names go there: the records that decide about them wake those names.
    fn hand_over(&mut self, name: &Name) {
        let has_any = |state: &RetryState| !state.compensations.is_empty();
        if !self.unsettled.get(name).is_some_and(has_any) {
            return;
        }
        let all = std::mem::take(&mut self.unsettled.state(name).compensations);
        for compensation in all {
            let recorded = self.index.leading_to(&compensation.volume);
            let recorded = recorded.filter(|recorded| recorded != name);
            self.woken.extend(recorded.clone());
            let state = self.unsettled.state(recorded.as_ref().unwrap_or(name));
            state.compensations.push(compensation);
        }
    }

    /// The next result that no record holds, first those that only have to be recorded: they wait for no plugin and for no other
    /// result. Results that a record holds by now are forgotten, and those whose record cannot be read stay (INV-12).
    fn next_compensation(&mut self, name: &Name) -> Option<Compensation> {
        let state = self.unsettled.get(name);
        let state = state.filter(|state| !state.compensations.is_empty())?;
        let resting = state.resting();
        let compensations = &mut self.unsettled.state(name).compensations;
        compensations.retain(|one| one.held(&self.index, name) != Held::Recorded);
        let rests = |one: &Compensation| match one.to_record(&self.index) {
            Some(made) => resting.contains(&Target::Stray(made.csi_node_id.clone())),
            None => resting.contains(&Target::Orphaned),
        };
        let candidates = compensations.iter().enumerate();
        let candidates =
            candidates.filter(|(_, one)| !rests(one) && one.held(&self.index, name) == Held::Gone);
        let (next, _) = candidates.min_by_key(|(_, one)| one.to_record(&self.index).is_none())?;
        compensations.swap(0, next);
        compensations.first().cloned()
    }

    /// Whether the volume was published for a publication that is gone, and its record does not say so yet. Until it does, nothing is
    /// done about the volume: it would be deleted while it is published (INV-6).
    pub(super) fn is_unrecorded(&self, name: &Name) -> bool {
        let state = self.unsettled.get(name);
        let mut compensations = state.into_iter().flat_map(|state| &state.compensations);
        compensations
            .any(|one| one.to_record(&self.index).is_some() && one.held(&self.index, name) == Held::Gone)
    }

    /// Begins to undo what the volume left at the backend without a record. False if there is nothing, or it cannot be done
    /// now.
    pub(super) fn begin_compensation(&mut self, name: &Name) -> bool {
        self.hand_over(name);
        let Some(compensation) = self.next_compensation(name) else {
            return false;
        };
        match compensation.to_record(&self.index).cloned() {
            Some(made) => self.begin_recording(name, made),
            None => self.begin_undoing(name, compensation),
        }
    }

    /// Begins to record in the volume that a publication is undone: whatever becomes of the call and of this leader, the volume is
    /// published to that node id again only after it (INV-3, INV-6).
    fn begin_recording(&mut self, name: &Name, made: PublishedTo) -> bool {
        let snapshot = self.index.observe(name);
        let driver = self.index.driver(name).cloned();
        let (Some(snapshot), Some(driver)) = (snapshot, driver) else {
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
            // What was made at one backend is not undone at another. Its own may answer in the next session.
            Plugin::OtherBackend => {
                self.await_session(name, &driver);
                return false;
            }
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
