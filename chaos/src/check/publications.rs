//! INV-6: records of volumes and publications: nothing is detached without a word, and one writer alone writes.

use prost::Message;
use quorate::proto;
use quorate::proto::access_mode::Sharing;
use quorate::proto::publication_status::State;

use super::inv_1::fence;
use super::past::Past;
use super::records::{Version, before};
use super::{Rule, Violation};
use crate::history::Revision;

const RULE: Rule = Rule::Inv(6);

/// Whether the record is of the volume that has this id at the backend: its id if it has one, else its uid, which is the name of
/// its creation.
pub fn is_id_of(volume: &proto::Volume, id: &str) -> bool {
    let own = volume
        .status
        .as_ref()
        .map_or("", |status| status.volume_id.as_str());
    let uid = volume
        .metadata
        .as_ref()
        .map_or("", |metadata| metadata.uid.as_str());
    own == id || (!uid.is_empty() && id.ends_with(uid))
}

/// The records of the volumes with this id at the backend, at a revision.
pub fn volumes_by(past: &Past<'_>, id: &str, revision: Revision) -> Vec<proto::Volume> {
    let stored = past.range_at(&past.keys.volumes(), revision).into_iter();
    let volumes = stored.filter_map(|(_, version)| proto::Volume::decode(version.value?).ok());
    volumes.filter(|volume| is_id_of(volume, id)).collect()
}

/// Every version of every record of a volume.
pub fn all_volumes<'h>(past: &Past<'h>) -> Vec<(Version<'h>, proto::Volume)> {
    let versions = past.versions(&past.keys.volumes()).into_iter();
    versions
        .filter_map(|(_, version)| Some((version, proto::Volume::decode(version.value?).ok()?)))
        .collect()
}

/// The id at the backend of the volume that a publication is of.
pub fn volume_of(past: &Past<'_>, publication: &proto::Publication, revision: Revision) -> Option<String> {
    let name = publication.spec.as_ref()?.volume.parse().ok()?;
    let volume: proto::Volume = past.message_at(&past.keys.volume(&name), revision)?;
    volume.status.map(|status| status.volume_id)
}

fn state(publication: &proto::Publication) -> State {
    let status = publication.status.as_ref();
    status.map_or(State::Unspecified, proto::PublicationStatus::state)
}

/// Publications that the leader took from their nodes without a confirmation, the removal of the node, or an operator's word.
pub fn detached_without_word(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let range = past.keys.publications();
    for (index, _, changed) in past
        .changes()
        .filter(|(_, _, changed)| range.contains(&changed.key.0))
    {
        let Some((call_index, call)) = past
            .writer(changed.revision)
            .filter(|(_, call)| fence(past, call).is_some())
        else {
            continue;
        };
        let at = |revision| past.message_at::<proto::Publication>(&changed.key.0, revision);
        let Some(earlier) = at(before(changed.revision)) else {
            continue;
        };
        let from = state(&earlier);
        let to = at(changed.revision).map(|publication| state(&publication));
        let is_in_use = matches!(from, State::Published | State::PendingNodeUnpublish);
        if !is_in_use || !matches!(to, Some(State::PendingUnpublish) | None) {
            continue;
        }
        let node_uid = earlier.spec.as_ref().map_or("", |spec| spec.node_uid.as_str());
        let node = past
            .keys
            .parse_publication(&changed.key.0)
            .and_then(|name| name.rsplit('/').next());
        let is_removed = past
            .value_at(&past.keys.removed(node_uid), before(changed.revision))
            .is_some();
        let is_out = node.and_then(|node| node.parse().ok()).is_some_and(|node| {
            let node: Option<proto::Node> = past.message_at(&past.keys.node(&node), before(changed.revision));
            node.and_then(|node| node.spec)
                .is_some_and(|spec| spec.out_of_service)
        });
        if !is_removed && !is_out {
            let sentence = format!(
                "{} detached {}, whose node neither confirmed it nor was removed",
                call.by, changed.key
            );
            found.push(Violation::new(RULE, sentence, [call_index, index]));
        }
    }
    found
}

/// Volumes of one writer with two publications that may write.
pub fn several_writers(past: &Past<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let range = past.keys.publications();
    for (index, _, changed) in past
        .changes()
        .filter(|(_, _, changed)| range.contains(&changed.key.0))
    {
        let own: Option<proto::Publication> = past.message_at(&changed.key.0, changed.revision);
        let name = past
            .keys
            .parse_publication(&changed.key.0)
            .and_then(|name| name.split('/').next()?.parse().ok());
        let (Some(own), Some(name)) = (own, name) else {
            continue;
        };
        let volume: Option<proto::Volume> = past.message_at(&past.keys.volume(&name), changed.revision);
        let mode = volume.and_then(|volume| volume.spec?.access_mode);
        let writes =
            |publication: &proto::Publication| publication.spec.as_ref().is_some_and(|spec| !spec.read_only);
        if mode.is_none_or(|mode| mode.sharing() != Sharing::OneWriter) || !writes(&own) {
            continue;
        }
        let others = past
            .range_at(&past.keys.publications_of(&name), changed.revision)
            .into_iter();
        let mut writers = others.filter(|(key, version)| {
            let publication = version
                .value
                .and_then(|value| proto::Publication::decode(value).ok());
            *key != changed.key.0 && publication.as_ref().is_some_and(writes)
        });
        if let Some((key, other)) = writers.next() {
            let sentence = format!(
                "{} and {} may both write a volume of one writer",
                changed.key,
                key.escape_ascii()
            );
            found.push(Violation::new(RULE, sentence, [other.event, index]));
        }
    }
    found
}
