//! The next step of one volume, and why. Pure: what was seen in, a step out.
//!
//! A volume is created, published to nodes and unpublished from them, and deleted. Its steps are taken one after the
//! other, so that no two calls for it are ever under way (INV-6). What failed in a pass is left out of the rest of it:
//! a node that cannot be reached delays no other.

use std::collections::{BTreeMap, BTreeSet};

use crate::etcd::Revision;
use crate::proto::access_mode::Scope;
use crate::proto::publication_status::State;
use crate::proto::{Publication, Volume, VolumeStatus};
use crate::store::Name;
use crate::store::object::Object;
use crate::store::object::publication::state;
use crate::store::object::volume::{driver, required_bytes};

mod publications;
mod step;

pub use step::{Lost, Step};

/// What a plugin offers, as it said itself on the connection in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// It creates and deletes volumes.
    pub create: bool,
    /// It publishes and unpublishes them.
    pub publish: bool,
    /// It makes them larger.
    pub expand: bool,
    /// But only while they are published nowhere.
    pub expand_offline_only: bool,
}

/// What is known of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// There is no such object.
    Missing,
    /// It was not asked yet on the connection in use. Never taken for one that offers nothing.
    Unknown,
    /// It answered.
    Offers(Offers),
}

/// A node that a volume is, or is to be, published to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Tells it from another of the same name. Empty if its record cannot be read.
    pub uid: String,
    /// Its key, as it was seen.
    pub mod_revision: Revision,
    /// What is published on it is taken from it without asking it.
    pub out_of_service: bool,
    /// What the volume's plugin calls it, if it runs there. Not empty.
    pub csi_node_id: Option<String>,
}

/// What of a volume a step or a failure is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Itself.
    Volume,
    /// Its publication to this node.
    Node(Name),
    /// A node of the plugin that it is published to though no record says so.
    Stray(String),
    /// What is left at the backend of a volume whose record is gone. One of its name may be there by now.
    Orphaned,
}

/// What a comparison with the plugin's own list found. Nothing, as a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Published by the record, not by the plugin.
    pub lost: BTreeSet<Name>,
    /// Published by the plugin, by no record.
    pub strays: BTreeSet<String>,
}

/// Everything that decides about one volume.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Its record.
    pub volume: &'a Volume,
    /// Its publications, by node.
    pub publications: &'a BTreeMap<Name, Publication>,
    /// The nodes of publications that are there and cannot be read: what they say is unknown.
    pub unreadable: &'a BTreeSet<Name>,
    /// The nodes of those that exist.
    pub nodes: &'a BTreeMap<Name, Node>,
    /// Its plugin.
    pub plugin: Plugin,
    /// What failed, and is not to be tried now.
    pub resting: &'a BTreeSet<Target>,
    /// What is to be mended.
    pub drift: &'a Drift,
}

/// Something that is wanted and cannot be done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What it is about.
    pub target: Target,
    /// For machines.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// Whether somebody has to do something about it that is no ordinary step: then it becomes a condition.
    pub is_fault: bool,
}

/// What follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The next step; none while there is nothing to do.
    pub step: Option<Step>,
    /// What it waits for besides.
    pub waits: Vec<Wait>,
}

impl Decision {
    /// The first that is found; but what needs no plugin does not wait for one.
    fn choose(&mut self, step: Step) {
        match self.step {
            None | Some(Step::Connect) => self.step = Some(step),
            Some(_) => {}
        }
    }

    fn wait(&mut self, target: &Target, reason: &'static str, message: impl Into<String>, is_fault: bool) {
        self.waits.push(Wait {
            target: target.clone(),
            reason,
            message: message.into(),
            is_fault,
        });
    }
}

/// What stands about a volume at the backend.
fn status_of(volume: &Volume) -> VolumeStatus {
    volume.status.clone().unwrap_or_default()
}

/// The next step of a volume, and what it waits for.
pub fn plan(observed: &Observed<'_>) -> Decision {
    let mut decision = Decision::default();
    let status = status_of(observed.volume);
    let marked = observed.volume.is_marked();
    publications::plan_ends(observed, &status, marked, &mut decision);
    let created = !status.volume_id.is_empty();
    if !created {
        plan_creation(observed, &status, marked, &mut decision);
        return decision;
    }
    plan_strays(observed, &status, &mut decision);
    if marked {
        plan_deletion(observed, &status, &mut decision);
    } else {
        publications::plan_beginnings(observed, &mut decision);
        plan_expansion(observed, &status, &mut decision);
    }
    decision
}

/// What the plugin offers, or `None` with the reason to wait. `Connect` is a step of the volume that needs it.
fn offers(observed: &Observed<'_>, target: &Target, decision: &mut Decision) -> Option<Offers> {
    match observed.plugin {
        Plugin::Offers(offers) => Some(offers),
        Plugin::Unknown => {
            decision.choose(Step::Connect);
            None
        }
        Plugin::Missing => {
            let message = format!("plugin {} does not exist", driver(observed.volume));
            decision.wait(target, "PluginMissing", message, true);
            None
        }
    }
}

