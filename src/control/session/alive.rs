//! The key of a node's session.

use std::time::Duration;

use prost::Message as _;
use tonic::Status;
use uuid::Uuid;

use crate::control::caller::Caller;
use crate::control::refusal;
use crate::control::write::commit;
use crate::etcd::{Class, KeyValue, LeaseId, Revision};
use crate::proto::NodeSession;
use crate::retry::Delays;
use crate::store::Store;

/// How often a beginning session looks again because another process was first.
const ATTEMPTS: usize = 5;

/// A session that is on record.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The id of the session.
    pub id: String,
    /// The lease on which its key hangs.
    pub lease: LeaseId,
    /// The TTL of that lease.
    pub ttl: Duration,
    /// When the key was written.
    pub held_at: Revision,
}

/// Makes a new session of the caller the one of its node. A lease that the key hangs on already goes on, so that a node that
/// turns to another replica stays ready. A lease that is taken in vain ends with its TTL.
///
/// # Errors
/// The answer to the call.
pub async fn take(store: &Store, caller: &Caller, ttl: Duration) -> Result<Taken, Status> {
    let (key, id) = (store.keys.alive(caller.name()), Uuid::new_v4().to_string());
    let session = NodeSession {
        node_uid: caller.uid().to_owned(),
        session_id: id.clone(),
    };
    let session = session.encode_to_vec();
    let (mut caller, mut granted, mut delays) = (caller.clone(), None, Delays::etcd());
    for _ in 0..ATTEMPTS {
        let held = store.etcd.get(&key).await;
        let (held, _) = held.map_err(|error| refusal::unavailable(&error))?;
        let found = held.as_ref().map_or(Revision::ABSENT, |held| held.mod_revision);
        let txn = caller.writes(&store.keys).when_unchanged(&key, found);
        let (lease, ttl, txn) = match kept_lease(store, held, caller.uid()).await? {
            Some((lease, ttl)) => (lease, ttl, txn.put_keeping_lease(&key, session.clone())),
            None => {
                let (lease, ttl) = match granted {
                    Some(granted) => granted,
                    None => {
                        let lease = store.etcd.grant_lease(ttl).await;
                        *granted.insert(lease.map_err(|error| refusal::unavailable(&error))?)
                    }
                };
                (lease, ttl, txn.put_leased(&key, session.clone(), lease))
            }
        };
        if let Some(held_at) = commit(&store.etcd, txn).await? {
            return Ok(Taken {
                id,
                lease,
                ttl,
                held_at,
            });
        }
        delays.wait().await;
        caller = caller.again(store).await?;
    }
    let why = format!(
        "the session of node {} or the node itself keeps changing",
        caller.name()
    );
    Err(Status::aborted(why))
}

/// The lease of the node's last session, renewed, with the TTL that it was granted, if it has not ended. That of an earlier node
/// with this name is not used.
async fn kept_lease(
    store: &Store,
    held: Option<KeyValue>,
    uid: &str,
) -> Result<Option<(LeaseId, Duration)>, Status> {
    let Some(held) = held else { return Ok(None) };
    let is_own = NodeSession::decode(&*held.value).is_ok_and(|session| session.node_uid == uid);
    let Some(lease) = held.lease.filter(|_| is_own) else {
        return Ok(None);
    };
    let renewed = match store.etcd.renew_lease(lease).await {
        Ok(()) => store.etcd.granted_ttl(lease).await,
        Err(error) => Err(error),
    };
    match renewed {
        Ok(Duration::ZERO) => Ok(None),
        Ok(ttl) => Ok(Some((lease, ttl))),
        Err(error) if error.class == Class::LeaseNotFound => Ok(None),
        Err(error) => Err(refusal::unavailable(&error)),
    }
}
