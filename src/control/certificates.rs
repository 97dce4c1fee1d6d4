//! `CertificateStatus` and `Renew`: the record of a certificate, which a replica reads and adds requests to. Only the leader answers
//! them, so no call is forwarded to the leader, and none is lost when it changes.

use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tracing::debug;

use super::Site;
use super::caller::Caller;
use super::refusal;
use super::wakes::Awaited;
use super::write::{Attempts, Decision};
use crate::etcd::{Revision, Txn};
use crate::identity::certificate::is_uid;
use crate::identity::record::requested;
use crate::identity::request::RequestedKey;
use crate::proto::node_certificate::State;
use crate::proto::node_spec::Membership;
use crate::proto::{
    CertificateRequest, CertificateStatusResponse, Node, NodeCertificate, RenewRequest, RenewResponse,
};
use crate::store::object::{decode, message, time};
use crate::store::{Keys, Name, Store};

/// The most calls that wait at a time.
pub const MOST_WAITING: usize = 4096;

/// The record of a certificate, as it was read.
pub struct Record {
    /// What it says.
    pub value: NodeCertificate,
    stored: Vec<u8>,
    revision: Revision,
}

impl Record {
    /// Reads the record of a uid; `None` if there is none.
    ///
    /// # Errors
    /// The answer to the call, if it cannot be read.
    pub async fn read(store: &Store, uid: &str) -> Result<Option<Self>, Status> {
        Self::at(store, &store.keys.certificate(uid), uid).await
    }

    /// Reads the record of a uid at this key.
    ///
    /// # Errors
    /// The answer to the call, if it cannot be read.
    pub async fn at(store: &Store, key: &[u8], uid: &str) -> Result<Option<Self>, Status> {
        let read = store.etcd.get(key).await;
        let (stored, _) = read.map_err(|error| refusal::unavailable(&error))?;
        let Some(stored) = stored else { return Ok(None) };
        let value = message("NodeCertificate", &stored.value)
            .map_err(|_| refusal::unreadable(format_args!("the record of the certificate of {uid}")))?;
        Ok(Some(Self {
            value,
            stored: stored.value,
            revision: stored.mod_revision,
        }))
    }
}

/// A request for a certificate, before it is stored.
pub struct Requested<'r> {
    /// The name of the node.
    pub node: &'r Name,
    /// Its uid.
    pub uid: &'r str,
    /// PKCS #10 in DER.
    pub csr: &'r [u8],
    /// The role that the caller expects.
    pub role: i32,
}

impl Requested<'_> {
    /// Adds the request to a transaction, in place of the last one. It requires that the record is as it was read.
    pub fn record(self, txn: Txn, keys: &Keys, before: Option<&Record>, now: Timestamp) -> Txn {
        let key = keys.certificate(self.uid);
        self.record_at(txn, &key, before, now)
    }

    /// The same, for the record at this key.
    pub fn record_at(self, txn: Txn, key: &[u8], before: Option<&Record>, now: Timestamp) -> Txn {
        let request = CertificateRequest {
            csr: self.csr.to_vec(),
            role: self.role,
            at: Some(time::to_proto(now)),
        };
        let (stored, revision) = before.map_or((&[][..], Revision::ABSENT), |record| {
            (record.stored.as_slice(), record.revision)
        });
        txn.when_unchanged(key, revision)
            .put(key, requested(stored, self.node.as_str(), request))
    }
}

/// Answers `CertificateStatus`: waits as long as the request is pending, until `end`.
///
/// # Errors
/// The refusal.
pub async fn status(site: &Site, uid: &str, end: Instant) -> Result<CertificateStatusResponse, Status> {
    if !is_uid(uid) {
        return Err(refusal::invalid("node_uid is not the uid of a node"));
    }
    let waiting = site.wakes.wait_for(Awaited::Certificate(uid.into()));
    let mut waits = None;
    loop {
        // Before the record is read, so that no change after that is missed.
        let changed = waiting.changed.notified();
        let answer = answer(&site.store, uid).await?;
        if answer.state() != State::Pending {
            return Ok(answer);
        }
        if waits.is_none() {
            let Ok(permit) = site.waits.try_acquire() else {
                let why = format!("{MOST_WAITING} calls wait at this moment; try again");
                return Err(refusal::exhausted(why));
            };
            waits = Some(permit);
            debug!("a call waits for the certificate of {uid}");
        }
        tokio::select! {
            () = changed => {}
            () = sleep_until(end) => return Ok(answer),
        }
    }
}

