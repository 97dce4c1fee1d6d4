//! Finds where a history breaks an invariant of ARCHITECTURE.md. Pure.
//!
//! What a history does not hold is no violation: a call that was not recorded was not made, and an instant that is not exact
//! counts in favour of the product, by the slack of [`Settings`](crate::history::Settings). What ARCHITECTURE.md says is not
//! guaranteed is none either.

mod excuses;
mod inv_1;
mod inv_10;
mod inv_11;
mod inv_12;
mod inv_13;
mod inv_2;
mod inv_3;
mod inv_4;
mod inv_5;
mod inv_6;
mod inv_7;
mod inv_8;
mod inv_9;
mod judged;
mod past;
mod publications;
mod records;
mod settled;
mod terms;
#[cfg(test)]
mod tests;
mod violation;

pub use judged::{Calls, Judged};
pub use violation::{Rule, Violation};

use crate::history::History;
use past::Past;
use quorate::store::keys::BadPrefix;

/// One check: what it demands, and the function that finds where that is not so.
type Check = (Rule, &'static str, fn(&Past<'_>) -> Vec<Violation>);

/// Every check. Each has a history in the tests that it alone fails on.
static CHECKS: [Check; 31] = [
    (
        Rule::Inv(1),
        "replicas write unfenced only what they own",
        inv_1::unfenced_writes,
    ),
    (
        Rule::Inv(1),
        "a fenced write is of the present leader",
        inv_1::stale_writes,
    ),
    (
        Rule::Inv(2),
        "a leader writes within its window",
        inv_2::writes_outside_the_window,
    ),
    (
        Rule::Inv(3),
        "calls start within the window",
        inv_3::calls_outside_the_window,
    ),
    (
        Rule::Inv(3),
        "an intent stands before its call",
        inv_3::calls_without_intent,
    ),
    (
        Rule::Inv(4),
        "no replica serves that the status excludes",
        inv_4::excluded_and_ready,
    ),
    (
        Rule::Inv(4),
        "a restriction proves that no node changed",
        inv_4::unproven_restrictions,
    ),
    (
        Rule::Inv(4),
        "a restriction excludes no registered release",
        inv_4::restricted_too_early,
    ),
    (
        Rule::Inv(4),
        "the status is restricted before the objects change",
        inv_4::reconciled_too_early,
    ),
    (
        Rule::Inv(5),
        "voters are added as learners",
        inv_5::added_as_voter,
    ),
    (
        Rule::Inv(5),
        "members change one at a time",
        inv_5::overlapping_changes,
    ),
    (
        Rule::Inv(5),
        "only recorded members are removed",
        inv_5::removed_without_record,
    ),
    (
        Rule::Inv(5),
        "a quorum is healthy after a change",
        inv_5::changed_without_quorum,
    ),
    (
        Rule::Inv(5),
        "a change is decided with a healthy quorum after it",
        inv_5::decided_without_quorum,
    ),
    (
        Rule::Inv(6),
        "one call at a time for a volume",
        inv_6::overlapping_calls,
    ),
    (
        Rule::Inv(6),
        "no call carries an empty node id",
        inv_6::empty_node_ids,
    ),
    (
        Rule::Inv(6),
        "no volume is deleted while published",
        inv_6::deleted_while_published,
    ),
    (
        Rule::Inv(6),
        "no backend volume is forgotten",
        inv_6::forgotten_volumes,
    ),
    (
        Rule::Inv(6),
        "nothing is detached without a word",
        publications::detached_without_word,
    ),
    (
        Rule::Inv(6),
        "one writer has a volume of one writer",
        publications::several_writers,
    ),
    (
        Rule::Inv(7),
        "services are deleted without tasks",
        inv_7::services_with_tasks,
    ),
    (
        Rule::Inv(7),
        "networks are deleted marked and unused",
        inv_7::networks_in_use,
    ),
    (
        Rule::Inv(8),
        "one bad object delays only itself",
        inv_8::delayed_services,
    ),
    (Rule::Inv(9), "no retry is hot", inv_9::hot_retries),
    (
        Rule::Inv(10),
        "nothing happens after the lease is revoked",
        inv_10::writes_after_revocation,
    ),
    (
        Rule::Inv(10),
        "a replica that is asked to ends with exit code 0",
        inv_10::unclean_exits,
    ),
    (
        Rule::Inv(11),
        "no replica goes on over a restored store",
        inv_11::lives_across_restores,
    ),
    (
        Rule::Inv(12),
        "what ends has its record",
        inv_12::ends_without_record,
    ),
    (
        Rule::Inv(13),
        "a certificate says the observed role",
        inv_13::wrong_certificates,
    ),
    (Rule::Settled, "everything settles as desired", settled::unsettled),
    (
        Rule::Judged,
        "every change of members was seen",
        judged::unseen_changes,
    ),
];

/// Everything that is wrong with a history, in the order of the invariants.
///
/// # Errors
/// [`BadPrefix`] if the run names no prefix.
pub fn check(history: &History) -> Result<Vec<Violation>, BadPrefix> {
    let past = Past::of(history)?;
    let found = CHECKS.iter().flat_map(|(_, name, check)| {
        check(&past)
            .into_iter()
            .map(move |violation| violation.found_by(name))
    });
    Ok(found.collect())
}

/// How much of a history there was to judge.
///
/// # Errors
/// [`BadPrefix`] if the run names no prefix.
pub fn judged(history: &History) -> Result<Judged, BadPrefix> {
    Ok(Judged::of(&Past::of(history)?))
}

/// The checks by their names, each with its rule.
pub fn names() -> impl Iterator<Item = (Rule, &'static str)> {
    CHECKS.iter().map(|(rule, name, _)| (*rule, *name))
}
