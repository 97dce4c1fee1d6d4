//! `EtcdCertificate`: the certificate of the calling node's member of etcd, and the list of revoked ones.

use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tracing::debug;

use super::Site;
use super::caller::Caller;
use super::certificates::{MOST_WAITING, Record, Requested};
use super::refusal;
use super::wakes::Awaited;
use super::write::{Attempts, Decision};
use crate::identity::reached::{RecordedJoin, RecordedMember};
use crate::identity::request::RequestedKey;
use crate::identity::rotation::record::Rotation;
use crate::proto::node_certificate::State;
use crate::proto::{
    EtcdCertificateRequest, EtcdCertificateResponse, IssuedCertificate, NodeCertificate, RevocationList,
    RevocationView, Role,
};
use crate::store::Store;
use crate::store::object::{message, time};

/// Answers `EtcdCertificate`: waits as long as the request is pending, until `end`. Without a request it answers at once.
///
/// # Errors
/// The refusal.
pub async fn certificate(
    site: &Site,
    mut caller: Caller,
    request: EtcdCertificateRequest,
    end: Instant,
) -> Result<EtcdCertificateResponse, Status> {
    caller.require_manager()?;
    let is_asked = !request.csr.is_empty();
    if is_asked {
        caller = ask(site, caller, &request.csr).await?;
    }
    let waiting = site.wakes.wait_for(Awaited::EtcdCertificate(caller.uid().into()));
    let mut waits = None;
    loop {
        // Before the record is read, so that no change after that is missed.
        let changed = waiting.changed.notified();
        let answer = answer(&site.store, caller.uid()).await?;
        if !is_asked || answer.state() != State::Pending {
            // The node may be no manager any more.
            caller.again(&site.store).await?.require_manager()?;
            return Ok(answer);
        }
        if waits.is_none() {
            let Ok(permit) = site.waits.try_acquire() else {
                let why = format!("{MOST_WAITING} calls wait at this moment; try again");
                return Err(refusal::exhausted(why));
            };
            waits = Some(permit);
            debug!("a call waits for the etcd certificate of node {}", caller.name());
        }
        tokio::select! {
            () = changed => {}
            () = sleep_until(end) => return Ok(answer),
        }
    }
}

/// Writes the request, unless it is on record.
async fn ask(site: &Site, mut caller: Caller, csr: &[u8]) -> Result<Caller, Status> {
    let requested = RequestedKey::read(csr).map_err(refusal::invalid)?;
    let Store { etcd, keys } = &site.store;
    let mut attempts = Attempts::default();
    let mut is_counted = false;
    loop {
        caller.require_manager()?;
        if !is_joined(&site.store, &caller).await? {
            let why = "no member of the node that stays is on record: call JoinMember first";
            return Err(refusal::join_refused("NotJoined", why));
        }
        let key = keys.etcd_certificate(caller.uid());
        let before = Record::at(&site.store, &key, caller.uid()).await?;
        let list = revocation_list(&site.store).await?;
        let is_on_record = before
            .as_ref()
            .is_some_and(|record| is_answered_by(&record.value, &requested, list.as_ref(), Timestamp::now()));
        let decision = match is_on_record {
            // The reply of the same call was lost.
            true => Decision::Nothing(()),
            false => {
                if !is_counted {
                    site.count_write(caller.uid())?;
                    is_counted = true;
                }
                let requested = Requested {
                    node: caller.name(),
                    uid: caller.uid(),
                    csr,
                    role: Role::Manager.into(),
                };
                let txn = caller.writes_as_manager(keys);
                let txn = requested.record_at(txn, &key, before.as_ref(), Timestamp::now());
                Decision::Write(txn, ())
            }
        };
        if attempts.carry_out(etcd, decision).await?.is_some() {
            return Ok(caller);
        }
        caller = caller.again(&site.store).await?;
    }
}

/// Whether the node has a join and a member that stays. The leader looks again before it signs.
async fn is_joined(store: &Store, caller: &Caller) -> Result<bool, Status> {
    let Store { etcd, keys } = store;
    let read = etcd.get(&keys.join(caller.name())).await;
    let (join, _) = read.map_err(|error| refusal::unavailable(&error))?;
    let join = join.and_then(|kv| RecordedJoin::read(&kv));
    if join.is_none_or(|join| &*join.uid != caller.uid()) {
        return Ok(false);
    }
    let read = etcd.list(&keys.members()).await;
    let (members, _) = read.map_err(|error| refusal::unavailable(&error))?;
    let mut members = members.iter().filter_map(RecordedMember::read);
    Ok(members.any(|member| &*member.uid == caller.uid() && !member.leaves))
}

