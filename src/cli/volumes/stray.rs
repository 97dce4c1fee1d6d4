//! `quorate unpublish --node-id`: asks the leader to unpublish a volume from a node id that no publication stores, or, with `--force`,
//! withdraws that.

use prost::Message;

use super::REQUESTED;
use crate::cli::commit::{self, Decision};
use crate::cli::confirm;
use crate::cli::exit::Failure;
use crate::cli::objects::stored::Versioned;
use crate::cli::output::{one_line, print};
use crate::cli::wait::{Progress, WaitArgs, until};
use crate::etcd::KeyRange;
use crate::proto::{Publication, Volume};
use crate::store::object::publication::stored_node_id;
use crate::store::object::{Object, decode};
use crate::store::{Name, Store};
use crate::volumes::record::{self, blocked};

/// Asks for it and, if wanted, waits.
///
/// # Errors
/// 3 for a volume that does not exist, or is gone before it is unpublished, 4 for a node id that a publication stores, 2 after the
/// timeout.
pub async fn unpublish(store: &Store, volume: &Name, node_id: &str, wait: &WaitArgs) -> Result<(), Failure> {
    let decide = async || decide(store, volume, node_id).await;
    let (uid, said) = commit::settle(store, REQUESTED, decide).await?;
    let shown = one_line(node_id);
    print(&format!("volume/{volume} {said} {shown}\n"))?;
    if !wait.wait {
        return Ok(());
    }
    let key = store.keys.volume(volume);
    let hint = format!("the request stands; quorate describe volume {volume} says what it waits for");
    let ranges = vec![KeyRange::key(key.clone())];
    until(store, ranges, wait.timeout, &hint, |view| {
        let stored = view
            .get(&key)
            .map(|kv| decode::<Volume>(volume.as_str(), &kv.value));
        // Absence proves nothing, and nor does a record that cannot be read (INV-12).
        let stored = match stored {
            Some(Err(_)) => {
                return Ok(Progress::Waiting(vec![format!("volume/{volume} cannot be read")]));
            }
            Some(Ok(stored)) if stored.uid() == uid => stored,
            Some(Ok(_)) | None => return Err(gone(volume, &uid, &shown)),
        };
        let status = stored.status.unwrap_or_default();
        if !status.detach_node_ids.iter().any(|id| id == node_id) {
            return Ok(Progress::Done(()));
        }
        let why = blocked(&status.conditions).map(|why| format!(": {}: {}", why.reason, why.message));
        let why = why.unwrap_or_default();
        Ok(Progress::Waiting(vec![format!(
            "the leader has yet to unpublish it{why}"
        )]))
    })
    .await?;
    print(&format!("volume/{volume} is unpublished from node id {shown}\n")).map(drop)
}

/// The volume is gone, and with it the request.
fn gone(volume: &Name, uid: &str, shown: &str) -> Failure {
    Failure::not_found(format!(
        "volume/{volume} is gone: it may still be attached to node id {shown} where it was deleted by force"
    ))
    .hint(format!(
        "tombstone/{uid} keeps what a forced deletion left at the backend"
    ))
}

/// Asks, unless `yes`, and has the volume unpublished from the node id no more.
///
/// # Errors
/// 3 for a volume that does not exist, or is not being unpublished from the node id, 64 without a terminal to ask for confirmation.
pub async fn withdraw(store: &Store, volume: &Name, node_id: &str, yes: bool) -> Result<(), Failure> {
    let shown = one_line(node_id);
    confirm::require(yes, &format!("leave volume {volume} at node id {shown}"))?;
    decide_withdrawal(store, volume, node_id).await?;
    if !yes {
        let statement = format!(
            "volume/{volume} is unpublished from node id {shown} no more, where it may stay attached: it is deleted, and published \
             there again, without that; if a call to unpublish it is under way, data may be lost"
        );
        confirm::ask(&[&statement], "nothing was changed")?;
    }
    let decide = async || decide_withdrawal(store, volume, node_id).await;
    commit::settle(store, "withdrawn", decide).await?;
    print(&format!(
        "volume/{volume} is unpublished from node id {shown} no more\n"
    ))
    .map(drop)
}

async fn decide_withdrawal(store: &Store, name: &Name, node_id: &str) -> Result<Decision<()>, Failure> {
    let stored: Versioned<Volume> = Versioned::read(store, name.as_str(), store.keys.volume(name)).await?;
    let after = record::without_stray(&stored.object, node_id);
    if after == stored.object {
        let why = format!(
            "volume {name} is not being unpublished from node id {}",
            one_line(node_id)
        );
        let hint = format!("quorate describe volume {name} lists the node ids from which it is");
        return Err(Failure::not_found(why).hint(hint));
    }
    Ok(Decision::Write(stored.put(&after), ()))
}

/// The uid of the volume, and what is said of the request.
async fn decide(
    store: &Store,
    name: &Name,
    node_id: &str,
) -> Result<Decision<(String, &'static str)>, Failure> {
    let stored: Versioned<Volume> = Versioned::read(store, name.as_str(), store.keys.volume(name)).await?;
    let range = store.keys.publications_of(name);
    let (publications, revision) = store.etcd.list(&range).await?;
    for kv in &publications {
        let publication = Publication::decode(kv.value.as_slice()).unwrap_or_default();
        if stored_node_id(&publication) == node_id {
            let id = store.keys.parse_publication(&kv.key).unwrap_or_default();
            let node = id.split_once('/').map_or(id, |(_, node)| node);
            let why = format!("publication/{id} stores node id {}", one_line(node_id));
            return Err(Failure::refused("Recorded", why).hint(format!("quorate unpublish {name} {node}")));
        }
    }
    let mut volume = stored.object.clone();
    let uid = volume.uid().to_owned();
    let asked = &mut volume.status.get_or_insert_default().detach_node_ids;
    if asked.iter().any(|id| id == node_id) {
        return Ok(Decision::Nothing((
            uid,
            "is being unpublished already from node id",
        )));
    }
    asked.push(node_id.to_owned());
    let txn = stored.put(&volume).when_range_unwritten_since(&range, revision);
    Ok(Decision::Write(txn, (uid, "will be unpublished from node id")))
}
