//! Who calls (INV-13): a node, as its record says at this call.

use jiff::Timestamp;
use tonic::Status;

use super::proof::Proof;
use super::refusal;
use crate::etcd::{KeyValue, Revision, Txn};
use crate::proto::{Node, Role};
use crate::store::object::node::is_accepted;
use crate::store::object::{Object, decode};
use crate::store::{Keys, Name, Store};

/// A node that makes a call. Only [`Caller::authenticate`] makes one.
#[derive(Clone, Debug)]
pub struct Caller {
    shown: Shown,
    node: Node,
    stored: KeyValue,
}

/// What the certificate of a caller says, which is genuine and valid.
#[derive(Clone, Debug)]
struct Shown {
    name: Name,
    uid: String,
    valid_until: Timestamp,
}

impl Caller {
    /// Judges a call: by the certificate of its connection, and by the record of the node, which is read linearizably. Nothing is
    /// decided from memory.
    ///
    /// # Errors
    /// The answer to the call.
    pub async fn authenticate(store: &Store, proof: &mut Proof) -> Result<Self, Status> {
        let facts = proof.judge().map_err(|why| refusal::not_proven(&why))?;
        let shown = Shown {
            name: facts.name,
            uid: facts.uid,
            valid_until: facts.not_after,
        };
        let caller = Self::by_record(store, shown).await?;
        proof.belongs_to(caller.uid());
        Ok(caller)
    }

    /// The same caller, as the record says now.
    ///
    /// # Errors
    /// The answer to the call.
    pub async fn again(self, store: &Store) -> Result<Self, Status> {
        Self::by_record(store, self.shown).await
    }

    async fn by_record(store: &Store, shown: Shown) -> Result<Self, Status> {
        let Store { etcd, keys } = store;
        let (node, removed) = (keys.node(&shown.name), keys.removed(&shown.uid));
        let read = etcd.get_each([&node, &removed]).await;
        let ([node, removed], _) = read.map_err(|error| refusal::unavailable(&error))?;
        Self::judge(shown, node, removed.is_some())
    }

    /// What the record of a node makes of its certificate.
    fn judge(shown: Shown, stored: Option<KeyValue>, removed: bool) -> Result<Self, Status> {
        let Shown { name, uid, .. } = &shown;
        if removed {
            return Err(refusal::removed(uid));
        }
        let stored = stored.ok_or_else(|| refusal::gone(uid))?;
        let node: Node = decode(name.as_str(), &stored.value)
            .map_err(|_| refusal::unreadable(format_args!("node {name}")))?;
        if node.uid() != uid {
            return Err(refusal::gone(uid));
        }
        let spec = node.spec.unwrap_or_default();
        if !is_accepted(&spec) {
            return Err(refusal::not_accepted());
        }
        Ok(Self { shown, node, stored })
    }

    /// The name of the node.
    pub fn name(&self) -> &Name {
        &self.shown.name
    }

    /// The uid of the node.
    pub fn uid(&self) -> &str {
        &self.shown.uid
    }

    /// The node, as it was read for this call.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The stored bytes of the node, with what only a later release knows.
    pub fn stored(&self) -> &[u8] {
        &self.stored.value
    }

    /// When the node was created.
    pub fn created(&self) -> Revision {
        self.stored.create_revision
    }

    /// When the node was last written.
    pub fn revision(&self) -> Revision {
        self.stored.mod_revision
    }

    /// The end of the certificate of the connection.
    pub fn valid_until(&self) -> Timestamp {
        self.shown.valid_until
    }

    /// Requires that the node is observed as a manager, whatever its certificate says (INV-13).
    ///
    /// # Errors
    /// The answer to the call.
    pub fn require_manager(&self) -> Result<(), Status> {
        let status = self.node.status.as_ref();
        match status.map_or(Role::Unspecified, |status| status.role()) {
            Role::Manager => Ok(()),
            other @ (Role::Worker | Role::Unspecified) => Err(refusal::wrong_role(other)),
        }
    }

    /// A transaction of a call that managers alone make: it requires besides that nothing of the node has changed since it was judged.
    pub fn writes_as_manager(&self, keys: &Keys) -> Txn {
        self.writes(keys)
            .when_unchanged(&keys.node(&self.shown.name), self.revision())
    }

