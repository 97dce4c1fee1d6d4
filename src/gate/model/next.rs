//! What can happen next.

use super::replica::{Lead, LeadStep, Phase, Process};
use super::store::Store;
use super::{Action, Gate, Guard, State};
use crate::gate::plan::Plan;

impl Gate {
    /// What happens sooner or later, if nothing goes wrong.
    pub(super) fn progress(&self, state: &State) -> Vec<Action> {
        let store = &state.store;
        let mut actions = Vec::new();
        for (at, replica) in state.replicas.iter().enumerate() {
            match &replica.process {
                None if replica.stopped => {}
                None => actions.push(Action::Start(at)),
                Some(process) => self.progress_of(process, at, store, &mut actions),
            }
            if !replica.stopped && !self.parts[at].stays {
                actions.push(Action::Stop(at));
            }
            let stands = |process: &Process| process.registered && !process.cut;
            if let Some(registration) = store.registrations.get(&at)
                && !(registration.own && replica.process.as_ref().is_some_and(stands))
            {
                actions.push(Action::ExpireRegistration(at));
            }
        }
        if let Some((leader, term)) = store.leader {
            let process = state.replicas[leader].process.as_ref();
            let lead = process.and_then(|process| process.lead.as_ref());
            let leads = lead.is_some_and(|lead| lead.open && lead.term == term);
            if !leads || self.lacks(Guard::Margin) {
                actions.push(Action::ExpireLeader);
            }
        }
        actions
    }

    /// The same, of one process.
    fn progress_of(&self, process: &Process, at: usize, store: &Store, actions: &mut Vec<Action>) {
        let registration = store.registrations.get(&at);
        if !process.registered && !process.cut && registration.is_none_or(|registration| registration.own) {
            actions.push(Action::Register(at));
        }
        let judged = process.judged.as_ref().map(|judged| judged.written);
        let may_judge = process.registered || self.lacks(Guard::RegistrationFirst);
        if may_judge && judged != Some(store.status_written()) {
            actions.push(Action::Judge(at));
        }
        let Some(lead) = &process.lead else {
            let may_stand = process.registered && !process.cut && store.leader.is_none();
            if may_stand && !(self.decisions.yields)(&self.releases(store, at)) {
                actions.push(Action::Elect(at));
            }
            return;
        };
        if let Some(step) = self.step_of(lead, at, store) {
            actions.push(Action::Lead(at, step));
        }
        if !lead.open {
            actions.push(Action::EndTerm(at));
        } else if (self.decisions.yields)(&self.releases(store, at)) {
            actions.push(Action::Yield(at));
        }
    }

    /// The next step of a leader. After the end of its window, a write may still be under way.
    fn step_of(&self, lead: &Lead, at: usize, store: &Store) -> Option<LeadStep> {
        let reconciles = lead.open || self.lacks(Guard::LeadingWindow);
        match &lead.phase {
            Phase::Elected => lead.open.then_some(LeadStep::ReadsStatus),
            Phase::Planned(read) => match self.plan(read, at) {
                Plan::Create | Plan::Leave => Some(LeadStep::Begins),
                Plan::Work(_) => Some(LeadStep::SetsWorking),
                Plan::CreateAgain | Plan::Restrict(_) => {
                    let releases = self.releases(store, at);
                    let is_free = (self.decisions.may_restrict)(&releases, self.bundle(at)).is_ok();
                    let is_changed = read.written() != store.status_written();
                    let step = match is_free {
                        true => Some(LeadStep::FindsNoneInTheWay),
                        false => is_changed.then_some(LeadStep::SeesAnotherStatus),
                    };
                    step.filter(|_| lead.open)
                }
            },
            Phase::Free(..) => Some(LeadStep::Restricts),
            Phase::Allowed(_) => reconciles.then_some(LeadStep::BeginsToReconcile),
            Phase::Reconciling(_) => reconciles.then_some(LeadStep::HasReconciled),
            Phase::Reconciled(_) => Some(LeadStep::WritesDone),
            Phase::Done(written) => {
                let is_changed = *written != store.status_written();
                (lead.open && is_changed).then_some(LeadStep::SeesAnotherStatus)
            }
        }
    }

    /// What may go wrong.
    pub(super) fn may_go_wrong(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for (at, replica) in state.replicas.iter().enumerate() {
            let Some(process) = &replica.process else { continue };
            actions.push(Action::Crash(at));
            if process.registered || process.lead.as_ref().is_some_and(|lead| lead.open) {
                actions.push(Action::Pause(at));
            }
        }
        if self.is_meddled_with && state.store.status.is_some() {
            actions.extend([Action::DeleteStatus, Action::GarbleStatus]);
        }
        match state.backup {
            Some(_) => actions.push(Action::Restore),
            None if self.is_restored => actions.push(Action::BackUp),
            None => {}
        }
        actions
    }
}
