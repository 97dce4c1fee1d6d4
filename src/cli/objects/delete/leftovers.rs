//! What nodes leave behind: members, joins, volumes and the records of certificates; and the record of a removal, which some of it
//! waits for.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use prost::Message;

use super::published::{PublishedTo, Reads};
use crate::cli::exit::Failure;
use crate::etcd::{KeyValue, Revision, Txn};
use crate::proto::{Join, NodeCertificate, RemovedNode};
use crate::roles::membership::{Member, Membership};
use crate::roles::owner::Owner;
use crate::store::keys::KeySpace;
use crate::store::object::member::is_ended;
use crate::store::object::time;
use crate::store::{Name, Store};

/// How long a removal stays on record after the end of the last certificate of its node, and after the removal.
const KEPT: SignedDuration = SignedDuration::from_hours(7 * 24);

/// What the nodes of one name have left, or would leave.
pub struct Leftovers<'a> {
    store: &'a Store,
    name: &'a Name,
    membership: &'a Membership,
    /// Whether a member may still be added.
    joins: bool,
    published: PublishedTo,
}

/// What is left of nodes whose keys are gone.
#[derive(Debug, Default)]
pub struct Left {
    /// The uids of nodes that have left anything.
    pub uids: BTreeSet<String>,
    /// Whether the removal of one of them is yet to be recorded.
    pub is_unrecorded: bool,
    /// Whether there is a record of a certificate.
    pub has_certificate: bool,
    /// Whether volumes are published to a node whose removal is yet to be recorded.
    pub has_volumes: bool,
}

impl<'a> Leftovers<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn read(
        store: &'a Store,
        name: &'a Name,
        membership: &'a Membership,
        reads: Reads<'_>,
    ) -> Result<Self, Failure> {
        let (join, _) = store.etcd.get(&store.keys.join(name)).await?;
        let has_ended = |value: &[u8]| Join::decode(value).is_ok_and(|join| is_ended(&join));
        Ok(Self {
            store,
            name,
            membership,
            joins: join.is_some_and(|kv| !has_ended(&kv.value)),
            published: reads.published_to(store, name).await?,
        })
    }

    /// The members of nodes whose keys are gone without a record of their removal.
    pub fn members(&self) -> impl Iterator<Item = &'a Member> {
        let members = self.membership.members_of(self.name.as_str());
        members.filter(|member| member.owner() == Some(Owner::Missing))
    }

    /// The uids of these.
    pub fn uids_of_members(&self) -> BTreeSet<String> {
        let records = self.members().filter_map(|member| member.record.as_ref());
        let uids = records.map(|record| record.uid.clone());
        uids.filter(|uid| is_key_part(uid)).collect()
    }

    /// What is left, where no node has the name any more.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn left(&self) -> Result<Left, Failure> {
        let mut left = Left::default();
        let mut unrecorded = self.uids_of_members();
        for uid in self.published.uids.iter().filter(|uid| is_key_part(uid)) {
            if !self.is_on_record(uid).await? {
                unrecorded.insert(uid.clone());
                left.has_volumes = true;
            }
        }
        // With a removal on record, the leader deletes these once they have ended.
        for uid in self.certified(&KeySpace::ETCD_CERTIFICATES).await? {
            if !self.is_on_record(&uid).await? {
                unrecorded.insert(uid);
            }
        }
        for uid in self.certified(&KeySpace::CERTIFICATES).await? {
            left.has_certificate = true;
            left.is_unrecorded |= !self.is_on_record(&uid).await?;
            left.uids.insert(uid);
        }
        left.is_unrecorded |= !unrecorded.is_empty();
        left.uids.append(&mut unrecorded);
        Ok(left)
    }

    /// The uids of nodes of this name that have a record of certificates here.
    async fn certified(&self, space: &KeySpace) -> Result<Vec<String>, Failure> {
        let Store { etcd, keys } = self.store;
        let (records, _) = etcd.list(&space.all(keys)).await?;
        let of_name = records.iter().filter_map(|kv| {
            let uid = space.name(keys, &kv.key)?;
            let record = NodeCertificate::decode(&*kv.value).ok()?;
            (record.node == self.name.as_str()).then(|| uid.to_owned())
        });
        Ok(of_name.collect())
    }

    async fn is_on_record(&self, uid: &str) -> Result<bool, Failure> {
        let (removed, _) = self.store.etcd.get(&self.store.keys.removed(uid)).await?;
        Ok(removed.is_some())
    }

    /// Adds to a transaction that the node of this uid is recorded as removed, unless it is so already, and the record of its
    /// certificate deleted. That of its etcd stays: the leader revokes what it lists.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn remove(&self, txn: Txn, uid: &str) -> Result<Txn, Failure> {
        let Store { etcd, keys } = self.store;
        let (key, of_etcd) = (keys.certificate(uid), keys.etcd_certificate(uid));
        let ([stored, stored_of_etcd], _) = etcd.get_each([&key, &of_etcd]).await?;
        let found =
            |stored: &Option<KeyValue>| stored.as_ref().map_or(Revision::ABSENT, |kv| kv.mod_revision);
        let txn = txn
            .when_unchanged(&key, found(&stored))
            .when_unchanged(&of_etcd, found(&stored_of_etcd))
            .delete(&key);
        let removed = keys.removed(uid);
        if self.is_on_record(uid).await? {
            // It says when the node was removed, and what waited for it then.
            return Ok(txn.when_present(&removed));
        }
        let end = latest_end(stored.as_ref(), stored_of_etcd.as_ref());
        let now = Timestamp::now();
        // A node that has been dead for long may come back too.
        let expiry = end.and_then(|end| end.max(now).checked_add(KEPT).ok());
        let (expiry, txn) = match expiry.filter(|_| !self.waits(uid)) {
            // A volume may be published to the node until this transaction.
            Some(expiry) => {
                let range = keys.publications();
                (
                    Some(expiry),
                    txn.when_none_created_since(&range, self.published.read_at),
                )
            }
            None => (None, txn),
        };
        let record = RemovedNode {
            name: self.name.to_string(),
            removed_at: Some(time::to_proto(now)),
            expires_at: expiry.map(time::to_proto),
        };
        Ok(txn.when_absent(&removed).put(&removed, record.encode_to_vec()))
    }

    /// Whether something waits for the record of the removal. Nothing limits for how long (INV-12).
    fn waits(&self, uid: &str) -> bool {
        let member = self.membership.member_of_node(self.name.as_str(), uid);
        member.is_some() || self.joins || self.published.may_have(uid)
    }
}

