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
use crate::store::object::message;
use crate::store::writer::{Proof, Unit, Writer};
use crate::store::{Keys, Store};

/// Records how far a rotation is, if the record is what it was when that was decided. `permitted_at` says that an etcd may start again
/// from now on, and when the members were looked at for that.
pub async fn record(
    store: &Store,
    writer: &Writer,
    found: Revision,
    next: &Rotation,
    permitted_at: Option<Revision>,
) -> Result<Revision, Unrecorded> {
    let (before, after) = points(next.phase);
    failpoint::pause_at(before).await;
    let unit = recorded(&store.keys, found, next, permitted_at);
    let written = writer.write(unit).await.map_err(Stop::from)?;
    failpoint::pause_at(after).await;
    Ok(written)
}

/// The write of the record. A permission comes with the proof that no record of a member was written since the look (INV-5): every change
/// of voters, and of where one is reached, has its intent there before its call. So no call of a change is under way while an etcd
/// starts again, whichever is recorded first:
///
/// - An intent from before the look is in the index. The plan permits nothing before it has ended, and it ends once no call of it can
///   be under way.
/// - An intent between the look and the permission refuses the permission.
/// - An intent after the permission has no call before the permission is read: what carries the intent out reads it linearizably, after
///   the intent is stored (`roles/controller/execute.rs`).
///
/// The end of a removal deletes the record, which the proof does not see: by then no call of it is under way.
fn recorded(keys: &Keys, found: Revision, next: &Rotation, permitted_at: Option<Revision>) -> Unit {
    let unit = Unit::new().put(keys.rotation(), found, next.value.encode_to_vec());
    match permitted_at {
        Some(looked) => unit.proving(Proof::Unwritten(keys.members(), looked)),
        None => unit,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::authority::AuthorityDigest;
    use crate::identity::rotation::record::Roots;

    /// INV-5.
    #[test]
    fn a_permission_is_recorded_only_where_no_record_of_a_member_was_written_since_the_look() {
        let keys = Keys::new("/quorate".parse().unwrap());
        let roots = |byte| Roots {
            node: AuthorityDigest([byte; 32]),
            etcd: AuthorityDigest([byte; 32]),
        };
        let now = "2026-03-01T12:00:00Z".parse().unwrap();
        let next = Rotation::begun(roots(1), roots(2), 0, now).moved_to(Phase::Drop, now);
        let written = Unit::new().put(keys.rotation(), Revision(7), next.value.encode_to_vec());
        assert_eq!(recorded(&keys, Revision(7), &next, None), written);
        let unchanged = Proof::Unwritten(keys.members(), Revision(5));
        let permitted = recorded(&keys, Revision(7), &next, Some(Revision(5)));
        assert_eq!(permitted, written.proving(unchanged));
    }
}
