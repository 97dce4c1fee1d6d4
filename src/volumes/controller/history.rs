//! What follows where etcd was restored from a snapshot: nothing in the snapshot takes a volume from a node (INV-6, INV-12).

use futures::future::try_join_all;
use jiff::Timestamp;
use prost::Message;
use tracing::{debug, warn};

use crate::etcd::{Error, FencedError, Revision, Stop};
use crate::kube::events::{Notice, Severity};
use crate::proto::{Publication, StoreHistory, Volume};
use crate::store::Name;
use crate::store::object::{decode, time};
use crate::store::writer::Unit;
use crate::term::{Notices, TermOver};
use crate::volumes::history::{Seen, compare};
use crate::volumes::operation::Env;
use crate::volumes::record;
use leaving::leaving;

mod leaving;

/// Looks whether etcd was restored since a leader first looked, before anything is planned. If it was, nodes confirm again what they
/// had confirmed in the snapshot, a node that was about to get a volume in it has the volume, and no volume leaves a node id for a
/// request in it: a node may use the volume since. The next leader goes on where this one ends.
pub(super) async fn settle(env: &Env, notices: &Notices) -> Result<(), TermOver> {
    for failures in 1.. {
        let Err(stop) = settle_once(env, notices).await else {
            break;
        };
        match &stop {
            Stop::LostLeadership => return Err(TermOver),
            Stop::Stale => {}
            Stop::Unavailable(error) if error.is_retryable() => {
                debug!("cannot say whether etcd was restored: {error}");
            }
            Stop::Unavailable(error) => {
                warn!("volumes wait, as it cannot be said whether etcd was restored: {error}");
            }
        }
        tokio::time::sleep(stop.policy().delay(failures)).await;
    }
    Ok(())
}

async fn settle_once(env: &Env, notices: &Notices) -> Result<(), Stop> {
    let keys = &env.store.keys;
    let leaving = leaving(env).await?;
    // First: the revision that is recorded with it must not be an earlier one.
    let position = match env.store.etcd.position(&leaving).await {
        Ok(Some(position)) if position.revision != Revision::ABSENT => position,
        Ok(_) => {
            warn!(
                "etcd does not say how far its log is: that it is restored from a snapshot would not be noticed"
            );
            return Ok(());
        }
        Err(error) if !error.is_retryable() => {
            warn_unnoticed(&error);
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let (stored, read_at) = env.store.etcd.get(&keys.volume_history()).await?;
    let written = stored.as_ref().map_or(Revision::ABSENT, |kv| kv.mod_revision);
    // One that cannot be read says nothing.
    let known = stored.and_then(|kv| StoreHistory::decode(&*kv.value).ok());
    let mut history = StoreHistory {
        revision: read_at.0,
        applied_index: position.applied_index,
        restored_at: None,
    };
    match compare(known.as_ref().map(|known| (known, written)), position) {
        Seen::Same => return Ok(()),
        Seen::Lagging => return Err(Stop::Stale),
        Seen::First => {}
        Seen::Restored => {
            let (asked, dropped) = (ask_again(env).await?, drop_requests(env).await?);
            report(notices, asked, dropped);
            history.restored_at = Some(time::to_proto(Timestamp::now()));
        }
    }
    // Last: a leader that does not come to it, or that etcd refuses this write, leaves all of it to the next one.
    let unit = Unit::new().put(keys.volume_history(), written, history.encode_to_vec());
    match env.writer.write(unit).await {
        Err(FencedError::Failed(error)) if !error.is_retryable() && history.restored_at.is_some() => {
            warn!(
                "the next leader will ask nodes again to confirm, since the restore of etcd cannot be recorded: {error}"
            );
        }
        Err(FencedError::Failed(error)) if !error.is_retryable() => warn_unnoticed(&error),
        written => _ = written?,
    }
    Ok(())
}

fn warn_unnoticed(error: &Error) {
    warn!("that etcd is restored from a snapshot would not be noticed: {error}");
}

/// Has only the words of nodes end what may be published to them. Returns how many publications are concerned.
async fn ask_again(env: &Env) -> Result<usize, Stop> {
    let keys = &env.store.keys;
    let (stored, _) = env.store.etcd.list(&keys.publications()).await?;
    let mut units = Vec::new();
    for kv in stored {
        // One that cannot be read is not acted on.
        let Some((id, volume, node)) = keys.parse_publication(&kv.key).and_then(names) else {
            continue;
        };
        let publication = decode::<Publication>(id, &kv.value).ok();
        if let Some(asked) = publication.as_ref().and_then(record::asked_again) {
            let unit = Unit::new().put(
                keys.publication(&volume, &node),
                kv.mod_revision,
                asked.encode_to_vec(),
            );
            units.push(unit);
        }
    }
    write_all(env, units).await
}

/// Drops requests to unpublish volumes from node ids that no publication stores. A comparison with the plugin's list says where they
/// are. Returns how many volumes are concerned.
async fn drop_requests(env: &Env) -> Result<usize, Stop> {
    let keys = &env.store.keys;
    let (stored, _) = env.store.etcd.list(&keys.volumes()).await?;
    let mut units = Vec::new();
    for kv in stored {
        let name = keys
            .parse_volume(&kv.key)
            .and_then(|name| name.parse::<Name>().ok());
        let Some(name) = name else { continue };
        let volume = decode::<Volume>(name.as_str(), &kv.value).ok();
        if let Some(dropped) = volume.as_ref().and_then(record::without_strays) {
            let unit = Unit::new().put(keys.volume(&name), kv.mod_revision, dropped.encode_to_vec());
            units.push(unit);
        }
    }
    write_all(env, units).await
}

/// The id of a publication, with the names of its volume and its node.
fn names(id: &str) -> Option<(&str, Name, Name)> {
    let (volume, node) = id.split_once('/')?;
    Some((id, volume.parse().ok()?, node.parse().ok()?))
}

async fn write_all(env: &Env, units: Vec<Unit>) -> Result<usize, Stop> {
    let count = units.len();
    try_join_all(units.into_iter().map(|unit| env.writer.write(unit))).await?;
    Ok(count)
}

fn report(notices: &Notices, asked: usize, dropped: usize) {
    let note = format!(
        "etcd was restored from a snapshot: nodes have to confirm, whatever it says, that they no longer use {asked} volumes, and for \
         {dropped} volumes the requests to unpublish them from node ids are dropped"
    );
    warn!("{note}");
    notices.send(Notice {
        severity: Severity::Warning,
        reason: "EtcdRestored",
        action: "Volumes",
        note,
    });
}
