//! Why a call may be seen late although its process did nothing wrong.

use super::past::Past;
use crate::history::{At, Process, Role, Signal, What};

/// Whether a call of this process that is seen at `at` may have been decided before `since`: the process was stopped
/// between its decision and the sending, or a fault held back what it had sent. A process that goes on has a moment to
/// notice that its window is closed. Where the process is not known, that holds of one of the replicas.
pub fn may_be_late(past: &Past<'_>, process: Option<&Process>, since: At, at: At) -> bool {
    let is_late = |process| was_stopped(past, process, since, at) || was_held(past, process, since, at);
    match process {
        Some(process) => is_late(process),
        None => {
            let mut replicas = past.lives.keys().filter(|process| past.is_replica(process));
            replicas.any(|process| is_late(process))
        }
    }
}

fn was_stopped(past: &Past<'_>, process: &Process, since: At, at: At) -> bool {
    let slack = past.history.run.settings.slack;
    let Some(span) = past.lives.get(process) else {
        return false;
    };
    let mut continued = span
        .signals
        .iter()
        .filter(|(_, signal, _)| *signal == Signal::Continue);
    continued.any(|(when, _, _)| {
        *when >= since.minus_millis(slack) && *when <= at && at <= when.plus_millis(slack)
    })
}

/// TCP sends again ever more slowly, so that what a fault held back may come as long after its end as the fault took.
fn was_held(past: &Past<'_>, process: &Process, since: At, at: At) -> bool {
    let slack = past.history.run.settings.slack;
    past.events().any(|(_, event)| match &event.what {
        What::Fault(fault) if fault.holds_traffic && fault.of.iter().any(|name| name == process.name()) => {
            let took = fault.ended.0.saturating_sub(event.at.0);
            let last = At(fault.ended.0.saturating_add(took)).plus_millis(slack);
            event.at <= at && fault.ended.plus_millis(slack) >= since && at <= last
        }
        _ => false,
    })
}

/// For how long an apiserver that goes on may take in what had come before, in milliseconds.
const CATCHING_UP: u64 = 2_000;

/// Whether the apiserver was stopped until just before this instant: a request that it logs now may have come long before.
pub fn apiserver_was_away(past: &Past<'_>, at: At) -> bool {
    let mut servers = past
        .lives
        .values()
        .filter(|span| matches!(span.role, Role::Apiserver));
    servers.any(|span| {
        let mut signals = span.signals.iter();
        signals.any(|(when, signal, _)| {
            *signal == Signal::Continue && *when <= at && at <= when.plus_millis(CATCHING_UP)
        })
    })
}
