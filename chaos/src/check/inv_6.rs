//! INV-6: calls of CSI plugins: one at a time for a volume, none without a node id, no deletion of what is published.

use std::collections::BTreeMap;

use prost::Message;
use quorate::proto;

use super::inv_3::CHANGING;
use super::past::Past;
use super::publications::{volume_of, volumes_by};
use super::{Rule, Violation};
use crate::history::{At, CsiCall, CsiOutcome, Revision, Role, What};

const RULE: Rule = Rule::Inv(6);

/// The calls that change what is at a backend.
fn calls<'h>(past: &Past<'h>) -> Vec<(usize, At, &'h CsiCall)> {
    let calls = past.events().filter_map(|(index, event)| match &event.what {
        What::Csi(call) if CHANGING.contains(&call.rpc.as_str()) => Some((index, event.at, call)),
        _ => None,
    });
    calls.collect()
}

/// Calls that began while another one for the same volume was in flight. The leader gives a call up after its limit, whenever the
/// plugin ends it; and a leader may repeat the call that its predecessor left.
pub fn overlapping_calls(past: &Past<'_>) -> Vec<Violation> {
    let settings = &past.history.run.settings;
    let mut last: BTreeMap<&str, Vec<(usize, At, &CsiCall)>> = BTreeMap::new();
    let mut found = Vec::new();
    for (index, at, call) in calls(past) {
        let earlier = last.entry(&call.volume).or_default();
        for (other, begun, before) in earlier.iter() {
            let given_up = begun.plus_millis(settings.csi_timeout);
            let end = before
                .ended
                .or_else(|| death(past, *begun))
                .unwrap_or(given_up)
                .min(given_up);
            let is_by_another = before.by.is_none() || before.by != call.by;
            let is_repeated = before.rpc == call.rpc
                && before.node_id == call.node_id
                && is_by_another
                && leader_changed(past, *begun, at);
            if end > at.plus_millis(settings.slack) && !is_repeated {
                let sentence = format!(
                    "{} for {} began while {} was in flight",
                    call.rpc, call.volume, before.rpc
                );
                found.push(Violation::new(RULE, sentence, [*other, index]));
            }
        }
        earlier.push((index, at, call));
    }
    found
}

/// When a plugin died first after this instant, and with it the calls in flight.
fn death(past: &Past<'_>, after: At) -> Option<At> {
    let plugins = past
        .lives
        .values()
        .filter(|span| matches!(span.role, Role::Plugin { .. }));
    let died = plugins.filter_map(|span| span.exited.map(|(at, _, _)| at));
    died.filter(|at| *at >= after).min()
}

/// Whether a term ended or began between the two.
fn leader_changed(past: &Past<'_>, from: At, to: At) -> bool {
    let between = |at: At| from <= past.seen_by(at) && at <= past.seen_by(to);
    past.terms.all.iter().any(|term| {
        term.first.is_some_and(|(at, _)| between(at)) || term.ended.is_some_and(|(at, _)| between(at))
    })
}

/// Calls whose node id is empty.
pub fn empty_node_ids(past: &Past<'_>) -> Vec<Violation> {
    let empty = calls(past)
        .into_iter()
        .filter(|(_, _, call)| call.node_id.as_deref() == Some(""));
    empty
        .map(|(index, _, call)| {
            let sentence = format!(
                "{} for {} was called with an empty node id",
                call.rpc, call.volume
            );
            Violation::new(RULE, sentence, [index])
        })
        .collect()
}

