//! Deleting nodes.

use futures::FutureExt;

use super::leftovers::{Leftovers, is_key_part};
use super::published::Reads;
use super::{Blockers, Deletable, Deletion, Ending, Request};
use crate::cli::exit::Failure;
use crate::cli::objects::view::View;
use crate::cli::output::one_line;
use crate::cli::roles::refused;
use crate::etcd::{KeyValue, MemberId, Revision, Txn};
use crate::proto::{Member, Node, NodeSpec, Role};
use crate::roles::facts::Facts;
use crate::roles::membership::Membership;
use crate::roles::reason::EVICTION_BLOCKED;
use crate::store::keys::Joiner;
use crate::store::object::{Malformed, Object, decode, node};
use crate::store::{Id, Name, Store};

/// Deletes a node. The leader then removes its member from etcd, and the member's record.
pub static NODE: Deletable = Deletable {
    plan: |request| plan(request).boxed(),
    plan_absent: Some(|store, id, force, reads| plan_absent(store, &id.name, force, reads).boxed()),
    ending: Some(Ending {
        created: |view, _, id| record(view, id).map(|(_, _, kv)| kv.create_revision),
        blockers: Blockers::Objects(blockers),
        outcome: "has no member any more",
    }),
};

async fn plan(request: Request<'_>) -> Result<Deletion, Failure> {
    let (store, name) = (request.store, &request.id.name);
    let node = request.object::<Node>();
    let alive = Alive::read(store, name, node.as_ref().ok().map(Object::uid)).await?;
    // A member list that cannot be read does not prove that the node is not in it.
    let facts = Facts::without_health(store).await?;
    let state = State {
        node: node.as_ref(),
        alive,
    };
    check(name, &state, &facts.membership, request.force)?;
    let left = Leftovers::read(store, name, &facts.membership, request.reads).await?;
    deletion(&request, &state, &facts, &left).await
}

/// What `/alive/<name>` says.
#[derive(Clone, Copy)]
struct Alive {
    ready: bool,
    /// When the key was last written.
    revision: Revision,
}

impl Alive {
    /// Reads it for the node of this uid. Any session makes a node ready whose uid is not known.
    async fn read(store: &Store, name: &Name, uid: Option<&str>) -> Result<Self, Failure> {
        let (alive, _) = store.etcd.get(&store.keys.alive(name)).await?;
        let makes_ready = |alive: &KeyValue| uid.is_none_or(|uid| node::makes_ready(&alive.value, uid));
        Ok(Self {
            ready: alive.as_ref().is_some_and(makes_ready),
            revision: alive.map_or(Revision::ABSENT, |alive| alive.mod_revision),
        })
    }

    /// Requires that it says the same.
    fn compare(self, txn: Txn, store: &Store, name: &Name) -> Txn {
        txn.when_unchanged(&store.keys.alive(name), self.revision)
    }
}

/// Records the removal of a node whose key is gone. Without that, the leader neither removes its member nor unpublishes its
/// volumes (INV-12), and the record of its certificate stays. `None` if nothing is left of it.
async fn plan_absent(
    store: &Store,
    name: &Name,
    force: bool,
    reads: Reads<'_>,
) -> Result<Option<Deletion>, Failure> {
    let alive = Alive::read(store, name, None).await?;
    let facts = Facts::without_health(store).await?;
    let leftovers = Leftovers::read(store, name, &facts.membership, reads).await?;
    let left = leftovers.left().await?;
    if left.uids.is_empty() {
        return Ok(None);
    }
    // What its desired role was is not known any more.
    let gone = Node {
        spec: Some(NodeSpec {
            desired_role: Role::Worker.into(),
            ..NodeSpec::default()
        }),
        ..Node::default()
    };
    let state = State {
        node: Ok(&gone),
        alive,
    };
    check(name, &state, &facts.membership, force)?;
    let token = store.keys.join_token(&Joiner::Node(name.clone()));
    let mut txn = Txn::new().when_absent(&store.keys.node(name)).delete(&token);
    txn = facts.compare(txn, store, name);
    if !force {
        txn = alive.compare(txn, store, name);
    }
    for uid in &left.uids {
        txn = leftovers.remove(txn, uid).await?;
    }
    let mut done = Vec::new();
    done.extend(left.is_unrecorded.then_some("it is recorded as removed"));
    done.extend(
        left.has_certificate
            .then_some("the record of its certificate is deleted"),
    );
    done.extend(left.has_volumes.then_some("its volumes are unpublished from it"));
    Ok(Some(Deletion {
        statement: format!(
            "the key of node/{name} is gone: {}{}",
            done.join("; "),
            evicted(leftovers.members().map(|member| member.id))
        ),
        outcome: match left.is_unrecorded {
            true => "recorded as removed",
            false => "left the record of its certificate, which is deleted",
        },
        txn: Some(txn),
    }))
}

