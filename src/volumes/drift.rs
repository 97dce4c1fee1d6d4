//! What a plugin's own list says otherwise than the records. Pure.

use std::collections::{BTreeSet, HashMap};

use super::index::Seen;
use super::plan::Drift;
use crate::csi::ListedVolume;
use crate::proto::publication_status::State;
use crate::store::object::publication::state;

/// The nodes that each volume is published to, by its id.
pub fn by_id(listed: Vec<ListedVolume>) -> HashMap<String, BTreeSet<String>> {
    let volumes = listed.into_iter().map(|volume| {
        let nodes = volume.published_to.into_iter().map(String::from);
        (String::from(volume.id), nodes.collect())
    });
    volumes.collect()
}

/// What is to be mended about a volume, if anything is. A volume that is not in the list says nothing: the list may be
/// that of another moment.
pub fn compare(seen: &Seen, listed: &HashMap<String, BTreeSet<String>>) -> Option<Drift> {
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
        let was_there = drift.strays.remove(id);
        if !was_there && !id.is_empty() && state(publication) == State::Published {
            drift.lost.insert(node.clone());
        }
    }
    // One of them may be that of a publication that cannot be read.
    if status.r#static || !seen.unreadable.is_empty() {
        drift.strays.clear();
    }
    (drift != Drift::default()).then_some(drift)
}
