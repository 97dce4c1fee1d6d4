//! INV-11: nothing that a process remembers outlives a restore of etcd.

use super::past::Past;
use super::records::is_write;
use super::{Rule, Violation};
use crate::history::{At, Process, Revision, Signal};

/// How long a replica may take to end after the first answer that shows a restore, in milliseconds.
const ENDING: u64 = 5_000;

/// Replicas that had an answer below the highest revision that they had seen, and that wrote or ran on.
pub fn lives_across_restores(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (process, span) in past.lives.iter().filter(|(process, _)| past.is_replica(process)) {
        let Some((shown, restored)) = first_answer_below(past, process) else {
            continue;
        };
        let end = restored.plus_millis(ENDING);
        let written = past
            .store_calls()
            .find(|(_, at, call)| call.by == **process && *at > end && call.then.iter().any(is_write));
        let was_stopped = span.signals.iter().any(|(at, signal, _)| {
            *signal == Signal::Stop && *at <= end && *at >= restored.minus_millis(ENDING)
        });
        if was_stopped {
            continue;
        }
        if let Some((index, _, _)) = written {
            let sentence =
                format!("{process} wrote on after an answer of a restored store, below what it had seen");
            found.push(Violation::new(Rule::Inv(11), sentence, [shown, index]));
            continue;
        }
        let last = past.history.events.last().map_or(restored, |event| event.at);
        if span.exited.is_none_or(|(at, _, _)| at > end) && last > end {
            let sentence =
                format!("{process} ran on after an answer of a restored store, below what it had seen");
            let exit = span.exited.map(|(_, _, index)| index);
            found.push(Violation::new(
                Rule::Inv(11),
                sentence,
                exit.into_iter().chain([shown]),
            ));
        }
    }
    found
}

/// The first answer to this process that is of a restored store and below the highest revision that it had seen.
fn first_answer_below(past: &Past<'_>, process: &Process) -> Option<(usize, At)> {
    let mut highest = Revision::default();
    let answers = past.store_calls().filter(|(_, _, call)| call.by == *process);
    let mut answers: Vec<_> = answers
        .filter_map(|(index, _, call)| Some((call.answered?, index, call.outcome.done()?.revision)))
        .collect();
    answers.sort_unstable_by_key(|(answered, _, _)| *answered);
    for (answered, index, revision) in answers {
        if revision.epoch > highest.epoch && revision.revision < highest.revision {
            return Some((index, answered));
        }
        highest = highest.max(revision);
    }
    None
}
