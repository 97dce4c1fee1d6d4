//! Records of one volume at the backend.

use std::collections::BTreeSet;

use super::{Change, Index, records};
use crate::proto::Volume;
use crate::store::Name;
use crate::store::object::Object;
use crate::store::object::publication::stored_node_id;
use crate::volumes::plan;

impl Index {
    /// The node ids that the readable publications of a volume store.
    pub fn node_ids(&self, volume: &Name) -> BTreeSet<String> {
        let nodes = self
            .volumes
            .get(volume)
            .into_iter()
            .flat_map(|entry| entry.publications.keys());
        let publications = nodes.filter_map(|node| self.publication(volume, node)?.ok());
        let ids = publications.map(|publication| stored_node_id(&publication).to_owned());
        ids.filter(|id| !id.is_empty()).collect()
    }

    /// The volumes with the uid of this one, or with its id at the plugin.
    pub fn claiming(&self, volume: &Volume) -> BTreeSet<Name> {
        let by_uid = self.by_uid.get(volume.uid());
        let by_id = records::volume_id(volume).and_then(|id| self.by_volume_id.get(&id));
        by_uid.into_iter().chain(by_id).flatten().cloned().collect()
    }

    /// Whether the volume has its id at the plugin, and is not only to take it in.
    pub(super) fn has_id(&self, name: &Name) -> bool {
        let volume = self.volume(name).and_then(Result::ok);
        let status = volume.and_then(|volume| volume.status);
        status.is_some_and(|status| !status.volume_id.is_empty())
    }

    pub(super) fn twin(&self, name: &Name) -> Option<plan::Twin> {
        let sharing = self.sharing(name);
        Some(plan::Twin {
            name: sharing.first()?.clone(),
            has_id: sharing.iter().any(|other| self.has_id(other)),
            node_ids: sharing.iter().flat_map(|other| self.node_ids(other)).collect(),
        })
    }

    /// The other volumes with the same id at the same plugin.
    pub(super) fn sharing(&self, name: &Name) -> Vec<Name> {
        let id = self.volumes.get(name).and_then(|entry| entry.volume_id.as_ref());
        let names = id.and_then(|id| self.by_volume_id.get(id)).into_iter().flatten();
        names.filter(|other| *other != name).cloned().collect()
    }
}

/// What a write of a volume's record changes: the volume, and those that share its id, if what they depend on is another than
/// before. Everything else about the volume is no news for them (INV-9).
pub(super) fn with_sharing(
    index: &mut Index,
    name: &Name,
    write: impl FnOnce(&mut Index) -> Option<Change>,
) -> Vec<Change> {
    let seen = |index: &Index| {
        let sharing = index.sharing(name);
        let is_shared = !sharing.is_empty();
        let held = is_shared.then(|| (index.has_id(name), index.node_ids(name)));
        (sharing, held)
    };
    let before = seen(index);
    let mut changes = Vec::from_iter(write(index));
    let after = seen(index);
    if before != after {
        let around: BTreeSet<Name> = before.0.into_iter().chain(after.0).collect();
        changes.extend(around.into_iter().map(Change::Around));
    }
    changes
}
