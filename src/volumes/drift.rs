//! Drift: how a plugin's list of volumes differs from the records. Pure.

use std::collections::{BTreeSet, HashMap};

use super::index::VolumeSnapshot;
use super::plan::Drift;
use crate::csi::ListedVolume;
use crate::proto::publication_status::State;
use crate::store::object::publication::state;

/// The node ids that each listed volume is published to, by volume id.
pub fn by_id(listed: Vec<ListedVolume>) -> HashMap<String, BTreeSet<String>> {
    let volumes = listed.into_iter().map(|volume| {
        let nodes = volume.published_to.into_iter().map(String::from);
        (String::from(volume.id), nodes.collect())
    });
    volumes.collect()
}

/// How the list differs from a volume's records; `None` if it does not. A volume that is missing from the list proves
/// nothing: it may have been created since.
pub fn compare(seen: &VolumeSnapshot, listed: &HashMap<String, BTreeSet<String>>) -> Option<Drift> {
    let status = seen.volume.status.as_ref()?;
    let nodes = listed.get(&status.volume_id)?;
    let mut drift = Drift {
        strays: nodes.clone(),
        ..Drift::default()
    };
    for (node, publication) in &seen.publications {
        let id = publication
            .status
            .as_ref()
            .map_or("", |status| status.csi_node_id.as_str());
        let is_listed = drift.strays.remove(id);
        if !is_listed && !id.is_empty() && state(publication) == State::Published {
            drift.lost.insert(node.clone());
        }
    }
    // An unreadable publication may be that of a stray.
    if status.r#static || !seen.unreadable.is_empty() {
        drift.strays.clear();
    }
    (drift != Drift::default()).then_some(drift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::{CsiNodeId, VolumeId};
    use crate::etcd::Revision;
    use crate::proto::{Publication, PublicationStatus, Volume, VolumeStatus};

    /// A volume with the id v and these publications: node, state, stored node id.
    fn seen(publications: &[(&str, State, &str)]) -> VolumeSnapshot {
        let publications = publications.iter().map(|(node, state, id)| {
            let status = PublicationStatus {
                state: (*state).into(),
                csi_node_id: (*id).to_owned(),
                ..PublicationStatus::default()
            };
            let publication = Publication {
                status: Some(status),
                ..Publication::default()
            };
            (node.parse().unwrap(), publication)
        });
        VolumeSnapshot {
            volume: Volume {
                status: Some(VolumeStatus {
                    volume_id: "v".to_owned(),
                    ..VolumeStatus::default()
                }),
                ..Volume::default()
            },
            revision: Revision(1),
            publications: publications.collect(),
            revisions: Default::default(),
            unreadable: Default::default(),
            nodes: Default::default(),
            removed: Default::default(),
        }
    }

    fn listed(volume: &str, nodes: &[&str]) -> HashMap<String, BTreeSet<String>> {
        let published_to = nodes.iter().map(|node| CsiNodeId::new(*node).unwrap());
        by_id(vec![ListedVolume {
            id: VolumeId::new(volume).unwrap(),
            capacity: 0,
            published_to: published_to.collect(),
        }])
    }

    #[test]
    fn what_list_and_records_agree_on_is_no_drift() {
        let seen = seen(&[
            ("n1", State::Published, "csi-n1"),
            // Not published yet, or no longer.
            ("n2", State::PendingPublish, "csi-n2"),
            ("n3", State::PendingUnpublish, "csi-n3"),
            // Published by a plugin that publishes nothing.
            ("n4", State::Published, ""),
        ]);
        assert_eq!(compare(&seen, &listed("v", &["csi-n1"])), None);
        assert_eq!(
            compare(&seen, &listed("v", &["csi-n1", "csi-n2", "csi-n3"])),
            None
        );
        assert_eq!(compare(&seen, &listed("another", &["csi-n9"])), None);
    }

    #[test]
    fn what_only_one_of_them_has_is_drift() {
        let mut seen = seen(&[("n1", State::Published, "csi-n1")]);
        let drift = compare(&seen, &listed("v", &["csi-n9"])).unwrap();
        assert_eq!(drift.lost, ["n1".parse().unwrap()].into());
        assert_eq!(drift.strays, ["csi-n9".to_owned()].into());
        // An unreadable record may be that of the stray.
        seen.unreadable = ["n9".parse().unwrap()].into();
        let drift = compare(&seen, &listed("v", &["csi-n9"])).unwrap();
        assert!(drift.strays.is_empty() && !drift.lost.is_empty());
        // A volume that the plugin did not create may have other users.
        seen.unreadable.clear();
        seen.volume.status.as_mut().unwrap().r#static = true;
        assert_eq!(compare(&seen, &listed("v", &["csi-n1", "csi-n9"])), None);
    }
}
