//! What a node is shown: its roles, and the publications that concern it. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};

use prost::Message as _;

use super::seen_node::SeenNode;
use crate::proto::node_certificate::State as CertificateState;
use crate::proto::node_publication::Instruction;
use crate::proto::publication_status::State;
use crate::proto::{
    NodePublication, NodeView, Publication, PublicationStatus, Volume, VolumeSecret, VolumeStatus,
};
use crate::store::Name;
use crate::store::object::publication::{node_uid, state};
use crate::store::object::volume::{driver, is_for_node, made_at};
use crate::store::object::{Object, decode};

/// A view, as yet without secrets.
pub struct Shown {
    /// Holds no secret.
    pub view: NodeView,
    /// The secrets that it lacks: the index of a publication in the view, and what its volume names.
    pub secrets: Vec<(usize, Vec<VolumeSecret>)>,
}

impl Shown {
    /// Equal for equal views. A session keeps this alone of what it has sent.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.view.encode_to_vec().hash(&mut hasher);
        hasher.finish()
    }
}

/// The view of a node, from the stored publications to it, each with its volume and the record of that.
pub fn view<'a>(
    name: &Name,
    node: &SeenNode,
    certificate: CertificateState,
    publications: impl Iterator<Item = (&'a Name, &'a [u8], Option<&'a [u8]>)>,
) -> Shown {
    let mut shown = Shown {
        view: NodeView {
            role: node.role.into(),
            desired_role: node.spec.desired_role,
            certificate: certificate.into(),
            availability: node.spec.availability,
            publications: Vec::new(),
            member: None,
            revocation: None,
        },
        secrets: Vec::new(),
    };
    for (volume, value, record) in publications {
        let Ok(publication) = decode::<Publication>(&format!("{volume}/{name}"), value) else {
            // What it asks for is not known; its node leaves everything as it is.
            shown.view.publications.push(unknown(volume));
            continue;
        };
        // A publication to an earlier node of this name is none of this one's business.
        if node_uid(&publication) != node.uid || state(&publication) == State::PendingPublish {
            continue;
        }
        let record = record.and_then(|value| decode::<Volume>(volume.as_str(), value).ok());
        let (published, secrets) = of_publication(volume, publication, record);
        if !secrets.is_empty() {
            shown.secrets.push((shown.view.publications.len(), secrets));
        }
        shown.view.publications.push(published);
    }
    shown
}

fn unknown(volume: &Name) -> NodePublication {
    NodePublication {
        volume: volume.to_string(),
        ..NodePublication::default()
    }
}

/// A publication as its node sees it, and the secrets that it needs for that.
fn of_publication(
    volume: &Name,
    publication: Publication,
    record: Option<Volume>,
) -> (NodePublication, Vec<VolumeSecret>) {
    let (state, uid) = (state(&publication), publication.uid().to_owned());
    let (spec, status) = (
        publication.spec.unwrap_or_default(),
        publication.status.unwrap_or_default(),
    );
    let mut shown = NodePublication {
        volume_uid: spec.volume_uid,
        publication_uid: uid,
        read_only: spec.read_only,
        ..unknown(volume)
    };
    // A later volume of the same name is another one.
    let record = record.filter(|record| record.uid() == shown.volume_uid);
    let instruction = match state {
        // A call whose result is not recorded is made again: its context is not known yet.
        State::Published if status.unrecorded => Instruction::Unspecified,
        State::Published => Instruction::Publish,
        State::PendingNodeUnpublish => Instruction::Unpublish,
        State::PendingUnpublish => Instruction::None,
        State::PendingPublish | State::Unspecified => Instruction::Unspecified,
    };
    let Some(record) = record else {
        // Without the plugin's id of the volume nothing can be called.
        let known = instruction == Instruction::None;
        shown.set_instruction(if known {
            instruction
        } else {
            Instruction::Unspecified
        });
        return (shown, Vec::new());
    };
    shown.set_instruction(instruction);
    let secrets = describe(&mut shown, status, record);
    match instruction {
        Instruction::Publish => (shown, secrets),
        // To unmount takes neither.
        Instruction::Unpublish | Instruction::None => {
            shown.publish_context.clear();
            (shown, Vec::new())
        }
        Instruction::Unspecified => (shown, Vec::new()),
    }
}

/// Adds what the calls for the volume need. Returns the secrets that it names for them.
fn describe(shown: &mut NodePublication, status: PublicationStatus, volume: Volume) -> Vec<VolumeSecret> {
    shown.plugin = driver(&volume).to_owned();
    shown.exact_access_mode = made_at(&volume).is_some_and(|backend| backend.exact_access_mode);
    let (spec, of_volume) = (volume.spec.unwrap_or_default(), volume.status.unwrap_or_default());
    (shown.capacity_bytes, shown.expanded_bytes) = expansion(&of_volume, &status);
    shown.volume_id = of_volume.volume_id;
    shown.volume_context = of_volume.context;
    shown.publish_context = status.publish_context;
    shown.access_mode = spec.access_mode;
    let mut secrets = spec.secrets;
    secrets.retain(is_for_node);
    secrets
}

/// The capacity, and up to which the node has expanded what is on the volume: the same where it need not.
fn expansion(volume: &VolumeStatus, publication: &PublicationStatus) -> (i64, i64) {
    match volume.node_expansion_bytes {
        0 => (volume.capacity_bytes, volume.capacity_bytes),
        due => (due, publication.expanded_bytes.min(due)),
    }
}

#[cfg(test)]
mod tests;
