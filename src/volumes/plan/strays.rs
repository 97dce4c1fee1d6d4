//! Node ids that the volume is unpublished from, although no publication stores them.

use super::{Decision, Observed, Step, Target, WaitReason, offers};
use crate::proto::VolumeStatus;
use crate::proto::publication_status::State;
use crate::store::object::Object;
use crate::store::object::publication::{state, stored_node_id};

/// Plans the ends of what no publication stores.
pub(super) fn plan_strays(observed: &Observed<'_>, status: &VolumeStatus, decision: &mut Decision) {
    for csi_node_id in &status.detach_node_ids {
        let target = Target::Stray(csi_node_id.clone());
        let publications = observed.publications.iter();
        let mut recorded = publications.filter(|(_, publication)| stored_node_id(publication) == csi_node_id);
        let is_recorded = recorded.clone().next().is_some();
        let pending = recorded.find(|(_, publication)| state(publication) == State::PendingPublish);
        if let Some((node, _)) = pending {
            // A call may be under way that takes away what is published beside it (INV-3): the publication starts over after its own
            // call to unpublish.
            if !observed.resting.contains(&Target::Node(node.clone())) {
                decision.choose(Step::Detach {
                    node: node.clone(),
                    lost: None,
                    again: true,
                });
            }
            continue;
        }
        if is_recorded || csi_node_id.is_empty() {
            // The publication ends by itself; what was asked for beside it does not outlive it.
            decision.choose(Step::DropStray {
                csi_node_id: csi_node_id.clone(),
            });
            continue;
        }
        // An unreadable publication may be the one that stores it.
        let is_held_back = !observed.unreadable.is_empty() || is_twins(observed, csi_node_id);
        if observed.resting.contains(&target) || is_held_back {
            continue;
        }
        // A node id has no conditions of its own: those of the volume say what it waits for.
        match offers(observed, &Target::Volume, decision) {
            None => {}
            Some(offers) if offers.publish => decision.choose(Step::UnpublishStray {
                csi_node_id: csi_node_id.clone(),
            }),
            Some(_) => decision.wait(
                &Target::Volume,
                WaitReason::UnpublishUnsupported,
                format!("the plugin does not unpublish volumes, so not from node id {csi_node_id}"),
            ),
        }
    }
}

/// Whether the volume is being unpublished from this node id. A call for that may be under way whose outcome is unknown: what is
/// published beside it goes away with it (INV-3, INV-6).
pub(super) fn is_stray(observed: &Observed<'_>, csi_node_id: &str) -> bool {
    let status = observed.volume.status.as_ref();
    let mut strays = status.into_iter().flat_map(|status| &status.detach_node_ids);
    strays.any(|stray| stray == csi_node_id)
}

/// What an operator can do about a node id that the plugin never confirms, such as that of a node which it does not know any more.
pub(super) fn way_out(observed: &Observed<'_>) -> String {
    let name = observed.volume.name();
    format!(
        "; if the plugin never confirms that it has left, quorate unpublish {name} --node-id ID --force gives that up"
    )
}

/// Whether another volume with the same id is published to this node id, or may be.
pub(super) fn is_twins(observed: &Observed<'_>, csi_node_id: &str) -> bool {
    let twin = observed.twin;
    twin.is_some_and(|twin| twin.unreadable || twin.node_ids.contains(csi_node_id))
}
