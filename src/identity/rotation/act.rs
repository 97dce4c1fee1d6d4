//! What the leader writes of a rotation, each by compare-and-swap under its term (INV-1).

use prost::Message as _;

use super::record::{Phase, Rotation};
use crate::etcd::{Revision, Stop};
use crate::failpoint;
use crate::identity::answer::Unrecorded;
use crate::identity::authority::AuthorityKind;
use crate::identity::record::rotating;
use crate::proto::NodeCertificate;
use crate::proto::node_certificate::State;
use crate::store::Store;
use crate::store::object::message;
use crate::store::writer::{Unit, Writer};

/// Records how far a rotation is, if the record is what it was when that was decided.
pub async fn record(
    store: &Store,
    writer: &Writer,
    found: Revision,
    next: &Rotation,
) -> Result<Revision, Unrecorded> {
    let (before, after) = points(next.phase);
    failpoint::pause_at(before).await;
    let unit = Unit::new().put(store.keys.rotation(), found, next.value.encode_to_vec());
    let written = writer.write(unit).await.map_err(Stop::from)?;
    failpoint::pause_at(after).await;
    Ok(written)
}

/// The points before and after a record of this phase is stored.
fn points(phase: Phase) -> (&'static str, &'static str) {
    match phase {
        Phase::Trust => ("rotation.storing-trust", "rotation.stored-trust"),
        Phase::Reissue => ("rotation.storing-reissue", "rotation.stored-reissue"),
        Phase::Drop => ("rotation.storing-drop", "rotation.stored-drop"),
        Phase::Done => ("rotation.storing-done", "rotation.stored-done"),
    }
}

/// Asks the node of this uid for another certificate, as `quorate certificate rotate` does. One that is asked already is left alone.
pub async fn ask(
    store: &Store,
    writer: &Writer,
    kind: AuthorityKind,
    uid: &str,
) -> Result<Revision, Unrecorded> {
    failpoint::pause_at("rotation.before-ask").await;
    let keys = &store.keys;
    let key = match kind {
        AuthorityKind::Node => keys.certificate(uid),
        AuthorityKind::Etcd => keys.etcd_certificate(uid),
    };
    let read = store.etcd.get(&key).await;
    let (stored, revision) = read.map_err(|error| Unrecorded::Failed(error.to_string()))?;
    let Some(stored) = stored else {
        // The node was removed meanwhile.
        return Ok(revision);
    };
    let record: NodeCertificate = message("NodeCertificate", &stored.value)
        .map_err(|malformed| Unrecorded::Failed(malformed.to_string()))?;
    if matches!(record.state(), State::Pending | State::Rotate) {
        return Ok(stored.mod_revision);
    }
    let unit = Unit::new().put(key.clone(), stored.mod_revision, rotating(&stored.value));
    let written = writer.write(unit).await.map_err(Stop::from)?;
    failpoint::pause_at("rotation.after-ask").await;
    Ok(written)
}

/// Deletes what a replica has reported of a rotation that is over.
pub async fn forget(
    store: &Store,
    writer: &Writer,
    replica: &str,
    found: Revision,
) -> Result<Revision, Unrecorded> {
    let unit = Unit::new().delete(store.keys.replica_trust(replica), found);
    Ok(writer.write(unit).await.map_err(Stop::from)?)
}
