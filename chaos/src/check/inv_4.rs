//! INV-4: the status never admits a release that the reconciled state excludes.

use prost::Message;
use quorate::etcd::KeyRange;
use quorate::gate::status::Status;
use quorate::proto;
use quorate::release::Release;
use quorate::store::keys::NodeKey;

use super::past::Past;
use super::records::{Minimums, Version, before};
use super::{Rule, Violation};
use crate::history::{At, Is, Process, StoreCall, Target, What};

const RULE: Rule = Rule::Inv(4);

fn violation(sentence: String, events: impl IntoIterator<Item = usize>) -> Violation {
    Violation::new(RULE, sentence, events)
}

/// Every version of the status, a malformed one as `None`, in the order of the revisions.
fn statuses<'h>(past: &Past<'h>) -> Vec<(Version<'h>, Option<Status>)> {
    let versions = past.versions(&KeyRange::key(past.keys.status())).into_iter();
    let decoded = |version: Version<'h>| {
        (
            version,
            version.value.and_then(|value| Status::decode(value).ok()),
        )
    };
    versions.map(|(_, version)| decoded(version)).collect()
}

fn excludes(status: &Status, release: Minimums) -> bool {
    status.minimum_compatible > release.release || status.version.release < release.min_reconciler
}

/// Replicas that answered that they are ready while the status excluded them from before the question until after the answer. A
/// replica that ran when etcd was restored is out of this: all of them have to be stopped before.
pub fn excluded_and_ready(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, event) in past.events() {
        let What::Poll(poll) = &event.what else { continue };
        let Some(release) = past.release_of(&poll.of).filter(|_| poll.ready) else {
            continue;
        };
        if saw_restore(past, &poll.of, poll.answered) {
            continue;
        }
        let is_excluded = |status: &Status| excludes(status, release);
        if let Some((shown, status)) = throughout(past, event.at, poll.answered, is_excluded) {
            let sentence = format!(
                "{} was ready at release {}, which the status excludes: minimum {}, reconciled by {}",
                poll.of, release.release, status.minimum_compatible, status.version.release
            );
            found.push(violation(sentence, [shown, index]));
        }
    }
    found
}

/// The status of which something holds, if it holds of every status that may have been in force between the two instants; with its
/// event.
fn throughout(
    past: &Past<'_>,
    from: At,
    until: At,
    holds: impl Fn(&Status) -> bool,
) -> Option<(usize, Status)> {
    let key = past.keys.status();
    let at = |revision| {
        let version = past.at(&key, revision)?;
        let status = Status::decode(version.value?).ok().filter(&holds)?;
        Some((version.event, status))
    };
    let all: Option<Vec<_>> = past.revisions(from, until)?.map(at).collect();
    all?.into_iter().next()
}

/// Whether the store was restored while the process ran.
fn saw_restore(past: &Past<'_>, process: &Process, until: At) -> bool {
    let started = past.lives.get(process).map(|span| span.started);
    past.events().any(|(_, event)| {
        matches!(event.what, What::Restored { .. })
            && started.is_some_and(|started| started <= event.at)
            && event.at <= until
    })
}

/// A change of the status that excludes a release which the status before admitted.
struct Restriction<'h> {
    version: Version<'h>,
    from: Status,
    to: Status,
    /// The transaction, with its event.
    index: usize,
    call: &'h StoreCall,
}

/// The restrictions of replicas.
fn restrictions<'h>(past: &Past<'h>) -> Vec<Restriction<'h>> {
    let mut restrictions = Vec::new();
    let statuses = statuses(past);
    for pair in statuses.windows(2) {
        let [(earlier, Some(from)), (version, Some(to))] = pair else {
            continue;
        };
        let is_restriction =
            to.minimum_compatible > from.minimum_compatible || to.version.release < from.version.release;
        if !is_restriction || earlier.revision.epoch != version.revision.epoch {
            continue;
        }
        if let Some((index, call)) = past.writer(version.revision) {
            restrictions.push(Restriction {
                version: *version,
                from: from.clone(),
                to: to.clone(),
                index,
                call,
            });
        }
    }
    restrictions
}

