//! The Volume kind for commands.

use std::collections::BTreeMap;

use super::{Affected, Kind, Shown, Words, age, identity};
use crate::cli::objects::delete::volumes;
use crate::cli::objects::pending;
use crate::cli::objects::view::{Item, View};
use crate::cli::output::{Description, NONE, or_none};
use crate::proto::{Publication, Volume};
use crate::store::Name;
use crate::store::keys::KeySpace;
use crate::store::object::change::Of;
use crate::store::object::mark::Marked;
use crate::store::object::publication::shown_state;
use crate::store::object::{Malformed, Object, volume};
use crate::volumes::record::blocked;

/// The kind.
pub static VOLUMES: Kind = Kind {
    applied: Some(Of::<Volume>::CODEC),
    // Everything that shows what a volume waits for.
    beside: |keys, name| {
        let publications = name.map_or_else(|| keys.publications(), |name| keys.publications_of(name));
        vec![publications, keys.plugins(), keys.nodes(), keys.all_removed()]
    },
    affected: |keys, key| Affected::named(keys.parse_publication(key), |name| keys.volume(name)),
    ..Kind::new(
        Words::new(Volume::KIND, "volume", "volumes", &["vol"]),
        KeySpace::VOLUMES,
        &["NAME", "DRIVER", "STATE", "CAPACITY", "NODES", "BLOCKED", "AGE"],
        &["ACCESS", "AVAILABILITY", "VOLUME ID", "UID", "LABELS"],
        show,
        describe,
        Ok(&volumes::VOLUME),
    )
};

/// `creating`, `created` or `deleting`.
fn phase(volume: &Volume) -> &'static str {
    let id = volume
        .status
        .as_ref()
        .map_or("", |status| status.volume_id.as_str());
    match (volume.is_marked(), id) {
        (true, _) => "deleting",
        (false, "") => "creating",
        (false, _) => "created",
    }
}

/// The capacity that it has, or else the one that it requires, and whether its nodes have yet to expand what is on it.
fn capacity(volume: &Volume) -> String {
    let status = volume.status.as_ref();
    let has = status.map_or(0, |status| status.capacity_bytes);
    let capacity = match (has, volume::required_bytes(volume)) {
        (0, 0) => NONE.to_owned(),
        (0, required) => volume::format_bytes(required),
        (has, _) => volume::format_bytes(has),
    };
    match status.map_or(0, |status| status.node_expansion_bytes) {
        0 => capacity,
        _ => format!("{capacity} ({})", volume::NODE_EXPANSION_PENDING),
    }
}

/// The reasons why it or its publications are blocked: the first, and how many more there are.
fn blocked_cell(view: &View, volume: &Volume, publications: &BTreeMap<Name, Publication>) -> String {
    let status = volume.status.as_ref();
    let own = status.and_then(|status| blocked(&status.conditions));
    let theirs = publications.values();
    let theirs = theirs.filter_map(|publication| blocked(&publication.status.as_ref()?.conditions));
    let conditions = own.into_iter().chain(theirs);
    let unready = pending::waits_for_plugin(view, volume, publications);
    let reasons: Vec<String> = unready
        .map(|(reason, _)| reason)
        .into_iter()
        .chain(conditions.map(|condition| condition.reason.clone()))
        .collect();
    pending::cell(&reasons)
}

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let volume: Volume = item.object()?;
    let (publications, _) = pending::publications(item.view, item.name);
    let (scope, sharing) = volume::access_words(&volume);
    let metadata = volume.metadata.clone().unwrap_or_default();
    let status = volume.status.clone().unwrap_or_default();
    let mut cells = vec![
        volume::driver(&volume).to_owned(),
        phase(&volume).to_owned(),
        capacity(&volume),
        publications.len().to_string(),
        blocked_cell(item.view, &volume, &publications),
        age(metadata.creation_time.as_ref(), item.now),
        format!("{scope}/{sharing}"),
        volume::availability_word(&volume).to_owned(),
        status.volume_id,
    ];
    cells.extend(identity(&metadata));
    let document = volume::to_document(&volume, item.revision());
    Ok(Shown::new(metadata.labels, cells, document))
}

fn describe(item: &Item<'_>, description: &mut Description) {
    let Some(volume) = description.object::<Volume>(item) else {
        return;
    };
    let spec = volume.spec.clone().unwrap_or_default();
    let status = volume.status.clone().unwrap_or_default();
    let (scope, sharing) = volume::access_words(&volume);
    let secrets = spec.secrets.iter();
    let secrets: Vec<String> = secrets
        .map(|entry| format!("{} of secret {}", entry.key, entry.secret))
        .collect();
    description
        .field("Driver", volume::driver(&volume))
        .field("Access", format!("{scope}, shared {sharing}"))
        .field("Availability", or_none(volume::availability_word(&volume)))
        .field("Capacity", capacity(&volume))
        .field("Secrets", or_none(&secrets.join(", ")))
        .field("State", phase(&volume))
        .field("Volume ID", or_none(&status.volume_id));
    if let Some(backend) = &status.backend {
        let identity = match backend.id.as_str() {
            "" => String::new(),
            id => format!(" ({id})"),
        };
        description.field("Backend", format!("{}{identity}", backend.endpoint));
    }
    description.mark(volume.mark(), item.now);
    let (publications, _) = pending::publications(item.view, item.name);
    description.field("Published", if publications.is_empty() { NONE } else { "" });
    for (node, publication) in &publications {
        description.nested(node.as_str(), shown_state(publication));
    }
    if !status.detach_node_ids.is_empty() {
        let leaving = status.detach_node_ids.iter().cloned();
        description.list("Leaving Node IDs", leaving, NONE);
    }
    let waits = pending::of_volume(item.view, item.name, &volume);
    description.list("Waits For", waits, "nothing");
    description.conditions(&status.conditions, item.now);
}
