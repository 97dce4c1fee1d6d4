//! `ConfirmUnpublished` and `ConfirmExpanded`: what a node has done with its own publications, and no others.

use prost::Message;
use tonic::Status;

use super::Site;
use super::caller::Caller;
use super::refusal;
use super::write::{Attempts, Decision};
use crate::etcd::{KeyValue, Txn};
use crate::proto::publication_status::State;
use crate::proto::{
    ConfirmExpandedRequest, ConfirmExpandedResponse, ConfirmUnpublishedRequest, ConfirmUnpublishedResponse,
    Publication, PublicationStatus, Volume, VolumeStatus,
};
use crate::store::object::condition;
use crate::store::object::node::DUPLICATE_AGENT;
use crate::store::object::publication::{is_on_node, node_uid, state, state_word};
use crate::store::object::{Object, decode};
use crate::store::{Name, Store};

/// Answers `ConfirmUnpublished`. It may be repeated.
///
/// # Errors
/// The refusal.
pub async fn unpublished(
    site: &Site,
    mut caller: Caller,
    request: ConfirmUnpublishedRequest,
) -> Result<ConfirmUnpublishedResponse, Status> {
    let volume: Name = request.volume.parse().map_err(refusal::invalid)?;
    let mut attempts = Attempts::default();
    loop {
        let own = Own::read(&site.store, &caller, &volume, &request.publication_uid).await?;
        let decision = match state(&own.publication) {
            // The other one may use the volume (INV-6).
            State::PendingNodeUnpublish if is_duplicate(&caller) => {
                let why = format!(
                    "two agents run as this node, so that neither knows whether the volume is unused: stop one, or confirm it by hand \
                     (quorate unpublish {volume} {} --confirm)",
                    caller.name()
                );
                return Err(Status::unavailable(why));
            }
            State::PendingNodeUnpublish => {
                let after = PublicationStatus {
                    state: State::PendingUnpublish.into(),
                    ..PublicationStatus::default()
                };
                Decision::Write(own.put(&caller, &site.store, after), ())
            }
            // The reply of the same call was lost.
            State::PendingUnpublish => Decision::Nothing(()),
            other @ (State::PendingPublish | State::Published | State::Unspecified) => {
                let why = format!("the volume is not being unpublished: it is {}", state_word(other));
                return Err(Status::failed_precondition(why));
            }
        };
        if attempts.carry_out(&site.store.etcd, decision).await?.is_some() {
            return Ok(ConfirmUnpublishedResponse {});
        }
        caller = caller.again(&site.store).await?;
    }
}

/// Answers `ConfirmExpanded`. It may be repeated.
///
/// # Errors
/// The refusal.
pub async fn expanded(
    site: &Site,
    mut caller: Caller,
    request: ConfirmExpandedRequest,
) -> Result<ConfirmExpandedResponse, Status> {
    let volume: Name = request.volume.parse().map_err(refusal::invalid)?;
    let mut attempts = Attempts::default();
    loop {
        let own = Own::read(&site.store, &caller, &volume, &request.publication_uid).await?;
        if !is_on_node(&own.publication) {
            let why = "the volume is not on the node yet, or no longer";
            return Err(Status::failed_precondition(why));
        }
        let status = status_of(&site.store, &volume).await?;
        let due = status.node_expansion_bytes;
        // More than there is would count for an expansion that has yet to come.
        if request.capacity_bytes > status.capacity_bytes.max(due) {
            return Err(refusal::invalid("capacity_bytes is more than the volume has"));
        }
        let confirmed = own.publication.status.as_ref();
        let confirmed = confirmed.map_or(0, |status| status.expanded_bytes);
        // Of each expansion one write: a node could fill etcd with the steps to it.
        let decision = match confirmed < due && request.capacity_bytes >= due {
            false => Decision::Nothing(()),
            true => {
                let after = PublicationStatus {
                    expanded_bytes: due,
                    ..PublicationStatus::default()
                };
                Decision::Write(own.put(&caller, &site.store, after), ())
            }
        };
        if attempts.carry_out(&site.store.etcd, decision).await?.is_some() {
            return Ok(ConfirmExpandedResponse {});
        }
        caller = caller.again(&site.store).await?;
    }
}

/// Whether two agents were seen to run as the node.
fn is_duplicate(caller: &Caller) -> bool {
    let status = caller.node().status.as_ref();
    status.is_some_and(|status| condition::find(&status.conditions, DUPLICATE_AGENT).is_some())
}

async fn status_of(store: &Store, name: &Name) -> Result<VolumeStatus, Status> {
    let read = store.etcd.get(&store.keys.volume(name)).await;
    let (stored, _) = read.map_err(|error| refusal::unavailable(&error))?;
    let stored = stored.ok_or_else(|| Status::failed_precondition(format!("there is no volume {name}")))?;
    let volume: Volume = decode(name.as_str(), &stored.value)
        .map_err(|_| refusal::unreadable(format_args!("volume {name}")))?;
    Ok(volume.status.unwrap_or_default())
}

/// A publication of the caller.
struct Own {
    publication: Publication,
    stored: KeyValue,
}

impl Own {
    /// Reads the publication of a volume to the caller. A later one of the same volume, and one of another node that had the name of
    /// the caller, are others.
    async fn read(store: &Store, caller: &Caller, volume: &Name, uid: &str) -> Result<Self, Status> {
        let key = store.keys.publication(volume, caller.name());
        let read = store.etcd.get(&key).await;
        let (stored, _) = read.map_err(|error| refusal::unavailable(&error))?;
        let none = || {
            let why = format!("volume {volume} is not published to the node under this uid");
            Status::failed_precondition(why)
        };
        let stored = stored.ok_or_else(none)?;
        let id = format!("{volume}/{}", caller.name());
        let publication: Publication =
            decode(&id, &stored.value).map_err(|_| refusal::unreadable(format_args!("publication {id}")))?;
        if publication.uid() != uid || node_uid(&publication) != caller.uid() {
            return Err(none());
        }
        Ok(Self { publication, stored })
    }

    /// Writes these fields of the status, by appending them: protobuf merges a message that follows another, so that what only a later
    /// release knows stays.
    fn put(&self, caller: &Caller, store: &Store, status: PublicationStatus) -> Txn {
        let change = Publication {
            status: Some(status),
            ..Publication::default()
        };
        let KeyValue {
            key,
            value,
            mod_revision,
            ..
        } = &self.stored;
        let value = [&value[..], &change.encode_to_vec()].concat();
        caller
            .writes(&store.keys)
            .when_unchanged(key, *mod_revision)
            .put(key, value)
    }
}
