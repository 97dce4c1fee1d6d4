//! The Node kind for commands.

use jiff::Timestamp;
use prost::Message as _;

use super::{Affected, Kind, Shown, Words, age, certificates, identity};
use crate::cli::objects::delete::nodes;
use crate::cli::objects::view::{Item, View};
use crate::cli::output::{Description, NONE, one_line, or_none, pairs, yes_no};
use crate::etcd::{KeyRange, KeyValue, MemberId};
use crate::proto::join::Progress;
use crate::proto::{Member, Metadata, Node, NodeSession};
use crate::release::Release;
use crate::roles::plan::{cause_words, progress_word};
use crate::store::object::change::Of;
use crate::store::object::{Malformed, Object, member, node, replica, time};
use crate::store::{Name, keys::KeySpace};

/// The kind.
pub static NODES: Kind = Kind {
    applied: Some(Of::<Node>::CODEC),
    beside: |keys, name| match name {
        None => vec![keys.all_alive(), keys.members(), keys.joins()],
        Some(name) => vec![
            KeyRange::key(keys.alive(name)),
            KeyRange::key(keys.registration(name)),
            KeyRange::key(keys.join(name)),
            keys.members(),
        ],
    },
    described_with: |view, all| match all {
        true => {
            let kinds = [KeySpace::CERTIFICATES, KeySpace::ETCD_CERTIFICATES];
            kinds.map(|kind| kind.all(&view.keys)).to_vec()
        }
        false => {
            let (nodes, keys) = (view.below(&view.keys.nodes()), &view.keys);
            let uids = nodes.filter_map(|kv| Some(Node::decode(&*kv.value).ok()?.metadata?.uid));
            let keys = uids.flat_map(|uid| [keys.certificate(&uid), keys.etcd_certificate(&uid)]);
            keys.map(KeyRange::key).collect()
        }
    },
    affected: |keys, key| {
        if keys.parse_member(key).is_some() {
            // The event of a deleted record does not say whose it was; members are few.
            return Affected::All;
        }
        Affected::named(keys.parse_alive(key), |name| keys.node(name))
    },
    ..Kind::new(
        Words::new(Node::KIND, "node", "nodes", &["no"]),
        KeySpace::NODES,
        &[
            "NAME",
            "ROLE",
            "DESIRED",
            "READY",
            "AVAILABILITY",
            "RELEASE",
            "CONTROLLER",
            "AGE",
        ],
        &["UID", "LABELS", "CSI"],
        show,
        describe,
        Ok(&nodes::NODE),
    )
};

/// The session that makes a node ready.
fn session<'v>(view: &'v View, name: &str, uid: &str) -> Option<&'v KeyValue> {
    let name = name.parse::<Name>().ok()?;
    let alive = view.get(&view.keys.alive(&name))?;
    node::makes_ready(&alive.value, uid).then_some(alive)
}

