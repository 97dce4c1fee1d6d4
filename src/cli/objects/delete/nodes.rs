//! Deleting nodes.

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use prost::Message;

use super::{Deletable, Deletion, EndsLater};
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::view::View;
use crate::cli::output::one_line;
use crate::cli::roles::facts::Facts;
use crate::cli::roles::refused;
use crate::etcd::{KeyRange, KeyValue, MemberId, Revision, Txn};
use crate::proto::{Member, Node, RemovedNode};
use crate::roles::checks::Managers;
use crate::roles::reason::EVICTION_BLOCKED;
use crate::store::object::{Malformed, decode, member, time};
use crate::store::{Id, Keys, Name, Store, keys::RoleKey};

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
            let stored = super::read(store, &store.keys.node(name)).await?;
            let alive_key = store.keys.alive(name);
            let (alive, _) = store.etcd.get(&alive_key).await.map_err(Failure::failed)?;
            let node: Result<Node, Malformed> = decode(name.as_str(), &stored.value);
            // A list that cannot be had is no proof that the node is not in it.
            let facts = Facts::without_health(store).await?;
            let state = State {
                node: node.as_ref(),
                ready: alive.is_some(),
            };
            check(name, &state, &facts.managers, force)?;
            Ok(deletion(store, name, &stored, &state, &facts, force))
        }
        .boxed()
    }

    fn ends_later(&self) -> Option<&dyn EndsLater> {
        Some(&Eviction)
    }
}

/// The member of a node that is deleted: the leader removes it from etcd, and then its record goes.
struct Eviction;

impl Eviction {
    fn record<'v>(view: &'v View, id: &Id) -> Option<(MemberId, Member, &'v KeyValue)> {
        // A node that is created anew under the name has another uid, and its member is none of ours.
        let again = view.get(&view.keys.node(&id.name));
        let again: Option<Node> = again.and_then(|kv| decode(id.name.as_str(), &kv.value).ok());
        let uid = again.and_then(|node| node.metadata).map(|metadata| metadata.uid);
        view.below(&view.keys.members()).find_map(|kv| {
            let RoleKey::Member(member) = view.keys.parse_role(&kv.key) else {
                return None;
            };
            let record = member::decode_member(&kv.value).ok()?;
            let own = record.node == id.name.as_str() && Some(&record.node_uid) != uid.as_ref();
            own.then_some((member, record, kv))
        })
    }
}

impl EndsLater for Eviction {
    fn came_to_be(&self, view: &View, id: &Id) -> Option<Revision> {
        Self::record(view, id).map(|(_, _, kv)| kv.create_revision)
    }

    fn ranges(&self, keys: &Keys, id: &Id) -> Vec<KeyRange> {
        vec![keys.members(), KeyRange::key(keys.node(&id.name))]
    }

    fn blockers(&self, view: &View, id: &Id) -> Vec<String> {
        let Some((member, record, _)) = Self::record(view, id) else {
            return Vec::new();
        };
        let blocked = record
            .conditions
            .iter()
            .find(|condition| condition.r#type == EVICTION_BLOCKED);
        vec![match blocked {
            Some(why) => format!("its member {member}: {}: {}", why.reason, why.message),
            None => format!("its member {member}, which the leader removes from etcd"),
        }]
    }

    fn ended(&self) -> &'static str {
        "has no member any more"
    }
}

/// What decides whether a node may go, beside the members.
struct State<'a> {
    node: Result<&'a Node, &'a Malformed>,
    ready: bool,
}

/// The rules for removing a node, each with its name.
fn check(name: &Name, state: &State<'_>, managers: &Managers, force: bool) -> Result<(), Failure> {
    let refuse = |rule: &str, why: String, hint: &str| {
        Err(Failure::new(Exit::Refused, format!("refused by rule {rule}: {why}")).hint(hint))
    };
    let desired = state
        .node
        .ok()
        .map(|node| node.spec.unwrap_or_default().desired_role());
    if let Err(malformed) = state.node
        && !force
    {
        return refuse(
            "Malformed",
            format!("the stored value cannot be read ({malformed}), so its role cannot be checked"),
            "--force deletes it all the same",
        );
    }
    managers
        .check_removal(name.as_str(), desired)
        .map_err(|refusal| refused(&refusal))?;
    if state.ready && !force {
        return refuse(
            "Ready",
            format!("node {name} is ready: it still runs"),
            "stop it first, or delete it all the same with --force",
        );
    }
    Ok(())
}

