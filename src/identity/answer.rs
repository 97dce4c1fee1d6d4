//! An answer to a request for a certificate: how it is made and recorded.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::authority::Authority;
use super::index::Record;
use super::node::{self, NodeHolder, NodeRole};
use super::plan::{Refusal, requested_key};
use super::record::{issued, refused};
use crate::etcd::{ClusterId, Etcd, FencedError, Revision, Stop};
use crate::failpoint;
use crate::store::writer::{Proof, Unit, Write, Writer};
use crate::store::{Name, Store};

/// An answer to a request, before it is made.
pub(super) struct Answer {
    pub(super) uid: Box<str>,
    pub(super) record: Record,
    pub(super) reply: Result<Grant, Refusal>,
}

/// What a certificate is made of, besides the request.
pub(super) struct Grant {
    pub(super) role: NodeRole,
    /// When the node was last written.
    pub(super) node: Revision,
    pub(super) authority: Arc<Authority>,
    pub(super) cluster: ClusterId,
}

/// An answer as it is reported: to which node, and the role that was signed for, or the refusal.
pub(super) struct Recorded {
    pub(super) node: String,
    pub(super) answer: Result<NodeRole, Refusal>,
}

/// Why an answer was not recorded, as far as is known.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unrecorded {
    /// etcd did not take it.
    #[error(transparent)]
    Stopped(#[from] Stop),
    /// It could not be made, or its recording got no reply.
    #[error("{0}")]
    Failed(String),
}

/// What became of an answer: recorded at this revision, or not.
pub(super) type Outcome = Result<(Revision, Recorded), Unrecorded>;

/// Makes an answer and records it, if the node and the record are what they were when it was decided (INV-13).
pub(super) async fn act(store: &Store, writer: &Writer, life: SignedDuration, decided: Answer) -> Outcome {
    failpoint::pause_at("identity.before-sign").await;
    let Answer { uid, record, reply } = decided;
    let Store { etcd, keys } = store;
    let put = |after| Unit::new().put(keys.certificate(&uid), record.revision, after);
    let granted = reply.and_then(|grant| Ok((requested_key(&record.value)?, grant)));
    let (unit, answer) = match granted {
        Err(refusal) => (put(refused(&record, &refusal)), Err(refusal)),
        Ok((key, grant)) => {
            // A name that is none has no node in the index, and its request waits.
            let Ok(name) = record.value.node.parse::<Name>() else {
                return Err(Stop::Stale.into());
            };
            let holder = NodeHolder {
                cluster: grant.cluster,
                uid: &uid,
                name: name.as_str(),
                role: grant.role,
            };
            let signed = match node::certificate(&grant.authority, &key, holder, life, Timestamp::now()) {
                Ok(signed) => signed,
                Err(error) => return Err(Unrecorded::Failed(error.to_string())),
            };
            let unit = put(issued(&record, grant.role, &signed))
                .proving(Proof::Unchanged(keys.node(&name), grant.node))
                .proving(Proof::Unchanged(keys.removed(&uid), Revision::ABSENT));
            (unit, Ok(grant.role))
        }
    };
    failpoint::pause_at("identity.before-store").await;
    let written = unit.writes().to_vec();
    let recorded = writer.write(unit).await;
    let is_lost = failpoint::drop_reply_at("identity.reply");
    let is_unknown = is_lost || matches!(recorded, Err(FencedError::Unknown(_)));
    let recorded = recorded.map_err(|error| Unrecorded::from(Stop::from(error)));
    let recorded = match is_unknown {
        true => find(etcd, &written).await.ok_or_else(|| {
            let lost = || Unrecorded::Failed("the reply was lost".to_owned());
            recorded.err().unwrap_or_else(lost)
        }),
        false => recorded,
    };
    failpoint::pause_at("identity.after-store").await;
    let node = record.value.node;
    Ok((recorded?, Recorded { node, answer }))
}

/// The revision of the record, the one write of an answer, if etcd holds it. A write that etcd makes after this look is counted and
/// reported nowhere.
async fn find(etcd: &Etcd, written: &[Write]) -> Option<Revision> {
    let write = written.first()?;
    let (stored, _) = etcd.get(&write.key).await.ok()?;
    let stored = stored.filter(|kv| Some(&kv.value) == write.value.as_ref())?;
    Some(stored.mod_revision)
}
