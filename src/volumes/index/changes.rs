//! Nodes, deletions, and keys that a list leaves out.

use super::{Change, Entry, Index, Part, SeenNode, Stored, parsed};
use crate::etcd::Revision;
use crate::proto::Node;
use crate::store::keys::NodeKey;
use crate::store::object::decode;

impl Index {
    pub(super) fn put_node(&mut self, key: &[u8], stored: &Stored, changes: &mut Vec<Change>) {
        let NodeKey::Node(text) = self.keys.parse_node(key) else {
            return;
        };
        let Some(name) = parsed(Some(text)) else { return };
        // An unreadable node exists: nothing is unpublished from it for being unreadable.
        let read = decode::<Node>(name.as_str(), &stored.value).ok();
        let status = read.as_ref().and_then(|node| node.status.clone());
        let csi = status.unwrap_or_default().csi.into_iter();
        let now = SeenNode {
            mod_revision: stored.mod_revision,
            seen_in: stored.seen_in,
            uid: read
                .as_ref()
                .and_then(|node| node.metadata.clone())
                .unwrap_or_default()
                .uid,
            out_of_service: read
                .and_then(|node| node.spec)
                .is_some_and(|spec| spec.out_of_service),
            csi: csi.map(|csi| (csi.plugin, csi.node_id)).collect(),
        };
        // A node's reporter writes often. Only what volumes depend on counts as a change.
        let same = self.nodes.get(&name).is_some_and(|before| before.same(&now));
        self.nodes.insert(name.clone(), now);
        if !same {
            self.around(&self.by_node, &name, changes);
        }
    }

    pub(super) fn delete(&mut self, part: Part, key: &[u8], revision: Revision, changes: &mut Vec<Change>) {
        match part {
            Part::Volumes => {
                let Some(name) = parsed(self.keys.parse_volume(key)) else {
                    return;
                };
                let known = self.volumes.get(&name).and_then(|entry| entry.volume.as_ref());
                if known.is_some_and(|known| known.mod_revision < revision) {
                    self.remove_volume(&name);
                    changes.push(Change::Record(name, revision));
                }
            }
            Part::Publications => {
                let Some((volume, node)) = self.parse_publication(key) else {
                    return;
                };
                let entry = self.volumes.get(&volume);
                let known = entry.and_then(|entry| entry.publications.get(&node));
                if known.is_some_and(|known| known.mod_revision < revision) {
                    self.remove_publication(&volume, &node);
                    changes.push(Change::Record(volume, revision));
                }
            }
            Part::Nodes => {
                let NodeKey::Node(text) = self.keys.parse_node(key) else {
                    return;
                };
                if let Some(name) = parsed(Some(text))
                    && self.nodes.remove(&name).is_some()
                {
                    self.around(&self.by_node, &name, changes);
                }
            }
            Part::Plugins => {
                if let Some(name) = parsed(self.keys.parse_plugin(key))
                    && self.plugins.remove(&name).is_some()
                {
                    changes.push(Change::Plugin(name));
                }
            }
            Part::Secrets => {
                if let Some(name) = parsed(self.keys.parse_secret(key))
                    && self.secrets.remove(&name).is_some()
                {
                    self.around(&self.by_secret, &name, changes);
                }
            }
        }
    }

    /// Deletes what the list did not show: it was deleted while no watch saw it, unless this leader wrote it after the list.
    pub(super) fn forget_unlisted(&mut self, part: Part, listed: Revision, changes: &mut Vec<Change>) {
        let list = self.lists[part as usize];
        self.gone.retain(|_, deleted| *deleted > listed);
        let keys = &self.keys;
        let missing: Vec<Vec<u8>> = match part {
            Part::Volumes => {
                let unlisted =
                    |entry: &Entry| entry.volume.as_ref().is_some_and(|known| known.seen_in != list);
                let missing = self.volumes.iter().filter(|(_, entry)| unlisted(entry));
                missing.map(|(name, _)| keys.volume(name)).collect()
            }
            Part::Publications => {
                let all = self.volumes.iter().flat_map(|(volume, entry)| {
                    let publications = entry.publications.iter();
                    publications.map(move |(node, known)| (volume, node, known))
                });
                let missing = all.filter(|(_, _, known)| known.seen_in != list);
                missing
                    .map(|(volume, node, _)| keys.publication(volume, node))
                    .collect()
            }
            Part::Nodes => {
                let missing = self.nodes.iter().filter(|(_, node)| node.seen_in != list);
                missing.map(|(name, _)| keys.node(name)).collect()
            }
            Part::Plugins => {
                let missing = self
                    .plugins
                    .iter()
                    .filter(|(_, (_, _, seen_in))| *seen_in != list);
                missing.map(|(name, _)| keys.plugin(name)).collect()
            }
            Part::Secrets => {
                let missing = self.secrets.iter().filter(|(_, (_, seen_in))| *seen_in != list);
                missing.map(|(name, _)| keys.secret(name)).collect()
            }
        };
        for key in missing {
            self.delete(part, &key, listed.next(), changes);
        }
    }
}
