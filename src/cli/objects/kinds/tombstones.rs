//! The Tombstone kind for commands: what forced deletions may have left at a backend.

use super::{Kind, Shown, Words, age};
use crate::cli::objects::delete::tombstones;
use crate::cli::objects::view::Item;
use crate::cli::output::{Description, NONE, UNKNOWN, or_none, pairs};
use crate::proto::Tombstone;
use crate::store::keys::KeySpace;
use crate::store::object::{Malformed, Object, time, tombstone, volume};

/// The kind.
pub static TOMBSTONES: Kind = Kind::new(
    Words::new(Tombstone::KIND, "tombstone", "tombstones", &[]),
    KeySpace::TOMBSTONES,
    &["NAME", "VOLUME", "DRIVER", "VOLUME ID", "NODES", "AGE"],
    &["LABELS"],
    show,
    describe,
    Ok(&tombstones::TOMBSTONE),
);

fn driver(tombstone: &Tombstone) -> &str {
    tombstone.volume.as_ref().map_or("", volume::driver)
}

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let tombstone: Tombstone = item.object()?;
    let published = tombstone::left_published(&tombstone).into_iter();
    let nodes: Vec<String> = published.map(|(node, _)| node).collect();
    let volume = tombstone.volume.as_ref();
    let status = volume.and_then(|volume| volume.status.as_ref());
    let metadata = tombstone.metadata.clone().unwrap_or_default();
    let cells = vec![
        tombstone::volume_name(&tombstone).to_owned(),
        driver(&tombstone).to_owned(),
        status.map_or_else(String::new, |status| status.volume_id.clone()),
        nodes.join(","),
        age(tombstone.forced_at.as_ref(), item.now),
        pairs(&metadata.labels),
    ];
    let document = tombstone::to_document(&tombstone, item.revision());
    Ok(Shown::new(metadata.labels, cells, document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    let Some(tombstone) = description.object::<Tombstone>(item) else {
        return;
    };
    let forced = time::from_proto(tombstone.forced_at.as_ref());
    let forced = forced.map_or_else(|| UNKNOWN.to_owned(), |at| time::since(at, item.now));
    let published = tombstone::left_published(&tombstone).into_iter();
    let published = published.map(|(node, id)| format!("maybe to node {node} (node id {id})"));
    let strays = tombstone::left_node_ids(&tombstone).iter();
    let published = published.chain(strays.map(|id| format!("maybe to node id {id}")));
    description
        .field("Volume", or_none(tombstone::volume_name(&tombstone)))
        .field("Driver", or_none(driver(&tombstone)))
        .field("Forced", forced)
        .field("Left Behind", tombstone::left_behind(&tombstone))
        .list("Published", published, NONE);
}
