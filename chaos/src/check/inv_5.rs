//! INV-5: changes of etcd's members keep a healthy quorum, come one at a time, and remove only recorded members.
//!
//! A change shows in the request for it, which goes through the address that a member advertises, and in the lists before and after it.

use std::collections::BTreeMap;

use prost::Message;
use quorate::etcd::{KeyRange, MemberId};
use quorate::proto;

use super::excuses::may_be_late;
use super::past::Past;
use super::records::{Span, before, who};
use super::{Rule, Violation};
use crate::history::{At, Listed, MemberCall, MemberChange, Members, Role, What};

const RULE: Rule = Rule::Inv(5);

/// For how long evidence about a member counts, in milliseconds: a member is taken for down only if every look since then
/// found it down, and the next look after the call too.
const EVIDENCE: u64 = 10_000;

/// How old an answer of a member may be by which the leader decides, in milliseconds: it asks again before every change, and each member
/// has 2 s to answer. What was dead for longer cannot have answered.
const ANSWERS: u64 = 5_000;

fn calls<'h>(past: &Past<'h>) -> Vec<(usize, At, &'h MemberCall)> {
    let calls = past.events().filter_map(|(index, event)| match &event.what {
        What::Member(call) if past.may_be_replica(call.by.as_ref()) => Some((index, event.at, call)),
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
pub fn pairs<'h>(past: &Past<'h>) -> Vec<[(usize, At, &'h Members); 2]> {
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
            let sentence = format!(
                "{} added a member as a voter; only learners are added",
                who(call.by.as_ref())
            );
            found.push(Violation::new(RULE, sentence, [index]));
        }
    }
    for [(earlier, _, from), (after, at, to)] in pairs(past) {
        let new = to
            .members
            .iter()
            .filter(|member| !member.learner && !from.members.iter().any(|known| known.id == member.id));
        for member in new.filter(|member| !had(past, member.id, at, |record| record.promotion.is_some())) {
            let sentence = format!(
                "member {:x} became a voter without an intent to promote it",
                member.id
            );
            found.push(Violation::new(RULE, sentence, [earlier, after]));
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

/// Changes that began while another one of the same process was under way. Calls without a known caller may be of two.
pub fn overlapping_changes(past: &Past<'_>) -> Vec<Violation> {
    let calls = calls(past);
    let mut found = Vec::new();
    for (at, (index, begun, call)) in calls.iter().enumerate() {
        let earlier = calls[..at]
            .iter()
            .rev()
            .find(|(_, _, earlier)| earlier.by == call.by);
        let (Some((other, _, earlier)), Some(by)) = (earlier, &call.by) else {
            continue;
        };
        let ended = earlier.answered.or(earlier.given_up);
        if ended.is_some_and(|ended| ended > *begun) {
            let sentence = format!("{by} began a change of etcd's members while its last one was under way");
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
                who(call.by.as_ref())
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

/// Intents to remove or to promote a member, after which the voters that answer would be no majority. What the leader decides is in its
/// records, also where no request for it follows.
pub fn decided_without_quorum(past: &Past<'_>) -> Vec<Violation> {
    let lists = lists(past);
    let mut found = Vec::new();
    for (index, seen, changed) in past.changes() {
        let Some(id) = past.keys.parse_member(&changed.key.0) else {
            continue;
        };
        let record = |revision| past.message_at::<proto::Member>(&changed.key.0, revision);
        let earlier = record(before(changed.revision)).unwrap_or_default();
        let Some(decided) = record(changed.revision) else {
            continue;
        };
        let change = Change {
            removed: (decided.removal.is_some() && earlier.removal.is_none()).then_some(id.0),
            promoted: (decided.promotion.is_some() && earlier.promotion.is_none()).then_some(id.0),
        };
        if change.removed.or(change.promoted).is_none() {
            continue;
        }
        let writer = past.writer(changed.revision);
        let at = writer.map_or(seen, |(call, _)| past.history.events[call].at);
        if writer.is_some_and(|(_, call)| may_be_late(past, Some(&call.by), at.minus_millis(ANSWERS), at)) {
            continue;
        }
        let next = lists.partition_point(|(_, seen, _)| *seen <= at);
        if let Some((left, shown)) = lost(past, &lists, next, change, (at, at)) {
            let sentence = format!("a change of member {id} was decided that leaves {left}");
            found.push(Violation::new(RULE, sentence, shown.into_iter().chain([index])));
        }
    }
    found
}

/// Removals and promotions after which the voters that answer are no majority, also those that etcd refused: they were asked for.
pub fn changed_without_quorum(past: &Past<'_>) -> Vec<Violation> {
    let lists = lists(past);
    let mut found = Vec::new();
    for (index, at, call) in calls(past) {
        let (removed, promoted) = match call.change {
            MemberChange::Remove(id) => (Some(id), None),
            MemberChange::Promote(id) => (None, Some(id)),
            MemberChange::Add { .. } | MemberChange::Update { .. } => continue,
        };
        if may_be_late(past, call.by.as_ref(), at.minus_millis(ANSWERS), at) {
            continue;
        }
        let next = lists.partition_point(|(_, seen, _)| *seen <= at);
        let change = Change { removed, promoted };
        if let Some((left, shown)) = lost(past, &lists, next, change, (at, at)) {
            let sentence = format!("{} asked for a change that leaves {left}", who(call.by.as_ref()));
            found.push(Violation::new(RULE, sentence, shown.into_iter().chain([index])));
        }
    }
    for (next, pair) in lists.windows(2).enumerate() {
        let [(_, from_at, from), (_, to_at, to)] = [pair[0], pair[1]];
        for gone in missing(from, to).into_iter().filter(|_| from.epoch == to.epoch) {
            let change = Change {
                removed: Some(gone),
                promoted: None,
            };
            if let Some((left, shown)) = lost(past, &lists, next + 1, change, (from_at, to_at)) {
                let sentence = format!("member {gone:x} was removed, which left {left}");
                found.push(Violation::new(RULE, sentence, shown));
            }
        }
    }
    found
}

/// A change of the voters.
#[derive(Clone, Copy)]
struct Change {
    removed: Option<u64>,
    promoted: Option<u64>,
}

/// The voters that a change leaves, in words, if those of them that may have answered are no majority; and the events of the two lists
/// between which it came, of which `next` is the later one. The change came between the two instants. None where there is too little
/// evidence.
fn lost(
    past: &Past<'_>,
    lists: &[(usize, At, &Members)],
    next: usize,
    change: Change,
    (earliest, latest): (At, At),
) -> Option<(String, [usize; 2])> {
    let (last_event, seen, last) = lists.get(next.checked_sub(1)?)?;
    let (after_event, _, after) = lists.get(next)?;
    let recent = lists[..next]
        .iter()
        .filter(|(_, at, _)| at.plus_millis(EVIDENCE) >= *seen);
    let looks: Vec<&Members> = recent.map(|(_, _, members)| *members).chain([*after]).collect();
    if looks.iter().any(|look| look.epoch != after.epoch) {
        return None;
    }
    // Whether any look found the member healthy. Too few looks say nothing.
    let mut answered: BTreeMap<u64, bool> = BTreeMap::new();
    for member in looks.iter().flat_map(|look| &look.members) {
        *answered.entry(member.id).or_default() |= member.healthy || looks.len() < 3;
    }
    let Change { removed, promoted } = change;
    let stays =
        |member: &&Listed| Some(member.id) != removed && (!member.learner || Some(member.id) == promoted);
    let voters: Vec<&Listed> = last.members.iter().filter(stays).collect();
    let may_answer = |member: &&&Listed| {
        let was_dead = is_dead(past, &member.name, earliest.minus_millis(ANSWERS), latest);
        answered.get(&member.id) == Some(&true) && !was_dead
    };
    let healthy = voters.iter().filter(may_answer).count();
    let left = format!("{} voters, of which {healthy} answer", voters.len());
    (healthy < voters.len() / 2 + 1).then_some((left, [*last_event, *after_event]))
}

/// Whether no process of this member ran at any time between the two instants. The etcd of an agent ends with the agent.
fn is_dead(past: &Past<'_>, name: &str, from: At, until: At) -> bool {
    let own = past.lives.values().filter(|span| match span.role {
        Role::Etcd { member } => member == name,
        Role::Agent { node } => node == name,
        _ => false,
    });
    let own: Vec<_> = own.collect();
    let is_over = |span: &&Span<'_>| span.exited.is_some_and(|(at, _, _)| at < from);
    !own.is_empty() && own.iter().all(|span| span.started > until || is_over(span))
}
