//! Publications: which end, and which begin.

use super::strays::{is_stray, is_twins, way_out};
use super::{
    Decision, Lost, Node, Observed, Plugin, Step, Target, WaitReason, access_mode, is_held, offers, scope_of,
};
use crate::etcd::Revision;
use crate::mutation::{self, Guard};
use crate::proto::access_mode::{Scope, Sharing};
use crate::proto::node_spec::Availability as NodeAvailability;
use crate::proto::publication_status::State;
use crate::proto::volume_spec::Availability;
use crate::proto::{AccessMode, Publication, VolumeSpec, VolumeStatus};
use crate::store::Name;
use crate::store::object::publication::{is_published, may_write, node_uid, state, stored_node_id};
use crate::store::object::volume::{availability_word, driver, is_reachable_from, place_text, places_text};
use crate::store::object::{Object, node};

/// One publication of the volume, with its node.
struct Ending<'a> {
    name: &'a Name,
    publication: &'a Publication,
    /// The node of that name now; `None` if there is none.
    node: Option<&'a Node>,
    /// When the removal of its node was recorded, if it was.
    removed: Option<Revision>,
}

impl Ending<'_> {
    fn target(&self) -> Target {
        Target::Node(self.name.clone())
    }

    /// Why the publication ends without its node's confirmation, if it does. A node that is merely absent may run
    /// (INV-12).
    fn lost(&self) -> Option<Lost> {
        if let Some(revision) = self.removed {
            let uid = node_uid(self.publication).to_owned();
            return Some(Lost::Removed { uid, revision });
        }
        // That was said of the present node, which may be another one.
        let is_its_node = missing(self.name, self.publication, self.node).is_none();
        let node = self.node.filter(|node| node.out_of_service && is_its_node)?;
        Some(Lost::OutOfService(node.mod_revision))
    }

    /// Waits for a node that is missing, or for what `otherwise` says.
    fn wait_for_node(&self, otherwise: Option<(WaitReason, String)>, decision: &mut Decision) {
        let missing =
            missing(self.name, self.publication, self.node).map(|message| (WaitReason::NodeMissing, message));
        if let Some((reason, message)) = missing.or(otherwise) {
            decision.wait(&self.target(), reason, message);
        }
    }

    fn detach(&self, lost: Option<Lost>, again: bool) -> Step {
        Step::Detach {
            node: self.name.clone(),
            lost,
            again,
        }
    }

    /// The uid of the present node, where the publication may start over once it has ended. Where that node is not known, a request that
    /// came in does not get lost, and does not start over for the former one (INV-12).
    ///
    /// # Errors
    /// Why the request waits.
    fn restart(&self, observed: &Observed<'_>) -> Result<Option<String>, String> {
        let (volume, name) = (observed.volume, self.name);
        if volume.is_marked() || availability(observed) == Availability::Drain {
            return Ok(None);
        }
        let is_requested = self.publication.spec.as_ref().is_some_and(|spec| spec.again);
        let why = match self.node {
            Some(node) if !node.uid.is_empty() => {
                let may = node.availability != NodeAvailability::Drain && !node.out_of_service;
                return Ok(may.then(|| node.uid.clone()));
            }
            Some(_) if is_requested => Some(format!("the record of node {name} cannot be read")),
            // A node that was removed takes the request with it.
            None if is_requested && self.removed.is_none() => missing(name, self.publication, None),
            _ => None,
        };
        why.map_or(Ok(None), |why| {
            let volume = volume.name();
            Err(format!(
                "{why}; the volume was asked for there again, which quorate unpublish {volume} {name} takes back"
            ))
        })
    }

    fn plan_pending_publish(&self, observed: &Observed<'_>, decision: &mut Decision) {
        let lost = self.lost();
        if lost.is_some() || observed.volume.is_marked() {
            decision.choose(self.detach(lost, false));
            return;
        }
        let attempted_with = stored_node_id(self.publication);
        let reported = self.node.and_then(|node| node.csi_node_id.as_deref());
        let is_its_node = missing(self.name, self.publication, self.node).is_none();
        if is_its_node && !attempted_with.is_empty() && reported.is_some_and(|now| now != attempted_with) {
            // The node reports another id by now. It may have got the volume under the old one.
            decision.choose(self.detach(None, true));
        }
    }

    fn plan_published(&self, decision: &mut Decision) {
        match self.lost() {
            Some(lost) => decision.choose(self.detach(Some(lost), false)),
            None => self.wait_for_node(None, decision),
        }
    }

    fn plan_pending_node_unpublish(&self, decision: &mut Decision) {
        let lost = self.lost();
        if lost.is_some() || mutation::without(Guard::Confirmation) {
            decision.choose(self.detach(lost, false));
            return;
        }
        let message = format!(
            "node {} has not confirmed that it no longer uses the volume",
            self.name
        );
        self.wait_for_node(Some((WaitReason::NodeUnpublish, message)), decision);
    }

    fn plan_pending_unpublish(
        &self,
        observed: &Observed<'_>,
        status: &VolumeStatus,
        decision: &mut Decision,
    ) {
        let csi_node_id = stored_node_id(self.publication);
        let restart = match self.restart(observed) {
            Ok(restart) => restart,
            Err(message) => {
                decision.wait(&self.target(), WaitReason::NodeMissing, message);
                return;
            }
        };
        // A node that came back under another name has the volume there. The last publication that stores the id ends with a call.
        // One that cannot be read holds no other up: node ids are seldom shared.
        let is_kept = others_with(self.name, csi_node_id, observed).any(|(_, other)| !is_leaving(other));
        if csi_node_id.is_empty() || is_kept || mutation::without(Guard::Unpublish) {
            decision.choose(Step::EndPublication {
                node: self.name.clone(),
                restart,
            });
            return;
        }
        // No call without a volume id. A node id is stored only once there is one.
        if status.volume_id.is_empty() {
            return;
        }
        if is_twins(observed, csi_node_id) {
            let message = "another volume with the same id at the plugin is published to the node";
            decision.wait(&self.target(), WaitReason::SharedVolumeID, message);
            return;
        }
        match offers(observed, &self.target(), decision) {
            None => {}
            Some(offers) if offers.publish => decision.choose(Step::Unpublish {
                node: self.name.clone(),
                csi_node_id: csi_node_id.to_owned(),
                restart,
            }),
            Some(_) => decision.wait(
                &self.target(),
                WaitReason::UnpublishUnsupported,
                "the plugin published the volume and no longer unpublishes volumes",
            ),
        }
    }
}

