//! INV-10: a replica that stops ends its work first, then its lease, then itself.

use super::excuses::may_be_late;
use super::inv_1::fence;
use super::past::Past;
use super::records::Span;
use super::{Rule, Violation};
use crate::history::{At, LeaseOp, Process, Signal, What};

const RULE: Rule = Rule::Inv(10);

/// How long a replica may take to end: 1 s for its tasks, 1 s for its leases, and exit within 3 s, and as long again on a busy
/// machine.
const STOPPING: u64 = 6_000;

/// A replica that was stopped this long before it was asked to end may still catch up, in milliseconds.
const DISTURBED: u64 = 60_000;

/// How long a replica may take to listen to signals once it was started, in milliseconds.
const STARTING: u64 = 2_000;

/// Writes of a leader after it gave its lease back.
pub fn writes_after_revocation(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (revoked_index, event) in past.events() {
        let What::Lease(lease) = &event.what else { continue };
        let term = past
            .terms
            .all
            .iter()
            .find(|term| term.lease == lease.lease && term.process == Some(&lease.by));
        let (LeaseOp::Revoke, Some(term)) = (lease.op, term) else {
            continue;
        };
        let own = past
            .replicas_writes()
            .filter(|(_, at, call, _)| call.by == lease.by && *at > event.at);
        for (index, at, call, _) in own {
            let is_fenced = fence(past, call)
                .is_some_and(|(key, created)| key == term.key && created == term.created.revision);
            if is_fenced && !may_be_late(past, Some(&call.by), event.at, at) {
                let sentence = format!("{} wrote as the leader after it had revoked its lease", call.by);
                found.push(Violation::new(RULE, sentence, [revoked_index, index]));
            }
        }
        if was_terminated(past, &lease.by, event.at) {
            found.extend(outside_calls(past, &lease.by, event.at, revoked_index));
        }
    }
    found
}

fn was_terminated(past: &Past<'_>, process: &Process, by: At) -> bool {
    past.lives
        .get(process)
        .is_some_and(|span| terminated(span).is_some_and(|(at, _)| at <= by))
}

fn terminated(span: &Span<'_>) -> Option<(At, usize)> {
    let mut signals = span.signals.iter();
    let (at, _, index) = signals.find(|(_, signal, _)| *signal == Signal::Terminate)?;
    Some((*at, *index))
}

/// Calls that etcd cannot fence, of a replica that stops, after its lease was revoked.
fn outside_calls(past: &Past<'_>, process: &Process, revoked: At, shown: usize) -> Vec<Violation> {
    let after = past
        .events()
        .filter(|(_, event)| event.at > revoked.plus_millis(past.history.run.settings.slack));
    let own = after.filter(|(_, event)| match &event.what {
        What::Kubernetes(write) => write.by == *process && !write.dry_run,
        What::Member(call) => call.by.as_ref() == Some(process),
        What::Csi(call) => call.by.as_ref() == Some(process),
        _ => false,
    });
    let sentence = || format!("{process} made a call after it had revoked its lease");
    own.map(|(index, _)| Violation::new(RULE, sentence(), [shown, index]))
        .collect()
}

/// Replicas that got SIGTERM and ended late, or otherwise than with exit code 0. One that was killed or stopped meanwhile, or that
/// nothing answers because of a fault, is out of this.
pub fn unclean_exits(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (process, span) in past.lives.iter().filter(|(process, _)| past.is_replica(process)) {
        let Some((asked, signal)) = terminated(span) else {
            continue;
        };
        let is_disturbed = span.signals.iter().any(|(at, signal, _)| {
            matches!(signal, Signal::Kill | Signal::Stop) && at.plus_millis(DISTURBED) >= asked
        });
        // Before it listens to signals it has done nothing.
        let is_starting = asked < span.started.plus_millis(STARTING);
        if is_disturbed || is_starting {
            continue;
        }
        let last = past.history.events.last().map_or(asked, |event| event.at);
        match span.exited {
            Some((at, code, index)) => {
                let late = at > asked.plus_millis(STOPPING);
                if code != Some(0) || late {
                    let how = code.map_or_else(
                        || "by a signal".to_owned(),
                        |code| format!("with exit code {code}"),
                    );
                    let sentence = format!("{process} was asked to end at {asked} and ended {how} at {at}");
                    found.push(Violation::new(RULE, sentence, [signal, index]));
                }
            }
            None if last > asked.plus_millis(STOPPING) => {
                let sentence = format!("{process} was asked to end at {asked} and never did");
                found.push(Violation::new(RULE, sentence, [signal]));
            }
            None => {}
        }
    }
    found
}
