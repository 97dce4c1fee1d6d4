//! INV-5: changes of etcd's members keep a healthy quorum, come one at a time, and remove only recorded members.
//!
//! A change shows in the request of a replica, if that went through its proxy, and in the lists before and after it.

use std::collections::BTreeMap;

use prost::Message;
use quorate::etcd::{KeyRange, MemberId};
use quorate::proto;

use super::past::Past;
use super::{Rule, Violation};
use crate::history::{At, MemberCall, MemberChange, Members, Outcome, What};

const RULE: Rule = Rule::Inv(5);

/// For how long evidence about a member counts, in milliseconds: a member is taken for down only if every look since then
/// found it down, and the next look after the call too.
const EVIDENCE: u64 = 10_000;

fn calls<'h>(past: &Past<'h>) -> Vec<(usize, At, &'h MemberCall)> {
    let calls = past.events().filter_map(|(index, event)| match &event.what {
        What::Member(call) if past.is_replica(&call.by) => Some((index, event.at, call)),
        _ => None,
    });
    calls.collect()
}

fn lists<'h>(past: &Past<'h>) -> Vec<(usize, At, &'h Members)> {
    let lists = past.events().filter_map(|(index, event)| match &event.what {
        What::Members(members) => Some((index, event.at, members)),
        _ => None,
    });
    lists.collect()
}

/// Two lists of one store, one after the other, each with its event.
fn pairs<'h>(past: &Past<'h>) -> Vec<[(usize, At, &'h Members); 2]> {
    let lists = lists(past);
    let pairs = lists.windows(2).map(|pair| [pair[0], pair[1]]);
    pairs
        .filter(|[(_, _, from), (_, _, to)]| from.epoch == to.epoch)
        .collect()
}

/// Members that were added as voters: that were asked for so, or that are voters in a list and neither were in the one before nor have
/// an intent to promote them.
pub fn added_as_voter(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, _, call) in calls(past) {
        if matches!(call.change, MemberChange::Add { learner: false, .. }) {
            let sentence = format!("{} added a member as a voter; only learners are added", call.by);
            found.push(Violation::new(RULE, sentence, [index]));
        }
    }
    for [(before, _, from), (after, at, to)] in pairs(past) {
        let new = to
            .members
            .iter()
            .filter(|member| !member.learner && !from.members.iter().any(|known| known.id == member.id));
        for member in new.filter(|member| !had(past, member.id, at, |record| record.promotion.is_some())) {
            let sentence = format!(
                "member {:x} became a voter without an intent to promote it",
                member.id
            );
            found.push(Violation::new(RULE, sentence, [before, after]));
        }
    }
    found
}

/// Whether a record of the member was ever so, by this instant.
fn had(past: &Past<'_>, id: u64, by: At, wanted: fn(&proto::Member) -> bool) -> bool {
    let versions = past.versions(&KeyRange::key(past.keys.member(MemberId(id))));
    let mut records = versions
        .iter()
        .filter(|(_, version)| version.at <= past.seen_by(by))
        .filter_map(|(_, version)| proto::Member::decode(version.value?).ok());
    records.any(|record| wanted(&record))
}

/// Changes that began while another one of the same process was under way.
pub fn overlapping_changes(past: &Past<'_>) -> Vec<Violation> {
    let calls = calls(past);
    let mut found = Vec::new();
    for (at, (index, begun, call)) in calls.iter().enumerate() {
        let earlier = calls[..at]
            .iter()
            .rev()
            .find(|(_, _, earlier)| earlier.by == call.by);
        let Some((other, _, earlier)) = earlier else {
            continue;
        };
        if earlier.answered.is_some_and(|answered| answered > *begun) {
            let sentence = format!(
                "{} began a change of etcd's members while its last one was under way",
                call.by
            );
            found.push(Violation::new(RULE, sentence, [*other, *index]));
        }
    }
    found
}

