//! INV-1: every write of the leader is fenced, and a stale leader changes nothing.

use prost::Message;
use quorate::etcd::KeyRange;
use quorate::proto;
use quorate::proto::publication_status::State;
use quorate::store::keys::{CertificationKey, RoleKey};

use super::past::Past;
use super::records::{before, written};
use super::{Rule, Violation};
use crate::history::{Is, Op, Revision, StoreCall, Target};

const RULE: Rule = Rule::Inv(1);

/// The election key and the term that a transaction compares first, if it does.
pub fn fence<'c>(past: &Past<'_>, call: &'c StoreCall) -> Option<(&'c [u8], i64)> {
    let first = call.compares.first()?;
    match first.target {
        Target::Created(term)
            if term > 0
                && first.is == Is::Equal
                && first.end.0.is_empty()
                && past.keys.candidates().contains(&first.key.0) =>
        {
            Some((&first.key.0, term))
        }
        _ => None,
    }
}

/// Whether the transaction only gives a candidacy up: a candidate deletes its key by the compare that is a leader's fence.
pub fn deletes_candidate(past: &Past<'_>, call: &StoreCall) -> bool {
    let range = past.keys.candidates();
    let mut written = call.then.iter().filter_map(written);
    written.all(|key| range.contains(key))
}

/// Replicas that write without the fence what the leader alone writes.
pub fn unfenced_writes(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, _, call, writes) in past.replicas_writes() {
        if fence(past, call).is_some() || never_holds(call) {
            continue;
        }
        let applied = call.outcome.done().filter(|applied| applied.succeeded);
        for op in writes {
            let key = written(op).unwrap_or_default();
            let revision = applied.map(|applied| applied.revision);
            if is_leaders(past, key)
                || revision.is_some_and(|revision| takes_leaders_part(past, op, revision))
            {
                let shown = key.escape_ascii();
                let sentence = format!(
                    "{} wrote {shown}, which is the leader's, without the fence",
                    call.by
                );
                found.push(Violation::new(RULE, sentence, [index]));
            }
        }
    }
    found
}

/// Whether no store fulfils its compares, as of the transaction by which a replica finds out whether it may write.
fn never_holds(call: &StoreCall) -> bool {
    call.compares.iter().any(|compare| {
        matches!(compare.target, Target::Created(revision) if revision <= 0) && compare.is == Is::Less
    })
}

/// Whether the leader alone, of all replicas, writes this key.
fn is_leaders(past: &Past<'_>, key: &[u8]) -> bool {
    let ranges: [KeyRange; 12] = [
        past.keys.members(),
        past.keys.all_removed(),
        past.keys.services(),
        past.keys.networks(),
        past.keys.tasks(),
        past.keys.volumes(),
        past.keys.tombstones(),
        past.keys.plugins(),
        past.below("/history/"),
        past.below("/encryption/"),
        past.keys.all_inventory(),
        past.below("/kubernetes/reconciler/status"),
    ];
    let single = [past.keys.revocation_list(), past.keys.rotation()];
    ranges.iter().any(|range| range.contains(key)) || single.iter().any(|own| own == key)
}

/// Whether a put changed a part of a shared record that is the leader's.
fn takes_leaders_part(past: &Past<'_>, op: &Op, revision: Revision) -> bool {
    let Op::Put { key, value, .. } = op else {
        return false;
    };
    let (key, value) = (key.0.as_slice(), value.0.as_slice());
    let earlier = past.value_at(key, before(revision));
    if let RoleKey::Node(_) = past.keys.parse_role(key) {
        let role = |bytes: &[u8]| proto::Node::decode(bytes).ok()?.status.map(|status| status.role);
        // A node that is made for the holder of a token begins as a worker.
        return earlier.is_some_and(|earlier| role(earlier) != role(value));
    }
    if let RoleKey::Join(_) = past.keys.parse_role(key) {
        let answer = |bytes: &[u8]| {
            let join = proto::Join::decode(bytes).unwrap_or_default();
            (join.progress, join.answers, join.member_id)
        };
        return answer(earlier.unwrap_or_default()) != answer(value);
    }
    if let CertificationKey::Certificate(_) | CertificationKey::EtcdCertificate(_) =
        past.keys.parse_certification(key)
    {
        let chain = |bytes: &[u8]| proto::NodeCertificate::decode(bytes).unwrap_or_default().chain;
        return chain(earlier.unwrap_or_default()) != chain(value);
    }
    if past.keys.parse_publication(key).is_some() {
        let state = |bytes: &[u8]| {
            let publication = proto::Publication::decode(bytes).unwrap_or_default();
            publication
                .status
                .map_or(State::Unspecified, |status| status.state())
        };
        let (from, to) = (state(earlier.unwrap_or_default()), state(value));
        return from != to && (from, to) != (State::PendingNodeUnpublish, State::PendingUnpublish);
    }
    false
}

/// Fenced writes that succeeded although the fence was not that of the first key of the election.
pub fn stale_writes(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, _, call, _) in past.replicas_writes() {
        let applied = call.outcome.done().filter(|applied| applied.succeeded);
        let (Some(applied), Some((key, term))) = (applied, fence(past, call)) else {
            continue;
        };
        if deletes_candidate(past, call) {
            continue;
        }
        let leader = past.terms.leader_before(past, applied.revision);
        if leader != Some((key, term)) {
            let (shown, now) = (
                key.escape_ascii(),
                leader.map(|(key, _)| key.escape_ascii().to_string()),
            );
            let now = now.unwrap_or_else(|| "none".to_owned());
            let sentence = format!(
                "{} wrote at revision {} by the fence of {shown}, while the first key was {now}",
                call.by, applied.revision.revision
            );
            let standing = past
                .terms
                .all
                .iter()
                .find(|other| Some(other.key) == leader.map(|(key, _)| key));
            found.push(Violation::new(
                RULE,
                sentence,
                standing.map(|other| other.event).into_iter().chain([index]),
            ));
        }
    }
    found
}
