//! Writes the list of revoked certificates, and deletes what removed nodes have left once it has ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::answer::Unrecorded;
use super::authority::Authority;
use super::crl;
use super::revocation::List;
use crate::etcd::{Revision, Stop};
use crate::failpoint;
use crate::proto::RevokedCertificate;
use crate::store::Store;
use crate::store::writer::{Proof, Unit, Writer};

/// A list that is due.
pub(super) struct Due {
    /// The list on record.
    pub(super) list: List,
    /// What the next one revokes.
    pub(super) revoked: Vec<RevokedCertificate>,
    pub(super) authority: Arc<Authority>,
}

/// What a list revokes that the one before did not.
pub(super) struct Revoked {
    pub(super) number: u64,
    pub(super) certificates: usize,
    /// The names of their nodes.
    pub(super) nodes: BTreeSet<String>,
}

/// Signs a list and records it, if the one on record is what it was when this was decided.
pub(super) async fn revoke(
    store: &Store,
    writer: &Writer,
    due: Due,
) -> Result<(Revision, Revoked), Unrecorded> {
    failpoint::pause_at("identity.before-revoke").await;
    let Due {
        list,
        revoked,
        authority,
    } = due;
    let is_known = |new: &&RevokedCertificate| list.revoked().iter().any(|old| old.serial == new.serial);
    let new = revoked.iter().filter(|new| !is_known(new));
    let nodes: Vec<String> = new.map(|new| new.node.clone()).collect();
    let now = Timestamp::now();
    let next = crl::sign(&authority, revoked, list.next_number(now), now)
        .map_err(|error| Unrecorded::Failed(error.to_string()))?;
    let value = list.replaced_by(&next);
    let unit = Unit::new().put(store.keys.revocation_list(), list.revision(), value);
    let written = writer.write(unit).await.map_err(Stop::from)?;
    failpoint::pause_at("identity.after-revoke").await;
    let revoked = Revoked {
        number: next.number,
        certificates: nodes.len(),
        nodes: nodes.into_iter().collect(),
    };
    Ok((written, revoked))
}

/// What a removed node has left.
pub(super) struct Left {
    pub(super) uid: Box<str>,
    /// When the record of its certificates was last written.
    pub(super) record: Revision,
    /// When the removal was recorded.
    pub(super) removed: Revision,
}

/// Deletes the record of its certificates, if the removal is on record still (INV-12).
pub(super) async fn forget(store: &Store, writer: &Writer, left: Left) -> Result<Revision, Unrecorded> {
    let keys = &store.keys;
    let unit = Unit::new()
        .delete(keys.etcd_certificate(&left.uid), left.record)
        .proving(Proof::Unchanged(keys.removed(&left.uid), left.removed));
    Ok(writer.write(unit).await.map_err(Stop::from)?)
}
