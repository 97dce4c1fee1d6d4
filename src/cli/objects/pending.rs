//! What services, networks and volumes still wait for, in words. It is computed when it is shown, never stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message;

use super::view::View;
use crate::cli::output::{NONE, one_line, or_none};
use crate::proto::publication_status::State;
use crate::proto::{self, Node, PluginStatus, Publication, Service, Task, Volume};
use crate::store::Name;
use crate::store::keys::NodeKey;
use crate::store::object::publication::{node_uid, state, state_word};
use crate::store::object::volume::{driver, made_at};
use crate::store::object::{Object, decode, plugin, service, task};
use crate::volumes::plan::{self, Decision, Observed, Offers, Plugin, Step, Target, WaitReason};
use crate::volumes::record::blocked;

/// Capabilities that are assumed of a plugin: only the leader knows the real ones, and reports what is missing in a
/// condition.
const EVERYTHING: Offers = Offers {
    create: true,
    publish: true,
    expand: true,
    expand_offline_only: false,
    created_before: false,
};

/// The tasks of a service, each in words. The view holds all tasks of the service.
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
            Ok(task) => format!("task {id} ({})", task_state(&task)),
            Err(_) => format!("task {} (malformed)", one_line(id)),
        }
    });
    tasks.collect()
}

/// `running on n1`, or without the node if the task has none.
pub fn task_state(task: &Task) -> String {
    let state = task::state_word(task);
    match task.spec.as_ref().map_or("", |spec| spec.node.as_str()) {
        "" => or_none(&state).to_owned(),
        node => format!("{} on {node}", or_none(&state)),
    }
}

/// Which services use which network.
pub struct NetworkUsers {
    by_network: BTreeMap<String, Vec<String>>,
    unreadable: Vec<String>,
}

