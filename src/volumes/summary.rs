//! Volumes and CSI plugins for people: how many are in which state, and what is in the way. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use super::index::{Index, State};
use super::record;
use crate::proto::{Condition, Volume};
use crate::store::Name;
use crate::store::object::mark::Marked;
use crate::store::object::time;
use crate::summary::{Names, PendingDeletion, Rows};

/// All volumes and plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumesSummary {
    /// How many volumes are in each state, by its word.
    pub states: BTreeMap<&'static str, i64>,
    /// The volumes and publications for which something cannot be done, and the volumes that cannot be read.
    pub blocked: Rows<BlockedRow>,
    /// The volumes that are marked for deletion.
    pub deletions: Rows<PendingDeletion>,
    /// The plugins that have an object.
    pub plugins: Rows<PluginRow>,
}

/// Something that cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockedRow {
    /// The volume.
    pub volume: String,
    /// The node of the publication that it is about; `None` for the volume itself.
    pub node: Option<String>,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// Since when, in RFC 3339.
    pub since: Option<String>,
}

/// A CSI plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginRow {
    /// Its name.
    pub name: String,
    /// `Ready`, `Idle`, `Connecting`, or why it cannot be called; empty where that is not known yet.
    pub state: String,
    /// A sentence about the state.
    pub message: String,
    /// The volumes that name it.
    pub volumes: usize,
    /// Those of them that wait for a connection or for their turn.
    pub waiting: u64,
}

/// The reason of a volume whose record cannot be read.
const UNREADABLE: &str = "Unreadable";

/// What the index holds.
pub fn summary(index: &Index) -> VolumesSummary {
    let states = State::ALL.into_iter();
    VolumesSummary {
        states: states.map(|(state, word)| (word, index.count(state))).collect(),
        blocked: Rows::least(index.troubled()).map(|(volume, node)| blocked(index, volume, node)),
        deletions: Rows::least(index.in_state(State::Deleting)).map(|name| deletion(index, name)),
        plugins: Rows::least(index.plugins()).map(|name| plugin(index, name)),
    }
}

fn blocked(index: &Index, volume: &Name, node: Option<&Name>) -> BlockedRow {
    let conditions = match node {
        Some(node) => index
            .publication(volume, node)
            .map(|found| found.map(|publication| publication.status.unwrap_or_default().conditions)),
        None => index
            .volume(volume)
            .map(|found| found.map(|volume| volume.status.unwrap_or_default().conditions)),
    };
    let (reason, message, since) = match &conditions {
        Some(Ok(conditions)) => words(record::blocked(conditions)),
        Some(Err(malformed)) => (UNREADABLE.to_owned(), malformed.to_string(), None),
        None => words(None),
    };
    BlockedRow {
        volume: volume.to_string(),
        node: node.map(Name::to_string),
        reason,
        message,
        since,
    }
}

fn words(condition: Option<&Condition>) -> (String, String, Option<String>) {
    condition.map_or_else(Default::default, |condition| {
        let since = time::document(condition.last_transition_time.as_ref());
        (condition.reason.clone(), condition.message.clone(), since)
    })
}

fn deletion(index: &Index, name: &Name) -> PendingDeletion {
    let volume = index.volume(name).and_then(Result::ok).unwrap_or_default();
    PendingDeletion {
        kind: "volume",
        name: name.to_string(),
        since: time::document(volume.mark()),
        waits_for: waits_for(index, name, &volume),
    }
}

/// What the deletion of a volume waits for: the end of its publications first, since that of the backend comes after them.
fn waits_for(index: &Index, name: &Name, volume: &Volume) -> String {
    let nodes: Names = index.published_to(name).map(Name::as_str).collect();
    if nodes.total() > 0 {
        return format!("the end of its publications to {nodes}");
    }
    let conditions = volume.status.as_ref().map(|status| status.conditions.as_slice());
    match record::blocked(conditions.unwrap_or_default()) {
        Some(blocked) => format!("{}: {}", blocked.reason, blocked.message),
        None => "its plugin".to_owned(),
    }
}

