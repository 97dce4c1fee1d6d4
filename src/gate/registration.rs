//! Makes this process visible to the gate: its release under `/nodes/<id>/release`, on a lease of its own.

use std::time::Duration;

use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::etcd::session::SessionError;
use crate::etcd::{Error, KeyRange, KeyValue, Pulse, Revision, Session, Txn, TxnError, Watcher, Window};
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

/// Resolves once no other process holds the id. The own record of a lease that was lost is no hindrance.
async fn wait_until_free(store: &Store, who: &Registrant) -> Result<(), RegisterError> {
    let key = store.keys.registration(&who.node);
    let (mut found, revision) = store.etcd.get(&key).await?;
    let mut watcher = Watcher::new(&store.etcd, KeyRange::key(key.clone()), revision.next());
    let mut told = false;
    while let Some(other) = found.as_ref().map(holder).filter(|other| *other != who.process) {
        if !told {
            warn!(
                "node id {} is in use by another process ({other}): waiting until it is gone; if that one is still \
                 running, give this one another --node-id",
                who.node
            );
            told = true;
        }
        watcher.next().await;
        found = store.etcd.get(&key).await?.0;
    }
    Ok(())
}

/// The process that wrote a registration; empty if that cannot be parsed, which is no process of this release.
fn holder(found: &KeyValue) -> String {
    Registration::decode(&*found.value)
        .map(|registration| registration.process)
        .unwrap_or_default()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a process writes its own record: no term is needed for it"
)]
async fn register(store: &Store, who: &Registrant, session: &Session) -> Result<Revision, RegisterError> {
    let key = store.keys.registration(&who.node);
    let found = store.etcd.get(&key).await?.0;
    if found.as_ref().is_some_and(|found| holder(found) != who.process) {
        return Err(RegisterError::Taken);
    }
    let record = Registration {
        version: Some(who.version.to_proto()),
        process: who.process.clone(),
        // For people; nothing is decided by it.
        registered_at: Some(time::to_proto(jiff::Timestamp::now())),
    };
    let before = found.map_or(Revision::ABSENT, |found| found.mod_revision);
    let txn =
        Txn::new()
            .when_unchanged(&key, before)
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
