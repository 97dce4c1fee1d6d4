//! Drift: how a plugin's list of volumes differs from the records. Pure.

use std::collections::{BTreeSet, HashMap};

use super::index::VolumeSnapshot;
use super::record::Blocked;
use crate::csi::ListedVolume;
use crate::store::Name;
use crate::store::object::publication::{is_published, stored_node_id};

/// A list that differs from the records of more volumes than this, and of more than a fifth of those compared, is not acted on:
/// etcd or the backend was probably restored, or the plugin spells node ids otherwise (INV-12).
const MOST: usize = 5;

/// The reason of a volume that the plugin has published only where the records say, and not everywhere there.
pub const NOT_PUBLISHED: &str = "NotPublished";

/// The reason of a volume that the plugin has published where no record says so.
pub const NOT_RECORDED: &str = "NotRecorded";

/// How the plugin's list of volumes differs from the records of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Nodes to which the volume is published by its records alone.
    pub lost: BTreeSet<Name>,
    /// Node ids to which it is published by the plugin's list alone.
    pub strays: BTreeSet<String>,
    /// Whether the list differs from the records of too many volumes to be acted on.
    pub is_one_of_many: bool,
}

impl Drift {
    /// The nodes that the volume is published to again. None while the list has it on other nodes: it may have moved there.
    pub fn to_mend(&self) -> BTreeSet<Name> {
        match self.strays.is_empty() && !self.is_one_of_many {
            true => self.lost.clone(),
            false => BTreeSet::new(),
        }
    }

    /// What the condition says; `None` if the list and the records agree.
    pub fn why(&self, volume: &str) -> Option<Blocked> {
        let lost: Vec<&str> = self.lost.iter().map(Name::as_str).collect();
        let strays: Vec<&str> = self.strays.iter().map(String::as_str).collect();
        let mut parts = Vec::new();
        if !strays.is_empty() {
            parts.push(format!(
                "the plugin has it published to node id {}, which no publication stores",
                strays.join(", ")
            ));
        }
        if !lost.is_empty() {
            parts.push(format!(
                "the plugin does not have it published to node {}",
                lost.join(", ")
            ));
        }
        let advice = match (self.strays.first(), self.is_one_of_many) {
            (_, true) => "nothing is done, because too many volumes of the plugin differ".to_owned(),
            (Some(stray), false) => {
                format!("quorate unpublish {volume} --node-id {stray} unpublishes it from there")
            }
            (None, false) => "it is published again where that is allowed".to_owned(),
        };
        let reason = match self.strays.is_empty() {
            true => NOT_PUBLISHED,
            false => NOT_RECORDED,
        };
        (!parts.is_empty()).then(|| Blocked {
            reason: reason.to_owned(),
            message: format!("{}; {advice}", parts.join("; ")),
        })
    }
}

/// Whether so many of the volumes of a plugin differ that its list is not acted on.
pub fn is_too_many(differ: usize, all: usize) -> bool {
    differ > MOST && differ * 5 > all
}

/// The node ids that each listed volume is published to, by volume id.
pub fn by_id(listed: Vec<ListedVolume>) -> HashMap<String, BTreeSet<String>> {
    let volumes = listed.into_iter().map(|volume| {
        let nodes = volume.published_to.into_iter().map(String::from);
        (String::from(volume.id), nodes.collect())
    });
    volumes.collect()
}

