//! What nodes leave behind: members, joins, volumes and the records of certificates; and the record of a removal, which some of it
//! waits for.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use prost::Message;

use super::published::{PublishedTo, Reads};
use crate::cli::exit::Failure;
use crate::etcd::{Revision, Txn};
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
        let Store { etcd, keys } = self.store;
        let mut left = Left::default();
        let mut unrecorded = self.uids_of_members();
        for uid in self.published.uids.iter().filter(|uid| is_key_part(uid)) {
            if !self.is_on_record(uid).await? {
                unrecorded.insert(uid.clone());
                left.has_volumes = true;
            }
        }
        let (certificates, _) = etcd.list(&KeySpace::CERTIFICATES.all(keys)).await?;
        let of_name = certificates.iter().filter_map(|kv| {
            let uid = KeySpace::CERTIFICATES.name(keys, &kv.key)?;
            let record = NodeCertificate::decode(&*kv.value).ok()?;
            (record.node == self.name.as_str()).then(|| uid.to_owned())
        });
        for uid in of_name {
            left.has_certificate = true;
            left.is_unrecorded |= !self.is_on_record(&uid).await?;
            left.uids.insert(uid);
        }
        left.is_unrecorded |= !unrecorded.is_empty();
        left.uids.append(&mut unrecorded);
        Ok(left)
    }

    async fn is_on_record(&self, uid: &str) -> Result<bool, Failure> {
        let (removed, _) = self.store.etcd.get(&self.store.keys.removed(uid)).await?;
        Ok(removed.is_some())
    }

    /// Adds to a transaction that the node of this uid is recorded as removed, unless it is so already, and the record of its
    /// certificate deleted.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn remove(&self, txn: Txn, uid: &str) -> Result<Txn, Failure> {
        let Store { etcd, keys } = self.store;
        let key = keys.certificate(uid);
        let (stored, _) = etcd.get(&key).await?;
        let found = stored.as_ref().map_or(Revision::ABSENT, |kv| kv.mod_revision);
        let txn = txn.when_unchanged(&key, found).delete(&key);
        let removed = keys.removed(uid);
        if self.is_on_record(uid).await? {
            // It says when the node was removed, and what waited for it then.
            return Ok(txn.when_present(&removed));
        }
        let record = stored.and_then(|kv| NodeCertificate::decode(&*kv.value).ok());
        let end = record.and_then(|record| time::from_proto(record.latest_not_after.as_ref()));
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

/// No node was created with another uid.
pub fn is_key_part(uid: &str) -> bool {
    !uid.is_empty() && !uid.contains('/')
}
