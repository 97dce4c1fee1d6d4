//! What a step writes into the records. Pure: a record in, a record out. A function changes only the fields that it
//! names, so that a request that came in meanwhile is never overwritten.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::csi::ExpandedVolume;
use crate::proto::condition::Status;
use crate::proto::publication_status::State;
use crate::proto::{Backend, Capacity, Condition, CreateIntent, Publication, Topology, Volume, VolumeStatus};
use crate::store::Name;
use crate::store::object::publication::{reads_only_next, state, stored_node_id};
use crate::store::object::time;
use crate::store::object::volume::{
    NODE_EXPANSION_PENDING, capacity, format_bytes, is_attempted, required_bytes,
};
use crate::store::object::{Object, condition};

/// The condition of volumes and publications that something wanted cannot be done.
pub const BLOCKED: &str = "Blocked";

/// The condition of a volume that its plugin has published otherwise than the records say.
pub const DRIFTED: &str = "Drifted";

/// The condition of a volume whose capacity is outside the range that was asked for.
const CAPACITY_MISMATCH: &str = "CapacityMismatch";

/// The condition of a volume that its plugin did not create.
const STATIC: &str = "Static";

/// Reason and message of the `Blocked` condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// One stable word in CamelCase.
    pub reason: String,
    /// A sentence that names what is in the way.
    pub message: String,
}

/// Conditions that are out of date, each with what it should say; `None` clears it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// `Blocked` of the volume, if it is out of date.
    pub volume: Option<Option<Blocked>>,
    /// `Drifted` of the volume, if it is out of date.
    pub drift: Option<Option<Blocked>>,
    /// Whether `CapacityMismatch` of the volume is over.
    pub capacity_accepted: bool,
    /// `Blocked` of the publications to these nodes.
    pub nodes: Vec<(Name, Option<Blocked>)>,
}

/// A created volume, as its plugin described it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Created {
    /// The plugin's id of the volume. Not empty.
    pub volume_id: String,
    /// 0 if the plugin did not say.
    pub capacity_bytes: i64,
    /// The plugin gets it back with every publication.
    pub context: BTreeMap<String, String>,
    /// The places that can reach the volume; none for every place.
    pub topology: Vec<Topology>,
}

/// The `Blocked` condition, if it is true.
pub fn blocked(conditions: &[Condition]) -> Option<&Condition> {
    condition::find(conditions, BLOCKED).filter(|blocked| blocked.status() == Status::True)
}

/// Whether the `Drifted` condition is set.
pub fn is_drifted(volume: &Volume) -> bool {
    let status = volume.status.as_ref();
    status.is_some_and(|status| condition::find(&status.conditions, DRIFTED).is_some())
}

/// Sets the `Blocked` condition, or clears it for a `why` of `None`. True if anything changed.
pub fn set_blocked(
    conditions: &mut Vec<Condition>,
    why: Option<&Blocked>,
    generation: i64,
    now: Timestamp,
) -> bool {
    match why {
        Some(why) => set_condition(conditions, BLOCKED, why, generation, now),
        None => condition::clear(conditions, BLOCKED),
    }
}

fn set_condition(
    conditions: &mut Vec<Condition>,
    r#type: &str,
    why: &Blocked,
    generation: i64,
    now: Timestamp,
) -> bool {
    let why = (why.reason.as_str(), why.message.as_str());
    condition::set(conditions, r#type, why, generation, now)
}

fn status_of(volume: &mut Volume) -> &mut VolumeStatus {
    volume.status.get_or_insert_default()
}

/// The intent to create. `None` if it stands already: the call is then repeated with the capacity of the intent.
/// `backend` is the one that is asked.
pub fn intend_create(volume: &Volume, backend: &Backend, term: i64, now: Timestamp) -> Option<Volume> {
    if is_attempted(volume) {
        return None;
    }
    let mut volume = volume.clone();
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity);
    let status = status_of(&mut volume);
    status.backend = Some(backend.clone());
    status.create = Some(CreateIntent {
        capacity,
        term,
        at: Some(time::to_proto(now)),
        refused: false,
    });
    Some(volume)
}