/// Whether a certificate of this key is requested, or was issued and can be used still. Of the same key, two requests have different
/// signatures. Where the list of revoked ones cannot be read, an earlier certificate may be revoked: the node gets another one.
fn is_answered_by(
    record: &NodeCertificate,
    key: &RequestedKey,
    list: Option<&RevocationList>,
    now: Timestamp,
) -> bool {
    let request = record.request.as_ref();
    let is_same =
        request.is_some_and(|stored| RequestedKey::read(&stored.csr).is_ok_and(|stored| stored == *key));
    let is_usable = || {
        let end = time::from_proto(record.not_after.as_ref());
        let is_listed = |serial: &[u8], list: &RevocationList| {
            let mut revoked = list.revoked.iter();
            revoked.any(|of| of.serial == serial)
        };
        let is_valid = |last: &IssuedCertificate| list.is_some_and(|list| !is_listed(&last.serial, list));
        end.is_some_and(|end| now < end) && record.issued.last().is_some_and(is_valid)
    };
    match record.state() {
        State::Pending => is_same,
        State::Issued => is_same && is_usable(),
        State::Unspecified | State::Failed | State::Rotate => false,
    }
}

/// The list of revoked certificates; `None` if it cannot be read. That stops no certificate: the leader reports it, and the member keeps
/// the list that it has.
async fn revocation_list(store: &Store) -> Result<Option<RevocationList>, Status> {
    let read = store.etcd.get(&store.keys.revocation_list()).await;
    let (stored, _) = read.map_err(|error| refusal::unavailable(&error))?;
    Ok(match stored {
        None => Some(RevocationList::default()),
        Some(stored) => message("RevocationList", &stored.value).ok(),
    })
}

/// What is on record: a chain never leaves a replica but as it was recorded. What etcd trusts beside it may have been recorded before a
/// rotation dropped an authority, which does not come back by that.
async fn answer(store: &Store, uid: &str) -> Result<EtcdCertificateResponse, Status> {
    let record = Record::at(store, &store.keys.etcd_certificate(uid), uid).await?;
    // After the record, so that the list is no older than what it is handed out with.
    let list = revocation_list(store).await?;
    let record = record.map(|record| record.value).unwrap_or_default();
    let read = store.etcd.get(&store.keys.rotation()).await;
    let (rotation, _) = read.map_err(|error| refusal::unavailable(&error))?;
    let authorities = match rotation.and_then(|stored| Rotation::read(&stored.value)) {
        Some(rotation) => rotation.trusted_of(&record.authorities),
        None => record.authorities,
    };
    Ok(EtcdCertificateResponse {
        state: record.state,
        chain: record.chain,
        authorities,
        not_after: record.not_after,
        reason: record.reason,
        message: record.message,
        revocation: list.map(|list| RevocationView {
            number: list.number,
            crl: list.crl,
        }),
    })
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::identity::NodeKey;
    use crate::proto::{CertificateRequest, RevokedCertificate};

    fn csr() -> Vec<u8> {
        NodeKey::create().unwrap().request().unwrap()
    }

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn record(csr: &[u8], state: State) -> NodeCertificate {
        let end = time::to_proto(now() + SignedDuration::from_hours(1));
        NodeCertificate {
            request: Some(CertificateRequest {
                csr: csr.to_vec(),
                ..CertificateRequest::default()
            }),
            state: state.into(),
            not_after: Some(end),
            issued: vec![IssuedCertificate {
                serial: vec![7],
                not_after: Some(end),
            }],
            ..NodeCertificate::default()
        }
    }

    #[test]
    fn the_key_of_a_request_says_whether_it_was_answered() {
        let (own, other) = (csr(), csr());
        let is_answered = |csr: &[u8], state, list: &RevocationList, at| {
            let key = RequestedKey::read(csr).unwrap();
            is_answered_by(&record(&own, state), &key, Some(list), at)
        };
        let none = RevocationList::default();
        for (state, answered) in [
            (State::Pending, true),
            (State::Issued, true),
            (State::Failed, false),
            (State::Rotate, false),
            (State::Unspecified, false),
        ] {
            assert_eq!(is_answered(&own, state, &none, now()), answered, "{state:?}");
            assert!(!is_answered(&other, state, &none, now()), "{state:?}");
        }
        // One that can be used no more: the node was demoted and is a manager again, or was away for long.
        let revoked = RevocationList {
            revoked: vec![RevokedCertificate {
                serial: vec![7],
                ..RevokedCertificate::default()
            }],
            ..RevocationList::default()
        };
        assert!(!is_answered(&own, State::Issued, &revoked, now()));
        let later = now() + SignedDuration::from_hours(1);
        assert!(!is_answered(&own, State::Issued, &none, later));
        assert!(is_answered(&own, State::Pending, &revoked, later));
        // A list that cannot be read may name it, and says nothing of a request.
        let key = RequestedKey::read(&own).unwrap();
        let unread = |state| is_answered_by(&record(&own, state), &key, None, now());
        assert!(!unread(State::Issued) && unread(State::Pending));
    }
}
