//! INV-3: calls that etcd cannot fence start within the window, and after their intent.

use prost::Message;
use quorate::etcd::MemberId;
use quorate::proto;
use quorate::proto::join::Progress;

use super::excuses::{apiserver_was_away, may_be_late};
use super::inv_5::is_recorded;
use super::past::Past;
use super::publications::{volume_of, volumes_by};
use super::records::who;
use super::{Rule, Violation};
use crate::history::{At, CsiCall, MemberCall, MemberChange, Process, Revision, What};

const RULE: Rule = Rule::Inv(3);

/// Calls by which a plugin changes what is at its backend.
pub const CHANGING: [&str; 5] = [
    "CreateVolume",
    "DeleteVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ControllerExpandVolume",
];

/// The longest that a call may come after its term because something held it back, in milliseconds.
const LATEST: u64 = 60_000;

/// Calls that a process started although it could not believe that it leads. Of a CSI call without a known caller, that no
/// process could.
pub fn calls_outside_the_window(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, event) in past.events() {
        let (by, what) = match &event.what {
            What::Member(call) => (
                call.by.as_ref(),
                "asked for a change of etcd's members".to_owned(),
            ),
            What::Kubernetes(write) if !write.dry_run => (
                Some(&write.by),
                format!("wrote {} {}", write.resource, write.name),
            ),
            What::Csi(call) if CHANGING.contains(&call.rpc.as_str()) => (
                call.by.as_ref(),
                format!("called {} for {}", call.rpc, call.volume),
            ),
            _ => continue,
        };
        let outside = match by {
            Some(by) if past.is_replica(by) => outside(past, by, event.at),
            Some(_) => None,
            None => outside_all(past, event.at),
        };
        let is_kubernetes = matches!(event.what, What::Kubernetes(_));
        if let Some((why, shown)) = outside.filter(|_| !is_kubernetes || !apiserver_was_away(past, event.at))
        {
            let sentence = format!("{} {what} while {why}", who(by));
            found.push(Violation::new(RULE, sentence, shown.into_iter().chain([index])));
        }
    }
    found
}

fn outside(past: &Past<'_>, by: &Process, at: At) -> Option<(String, Option<usize>)> {
    let outside = past.terms.judge(past, by, at).err()?;
    let excused = outside
        .since()
        .is_some_and(|since| may_be_late(past, Some(by), since, at));
    (!excused).then(|| (outside.words(), outside.event()))
}

fn outside_all(past: &Past<'_>, at: At) -> Option<(String, Option<usize>)> {
    let begun = past.seen_by(at);
    let recent = past.terms.all.iter().filter(|term| {
        term.first.is_some_and(|(first, _)| first <= begun)
            && term
                .ended
                .is_none_or(|(ended, _)| ended.plus_millis(LATEST) >= at)
    });
    let mut recent = recent.filter_map(|term| term.process);
    let is_inside = recent.any(|process| outside(past, process, at).is_none());
    (!is_inside).then(|| ("no replica could believe that it leads".to_owned(), None))
}

/// Calls that cannot be undone, without their intent in etcd. The watch may bring the intent after the call, but no process may have
/// sent it after the call.
pub fn calls_without_intent(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, event) in past.events() {
        if past.is_just_restored(event.at, past.history.run.settings.lease_ttl) {
            continue;
        }
        let missing = match &event.what {
            What::Csi(call) => csi_intent(past, call, event.at),
            What::Member(call) if past.may_be_replica(call.by.as_ref()) => {
                member_intent(past, call, event.at)
            }
            What::Kubernetes(write) if past.is_replica(&write.by) && !write.dry_run => {
                inventory(past, write, event.at)
            }
            _ => None,
        };
        if let Some(missing) = missing {
            found.push(Violation::new(RULE, missing, [index]));
        }
    }
    found
}

/// Whether something held at a revision between what the watch had brought by the call and the last one that was sent before the call. A
/// transaction is recorded before it reaches etcd.
fn held(past: &Past<'_>, at: At, holds: impl FnMut(Revision) -> bool) -> bool {
    let was_sent_by_then = |revision: &Revision| {
        let writer = past.writer(*revision);
        writer.is_none_or(|(call, _)| past.history.events[call].at <= at)
    };
    past.revisions(at, at).is_none_or(|revisions| {
        let soon = revisions.take_while(was_sent_by_then);
        soon.chain(past.brought_late(at)).any(holds)
    })
}

