//! Registration makes this process visible to the gate: its release under `/nodes/<id>/release`, on a separate lease.

use std::time::{Duration, Instant};

use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::causes;
use crate::etcd::session::SessionError;
use crate::etcd::{
    Error, KeyRange, KeyValue, LeaseId, Pulse, Revision, Session, Txn, TxnError, Watcher, Window, Witness,
};
use crate::failpoint;
use crate::proto::Registration;
use crate::release::Version;
use crate::retry::Delays;
use crate::store::object::time;
use crate::store::{Name, Store};

/// A registration that is in etcd.
#[derive(Clone, Debug)]
pub struct Registered {
    /// Closes before etcd can delete the record.
    pub window: Window,
}

/// The process that registers.
#[derive(Clone, Debug)]
pub struct Registrant {
    /// Its node id.
    pub node: Name,
    /// The version of its bundle.
    pub version: Version,
    /// Random, new at every start: distinguishes two processes with one node id.
    pub process: String,
    /// The TTL to request.
    pub ttl: Duration,
    /// The address of its status page; empty without one.
    pub page: String,
}

/// Keeps this process registered until stopped, then deletes the record. Publishes the registration while it stands. If
/// another process has the node id, logs so and waits for that process to end.
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
                    window: session.window().clone(),
                };
                store.etcd.set_witness(Some(Witness {
                    key: store.keys.registration(&who.node),
                    mod_revision: revision,
                }));
                published.send_replace(Some(registered));
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = session.window().closed() => warn!("the registration's lease is lost, registering again"),
                    () = touched(store, who, revision) => warn!("another client changed the registration: registering again"),
                }
                // Unready before the record goes, never after it (INV-4).
                published.send_replace(None);
                store.etcd.set_witness(None);
                failpoint::pause_at("registration.unready").await;
                session.close().await;
            }
            Err(error) => warn!(
                "cannot register node {}, trying again: {}",
                who.node,
                causes::chain(&error)
            ),
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
    #[error(transparent)]
    Write(#[from] TxnError),
    #[error("another process registered this node id first")]
    Taken,
}

/// Waits until the node id is free, takes a lease and writes the record. Revokes the lease if the record is not written;
/// if this is cancelled, the lease expires.
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

/// Resolves once no other process has the node id. Returns the mod revision of the record that may be replaced: this
/// process's own, on a lease that it gave up while etcd was out of reach. To wait until that record expires would keep the
/// replica unready for no reason.
async fn wait_until_free(store: &Store, who: &Registrant) -> Result<Revision, RegisterError> {
    let key = store.keys.registration(&who.node);
    let mut watcher: Option<Watcher> = None;
    loop {
        let (found, revision) = store.etcd.get(&key).await?;
        let Some(found) = found else {
            return Ok(Revision::ABSENT);
        };
        let process = process_of(&found);
        if process == who.process {
            return Ok(found.mod_revision);
        }
        if watcher.is_none() {
            warn!(
                "node id {} is in use by another process ({process}): waiting until that process is gone; if it keeps \
                 running, give this replica another --node-id",
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
    reason = "a process writes its own record, which needs no term"
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
        // For people: no decision reads it.
        registered_at: Some(time::to_proto(jiff::Timestamp::now())),
        page: who.page.clone(),
    };
    let txn =
        Txn::new()
            .when_unchanged(&key, replaced)
            .put_leased(&key, record.encode_to_vec(), session.lease());
    match store.etcd.unfenced(txn).await {
        Ok(committed) => Ok(committed.revision),
        // The record may have been written: its lease says whether this process wrote it.
        Err(in_doubt @ (TxnError::Unknown(_) | TxnError::Conflict { .. })) => {
            let (found, _) = store.etcd.get(&key).await?;
            written_as(found.as_ref(), who, session.lease(), in_doubt)
        }
        Err(error) => Err(error.into()),
    }
}

/// What became of a write that ended with this error, by the record that was found after it.
fn written_as(
    found: Option<&KeyValue>,
    who: &Registrant,
    lease: LeaseId,
    error: TxnError,
) -> Result<Revision, RegisterError> {
    match found {
        Some(found) if found.lease == Some(lease) => Ok(found.mod_revision),
        Some(found) if process_of(found) != who.process => Err(RegisterError::Taken),
        _ => Err(error.into()),
    }
}

/// The process of a record; empty if it cannot be read.
fn process_of(record: &KeyValue) -> String {
    Registration::decode(&*record.value)
        .map(|record| record.process)
        .unwrap_or_default()
}

/// Resolves when the record is no longer the one that was written at `revision`.
async fn touched(store: &Store, who: &Registrant, revision: Revision) {
    let key = store.keys.registration(&who.node);
    let untouched = |record: &KeyValue| record.mod_revision == revision;
    store.etcd.while_key(&key, untouched).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::Release;

    #[test]
    fn a_node_id_is_taken_only_where_the_record_of_another_process_is_found() {
        let who = Registrant {
            node: "a".parse().unwrap(),
            version: Release::new(0, 5, 0).into(),
            process: "mine".to_owned(),
            ttl: Duration::from_secs(10),
            page: String::new(),
        };
        let record = |process: &str, lease| KeyValue {
            key: b"/q/nodes/a/release".to_vec(),
            value: Registration {
                process: process.to_owned(),
                ..Registration::default()
            }
            .encode_to_vec(),
            create_revision: Revision(7),
            mod_revision: Revision(7),
            lease: Some(LeaseId(lease)),
        };
        let after = |found: Option<KeyValue>| {
            let error = TxnError::Conflict {
                first_key_created: Revision::ABSENT,
            };
            written_as(found.as_ref(), &who, LeaseId(1), error)
        };
        assert_eq!(after(Some(record("mine", 1))).unwrap(), Revision(7));
        assert!(matches!(
            after(Some(record("other", 2))),
            Err(RegisterError::Taken)
        ));
        for unwritten in [None, Some(record("mine", 2))] {
            assert!(matches!(after(unwritten), Err(RegisterError::Write(_))));
        }
    }
}
