//! INV-2: a process believes that it leads only within its window.

use super::excuses::may_be_late;
use super::inv_1::{deletes_candidate, fence};
use super::past::Past;
use super::{Rule, Violation};

/// Fenced transactions that a process sent although it could not believe that it leads.
pub fn writes_outside_the_window(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, at, call, _) in past.replicas_writes() {
        // A candidate that gives up deletes its key by the same compare.
        let Some((key, _)) = fence(past, call).filter(|_| !deletes_candidate(past, call)) else {
            continue;
        };
        let Err(outside) = past.terms.judge(past, &call.by, at) else {
            continue;
        };
        if outside
            .since()
            .is_some_and(|since| may_be_late(past, Some(&call.by), since, at))
        {
            continue;
        }
        let sentence = format!(
            "{} sent a write of the leader ({}) while {}",
            call.by,
            key.escape_ascii(),
            outside.words()
        );
        found.push(Violation::new(
            Rule::Inv(2),
            sentence,
            outside.event().into_iter().chain([index]),
        ));
    }
    found
}
