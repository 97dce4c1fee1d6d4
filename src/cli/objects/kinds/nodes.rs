//! Nodes, as the commands show them.

use jiff::Timestamp;

use super::{Concerns, Kind, Shown, Words, age_cell, identity_cells};
use crate::cli::objects::delete::{Deletable, nodes::DeleteNode};
use crate::cli::objects::description;
use crate::cli::objects::view::View;
use crate::cli::output::{Column, Description, NONE, one_line, or_none, pairs, yes_no};
use crate::etcd::{KeyRange, KeyValue, MemberId};
use crate::proto::join::Progress;
use crate::proto::{Member, Metadata, Node};
use crate::roles::plan::{cause_words, progress_word};
use crate::store::object::change::{Codec, Of};
use crate::store::object::{Object, member, node, replica, time};
use crate::store::{
    Id, Keys, Name,
    keys::{NodeKey, RoleKey},
};

/// The kind.
pub struct Nodes;

static WORDS: Words = Words {
    kind: Node::KIND,
    singular: "node",
    plural: "nodes",
    short: &["no"],
};

static CODEC: Of<Node> = Of::new();

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("ROLE"),
    Column::new("DESIRED"),
    Column::new("READY"),
    Column::new("AVAILABILITY"),
    Column::new("RELEASE"),
    Column::new("CONTROLLER"),
    Column::new("AGE"),
    Column::wide("UID"),
    Column::wide("LABELS"),
    Column::wide("CSI"),
];

fn is_ready(view: &View, name: &str) -> bool {
    let name = name.parse::<Name>().ok();
    name.is_some_and(|name| view.get(&view.keys.alive(&name)).is_some())
}

/// The record that ties a member of etcd to this node.
fn member_of(view: &View, name: &str, uid: &str) -> Option<(MemberId, Member)> {
    view.below(&view.keys.members()).find_map(|kv| {
        let RoleKey::Member(id) = view.keys.parse_role(&kv.key) else {
            return None;
        };
        let record = member::decode_member(&kv.value).ok()?;
        (record.node == name && record.node_uid == uid).then_some((id, record))
    })
}

impl Kind for Nodes {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange> {
        match id.map(|id| &id.name) {
            None => vec![keys.nodes(), keys.all_alive(), keys.members(), keys.joins()],
            Some(name) => vec![
                KeyRange::key(keys.node(name)),
                KeyRange::key(keys.alive(name)),
                KeyRange::key(keys.registration(name)),
                KeyRange::key(keys.join(name)),
                keys.members(),
            ],
        }
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        keys.node(&id.name)
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        match keys.parse_node(key) {
            NodeKey::Node(name) => Some(name),
            NodeKey::Registration(_) | NodeKey::Other => None,
        }
    }

    fn concerns(&self, keys: &Keys, key: &[u8]) -> Concerns {
        if let NodeKey::Node(_) = keys.parse_node(key) {
            return Concerns::One(key.to_vec());
        }
        if let RoleKey::Member(_) = keys.parse_role(key) {
            // Whose it was, a record that is gone does not say; members are few.
            return Concerns::All;
        }
        match keys.parse_alive(key).map(str::parse::<Name>) {
            Some(Ok(name)) => Concerns::One(keys.node(&name)),
            _ => Concerns::Nothing,
        }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        Shown::decoded(COLUMNS, name, kv, |node: &Node, metadata| {
            let ready = is_ready(view, name);
            let spec = node.spec.unwrap_or_default();
            let status = node.status.clone().unwrap_or_default();
            let plugins: Vec<&str> = status.csi.iter().map(|csi| csi.plugin.as_str()).collect();
            let mut cells = vec![
                or_none(&node::role_word(status.role)).to_owned(),
                or_none(&node::role_word(spec.desired_role)).to_owned(),
                yes_no(ready).to_owned(),
                or_none(&node::availability_word(spec.availability)).to_owned(),
                node::release_word(node).unwrap_or_else(|| NONE.to_owned()),
                yes_no(status.controller).to_owned(),
                age_cell(metadata.creation_time.as_ref(), now),
            ];
            cells.extend(identity_cells(metadata));
            cells.push(one_line(or_none(&plugins.join(","))));
            let member = member_of(view, name, &metadata.uid).map(|(id, _)| id);
            (cells, node::to_document(node, kv.mod_revision, ready, member))
        })
    }

