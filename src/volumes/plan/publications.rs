//! Publications: which end, and which begin.

use super::{Decision, Lost, Node, Observed, Step, Target, is_held, offers, single_node, stored_node_id};
use crate::proto::publication_status::State;
use crate::proto::{Publication, VolumeStatus};
use crate::store::object::publication::state;

/// Why a publication is taken from its node without asking it.
fn lost(publication: &Publication, node: Option<&Node>) -> Option<Lost> {
    let meant = publication
        .spec
        .as_ref()
        .map_or("", |spec| spec.node_uid.as_str());
    match node {
        None => Some(Lost::Absent),
        Some(node) => {
            let another = !meant.is_empty() && !node.uid.is_empty() && meant != node.uid;
            (node.out_of_service || another).then_some(Lost::Unchanged(node.mod_revision))
        }
    }
}

fn belongs(publication: &Publication, observed: &Observed<'_>) -> bool {
    let meant = publication
        .spec
        .as_ref()
        .map_or("", |spec| spec.volume_uid.as_str());
    let uid = observed
        .volume
        .metadata
        .as_ref()
        .map_or("", |metadata| metadata.uid.as_str());
    meant == uid
}

/// The publications that are to end. Before anything begins: what one node lets go, another may be waiting for.
pub(super) fn plan_ends(
    observed: &Observed<'_>,
    status: &VolumeStatus,
    marked: bool,
    decision: &mut Decision,
) {
    for (node, publication) in observed.publications {
        let target = Target::Node(node.clone());
        if observed.resting.contains(&target) {
            continue;
        }
        if !belongs(publication, observed) {
            let message = "it was made for an earlier volume of the same name";
            decision.wait(&target, "OtherVolume", message, true);
            continue;
        }
        let here = observed.nodes.get(node);
        let lost = lost(publication, here);
        let detach = |lost: Option<Lost>, again: bool| Step::Detach {
            node: node.clone(),
            lost,
            again,
        };
        let id = stored_node_id(publication);
        match state(publication) {
            State::PendingPublish => {
                let elsewhere = here.and_then(|node| node.csi_node_id.as_deref());
                if lost.is_some() || marked {
                    decision.choose(detach(lost, false));
                } else if !id.is_empty() && elsewhere.is_some_and(|now| now != id) {
                    // The node has another id by now. It may have the volume under the old one.
                    decision.choose(detach(None, true));
                }
            }
            State::Published => {
                if lost.is_some() {
                    decision.choose(detach(lost, false));
                }
            }
            State::PendingNodeUnpublish => {
                if lost.is_some() {
                    decision.choose(detach(lost, false));
                } else {
                    let message = format!("node {node} is to confirm that it uses it no more");
                    decision.wait(&target, "NodeUnpublish", message, false);
                }
            }
            State::PendingUnpublish if id.is_empty() => {
                decision.choose(Step::Forget { node: node.clone() });
            }
            State::PendingUnpublish => {
                // No call without an id of the volume; a node id is stored only once there is one.
                if status.volume_id.is_empty() {
                    continue;
                }
                match offers(observed, &target, decision) {
                    None => {}
                    Some(offers) if offers.publish => decision.choose(Step::Unpublish {
                        node: node.clone(),
                        csi_node_id: id.to_owned(),
                    }),
                    Some(_) => decision.wait(
                        &target,
                        "UnpublishUnsupported",
                        "the plugin published it and no longer unpublishes volumes",
                        true,
                    ),
                }
            }
            State::Unspecified => {}
        }
    }
}

/// The publications that are to begin, of a volume that is there and to stay.
pub(super) fn plan_beginnings(observed: &Observed<'_>, decision: &mut Decision) {
    for (node, publication) in observed.publications {
        let target = Target::Node(node.clone());
        let wanted = match state(publication) {
            State::PendingPublish => true,
            State::Published => observed.drift.lost.contains(node) && !stored_node_id(publication).is_empty(),
            State::PendingNodeUnpublish | State::PendingUnpublish | State::Unspecified => false,
        };
        if !wanted || observed.resting.contains(&target) || !belongs(publication, observed) {
            continue;
        }
        // A request that goes beyond the access mode is refused; this is for what was seen out of order.
        let held = observed.publications.iter();
        let held = held.filter(|(_, publication)| is_held(publication));
        let mut holders = held.map(|(holder, _)| holder).chain(observed.unreadable);
        if let Some(holder) = holders.find(|holder| *holder != node)
            && single_node(observed.volume)
        {
            let message = format!("only one node may have it, and {holder} does");
            decision.wait(&target, "OtherNode", message, false);
            continue;
        }
        let Some(offers) = offers(observed, &target, decision) else {
            continue;
        };
        let stored = stored_node_id(publication);
        let known = observed.nodes.get(node).and_then(|node| node.csi_node_id.clone());
        if !offers.publish {
            decision.choose(Step::PublishNothing { node: node.clone() });
        } else if !stored.is_empty() {
            decision.choose(Step::Publish {
                node: node.clone(),
                csi_node_id: stored.to_owned(),
            });
        } else if let Some(csi_node_id) = known.filter(|id| !id.is_empty()) {
            decision.choose(Step::Publish {
                node: node.clone(),
                csi_node_id,
            });
        } else {
            let plugin = crate::store::object::volume::driver(observed.volume);
            let message = format!("node {node} does not report a node id for plugin {plugin}");
            decision.wait(&target, "NodeIDMissing", message, true);
        }
    }
}
