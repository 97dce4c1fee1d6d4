//! INV-8: one bad object delays only itself.

use prost::Message;
use quorate::proto;

use super::past::Past;
use super::{Rule, Violation};
use crate::history::{At, Change, What};

/// For how long a leader without a fault around it may leave work undone, in milliseconds.
const PATIENCE: u64 = 60_000;

/// Marked services without a task that a leader left, for long and without a fault, while another object cannot be read.
pub fn delayed_services(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let range = past.keys.services();
    for (index, at, changed) in past
        .changes()
        .filter(|(_, _, changed)| range.contains(&changed.key.0))
    {
        let Change::Put { value, .. } = &changed.change else {
            continue;
        };
        let service = proto::Service::decode(value.0.as_slice()).unwrap_or_default();
        let name = past
            .keys
            .parse_service(&changed.key.0)
            .and_then(|name| name.parse().ok());
        let is_marked = service
            .status
            .is_some_and(|status| status.delete_requested.is_some());
        let (Some(name), true) = (name, is_marked) else {
            continue;
        };
        let until = at.plus_millis(PATIENCE);
        let end = past.revision_by(until);
        let is_left = past
            .at(&changed.key.0, end)
            .is_some_and(|version| version.revision == changed.revision);
        let tasks = past.versions(&past.keys.tasks_of(&name));
        let had_tasks = tasks
            .iter()
            .any(|(_, version)| version.at >= at && version.at <= until)
            || !past
                .range_at(&past.keys.tasks_of(&name), changed.revision)
                .is_empty();
        if !is_left || had_tasks || !is_quiet(past, at, until) {
            continue;
        }
        if let Some(bad) = unreadable(past, at, until) {
            let sentence = format!(
                "service {name} is marked and has no task, and was left for a minute while another object cannot be read"
            );
            found.push(Violation::new(Rule::Inv(8), sentence, [bad, index]));
        }
    }
    found
}

/// Whether one process led all the time, no fault was under way, and the run went on.
fn is_quiet(past: &Past<'_>, from: At, until: At) -> bool {
    let leads = past.terms.all.iter().any(|term| {
        term.first.is_some_and(|(first, _)| first <= from)
            && term.ended.is_none_or(|(ended, _)| ended > until)
    });
    let is_disturbed = past.events().any(|(_, event)| match &event.what {
        What::Fault(fault) => event.at <= until && fault.ended >= from,
        What::Restored { .. } => event.at >= from && event.at <= until,
        _ => false,
    });
    let last = past.history.events.last().map(|event| event.at);
    leads && !is_disturbed && last.is_some_and(|last| last >= until)
}

/// A service, network, task or node that cannot be decoded during that time.
fn unreadable(past: &Past<'_>, from: At, until: At) -> Option<usize> {
    let last = past.revision_by(from);
    type IsUnreadable = fn(&[u8]) -> bool;
    let ranges: [(_, IsUnreadable); 4] = [
        (past.keys.services(), |value| {
            proto::Service::decode(value).is_err()
        }),
        (past.keys.networks(), |value| {
            proto::Network::decode(value).is_err()
        }),
        (past.keys.tasks(), |value| proto::Task::decode(value).is_err()),
        (past.keys.volumes(), |value| proto::Volume::decode(value).is_err()),
    ];
    let before = ranges.iter().find_map(|(range, is_bad)| {
        let mut stored = past.range_at(range, last).into_iter();
        stored.find(|(_, version)| version.value.is_some_and(is_bad))
    });
    let meanwhile = || {
        ranges.iter().find_map(|(range, is_bad)| {
            let mut all = past.versions(range).into_iter();
            all.find(|(_, version)| {
                version.at >= from && version.at <= until && version.value.is_some_and(is_bad)
            })
        })
    };
    before.or_else(meanwhile).map(|(_, version)| version.event)
}
