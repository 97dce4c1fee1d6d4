//! What may be under way at the backend for a volume that is taken in, from a record of it that was forgotten by force.

use std::collections::BTreeSet;

use super::{Failure, Interrupted, Run};
use crate::proto::{Plugin, Tombstone, Volume};
use crate::store::object::plugin::may_share_backend;
use crate::store::object::publication::undecided_node_id;
use crate::store::object::tombstone::left_node_ids;
use crate::store::object::volume::{backend_id, driver, made_at};
use crate::store::object::{Object, decode};

/// Whether the tombstone is that of a record of the same volume at the backend. Where it is not known, it may be (INV-12).
fn is_of(tombstone: &Tombstone, taken_in: &Volume, plugin: Option<&Plugin>) -> bool {
    let Some(volume) = tombstone.volume.as_ref().filter(|_| !tombstone.keeps_volume) else {
        return false;
    };
    let may_share = |plugin| may_share_backend(plugin, made_at(volume), made_at(taken_in));
    driver(volume) == driver(taken_in)
        && backend_id(volume) == backend_id(taken_in)
        && plugin.is_none_or(may_share)
}

/// The node ids of which a call may be under way.
fn node_ids(tombstone: &Tombstone) -> impl Iterator<Item = String> {
    let called = tombstone.publications.iter().filter_map(undecided_node_id);
    let left = left_node_ids(tombstone).iter().map(String::as_str);
    called.chain(left).map(str::to_owned)
}

impl Run<'_> {
    /// The node ids that a volume is unpublished from before anything else once it is taken in: calls of a record that was forgotten
    /// by force may be under way, whether or not a leader waited for their answers (INV-3, INV-6).
    ///
    /// # Errors
    /// Fails if such a call may delete the volume, or a tombstone cannot be read.
    pub(super) async fn left_by_forgotten(&self, taken_in: &Volume) -> Result<BTreeSet<String>, Interrupted> {
        let (keys, etcd) = (&self.env.store.keys, &self.env.store.etcd);
        let (tombstones, _) = etcd.list(&keys.tombstones()).await?;
        let mut left = BTreeSet::new();
        if tombstones.is_empty() {
            return Ok(left);
        }
        let driver = &self.operation.driver;
        let (plugin, _) = etcd.get(&keys.plugin(driver)).await?;
        let plugin = plugin.and_then(|kv| decode::<Plugin>(driver.as_str(), &kv.value).ok());
        for kv in tombstones {
            let name = keys.parse_tombstone(&kv.key).unwrap_or_default();
            let tombstone = decode::<Tombstone>(name, &kv.value);
            let tombstone = tombstone.map_err(|_| Failure::unreadable_tombstone(name))?;
            if !is_of(&tombstone, taken_in, plugin.as_ref()) {
                continue;
            }
            let status = tombstone
                .volume
                .as_ref()
                .and_then(|volume| volume.status.as_ref());
            if status.is_some_and(|status| status.delete_attempted) {
                return Err(Failure::deletion_begun(taken_in.name(), name).into());
            }
            left.extend(node_ids(&tombstone));
        }
        Ok(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::publication_status::State;
    use crate::proto::volume_spec::Driver;
    use crate::proto::{Backend, PluginSpec, Publication, PublicationStatus, VolumeSpec, VolumeStatus};

    fn volume(id: &str, endpoint: &str) -> Volume {
        Volume {
            metadata: None,
            spec: Some(VolumeSpec {
                driver: Some(Driver {
                    name: "p".to_owned(),
                    ..Driver::default()
                }),
                ..VolumeSpec::default()
            }),
            status: Some(VolumeStatus {
                volume_id: id.to_owned(),
                backend: Some(Backend {
                    endpoint: endpoint.to_owned(),
                    ..Backend::default()
                }),
                detach_node_ids: vec!["csi-n9".to_owned()],
                ..VolumeStatus::default()
            }),
        }
    }

    fn publication(state: State, id: &str) -> Publication {
        Publication {
            status: Some(PublicationStatus {
                state: state.into(),
                csi_node_id: id.to_owned(),
                ..PublicationStatus::default()
            }),
            ..Publication::default()
        }
    }

    /// INV-12
    #[test]
    fn a_tombstone_names_the_node_ids_of_calls_and_none_that_a_node_may_use_the_volume_under() {
        let tombstone = Tombstone {
            volume: Some(volume("vol-1", "unix:///s")),
            publications: vec![
                publication(State::PendingPublish, ""),
                publication(State::PendingPublish, "csi-n1"),
                publication(State::PendingUnpublish, "csi-n2"),
                publication(State::Published, "csi-n3"),
                publication(State::PendingNodeUnpublish, "csi-n4"),
            ],
            ..Tombstone::default()
        };
        let ids: Vec<String> = node_ids(&tombstone).collect();
        assert_eq!(ids, ["csi-n1", "csi-n2", "csi-n9"]);
    }

    /// INV-6
    #[test]
    fn a_tombstone_is_that_of_the_volume_with_the_same_id_at_what_may_be_the_same_backend() {
        let mut tombstone = Tombstone {
            volume: Some(volume("vol-1", "unix:///s")),
            ..Tombstone::default()
        };
        let plugin = Plugin {
            spec: Some(PluginSpec {
                endpoint: "unix:///s".to_owned(),
                ..PluginSpec::default()
            }),
            ..Plugin::default()
        };
        assert!(is_of(&tombstone, &volume("vol-1", "unix:///s"), Some(&plugin)));
        assert!(!is_of(&tombstone, &volume("vol-2", "unix:///s"), Some(&plugin)));
        let elsewhere = volume("vol-1", "unix:///other");
        assert!(!is_of(&tombstone, &elsewhere, Some(&plugin)));
        assert!(is_of(&tombstone, &elsewhere, None), "not known");
        tombstone.keeps_volume = true;
        assert!(
            !is_of(&tombstone, &volume("vol-1", "unix:///s"), Some(&plugin)),
            "its own record says so"
        );
    }
}
