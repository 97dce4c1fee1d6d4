//! What a volume is planned from: its records and what they depend on, decoded. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::Index;
use crate::etcd::Revision;
use crate::proto::{Publication, Volume};
use crate::store::Name;
use crate::store::object::decode;
use crate::store::object::publication::node_uid;
use crate::store::object::volume::driver;
use crate::volumes::plan;

/// The records of one volume at one moment, decoded.
#[derive(Clone, Debug, Default)]
pub struct VolumeSnapshot {
    /// The volume's record.
    pub volume: Volume,
    /// The mod revision of that record.
    pub revision: Revision,
    /// Its readable publications, by node.
    pub publications: BTreeMap<Name, Publication>,
    /// The mod revisions of those publications, by node.
    pub revisions: BTreeMap<Name, Revision>,
    /// The nodes of its unreadable publications.
    pub unreadable: BTreeSet<Name>,
    /// Other volumes with the same id at the same plugin.
    pub twin: Option<plan::Twin>,
    /// Another volume that has this one's name as its id.
    pub namesake: Option<Name>,
    /// The nodes of its publications, as far as they exist.
    pub nodes: BTreeMap<Name, plan::Node>,
    /// The publications to nodes that were removed, each with the revision of the record that says so.
    pub removed: BTreeMap<Name, Revision>,
}

impl Index {
    /// The records of one volume. `None` if the volume's own record is missing or cannot be read.
    pub fn observe(&self, name: &Name) -> Option<VolumeSnapshot> {
        let entry = self.volumes.get(name)?;
        let stored = entry.volume.as_ref()?;
        let volume = decode::<Volume>(name.as_str(), &stored.value).ok()?;
        let plugin = driver(&volume).to_owned();
        let mut seen = VolumeSnapshot {
            namesake: self.namesake(name, &volume),
            volume,
            revision: stored.mod_revision,
            twin: self.twin(name),
            ..VolumeSnapshot::default()
        };
        for (node, stored) in entry.publications.all() {
            match decode::<Publication>(&format!("{name}/{node}"), &stored.value) {
                Ok(publication) => {
                    if let Some(removed) = self.removed.get(node_uid(&publication)) {
                        seen.removed.insert(node.clone(), *removed);
                    }
                    seen.publications.insert(node.clone(), publication);
                    seen.revisions.insert(node.clone(), stored.mod_revision);
                }
                Err(_) => {
                    seen.unreadable.insert(node.clone());
                }
            }
            if let Some(known) = self.nodes.get(node) {
                let csi = known.csi.iter().find(|csi| csi.plugin == plugin);
                let node_seen = plan::Node {
                    uid: known.uid.clone(),
                    mod_revision: known.mod_revision,
                    out_of_service: known.out_of_service,
                    availability: known.availability,
                    csi_node_id: csi.map(|csi| csi.node_id.clone()).filter(|id| !id.is_empty()),
                    topology: csi.map(|csi| csi.topology.clone()).unwrap_or_default(),
                };
                seen.nodes.insert(node.clone(), node_seen);
            }
        }
        Some(seen)
    }
}