fn plugin(index: &Index, name: &Name) -> PluginRow {
    let status = index.plugin_status(name).map(|(status, _)| status.clone());
    let status = status.unwrap_or_default();
    PluginRow {
        name: name.to_string(),
        state: status.state,
        message: status.message,
        volumes: index.count_of_plugin(name),
        waiting: status.waiting,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::etcd::{KeyValue, Revision};
    use crate::proto::access_mode::{Kind, Mount};
    use crate::proto::condition::Status;
    use crate::proto::publication_status::State as Published;
    use crate::proto::volume_spec::Driver;
    use crate::proto::{
        AccessMode, Metadata, PluginStatus, Publication, PublicationSpec, PublicationStatus, VolumeSpec,
        VolumeStatus,
    };
    use crate::store::{Keys, Update};
    use crate::summary::ROWS;
    use crate::volumes::index::Part;

    fn keys() -> Keys {
        Keys::new("/q".parse().unwrap())
    }

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn kv(key: Vec<u8>, value: Vec<u8>) -> KeyValue {
        KeyValue {
            key,
            value,
            create_revision: Revision(1),
            mod_revision: Revision(1),
            lease: None,
        }
    }

    fn metadata(name: &str) -> Option<Metadata> {
        Some(Metadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            ..Metadata::default()
        })
    }

    fn blocked_by(reason: &str) -> Vec<Condition> {
        vec![Condition {
            r#type: record::BLOCKED.to_owned(),
            status: Status::True.into(),
            reason: reason.to_owned(),
            message: format!("because of {reason}"),
            last_transition_time: Some(prost_types::Timestamp {
                seconds: 1_772_366_400,
                nanos: 0,
            }),
            ..Condition::default()
        }]
    }

    fn volume(number: usize, conditions: Vec<Condition>, marked: bool) -> KeyValue {
        let own = format!("v{number:04}");
        let volume = Volume {
            metadata: metadata(&own),
            spec: Some(VolumeSpec {
                driver: Some(Driver {
                    name: "p".to_owned(),
                    ..Driver::default()
                }),
                access_mode: Some(AccessMode {
                    kind: Some(Kind::Mount(Mount::default())),
                    ..AccessMode::default()
                }),
                ..VolumeSpec::default()
            }),
            status: Some(VolumeStatus {
                volume_id: format!("id-{number}"),
                conditions,
                delete_requested: marked.then(prost_types::Timestamp::default),
                ..VolumeStatus::default()
            }),
        };
        kv(keys().volume(&name(&own)), volume.encode_to_vec())
    }

    fn publication(volume: &str, node: &str, conditions: Vec<Condition>) -> KeyValue {
        let publication = Publication {
            metadata: metadata(node),
            spec: Some(PublicationSpec {
                volume: volume.to_owned(),
                ..PublicationSpec::default()
            }),
            status: Some(PublicationStatus {
                state: Published::Published.into(),
                conditions,
                ..PublicationStatus::default()
            }),
        };
        kv(
            keys().publication(&name(volume), &name(node)),
            publication.encode_to_vec(),
        )
    }

    fn seen(volumes: Vec<KeyValue>, publications: Vec<KeyValue>) -> VolumesSummary {
        let mut index = Index::new(keys());
        let status = PluginStatus {
            state: "PluginUnreachable".to_owned(),
            message: "it does not answer".to_owned(),
            waiting: 7,
            ..PluginStatus::default()
        };
        let plugins = vec![
            kv(keys().plugin(&name("p")), Vec::new()),
            kv(keys().plugin_status(&name("p")), status.encode_to_vec()),
        ];
        let parts = [
            (Part::Volumes, volumes),
            (Part::Publications, publications),
            (Part::Plugins, plugins),
        ];
        for (part, keys) in parts {
            index.take_in(part, Update::Page { first: true, keys });
            index.take_in(part, Update::Listed(Revision(1)));
        }
        summary(&index)
    }

    #[test]
    fn of_5000_volumes_the_40_that_are_blocked_are_shown_with_their_reasons() {
        let conditions = |number: usize| match number % 125 {
            7 => blocked_by("ResourceExhausted"),
            _ => Vec::new(),
        };
        let volumes = (0..5000).map(|number| volume(number, conditions(number), false));
        let summary = seen(volumes.collect(), Vec::new());
        assert_eq!((summary.blocked.total, summary.blocked.first.len()), (40, 40));
        assert_eq!(
            summary.blocked.first[1],
            BlockedRow {
                volume: "v0132".to_owned(),
                node: None,
                reason: "ResourceExhausted".to_owned(),
                message: "because of ResourceExhausted".to_owned(),
                since: Some("2026-03-01T12:00:00Z".to_owned()),
            }
        );
        assert_eq!((summary.states["created"], summary.states["deleting"]), (5000, 0));
        let plugin = &summary.plugins.first[0];
        assert_eq!(
            (plugin.state.as_str(), plugin.volumes, plugin.waiting),
            ("PluginUnreachable", 5000, 7)
        );
    }

    #[test]
    fn a_table_of_blocked_volumes_ends_and_counts_the_others() {
        let volumes = (0..300).map(|number| volume(number, blocked_by("Internal"), false));
        let summary = seen(volumes.collect(), Vec::new());
        assert_eq!(
            (summary.blocked.first.len(), summary.blocked.more()),
            (ROWS, 300 - ROWS)
        );
    }

    #[test]
    fn a_publication_and_a_record_that_cannot_be_read_are_blocked_too() {
        let broken = kv(keys().volume(&name("broken")), vec![0xff]);
        let publications = vec![
            publication("v0001", "n1", blocked_by("NodePaused")),
            publication("v0001", "n2", Vec::new()),
        ];
        let summary = seen(vec![broken, volume(1, Vec::new(), false)], publications);
        let rows = summary.blocked.first.iter();
        let rows: Vec<_> = rows
            .map(|row| (row.volume.as_str(), row.node.as_deref(), row.reason.as_str()))
            .collect();
        assert_eq!(
            rows,
            [("broken", None, UNREADABLE), ("v0001", Some("n1"), "NodePaused")]
        );
        assert_eq!(summary.states["malformed"], 1);
    }

    #[test]
    fn a_marked_volume_waits_for_its_publications_then_for_what_blocks_it() {
        let marked = vec![
            volume(1, blocked_by("Internal"), true),
            volume(2, blocked_by("Internal"), true),
            volume(3, Vec::new(), true),
        ];
        let summary = seen(marked, vec![publication("v0001", "n1", Vec::new())]);
        let waits: Vec<&str> = summary
            .deletions
            .first
            .iter()
            .map(|row| row.waits_for.as_str())
            .collect();
        assert_eq!(
            waits,
            [
                "the end of its publications to n1",
                "Internal: because of Internal",
                "its plugin"
            ]
        );
    }
}