/// Why the node of a publication cannot be asked for anything, if that is so: it is not the present `node` of its name.
fn missing(name: &Name, publication: &Publication, node: Option<&Node>) -> Option<String> {
    let uid = node_uid(publication);
    match node {
        None => Some(format!(
            "node {name} does not exist, and nothing records that it was removed"
        )),
        Some(node) if !uid.is_empty() && !node.uid.is_empty() && node.uid != uid => Some(format!(
            "node {name} is another node than the one of the publication, and nothing records that the other one was removed"
        )),
        Some(_) => None,
    }
}

/// Whether the publication was made for this volume, not for an earlier one of the same name.
fn belongs(publication: &Publication, observed: &Observed<'_>) -> bool {
    let made_for = publication
        .spec
        .as_ref()
        .map_or("", |spec| spec.volume_uid.as_str());
    made_for == observed.volume.uid()
}

/// Plans the ends of publications. They come before the beginnings: one node may wait for what another lets go.
pub(super) fn plan_ends(observed: &Observed<'_>, status: &VolumeStatus, decision: &mut Decision) {
    for (name, publication) in observed.publications {
        let ending = Ending {
            name,
            publication,
            node: observed.nodes.get(name),
            removed: observed.removed.get(name).copied(),
        };
        if observed.resting.contains(&ending.target()) {
            continue;
        }
        if !belongs(publication, observed) {
            let message = "it was made for an earlier volume of the same name";
            decision.wait(&ending.target(), WaitReason::OtherVolume, message);
            continue;
        }
        match state(publication) {
            State::PendingPublish => ending.plan_pending_publish(observed, decision),
            State::Published => ending.plan_published(decision),
            State::PendingNodeUnpublish => ending.plan_pending_node_unpublish(decision),
            State::PendingUnpublish => ending.plan_pending_unpublish(observed, status, decision),
            State::Unspecified => {}
        }
    }
}

