//! What the leader does, and what it waits for: the election, joins, leftovers. Pure.

use jiff::{SignedDuration, Timestamp};

use super::checklist::Checklist;
use crate::cli::doctor::finding::Finding;
use crate::cli::doctor::reason::Reason;
use crate::cli::doctor::seen::{Seen, StoreSeen};
use crate::cli::objects::kinds::resources::object;
use crate::etcd::KeyValue;
use crate::proto::{Applied, Pause, Tombstone};
use crate::store::Keys;
use crate::store::keys::{KeySpace, NodeKey, RoleKey};
use crate::store::object::member::{decode_join, is_ended};
use crate::store::object::{decode, message, time, tombstone};

/// A join takes until its learner has caught up: `--learner-timeout` (10 min) at most without progress, and a moment more.
const JOIN_PATIENCE: SignedDuration = SignedDuration::from_mins(15);

/// Checks the work.
pub fn check(seen: &Seen, list: &mut Checklist) {
    let Ok(store) = &seen.store else {
        return;
    };
    let keys = &seen.keys;
    let reconciler = keys.reconciler();
    // Without the right to read candidates, their absence says nothing.
    let is_read = store
        .ranges
        .iter()
        .any(|range| range.read.is_ok() && reconciler.contains(range.prefix.as_bytes()));
    if is_read {
        list.check(no_leader(keys, store));
    }
    list.check(degraded(keys, store));
    list.check(paused(keys, store));
    let of = |wanted: fn(&Keys, &KeyValue) -> bool| store.keys().filter(move |kv| wanted(keys, kv));
    let joins = of(|keys, kv| matches!(keys.parse_role(&kv.key), RoleKey::Join(_)));
    list.check_each(joins, |kv| join(keys, kv, seen.now));
    let tombstones = of(|keys, kv| keys.parse_tombstone(&kv.key).is_some());
    list.check_each(tombstones, |kv| left(keys, kv, seen.now));
    let inventory = of(|keys, kv| keys.parse_inventory(&kv.key).is_some());
    list.check_each(inventory, |kv| dropped(keys, kv));
}

fn no_leader(keys: &Keys, store: &StoreSeen) -> Option<Finding> {
    let candidates = keys.candidates();
    if store.keys().any(|kv| candidates.contains(&kv.key)) {
        return None;
    }
    let replica = |kv: &KeyValue| match keys.parse_node(&kv.key) {
        NodeKey::Registration(name) => Some(name.to_owned()),
        _ => None,
    };
    let replicas: Vec<String> = store.keys().filter_map(replica).collect();
    let run = if replicas.len() == 1 { "runs" } else { "run" };
    let (what, remedy) = match replicas.is_empty() {
        true => (
            "no replica leads, and none is registered".to_owned(),
            "start replicas (quorate run) with these endpoints and this --prefix; their log says what keeps them from it",
        ),
        false => (
            format!("no replica leads, though {} {run}", replicas.join(", ")),
            "the log and /leaderz of the replicas say why they do not stand for election; one that has just started stands within seconds",
        ),
    };
    Some(
        Finding::fault(Reason::NoLeader, "election", what)
            .matters("nothing is reconciled: no resource, role, volume, service or certificate changes")
            .remedy(remedy),
    )
}

fn degraded(keys: &Keys, store: &StoreSeen) -> Option<Finding> {
    let status = store.keys().find(|kv| kv.key == keys.status_json())?;
    let status: serde_json::Value = serde_json::from_slice(&status.value).ok()?;
    let degraded = status.get("degraded")?;
    let text = |name: &str| degraded.get(name)?.as_str();
    let (reason, message) = (text("reason")?, text("message")?);
    Some(
        Finding::fault(
            Reason::Degraded,
            "leader",
            format!("it says that it is degraded: {reason}: {message}"),
        )
        .matters("the reconciled state is not what the bundle asks for, or no release is admitted yet")
        .remedy("quorate status and quorate get resources show what it waits for; docs/troubleshooting.md lists the messages"),
    )
}

fn paused(keys: &Keys, store: &StoreSeen) -> Option<Finding> {
    let kv = store.keys().find(|kv| kv.key == keys.roles_pause())?;
    let pause: Pause = message("Pause", &kv.value).unwrap_or_default();
    let since = time::document(pause.since.as_ref()).unwrap_or_default();
    Some(
        Finding::note(
            Reason::RolesPaused,
            "roles",
            format!("they are paused since {since}: {}", pause.reason),
        )
        .matters("no role and no member changes meanwhile, and joins wait")
        .remedy("quorate resume roles, once what the pause was for is done"),
    )
}

fn join(keys: &Keys, kv: &KeyValue, now: Timestamp) -> Option<Finding> {
    let RoleKey::Join(node) = keys.parse_role(&kv.key) else {
        return None;
    };
    let join = decode_join(&kv.value).ok()?;
    let request = join.request.as_ref()?;
    let since = time::from_proto(request.requested_at.as_ref())?;
    if is_ended(&join) || now.duration_since(since) < JOIN_PATIENCE {
        return None;
    }
    let why = match join.message.as_str() {
        "" => "the leader has said nothing of it".to_owned(),
        message => format!("{}: {message}", join.reason),
    };
    Some(
        Finding::warning(
            Reason::JoinWaits,
            format!("join of node {node}"),
            format!("it was requested {} ago and has not ended: {why}", time::age(since, now)),
        )
        .matters("the node has no member that votes, and etcd takes one learner at a time, so that others may wait behind it")
        .remedy(format!(
            "quorate describe node {node} shows what it waits for; quorate demote {node} ends the join"
        )),
    )
}

