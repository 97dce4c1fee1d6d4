//! `quorate unpublish --force`: deletes the record of a publication that its plugin will never confirm to have ended. A
//! tombstone stays.

use jiff::Timestamp;
use prost::Message;

use super::REQUESTED;
use crate::cli::commit::{self, Decision};
use crate::cli::confirm;
use crate::cli::exit::Failure;
use crate::cli::output::print;
use crate::etcd::Txn;
use crate::proto::{Metadata, Publication, Tombstone, Volume};
use crate::store::object::{Object, decode, time, tombstone};
use crate::store::{Name, Store};

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
            "publication/{id} is forgotten by force: nothing is done at the backend, where the volume may stay attached to \
             the node; a volume with two writers is destroyed"
        );
        confirm::ask(&[&statement], "nothing was changed")?;
    }
    let said = commit::settle(store, REQUESTED, async || decide(store, volume, node).await).await?;
    print(&format!("publication/{id} {said}\n")).map(drop)
}

/// Deletes the record, also one that cannot be read. A tombstone lists what may be left at the backend (INV-6).
async fn decide(store: &Store, volume: &Name, node: &Name) -> Result<Decision<String>, Failure> {
    let id = format!("{volume}/{node}");
    let key = store.keys.publication(volume, node);
    let (Some(stored), _) = store.etcd.get(&key).await? else {
        let why = format!("volume {volume} is not published to node {node}");
        return Err(Failure::not_found(why).hint("quorate get publications lists where volumes are"));
    };
    let (of_volume, _) = store.etcd.get(&store.keys.volume(volume)).await?;
    let now = Timestamp::now();
    let mut left = Tombstone {
        forced_at: Some(time::to_proto(now)),
        volume: of_volume.and_then(|kv| decode::<Volume>(volume.as_str(), &kv.value).ok()),
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
    Ok(Decision::Write(txn, said))
}
