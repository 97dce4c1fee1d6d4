//! INV-12: what is evicted, orphaned, detached or deleted has a positive record that says so.

use prost::Message;
use quorate::proto;
use quorate::proto::removal::Cause;
use quorate::proto::task_status::State;

use super::past::Past;
use super::records::before;
use super::{Rule, Violation};
use crate::history::{Change, Changed, Target, Verb, What};

const RULE: Rule = Rule::Inv(12);

/// Intents to remove a member, orphaned tasks and deletions in Kubernetes that no record justifies.
pub fn ends_without_record(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, _, changed) in past.changes() {
        let fault = eviction(past, changed).or_else(|| orphan(past, changed));
        if let Some(sentence) = fault {
            let call = past.writer(changed.revision).map(|(call, _)| call);
            found.push(Violation::new(RULE, sentence, call.into_iter().chain([index])));
        }
    }
    found.extend(deletions(past));
    found
}

/// An intent to remove a member without what its cause says.
fn eviction(past: &Past<'_>, changed: &Changed) -> Option<String> {
    let id = past.keys.parse_member(&changed.key.0)?;
    let Change::Put { value, .. } = &changed.change else {
        return None;
    };
    let member = proto::Member::decode(value.0.as_slice()).ok()?;
    let removal = member.removal?;
    let earlier: Option<proto::Member> = past.message_at(&changed.key.0, before(changed.revision));
    if earlier.is_some_and(|earlier| {
        earlier
            .removal
            .is_some_and(|earlier| earlier.cause == removal.cause)
    }) {
        return None;
    }
    let revision = before(changed.revision);
    match removal.cause() {
        Cause::NodeGone => {
            let key = past.keys.removed(&member.node_uid);
            if past.value_at(&key, revision).is_none() {
                return Some(format!(
                    "the removal of member {id} was decided since its node is gone, and no record says so"
                ));
            }
            let (_, call) = past.writer(changed.revision)?;
            let is_compared = call.compares.iter().any(|compare| {
                compare.key.0 == key && matches!(compare.target, Target::Created(_) | Target::Modified(_))
            });
            (!is_compared).then(|| {
                format!(
                    "{} decided to remove member {id} without comparing the removal of its node",
                    call.by
                )
            })
        }
        Cause::Demoted => {
            let node = member.node.parse().ok()?;
            let node: Option<proto::Node> = past.message_at(&past.keys.node(&node), revision);
            let desired = node.and_then(|node| node.spec).map(|spec| spec.desired_role());
            (desired != Some(proto::Role::Worker)).then(|| {
                format!(
                    "the removal of member {id} was decided as a worker's, and node {} is none",
                    member.node
                )
            })
        }
        _ => None,
    }
}

/// A task that was orphaned although its node exists, or without proof in the transaction that it does not.
fn orphan(past: &Past<'_>, changed: &Changed) -> Option<String> {
    let name = past.keys.parse_task(&changed.key.0)?;
    let (_, call) = past
        .writer(changed.revision)
        .filter(|(_, call)| past.is_replica(&call.by))?;
    let task: proto::Task = past.message_at(&changed.key.0, changed.revision)?;
    if task.status.is_none_or(|status| status.state() != State::Orphaned) {
        return None;
    }
    let node = past.keys.node(&task.spec.unwrap_or_default().node.parse().ok()?);
    if past.value_at(&node, before(changed.revision)).is_some() {
        return Some(format!("{} orphaned task {name}, whose node exists", call.by));
    }
    let is_proven = call.compares.iter().any(|compare| {
        compare.key.0 == node && matches!(compare.target, Target::Created(0) | Target::Modified(0))
    });
    (!is_proven).then(|| {
        format!(
            "{} orphaned task {name} without proving that its node does not exist",
            call.by
        )
    })
}

/// Deletions in Kubernetes of objects whose inventory entry does not say that they are being deleted or made again.
fn deletions(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, event) in past.events() {
        let What::Kubernetes(write) = &event.what else {
            continue;
        };
        if write.verb != Verb::Delete || write.dry_run || !past.is_replica(&write.by) {
            continue;
        }
        let mut inventory = past.versions(&past.keys.all_inventory()).into_iter();
        let says_so = inventory.any(|(key, version)| {
            let named = past
                .keys
                .parse_inventory(key)
                .is_some_and(|(_, _, namespace, name)| {
                    name == write.name && namespace.unwrap_or_default() == write.namespace
                });
            let applied = version
                .value
                .and_then(|value| proto::Applied::decode(value).ok())
                .unwrap_or_default();
            named && version.at <= past.seen_by(event.at) && (applied.deleting || applied.recreating)
        });
        if !says_so {
            let sentence = format!(
                "{} deleted {} {}, and no entry of the inventory says that it goes",
                write.by, write.resource, write.name
            );
            found.push(Violation::new(RULE, sentence, [index]));
        }
    }
    found
}
