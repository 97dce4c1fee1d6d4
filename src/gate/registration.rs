//! Makes this process visible to the gate: its release under `/nodes/<id>/release`, on a lease of its own.

use std::time::{Duration, Instant};

use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::etcd::session::SessionError;
use crate::etcd::{Error, KeyRange, KeyValue, Pulse, Revision, Session, Txn, TxnError, Watcher, Window};
use crate::failpoint;
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
    loop {
        let began = Instant::now();
        let registered = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            registered = register(store, who, pulse) => registered,
        };
        match registered {
            Ok((session, revision)) => {
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
                failpoint::pause_at("registration.unready").await;
                session.close().await;
            }
            Err(error) => warn!("cannot register node {}, to be tried again: {error}", who.node),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = delays.rest_after(began.elapsed(), who.ttl) => {}
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

/// Waits for the id to be free, takes a lease and writes the record. A lease that is not used in the end is given
/// back; where this is cancelled, it ends by itself.
async fn register(
    store: &Store,
    who: &Registrant,
    pulse: &Pulse,
) -> Result<(Session, Revision), RegisterError> {
    let replaced = wait_until_free(store, who).await?;
    let session = Session::open(&store.etcd, who.ttl, pulse).await?;
    match write_record(store, who, &session, replaced).await {
        Ok(revision) => Ok((session, revision)),
        Err(error) => {
            session.close().await;
            Err(error)
        }
    }
}

/// Resolves once no other process holds the id; with the mod revision of what may be replaced. That is a record of
/// this very process on a lease that it gave up while etcd was out of reach: to wait for its end would keep this
/// replica unready for no reason.
async fn wait_until_free(store: &Store, who: &Registrant) -> Result<Revision, RegisterError> {
    let key = store.keys.registration(&who.node);
    let mut watcher: Option<Watcher> = None;
    loop {
        let (found, revision) = store.etcd.get(&key).await?;
        let Some(found) = found else {
            return Ok(Revision::ABSENT);
        };
        let process = Registration::decode(&*found.value)
            .map(|found| found.process)
            .unwrap_or_default();
        if process == who.process {
            return Ok(found.mod_revision);
        }
        if watcher.is_none() {
            warn!(
                "node id {} is in use by another process ({process}): waiting until it is gone; if that one is \
                 still running, give this one another --node-id",
                who.node
            );
        }
        watcher
            .get_or_insert_with(|| Watcher::new(&store.etcd, KeyRange::key(key.clone()), revision.next()))
            .next()
            .await;
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a process writes its own record: no term is needed for it"
)]
async fn write_record(
    store: &Store,
    who: &Registrant,
    session: &Session,
    replaced: Revision,
) -> Result<Revision, RegisterError> {
    let key = store.keys.registration(&who.node);
    let record = Registration {
        version: Some(who.version.to_proto()),
        process: who.process.clone(),
        // For people; nothing is decided by it.
        registered_at: Some(time::to_proto(jiff::Timestamp::now())),
    };
    let txn =
        Txn::new()
            .when_unchanged(&key, replaced)
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
    let untouched = |record: &KeyValue| record.mod_revision == revision;
    store.etcd.while_key(&key, untouched).await;
}
