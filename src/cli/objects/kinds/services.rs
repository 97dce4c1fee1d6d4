//! Services, as the commands show them.

use std::marker::PhantomData;

use jiff::Timestamp;

use super::{Concerns, Kind, Shown, Words};
use crate::cli::objects::delete::Deletable;
use crate::cli::objects::delete::marked::DeleteMarked;
use crate::cli::objects::view::View;
use crate::cli::objects::{description, pending};
use crate::cli::output::{Column, Description, NONE, or_none, yes_no};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::Service;
use crate::store::keys::DeallocatorKey;
use crate::store::object::change::{Codec, Of};
use crate::store::object::mark::Marked;
use crate::store::object::{Object, service};
use crate::store::{Id, Keys, Name};

/// The kind.
pub struct Services;

static WORDS: Words = Words {
    kind: Service::KIND,
    singular: "service",
    plural: "services",
    short: &["svc"],
};

static CODEC: Of<Service> = Of::new();

static DELETE: DeleteMarked<Service> = DeleteMarked {
    key: Keys::service,
    ranges: |keys, name| ranges(keys, Some(name)),
    blockers: |view, name| pending::of_service(view, name.as_str()),
    condition: "it goes once it has no task",
    kind: PhantomData,
};

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("NETWORKS"),
    Column::new("TASKS"),
    Column::new("DELETING"),
    Column::new("BLOCKERS"),
    Column::new("AGE"),
    Column::wide("UID"),
    Column::wide("LABELS"),
];

fn ranges(keys: &Keys, name: Option<&Name>) -> Vec<KeyRange> {
    match name {
        None => vec![keys.services(), keys.tasks()],
        Some(name) => vec![KeyRange::key(keys.service(name)), keys.tasks_of(name)],
    }
}

impl Kind for Services {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange> {
        ranges(keys, id.map(|id| &id.name))
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        keys.service(&id.name)
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        keys.parse_service(key)
    }

    fn concerns(&self, keys: &Keys, key: &[u8]) -> Concerns {
        match keys.parse_deallocator(key) {
            DeallocatorKey::Service(_) => Concerns::One(key.to_vec()),
            DeallocatorKey::Task { service, .. } => std::str::from_utf8(service)
                .ok()
                .and_then(|service| service.parse().ok())
                .map_or(Concerns::Nothing, |name| Concerns::One(keys.service(&name))),
            DeallocatorKey::Network(_) | DeallocatorKey::Node(_) | DeallocatorKey::Other => Concerns::Nothing,
        }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        Shown::object(COLUMNS, name, kv, now, |service: &Service| {
            let tasks = pending::of_service(view, name);
            let holding = if service.is_marked() { &tasks[..] } else { &[] };
            let cells = vec![
                or_none(&service::networks_in_force(service).join(",")).to_owned(),
                tasks.len().to_string(),
                yes_no(service.is_marked()).to_owned(),
                pending::cell(holding),
            ];
            (cells, service::to_document(service, kv.mod_revision, holding))
        })
    }

    fn describe(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        description::object(name, kv, now, |description, service: Option<&Service>| {
            let tasks = pending::of_service(view, name);
            if let Some(service) = service {
                describe_networks(description, service);
            }
            description.field(0, "Tasks", tasks.len().to_string());
            if let Some(service) = service {
                description.mark(service.mark(), now);
                description.blockers(if service.is_marked() { &tasks } else { &[] });
            }
        })
    }

    fn applied(&self) -> Option<&'static dyn Codec> {
        Some(&CODEC)
    }

    fn deleted(&self) -> Option<&'static dyn Deletable> {
        Some(&DELETE)
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
        .field(0, "Networks", own)
        .field(0, "Task Networks", or_none(&spec.task_networks.join(",")));
}
