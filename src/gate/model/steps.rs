//! What follows from what happens.

use std::collections::{BTreeMap, BTreeSet};

use super::replica::{Judged, Lead, LeadStep, Phase, Process, Read};
use super::store::{Proof, Refused, Registration, Store, Stored};
use super::{Action, Gate, Guard, State};
use crate::etcd::Revision;
use crate::gate::plan::Plan;

impl Gate {
    /// What the action makes of the state.
    pub(super) fn act(&self, state: &mut State, action: Action) {
        match action {
            Action::Start(at) => state.replicas[at].process = Some(Process::default()),
            Action::Stop(at) => {
                state.stop(at);
                state.replicas[at].stopped = true;
            }
            Action::Register(at) => {
                let (written, own) = (state.store.write(), true);
                state
                    .store
                    .registrations
                    .insert(at, Registration { written, own });
                if let Some(process) = &mut state.replicas[at].process {
                    process.registered = true;
                    if !self.lacks(Guard::RegistrationFirst) {
                        process.judged = None;
                    }
                }
            }
            Action::Judge(at) => {
                let status = state.store.status.as_ref().and_then(Stored::status);
                let admitted = self.admits(status.as_ref(), at);
                let written = state.store.status_written();
                if let Some(process) = &mut state.replicas[at].process {
                    process.judged = Some(Judged { written, admitted });
                }
            }
            Action::Elect(at) => {
                let term = state.store.write();
                state.store.leader = Some((at, term));
                if let Some(process) = &mut state.replicas[at].process {
                    let (open, phase) = (true, Phase::Elected);
                    process.lead = Some(Lead { term, open, phase });
                }
            }
            Action::Lead(at, step) => self.lead(state, at, step),
            Action::Yield(at) => state.end_term(at),
            Action::EndTerm(at) => {
                if let Some(process) = &mut state.replicas[at].process {
                    process.lead = None;
                }
            }
            Action::ExpireRegistration(at) => {
                state.store.write();
                state.store.registrations.remove(&at);
            }
            Action::ExpireLeader => {
                state.store.write();
                state.store.leader = None;
            }
            fault => self.go_wrong(state, fault),
        }
    }

    fn go_wrong(&self, state: &mut State, fault: Action) {
        match fault {
            Action::Crash(at) => {
                state.replicas[at].process = None;
                if let Some(registration) = state.store.registrations.get_mut(&at) {
                    registration.own = false;
                }
            }
            Action::Pause(at) => {
                if let Some(process) = &mut state.replicas[at].process {
                    match self.lacks(Guard::ServingWindow) {
                        true => process.cut = true,
                        false => (process.registered, process.judged) = (false, None),
                    }
                    if let Some(lead) = &mut process.lead {
                        lead.open = false;
                    }
                }
            }
            Action::DeleteStatus => {
                state.store.write();
                state.store.status = None;
            }
            Action::GarbleStatus => {
                state.store.put_status(b"garbage".to_vec());
            }
            Action::Restore => {
                state.store = state.backup.take().unwrap_or_default();
                for registration in state.store.registrations.values_mut() {
                    registration.own = false;
                }
                for replica in &mut state.replicas {
                    replica.process = replica.process.take().map(|process| self.restored(process));
                }
            }
            Action::BackUp => {
                state.backup = Some(state.store.clone());
                return;
            }
            other => unreachable!("{other:?} is no fault"),
        }
        state.faults -= 1;
    }

    /// What a restore makes of a process. What it has sent is lost with its connection.
    fn restored(&self, process: Process) -> Process {
        match self.lacks(Guard::LongRestore) {
            true => Process {
                cut: process.registered,
                lead: None,
                ..process
            },
            false => Process::default(),
        }
    }

    fn lead(&self, state: &mut State, at: usize, step: LeadStep) {
        let Some(process) = &mut state.replicas[at].process else {
            return;
        };
        let Some(lead) = &mut process.lead else { return };
        match self.take(&mut state.store, at, lead, step) {
            Ok(phase) => lead.phase = phase,
            Err(Refused::Stale) => lead.phase = Phase::Elected,
            Err(Refused::LostLeadership) => process.lead = None,
        }
    }

