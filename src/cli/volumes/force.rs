//! `quorate unpublish --force`: deletes the record of a publication that its plugin will never confirm to have ended. A
//! tombstone stays, and the volume keeps the node id as one that it is unpublished from.

use jiff::Timestamp;
use prost::Message;

use super::REQUESTED;
use crate::cli::commit::{self, Decision};
use crate::cli::confirm;
use crate::cli::exit::Failure;
use crate::cli::output::{one_line, print};
use crate::etcd::Txn;
use crate::proto::{Metadata, Publication, Tombstone, Volume};
use crate::store::object::publication::undecided_node_id;
use crate::store::object::{Object, decode, time, tombstone};
use crate::store::{Name, Store};
use crate::volumes::record;

/// Asks, unless `yes`, and forgets the publication.
///
/// # Errors
/// 3 if there is none, 64 without a terminal to ask for confirmation.
pub async fn unpublish(store: &Store, volume: &Name, node: &Name, yes: bool) -> Result<(), Failure> {
    let id = format!("{volume}/{node}");
    confirm::require(yes, &format!("forget publication {id}"))?;
    decide(store, volume, node).await?;
    if !yes {
        let statement = format!(
            "publication/{id} is forgotten by force: other nodes get the volume, which may stay attached to this one; a volume \
             with two writers is destroyed"
        );
        confirm::ask(&[&statement], "nothing was changed")?;
    }
    let said = commit::settle(store, REQUESTED, async || decide(store, volume, node).await).await?;
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
async fn decide(store: &Store, volume: &Name, node: &Name) -> Result<Decision<String>, Failure> {
    let id = format!("{volume}/{node}");
    let key = store.keys.publication(volume, node);
    let (Some(stored), _) = store.etcd.get(&key).await? else {
        let why = format!("volume {volume} is not published to node {node}");
        return Err(Failure::not_found(why).hint("quorate get publications lists where volumes are"));
    };
    let of_volume = store.keys.volume(volume);
    let (recorded, _) = store.etcd.get(&of_volume).await?;
    let recorded = recorded.and_then(|kv| {
        let record = decode::<Volume>(volume.as_str(), &kv.value).ok()?;
        Some((record, kv.mod_revision))
    });
    let now = Timestamp::now();
    let mut left = Tombstone {
        forced_at: Some(time::to_proto(now)),
        volume: recorded.as_ref().map(|(record, _)| record.clone()),
        keeps_volume: true,
        ..Tombstone::default()
    };
    let uid = match decode::<Publication>(&id, &stored.value) {
        Ok(publication) => {
            let uid = publication.uid().parse::<Name>().ok();
            left.publications.push(publication);
            uid
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
    // A tombstone never replaces another.
    let txn = Txn::new()
        .when_unchanged(&key, stored.mod_revision)
        .when_absent(&tombstone)
        .delete(&key)
        .put(&tombstone, left.encode_to_vec());
    let said = format!("forgotten by force; tombstone/{uid} keeps what may be left at the backend");
    if let (Some((record, revision)), Some(forgotten)) = (&recorded, left.publications.first())
        && let Some(node_id) = kept_node_id(forgotten, record)
    {
        let stray = record::with_stray(record, node_id);
        let txn = txn
            .when_unchanged(&of_volume, *revision)
            .put(&of_volume, stray.encode_to_vec());
        let shown = one_line(node_id);
        let said = format!(
            "{said}; volume/{volume} is deleted, and published to node id {shown} again, only after the plugin has unpublished it \
             from there"
        );
        return Ok(Decision::Write(txn, said));
    }
    Ok(Decision::Write(txn, said))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::publication_status::State;
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
