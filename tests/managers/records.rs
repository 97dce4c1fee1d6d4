//! What is on record of nodes, of their members and of their certificates.

use prost::Message;
use quorate::etcd::{MemberId, Txn};
use quorate::proto::node_certificate::State;
use quorate::proto::{Join, Member, Node, NodeCertificate, RevocationList, Role};

use super::site::Managers;
use crate::support::base::parsed;
use crate::support::client::commit;
use crate::support::wait::{SOON, eventually, same};

impl Managers {
    /// Waits until a node is observed in this role.
    pub async fn becomes(&self, name: &str, role: Role) {
        eventually(SOON, &format!("{name} is {role:?}"), async || {
            let status = self.node(name).await.status.unwrap_or_default();
            same(status.role(), role)
        })
        .await;
    }

    /// Waits until a node has a certificate for this role, and has asked for no other one.
    pub async fn certified(&self, name: &str, role: Role) {
        let key = self.store.keys.certificate(&self.uid(name).await);
        eventually(SOON, &format!("{name} is certified as {role:?}"), async || {
            let stored = self.read(&key).await.expect("the node was certified before");
            let record = NodeCertificate::decode(&*stored.value).unwrap();
            same((record.state(), record.role()), (State::Issued, role))
        })
        .await;
    }

    /// Writes the desired role of a node, and nothing else, as an operator does who does not wait.
    pub async fn desire(&self, name: &str, role: Role) {
        let key = self.store.keys.node(&parsed(name));
        eventually(SOON, &format!("{name} is desired as {role:?}"), async || {
            let stored = self.read(&key).await.expect("the node exists");
            let mut node = Node::decode(&*stored.value).unwrap();
            node.spec.get_or_insert_default().set_desired_role(role);
            let txn = Txn::new().when_unchanged(&key, stored.mod_revision);
            commit(&self.store.etcd, txn.put(&key, node.encode_to_vec())).await
        })
        .await;
    }

    /// Waits until the agent of a node has reported that it keeps an etcd.
    pub async fn keeps_etcd(&self, name: &str) {
        eventually(SOON, &format!("the agent of {name} keeps its etcd"), async || {
            let status = self.node(name).await.status.unwrap_or_default();
            same(status.keeps_etcd, true)
        })
        .await;
    }

    /// The record of a node's join, an empty one if there is none.
    pub async fn join(&self, name: &str) -> Join {
        let stored = self.read(&self.store.keys.join(&parsed(name))).await;
        stored.map_or_else(Join::default, |kv| Join::decode(&*kv.value).unwrap())
    }

    /// Whether a removal of this member is decided, or was carried out.
    pub async fn is_leaving(&self, id: MemberId) -> bool {
        let stored = self.read(&self.store.keys.member(id)).await;
        let record = stored.map(|kv| Member::decode(&*kv.value).unwrap());
        record.is_none_or(|record| record.removal.is_some())
    }

    /// The serial numbers of all certificates that the etcd of a node has got.
    pub async fn serials(&self, uid: &str) -> Vec<Vec<u8>> {
        let stored = self.read(&self.store.keys.etcd_certificate(uid)).await;
        let record = stored.map(|kv| NodeCertificate::decode(&*kv.value).unwrap());
        let issued = record.unwrap_or_default().issued.into_iter();
        issued.map(|issued| issued.serial).collect()
    }

    /// Waits until all certificates are revoked that the etcd of a node has got.
    pub async fn revoked(&self, uid: &str) {
        let issued = self.serials(uid).await;
        eventually(SOON, "its certificates are revoked", async || {
            let stored = self.read(&self.store.keys.revocation_list()).await;
            let list = RevocationList::decode(&*stored.ok_or("there is no list")?.value).unwrap();
            let is_listed = |serial: &Vec<u8>| list.revoked.iter().any(|of| of.serial == *serial);
            match issued.iter().all(is_listed) {
                true => Ok(()),
                false => Err("one is not"),
            }
        })
        .await;
    }
}
