//! The next step of one volume, and why. Pure: observations in, a step out.
//!
//! A volume is created, published to nodes, unpublished from them and deleted. It takes one step at a time, so that no two
//! calls about it are in flight (INV-6). Targets that failed in a pass are left out of the rest of it: a node that cannot
//! be reached delays no other.

use std::collections::{BTreeMap, BTreeSet};

use crate::etcd::Revision;
use crate::proto::access_mode::Scope;
use crate::proto::publication_status::State;
use crate::proto::{AccessMode, Publication, Volume, VolumeStatus, node_spec};
use crate::store::Name;
use crate::store::object::Object;
use crate::store::object::publication::{state, stored_node_id};
use crate::store::object::volume::{self, driver, required_bytes};

mod publications;
mod step;
mod strays;
mod wait;

pub use step::{Lost, Step};
pub use wait::{Wait, WaitReason};

/// What a plugin offers, by its own answer in the current session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Creating and deleting volumes.
    pub create: bool,
    /// Publishing and unpublishing volumes.
    pub publish: bool,
    /// Expanding volumes.
    pub expand: bool,
    /// Expanding only volumes that are published nowhere.
    pub expand_offline_only: bool,
    /// Whether it offered to create volumes in an earlier session.
    pub created_before: bool,
}

/// What is known of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// There is no such Plugin object.
    Missing,
    /// There is no session. Never taken for a plugin that offers nothing.
    Unknown,
    /// There is a session, with another backend than the volume's.
    OtherBackend,
    /// There is a session.
    Offers(Offers),
}

/// The node of a publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Distinguishes it from an earlier node of the same name. Empty if its record cannot be read.
    pub uid: String,
    /// Revision of its record.
    pub mod_revision: Revision,
    /// Volumes are unpublished from it without its confirmation.
    pub out_of_service: bool,
    /// Whether new publications go to it.
    pub availability: node_spec::Availability,
    /// The node id that the volume's plugin reported on it. Not empty.
    pub csi_node_id: Option<String>,
    /// The place that the plugin reported on it; empty if it reported none.
    pub topology: BTreeMap<String, String>,
}

/// What other volumes with the same id at the same plugin have of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twin {
    /// One of them.
    pub name: Name,
    /// Whether one of them has the id, and is not only to take it in.
    pub has_id: bool,
    /// The node ids that their publications store.
    pub node_ids: BTreeSet<String>,
    /// Whether the record of one, or of a publication of one, cannot be read: it may store any node id.
    pub unreadable: bool,
}

/// The part of a volume that a step or a failure is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// The volume itself.
    Volume,
    /// Its publication to this node.
    Node(Name),
    /// A node id that no publication stores, and that an operator wants the volume unpublished from.
    Stray(String),
    /// What a volume whose record is gone left at the backend. Another volume may have the name by now.
    Orphaned,
}

/// Everything that the plan of one volume depends on.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Its record.
    pub volume: &'a Volume,
    /// Its publications, by node.
    pub publications: &'a BTreeMap<Name, Publication>,
    /// The nodes of publications that exist and cannot be read: what they say is unknown.
    pub unreadable: &'a BTreeSet<Name>,
    /// Other volumes with the same id at the same plugin.
    pub twin: Option<&'a Twin>,
    /// Another volume that has this one's name as its id.
    pub namesake: Option<&'a Name>,
    /// The nodes of its publications, as far as they exist.
    pub nodes: &'a BTreeMap<Name, Node>,
    /// Its publications to nodes that were removed, each with the revision of the record that says so.
    pub removed: &'a BTreeMap<Name, Revision>,
    /// Its plugin.
    pub plugin: Plugin,
    /// Targets that failed and are not tried now.
    pub resting: &'a BTreeSet<Target>,
    /// Nodes that the volume is published to again: the plugin has lost it there.
    pub lost: &'a BTreeSet<Name>,
}

/// What the plan decides about one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The next step, if there is anything to do now.
    pub step: Option<Step>,
    /// What cannot be done now.
    pub waits: Vec<Wait>,
}

impl Decision {
    /// Keeps the first step found. A step that needs no plugin goes before connecting to one.
    fn choose(&mut self, step: Step) {
        match self.step {
            None | Some(Step::Connect) => self.step = Some(step),
            Some(_) => {}
        }
    }

    fn wait(&mut self, target: &Target, reason: WaitReason, message: impl Into<String>) {
        self.waits.push(Wait {
            target: target.clone(),
            reason,
            message: message.into(),
        });
    }
}

impl Observed<'_> {
    fn status(&self) -> VolumeStatus {
        self.volume.status.clone().unwrap_or_default()
    }
}