/// The volume after its creation.
pub fn created(volume: &Volume, created: Created, now: Timestamp) -> Volume {
    let mut volume = volume.clone();
    let generation = volume.generation();
    let status = status_of(&mut volume);
    let asked = status.create.as_ref().and_then(|create| create.capacity);
    let asked = asked.unwrap_or_default();
    // A plugin that says that it made less has not fulfilled what was asked for.
    status.fulfilled_bytes = match created.capacity_bytes {
        0 => asked.required,
        made => asked.required.min(made),
    };
    status.volume_id = created.volume_id;
    status.capacity_bytes = created.capacity_bytes;
    status.context = created.context;
    status.topology = created.topology;
    condition::clear(&mut status.conditions, BLOCKED);
    set_capacity_condition(status, asked, generation, now);
    volume
}

/// The volume without a mismatch of its capacity that a later request has ended; `None` if there is none.
pub fn capacity_accepted(volume: &Volume, now: Timestamp) -> Option<Volume> {
    condition::find(&volume.status.as_ref()?.conditions, CAPACITY_MISMATCH)?;
    let mut after = volume.clone();
    let (asked, generation) = (capacity(volume), volume.generation());
    let status = status_of(&mut after);
    set_capacity_condition(status, asked, generation, now);
    condition::find(&status.conditions, CAPACITY_MISMATCH)
        .is_none()
        .then_some(after)
}

/// Says whether the volume has a capacity within what was asked for, as far as its plugin says.
fn set_capacity_condition(status: &mut VolumeStatus, asked: Capacity, generation: i64, now: Timestamp) {
    let has = status.capacity_bytes;
    let side = match (has, asked.required, asked.limit) {
        (0, ..) => None,
        (has, required, _) if has < required => {
            Some(("TooSmall", format!("at least {}", format_bytes(required))))
        }
        (has, _, limit) if limit != 0 && has > limit => {
            Some(("TooLarge", format!("at most {}", format_bytes(limit))))
        }
        _ => None,
    };
    let Some((reason, wanted)) = side else {
        condition::clear(&mut status.conditions, CAPACITY_MISMATCH);
        return;
    };
    let why = Blocked {
        reason: reason.to_owned(),
        message: format!("the volume has {}, and {wanted} was asked for", format_bytes(has)),
    };
    set_condition(&mut status.conditions, CAPACITY_MISMATCH, &why, generation, now);
}

/// The volume after the plugin refused to create it, which proves that it is not at the backend.
pub fn create_refused(volume: &Volume) -> Volume {
    let mut volume = volume.clone();
    let status = status_of(&mut volume);
    // The next attempt may be at another backend.
    status.backend = None;
    if let Some(create) = &mut status.create {
        create.refused = true;
    }
    volume
}

/// The volume of a plugin that creates none: its name becomes its id.
pub fn name_taken(volume: &Volume, backend: &Backend, now: Timestamp) -> Volume {
    let mut volume = volume.clone();
    let (name, generation) = (volume.name().to_owned(), volume.generation());
    let fulfilled = required_bytes(&volume);
    let status = status_of(&mut volume);
    status.volume_id = name;
    status.backend = Some(backend.clone());
    status.r#static = true;
    // The capacity that it has is unknown. Nothing is expanded until more is required.
    status.fulfilled_bytes = fulfilled;
    let why = Blocked {
        reason: "NotCreatedByPlugin".to_owned(),
        message:
            "the plugin creates no volumes; the volume's id is its name, and it is not deleted at the backend"
                .to_owned(),
    };
    condition::clear(&mut status.conditions, BLOCKED);
    set_condition(&mut status.conditions, STATIC, &why, generation, now);
    volume
}

/// The volume that was taken in. The capacity that it has is unknown: nothing is expanded until more is required.
pub fn taken_in(volume: &Volume, backend: &Backend) -> Volume {
    let mut volume = volume.clone();
    let source = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.source.clone())
        .unwrap_or_default();
    let fulfilled = required_bytes(&volume);
    let status = status_of(&mut volume);
    status.volume_id = source.volume_id;
    status.context = source.context;
    status.backend = Some(backend.clone());
    status.fulfilled_bytes = fulfilled;
    condition::clear(&mut status.conditions, BLOCKED);
    volume
}

