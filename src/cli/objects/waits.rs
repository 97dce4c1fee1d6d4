//! What a volume waits for, in words, computed when shown: the plan of its leader, asked with what is stored.

use std::collections::{BTreeMap, BTreeSet};

use super::view::View;
use crate::proto::{Node, Publication, Volume};
use crate::store::keys::NodeKey;
use crate::store::object::publication::{state, state_word};
use crate::store::object::volume::driver;
use crate::store::object::{Object, decode};
use crate::store::{Keys, Name};
use crate::volumes::plan::{self, Drift, Observed, Offers, Plugin, Step};
use crate::volumes::record::blocked;

/// As if the plugin offered everything: what it does offer, the leader alone knows, and says in a condition.
const EVERYTHING: Offers = Offers {
    create: true,
    publish: true,
    expand: true,
    expand_offline_only: false,
};

/// The publications of a volume that can be read, by node, and what is wrong with the others.
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

fn node(keys: &Keys, view: &View, name: &Name, driver: &str) -> Option<plan::Node> {
    let kv = view.get(&keys.node(name))?;
    let stored = match keys.parse_node(&kv.key) {
        NodeKey::Node(text) => decode::<Node>(text, &kv.value).ok()?,
        NodeKey::Registration(_) | NodeKey::Other => return None,
    };
    let status = stored.status.clone().unwrap_or_default();
    let csi = status.csi.into_iter().find(|csi| csi.plugin == driver);
    Some(plan::Node {
        uid: stored.metadata.clone().unwrap_or_default().uid,
        mod_revision: kv.mod_revision,
        out_of_service: stored.spec.unwrap_or_default().out_of_service,
        csi_node_id: csi.map(|csi| csi.node_id).filter(|id| !id.is_empty()),
    })
}

/// What a volume waits for, a sentence each; none if it is as it should be. The view holds its publications, their nodes
/// and the plugins.
pub fn of_volume(view: &View, name: &str, volume: &Volume) -> Vec<String> {
    let (publications, mut sentences) = publications(view, name);
    let driver = driver(volume);
    let nodes = publications
        .keys()
        .filter_map(|name| Some((name.clone(), node(&view.keys, view, name, driver)?)))
        .collect();
    let plugin = driver.parse::<Name>().ok();
    let plugin = plugin.and_then(|name| view.get(&view.keys.plugin(&name)));
    let decision = plan::plan(&Observed {
        volume,
        publications: &publications,
        // Told by themselves, above.
        unreadable: &BTreeSet::new(),
        nodes: &nodes,
        plugin: match plugin {
            Some(_) => Plugin::Offers(EVERYTHING),
            None => Plugin::Missing,
        },
        resting: &BTreeSet::new(),
        drift: &Drift::default(),
    });
    if let Some(step) = &decision.step {
        sentences.push(step.to_string());
    }
    let others = publications.iter().filter(|(node, publication)| {
        let begun = decision.step.as_ref().map(Step::target);
        let pending = matches!(
            state_word(state(publication)),
            "pendingPublish" | "pendingUnpublish"
        );
        pending && begun != Some(plan::Target::Node((*node).clone()))
    });
    for (node, publication) in others {
        let word = state_word(state(publication));
        sentences.push(format!("its publication to node {node} is {word}"));
    }
    sentences.extend(
        decision
            .waits
            .into_iter()
            .map(|wait| match (wait.reason, wait.target) {
                ("NodeUnpublish", plan::Target::Node(node)) => format!(
                    "{} (quorate unpublish {name} {node} --confirm says so in its place)",
                    wait.message
                ),
                _ => wait.message,
            }),
    );
    let status = volume.status.clone().unwrap_or_default();
    let stored = blocked(&status.conditions).map(|condition| (String::new(), condition.clone()));
    let at_nodes = publications.iter().filter_map(|(node, publication)| {
        let condition = blocked(&publication.status.as_ref()?.conditions)?.clone();
        Some((format!("node {node}: "), condition))
    });
    for (place, condition) in stored.into_iter().chain(at_nodes) {
        if !sentences.contains(&condition.message) {
            sentences.push(format!("{place}{}: {}", condition.reason, condition.message));
        }
    }
    if sentences.is_empty() && volume.is_marked() {
        sentences.push("the leader is to delete it".to_owned());
    }
    sentences
}
