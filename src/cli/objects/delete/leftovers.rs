//! What nodes leave behind: members, joins, volumes and the records of certificates; and the record of a removal, which some of it
//! waits for.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use prost::Message;

use crate::cli::exit::Failure;
use crate::etcd::{Revision, Txn};
use crate::proto::{Join, NodeCertificate, Publication, RemovedNode};
use crate::roles::membership::{Member, Membership};
use crate::roles::owner::Owner;
use crate::store::keys::KeySpace;
use crate::store::object::member::is_ended;
use crate::store::object::publication::node_uid;
use crate::store::object::{decode, time};
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
    /// Uids that publications were made for, and that are not recorded as removed.
    published: BTreeSet<String>,
}

impl<'a> Leftovers<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn read(store: &'a Store, name: &'a Name, membership: &'a Membership) -> Result<Self, Failure> {
        let (join, _) = store.etcd.get(&store.keys.join(name)).await?;
        let has_ended = |value: &[u8]| Join::decode(value).is_ok_and(|join| is_ended(&join));
        Ok(Self {
            store,
            name,
            membership,
            joins: join.is_some_and(|kv| !has_ended(&kv.value)),
            published: published(store, name).await?,
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

    /// The uids of nodes that have left anything, where no node has the name any more.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn uids(&self) -> Result<BTreeSet<String>, Failure> {
        let mut uids = self.uids_of_members();
        uids.extend(self.published.iter().cloned());
        let keys = &self.store.keys;
        let (certificates, _) = self.store.etcd.list(&KeySpace::CERTIFICATES.all(keys)).await?;
        let of_name = certificates.iter().filter_map(|kv| {
            let uid = KeySpace::CERTIFICATES.name(keys, &kv.key)?;
            let record = NodeCertificate::decode(&*kv.value).ok()?;
            (record.node == self.name.as_str()).then(|| uid.to_owned())
        });
        uids.extend(of_name);
        Ok(uids)
    }

    /// Adds to a transaction that the node of this uid is recorded as removed, and the record of its certificate deleted.
    ///
    /// # Errors
    /// If etcd does not answer.
    pub async fn remove(&self, txn: Txn, uid: &str) -> Result<Txn, Failure> {
        let Store { etcd, keys } = self.store;
        let key = keys.certificate(uid);
        let (stored, _) = etcd.get(&key).await?;
        let record = stored
            .as_ref()
            .and_then(|kv| NodeCertificate::decode(&*kv.value).ok());
        let end = record.and_then(|record| time::from_proto(record.latest_not_after.as_ref()));
        let now = Timestamp::now();
        // A node that has been dead for long may come back too.
        let expiry = end.and_then(|end| end.max(now).checked_add(KEPT).ok());
        let removed = RemovedNode {
            name: self.name.to_string(),
            removed_at: Some(time::to_proto(now)),
            expires_at: expiry.filter(|_| !self.waits(uid)).map(time::to_proto),
        };
        let found = stored.map_or(Revision::ABSENT, |kv| kv.mod_revision);
        let txn = txn.when_unchanged(&key, found).delete(&key);
        Ok(txn.put(&keys.removed(uid), removed.encode_to_vec()))
    }

    /// Whether something waits for the record of the removal. Nothing limits for how long (INV-12).
    fn waits(&self, uid: &str) -> bool {
        let member = self.membership.member_of_node(self.name.as_str(), uid);
        member.is_some() || self.joins || self.published.contains(uid)
    }
}

/// The uids of the nodes of this name that publications were made for, and that are not recorded as removed.
async fn published(store: &Store, name: &Name) -> Result<BTreeSet<String>, Failure> {
    let (publications, _) = store.etcd.list(&store.keys.publications()).await?;
    let of_node = publications.iter().filter_map(|kv| {
        let id = store.keys.parse_publication(&kv.key)?;
        let (_, node) = id.split_once('/')?;
        let publication = (node == name.as_str()).then(|| decode::<Publication>(id, &kv.value).ok())??;
        Some(node_uid(&publication).to_owned())
    });
    let known: BTreeSet<String> = of_node.filter(|uid| is_key_part(uid)).collect();
    let mut left = BTreeSet::new();
    for uid in known {
        let (removed, _) = store.etcd.get(&store.keys.removed(&uid)).await?;
        if removed.is_none() {
            left.insert(uid);
        }
    }
    Ok(left)
}

/// No node was created with another uid.
pub fn is_key_part(uid: &str) -> bool {
    !uid.is_empty() && !uid.contains('/')
}
