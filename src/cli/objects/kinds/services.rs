//! The Service kind for commands.

use futures::FutureExt;

use super::{Affected, Kind, Shown, Words};
use crate::cli::objects::delete::{Blockers, Deletable, Ending, marked};
use crate::cli::objects::pending;
use crate::cli::objects::view::Item;
use crate::cli::output::{Description, NONE, or_none};
use crate::proto::Service;
use crate::store::keys::KeySpace;
use crate::store::object::change::Of;
use crate::store::object::{Malformed, Object, service};

/// The kind.
pub static SERVICES: Kind = Kind {
    applied: Some(Of::<Service>::CODEC),
    beside: |keys, name| vec![name.map_or_else(|| keys.tasks(), |name| keys.tasks_of(name))],
    affected: |keys, key| Affected::named(keys.parse_task(key), |name| keys.service(name)),
    ..Kind::new(
        Words::new(Service::KIND, "service", "services", &["svc"]),
        KeySpace::SERVICES,
        &["NAME", "NETWORKS", "TASKS", "DELETING", "BLOCKERS", "AGE"],
        &["UID", "LABELS"],
        show,
        describe,
        Ok(&DELETED),
    )
};

static DELETED: Deletable = Deletable {
    plan: |request| marked::plan::<Service>(request, "it goes once it has no task").boxed(),
    plan_absent: None,
    ending: Some(Ending::of_marked(Blockers::Objects(|view, id| {
        pending::of_service(view, id.name.as_str())
    }))),
};

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let service: Service = item.object()?;
    let tasks = pending::of_service(item.view, item.name);
    let cells = vec![
        service::networks_in_force(&service).join(","),
        tasks.len().to_string(),
    ];
    Ok(Shown::marked(&service, item, cells, &tasks, service::to_document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    let service = description.object::<Service>(item);
    let tasks = pending::of_service(item.view, item.name);
    if let Some(service) = &service {
        describe_networks(description, service);
    }
    description.field("Tasks", tasks.len().to_string());
    if let Some(service) = &service {
        description.deletion(service, item.now, &tasks);
    }
}

fn describe_networks(description: &mut Description, service: &Service) {
    let spec = service.spec.clone().unwrap_or_default();
    let own = match (spec.networks.is_empty(), spec.task_networks.is_empty()) {
        (true, _) => NONE.to_owned(),
        (false, true) => spec.networks.join(","),
        (false, false) => format!(
            "{} (not in force: the task networks are)",
            spec.networks.join(",")
        ),
    };
    description
        .field("Networks", own)
        .field("Task Networks", or_none(&spec.task_networks.join(",")));
}