fn availability(observed: &Observed<'_>) -> Availability {
    let spec = observed.volume.spec.as_ref();
    spec.map_or(Availability::Unspecified, VolumeSpec::availability)
}

/// Why the volume is not published to the node now, whatever its plugin offers.
fn hindrance(
    node: &Name,
    publication: &Publication,
    observed: &Observed<'_>,
) -> Option<(WaitReason, String)> {
    let volume = observed.volume;
    let is_attempted = !stored_node_id(publication).is_empty();
    let now = observed.nodes.get(node);
    if !is_attempted && state(publication) == State::PendingPublish {
        if matches!(availability(observed), Availability::Pause | Availability::Drain) {
            let word = availability_word(volume);
            let message = format!("the volume is set to {word}: nothing new is published");
            return Some((WaitReason::VolumePaused, message));
        }
        let set_to = now.map(|now| now.availability);
        let paused = set_to.filter(|set| matches!(set, NodeAvailability::Pause | NodeAvailability::Drain));
        if let Some(set_to) = paused {
            let word = node::availability_word(set_to.into());
            let message = format!("node {node} is set to {word}: nothing new is published to it");
            return Some((WaitReason::NodePaused, message));
        }
    }
    let place = now.map(|now| &now.topology);
    if let Some(place) = place.filter(|place| !is_attempted && !is_reachable_from(volume, place)) {
        let message = format!(
            "the volume can be reached from {}, and node {node} is in {}",
            places_text(volume),
            place_text(place)
        );
        return Some((WaitReason::TopologyMismatch, message));
    }
    let holder = excluding_holder(node, publication, observed)?;
    let message = match scope_of(volume) {
        Scope::MultiNode => format!("only one node may write the volume, and node {holder} may"),
        Scope::SingleNode | Scope::Unspecified => {
            format!("only one node may have the volume, and node {holder} has it")
        }
    };
    Some((WaitReason::OtherNode, message))
}

/// Plans the beginnings of publications, of a volume that is created and not marked for deletion.
pub(super) fn plan_beginnings(observed: &Observed<'_>, decision: &mut Decision) {
    // The access modes of two records do not know of each other. The volume's own condition says so.
    if observed.twin.is_some_and(|twin| twin.has_id) {
        return;
    }
    for (node, publication) in observed.publications {
        let target = Target::Node(node.clone());
        let stored = stored_node_id(publication);
        if !is_wanted(node, publication, observed)
            || observed.resting.contains(&target)
            || !belongs(publication, observed)
        {
            continue;
        }
        let now = observed.nodes.get(node);
        if let Some(message) = missing(node, publication, now) {
            // That of a published one is said where ends are planned.
            if state(publication) == State::PendingPublish {
                decision.wait(&target, WaitReason::NodeMissing, message);
            }
            continue;
        }
        if let Some((reason, message)) = hindrance(node, publication, observed) {
            decision.wait(&target, reason, message);
            continue;
        }
        let Some(offers) = offers(observed, &target, decision) else {
            continue;
        };
        let reported = now.and_then(|node| node.csi_node_id.as_deref());
        // The id of an earlier attempt: the node may have got the volume under it.
        let csi_node_id = [Some(stored), reported]
            .into_iter()
            .flatten()
            .find(|id| !id.is_empty());
        match csi_node_id {
            _ if !offers.publish && was_publishing(observed) => decision.wait(
                &target,
                WaitReason::PublishUnsupported,
                "the plugin published volumes when this one was made, and no longer does",
            ),
            // Its call is made once the plugin publishes.
            _ if !offers.publish && state(publication) == State::Published => {}
            _ if !offers.publish => decision.choose(Step::PublishNothing { node: node.clone() }),
            Some(csi_node_id) if is_stray(observed, csi_node_id) => {
                let way_out = way_out(observed);
                let message = format!("the volume is being unpublished from node id {csi_node_id}{way_out}");
                decision.wait(&target, WaitReason::Unpublishing, message);
            }
            Some(csi_node_id) => {
                let mut others = others_with(node, csi_node_id, observed);
                match others.find(|(_, other)| is_leaving(other)) {
                    // A call for that may be under way, which takes away what is published beside it (INV-3).
                    Some((other, _)) => {
                        let message = format!(
                            "the volume is being unpublished from node id {csi_node_id}, which its publication to node {other} stores"
                        );
                        decision.wait(&target, WaitReason::Unpublishing, message);
                    }
                    None => decision.choose(Step::Publish {
                        node: node.clone(),
                        csi_node_id: csi_node_id.to_owned(),
                    }),
                }
            }
            None if mutation::without(Guard::NodeId) => decision.choose(Step::Publish {
                node: node.clone(),
                csi_node_id: String::new(),
            }),
            None => {
                let plugin = driver(observed.volume);
                let message = format!("node {node} does not report a node id for plugin {plugin}");
                decision.wait(&target, WaitReason::NodeIDMissing, message);
            }
        }
    }
}