fn plan_creation(observed: &Observed<'_>, status: &VolumeStatus, marked: bool, decision: &mut Decision) {
    let target = Target::Volume;
    // While this stands, the backend may hold a volume.
    let attempted = status.create.as_ref().is_some_and(|create| !create.refused);
    if observed.resting.contains(&target) {
        return;
    }
    if marked && !attempted {
        if observed.publications.is_empty() && may_be_unpublished(observed, decision) {
            decision.choose(Step::Drop);
        }
        return;
    }
    match offers(observed, &target, decision) {
        None => {}
        // Also one that is to be deleted: without its id it cannot be, and a repeat finds it (INV-6).
        Some(offers) if offers.create => decision.choose(Step::Create),
        Some(_) if attempted => decision.wait(
            &target,
            "CreateUnsupported",
            "the plugin was asked to create it, maybe has, and no longer creates volumes",
            true,
        ),
        Some(_) => decision.choose(Step::TakeName),
    }
}

fn plan_strays(observed: &Observed<'_>, status: &VolumeStatus, decision: &mut Decision) {
    for csi_node_id in &observed.drift.strays {
        let target = Target::Stray(csi_node_id.clone());
        let recorded = observed.publications.values().any(|publication| {
            let stored = publication.status.as_ref();
            stored.is_some_and(|stored| stored.csi_node_id == *csi_node_id)
        });
        if recorded || csi_node_id.is_empty() || status.r#static || observed.resting.contains(&target) {
            continue;
        }
        if offers(observed, &target, decision).is_some_and(|offers| offers.publish) {
            decision.choose(Step::UnpublishStray {
                csi_node_id: csi_node_id.clone(),
            });
        }
    }
}

fn plan_deletion(observed: &Observed<'_>, status: &VolumeStatus, decision: &mut Decision) {
    let target = Target::Volume;
    if !observed.publications.is_empty() {
        let nodes: Vec<&str> = observed.publications.keys().map(Name::as_str).collect();
        let message = format!("it is published to {}", nodes.join(", "));
        decision.wait(&target, "Published", message, false);
        return;
    }
    if observed.resting.contains(&target) || !may_be_unpublished(observed, decision) {
        return;
    }
    if status.r#static {
        decision.choose(Step::Drop);
        return;
    }
    match offers(observed, &target, decision) {
        None => {}
        Some(offers) if offers.create => decision.choose(Step::Delete),
        Some(_) => decision.wait(
            &target,
            "DeleteUnsupported",
            "the plugin created it and no longer deletes volumes",
            true,
        ),
    }
}

/// Whether nothing speaks for a publication that cannot be read. Where one is there, the volume stays.
fn may_be_unpublished(observed: &Observed<'_>, decision: &mut Decision) -> bool {
    let Some(node) = observed.unreadable.first() else {
        return true;
    };
    let message = format!("its publication to node {node} cannot be read");
    decision.wait(&Target::Volume, "PublicationMalformed", message, true);
    false
}

fn plan_expansion(observed: &Observed<'_>, status: &VolumeStatus, decision: &mut Decision) {
    let target = Target::Volume;
    let has = status.capacity_bytes.max(status.fulfilled_bytes);
    // A volume that its plugin does not create has the capacity that it has.
    if required_bytes(observed.volume) <= has || observed.resting.contains(&target) {
        return;
    }
    let unsupported = "the plugin does not make volumes larger";
    if status.r#static {
        decision.wait(&target, "ExpandUnsupported", unsupported, true);
        return;
    }
    match offers(observed, &target, decision) {
        None => {}
        Some(offers) if !offers.expand => {
            decision.wait(&target, "ExpandUnsupported", unsupported, true);
        }
        Some(offers) if offers.expand_offline_only && !observed.publications.is_empty() => {
            let message = "it grows once it is published nowhere: the plugin does it only then";
            decision.wait(&target, "ExpandOffline", message, false);
        }
        Some(_) => decision.choose(Step::Expand),
    }
}

/// Whether only one node may have the volume.
fn single_node(volume: &Volume) -> bool {
    let mode = volume.spec.as_ref().and_then(|spec| spec.access_mode.as_ref());
    mode.is_none_or(|mode| mode.scope() != Scope::MultiNode)
}

/// The node's id that a call was made with, or may have been.
fn stored_node_id(publication: &Publication) -> &str {
    let status = publication.status.as_ref();
    status.map_or("", |status| status.csi_node_id.as_str())
}

/// Whether the node may still have the volume.
fn is_held(publication: &Publication) -> bool {
    !stored_node_id(publication).is_empty()
        || matches!(state(publication), State::Published | State::PendingNodeUnpublish)
}

#[cfg(test)]
mod tests;