fn csi_intent(past: &Past<'_>, call: &CsiCall, at: At) -> Option<String> {
    let has_intent = |wanted: fn(&proto::VolumeStatus) -> bool| {
        held(past, at, |revision| {
            let volumes = volumes_by(past, &call.volume, revision);
            let mut status = volumes.iter().filter_map(|volume| volume.status.as_ref());
            status.any(wanted) || !past.range_at(&past.keys.tombstones(), revision).is_empty()
        })
    };
    match call.rpc.as_str() {
        "CreateVolume" if !has_intent(|status| status.create.is_some()) => Some(format!(
            "CreateVolume for {} was called without an intent in its record",
            call.volume
        )),
        "DeleteVolume" if !has_intent(|status| status.delete_attempted) => Some(format!(
            "DeleteVolume for {} was called without an intent in its record",
            call.volume
        )),
        "ControllerPublishVolume" => {
            let node_id = call.node_id.clone().unwrap_or_default();
            let is_stored = held(past, at, |revision| {
                past.range_at(&past.keys.publications(), revision)
                    .iter()
                    .filter_map(|(_, version)| proto::Publication::decode(version.value?).ok())
                    .filter(|publication| {
                        volume_of(past, publication, revision).is_some_and(|id| id == call.volume)
                    })
                    .any(|publication| publication.status.unwrap_or_default().csi_node_id == node_id)
            });
            (!is_stored).then(|| {
                format!(
                    "ControllerPublishVolume of {} to {node_id} was called, which no publication stores",
                    call.volume
                )
            })
        }
        _ => None,
    }
}

fn member_intent(past: &Past<'_>, call: &MemberCall, at: At) -> Option<String> {
    let record = |id: u64, wanted: fn(&proto::Member) -> bool| {
        let key = past.keys.member(MemberId(id));
        held(past, at, |revision| {
            let member: Option<proto::Member> = past.message_at(&key, revision);
            member.is_some_and(|member| wanted(&member))
        })
    };
    let (change, stands) = match &call.change {
        MemberChange::Add { peer_urls, .. } => {
            let stands = held(past, at, |revision| {
                let joins = past.range_at(&past.keys.joins(), revision);
                joins
                    .iter()
                    .filter_map(|(_, version)| proto::Join::decode(version.value?).ok())
                    .any(|join| join.progress() == Progress::Adding && join.peer_urls == *peer_urls)
            });
            ("add of a member".to_owned(), stands)
        }
        MemberChange::Promote(id) => (
            format!("promotion of member {id:x}"),
            record(*id, |member| member.promotion.is_some()),
        ),
        MemberChange::Remove(id) => {
            // Without a record there is no place for an intent: that is another fault.
            let stands = !is_recorded(past, *id, at) || record(*id, |member| member.removal.is_some());
            (format!("removal of member {id:x}"), stands)
        }
        MemberChange::Update { id, .. } => (
            format!("move of member {id:x}"),
            record(*id, |member| member.readdress.is_some()),
        ),
    };
    (!stands).then(|| {
        let who = who(call.by.as_ref());
        format!("{who} asked for the {change} without an intent in etcd")
    })
}

/// Events and questions about permissions have no entry in the inventory, and nothing that the product writes besides.
fn inventory(past: &Past<'_>, write: &crate::history::KubernetesWrite, at: At) -> Option<String> {
    let resource = write.resource.rsplit('/').next().unwrap_or_default();
    if resource == "events" || resource.ends_with("reviews") {
        return None;
    }
    let stands = held(past, at, |revision| {
        past.range_at(&past.keys.all_inventory(), revision)
            .iter()
            .any(|(key, _)| {
                let parsed = past.keys.parse_inventory(key);
                parsed.is_some_and(|(_, _, namespace, name)| {
                    name == write.name && namespace.unwrap_or_default() == write.namespace
                })
            })
    });
    (!stands).then(|| {
        format!(
            "{} wrote {} {}, which the inventory does not have",
            write.by, write.resource, write.name
        )
    })
}
