//! `quorate unpublish --force`: deletes the record of a publication that its plugin will never confirm to have ended. A
//! tombstone stays, and the volume keeps the node id as one that it is unpublished from.

use jiff::Timestamp;
use prost::Message;

use super::REQUESTED;
use crate::cli::commit::{self, Decision};
use crate::cli::confirm;
use crate::cli::exit::Failure;
use crate::cli::output::{one_line, print};
use crate::etcd::{Revision, Txn};
use crate::proto::publication_status::State;
use crate::proto::{Metadata, Publication, Tombstone, Volume};
use crate::store::object::publication::{state, stored_node_id, undecided_node_id};
use crate::store::object::{Object, decode, time, tombstone};
use crate::store::{Name, Store};
use crate::volumes::record;

/// A publication that is about to be forgotten.
struct Forgetting {
    txn: Txn,
    tombstone: Name,
    /// What follows from that for its node id; empty where no call may be under way.
    consequence: String,
}

/// Asks, unless `yes`, and forgets the publication.
///
/// # Errors
/// 3 if there is none, 64 without a terminal to ask for confirmation.
pub async fn unpublish(store: &Store, volume: &Name, node: &Name, yes: bool) -> Result<(), Failure> {
    let id = format!("{volume}/{node}");
    confirm::require(yes, &format!("forget publication {id}"))?;
    let planned = plan(store, volume, node).await?;
    if !yes {
        let statement = format!(
            "publication/{id} is forgotten by force: other nodes get the volume, which may stay attached to this one; a volume \
             with two writers is destroyed{}",
            planned.consequence
        );
        confirm::ask(&[&statement], "nothing was changed")?;
    }
    let decide = async || {
        let planned = plan(store, volume, node).await?;
        let said = format!(
            "forgotten by force; tombstone/{} keeps what may be left at the backend{}",
            planned.tombstone, planned.consequence
        );
        Ok(Decision::Write(planned.txn, said))
    };
    let said = commit::settle(store, REQUESTED, decide).await?;
    print(&format!("publication/{id} {said}\n")).map(drop)
}

/// The node id from which the volume is unpublished although the publication is gone.
fn kept_node_id<'a>(publication: &'a Publication, volume: &Volume) -> Option<&'a str> {
    let spec = publication.spec.as_ref();
    let belongs = spec.is_some_and(|spec| spec.volume_uid == volume.uid());
    undecided_node_id(publication).filter(|_| belongs)
}

/// Deletes the record, also one that cannot be read. A tombstone lists what may be left at the backend (INV-6). Where a call may be
/// under way, the volume is published to that node id again only after the plugin says that it has left it, whatever becomes of the
/// call and of the leader that made it (INV-3).
async fn plan(store: &Store, volume: &Name, node: &Name) -> Result<Forgetting, Failure> {
    let id = format!("{volume}/{node}");
    let key = store.keys.publication(volume, node);
    let (Some(stored), _) = store.etcd.get(&key).await? else {
        let why = format!("volume {volume} is not published to node {node}");
        return Err(Failure::not_found(why).hint("quorate get publications lists where volumes are"));
    };
    let of_volume = store.keys.volume(volume);
    let (recorded, _) = store.etcd.get(&of_volume).await?;
    let found = recorded.as_ref().map_or(Revision::ABSENT, |kv| kv.mod_revision);
    let record = recorded
        .as_ref()
        .and_then(|kv| decode::<Volume>(volume.as_str(), &kv.value).ok());
    let now = Timestamp::now();
    let mut left = Tombstone {
        forced_at: Some(time::to_proto(now)),
        volume: record.clone(),
        keeps_volume: true,
        ..Tombstone::default()
    };
    let publication = decode::<Publication>(&id, &stored.value);
    let uid = match &publication {
        Ok(publication) => {
            left.publications.push(publication.clone());
            publication.uid().parse::<Name>().ok()
        }
        Err(_) => {
            let key = String::from_utf8_lossy(&key).into_owned();
            left.unreadable.insert(key, stored.value.clone());
            None
        }
    };
    let uid = uid.unwrap_or_else(|| tombstone::unreadable_name(volume));
    left.metadata = Some(Metadata::new(&uid, uid.as_str(), now));
    let tombstone = store.keys.tombstone(&uid);
    // A tombstone never replaces another. A record of the volume that is put back meanwhile keeps the node id, too.
    let mut txn = Txn::new()
        .when_unchanged(&key, stored.mod_revision)
        .when_unchanged(&of_volume, found)
        .when_absent(&tombstone)
        .delete(&key)
        .put(&tombstone, left.encode_to_vec());
    let consequence = match (&publication, &record) {
        (Ok(forgotten), Some(record)) => match kept_node_id(forgotten, record) {
            Some(node_id) => {
                let stray = record::with_stray(record, node_id);
                txn = txn.put(&of_volume, stray.encode_to_vec());
                let shown = one_line(node_id);
                format!(
                    "; volume/{volume} is deleted, and published to node id {shown} again, only after the plugin has unpublished \
                     it from there"
                )
            }
            None => String::new(),
        },
        (_, None) if recorded.is_none() => String::new(),
        _ => match node_id_of_unreadable(&stored.value) {
            Some(node_id) => format!(
                "; the record of the publication or of volume/{volume} cannot be read, so the volume does not keep node id {0}: a \
                 call for it may be under way, and quorate unpublish {volume} --node-id {0} has it end before the volume is \
                 published there again",
                one_line(&node_id)
            ),
            None => String::new(),
        },
    };
    Ok(Forgetting {
        txn,
        tombstone: uid,
        consequence,
    })
}

/// The node id of a publication, also where it is faulty, unless a node may use the volume under it. What a state of a later release
/// means is not known: no call for that takes the volume away (INV-12).
fn node_id_of_unreadable(value: &[u8]) -> Option<String> {
    let publication = Publication::decode(value).ok()?;
    let is_undecided = state(&publication) == State::Unspecified || undecided_node_id(&publication).is_some();
    let node_id = stored_node_id(&publication).to_owned();
    (is_undecided && !node_id.is_empty()).then_some(node_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{PublicationSpec, PublicationStatus};

    /// INV-6, INV-12
    #[test]
    fn a_node_id_is_kept_unless_no_call_was_made_for_it_or_a_node_may_use_the_volume() {
        let volume = Volume {
            metadata: Some(Metadata {
                uid: "uid".to_owned(),
                ..Metadata::default()
            }),
            ..Volume::default()
        };
        let kept = |state: State, id: &str, made_for: &str| {
            let publication = Publication {
                metadata: None,
                spec: Some(PublicationSpec {
                    volume_uid: made_for.to_owned(),
                    ..PublicationSpec::default()
                }),
                status: Some(PublicationStatus {
                    state: state.into(),
                    csi_node_id: id.to_owned(),
                    ..PublicationStatus::default()
                }),
            };
            kept_node_id(&publication, &volume).is_some()
        };
        assert!(kept(State::PendingPublish, "csi-n1", "uid"));
        assert!(kept(State::PendingUnpublish, "csi-n1", "uid"));
        assert!(!kept(State::PendingUnpublish, "", "uid"), "no call was made");
        assert!(
            !kept(State::PendingUnpublish, "csi-n1", "other"),
            "an earlier volume's"
        );
        assert!(!kept(State::Published, "csi-n1", "uid"));
        assert!(!kept(State::PendingNodeUnpublish, "csi-n1", "uid"));
    }
}