    fn describe(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        description::object(name, kv, now, |description, node: Option<&Node>| {
            if let Some(node) = node {
                describe_node(description, view, node, now);
            }
            describe_registration(description, view, name, now);
        })
    }

    fn applied(&self) -> Option<&'static dyn Codec> {
        Some(&CODEC)
    }

    fn deleted(&self) -> Option<&'static dyn Deletable> {
        Some(&DeleteNode)
    }
}

fn describe_node(description: &mut Description, view: &View, node: &Node, now: Timestamp) {
    let metadata = node.metadata.clone().unwrap_or_default();
    let spec = node.spec.unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    description
        .field(0, "Role", or_none(&node::role_word(status.role)))
        .field(0, "Desired Role", or_none(&node::role_word(spec.desired_role)))
        .field(
            0,
            "Availability",
            match (spec.out_of_service, node::availability_word(spec.availability)) {
                (true, word) => {
                    format!("{word}, out of service (its volumes are taken from it without asking it)")
                }
                (false, word) => or_none(&word).to_owned(),
            },
        );
    describe_membership(description, view, &metadata, now);
    let ready = if is_ready(view, &metadata.name) {
        "yes"
    } else {
        "no (down: its session has ended, or it never had one)"
    };
    let controller = match (status.controller, node::release_word(node)) {
        (true, Some(_)) => "yes (its release counts in the gate)",
        (true, None) => "yes (without a release it does not count in the gate)",
        (false, _) => "no",
    };
    description
        .field(0, "Ready", ready)
        .field(
            0,
            "Release",
            node::release_word(node).unwrap_or_else(|| NONE.to_owned()),
        )
        .field(0, "Controller", controller);
    if status.csi.is_empty() {
        description.field(0, "CSI Plugins", NONE);
    } else {
        description.field(0, "CSI Plugins", "");
        for csi in &status.csi {
            description.field(1, &one_line(&csi.plugin), format!("node id {}", csi.node_id));
            if !csi.topology.is_empty() {
                description.field(1, "", format!("topology {}", pairs(&csi.topology)));
            }
        }
    }
    description.conditions(&status.conditions, now);
}

/// Its member of etcd, and how far its join is.
fn describe_membership(description: &mut Description, view: &View, metadata: &Metadata, now: Timestamp) {
    let member = match member_of(view, &metadata.name, &metadata.uid) {
        None => NONE.to_owned(),
        Some((id, record)) => {
            let joined = time::from_proto(record.joined_at.as_ref());
            let joined = joined.map_or_else(String::new, |at| format!(", joined {}", time::since(at, now)));
            let removal = record.removal.as_ref().map_or_else(String::new, |removal| {
                format!(", is being removed {}", cause_words(removal.cause()))
            });
            format!("{id}{joined}{removal}")
        }
    };
    description.field(0, "Member", member);
    let name = metadata.name.parse::<Name>().ok();
    let stored = name.and_then(|name| view.get(&view.keys.join(&name)));
    let Some(join) = stored.and_then(|kv| member::decode_join(&kv.value).ok()) else {
        return;
    };
    let asked = join.request.clone().unwrap_or_default();
    // Of an earlier node of this name it is of no interest.
    if asked.node_uid != metadata.uid {
        return;
    }
    let progress = match member::is_answered(&join) {
        true => progress_word(join.progress()),
        false => progress_word(Progress::Unspecified),
    };
    let why = match (join.reason.as_str(), join.message.as_str()) {
        ("", "") => String::new(),
        (reason, message) => format!(" ({reason}: {message})"),
    };
    let urls = asked.peer_urls.join(", ");
    description.field(0, "Join", format!("{progress} at {urls}{why}"));
}

fn describe_registration(description: &mut Description, view: &View, name: &str, now: Timestamp) {
    let key = name
        .parse::<Name>()
        .ok()
        .map(|name| view.keys.registration(&name));
    let Some(kv) = key.and_then(|key| view.get(&key)) else {
        description.field(
            0,
            "Registration",
            format!("{NONE} (no replica of this name runs)"),
        );
        return;
    };
    description.field(0, "Registration", "");
    match replica::decode(name, &kv.value) {
        Ok(replica) => {
            description
                .field(1, "Version", replica.version.to_string())
                .field(1, "Process", &replica.process);
            if let Some(since) = replica.registered_at {
                description.field(1, "Since", time::since(since, now));
            }
        }
        Err(malformed) => {
            description.field(1, "Malformed", malformed.to_string());
        }
    }
}

#[cfg(test)]
mod tests;
