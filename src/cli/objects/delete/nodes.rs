//! Deleting nodes.

use std::collections::BTreeSet;

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use prost::Message;

use super::{Deletable, Deletion, Ending, Request};
use crate::cli::exit::Failure;
use crate::cli::objects::view::View;
use crate::cli::output::one_line;
use crate::cli::roles::facts::Facts;
use crate::cli::roles::refused;
use crate::etcd::{KeyValue, MemberId, Revision, Txn};
use crate::proto::{Join, Member, Node, NodeCertificate, NodeSpec, Publication, RemovedNode, Role};
use crate::roles::membership::Membership;
use crate::roles::owner::Owner;
use crate::roles::reason::EVICTION_BLOCKED;
use crate::store::keys::Joiner;
use crate::store::object::member::is_ended;
use crate::store::object::publication::node_uid;
use crate::store::object::{Malformed, Object, decode, time};
use crate::store::{Id, Name, Store};

/// Deletes a node. The leader then removes its member from etcd, and the member's record.
pub static NODE: Deletable = Deletable {
    plan: |request| plan(request).boxed(),
    plan_absent: Some(|store, id, force| plan_absent(store, &id.name, force).boxed()),
    ending: Some(Ending {
        created: |view, _, id| record(view, id).map(|(_, _, kv)| kv.create_revision),
        blockers,
        outcome: "has no member any more",
    }),
};

async fn plan(request: Request<'_>) -> Result<Deletion, Failure> {
    let (store, name) = (request.store, &request.id.name);
    let ready = is_ready(store, name).await?;
    let node = request.object::<Node>();
    // A member list that cannot be read does not prove that the node is not in it.
    let facts = Facts::without_health(store).await?;
    let state = State {
        node: node.as_ref(),
        ready,
    };
    check(name, &state, &facts.membership, request.force)?;
    let certificate = match state.node.map_or("", Object::uid) {
        uid if is_key_part(uid) => {
            let mut certificate = Certificate::of(store, uid).await?;
            if has_left(store, &facts.membership, name, uid).await? {
                certificate.needed_until = None;
            }
            Some(certificate)
        }
        _ => None,
    };
    Ok(deletion(&request, &state, &facts, certificate.as_ref()))
}

/// The record of the certificate of a node, which goes with it.
struct Certificate {
    uid: String,
    key: Vec<u8>,
    revision: Revision,
    /// Until when the removal of the node must be on record; for ever, if that is not known, or something waits for it.
    needed_until: Option<Timestamp>,
}

/// How long a removal stays on record after the end of the last certificate of its node, and after the removal.
const KEPT: SignedDuration = SignedDuration::from_hours(7 * 24);

impl Certificate {
    async fn of(store: &Store, uid: &str) -> Result<Self, Failure> {
        let key = store.keys.certificate(uid);
        let (stored, _) = store.etcd.get(&key).await?;
        let record = stored
            .as_ref()
            .and_then(|kv| NodeCertificate::decode(&*kv.value).ok());
        let end = record.and_then(|record| time::from_proto(record.latest_not_after.as_ref()));
        Ok(Self {
            uid: uid.to_owned(),
            key,
            revision: stored.map_or(Revision::ABSENT, |kv| kv.mod_revision),
            // A node that has been dead for long may still have a member to evict and volumes to detach.
            needed_until: end.and_then(|end| end.max(Timestamp::now()).checked_add(KEPT).ok()),
        })
    }

    fn delete(&self, txn: Txn) -> Txn {
        txn.when_unchanged(&self.key, self.revision).delete(&self.key)
    }
}

/// Whether something of the node is left that waits for the record of its removal: a member, an add that may still be made, or
/// volumes. Nothing limits how long that waits (INV-12).
async fn has_left(store: &Store, membership: &Membership, name: &Name, uid: &str) -> Result<bool, Failure> {
    if membership.member_of_node(name.as_str(), uid).is_some() {
        return Ok(true);
    }
    let (join, _) = store.etcd.get(&store.keys.join(name)).await?;
    let has_ended = |kv: &KeyValue| Join::decode(&*kv.value).is_ok_and(|join| is_ended(&join));
    if join.is_some_and(|kv| !has_ended(&kv)) {
        return Ok(true);
    }
    Ok(uids_with_volumes(store, name).await?.iter().any(|of| of == uid))
}

async fn is_ready(store: &Store, name: &Name) -> Result<bool, Failure> {
    let (alive, _) = store.etcd.get(&store.keys.alive(name)).await?;
    Ok(alive.is_some())
}