/// The record that ties a member of etcd to this node.
fn member_of(view: &View, name: &str, uid: &str) -> Option<(MemberId, Member)> {
    let mut records = view.member_records();
    let (id, record, _) = records.find(|(_, record, _)| record.node == name && record.node_uid == uid)?;
    Some((id, record))
}

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let node: Node = item.object()?;
    let metadata = node.metadata.clone().unwrap_or_default();
    let ready = session(item.view, item.name, &metadata.uid).is_some();
    let spec = node.spec.unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let plugins: Vec<&str> = status.csi.iter().map(|csi| csi.plugin.as_str()).collect();
    let mut cells = vec![
        node::role_word(status.role),
        node::role_word(spec.desired_role),
        yes_no(ready).to_owned(),
        node::availability_word(spec.availability),
        node::release_word(&node).unwrap_or_default(),
        yes_no(status.controller).to_owned(),
        age(metadata.creation_time.as_ref(), item.now),
    ];
    cells.extend(identity(&metadata));
    cells.push(plugins.join(","));
    let member = member_of(item.view, item.name, &metadata.uid).map(|(id, _)| id);
    let document = node::to_document(&node, item.revision(), ready, member);
    Ok(Shown::new(metadata.labels, cells, document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    if let Some(node) = description.object::<Node>(item) {
        describe_node(description, item.view, &node, item.now);
    }
    describe_registration(description, item.view, item.name, item.now);
}

fn describe_node(description: &mut Description, view: &View, node: &Node, now: Timestamp) {
    let metadata = node.metadata.clone().unwrap_or_default();
    let spec = node.spec.unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    description
        .field("Role", or_none(&node::role_word(status.role)))
        .field("Desired Role", or_none(&node::role_word(spec.desired_role)))
        .field(
            "Availability",
            match (spec.out_of_service, node::availability_word(spec.availability)) {
                (true, word) => {
                    format!("{word}, out of service (its volumes are taken from it without asking it)")
                }
                (false, word) => or_none(&word).to_owned(),
            },
        );
    describe_membership(description, view, &metadata, now);
    describe_session(description, view, &metadata, now);
    let agent = status.agent_release.as_ref();
    let agent = agent.and_then(|release| Release::from_proto(Some(release)).ok());
    let keeps = match status.keeps_etcd {
        true => " (keeps the etcd of the node)",
        false => "",
    };
    description.field(
        "Agent Release",
        agent.map_or_else(|| NONE.to_owned(), |release| format!("{release}{keeps}")),
    );
    certificates::describe_of(description, view, node, now);
    certificates::describe_of_etcd(description, view, node, now);
    let controller = match (status.controller, node::release_word(node)) {
        (true, Some(_)) => "yes (its release counts in the gate)",
        (true, None) => "yes (without a release it does not count in the gate)",
        (false, _) => "no",
    };
    description
        .field(
            "Release",
            node::release_word(node).unwrap_or_else(|| NONE.to_owned()),
        )
        .field("Controller", controller);
    if status.csi.is_empty() {
        description.field("CSI Plugins", NONE);
    } else {
        description.field("CSI Plugins", "");
        for csi in &status.csi {
            description.nested(&one_line(&csi.plugin), format!("node id {}", csi.node_id));
            if !csi.topology.is_empty() {
                description.nested("", format!("topology {}", pairs(&csi.topology)));
            }
        }
    }
    description.conditions(&status.conditions, now);
}

/// Whether the node is ready, and by which session.
fn describe_session(description: &mut Description, view: &View, metadata: &Metadata, now: Timestamp) {
    let Some(alive) = session(view, &metadata.name, &metadata.uid) else {
        description
            .field("Ready", "no (down: its session has ended, or it never had one)")
            .field("Session", NONE);
        return;
    };
    let session = NodeSession::decode(&*alive.value).unwrap_or_default();
    let since = time::from_proto(session.ready_since.as_ref());
    let since = since.map_or_else(String::new, |at| format!(", since {}", time::since(at, now)));
    let replica = match session.replica.as_str() {
        "" => String::new(),
        replica => format!(", at replica {}", one_line(replica)),
    };
    let lease = match alive.lease {
        Some(lease) => format!("on lease {lease}"),
        None => "on no lease: it does not end with its agent".to_owned(),
    };
    let id = one_line(&session.session_id);
    description
        .field("Ready", format!("yes{since}"))
        .field("Session", format!("{} {lease}{replica}", or_none(&id)));
}

/// The node's member of etcd, and the progress of its join.
fn describe_membership(description: &mut Description, view: &View, metadata: &Metadata, now: Timestamp) {
    let member = match member_of(view, &metadata.name, &metadata.uid) {
        None => NONE.to_owned(),
        Some((id, record)) => {
            let joined = time::from_proto(record.joined_at.as_ref());
            let joined = joined.map_or_else(String::new, |at| format!(", joined {}", time::since(at, now)));
            let removal = record.removal.as_ref().map_or_else(String::new, |removal| {
                format!(", is being removed: {}", cause_words(removal.cause()))
            });
            format!("{id}{joined}{removal}")
        }
    };
    description.field("Member", member);
    let name = metadata.name.parse::<Name>().ok();
    let stored = name.and_then(|name| view.get(&view.keys.join(&name)));
    let Some(join) = stored.and_then(|kv| member::decode_join(&kv.value).ok()) else {
        return;
    };
    let request = join.request.clone().unwrap_or_default();
    // The join of an earlier node with this name is not this node's.
    if request.node_uid != metadata.uid {
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
    let urls = request.peer_urls.join(", ");
    description.field("Join", format!("{progress} at {urls}{why}"));
}

fn describe_registration(description: &mut Description, view: &View, name: &str, now: Timestamp) {
    let key = name
        .parse::<Name>()
        .ok()
        .map(|name| view.keys.registration(&name));
    let Some(kv) = key.and_then(|key| view.get(&key)) else {
        description.field("Registration", format!("{NONE} (no replica of this name runs)"));
        return;
    };
    description.field("Registration", "");
    match replica::decode(name, &kv.value) {
        Ok(replica) => {
            description
                .nested("Version", replica.version.to_string())
                .nested("Process", &replica.process);
            if let Some(since) = replica.registered_at {
                description.nested("Since", time::since(since, now));
            }
        }
        Err(malformed) => {
            description.nested("Malformed", malformed.to_string());
        }
    }
}

#[cfg(test)]
mod tests;
