//! What a step writes into the records. Pure: a record in, a record out; what is not named stays as it is, so that a
//! request that came in meanwhile is never overwritten.

use jiff::Timestamp;

use crate::proto::condition::Status;
use crate::proto::publication_status::State;
use crate::proto::{Condition, CreateIntent, Publication, Topology, Volume, VolumeStatus};
use crate::store::object::condition;
use crate::store::object::publication::state;
use crate::store::object::time;
use crate::store::object::volume::required_bytes;

/// The one condition that volumes and publications have: something that is wanted does not work.
pub const BLOCKED: &str = "Blocked";

/// That the plugin does not create the volume.
const STATIC: &str = "Static";

/// Why something does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// For machines.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A volume as its plugin described it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Created {
    /// Not empty.
    pub volume_id: String,
    /// 0 if the plugin did not say.
    pub capacity_bytes: i64,
    /// To be handed back with every publication.
    pub context: std::collections::BTreeMap<String, String>,
    /// From where it is within reach.
    pub topology: Vec<Topology>,
}

/// What blocks, by the conditions.
pub fn blocked(conditions: &[Condition]) -> Option<&Condition> {
    condition::find(conditions, BLOCKED).filter(|blocked| blocked.status() == Status::True)
}

/// Sets or clears the condition. Whether anything changed.
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

fn generation_of(volume: &Volume) -> i64 {
    volume.metadata.as_ref().map_or(0, |metadata| metadata.generation)
}

fn status_of(volume: &mut Volume) -> &mut VolumeStatus {
    volume.status.get_or_insert_default()
}

/// The intent to create: it stands from now on. `None` if it stands already; it is repeated with what it was then.
pub fn intend_create(volume: &Volume, term: i64, now: Timestamp) -> Option<Volume> {
    let stands = volume.status.as_ref().and_then(|status| status.create.as_ref());
    if stands.is_some_and(|create| !create.refused) {
        return None;
    }
    let mut volume = volume.clone();
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity);
    status_of(&mut volume).create = Some(CreateIntent {
        capacity,
        term,
        at: Some(time::to_proto(now)),
        refused: false,
    });
    Some(volume)
}

/// The plugin created it.
pub fn created(volume: &Volume, created: Created) -> Volume {
    let mut volume = volume.clone();
    let status = status_of(&mut volume);
    let asked = status.create.as_ref().and_then(|create| create.capacity);
    status.fulfilled_bytes = asked.map_or(0, |capacity| capacity.required);
    status.volume_id = created.volume_id;
    status.capacity_bytes = created.capacity_bytes;
    status.context = created.context;
    status.topology = created.topology;
    set_blocked(&mut status.conditions, None, 0, Timestamp::UNIX_EPOCH);
    volume
}

/// The plugin's answer says that it does not exist and never will, as it was asked for.
pub fn create_refused(volume: &Volume) -> Volume {
    let mut volume = volume.clone();
    if let Some(create) = &mut status_of(&mut volume).create {
        create.refused = true;
    }
    volume
}

/// The plugin creates no volumes.
pub fn name_taken(volume: &Volume, now: Timestamp) -> Volume {
    let mut volume = volume.clone();
    let name = volume
        .metadata
        .as_ref()
        .map_or_else(String::new, |metadata| metadata.name.clone());
    let (generation, fulfilled) = (generation_of(&volume), required_bytes(&volume));
    let status = status_of(&mut volume);
    status.volume_id = name;
    status.r#static = true;
    // What it has is not known; it was not asked for.
    status.fulfilled_bytes = fulfilled;
    let why = Blocked {
        reason: "NotCreatedByPlugin".to_owned(),
        message:
            "the plugin creates no volumes; the volume's id is its name, and it is not deleted at the backend"
                .to_owned(),
    };
    set_blocked(&mut status.conditions, None, 0, now);
    set_condition(&mut status.conditions, STATIC, &why, generation, now);
    volume
}

/// The plugin made it larger. `asked` is what it was asked for.
pub fn expanded(volume: &Volume, asked: i64, capacity_bytes: i64) -> Volume {
    let mut volume = volume.clone();
    let status = status_of(&mut volume);
    status.capacity_bytes = capacity_bytes.max(status.capacity_bytes);
    status.fulfilled_bytes = asked.max(status.fulfilled_bytes);
    set_blocked(&mut status.conditions, None, 0, Timestamp::UNIX_EPOCH);
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

/// The volume with this fault, or without one. `None` if nothing changes.
pub fn volume_blocked(volume: &Volume, why: Option<&Blocked>, now: Timestamp) -> Option<Volume> {
    let mut after = volume.clone();
    let generation = generation_of(&after);
    set_blocked(&mut status_of(&mut after).conditions, why, generation, now).then_some(after)
}

/// The intent to publish: from now on the node may have it, under this id. `None` if it stands already.
pub fn intend_publish(publication: &Publication, csi_node_id: &str) -> Option<Publication> {
    let stored = publication.status.as_ref();
    if stored.is_some_and(|stored| stored.csi_node_id == csi_node_id) {
        return None;
    }
    let mut publication = publication.clone();
    csi_node_id.clone_into(&mut publication.status.get_or_insert_default().csi_node_id);
    Some(publication)
}

/// It is published. Where it was asked for its end meanwhile, that stays.
pub fn published(
    publication: &Publication,
    context: std::collections::BTreeMap<String, String>,
) -> Publication {
    let mut publication = publication.clone();
    let wanted = state(&publication) == State::PendingPublish;
    let status = publication.status.get_or_insert_default();
    status.publish_context = context;
    if wanted {
        status.set_state(State::Published);
    }
    set_blocked(&mut status.conditions, None, 0, Timestamp::UNIX_EPOCH);
    publication
}

/// It is to end without its node's consent.
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

/// Nothing is published there any more: what remains of the record, if it was asked for again. `node` is the uid of the
/// node as it is now, if it is there and in service.
pub fn ended(publication: &Publication, node: Option<&str>, marked: bool) -> Option<Publication> {
    let again = publication.spec.as_ref().is_some_and(|spec| spec.again);
    let node = node.filter(|_| again && !marked)?;
    let mut publication = publication.clone();
    let spec = publication.spec.get_or_insert_default();
    spec.again = false;
    node.clone_into(&mut spec.node_uid);
    let status = publication.status.get_or_insert_default();
    status.set_state(State::PendingPublish);
    status.csi_node_id.clear();
    status.publish_context.clear();
    set_blocked(&mut status.conditions, None, 0, Timestamp::UNIX_EPOCH);
    Some(publication)
}

/// The publication with this fault, or without one. `None` if nothing changes.
pub fn publication_blocked(
    publication: &Publication,
    why: Option<&Blocked>,
    now: Timestamp,
) -> Option<Publication> {
    let mut after = publication.clone();
    let generation = after.metadata.as_ref().map_or(0, |metadata| metadata.generation);
    let status = after.status.get_or_insert_default();
    set_blocked(&mut status.conditions, why, generation, now).then_some(after)
}

#[cfg(test)]
mod tests;
