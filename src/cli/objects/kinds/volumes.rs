//! Volumes, as the commands show them.

use jiff::Timestamp;

use super::{Concerns, Kind, Shown, Words, age_cell, identity_cells};
use crate::cli::objects::delete::{Deletable, volumes::DeleteVolume};
use crate::cli::objects::view::View;
use crate::cli::objects::{description, pending};
use crate::cli::output::{Column, Description, NONE, one_line, or_none};
use crate::etcd::{KeyRange, KeyValue};
use crate::proto::{Publication, Volume};
use crate::store::object::change::{Codec, Of};
use crate::store::object::mark::Marked;
use crate::store::object::publication::{state, state_word};
use crate::store::object::{Object, volume};
use crate::store::{Id, Keys, Name};
use crate::volumes::record::blocked;

/// The kind.
pub struct Volumes;

static WORDS: Words = Words {
    kind: Volume::KIND,
    singular: "volume",
    plural: "volumes",
    short: &["vol"],
};

static CODEC: Of<Volume> = Of::new();

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("DRIVER"),
    Column::new("STATE"),
    Column::new("CAPACITY"),
    Column::new("NODES"),
    Column::new("BLOCKED"),
    Column::new("AGE"),
    Column::wide("ACCESS"),
    Column::wide("AVAILABILITY"),
    Column::wide("VOLUME ID"),
    Column::wide("UID"),
    Column::wide("LABELS"),
];

/// Where it is in its life.
fn state_of(volume: &Volume) -> &'static str {
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

fn capacity_of(volume: &Volume) -> String {
    let has = volume.status.as_ref().map_or(0, |status| status.capacity_bytes);
    match (has, volume::required_bytes(volume)) {
        (0, 0) => NONE.to_owned(),
        (0, asked) => volume::format_bytes(asked),
        (has, _) => volume::format_bytes(has),
    }
}

/// What blocks it, or its publications: the first reason, and how many more.
fn blocked_cell<'a>(volume: &Volume, publications: impl Iterator<Item = &'a Publication>) -> String {
    let status = volume.status.clone().unwrap_or_default();
    let own = blocked(&status.conditions).map(|condition| condition.reason.clone());
    let theirs = publications.filter_map(|publication| {
        let conditions = &publication.status.as_ref()?.conditions;
        Some(blocked(conditions)?.reason.clone())
    });
    let reasons: Vec<String> = own.into_iter().chain(theirs).collect();
    match &reasons[..] {
        [] => NONE.to_owned(),
        [only] => one_line(only),
        [first, more @ ..] => format!("{} and {} more", one_line(first), more.len()),
    }
}

impl Kind for Volumes {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn ranges(&self, keys: &Keys, id: Option<&Id>) -> Vec<KeyRange> {
        pending::volume_ranges(keys, id.map(|id| &id.name))
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        keys.volume(&id.name)
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        keys.parse_volume(key)
    }

    fn concerns(&self, keys: &Keys, key: &[u8]) -> Concerns {
        if keys.parse_volume(key).is_some() {
            return Concerns::One(key.to_vec());
        }
        let volume = keys.parse_publication(key).and_then(|id| id.split('/').next());
        volume
            .and_then(|volume| volume.parse::<Name>().ok())
            .map_or(Concerns::Nothing, |name| Concerns::One(keys.volume(&name)))
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        Shown::decoded(COLUMNS, name, kv, |volume: &Volume, metadata| {
            let (publications, _) = pending::publications(view, name);
            let (scope, sharing) = volume::access_words(volume);
            let status = volume.status.clone().unwrap_or_default();
            let mut cells = vec![
                one_line(volume::driver(volume)),
                state_of(volume).to_owned(),
                capacity_of(volume),
                publications.len().to_string(),
                blocked_cell(volume, publications.values()),
                age_cell(metadata.creation_time.as_ref(), now),
                format!("{scope}/{sharing}"),
                volume::availability_word(volume).to_owned(),
                one_line(or_none(&status.volume_id)),
            ];
            cells.extend(identity_cells(metadata));
            (cells, volume::to_document(volume, kv.mod_revision))
        })
    }

    fn describe(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        description::object(name, kv, now, |description, volume: Option<&Volume>| {
            if let Some(volume) = volume {
                describe_volume(description, view, name, volume, now);
            }
        })
    }

    fn applied(&self) -> Option<&'static dyn Codec> {
        Some(&CODEC)
    }

    fn deleted(&self) -> Option<&'static dyn Deletable> {
        Some(&DeleteVolume)
    }
}

fn describe_volume(description: &mut Description, view: &View, name: &str, volume: &Volume, now: Timestamp) {
    let spec = volume.spec.clone().unwrap_or_default();
    let status = volume.status.clone().unwrap_or_default();
    let (scope, sharing) = volume::access_words(volume);
    description
        .field(0, "Driver", volume::driver(volume))
        .field(0, "Access", format!("{scope}, shared {sharing}"))
        .field(0, "Availability", or_none(volume::availability_word(volume)))
        .field(0, "Capacity", capacity_of(volume));
    let secrets = spec.secrets.iter();
    let secrets: Vec<String> = secrets
        .map(|entry| format!("{} of secret {}", entry.key, entry.secret))
        .collect();
    description
        .field(0, "Secrets", or_none(&secrets.join(", ")))
        .field(0, "State", state_of(volume))
        .field(0, "Volume ID", or_none(&status.volume_id));
    description.mark(volume.mark(), now);
    let (publications, _) = pending::publications(view, name);
    if publications.is_empty() {
        description.field(0, "Published", NONE);
    } else {
        description.field(0, "Published", "");
        for (node, publication) in &publications {
            description.field(1, node.as_str(), state_word(state(publication)));
        }
    }
    description.list("Waits For", pending::of_volume(view, name, volume), "nothing");
    description.conditions(&status.conditions, now);
}