/// The other publications of the volume that store this node id: a machine may have come back as a node of another name.
fn others_with<'a>(
    node: &'a Name,
    csi_node_id: &'a str,
    observed: &'a Observed<'_>,
) -> impl Iterator<Item = (&'a Name, &'a Publication)> {
    let publications = observed.publications.iter();
    let others = publications.filter(move |(name, _)| *name != node);
    others.filter(move |(_, other)| {
        !csi_node_id.is_empty() && stored_node_id(other) == csi_node_id && belongs(other, observed)
    })
}

fn is_leaving(publication: &Publication) -> bool {
    state(publication) == State::PendingUnpublish
}

/// Whether a call has yet to publish the volume to the node.
fn is_wanted(node: &Name, publication: &Publication, observed: &Observed<'_>) -> bool {
    match state(publication) {
        State::PendingPublish => true,
        State::Published => {
            // One without a node id was published while the plugin published nothing.
            let was_faked = stored_node_id(publication).is_empty() && may_publish_now(observed);
            observed.lost.contains(node) || !is_published(publication) || was_faked
        }
        State::PendingNodeUnpublish | State::PendingUnpublish | State::Unspecified => false,
    }
}

/// Whether the plugin publishes volumes, or has yet to be asked.
fn may_publish_now(observed: &Observed<'_>) -> bool {
    match observed.plugin {
        Plugin::Offers(offers) => offers.publish,
        Plugin::Unknown => true,
        Plugin::Missing | Plugin::OtherBackend => false,
    }
}

/// Whether the plugin published volumes when this one was made.
fn was_publishing(observed: &Observed<'_>) -> bool {
    let status = observed.volume.status.as_ref();
    let backend = status.and_then(|status| status.backend.as_ref());
    backend.is_some_and(|backend| backend.publishes)
}

/// Another node that may have the volume, and whose publication the access mode does not allow beside this one. Commands
/// refuse such a publication; this is for records that were observed out of order.
///
/// Node ids that no publication stores do not count. Such a publication was forgotten before its node got the volume, or after the
/// node had confirmed that it no longer uses it, unless an operator has forgotten one that was published.
fn excluding_holder<'a>(node: &Name, publication: &Publication, observed: &Observed<'a>) -> Option<&'a Name> {
    let sharing = access_mode(observed.volume).map(AccessMode::sharing);
    let excludes: fn(&Publication) -> bool = match scope_of(observed.volume) {
        Scope::MultiNode if sharing == Some(Sharing::OneWriter) && may_write(publication) => may_write,
        Scope::MultiNode => return None,
        Scope::SingleNode | Scope::Unspecified => |_| true,
    };
    let publications = observed.publications.iter();
    let held = publications.filter(|(_, other)| is_held(other) && excludes(other));
    let mut holders = held.map(|(holder, _)| holder).chain(observed.unreadable);
    holders.find(|holder| *holder != node)
}