/// Restrictions whose transaction did not prove that no key below `/nodes/` was written since a revision, or that one was.
pub fn unproven_restrictions(past: &Past<'_>) -> Vec<Violation> {
    let nodes = past.keys.nodes();
    let mut found = Vec::new();
    for restriction in restrictions(past) {
        let Restriction {
            version, index, call, ..
        } = restriction;
        let proven = call.compares.iter().find_map(|compare| match compare.target {
            Target::Modified(below)
                if compare.is == Is::Less && compare.key.0 == nodes.start() && !compare.end.0.is_empty() =>
            {
                Some(below)
            }
            // That there are none.
            Target::Created(0)
                if compare.is == Is::Equal && compare.key.0 == nodes.start() && !compare.end.0.is_empty() =>
            {
                Some(1)
            }
            _ => None,
        });
        let Some(below) = proven else {
            let sentence = format!(
                "{} restricted the status without proving that no node changed",
                call.by
            );
            found.push(violation(sentence, [index]));
            continue;
        };
        let newer = past.range_at(&nodes, before(version.revision)).into_iter();
        let newer = newer
            .map(|(_, node)| node)
            .find(|node| node.revision.revision >= below);
        if let Some(node) = newer {
            let sentence = format!(
                "{} restricted the status although a node was written since it looked",
                call.by
            );
            found.push(violation(sentence, [node.event, index]));
        }
    }
    found
}

/// Restrictions that exclude a release which was registered at that revision, and which the status before admitted.
pub fn restricted_too_early(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for restriction in restrictions(past) {
        let Restriction {
            version,
            from,
            to,
            index,
            call,
        } = restriction;
        for (key, node) in past.range_at(&past.keys.nodes(), before(version.revision)) {
            let Some(release) = running_release(past, key, node.value.unwrap_or_default()) else {
                continue;
            };
            if release < to.minimum_compatible && release >= from.minimum_compatible {
                let sentence = format!(
                    "{} raised the minimum to {} while {} was registered with {release}",
                    call.by,
                    to.minimum_compatible,
                    key.escape_ascii()
                );
                found.push(violation(sentence, [node.event, index]));
            }
        }
    }
    found
}

/// The release of a controller that runs, by its key below `/nodes/`.
fn running_release(past: &Past<'_>, key: &[u8], value: &[u8]) -> Option<Release> {
    match past.keys.parse_node(key) {
        NodeKey::Registration(_) => {
            let version = proto::Registration::decode(value).ok()?.version?;
            Release::from_proto(version.release.as_ref()).ok()
        }
        NodeKey::Node(_) => {
            let status = proto::Node::decode(value)
                .ok()?
                .status
                .filter(|status| status.controller)?;
            Release::from_proto(status.release.as_ref()).ok()
        }
        NodeKey::Other => None,
    }
}

/// Writes to Kubernetes by a leader whose minimum was not in the status yet. Without a status, the objects come first.
pub fn reconciled_too_early(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, event) in past.events() {
        let What::Kubernetes(write) = &event.what else {
            continue;
        };
        let is_event = write.resource.ends_with("events");
        let Some(own) = past.release_of(&write.by).filter(|_| !is_event && !write.dry_run) else {
            continue;
        };
        // One that comes after the term may have been held back.
        if saw_restore(past, &write.by, event.at) || past.terms.judge(past, &write.by, event.at).is_err() {
            continue;
        }
        let is_lax = |status: &Status| {
            status.minimum_compatible < own.min_apiserver || status.version.release > own.release
        };
        if let Some((shown, status)) = throughout(past, event.at, event.at, is_lax) {
            let sentence = format!(
                "{} of release {} wrote {} {} while the status admitted what it excludes: minimum {}, reconciled by {}",
                write.by,
                own.release,
                write.resource,
                write.name,
                status.minimum_compatible,
                status.version.release
            );
            found.push(violation(sentence, [shown, index]));
        }
    }
    found
}