    /// A transaction that writes for this node: it requires that the node is still there and was not removed (INV-13).
    pub fn writes(&self, keys: &Keys) -> Txn {
        Txn::new()
            .when_created_at(&keys.node(&self.shown.name), self.created())
            .when_absent(&keys.removed(&self.shown.uid))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tonic::Code;

    use super::*;
    use crate::grpc_status;
    use crate::proto::node_spec::Membership;
    use crate::proto::{Metadata, NodeSpec, NodeStatus, Removed, WrongRole};

    fn shown() -> Shown {
        Shown {
            name: "n1".parse().unwrap(),
            uid: "u".to_owned(),
            valid_until: Timestamp::MAX,
        }
    }

    fn stored(uid: &str, membership: i32) -> KeyValue {
        let node = Node {
            metadata: Some(Metadata::new("n1", uid, Timestamp::UNIX_EPOCH)),
            spec: Some(NodeSpec {
                membership,
                ..NodeSpec::default()
            }),
            ..Node::default()
        };
        KeyValue {
            key: Vec::new(),
            value: node.encode_to_vec(),
            create_revision: Revision(3),
            mod_revision: Revision(5),
            lease: None,
        }
    }

    fn code(stored: Option<KeyValue>, removed: bool) -> Code {
        Caller::judge(shown(), stored, removed).map_or_else(|refused| refused.code(), |_| Code::Ok)
    }

    #[test]
    fn the_record_of_the_node_decides() {
        let accepted = || stored("u", Membership::Accepted.into());
        assert_eq!(code(Some(accepted()), false), Code::Ok);
        assert_eq!(code(Some(stored("u", 0)), false), Code::Ok);
        let caller = Caller::judge(shown(), Some(accepted()), false).unwrap();
        assert_eq!((caller.created(), caller.revision()), (Revision(3), Revision(5)));
        // A removal counts before any node.
        assert_eq!(code(Some(accepted()), true), Code::PermissionDenied);
        assert_eq!(code(None, true), Code::PermissionDenied);
        assert_eq!(code(None, false), Code::NotFound);
        assert_eq!(code(Some(stored("other", 0)), false), Code::NotFound);
        for unaccepted in [Membership::Pending.into(), 99] {
            assert_eq!(code(Some(stored("u", unaccepted)), false), Code::PermissionDenied);
        }
        let mut garbage = accepted();
        garbage.value = vec![0xff];
        assert_eq!(code(Some(garbage), false), Code::Unavailable);
    }

    /// INV-13.
    #[test]
    fn the_observed_role_of_the_record_makes_a_manager_and_the_refusal_says_it() {
        for (role, is_manager) in [
            (Role::Manager, true),
            (Role::Worker, false),
            (Role::Unspecified, false),
        ] {
            let mut record = stored("u", 0);
            let mut node = Node::decode(&*record.value).unwrap();
            node.status = Some(NodeStatus {
                role: role.into(),
                ..NodeStatus::default()
            });
            // A desired role makes none.
            node.spec.get_or_insert_default().set_desired_role(Role::Manager);
            record.value = node.encode_to_vec();
            let caller = Caller::judge(shown(), Some(record), false).unwrap();
            let required = caller.require_manager();
            assert_eq!(required.is_ok(), is_manager, "{role:?}");
            if let Err(refused) = required {
                assert_eq!(refused.code(), Code::PermissionDenied);
                let said: Option<WrongRole> = grpc_status::find("quorate.v1.WrongRole", refused.details());
                assert_eq!(said.unwrap().observed(), role);
            }
        }
    }

    #[test]
    fn a_removal_says_so_by_its_type() {
        let refused = Caller::judge(shown(), None, true).unwrap_err();
        let removed: Option<Removed> = grpc_status::find("quorate.v1.Removed", refused.details());
        assert_eq!(removed.unwrap().node_uid, "u");
        let gone = Caller::judge(shown(), None, false).unwrap_err();
        assert_eq!(
            grpc_status::find::<Removed>("quorate.v1.Removed", gone.details()),
            None
        );
    }
}