/// The volume with the backend that it was made at. The calls about it keep their access modes.
pub fn with_backend(volume: &Volume, backend: Backend) -> Volume {
    let mut volume = volume.clone();
    status_of(&mut volume).backend = Some(Backend {
        exact_access_mode: false,
        ..backend
    });
    volume
}

/// The volume after its expansion. `asked` is the capacity of the request.
pub fn expanded(volume: &Volume, asked: Capacity, made: ExpandedVolume, now: Timestamp) -> Volume {
    let mut volume = volume.clone();
    let generation = volume.generation();
    let status = status_of(&mut volume);
    status.capacity_bytes = made.capacity.max(status.capacity_bytes);
    status.fulfilled_bytes = asked.required.max(status.fulfilled_bytes);
    condition::clear(&mut status.conditions, BLOCKED);
    set_capacity_condition(status, asked, generation, now);
    if made.node_must_expand {
        status.node_expansion_bytes = status.capacity_bytes.max(asked.required);
        let why = Blocked {
            reason: "NodeExpandVolume".to_owned(),
            message: format!(
                "what is on the volume has yet to be expanded to {} on its nodes",
                format_bytes(status.node_expansion_bytes)
            ),
        };
        set_condition(
            &mut status.conditions,
            NODE_EXPANSION_PENDING,
            &why,
            generation,
            now,
        );
    }
    volume
}

/// The intent to delete. `None` if it stands already.
pub fn intend_delete(volume: &Volume) -> Option<Volume> {
    let stands = volume
        .status
        .as_ref()
        .is_some_and(|status| status.delete_attempted);
    (!stands).then(|| {
        let mut volume = volume.clone();
        status_of(&mut volume).delete_attempted = true;
        volume
    })
}

/// The volume after its nodes expanded what is on it up to this capacity. A later expansion is still theirs to do.
pub fn node_expanded(volume: &Volume, bytes: i64) -> Volume {
    let mut volume = volume.clone();
    let status = status_of(&mut volume);
    if status.node_expansion_bytes <= bytes {
        status.node_expansion_bytes = 0;
        condition::clear(&mut status.conditions, NODE_EXPANSION_PENDING);
    }
    volume
}

/// The volume with its `Blocked` condition set or cleared. `None` if nothing changes.
pub fn volume_blocked(volume: &Volume, why: Option<&Blocked>, now: Timestamp) -> Option<Volume> {
    let mut after = volume.clone();
    set_blocked(
        &mut status_of(&mut after).conditions,
        why,
        volume.generation(),
        now,
    )
    .then_some(after)
}

/// The volume with its `Drifted` condition set or cleared. `None` if nothing changes.
pub fn volume_drifted(volume: &Volume, why: Option<&Blocked>, now: Timestamp) -> Option<Volume> {
    let mut after = volume.clone();
    let generation = after.generation();
    let conditions = &mut status_of(&mut after).conditions;
    let is_changed = match why {
        Some(why) => set_condition(conditions, DRIFTED, why, generation, now),
        None => condition::clear(conditions, DRIFTED),
    };
    is_changed.then_some(after)
}

/// The volume with the intent to unpublish it from this node id, which no publication stores.
pub fn with_stray(volume: &Volume, csi_node_id: &str) -> Volume {
    let mut volume = volume.clone();
    let strays = &mut status_of(&mut volume).detach_node_ids;
    if !strays.iter().any(|id| id == csi_node_id) {
        strays.push(csi_node_id.to_owned());
    }
    volume
}

/// The volume without any request to unpublish it from node ids; `None` if there is none, or if the volume is marked for deletion: it leaves
/// them before that (INV-6).
pub fn without_strays(volume: &Volume) -> Option<Volume> {
    if volume.is_marked() {
        return None;
    }
    let mut after = volume.clone();
    let strays = std::mem::take(&mut status_of(&mut after).detach_node_ids);
    (!strays.is_empty()).then_some(after)
}

/// The volume without the request to unpublish it from this node id.
pub fn without_stray(volume: &Volume, csi_node_id: &str) -> Volume {
    let mut volume = volume.clone();
    if let Some(status) = &mut volume.status {
        status.detach_node_ids.retain(|id| id != csi_node_id);
    }
    volume
}