/// Plans the next step of a volume, and says what it waits for.
pub fn plan(observed: &Observed<'_>) -> Decision {
    let mut decision = Decision::default();
    let status = observed.status();
    plan_backend(observed, &status, &mut decision);
    publications::plan_ends(observed, &status, &mut decision);
    if status.volume_id.is_empty() {
        plan_creation(observed, &mut decision);
    } else {
        strays::plan_strays(observed, &status, &mut decision);
        if observed.volume.is_marked() {
            plan_deletion(observed, &status, &mut decision);
        } else {
            publications::plan_beginnings(observed, &mut decision);
            // First: it makes no call, and the plugin may refuse the next expansion for ever.
            plan_node_expansion(observed, &status, &mut decision);
            plan_expansion(observed, &status, &mut decision);
        }
    }
    wait_for_twin(observed, &status, &mut decision);
    for node in observed.unreadable {
        let name = observed.volume.name();
        let message = format!(
            "the publication to node {node} cannot be read; if nothing mends it, quorate unpublish {name} {node} --force \
             forgets it"
        );
        decision.wait(&Target::Volume, WaitReason::PublicationMalformed, message);
    }
    decision
}

/// Says what another volume with the same id holds back, and which of the two records an operator may give up.
fn wait_for_twin(observed: &Observed<'_>, status: &VolumeStatus, decision: &mut Decision) {
    let Some(twin) = observed.twin else { return };
    let other = &twin.name;
    let (what, way_out) = match (status.volume_id.as_str(), twin.has_id) {
        ("", _) => {
            let name = observed.volume.name();
            (
                "it is not taken in",
                format!("quorate delete volume {name} gives that up"),
            )
        }
        (_, true) => (
            "neither is published or deleted there",
            "quorate delete volume NAME --force forgets one of them".to_owned(),
        ),
        // It waits for this one, which goes on.
        (_, false) if observed.volume.is_marked() => (
            "it is not deleted there",
            format!("quorate delete volume {other} ends its wait to take it in"),
        ),
        (_, false) => return,
    };
    let id = volume::backend_id(observed.volume);
    let message = format!("volume {other} has the same id at the plugin, {id}: {what}; {way_out}");
    decision.wait(&Target::Volume, WaitReason::SharedVolumeID, message);
}

/// What the plugin offers. `None` if that is unknown: then the decision says so.
fn offers(observed: &Observed<'_>, target: &Target, decision: &mut Decision) -> Option<Offers> {
    match observed.plugin {
        Plugin::Offers(offers) => Some(offers),
        Plugin::Unknown => {
            decision.choose(Step::Connect);
            None
        }
        Plugin::Missing => {
            let message = format!("plugin {} does not exist", driver(observed.volume));
            decision.wait(target, WaitReason::PluginMissing, message);
            None
        }
        Plugin::OtherBackend => {
            let made_at = observed.status().backend.unwrap_or_default();
            let (plugin, endpoint) = (driver(observed.volume), made_at.endpoint);
            let identity = match made_at.id.as_str() {
                "" => String::new(),
                id => format!(" (backend {id})"),
            };
            let message = format!(
                "the volume was made at {endpoint}{identity}, and plugin {plugin} answers for another backend now, to which no \
                 call about it goes; set the endpoint of the plugin back, or list {endpoint} in its sameBackendAs if it is \
                 the same backend"
            );
            decision.wait(target, WaitReason::OtherBackend, message);
            None
        }
    }
}

/// Records the backend of a volume whose record names none, before the plugin leads to another one (INV-6), even where nothing
/// else is wanted of the plugin.
fn plan_backend(observed: &Observed<'_>, status: &VolumeStatus, decision: &mut Decision) {
    let is_unknown = status.backend.is_none() && volume::may_exist(observed.volume);
    if !is_unknown || observed.resting.contains(&Target::Volume) {
        return;
    }
    match observed.plugin {
        Plugin::Offers(_) => decision.choose(Step::TakeBackend),
        Plugin::Unknown => decision.choose(Step::Connect),
        Plugin::Missing | Plugin::OtherBackend => {}
    }
}

fn plan_creation(observed: &Observed<'_>, decision: &mut Decision) {
    let target = Target::Volume;
    let attempted = volume::is_attempted(observed.volume);
    if observed.resting.contains(&target) {
        return;
    }
    if observed.volume.is_marked() && !attempted {
        if observed.publications.is_empty() && observed.unreadable.is_empty() {
            decision.choose(Step::DeleteRecord);
        }
        return;
    }
    match offers(observed, &target, decision) {
        None => {}
        // One would be detached and deleted under the other (INV-6).
        Some(_) if volume::is_taken_in(observed.volume) && observed.twin.is_some() => {}
        Some(_) if volume::is_taken_in(observed.volume) => decision.choose(Step::TakeIn),
        // Also for a volume that is marked for deletion: it cannot be deleted without its id, and repeating the call
        // finds it (INV-6).
        Some(offers) if offers.create => decision.choose(Step::Create),
        Some(_) if attempted => decision.wait(
            &target,
            WaitReason::CreateUnsupported,
            "the plugin may have created the volume, and no longer creates volumes",
        ),
        // The endpoint may lead to another instance of the plugin for a while, and an id is for good.
        Some(offers) if offers.created_before => decision.wait(
            &target,
            WaitReason::CreateUnsupported,
            "the plugin created volumes before, and no longer does; a volume that exists at the backend is taken in by \
             spec.source",
        ),
        Some(_) => take_name(observed, decision),
    }
}

