//! The part of the controller that revokes certificates of etcd, and deletes the records of those that have ended.

use std::sync::Arc;

use jiff::Timestamp;

use super::{About, Done, TermState, UNDER_WAY, outcome};
use crate::identity::authority::AuthorityKind;
use crate::identity::plan::Wait;
use crate::identity::records::Record;
use crate::identity::revocation::{self, List, has_ended};
use crate::identity::revoke::{Due, Left, forget, revoke};
use crate::identity::waits::{Waiting, Waits};
use crate::span;

impl TermState<'_> {
    pub(super) fn begin_list(&mut self, due: Due) {
        let (certifier, writer) = (self.certifier, self.writer.clone());
        let step = span::step("certificates", "write", "revocation list");
        let revoking = async move {
            let revoked = span::within(step, revoke(&certifier.store, &writer, due), outcome).await;
            revoked.map(|(written, revoked)| (written, Done::Revoked(revoked)))
        };
        self.acts.begin(About::RevocationList, revoking);
    }

    pub(super) fn begin_forgetting(&mut self, left: Left) {
        let about = About::Left(left.uid.clone());
        let (certifier, writer) = (self.certifier, self.writer.clone());
        let step = span::step("certificates", "forget", format_args!("node {}", left.uid));
        let forgetting = async move {
            let forgotten = span::within(step, forget(&certifier.store, &writer, left), outcome).await;
            forgotten.map(|written| (written, Done::Forgotten))
        };
        self.acts.begin(about, forgetting);
    }

    /// The list of revoked certificates that is due. Notes what a revocation waits for.
    pub(super) fn due_list(&self, now: Timestamp, waits: &mut Waits) -> Option<Due> {
        let list = self.index.revocation();
        let unlisted = revocation::unlisted(list, self.index.owed(), now);
        let cause = match (list, self.authorities.of(AuthorityKind::Etcd)) {
            (List::Unreadable, _) => {
                let key = self.certifier.store.keys.revocation_list();
                let key = String::from_utf8_lossy(&key);
                let cause = format!(
                    "the list on record cannot be read (etcdctl del {key} has the leader make another)"
                );
                if unlisted.is_empty() {
                    waits.add(Waiting::List, "", || cause.clone());
                }
                cause
            }
            (_, Err(_)) => self.cause(AuthorityKind::Etcd, Wait::Authority),
            (_, Ok(authority)) => {
                if !self.acts.is_free(&About::RevocationList) {
                    return None;
                }
                let revoked = revocation::plan(list, unlisted, authority.digest(), now)?;
                return Some(Due {
                    list: list.clone(),
                    revoked,
                    authority: Arc::clone(authority),
                });
            }
        };
        for revoked in unlisted {
            waits.add(Waiting::Revocation, &revoked.node, || cause.clone());
        }
        None
    }

    /// Notes the certificates that would be revoked if they were known.
    pub(super) fn note_unknown(&self, waits: &mut Waits) {
        for (uid, node) in self.index.unknown() {
            let cause = || {
                let key = self.certifier.store.keys.etcd_certificate(uid);
                let key = String::from_utf8_lossy(&key);
                format!("the record of them cannot be read ({key}), and they end with their lives alone")
            };
            waits.add(Waiting::UnknownCertificates, node, cause);
        }
    }

    /// What removed nodes have left, and nothing of it is valid any more.
    pub(super) fn ended_records(&self, now: Timestamp) -> Vec<Left> {
        let is_over = |record: &Record| {
            let mut issued = record.value.issued.iter();
            issued.all(|issued| has_ended(issued.not_after.as_ref(), now))
        };
        let left = self.index.left_behind();
        let ended =
            left.filter(|&(uid, record, _)| is_over(record) && self.acts.is_free(&About::Left(uid.into())));
        let ended = ended.map(|(uid, record, removed)| Left {
            uid: uid.into(),
            record: record.revision,
            removed,
        });
        ended.take(UNDER_WAY).collect()
    }
}
