//! Why a call may be seen late although its process did nothing wrong.

use super::past::Past;
use crate::history::{At, Process, Role, Signal};

/// Whether a call of this process that is seen at `at` may have been decided before `since`: the process was stopped
/// between its decision and the sending, or the harness did not run and saw the call late. A process that goes on has a moment to
/// notice that its window is closed. Where the process is not known, that holds of one of the replicas.
///
/// A fault of the network is no excuse. A proxy takes what a process sends at once, whatever becomes of it then, and calls of plugins,
/// of the apiserver and of members meet no fault of the network.
pub fn may_be_late(past: &Past<'_>, process: Option<&Process>, since: At, at: At) -> bool {
    if past.earliest(at) <= since.plus_millis(past.history.run.settings.slack) && past.earliest(at) < at {
        return true;
    }
    match process {
        Some(process) => was_stopped(past, process, since, at),
        None => {
            let mut replicas = past.lives.keys().filter(|process| past.is_replica(process));
            replicas.any(|process| was_stopped(past, process, since, at))
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
