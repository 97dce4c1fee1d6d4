//! What holds services and networks back from going, computed when shown: nothing of it is stored. Why a malformed one is
//! malformed is said where it is shown itself.

use std::collections::BTreeMap;

use super::view::{Derived, View};
use crate::cli::output::{Description, NONE, one_line, or_none};
use crate::proto::{Service, Task};
use crate::store::Name;
use crate::store::object::{decode, service, task};

/// How many blockers a description lists.
const LISTED: usize = 10;

/// The tasks of a service, each in words. The view holds all of them.
pub fn of_service(view: &View, name: &str) -> Vec<String> {
    let Ok(name) = name.parse::<Name>() else {
        return Vec::new();
    };
    let range = view.keys.tasks_of(&name);
    let tasks = view.below(&range).map(|kv| {
        let Some(id) = view.keys.parse_task(&kv.key) else {
            return format!("task {} (malformed)", one_line(&String::from_utf8_lossy(&kv.key)));
        };
        match decode::<Task>(id, &kv.value) {
            Ok(task) => format!("task {id} ({})", state(&task)),
            Err(_) => format!("task {} (malformed)", one_line(id)),
        }
    });
    tasks.collect()
}

/// `running on n1`, or without the node if the task has none.
pub fn state(task: &Task) -> String {
    let state = task::state_word(task);
    match task.spec.as_ref().map_or("", |spec| spec.node.as_str()) {
        "" => or_none(&state).to_owned(),
        node => format!("{} on {node}", or_none(&state)),
    }
}

/// Which services use which network.
pub struct Users {
    by_network: BTreeMap<String, Vec<String>>,
    unreadable: Vec<String>,
}

impl Users {
    /// Of the services in a view, which holds all of them.
    pub fn of(view: &View) -> Derived<'_, Self> {
        view.derived(|view| {
            let mut users = Self {
                by_network: BTreeMap::new(),
                unreadable: Vec::new(),
            };
            for kv in view.below(&view.keys.services()) {
                // A key that is no text is the key of no service: `decode` says so.
                let text = String::from_utf8_lossy(&kv.key);
                let name = view.keys.parse_service(&kv.key).unwrap_or(&text);
                match decode::<Service>(name, &kv.value) {
                    Ok(service) => {
                        for network in service::networks_in_force(&service) {
                            let services = users.by_network.entry(network.clone()).or_default();
                            services.push(format!("service {name}"));
                        }
                    }
                    Err(_) => users.unreadable.push(format!(
                        "service {} (malformed, so it may use any network)",
                        one_line(name)
                    )),
                }
            }
            users
        })
    }

    /// The services that use a network, each in words; not those that cannot be read.
    pub fn known(&self, network: &str) -> &[String] {
        self.by_network.get(network).map_or(&[], Vec::as_slice)
    }

    /// What holds a marked network back.
    pub fn blockers(&self, network: &str) -> Vec<String> {
        self.known(network)
            .iter()
            .chain(&self.unreadable)
            .cloned()
            .collect()
    }
}

/// All of them in a cell: the first, and how many more.
pub fn cell(blockers: &[String]) -> String {
    match blockers {
        [] => NONE.to_owned(),
        [only] => only.clone(),
        [first, more @ ..] => format!("{first} and {} more", more.len()),
    }
}

/// A section with a line for each, up to a limit.
pub fn describe(description: &mut Description, blockers: &[String]) {
    let mut title = "Blockers";
    for blocker in blockers.iter().take(LISTED) {
        description.field(0, title, blocker);
        title = "";
    }
    match blockers.len() {
        0 => description.field(0, title, NONE),
        many if many > LISTED => description.field(0, title, format!("and {} more", many - LISTED)),
        _ => description,
    };
}