fn evicted(members: impl Iterator<Item = MemberId>) -> String {
    members
        .map(|member| format!("; its member {member} is removed from etcd for good"))
        .collect()
}

/// The record of the member that the deleted node had.
fn record<'v>(view: &'v View, id: &Id) -> Option<(MemberId, Member, &'v KeyValue)> {
    // A node that is created later under the same name has another uid, and its member is another one.
    let later = view.get(&view.keys.node(&id.name));
    let later: Option<Node> = later.and_then(|kv| decode(id.name.as_str(), &kv.value).ok());
    let uid = later.and_then(|node| node.metadata).map(|metadata| metadata.uid);
    view.member_records()
        .find(|(_, record, _)| record.node == id.name.as_str() && Some(&record.node_uid) != uid.as_ref())
}

fn blockers(view: &View, id: &Id) -> Vec<String> {
    let Some((member, record, _)) = record(view, id) else {
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

/// What decides whether a node can be deleted, besides the members.
struct State<'a> {
    node: Result<&'a Node, &'a Malformed>,
    alive: Alive,
}

/// The rules for deleting a node, each with its name.
fn check(name: &Name, state: &State<'_>, membership: &Membership, force: bool) -> Result<(), Failure> {
    if let Err(malformed) = state.node
        && !force
    {
        let why = format!("the stored value cannot be read ({malformed}), so its role cannot be checked");
        return Err(Failure::refused("Malformed", why).hint("--force deletes it all the same"));
    }
    let node = state.node.ok();
    let desired = node.map(|node| node.spec.unwrap_or_default().desired_role());
    membership
        .check_removal(name.as_str(), desired)
        .map_err(|refusal| refused(&refusal))?;
    if state.alive.ready && !force {
        let why = format!("node {name} is ready: it still runs");
        return Err(
            Failure::refused("Ready", why).hint("stop it first, or delete it all the same with --force")
        );
    }
    Ok(())
}

/// Deletes the node and records its uid as removed, in one transaction. It compares the keys that the rules looked at;
/// etcd's own member list cannot be compared.
async fn deletion(
    request: &Request<'_>,
    state: &State<'_>,
    facts: &Facts,
    left: &Leftovers<'_>,
) -> Result<Deletion, Failure> {
    let (store, name) = (request.store, &request.id.name);
    let token = store.keys.join_token(&Joiner::Node(name.clone()));
    let mut txn = request
        .when_unchanged()
        .delete(&request.stored.key)
        .delete(&token);
    txn = facts.compare(txn, store, name);
    if !request.force {
        txn = state.alive.compare(txn, store, name);
    }
    let uid = state.node.map_or("", Object::uid);
    let mut uids = left.uids_of_members();
    uids.extend(is_key_part(uid).then(|| uid.to_owned()));
    for uid in &uids {
        txn = left.remove(txn, uid).await?;
    }
    let readiness = if state.alive.ready {
        "ready, so still running"
    } else {
        "down"
    };
    let record = match is_key_part(uid) {
        true => format!("its uid {} is recorded as removed", one_line(uid)),
        false => "it has no readable uid, so none is recorded as removed".to_owned(),
    };
    Ok(Deletion {
        statement: format!(
            "node/{name} ({readiness}) is deleted, and {record}{}",
            evicted(facts.membership.members_of(name.as_str()).map(|member| member.id))
        ),
        outcome: "deleted",
        txn: Some(txn),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::Exit;
    use crate::proto::Metadata;
    use crate::roles::membership::tests::fixtures::{surveyed, voter};

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

    fn rule(node: Result<&Node, &Malformed>, ready: bool, members: &[u64], force: bool) -> Option<String> {
        let revision = Revision::ABSENT;
        let alive = Alive { ready, revision };
        let state = State { node, alive };
        let name = "n1".parse().unwrap();
        let members = surveyed(members.iter().map(|id| voter(*id)).collect());
        let failure = check(&name, &state, &members, force).err()?;
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
        let (none, other, both): (&[u64], &[u64], &[u64]) = (&[], &[2], &[1, 2]);
        let (member, last) = (Some("MemberOfEtcd"), Some("LastVoter"));
        for (node, ready, members, plainly, forced) in [
            (Ok(&worker), false, none, None, None),
            (Ok(&worker), true, none, Some("Ready"), None),
            (Ok(&worker), false, both, None, None),
            (Ok(&worker), false, &[1], last, last),
            (Ok(&manager), false, other, None, None),
            (Ok(&manager), false, both, member, member),
            (Ok(&unset), false, both, member, member),
            (Err(&garbage), false, none, Some("Malformed"), None),
            (Err(&garbage), true, both, Some("Malformed"), member),
        ] {
            let refused = rule(node, ready, members, false);
            assert_eq!(refused.as_deref(), plainly, "{node:?} {ready} {members:?}");
            let refused = rule(node, ready, members, true);
            assert_eq!(refused.as_deref(), forced, "{node:?} {ready} {members:?} --force");
        }
    }
}
