//! The Node kind: what its document says, and who writes which part of it.

use std::collections::BTreeSet;

use prost::Message as _;
use serde_json::{Value, json};

use super::change::{Appliable, Rejection};
use super::document::{document, given, present};
use super::fields::{Fault, Fields};
use super::words::word_of_number;
use super::{Object, condition};
use crate::etcd::{MemberId, Revision};
use crate::proto::node_spec::{Availability, Membership};
use crate::proto::{CsiNode, Node, NodeSession, NodeSpec, NodeStatus, Role};
use crate::release::Release;

const ROLES: &[(&str, Role)] = &[("worker", Role::Worker), ("manager", Role::Manager)];

const AVAILABILITIES: &[(&str, Availability)] = &[
    ("active", Availability::Active),
    ("pause", Availability::Pause),
    ("drain", Availability::Drain),
];

/// The condition of a node whose member of etcd has lost its data. It waits for an operator: `quorate replace`.
pub const DATA_LOST: &str = "DataLost";

/// The condition of a node whose sessions end one another: several agents run with its certificate.
pub const DUPLICATE_AGENT: &str = "DuplicateAgent";

/// The unset one has no word: it is as accepted.
const MEMBERSHIPS: &[(&str, Membership)] = &[
    ("accepted", Membership::Accepted),
    ("pending", Membership::Pending),
];

/// What a document says about a node.
#[derive(Debug, Default)]
pub struct Manifest {
    desired_role: Option<Role>,
    availability: Option<Availability>,
    out_of_service: Option<bool>,
    membership: Option<Membership>,
    release: Given<Release>,
    controller: Given<bool>,
    csi: Given<Vec<CsiNode>>,
}

/// A field of a report: what is left out stays as it is, null clears.
#[derive(Debug, Default)]
enum Given<T> {
    #[default]
    LeftOut,
    Cleared,
    Value(T),
}

impl<T> Given<T> {
    fn of(fields: &Fields<'_, '_>, name: &str, value: Option<T>) -> Self {
        match value {
            Some(value) => Self::Value(value),
            None if fields.is_given(name) => Self::Cleared,
            None => Self::LeftOut,
        }
    }
}

impl Object for Node {
    kind_with_metadata!("Node");

    fn check(&self) -> Result<(), Fault> {
        let release = self.status.as_ref().and_then(|status| status.release.as_ref());
        Release::from_proto(release)
            .map(drop)
            .map_err(|malformed| Fault::new("status.release", malformed.to_string()))
    }
}

impl Appliable for Node {
    type Manifest = Manifest;

    fn read(document: &mut Fields<'_, '_>) -> Manifest {
        let mut manifest = Manifest::default();
        document.object("spec", |spec| {
            manifest.desired_role = spec.one_of("desiredRole", ROLES);
            manifest.availability = spec.one_of("availability", AVAILABILITIES);
            manifest.out_of_service = spec.boolean("outOfService");
            manifest.membership = spec.one_of("membership", MEMBERSHIPS);
        });
        document.object("status", |status| {
            let release = status.parsed("release", str::parse::<Release>);
            manifest.release = Given::of(status, "release", release);
            let controller = status.boolean("controller");
            manifest.controller = Given::of(status, "controller", controller);
            let csi = read_csi(status);
            manifest.csi = Given::of(status, "csi", csi);
            // Written by others, and read here because `get -o yaml` prints them.
            status.one_of("role", ROLES);
            status.boolean("ready");
            status.string("memberID");
            condition::check(status);
        });
        manifest
    }

    fn create(_name: &str, manifest: &Manifest) -> Result<Self, Rejection> {
        Ok(Self {
            metadata: None,
            spec: Some(NodeSpec {
                desired_role: manifest.desired_role.unwrap_or(Role::Worker).into(),
                availability: manifest.availability.unwrap_or(Availability::Active).into(),
                out_of_service: manifest.out_of_service.unwrap_or_default(),
                membership: manifest.membership.unwrap_or_default().into(),
            }),
            // A node becomes a manager by promotion alone, even if it is created as a desired manager.
            status: Some(NodeStatus {
                role: Role::Worker.into(),
                ..NodeStatus::default()
            }),
        })
    }

    fn update(&mut self, name: &str, manifest: &Manifest) -> Result<(), Rejection> {
        let spec = self.spec.get_or_insert_default();
        let mut faults = Vec::new();
        if manifest.desired_role.is_none() {
            let message = format!(
                "missing: node {name} exists (desired role: {}), and leaving the role out is no way to change it",
                shown(&role_word(spec.desired_role))
            );
            faults.push(Fault::new("spec.desiredRole", message));
        }
        // What is left out of a spec has its default, but never silently takes a drained node back into use.
        let current = spec.availability();
        if manifest.availability.is_none() && matches!(current, Availability::Pause | Availability::Drain) {
            let message = format!(
                "missing: node {name} is set to {}, and leaving the availability out would set it to active",
                availability_word(spec.availability)
            );
            faults.push(Fault::new("spec.availability", message));
        }
        if manifest.out_of_service.is_none() && spec.out_of_service {
            let message = format!(
                "missing: node {name} is declared out of service, and leaving this out would take that back"
            );
            faults.push(Fault::new("spec.outOfService", message));
        }
        // One that a later release stored is no acceptance either (INV-13).
        let is_accepted = matches!(
            Membership::try_from(spec.membership),
            Ok(Membership::Unspecified | Membership::Accepted)
        );
        if manifest.membership.is_none() && !is_accepted {
            let word = word_of_number(MEMBERSHIPS, spec.membership);
            let message =
                format!("missing: node {name} is {word}, and leaving the membership out would accept it");
            faults.push(Fault::new("spec.membership", message));
        }
        let Some(desired_role) = manifest.desired_role.filter(|_| faults.is_empty()) else {
            return Err(Rejection::Faulty(faults));
        };
        // The caller checks whether the role may change: that takes etcd's member list.
        spec.desired_role = desired_role.into();
        spec.availability = manifest.availability.unwrap_or(Availability::Active).into();
        spec.out_of_service = manifest.out_of_service.unwrap_or_default();
        spec.membership = manifest.membership.unwrap_or_default().into();
        Ok(())
    }