/// The intent to publish: from now on the node may have the volume, under this id. `None` if it stands already.
pub fn intend_publish(publication: &Publication, csi_node_id: &str) -> Option<Publication> {
    let stored = publication.status.as_ref();
    if stored.is_some_and(|stored| stored.csi_node_id == csi_node_id) {
        return None;
    }
    let mut publication = publication.clone();
    let is_published = state(&publication) == State::Published;
    let status = publication.status.get_or_insert_default();
    csi_node_id.clone_into(&mut status.csi_node_id);
    status.unrecorded = is_published;
    Some(publication)
}

/// The publication after the volume was published. A request meanwhile to unpublish it stands.
pub fn published(publication: &Publication, context: BTreeMap<String, String>) -> Publication {
    let mut publication = publication.clone();
    let is_wanted = state(&publication) == State::PendingPublish;
    let status = publication.status.get_or_insert_default();
    status.publish_context = context;
    status.unrecorded = false;
    if is_wanted {
        status.set_state(State::Published);
    }
    condition::clear(&mut status.conditions, BLOCKED);
    publication
}

/// The publication after it was published without a call. What an earlier call did is unknown until another one succeeds.
pub fn published_without_call(publication: &Publication) -> Publication {
    let mut publication = published(publication, BTreeMap::new());
    let status = publication.status.get_or_insert_default();
    status.unrecorded = !status.csi_node_id.is_empty();
    publication
}

/// The publication on its way to its end without its node's confirmation; `again` starts it over then.
pub fn detached(publication: &Publication, again: bool) -> Publication {
    let mut publication = publication.clone();
    if again {
        publication.spec.get_or_insert_default().again = true;
    }
    publication
        .status
        .get_or_insert_default()
        .set_state(State::PendingUnpublish);
    publication
}

/// The publication once only its node's word ends it, whatever was known before: a node that had confirmed that it no longer uses the
/// volume confirms again, and one that may have got the volume is taken to have it, although the call is repeated. `None` where no
/// call has given it the volume, or its word is needed as it is.
pub fn asked_again(publication: &Publication) -> Option<Publication> {
    let (state, unrecorded) = match state(publication) {
        State::PendingUnpublish => (State::PendingNodeUnpublish, false),
        State::PendingPublish => (State::Published, true),
        State::Published | State::PendingNodeUnpublish | State::Unspecified => return None,
    };
    (!stored_node_id(publication).is_empty()).then(|| {
        let mut publication = publication.clone();
        let status = publication.status.get_or_insert_default();
        status.set_state(state);
        status.unrecorded |= unrecorded;
        publication
    })
}

/// What a publication becomes once nothing of it is left at the backend: `None` deletes the record. It starts over if
/// that was asked for and may be: `restart` is the node's uid where it may. With `uid` it is another publication then: what a node
/// confirms of the former one says nothing of it (INV-6).
pub fn ended(publication: &Publication, restart: Option<&str>, uid: &str) -> Option<Publication> {
    let again = publication.spec.as_ref().is_some_and(|spec| spec.again);
    let node = restart.filter(|_| again)?;
    let mut publication = publication.clone();
    uid.clone_into(&mut publication.metadata_mut().uid);
    let spec = publication.spec.get_or_insert_default();
    spec.again = false;
    spec.read_only = reads_only_next(spec);
    spec.again_read_only = None;
    node.clone_into(&mut spec.node_uid);
    let status = publication.status.get_or_insert_default();
    status.set_state(State::PendingPublish);
    status.csi_node_id.clear();
    status.publish_context.clear();
    status.unrecorded = false;
    status.expanded_bytes = 0;
    condition::clear(&mut status.conditions, BLOCKED);
    Some(publication)
}

/// The publication with its `Blocked` condition set or cleared. `None` if nothing changes.
pub fn publication_blocked(
    publication: &Publication,
    why: Option<&Blocked>,
    now: Timestamp,
) -> Option<Publication> {
    let mut after = publication.clone();
    let status = after.status.get_or_insert_default();
    set_blocked(&mut status.conditions, why, publication.generation(), now).then_some(after)
}

#[cfg(test)]
mod tests;
