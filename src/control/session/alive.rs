//! The key of a node's session.

use std::time::Duration;

use jiff::Timestamp;
use prost::Message as _;
use tonic::Status;
use uuid::Uuid;

use crate::control::caller::Caller;
use crate::control::refusal;
use crate::control::write::commit;
use crate::etcd::{Class, KeyValue, LeaseId, Revision};
use crate::identity::AuthorityDigest;
use crate::proto::NodeSession;
use crate::retry::Delays;
use crate::store::object::time;
use crate::store::{Name, Store};

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
/// turns to another replica stays ready. `authority` is the one that its connection has proven itself by. A lease that is taken in
/// vain ends with its TTL.
///
/// # Errors
/// The answer to the call.
pub async fn take(
    store: &Store,
    caller: &Caller,
    authority: Option<AuthorityDigest>,
    replica: &Name,
    ttl: Duration,
) -> Result<Taken, Status> {
    let (key, id) = (store.keys.alive(caller.name()), Uuid::new_v4().to_string());
    let (uid, now) = (caller.uid().to_owned(), time::to_proto(Timestamp::now()));
    let session = |ready_since| NodeSession {
        node_uid: uid.clone(),
        session_id: id.clone(),
        replica: replica.to_string(),
        ready_since: Some(ready_since),
        authority_sha256: authority
            .map(|authority| authority.0.to_vec())
            .unwrap_or_default(),
    };
    let (mut caller, mut granted, mut delays) = (caller.clone(), None, Delays::etcd());
    for _ in 0..ATTEMPTS {
        let held = store.etcd.get(&key).await;
        let (held, _) = held.map_err(|error| refusal::unavailable(&error))?;
        let found = held.as_ref().map_or(Revision::ABSENT, |held| held.mod_revision);
        let txn = caller.writes(&store.keys).when_unchanged(&key, found);
        let (lease, ttl, txn) = match kept_lease(store, held, caller.uid()).await? {
            Some(kept) => {
                let session = session(kept.ready_since.unwrap_or(now)).encode_to_vec();
                (kept.lease, kept.ttl, txn.put_keeping_lease(&key, session))
            }
            None => {
                let (lease, ttl) = match granted {
                    Some(granted) => granted,
                    None => {
                        let lease = store.etcd.grant_lease(ttl).await;
                        *granted.insert(lease.map_err(|error| refusal::unavailable(&error))?)
                    }
                };
                let session = session(now).encode_to_vec();
                (lease, ttl, txn.put_leased(&key, session, lease))
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

/// What the next session takes over.
struct Kept {
    lease: LeaseId,
    /// The TTL that the lease was granted.
    ttl: Duration,
    /// `None` where an earlier release has written the session.
    ready_since: Option<prost_types::Timestamp>,
}

/// The lease of the node's last session, renewed, if it has not ended. That of an earlier node with this name is not used.
async fn kept_lease(store: &Store, held: Option<KeyValue>, uid: &str) -> Result<Option<Kept>, Status> {
    let Some(held) = held else { return Ok(None) };
    let last = NodeSession::decode(&*held.value).unwrap_or_default();
    let Some(lease) = held.lease.filter(|_| last.node_uid == uid) else {
        return Ok(None);
    };
    let renewed = match store.etcd.renew_lease(lease).await {
        Ok(()) => store.etcd.granted_ttl(lease).await,
        Err(error) => Err(error),
    };
    match renewed {
        Ok(Duration::ZERO) => Ok(None),
        Ok(ttl) => Ok(Some(Kept {
            lease,
            ttl,
            ready_since: last.ready_since,
        })),
        Err(error) if error.class == Class::LeaseNotFound => Ok(None),
        Err(error) => Err(refusal::unavailable(&error)),
    }
}
