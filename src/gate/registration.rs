//! Makes this process visible to the gate: its release under `/nodes/<id>/release`, on a lease of its own.

use std::time::Duration;

use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::etcd::session::SessionError;
use crate::etcd::{Error, KeyRange, Pulse, Revision, Session, Txn, TxnError, Watcher, Window};
use crate::proto::Registration;
use crate::release::Version;
use crate::retry::Delays;
use crate::store::object::time;
use crate::store::{Name, Store};

/// A registration that stands.
#[derive(Clone, Debug)]
pub struct Registered {
    /// When it was written: a status must be read at or after it to be judged (INV-4).
    pub revision: Revision,
    /// Closed before etcd can let the record go.
    pub window: Window,
}

/// Who registers, as what.
#[derive(Clone, Debug)]
pub struct Registrant {
    /// The node id.
    pub node: Name,
    /// What it runs.
    pub version: Version,
    /// Random, new at every start: tells two processes with one node id apart.
    pub process: String,
    /// TTL to ask for.
    pub ttl: Duration,
}

/// Keeps this process registered until stopped, then takes the record back. Publishes the registration while it
/// stands. Two processes with one id: the second says so and waits.
pub async fn keep_registered(
    store: &Store,
    who: &Registrant,
    pulse: &Pulse,
    published: &watch::Sender<Option<Registered>>,
    stop: CancellationToken,
) {
    let mut delays = Delays::etcd();
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => return,
            free = wait_until_free(store, who) => {
                if let Err(error) = free {
                    warn!("cannot register node {}, to be tried again: {error}", who.node);
                    delays.wait().await;
                    continue;
                }
            }
        }
        let session = tokio::select! {
            () = stop.cancelled() => return,
            session = Session::open(&store.etcd, who.ttl, pulse) => session,
        };
        let session = match session {
            Ok(session) => session,
            Err(error) => {
                warn!("cannot register node {}, to be tried again: {error}", who.node);
                delays.wait().await;
                continue;
            }
        };
        match register(store, who, &session).await {
            Ok(revision) => {
                delays.reset();
                info!(%revision, "registered node {} at release {}", who.node, who.version);
                let registered = Registered {
                    revision,
                    window: session.window().clone(),
                };
                published.send_replace(Some(registered));
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = session.window().closed() => warn!("the registration's lease is lost, registering anew"),
                    () = touched(store, who, revision) => warn!("someone else changed the registration, registering anew"),
                }
                // Unready first, then without a record: never the other way round.
                published.send_replace(None);
                session.close().await;
            }
            Err(error) => {
                warn!("cannot register node {}, to be tried again: {error}", who.node);
                session.close().await;
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = delays.wait() => {}
                }
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum RegisterError {
    #[error(transparent)]
    Read(#[from] Error),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("{0}")]
    Write(#[from] TxnError),
    #[error("another process with this id was faster")]
    Taken,
}

/// Resolves once no other process holds the id.
async fn wait_until_free(store: &Store, who: &Registrant) -> Result<(), RegisterError> {
    let key = store.keys.registration(&who.node);
    let (mut found, revision) = store.etcd.get(&key).await?;
    if let Some(other) = &found {
        let process = Registration::decode(&*other.value)
            .map(|other| other.process)
            .unwrap_or_default();
        warn!(
            "node id {} is in use by another process ({process}): waiting until it is gone; if that one is still \
             running, give this one another --node-id",
            who.node
        );
    }
    let mut watcher = Watcher::new(&store.etcd, KeyRange::key(key.clone()), revision.next());
    while found.is_some() {
        watcher.next().await;
        found = store.etcd.get(&key).await?.0;
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "a process writes its own record: no term is needed for it"
)]
async fn register(store: &Store, who: &Registrant, session: &Session) -> Result<Revision, RegisterError> {
    let key = store.keys.registration(&who.node);
    let record = Registration {
        version: Some(who.version.to_proto()),
        process: who.process.clone(),
        // For people; nothing is decided by it.
        registered_at: Some(time::to_proto(jiff::Timestamp::now())),
    };
    let txn = Txn::new()
        .when_absent(&key)
        .put_leased(&key, record.encode_to_vec(), session.lease());
    match store.etcd.unfenced(txn).await {
        Ok(committed) => Ok(committed.revision),
        // It may have been written: the key itself says whether it was, and by whom.
        Err(TxnError::Unknown(_) | TxnError::Conflict { .. }) => match store.etcd.get(&key).await? {
            (Some(found), _) if found.lease == Some(session.lease()) => Ok(found.mod_revision),
            _ => Err(RegisterError::Taken),
        },
        Err(error) => Err(error.into()),
    }
}

/// Resolves when the record is no longer the one written at `revision`.
async fn touched(store: &Store, who: &Registrant, revision: Revision) {
    let key = store.keys.registration(&who.node);
    let mut delays = Delays::etcd();
    loop {
        match store.etcd.get(&key).await {
            Ok((Some(found), now)) if found.mod_revision == revision => {
                // Changes after this read; a compaction that hides some is an answer as well: read again.
                Watcher::new(&store.etcd, KeyRange::key(key.clone()), now.next())
                    .next()
                    .await;
            }
            Ok(_) => return,
            Err(_) => delays.wait().await,
        }
    }
}