/// How the list differs from a volume's records; `None` if the list does not have the volume, which proves nothing: it may
/// have been created since.
pub fn compare(seen: &VolumeSnapshot, listed: &HashMap<String, BTreeSet<String>>) -> Option<Drift> {
    let status = seen.volume.status.as_ref()?;
    let nodes = listed.get(&status.volume_id)?;
    let mut drift = Drift {
        strays: nodes.clone(),
        ..Drift::default()
    };
    for (node, publication) in &seen.publications {
        let id = stored_node_id(publication);
        // Two publications may store one id.
        let is_listed = nodes.contains(id);
        drift.strays.remove(id);
        // One that a call has yet to publish is not lost where the list does not have it.
        if !is_listed && !id.is_empty() && is_published(publication) {
            drift.lost.insert(node.clone());
        }
    }
    // A volume that the plugin did not create has other users, and an unreadable publication may be that of a stray. But what
    // is elsewhere may have moved there.
    if status.r#static || !seen.unreadable.is_empty() {
        if !drift.strays.is_empty() {
            drift.lost.clear();
        }
        drift.strays.clear();
    }
    Some(drift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::{CsiNodeId, VolumeId};
    use crate::etcd::Revision;
    use crate::proto::publication_status::State;
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
            twin: None,
            namesake: None,
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
        for nodes in [&["csi-n1"][..], &["csi-n1", "csi-n2", "csi-n3"]] {
            let drift = compare(&seen, &listed("v", nodes));
            assert_eq!(drift, Some(Drift::default()), "{nodes:?}");
        }
        assert_eq!(compare(&seen, &listed("another", &["csi-n9"])), None);
        let twice = self::seen(&[
            ("n1", State::Published, "csi-x"),
            ("n2", State::Published, "csi-x"),
        ]);
        let drift = compare(&twice, &listed("v", &["csi-x"]));
        assert_eq!(drift, Some(Drift::default()), "one machine under two names");
    }

    #[test]
    fn what_only_one_of_them_has_is_drift() {
        let mut seen = seen(&[("n1", State::Published, "csi-n1")]);
        let drift = compare(&seen, &listed("v", &["csi-n9"])).unwrap();
        assert_eq!(drift.lost, ["n1".parse().unwrap()].into());
        assert_eq!(drift.strays, ["csi-n9".to_owned()].into());
        // An unreadable record may be that of the stray.
        seen.unreadable = ["n9".parse().unwrap()].into();
        let drift = compare(&seen, &listed("v", &["csi-n9"]));
        assert_eq!(
            drift,
            Some(Drift::default()),
            "and the volume may have moved there"
        );
        let drift = compare(&seen, &listed("v", &[])).unwrap();
        assert!(!drift.lost.is_empty());
        // A volume that the plugin did not create may have other users.
        seen.unreadable.clear();
        seen.volume.status.as_mut().unwrap().r#static = true;
        let drift = compare(&seen, &listed("v", &["csi-n1", "csi-n9"]));
        assert_eq!(drift, Some(Drift::default()));
    }

    /// As after a restore: the call is made in any case, and many of them are no sign that the list is wrong.
    #[test]
    fn what_a_call_has_yet_to_publish_is_not_lost() {
        let mut seen = seen(&[("n1", State::Published, "csi-n1")]);
        let there = seen.publications.values_mut().next().unwrap();
        there.status.as_mut().unwrap().unrecorded = true;
        for nodes in [&["csi-n1"][..], &[]] {
            let drift = compare(&seen, &listed("v", nodes));
            assert_eq!(drift, Some(Drift::default()), "{nodes:?}");
        }
    }

    fn drift(lost: &[&str], strays: &[&str]) -> Drift {
        Drift {
            lost: lost.iter().map(|node| node.parse().unwrap()).collect(),
            strays: strays.iter().map(|id| (*id).to_owned()).collect(),
            is_one_of_many: false,
        }
    }

    #[test]
    fn a_lost_publication_is_mended_only_where_the_list_has_the_volume_nowhere_else() {
        let lost = drift(&["n1"], &[]);
        assert_eq!(lost.to_mend(), lost.lost);
        assert_eq!(drift(&["n1"], &["csi-n9"]).to_mend(), BTreeSet::new());
        assert_eq!(drift(&[], &["csi-n9"]).to_mend(), BTreeSet::new());
    }

    #[test]
    fn the_condition_says_what_differs_and_what_follows() {
        let said = |drift: Drift| drift.why("v").map(|why| (why.reason, why.message));
        assert_eq!(said(Drift::default()), None);
        let (reason, message) = said(drift(&["n1", "n2"], &[])).unwrap();
        assert_eq!(reason, "NotPublished");
        assert_eq!(
            message,
            "the plugin does not have it published to node n1, n2; it is published again where that is allowed"
        );
        let (reason, message) = said(drift(&[], &["csi-n9"])).unwrap();
        assert_eq!(reason, "NotRecorded");
        let advice = "; quorate unpublish v --node-id csi-n9 unpublishes it from there";
        assert!(message.ends_with(advice), "{message}");
    }

    /// INV-12
    #[test]
    fn a_list_that_differs_from_many_volumes_is_not_acted_on() {
        assert!(!is_too_many(5, 5), "few");
        assert!(!is_too_many(6, 30), "a fifth");
        assert!(is_too_many(6, 29));
        let mut many = drift(&["n1"], &[]);
        many.is_one_of_many = true;
        assert_eq!(many.to_mend(), BTreeSet::new());
        let why = many.why("v").unwrap();
        assert!(
            why.message.contains("too many volumes of the plugin differ"),
            "{why:?}"
        );
    }
}