    fn report(&mut self, manifest: &Manifest) {
        let status = self.status.get_or_insert_default();
        match &manifest.release {
            Given::LeftOut => {}
            Given::Cleared => status.release = None,
            Given::Value(release) => status.release = Some(release.to_proto()),
        }
        match manifest.controller {
            Given::LeftOut => {}
            Given::Cleared => status.controller = false,
            Given::Value(controller) => status.controller = controller,
        }
        match &manifest.csi {
            Given::LeftOut => {}
            Given::Cleared => status.csi.clear(),
            Given::Value(csi) => status.csi.clone_from(csi),
        }
    }

    fn same_spec(&self, other: &Self) -> bool {
        self.spec == other.spec
    }

    fn same_report(&self, other: &Self) -> bool {
        let report = |node: &Self| {
            let status = node.status.clone().unwrap_or_default();
            (status.release, status.controller, status.csi)
        };
        report(self) == report(other)
    }
}

fn read_csi(status: &mut Fields<'_, '_>) -> Option<Vec<CsiNode>> {
    let mut plugins = BTreeSet::new();
    status.objects("csi", |csi| {
        let mut text = |name: &'static str| match csi.string(name) {
            Some("") => {
                csi.fault(name, "must not be empty");
                String::new()
            }
            Some(text) => text.to_owned(),
            None => {
                csi.require(name);
                String::new()
            }
        };
        // An empty node id must reach no CSI call (INV-6), so none is taken in.
        let (plugin, node_id) = (text("plugin"), text("nodeID"));
        if !plugin.is_empty() && !plugins.insert(plugin.clone()) {
            csi.fault("plugin", format!("{plugin} occurs twice"));
        }
        CsiNode {
            plugin,
            node_id,
            topology: csi.strings("topology").unwrap_or_default(),
        }
    })
}

/// `worker`, `manager`, empty if unset, or the number of a role that only a later release knows.
pub fn role_word(role: i32) -> String {
    word_of_number(ROLES, role)
}

/// `active`, `pause`, `drain`, empty if unset, or the number of one that only a later release knows.
pub fn availability_word(availability: i32) -> String {
    word_of_number(AVAILABILITIES, availability)
}

fn shown(word: &str) -> &str {
    if word.is_empty() { "unset" } else { word }
}

/// The release that the node's reporter wrote, if there is one.
pub fn release_word(node: &Node) -> Option<String> {
    let stored = node.status.as_ref()?.release.as_ref()?;
    Release::from_proto(Some(stored))
        .ok()
        .map(|release| release.to_string())
}

/// Whether the node is accepted. What only a later release knows is no acceptance.
pub fn is_accepted(spec: &NodeSpec) -> bool {
    let membership = Membership::try_from(spec.membership);
    matches!(membership, Ok(Membership::Unspecified | Membership::Accepted))
}

/// Whether what is stored under `/alive/<name>` makes the node of this uid ready. The session of an earlier node of the same name
/// does not; one that cannot be read may be anyone's.
pub fn makes_ready(alive: &[u8], uid: &str) -> bool {
    !NodeSession::decode(alive).is_ok_and(|session| session.node_uid != uid)
}

/// The document of a node. `ready` comes from `/alive/<name>`, `member` from the records below `/members/`; neither is
/// stored with the node.
pub fn to_document(node: &Node, mod_revision: Revision, ready: bool, member: Option<MemberId>) -> Value {
    let spec = node.spec.unwrap_or_default();
    let status = node.status.clone().unwrap_or_default();
    let spec = json!({
        "desiredRole": given(&role_word(spec.desired_role)),
        "availability": given(&availability_word(spec.availability)),
        "outOfService": given(&spec.out_of_service),
        "membership": given(&word_of_number(MEMBERSHIPS, spec.membership)),
    });
    let csi: Vec<Value> = status.csi.iter().map(csi_document).collect();
    let status = json!({
        "role": given(&role_word(status.role)),
        "ready": ready,
        "controller": status.controller,
        "memberID": member.map(|member| member.to_string()),
        "release": release_word(node),
        "csi": given(&csi),
        "conditions": condition::documents(&status.conditions),
    });
    let parts = json!({"spec": present(spec), "status": present(status)});
    document(Node::KIND, node.metadata.as_ref(), mod_revision, parts)
}

fn csi_document(csi: &CsiNode) -> Value {
    present(json!({"plugin": csi.plugin, "nodeID": csi.node_id, "topology": given(&csi.topology)}))
}

#[cfg(test)]
mod tests;
