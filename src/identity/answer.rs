//! An answer to a request for a certificate: how it is made and recorded.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::NotMade;
use super::authority::{Authority, AuthorityKind};
use super::etcd::{MemberHolder, of_agent};
use super::node::{self, NodeHolder, NodeRole};
use super::plan::{Refusal, requested_key};
use super::reached::Joined;
use super::record::{issued, issued_to_etcd, refused};
use super::records::Record;
use super::request::RequestedKey;
use crate::etcd::{ClusterId, Etcd, FencedError, Revision, Stop};
use crate::failpoint;
use crate::mutation::{self, Guard};
use crate::store::writer::{Proof, Unit, Write, Writer};
use crate::store::{Keys, Name, Store};

/// An answer to a request, before it is made.
pub(super) struct Answer {
    pub(super) kind: AuthorityKind,
    pub(super) uid: Box<str>,
    pub(super) record: Record,
    pub(super) reply: Result<Grant, Refusal>,
}

/// What a certificate is made of, besides the request.
pub(super) struct Grant {
    pub(super) to: Holder,
    /// When the node was last written.
    pub(super) node: Revision,
    pub(super) authority: Arc<Authority>,
    /// The certificates that etcd trusts (PEM). Empty for a certificate of a node.
    pub(super) trusted: String,
    pub(super) cluster: ClusterId,
}

/// Whom a certificate is for, besides the node.
pub(super) enum Holder {
    /// The node, in this role.
    Node(NodeRole),
    /// Its member of etcd.
    Member(Joined),
}

/// How long certificates are valid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lives {
    /// Those of nodes.
    pub(super) node: SignedDuration,
    /// Those of their members of etcd.
    pub(super) etcd: SignedDuration,
}

/// An answer as it is reported: to which node, and the role that was signed for, or the refusal.
pub(super) struct Recorded {
    pub(super) kind: AuthorityKind,
    pub(super) node: String,
    /// Whether the node had no certificate before.
    pub(super) is_first: bool,
    pub(super) answer: Result<NodeRole, Refusal>,
}

impl Holder {
    fn role(&self) -> NodeRole {
        match self {
            Self::Node(role) => *role,
            Self::Member(_) => NodeRole::Manager,
        }
    }
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

/// Makes an answer and records it, if the node and the record are what they were when it was decided (INV-13).
pub(super) async fn act(
    store: &Store,
    writer: &Writer,
    lives: Lives,
    decided: Answer,
) -> Result<(Revision, Recorded), Unrecorded> {
    failpoint::pause_at("identity.before-sign").await;
    let Answer {
        kind,
        uid,
        record,
        reply,
    } = decided;
    let Store { etcd, keys } = store;
    let key = match kind {
        AuthorityKind::Node => keys.certificate(&uid),
        AuthorityKind::Etcd => keys.etcd_certificate(&uid),
    };
    let put = |after| Unit::new().put(key.clone(), record.revision, after);
    let granted = reply.and_then(|grant| Ok((requested_key(&record.value)?, grant)));
    let (unit, answer) = match granted {
        Err(refusal) => (put(refused(&record, &refusal)), Err(refusal)),
        Ok((requested, grant)) => {
            // A name that is none has no node in the index, and its request waits.
            let Ok(name) = record.value.node.parse::<Name>() else {
                return Err(Stop::Stale.into());
            };
            let signed = sign(&grant, &requested, (&*uid, &name), lives, &record);
            let after = signed.map_err(|error| Unrecorded::Failed(error.to_string()))?;
            (
                proven(put(after), keys, (&*uid, &name), &grant),
                Ok(grant.to.role()),
            )
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
    let is_first = record.value.latest_not_after.is_none();
    let node = record.value.node;
    let recorded = recorded?;
    Ok((
        recorded,
        Recorded {
            kind,
            node,
            is_first,
            answer,
        },
    ))
}

/// The record with the certificate of a node, which has this uid and name.
fn sign(
    grant: &Grant,
    requested: &RequestedKey,
    (uid, name): (&str, &Name),
    lives: Lives,
    record: &Record,
) -> Result<Vec<u8>, NotMade> {
    let (authority, cluster, now) = (&*grant.authority, grant.cluster, Timestamp::now());
    match &grant.to {
        Holder::Node(role) => {
            let holder = NodeHolder {
                cluster,
                uid,
                name: name.as_str(),
                role: *role,
            };
            let signed = node::certificate(authority, requested, holder, lives.node, now)?;
            Ok(issued(record, *role, &signed))
        }
        Holder::Member(joined) => {
            let holder = MemberHolder {
                cluster,
                uid,
                hosts: &joined.hosts,
            };
            let signed = of_agent(authority, requested, holder, lives.etcd, now)?;
            Ok(issued_to_etcd(record, &grant.trusted, &signed, now))
        }
    }
}

/// The write of a certificate, with the proof that nothing has changed by which it was decided.
fn proven(unit: Unit, keys: &Keys, (uid, name): (&str, &Name), grant: &Grant) -> Unit {
    if mutation::without(Guard::Node) {
        return unit;
    }
    let unit = unit
        .proving(Proof::Unchanged(keys.node(name), grant.node))
        .proving(Proof::Unchanged(keys.removed(uid), Revision::ABSENT));
    match &grant.to {
        Holder::Node(_) => unit,
        Holder::Member(joined) => {
            let (member, written) = joined.member;
            unit.proving(Proof::Unchanged(keys.member(member), written))
                .proving(Proof::Unchanged(keys.join(name), joined.join))
        }
    }
}

/// The revision of the record, the one write of an answer, if etcd holds it. A write that etcd makes after this look is counted and
/// reported nowhere.
async fn find(etcd: &Etcd, written: &[Write]) -> Option<Revision> {
    let write = written.first()?;
    let (stored, _) = etcd.get(&write.key).await.ok()?;
    let stored = stored.filter(|kv| Some(&kv.value) == write.value.as_ref())?;
    Some(stored.mod_revision)
}