async fn answer(store: &Store, uid: &str) -> Result<CertificateStatusResponse, Status> {
    let Some(Record { value: record, .. }) = Record::read(store, uid).await? else {
        let read = store.etcd.get(&store.keys.removed(uid)).await;
        let (removed, _) = read.map_err(|error| refusal::unavailable(&error))?;
        return Err(match removed {
            Some(_) => refusal::removed(uid),
            None => refusal::gone(uid),
        });
    };
    let membership_pending = record.state() == State::Pending && is_unaccepted(store, &record.node).await?;
    Ok(CertificateStatusResponse {
        state: record.state,
        chain: record.chain,
        role: record.role,
        not_after: record.not_after,
        reason: record.reason,
        message: record.message,
        membership_pending,
        authority_sha256: record.authority_sha256,
    })
}

async fn is_unaccepted(store: &Store, node: &str) -> Result<bool, Status> {
    let Ok(name) = node.parse::<Name>() else {
        return Ok(false);
    };
    let read = store.etcd.get(&store.keys.node(&name)).await;
    let (stored, _) = read.map_err(|error| refusal::unavailable(&error))?;
    let node: Option<Node> = stored.and_then(|kv| decode(name.as_str(), &kv.value).ok());
    let spec = node.and_then(|node| node.spec).unwrap_or_default();
    Ok(spec.membership() == Membership::Pending)
}

/// Answers `Renew`.
///
/// # Errors
/// The refusal.
pub async fn renew(site: &Site, mut caller: Caller, request: RenewRequest) -> Result<RenewResponse, Status> {
    let key = RequestedKey::read(&request.csr).map_err(refusal::invalid)?;
    let Store { etcd, keys } = &site.store;
    let mut attempts = Attempts::default();
    let mut is_counted = false;
    loop {
        let before = Record::read(&site.store, caller.uid()).await?;
        let decision = match &before {
            // The reply of the same call was lost, or the answer is not valid yet by the clock of the node, which collects it later.
            Some(record) if is_answered_by(&record.value, &key, request.role, Timestamp::now()) => {
                Decision::Nothing(())
            }
            before => {
                if !is_counted {
                    site.count_write(caller.uid())?;
                    is_counted = true;
                }
                let requested = Requested {
                    node: caller.name(),
                    uid: caller.uid(),
                    csr: &request.csr,
                    role: request.role,
                };
                let txn = caller.writes(keys);
                let txn = requested.record(txn, keys, before.as_ref(), Timestamp::now());
                Decision::Write(txn, ())
            }
        };
        if attempts.carry_out(etcd, decision).await?.is_some() {
            debug!(
                "node {} ({}) requests another certificate",
                caller.name(),
                caller.uid()
            );
            return Ok(RenewResponse {});
        }
        caller = caller.again(&site.store).await?;
    }
}

/// Whether this very request has no answer yet, or one that has not ended. Of the same key, two requests have different signatures.
fn is_answered_by(record: &NodeCertificate, key: &RequestedKey, role: i32, now: Timestamp) -> bool {
    let is_same = |stored: &CertificateRequest| {
        stored.role == role && RequestedKey::read(&stored.csr).is_ok_and(|stored| stored == *key)
    };
    let is_usable = || time::from_proto(record.not_after.as_ref()).is_some_and(|end| now < end);
    let is_answered = match record.state() {
        State::Pending => true,
        State::Issued => is_usable(),
        State::Unspecified | State::Failed | State::Rotate => false,
    };
    is_answered && record.request.as_ref().is_some_and(is_same)
}