impl NetworkUsers {
    /// The users in a view that holds all services.
    pub fn of(view: &View) -> Arc<Self> {
        view.derived(|view| {
            let mut users = Self {
                by_network: BTreeMap::new(),
                unreadable: Vec::new(),
            };
            for kv in view.below(&view.keys.services()) {
                // A key that is not UTF-8 belongs to no service; `decode` reports it.
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

    /// The readable services that use a network, each in words.
    pub fn known(&self, network: &str) -> &[String] {
        self.by_network.get(network).map_or(&[], Vec::as_slice)
    }

    /// What holds a marked network back. An unreadable service holds every network.
    pub fn blockers(&self, network: &str) -> Vec<String> {
        self.known(network)
            .iter()
            .chain(&self.unreadable)
            .cloned()
            .collect()
    }
}

/// Blockers in a table cell: the first one, and how many more there are.
pub fn cell(blockers: &[String]) -> String {
    match blockers {
        [] => NONE.to_owned(),
        [only] => only.clone(),
        [first, more @ ..] => format!("{first} and {} more", more.len()),
    }
}

/// The readable publications of a volume by node, and a sentence about each unreadable one.
pub fn publications(view: &View, volume: &str) -> (BTreeMap<Name, Publication>, Vec<String>) {
    let (mut readable, mut malformed) = (BTreeMap::new(), Vec::new());
    let Ok(volume) = volume.parse::<Name>() else {
        return (readable, malformed);
    };
    for kv in view.below(&view.keys.publications_of(&volume)) {
        let id = view.keys.parse_publication(&kv.key).unwrap_or_default();
        let node = id.split_once('/').and_then(|(_, node)| node.parse::<Name>().ok());
        match (node, decode::<Publication>(id, &kv.value)) {
            (Some(node), Ok(publication)) => {
                readable.insert(node, publication);
            }
            (_, Err(why)) => malformed.push(format!("publication {id} cannot be read: {why}")),
            (None, Ok(_)) => malformed.push(format!("publication {id} names no node")),
        }
    }
    (readable, malformed)
}

/// The status of a plugin, if the leader has written one that can be read.
pub fn plugin_status(view: &View, plugin: &str) -> Option<PluginStatus> {
    let kv = view.get(&view.keys.plugin_status(&plugin.parse().ok()?))?;
    PluginStatus::decode(kv.value.as_slice()).ok()
}

/// Why the plugin of a volume cannot be called, as `PluginUnreachable: cannot connect to …`, where the volume waits for it: the
/// reason, and the sentence.
pub fn waits_for_plugin(
    view: &View,
    volume: &Volume,
    publications: &BTreeMap<Name, Publication>,
) -> Option<(String, String)> {
    let step = decide(view, volume, publications).step;
    if step != Some(Step::Connect) {
        return None;
    }
    let driver = driver(volume);
    let status = plugin_status(view, driver)?;
    let (reason, message) = plugin::not_ready(&status)?;
    Some((
        reason.to_owned(),
        format!("plugin {driver}: {reason}: {}", one_line(message)),
    ))
}

/// What a volume waits for, one sentence each; empty if it is as desired. The view holds its publications, and
/// all nodes, removed nodes and plugins.
pub fn of_volume(view: &View, name: &str, volume: &Volume) -> Vec<String> {
    let (publications, mut sentences) = publications(view, name);
    let Decision { step, waits } = decide(view, volume, &publications);
    let unready = waits_for_plugin(view, volume, &publications).map(|(_, sentence)| sentence);
    let next = step.as_ref().map(|step| format!("the leader has to {step}"));
    sentences.extend(unready.or(next));
    let target = step.as_ref().map(Step::target);
    for (node, publication) in &publications {
        let state = state(publication);
        let pending = matches!(state, State::PendingPublish | State::PendingUnpublish);
        if pending && target != Some(Target::Node(node.clone())) {
            sentences.push(format!("its publication to node {node} is {}", state_word(state)));
        }
    }
    sentences.extend(waits.into_iter().map(|wait| match (wait.reason, wait.target) {
        (WaitReason::NodeUnpublish, Target::Node(node)) => format!(
            "{} (quorate unpublish {name} {node} --confirm says so in its place)",
            wait.message
        ),
        _ => wait.message,
    }));
    for (message, sentence) in blocked_sentences(volume, &publications) {
        if !sentences.contains(&message) {
            sentences.push(sentence);
        }
    }
    if sentences.is_empty() && volume.is_marked() {
        sentences.push("the leader deletes it next".to_owned());
    }
    sentences
}

/// What the leader would do next, planned from what is stored.
fn decide(view: &View, volume: &Volume, publications: &BTreeMap<Name, Publication>) -> Decision {
    let driver = driver(volume);
    let nodes = publications
        .keys()
        .filter_map(|name| Some((name.clone(), node(view, name, driver)?)))
        .collect();
    let removed = publications.iter().filter_map(|(node, publication)| {
        let record = view.get(&view.keys.removed(node_uid(publication)))?;
        Some((node.clone(), record.mod_revision))
    });
    plan::plan(&Observed {
        volume,
        publications,
        // `publications` has a sentence about each.
        unreadable: &BTreeSet::new(),
        // The leader knows, and says so in a condition.
        twin: None,
        namesake: None,
        nodes: &nodes,
        removed: &removed.collect(),
        plugin: observe_plugin(view, volume),
        resting: &BTreeSet::new(),
        lost: &BTreeSet::new(),
    })
}

/// The plugin of a volume, by its record and its status.
fn observe_plugin(view: &View, volume: &Volume) -> Plugin {
    let driver = driver(volume);
    let name = driver.parse::<Name>().ok();
    let Some(kv) = name.and_then(|name| view.get(&view.keys.plugin(&name))) else {
        return Plugin::Missing;
    };
    let status = plugin_status(view, driver).unwrap_or_default();
    if plugin::not_ready(&status).is_some() {
        return Plugin::Unknown;
    }
    let reported = status.backend.unwrap_or_default().id;
    match decode::<proto::Plugin>(driver, &kv.value) {
        Ok(record) if !plugin::is_backend_of(&record, &reported, made_at(volume)) => Plugin::OtherBackend,
        _ => Plugin::Offers(EVERYTHING),
    }
}

fn node(view: &View, name: &Name, driver: &str) -> Option<plan::Node> {
    let kv = view.get(&view.keys.node(name))?;
    let NodeKey::Node(text) = view.keys.parse_node(&kv.key) else {
        return None;
    };
    let stored = decode::<Node>(text, &kv.value).ok()?;
    let csi = stored.status.unwrap_or_default().csi;
    let csi = csi.into_iter().find(|csi| csi.plugin == driver);
    let csi = csi.unwrap_or_default();
    let spec = stored.spec.unwrap_or_default();
    Some(plan::Node {
        uid: stored.metadata.unwrap_or_default().uid,
        mod_revision: kv.mod_revision,
        out_of_service: spec.out_of_service,
        availability: spec.availability(),
        csi_node_id: Some(csi.node_id).filter(|id| !id.is_empty()),
        topology: csi.topology,
    })
}

/// The stored conditions that block the volume or its publications: their messages, and a sentence about each.
fn blocked_sentences<'a>(
    volume: &'a Volume,
    publications: &'a BTreeMap<Name, Publication>,
) -> impl Iterator<Item = (String, String)> + use<'a> {
    let own = volume
        .status
        .as_ref()
        .and_then(|status| blocked(&status.conditions));
    let own = own.map(|condition| (String::new(), condition));
    let at_nodes = publications.iter().filter_map(|(node, publication)| {
        let condition = blocked(&publication.status.as_ref()?.conditions)?;
        Some((format!("node {node}: "), condition))
    });
    own.into_iter().chain(at_nodes).map(|(place, condition)| {
        let sentence = format!("{place}{}: {}", condition.reason, condition.message);
        (condition.message.clone(), sentence)
    })
}