/// Takes the name as the id, unless another volume has that id: neither would be published any more (INV-6).
fn take_name(observed: &Observed<'_>, decision: &mut Decision) {
    let Some(other) = observed.namesake else {
        return decision.choose(Step::TakeName);
    };
    let name = observed.volume.name();
    let message = format!(
        "volume {other} has the id at the plugin that this one would take, its name; quorate delete volume {name} gives that up"
    );
    decision.wait(&Target::Volume, WaitReason::SharedVolumeID, message);
}

fn plan_deletion(observed: &Observed<'_>, status: &VolumeStatus, decision: &mut Decision) {
    let target = Target::Volume;
    let nodes = observed.publications.keys().map(Name::to_string);
    let strays = status.detach_node_ids.iter().map(|id| format!("node id {id}"));
    let published: Vec<String> = nodes.chain(strays).collect();
    if !published.is_empty() {
        let mut message = format!("the volume is published to {}", published.join(", "));
        if !status.detach_node_ids.is_empty() {
            message += &strays::way_out(observed);
        }
        decision.wait(&target, WaitReason::Published, message);
        return;
    }
    // A publication that cannot be read holds its volume.
    if observed.resting.contains(&target) || !observed.unreadable.is_empty() {
        return;
    }
    if volume::is_retained(observed.volume) {
        decision.choose(Step::DeleteRecord);
        return;
    }
    // What is deleted at the backend would be the other volume's, too.
    if observed.twin.is_some() {
        return;
    }
    match offers(observed, &target, decision) {
        None => {}
        Some(offers) if offers.create => decision.choose(Step::Delete),
        Some(_) => decision.wait(
            &target,
            WaitReason::DeleteUnsupported,
            "the plugin created the volume and no longer deletes volumes",
        ),
    }
}

fn plan_expansion(observed: &Observed<'_>, status: &VolumeStatus, decision: &mut Decision) {
    let target = Target::Volume;
    let has = status.capacity_bytes.max(status.fulfilled_bytes);
    if required_bytes(observed.volume) <= has || observed.resting.contains(&target) {
        return;
    }
    // The capacity of a volume that its plugin did not create is fixed.
    let offers = match status.r#static {
        true => Offers::default(),
        false => match offers(observed, &target, decision) {
            Some(offers) => offers,
            None => return,
        },
    };
    if !offers.expand {
        let message = "the plugin does not expand the volume";
        decision.wait(&target, WaitReason::ExpandUnsupported, message);
    } else if offers.expand_offline_only && !observed.publications.is_empty() {
        let message = "the plugin expands the volume only while it is published nowhere";
        decision.wait(&target, WaitReason::ExpandOffline, message);
    } else {
        decision.choose(Step::Expand);
    }
}

/// Ends an expansion that every node which has the volume has confirmed. A volume that no node has is confirmed by the next node
/// that gets it.
fn plan_node_expansion(observed: &Observed<'_>, status: &VolumeStatus, decision: &mut Decision) {
    let bytes = status.node_expansion_bytes;
    let publications = observed.publications.values();
    let used = publications
        .filter(|publication| matches!(state(publication), State::Published | State::PendingNodeUnpublish));
    let used: Vec<&Publication> = used.collect();
    let confirmed = |publication: &&Publication| {
        let status = publication.status.as_ref();
        status.is_some_and(|status| status.expanded_bytes >= bytes)
    };
    // A node that only reads expands nothing, and confirms nothing: a writer does, or an operator.
    let reads = |publication: &Publication| publication.spec.as_ref().is_some_and(|spec| spec.read_only);
    let is_confirmed = used.iter().any(confirmed)
        && used
            .iter()
            .all(|publication| confirmed(publication) || reads(publication));
    let is_held_back = !observed.unreadable.is_empty() || observed.resting.contains(&Target::Volume);
    if bytes > 0 && is_confirmed && !is_held_back {
        decision.choose(Step::EndNodeExpansion { bytes });
    }
}

fn access_mode(volume: &Volume) -> Option<&AccessMode> {
    volume.spec.as_ref()?.access_mode.as_ref()
}

/// How many nodes at a time may have the volume: one, unless the record says otherwise.
fn scope_of(volume: &Volume) -> Scope {
    access_mode(volume).map_or(Scope::Unspecified, AccessMode::scope)
}

/// Whether the node may have the volume.
fn is_held(publication: &Publication) -> bool {
    !stored_node_id(publication).is_empty()
        || matches!(state(publication), State::Published | State::PendingNodeUnpublish)
}

#[cfg(test)]
mod tests;
