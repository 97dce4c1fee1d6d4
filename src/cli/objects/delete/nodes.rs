//! Deleting nodes.

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use prost::Message;

use super::{Deletable, Deletion};
use crate::cli::exit::{Exit, Failure};
use crate::cli::output::one_line;
use crate::etcd::{KeyValue, Txn};
use crate::proto::{Node, RemovedNode, Role};
use crate::store::object::{Malformed, decode, time};
use crate::store::{Id, Name, Store};

/// The kind, as `delete` sees it.
pub struct DeleteNode;

impl Deletable for DeleteNode {
    fn plan<'a>(
        &'a self,
        store: &'a Store,
        id: &'a Id,
        force: bool,
    ) -> BoxFuture<'a, Result<Deletion, Failure>> {
        async move {
            let name = &id.name;
            let (stored, _) = store
                .etcd
                .get(&store.keys.node(name))
                .await
                .map_err(Failure::failed)?;
            let Some(stored) = stored else {
                return Err(Failure::new(Exit::NotFound, "not found"));
            };
            let alive_key = store.keys.alive(name);
            let (alive, _) = store.etcd.get(&alive_key).await.map_err(Failure::failed)?;
            let node: Result<Node, Malformed> = decode(name.as_str(), &stored.value);
            // A list that cannot be had is no proof that the node is not in it.
            let member = if may_be_manager(node.as_ref()) {
                let members = store.etcd.member_names().await.map_err(Failure::failed)?;
                members.iter().any(|member| member == name.as_str())
            } else {
                false
            };
            let facts = Facts {
                node: node.as_ref(),
                ready: alive.is_some(),
                member,
            };
            check(name, &facts, force)?;
            Ok(deletion(store, name, &stored, &facts, force))
        }
        .boxed()
    }
}

/// What decides whether a node may go.
struct Facts<'a> {
    node: Result<&'a Node, &'a Malformed>,
    ready: bool,
    /// Whether etcd has a member of this name; not looked at for a node that is no desired manager.
    member: bool,
}

fn may_be_manager(node: Result<&Node, &Malformed>) -> bool {
    node.map_or(true, |node| {
        node.spec.unwrap_or_default().desired_role() != Role::Worker
    })
}

/// The rules for removing a node, each with its name.
fn check(name: &Name, facts: &Facts<'_>, force: bool) -> Result<(), Failure> {
    let refused = |rule: &str, why: String, hint: &str| {
        Err(Failure::new(Exit::Refused, format!("refused by rule {rule}: {why}")).hint(hint))
    };
    match facts.node {
        Ok(_) if may_be_manager(facts.node) && facts.member => {
            return refused(
                "MemberOfEtcd",
                format!("node {name} is a desired manager and in the member list of etcd"),
                "--force does not change that: etcd would lose a member that it counts on. Demote the node first",
            );
        }
        Ok(_) => {}
        Err(malformed) if !force => {
            return refused(
                "Malformed",
                format!("the stored value cannot be read ({malformed}), so its role cannot be checked"),
                "--force deletes it all the same",
            );
        }
        Err(_) if facts.member => {
            return refused(
                "MemberOfEtcd",
                format!("the stored value cannot be read, and etcd has a member named {name}"),
                "mend the value, or remove the member from etcd first",
            );
        }
        Err(_) => {}
    }
    if facts.ready && !force {
        return refused(
            "Ready",
            format!("node {name} is ready: it still runs"),
            "stop it first, or delete it all the same with --force",
        );
    }
    Ok(())
}

/// One transaction: the node goes, and its uid is recorded as removed. It compares what the rules looked at in etcd's
/// keys; the member list is etcd's own and cannot be compared.
fn deletion(store: &Store, name: &Name, stored: &KeyValue, facts: &Facts<'_>, force: bool) -> Deletion {
    let key = store.keys.node(name);
    let mut txn = Txn::new().when_unchanged(&key, stored.mod_revision).delete(&key);
    if !force {
        txn = txn.when_absent(&store.keys.alive(name));
    }
    let uid = facts
        .node
        .ok()
        .and_then(|node| node.metadata.as_ref())
        .map_or("", |metadata| metadata.uid.as_str());
    // A uid that is no element of a key was given by nobody and is on record nowhere.
    let recorded = !uid.is_empty() && !uid.contains('/');
    if recorded {
        let removed = RemovedNode {
            name: name.to_string(),
            removed_at: Some(time::to_proto(Timestamp::now())),
            expires_at: None,
        };
        txn = txn.put(&store.keys.removed(uid), removed.encode_to_vec());
    }
    let state = if facts.ready {
        "ready, so still running"
    } else {
        "down"
    };
    let record = match recorded {
        true => format!("its uid {} is recorded as removed", one_line(uid)),
        false => "it has no readable uid, so none is recorded as removed".to_owned(),
    };
    Deletion {
        statement: format!("node/{name} ({state}) is deleted, and {record}"),
        outcome: "deleted",
        txn: Some(txn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Metadata, NodeSpec};

    fn node(role: Role) -> Node {
        Node {
            metadata: Some(Metadata::default()),
            spec: Some(NodeSpec {
                desired_role: role.into(),
                ..NodeSpec::default()
            }),
            status: None,
        }
    }

    fn rule(node: Result<&Node, &Malformed>, ready: bool, member: bool, force: bool) -> Option<String> {
        let facts = Facts { node, ready, member };
        let name = "n1".parse().unwrap();
        let failure = check(&name, &facts, force).err()?;
        assert_eq!(failure.exit, Exit::Refused);
        let text = failure.to_string();
        let rule = text.strip_prefix("refused by rule ")?.split(':').next()?;
        Some(rule.to_owned())
    }

    #[test]
    fn each_rule_refuses_by_its_name_and_force_lifts_all_but_the_member_list() {
        let (worker, manager, unset) = (node(Role::Worker), node(Role::Manager), node(Role::Unspecified));
        let garbage = Malformed::Name {
            key: "n1".to_owned(),
            name: String::new(),
        };
        for (node, ready, member, plainly, forced) in [
            (Ok(&worker), false, false, None, None),
            (Ok(&worker), true, false, Some("Ready"), None),
            (Ok(&worker), false, true, None, None),
            (Ok(&manager), false, false, None, None),
            (
                Ok(&manager),
                false,
                true,
                Some("MemberOfEtcd"),
                Some("MemberOfEtcd"),
            ),
            (
                Ok(&unset),
                false,
                true,
                Some("MemberOfEtcd"),
                Some("MemberOfEtcd"),
            ),
            (Err(&garbage), false, false, Some("Malformed"), None),
            (Err(&garbage), true, true, Some("Malformed"), Some("MemberOfEtcd")),
        ] {
            let told = rule(node, ready, member, false);
            assert_eq!(told.as_deref(), plainly, "{node:?} {ready} {member}");
            let told = rule(node, ready, member, true);
            assert_eq!(told.as_deref(), forced, "{node:?} {ready} {member} --force");
        }
    }
}