/// Deletions of volumes that were still published, by the plugin's own answers. A restore of etcd excuses what the restored store does
/// not hold.
pub fn deleted_while_published(past: &Past<'_>) -> Vec<Violation> {
    let mut published: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (index, event) in past.events() {
        let call = match &event.what {
            What::Csi(call) if CHANGING.contains(&call.rpc.as_str()) => call,
            What::Restored { epoch, revision } => {
                let begin = Revision {
                    epoch: *epoch,
                    revision: *revision,
                };
                published.retain(|(volume, node), _| is_published(past, volume, node, begin));
                continue;
            }
            _ => continue,
        };
        let node = call.node_id.as_deref().unwrap_or_default();
        match (call.rpc.as_str(), call.outcome) {
            ("ControllerPublishVolume", CsiOutcome::Code(0)) => {
                _ = published.insert((call.volume.as_str(), node), index)
            }
            // One that ended otherwise may have been carried out.
            ("ControllerUnpublishVolume", CsiOutcome::Code(0) | CsiOutcome::Unknown) => {
                published.remove(&(call.volume.as_str(), node));
            }
            ("DeleteVolume", _) => {
                let held = published.iter().find(|((volume, _), _)| *volume == call.volume);
                if let Some(((volume, node), shown)) = held {
                    let sentence =
                        format!("DeleteVolume for {volume} was called while it was published to {node}");
                    found.push(Violation::new(RULE, sentence, [*shown, index]));
                }
            }
            _ => {}
        }
    }
    found
}

/// Whether a publication of this volume is on record that stores this node id.
fn is_published(past: &Past<'_>, volume: &str, node_id: &str, revision: Revision) -> bool {
    let stored = past.range_at(&past.keys.publications(), revision).into_iter();
    let mut publications = stored.filter_map(|(_, version)| proto::Publication::decode(version.value?).ok());
    publications.any(|publication| {
        volume_of(past, &publication, revision).is_some_and(|id| id == volume)
            && publication.status.unwrap_or_default().csi_node_id == node_id
    })
}

/// Volumes that are at the backend at the end, and that neither a volume's record nor a tombstone names. A restore of etcd excuses those
/// whose creation the restored store does not hold.
pub fn forgotten_volumes(past: &Past<'_>) -> Vec<Violation> {
    let Some((index, event)) = past
        .events()
        .find(|(_, event)| matches!(event.what, What::End { .. }))
    else {
        return Vec::new();
    };
    let What::End { backend_volumes, .. } = &event.what else {
        return Vec::new();
    };
    let last = past.revision_by(event.at);
    let forgotten = backend_volumes.iter().filter(|id| {
        volumes_by(past, id, last).is_empty()
            && !has_tombstone(past, id, last)
            && !was_kept(past, id)
            && !was_lost(past, id)
    });
    forgotten
        .map(|id| {
            let made = calls(past).into_iter().find(|(_, _, call)| call.volume == **id);
            let sentence = format!("volume {id} is at the backend, and no record names it");
            Violation::new(
                RULE,
                sentence,
                made.map(|(made, _, _)| made).into_iter().chain([index]),
            )
        })
        .collect()
}

/// Whether a record of the volume said that it stays at the backend.
fn was_kept(past: &Past<'_>, id: &str) -> bool {
    super::publications::all_volumes(past).iter().any(|(_, volume)| {
        let spec = volume.spec.clone().unwrap_or_default();
        super::publications::is_id_of(volume, id)
            && (spec.reclaim_policy() == proto::volume_spec::ReclaimPolicy::Retain || spec.source.is_some())
    })
}

fn has_tombstone(past: &Past<'_>, id: &str, revision: Revision) -> bool {
    let tombstones = past.range_at(&past.keys.tombstones(), revision);
    tombstones.iter().any(|(key, _)| {
        let uid = past.keys.parse_tombstone(key);
        uid.is_some_and(|uid| id.ends_with(uid))
    })
}

/// Whether etcd was restored after the volume was made, from a snapshot that holds neither the intent to make it nor a tombstone.
fn was_lost(past: &Past<'_>, id: &str) -> bool {
    let Some((_, made, _)) = calls(past).into_iter().find(|(_, _, call)| call.volume == id) else {
        return false;
    };
    past.events().any(|(_, event)| {
        let What::Restored { epoch, revision } = &event.what else {
            return false;
        };
        let begin = Revision {
            epoch: *epoch,
            revision: *revision,
        };
        let is_held = volumes_by(past, id, begin).iter().any(|volume| {
            let status = volume.status.as_ref();
            status.is_some_and(|status| status.create.is_some() || !status.volume_id.is_empty())
        });
        made <= event.at && !is_held && !has_tombstone(past, id, begin)
    })
}