fn left(keys: &Keys, kv: &KeyValue, now: Timestamp) -> Option<Finding> {
    let name = keys.parse_tombstone(&kv.key)?;
    let left: Tombstone = decode(name, &kv.value).ok()?;
    let since = time::from_proto(left.forced_at.as_ref());
    let since = since.map_or_else(String::new, |at| format!(" {} ago", time::age(at, now)));
    Some(
        Finding::warning(
            Reason::TombstoneLeft,
            format!("tombstone/{name}"),
            format!(
                "volume {} was deleted by force{since}, and this may be left: {}",
                tombstone::volume_name(&left),
                tombstone::left_behind(&left)
            ),
        )
        .matters("what is left at the backend takes space there, and may still be attached to a node")
        .remedy(format!(
            "quorate describe tombstone {name} names what to look for; quorate tombstone takes it back or has it removed"
        )),
    )
}

/// An object that the bundle no longer holds, and that is still there.
fn dropped(keys: &Keys, kv: &KeyValue) -> Option<Finding> {
    let applied: Applied = message("Applied", &kv.value).ok()?;
    let state = applied.state.as_ref().filter(|state| state.dropped)?;
    let named = object(KeySpace::INVENTORY.name(keys, &kv.key)?)?;
    let outcome = format!("the bundle no longer holds it, and it is {}", state.outcome);
    let what = match state.message.as_str() {
        "" => outcome,
        message => format!("{outcome}: {message}"),
    };
    Some(
        Finding::warning(Reason::InventoryLeft, named, what)
            .matters("it stays in the cluster as the last bundle left it; stages of deletions after it wait")
            .remedy(
                "delete it in the cluster, allow its deletion with --allow-prune if it is held, or leave it there and take it out of the \
                 inventory: quorate inventory forget KIND NAMESPACE/NAME",
            ),
    )
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::cli::doctor::fixtures::{keys, kv, store};
    use crate::proto::join::Progress;
    use crate::proto::{Join, JoinRequest, ResourceState};

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn without_a_candidate_the_replicas_that_run_are_named() {
        let candidate = kv(format!("{}/1f", keys().election()).into_bytes(), b"a".to_vec());
        assert!(no_leader(&keys(), &store(vec![candidate])).is_none());
        let none = no_leader(&keys(), &store(Vec::new())).unwrap();
        assert!(none.what.contains("none is registered"), "{none:?}");
        let replica = |name: &str| kv(keys().registration(&name.parse().unwrap()), Vec::new());
        let idle = no_leader(&keys(), &store(vec![replica("r1")])).unwrap();
        assert!(idle.what.contains("though r1 runs"), "{idle:?}");
        let idle = no_leader(&keys(), &store(vec![replica("r1"), replica("r2")])).unwrap();
        assert!(idle.what.contains("though r1, r2 run"), "{idle:?}");
    }

    #[test]
    fn what_the_leader_says_of_itself_is_passed_on() {
        let found = |json: &str| degraded(&keys(), &store(vec![kv(keys().status_json(), json)]));
        assert!(found(r#"{"state": "DONE", "degraded": null}"#).is_none());
        let said = found(r#"{"degraded": {"reason": "PassFailed", "message": "m", "since": "t"}}"#);
        assert!(said.unwrap().what.ends_with("PassFailed: m"));
        assert!(found("no JSON").is_none());
    }

    #[test]
    fn a_join_is_found_once_its_patience_is_over_and_never_after_its_end() {
        let asked = |minutes: i64, progress: Progress| {
            let at = now() - SignedDuration::from_mins(minutes);
            let join = Join {
                request: Some(JoinRequest {
                    id: "1".to_owned(),
                    requested_at: Some(time::to_proto(at)),
                    ..JoinRequest::default()
                }),
                answers: "1".to_owned(),
                progress: progress.into(),
                reason: "LearnerPending".to_owned(),
                message: "learner n3 is in etcd's list".to_owned(),
                ..Join::default()
            };
            let stored = kv(keys().join(&"n4".parse().unwrap()), join.encode_to_vec());
            super::join(&keys(), &stored, now())
        };
        assert!(asked(14, Progress::Waiting).is_none());
        assert!(asked(60, Progress::Voter).is_none());
        let found = asked(60, Progress::Waiting).unwrap();
        assert!(found.what.contains("60m ago"), "{found:?}");
        assert!(found.what.contains("LearnerPending: learner n3"), "{found:?}");
    }

    #[test]
    fn an_object_that_the_bundle_no_longer_holds_is_found() {
        let stored = |dropped| {
            let applied = Applied {
                state: Some(ResourceState {
                    outcome: "kept".to_owned(),
                    dropped,
                    ..ResourceState::default()
                }),
                ..Applied::default()
            };
            let key = keys().inventory("", "ConfigMap", Some("team"), "old");
            super::dropped(&keys(), &kv(key, applied.encode_to_vec()))
        };
        assert!(stored(false).is_none());
        let found = stored(true).unwrap();
        assert_eq!(found.subjects, ["ConfigMap team/old"]);
    }
}