/// One transaction: the node goes, and its uid is recorded as removed. It compares what the rules looked at in etcd's
/// keys; the member list is etcd's own and cannot be compared.
fn deletion(
    store: &Store,
    name: &Name,
    stored: &KeyValue,
    state: &State<'_>,
    facts: &Facts,
    force: bool,
) -> Deletion {
    let key = store.keys.node(name);
    let mut txn = Txn::new().when_unchanged(&key, stored.mod_revision).delete(&key);
    txn = facts.compare(txn, store, name);
    if !force {
        txn = txn.when_absent(&store.keys.alive(name));
    }
    let uid = state
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
    let readiness = if state.ready {
        "ready, so still running"
    } else {
        "down"
    };
    let members: Vec<String> = facts
        .members_of(name)
        .iter()
        .map(|member| format!("; its member {} is removed from etcd for good", member.id))
        .collect();
    let record = match recorded {
        true => format!("its uid {} is recorded as removed", one_line(uid)),
        false => "it has no readable uid, so none is recorded as removed".to_owned(),
    };
    Deletion {
        statement: format!(
            "node/{name} ({readiness}) is deleted, and {record}{}",
            members.concat()
        ),
        outcome: "deleted",
        txn: Some(txn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Metadata, NodeSpec, Role};
    use crate::roles::checks::Managed;
    use crate::roles::membership::NodeRoles;
    use crate::roles::quorum::Vote;

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

    fn managers(of: &[&str]) -> Managers {
        let managed = of.iter().zip(1..).map(|(node, id)| Managed {
            vote: Vote {
                id: MemberId(id),
                learner: false,
                healthy: true,
            },
            peer_urls: Vec::new(),
            record: Revision(1),
            removal: false,
            node: (*node).to_owned(),
            roles: Some(NodeRoles {
                desired: Role::Manager,
                observed: Role::Manager,
                revision: Revision(1),
            }),
        });
        Managers {
            managed: managed.collect(),
            ..Managers::default()
        }
    }

    fn rule(node: Result<&Node, &Malformed>, ready: bool, members: &[&str], force: bool) -> Option<String> {
        let state = State { node, ready };
        let name = "n1".parse().unwrap();
        let failure = check(&name, &state, &managers(members), force).err()?;
        assert_eq!(failure.exit, Exit::Refused);
        let text = failure.to_string();
        let rule = text.strip_prefix("refused by rule ")?.split(':').next()?;
        Some(rule.to_owned())
    }

    #[test]
    fn each_rule_refuses_by_its_name_and_force_lifts_all_but_those_of_the_member_list() {
        let (worker, manager, unset) = (node(Role::Worker), node(Role::Manager), node(Role::Unspecified));
        let garbage = Malformed::Name {
            key: "n1".to_owned(),
            name: String::new(),
        };
        let (none, other, both): (&[&str], &[&str], &[&str]) = (&[], &["n2"], &["n1", "n2"]);
        let (member, last) = (Some("MemberOfEtcd"), Some("LastVoter"));
        for (node, ready, members, plainly, forced) in [
            (Ok(&worker), false, none, None, None),
            (Ok(&worker), true, none, Some("Ready"), None),
            (Ok(&worker), false, both, None, None),
            (Ok(&worker), false, &["n1"], last, last),
            (Ok(&manager), false, other, None, None),
            (Ok(&manager), false, both, member, member),
            (Ok(&unset), false, both, member, member),
            (Err(&garbage), false, none, Some("Malformed"), None),
            (Err(&garbage), true, both, Some("Malformed"), member),
        ] {
            let told = rule(node, ready, members, false);
            assert_eq!(told.as_deref(), plainly, "{node:?} {ready} {members:?}");
            let told = rule(node, ready, members, true);
            assert_eq!(told.as_deref(), forced, "{node:?} {ready} {members:?} --force");
        }
    }
}
