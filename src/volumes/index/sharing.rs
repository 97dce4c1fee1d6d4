//! Records of one volume at the backend.

use std::collections::BTreeSet;

use super::{Change, Index, id_at_plugin};
use crate::proto::Volume;
use crate::store::Name;
use crate::store::object::publication::stored_node_id;
use crate::store::object::volume::{driver, made_at};
use crate::store::object::{Object, plugin};
use crate::volumes::plan;

impl Index {
    /// The node ids that the readable publications of a volume store.
    pub fn node_ids(&self, volume: &Name) -> BTreeSet<String> {
        let nodes = self
            .volumes
            .get(volume)
            .into_iter()
            .flat_map(|entry| entry.publications.nodes());
        let publications = nodes.filter_map(|node| self.publication(volume, node)?.ok());
        let ids = publications.map(|publication| stored_node_id(&publication).to_owned());
        ids.filter(|id| !id.is_empty()).collect()
    }

    /// Whether the record of a volume, or of a publication of it, cannot be read.
    pub fn is_unreadable(&self, name: &Name) -> bool {
        let publications = self.volumes.get(name).into_iter();
        let mut nodes = publications.flat_map(|entry| entry.publications.nodes());
        self.volume(name).is_some_and(|volume| volume.is_err())
            || nodes.any(|node| self.publication(name, node).is_some_and(|one| one.is_err()))
    }

    /// The volume with this uid.
    pub fn with_uid(&self, uid: &str) -> Option<Name> {
        self.by_uid.get(uid)?.first().cloned()
    }

    /// The volume whose record leads to this one at the backend: the one with its uid, or else one with its id.
    pub fn leading_to(&self, volume: &Volume) -> Option<Name> {
        let with_id = || self.claiming(volume).into_iter().find(|name| self.has_id(name));
        self.with_uid(volume.uid()).or_else(with_id)
    }

    /// The volumes with the uid of this one, or with its id at its backend.
    pub fn claiming(&self, volume: &Volume) -> BTreeSet<Name> {
        let by_uid = self.by_uid.get(volume.uid()).into_iter().flatten();
        let by_id = id_at_plugin(volume).and_then(|id| self.by_volume_id.get(&id));
        let by_id = by_id.into_iter().flatten();
        let by_id = by_id.filter(|name| self.may_share_backend_with(volume, name));
        by_uid.chain(by_id).cloned().collect()
    }

    /// Whether the volume has its id at the plugin, and is not only to take it in. One that cannot be read may have it (INV-12).
    pub(super) fn has_id(&self, name: &Name) -> bool {
        match self.volume(name) {
            Some(Ok(volume)) => volume.status.is_some_and(|status| !status.volume_id.is_empty()),
            Some(Err(_)) => true,
            None => false,
        }
    }

    /// Another volume whose id at the plugin is the name of this one, which has none yet.
    pub(super) fn namesake(&self, name: &Name, volume: &Volume) -> Option<Name> {
        if id_at_plugin(volume).is_some() {
            return None;
        }
        let id = format!("{}\n{name}", driver(volume));
        let mut others = self.by_volume_id.get(id.as_str())?.iter();
        others
            .find(|other| *other != name && self.may_share_backend_with(volume, other))
            .cloned()
    }

    /// The volume without an id whose name is the id of this one.
    fn named_like(&self, name: &Name) -> Option<Name> {
        let (_, id) = self.volumes.get(name)?.volume_id.as_ref()?.split_once('\n')?;
        let named: Name = id.parse().ok()?;
        let entry = self.volumes.get(&named)?;
        (named != *name && entry.volume_id.is_none()).then_some(named)
    }

    pub(super) fn twin(&self, name: &Name) -> Option<plan::Twin> {
        let sharing = self.sharing(name);
        Some(plan::Twin {
            name: sharing.first()?.clone(),
            has_id: sharing.iter().any(|other| self.has_id(other)),
            node_ids: sharing.iter().flat_map(|other| self.node_ids(other)).collect(),
            unreadable: sharing.iter().any(|other| self.is_unreadable(other)),
        })
    }

    /// The other volumes with the same id at what may be the same backend.
    pub(super) fn sharing(&self, name: &Name) -> Vec<Name> {
        let id = self.volumes.get(name).and_then(|entry| entry.volume_id.as_ref());
        let names = id.and_then(|id| self.by_volume_id.get(id));
        let Some(names) = names.filter(|names| names.len() > 1) else {
            return Vec::new();
        };
        let own = self.volume(name).and_then(Result::ok);
        let shares = |other: &&Name| {
            own.as_ref()
                .is_none_or(|own| self.may_share_backend_with(own, other))
        };
        let others = names.iter().filter(|other| *other != name);
        others.filter(shares).cloned().collect()
    }

    /// Whether two volumes with one id may be at the same backend of their plugin.
    pub fn may_share_backend(&self, volume: &Volume, other: &Volume) -> bool {
        let driver = driver(volume).parse::<Name>().ok();
        let Some(Ok(plugin)) = driver.and_then(|driver| self.plugin(&driver)) else {
            return true;
        };
        let backend = |volume: &Volume| volume.status.clone().and_then(|status| status.backend);
        plugin::may_share_backend(plugin, backend(volume).as_ref(), backend(other).as_ref())
    }

    /// The same with a volume whose record may not be readable.
    fn may_share_backend_with(&self, volume: &Volume, other: &Name) -> bool {
        let other = self.volume(other).and_then(Result::ok);
        other.is_none_or(|other| self.may_share_backend(volume, &other))
    }
}

/// What a write of a volume's record changes: the volume, and those that share its id, or would take it, if what they depend on is
/// another than before. Everything else about the volume is no news for them (INV-9).
pub(super) fn with_sharing(
    index: &mut Index,
    name: &Name,
    write: impl FnOnce(&mut Index) -> Option<Change>,
) -> Vec<Change> {
    // The first lists bring every record there is, and then every volume is planned.
    if !index.was_complete {
        return Vec::from_iter(write(index));
    }
    let seen = |index: &Index| {
        let sharing = index.sharing(name);
        let is_shared = !sharing.is_empty();
        let held = is_shared.then(|| {
            (
                index.has_id(name),
                index.node_ids(name),
                index.is_unreadable(name),
            )
        });
        // One that would take its id depends on whether this record can be read, and on its backend.
        let named = index.named_like(name).map(|named| {
            let own = index.volume(name).and_then(Result::ok);
            (named, own.is_none(), own.as_ref().and_then(made_at).cloned())
        });
        (sharing, held, named)
    };
    let before = seen(index);
    let mut changes = Vec::from_iter(write(index));
    let after = seen(index);
    if before != after {
        let around: BTreeSet<Name> = [before, after]
            .into_iter()
            .flat_map(|(sharing, _, named)| sharing.into_iter().chain(named.map(|(named, ..)| named)))
            .collect();
        changes.extend(around.into_iter().map(Change::Around));
    }
    changes
}
