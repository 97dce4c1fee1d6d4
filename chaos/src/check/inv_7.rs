//! INV-7: a service is deleted only without tasks, a network only marked and unused.

use prost::Message;
use quorate::proto;
use quorate::store::{Keys, Name};

use super::past::Past;
use super::records::before;
use super::{Rule, Violation};
use crate::history::{Change, Changed, Is, Target};

const RULE: Rule = Rule::Inv(7);

/// The deletions of objects of a kind, with the event and the name. Something that could not be read is no object: who wrote it may
/// delete it, and replicas may not.
fn deletions<'h, M: Message + Default>(
    past: &Past<'h>,
    parse: fn(&Keys, &'h [u8]) -> Option<&'h str>,
) -> Vec<(usize, &'h Changed, Name)> {
    let deleted = past
        .changes()
        .filter(|(_, _, changed)| changed.change == Change::Deleted);
    let is_object = |changed: &Changed| {
        let writer = past.writer(changed.revision);
        writer.is_some_and(|(_, call)| past.is_replica(&call.by))
            || past
                .message_at::<M>(&changed.key.0, before(changed.revision))
                .is_some()
    };
    deleted
        .filter_map(|(index, _, changed)| {
            Some((index, changed, parse(&past.keys, &changed.key.0)?.parse().ok()?))
        })
        .filter(|(_, changed, _)| is_object(changed))
        .collect()
}

/// Services that were deleted unmarked, with a task, or in a transaction that does not prove that there is none.
pub fn services_with_tasks(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, changed, name) in deletions::<proto::Service>(past, Keys::parse_service) {
        let earlier = before(changed.revision);
        let tasks = past.keys.tasks_of(&name);
        if let Some((task, version)) = past.range_at(&tasks, earlier).into_iter().next() {
            let sentence = format!("service {name} was deleted while it had {}", task.escape_ascii());
            found.push(Violation::new(RULE, sentence, [version.event, index]));
        }
        let service: Option<proto::Service> = past.message_at(&changed.key.0, earlier);
        let is_marked = service.is_some_and(|service| {
            service
                .status
                .is_some_and(|status| status.delete_requested.is_some())
        });
        if !is_marked {
            let sentence = format!("service {name} was deleted without a mark");
            found.push(Violation::new(RULE, sentence, [index]));
        }
        let writer = past
            .writer(changed.revision)
            .filter(|(_, call)| past.is_replica(&call.by));
        if let Some((call_index, call)) = writer {
            let is_proven = call.compares.iter().any(|compare| {
                compare.key.0 == tasks.start()
                    && !compare.end.0.is_empty()
                    && compare.is == Is::Equal
                    && compare.target == Target::Created(0)
            });
            if !is_proven {
                let sentence = format!(
                    "{} deleted service {name} without proving that it has no task",
                    call.by
                );
                found.push(Violation::new(RULE, sentence, [call_index, index]));
            }
        }
    }
    found
}

/// Networks that were deleted unmarked, or while a service refers to them that is not deleted with them.
pub fn networks_in_use(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, changed, name) in deletions::<proto::Network>(past, Keys::parse_network) {
        let earlier = before(changed.revision);
        let network: Option<proto::Network> = past.message_at(&changed.key.0, earlier);
        let is_marked = network.is_some_and(|network| {
            network
                .status
                .is_some_and(|status| status.delete_requested.is_some())
        });
        if !is_marked {
            let sentence = format!("network {name} was deleted without a mark");
            found.push(Violation::new(RULE, sentence, [index]));
        }
        let mut services = past.range_at(&past.keys.services(), changed.revision).into_iter();
        let user = services.find(|(_, version)| {
            let service = version.value.and_then(|value| proto::Service::decode(value).ok());
            service
                .and_then(|service| service.spec)
                .is_some_and(|spec| refers(&spec, name.as_str()))
        });
        if let Some((service, version)) = user {
            let sentence = format!(
                "network {name} was deleted while {} refers to it",
                service.escape_ascii()
            );
            found.push(Violation::new(RULE, sentence, [version.event, index]));
        }
    }
    found
}

fn refers(spec: &proto::ServiceSpec, network: &str) -> bool {
    let in_force = if spec.task_networks.is_empty() {
        &spec.networks
    } else {
        &spec.task_networks
    };
    in_force.iter().any(|name| name == network)
}