/// When the last certificate of a node ends, from the records of its own ones and of those of its etcd; `None` if it had none, or that
/// is not known.
fn latest_end(own: Option<&KeyValue>, of_etcd: Option<&KeyValue>) -> Option<Timestamp> {
    let read = |kv: &KeyValue| NodeCertificate::decode(&*kv.value).ok();
    let end = |record: &NodeCertificate| time::from_proto(record.latest_not_after.as_ref());
    let own = end(&read(own?)?)?;
    match of_etcd {
        None => Some(own),
        Some(of_etcd) => {
            let of_etcd = read(of_etcd)?;
            Some(end(&of_etcd).map_or(own, |of_etcd| of_etcd.max(own)))
        }
    }
}

/// No node was created with another uid.
pub fn is_key_part(uid: &str) -> bool {
    !uid.is_empty() && !uid.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(end: Option<i64>) -> KeyValue {
        let record = NodeCertificate {
            latest_not_after: end.map(|seconds| prost_types::Timestamp { seconds, nanos: 0 }),
            ..NodeCertificate::default()
        };
        KeyValue {
            key: Vec::new(),
            value: record.encode_to_vec(),
            create_revision: Revision(1),
            mod_revision: Revision(1),
            lease: None,
        }
    }

    #[test]
    fn a_removal_is_kept_until_both_the_certificates_of_the_node_and_those_of_its_etcd_have_ended() {
        let (early, late) = (record(Some(5)), record(Some(9)));
        let end = |own: Option<&KeyValue>, of_etcd: Option<&KeyValue>| {
            latest_end(own, of_etcd).map(Timestamp::as_second)
        };
        assert_eq!(end(Some(&early), None), Some(5));
        assert_eq!(end(Some(&early), Some(&late)), Some(9));
        assert_eq!(end(Some(&late), Some(&early)), Some(9));
        assert_eq!(
            end(Some(&early), Some(&record(None))),
            Some(5),
            "it was never issued"
        );
        // What is not known is kept for good.
        let mut garbage = record(Some(5));
        garbage.value = vec![0xff];
        for (own, of_etcd) in [
            (None, None),
            (Some(&record(None)), Some(&late)),
            (Some(&garbage), None),
            (Some(&early), Some(&garbage)),
        ] {
            assert_eq!(end(own, of_etcd), None);
        }
    }
}