/// Removals of members without a record, and members that are gone from the list without an intent to remove them.
pub fn removed_without_record(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, at, call) in calls(past) {
        let MemberChange::Remove(id) = call.change else {
            continue;
        };
        if !is_recorded(past, id, at) {
            let sentence = format!(
                "{} asked etcd to remove member {id:x}, which has no record",
                call.by
            );
            found.push(Violation::new(RULE, sentence, [index]));
        }
    }
    for [(before, _, from), (after, at, to)] in pairs(past) {
        for gone in missing(from, to) {
            if !had(past, gone, at, |record| record.removal.is_some()) {
                let sentence = format!("member {gone:x} is gone from etcd without an intent to remove it");
                found.push(Violation::new(RULE, sentence, [before, after]));
            }
        }
    }
    found
}

/// The members that the second list has no more.
fn missing(from: &Members, to: &Members) -> Vec<u64> {
    let gone = from
        .members
        .iter()
        .filter(|member| !to.members.iter().any(|other| other.id == member.id));
    gone.map(|member| member.id).collect()
}

/// Whether the member had a record by this instant. The watch may bring the end of the record before the call that led to it.
pub fn is_recorded(past: &Past<'_>, id: u64, at: At) -> bool {
    let known = past.versions(&KeyRange::key(past.keys.member(MemberId(id))));
    known
        .iter()
        .any(|(_, version)| version.value.is_some() && version.at <= past.seen_by(at))
}

/// Removals and promotions after which the voters that answer are no majority.
pub fn changed_without_quorum(past: &Past<'_>) -> Vec<Violation> {
    let lists = lists(past);
    let mut found = Vec::new();
    for (index, at, call) in calls(past) {
        let (removed, promoted) = match call.change {
            _ if matches!(call.outcome, Outcome::Failed { .. }) => continue,
            MemberChange::Remove(id) => (Some(id), None),
            MemberChange::Promote(id) => (None, Some(id)),
            MemberChange::Add { .. } | MemberChange::Update { .. } => continue,
        };
        let next = lists.partition_point(|(_, seen, _)| *seen <= at);
        let Some((voters, healthy, shown)) = voters_after(&lists, next, removed, promoted) else {
            continue;
        };
        if healthy < voters / 2 + 1 {
            let sentence = format!(
                "{} asked for a change that leaves {voters} voters, of which {healthy} answer",
                call.by
            );
            found.push(Violation::new(RULE, sentence, shown.into_iter().chain([index])));
        }
    }
    for (next, pair) in lists.windows(2).enumerate() {
        let [(_, _, from), (_, _, to)] = [pair[0], pair[1]];
        for gone in missing(from, to).into_iter().filter(|_| from.epoch == to.epoch) {
            let Some((voters, healthy, shown)) = voters_after(&lists, next + 1, Some(gone), None) else {
                continue;
            };
            if healthy < voters / 2 + 1 {
                let sentence = format!(
                    "member {gone:x} was removed, which left {voters} voters, of which {healthy} answered"
                );
                found.push(Violation::new(RULE, sentence, shown));
            }
        }
    }
    found
}

/// The voters after a change between two lists, of which `next` is the later one: how many there are, how many may have been healthy,
/// and the events of the two. None where there is too little evidence.
fn voters_after(
    lists: &[(usize, At, &Members)],
    next: usize,
    removed: Option<u64>,
    promoted: Option<u64>,
) -> Option<(usize, usize, [usize; 2])> {
    let (last, seen, members) = lists.get(next.checked_sub(1)?)?;
    let (after_event, _, after) = lists.get(next)?;
    let recent = lists[..next]
        .iter()
        .filter(|(_, at, _)| at.plus_millis(EVIDENCE) >= *seen);
    let looks: Vec<&Members> = recent.map(|(_, _, members)| *members).chain([*after]).collect();
    if looks.len() < 3 || looks.iter().any(|look| look.epoch != after.epoch) {
        return None;
    }
    // Whether any look found the member healthy.
    let mut answered: BTreeMap<u64, bool> = BTreeMap::new();
    for member in looks.iter().flat_map(|look| &look.members) {
        *answered.entry(member.id).or_default() |= member.healthy;
    }
    let voters = members
        .members
        .iter()
        .filter(|member| Some(member.id) != removed && (!member.learner || Some(member.id) == promoted));
    let voters: Vec<u64> = voters.map(|member| member.id).collect();
    let healthy = voters.iter().filter(|id| answered.get(id) == Some(&true)).count();
    Some((voters.len(), healthy, [*last, *after_event]))
}