    /// The phase that follows the step of a leader.
    fn take(&self, store: &mut Store, at: usize, lead: &Lead, step: LeadStep) -> Result<Phase, Refused> {
        let leader = Some((at, lead.term)).filter(|_| !self.lacks(Guard::Fence));
        let fenced = |read: &Read| Proof {
            leader,
            status: Some(read.written()),
            nodes: None,
        };
        let written = |stored: Stored| Read {
            status: Some(stored),
            preceded: true,
        };
        let bundle = self.parts[at].bundle;
        Ok(match (step, lead.phase.clone()) {
            (LeadStep::ReadsStatus, _) => Phase::Planned(Read {
                status: store.status.clone(),
                preceded: store.begun || store.status.is_some(),
            }),
            // It writes `status.json`.
            (LeadStep::Begins, Phase::Planned(read)) => {
                store.check(Proof {
                    leader,
                    ..Proof::default()
                })?;
                store.begun = true;
                Phase::Allowed(read)
            }
            (LeadStep::SetsWorking, Phase::Planned(read)) => match self.plan(&read, at) {
                Plan::Work(to) if read.status.as_ref().and_then(Stored::status).as_ref() != Some(&to) => {
                    store.check(fenced(&read))?;
                    Phase::Allowed(written(store.put_status(to.encode())))
                }
                _ => Phase::Allowed(read),
            },
            (LeadStep::FindsNoneInTheWay, Phase::Planned(read)) => Phase::Free(read, store.nodes_written()),
            (LeadStep::Restricts, Phase::Free(read, nodes)) => {
                let nodes = Some(nodes).filter(|_| !self.lacks(Guard::Nodes));
                store.check(Proof {
                    nodes,
                    ..fenced(&read)
                })?;
                match self.plan(&read, at) {
                    Plan::Restrict(to) => Phase::Allowed(written(store.put_status(to.encode()))),
                    _ => Phase::Allowed(read),
                }
            }
            (LeadStep::BeginsToReconcile, Phase::Allowed(read)) => {
                store.begun = true;
                store.reconciled.insert(bundle);
                Phase::Reconciling(read)
            }
            (LeadStep::HasReconciled, Phase::Reconciling(read)) => {
                store.reconciled = BTreeSet::from([bundle]);
                Phase::Reconciled(read)
            }
            (LeadStep::WritesDone, Phase::Reconciled(read)) => match self.plan(&read, at) {
                Plan::Leave => Phase::Done(read.written()),
                _ => {
                    store.check(fenced(&read))?;
                    let before = read.status.as_ref().and_then(Stored::status);
                    let done = self.bundles[bundle].final_status().replacing(before.as_ref());
                    Phase::Done(store.put_status(done.encode()).written)
                }
            },
            (LeadStep::SeesAnotherStatus, _) => Phase::Elected,
            (step, phase) => unreachable!("{step:?} in {phase:?}"),
        })
    }
}

impl State {
    /// The process ends in order: it is unready before its registration goes.
    fn stop(&mut self, at: usize) {
        self.end_term(at);
        if self.replicas[at].process.take().is_none() {
            return;
        }
        if self
            .store
            .registrations
            .get(&at)
            .is_some_and(|registration| registration.own)
        {
            self.store.write();
            self.store.registrations.remove(&at);
        }
    }

    /// The replica gives the lead up, if it has it.
    fn end_term(&mut self, at: usize) {
        let process = self.replicas[at].process.as_mut();
        let Some(lead) = process.and_then(|process| process.lead.take()) else {
            return;
        };
        if self.store.leader == Some((at, lead.term)) {
            self.store.write();
            self.store.leader = None;
        }
    }

    /// Numbers the revisions from one on: only their order counts.
    pub(super) fn number_revisions(&mut self) {
        let mut all = self.store.revisions();
        all.extend(self.backup.iter_mut().flat_map(Store::revisions));
        let processes = self
            .replicas
            .iter_mut()
            .filter_map(|replica| replica.process.as_mut());
        all.extend(processes.flat_map(Process::revisions));
        let order: BTreeSet<Revision> = all.iter().map(|revision| **revision).collect();
        let present = order.into_iter().filter(|revision| *revision != Revision::ABSENT);
        let numbers: BTreeMap<Revision, i64> = present.zip(1..).collect();
        for revision in all {
            if let Some(number) = numbers.get(&*revision) {
                *revision = Revision(*number);
            }
        }
    }
}