/// Records the removal of a node whose key is gone. Without that, the leader neither removes its member nor unpublishes its
/// volumes (INV-12). `None` if neither is left.
async fn plan_absent(store: &Store, name: &Name, force: bool) -> Result<Option<Deletion>, Failure> {
    let ready = is_ready(store, name).await?;
    let facts = Facts::without_health(store).await?;
    let members = facts.membership.members_of(name.as_str());
    let members: Vec<_> = members
        .filter(|member| member.owner() == Some(Owner::Missing))
        .collect();
    let records = members.iter().filter_map(|member| member.record.as_ref());
    let published = uids_with_volumes(store, name).await?;
    let uids: BTreeSet<String> = records
        .map(|record| record.uid.clone())
        .chain(published)
        .collect();
    if uids.is_empty() {
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
        ready,
    };
    check(name, &state, &facts.membership, force)?;
    let mut txn = Txn::new().when_absent(&store.keys.node(name));
    txn = facts.compare(txn, store, name);
    if !force {
        txn = txn.when_absent(&store.keys.alive(name));
    }
    for uid in &uids {
        txn = record_removal(txn, store, name, uid, None);
    }
    Ok(Some(Deletion {
        statement: format!(
            "node/{name}, whose key is gone, is recorded as removed; its volumes are unpublished from it{}",
            evicted(members.iter().map(|member| member.id))
        ),
        outcome: "recorded as removed",
        txn: Some(txn),
    }))
}

/// The uids of the nodes of this name that publications were made for, and that are not recorded as removed.
async fn uids_with_volumes(store: &Store, name: &Name) -> Result<Vec<String>, Failure> {
    let (publications, _) = store.etcd.list(&store.keys.publications()).await?;
    let of_node = publications.iter().filter_map(|kv| {
        let id = store.keys.parse_publication(&kv.key)?;
        let (_, node) = id.split_once('/')?;
        let publication = (node == name.as_str()).then(|| decode::<Publication>(id, &kv.value).ok())??;
        Some(node_uid(&publication).to_owned())
    });
    let known: BTreeSet<String> = of_node.filter(|uid| is_key_part(uid)).collect();
    let mut left = Vec::new();
    for uid in known {
        let (removed, _) = store.etcd.get(&store.keys.removed(&uid)).await?;
        if removed.is_none() {
            left.push(uid);
        }
    }
    Ok(left)
}

/// No node was created with another uid.
fn is_key_part(uid: &str) -> bool {
    !uid.is_empty() && !uid.contains('/')
}

fn record_removal(txn: Txn, store: &Store, name: &Name, uid: &str, expiry: Option<Timestamp>) -> Txn {
    let removed = RemovedNode {
        name: name.to_string(),
        removed_at: Some(time::to_proto(Timestamp::now())),
        expires_at: expiry.map(time::to_proto),
    };
    txn.put(&store.keys.removed(uid), removed.encode_to_vec())
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
    ready: bool,
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
    if state.ready && !force {
        let why = format!("node {name} is ready: it still runs");
        return Err(
            Failure::refused("Ready", why).hint("stop it first, or delete it all the same with --force")
        );
    }
    Ok(())
}

/// Deletes the node and records its uid as removed, in one transaction. It compares the keys that the rules looked at;
/// etcd's own member list cannot be compared.
fn deletion(
    request: &Request<'_>,
    state: &State<'_>,
    facts: &Facts,
    certificate: Option<&Certificate>,
) -> Deletion {
    let (store, name) = (request.store, &request.id.name);
    let token = store.keys.join_token(&Joiner::Node(name.clone()));
    let mut txn = request
        .when_unchanged()
        .delete(&request.stored.key)
        .delete(&token);
    txn = facts.compare(txn, store, name);
    if !request.force {
        txn = txn.when_absent(&store.keys.alive(name));
    }
    let uid = state.node.map_or("", Object::uid);
    if let Some(certificate) = certificate {
        let until = certificate.needed_until;
        txn = record_removal(certificate.delete(txn), store, name, &certificate.uid, until);
    }
    // Members of earlier nodes of the name, whose keys are gone without a record.
    let members = facts.membership.members_of(name.as_str());
    let earlier = members.filter(|member| member.owner() == Some(Owner::Missing));
    for record in earlier.filter_map(|member| member.record.as_ref()) {
        txn = record_removal(txn, store, name, &record.uid, None);
    }
    let readiness = if state.ready {
        "ready, so still running"
    } else {
        "down"
    };
    let record = match certificate.is_some() {
        true => format!("its uid {} is recorded as removed", one_line(uid)),
        false => "it has no readable uid, so none is recorded as removed".to_owned(),
    };
    Deletion {
        statement: format!(
            "node/{name} ({readiness}) is deleted, and {record}{}",
            evicted(facts.membership.members_of(name.as_str()).map(|member| member.id))
        ),
        outcome: "deleted",
        txn: Some(txn),
    }
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
        let state = State { node, ready };
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
