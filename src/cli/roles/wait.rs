//! Waiting until nodes have an observed role, and until the members of those vote whose agents keep an etcd.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cli::exit::Failure;
use crate::cli::objects::view::View;
use crate::cli::output::{Reader, print};
use crate::cli::wait::until_all;
use crate::etcd::{KeyRange, MemberId};
use crate::proto::join::Progress;
use crate::proto::{Join, Node, Role};
use crate::roles::reason::ROLE_CHANGE_BLOCKED;
use crate::store::object::member::{decode_join, decode_member, is_answered, member_of};
use crate::store::object::{Object, condition, decode, node};
use crate::store::{Name, Store};

/// What becomes of a request when the command that made it stops waiting.
pub const REQUEST_STAYS: &str =
    "the request stays, and is carried out once nothing blocks it and a replica leads";

/// Waits until this node is a worker.
///
/// # Errors
/// 2 if the time is over, 3 if the node is deleted meanwhile, 5 if another role is requested meanwhile.
pub async fn for_worker(store: &Store, name: &Name, limit: Option<Duration>) -> Result<(), Failure> {
    let ranges = ranges(store, std::slice::from_ref(name));
    until_all(store, ranges, limit, REQUEST_STAYS, &[name], |view, name, _| {
        let waits = role_of(view, name, Role::Worker)?;
        if waits.is_none() {
            say_role(name, Role::Worker)?;
        }
        Ok(waits)
    })
    .await
}

/// Waits until all of these nodes are managers, and until the member of each votes whose agent keeps its etcd. Without such an agent, a
/// person lets etcd join, and this does not wait for that.
///
/// # Errors
/// As [`for_worker`].
pub async fn for_managers(store: &Store, names: &[Name], limit: Option<Duration>) -> Result<(), Failure> {
    let names: Vec<&Name> = names.iter().collect();
    let ranges = ranges(store, names.iter().copied());
    let mut managers = BTreeSet::new();
    until_all(store, ranges, limit, REQUEST_STAYS, &names, |view, name, _| {
        let waits = role_of(view, name, Role::Manager)?;
        if waits.is_some() {
            return Ok(waits);
        }
        if managers.insert(name) {
            say_role(name, Role::Manager)?;
        }
        Ok(match vote_of(view, name)? {
            Vote::NotAwaited => None,
            Vote::Given(member) => {
                let _: Reader = print(&format!("node/{name}: member {member} votes\n"))?;
                None
            }
            Vote::Awaited(why) => Some(why),
        })
    })
    .await
}

/// Everything that says how far the roles of these nodes are.
fn ranges<'n>(store: &Store, names: impl IntoIterator<Item = &'n Name>) -> Vec<KeyRange> {
    let keys = &store.keys;
    let of_nodes = names
        .into_iter()
        .flat_map(|name| [keys.node(name), keys.join(name), keys.alive(name)].map(KeyRange::key));
    let others = [KeyRange::key(keys.roles_pause()), keys.members()];
    of_nodes.chain(others).collect()
}

fn say_role(name: &Name, role: Role) -> Result<(), Failure> {
    let word = node::role_word(role.into());
    let _: Reader = print(&format!("node/{name} is a {word}\n"))?;
    Ok(())
}

/// That roles are paused, if they are.
pub fn paused(view: &View) -> Option<&'static str> {
    view.get(&view.keys.roles_pause())?;
    Some("roles are paused (quorate resume roles)")
}

fn stored_node(view: &View, name: &Name) -> Result<Node, Failure> {
    let Some(stored) = view.get(&view.keys.node(name)) else {
        return Err(Failure::not_found(format!("node/{name} was deleted meanwhile")));
    };
    decode(name.as_str(), &stored.value)
        .map_err(|malformed| Failure::failed(format!("node/{name} cannot be read: {malformed}")))
}

/// Why the node does not have this role yet; `None` if it has.
fn role_of(view: &View, name: &Name, role: Role) -> Result<Option<String>, Failure> {
    let node = stored_node(view, name)?;
    let desired = node.spec.unwrap_or_default().desired_role;
    if desired != i32::from(role) {
        let desired = node::role_word(desired);
        return Err(Failure::conflict(format!(
            "node/{name} became a desired {desired} meanwhile, by another request"
        )));
    }
    let status = node.status.unwrap_or_default();
    if status.role == i32::from(role) {
        return Ok(None);
    }
    if let Some(paused) = paused(view) {
        return Ok(Some(format!("node/{name}: {paused}")));
    }
    Ok(Some(
        match condition::find(&status.conditions, ROLE_CHANGE_BLOCKED) {
            Some(blocked) => format!("node/{name}: {}: {}", blocked.reason, blocked.message),
            None => match unreadable_record(view).filter(|_| role == Role::Worker) {
                // Nothing in the node says so: the record concerns all nodes alike.
                Some(key) => format!(
                    "node/{name}: the member record {key} cannot be read, and may be that of the node's member; \
                     docs/troubleshooting.md says in which order to mend that"
                ),
                None => format!("node/{name}: the leader has yet to carry it out"),
            },
        },
    ))
}

/// Whether the member of a manager votes.
enum Vote {
    /// Its agent keeps no etcd, or it has none.
    NotAwaited,
    /// This member does.
    Given(MemberId),
    /// It has yet to, for this reason.
    Awaited(String),
}

fn vote_of(view: &View, name: &Name) -> Result<Vote, Failure> {
    let node = stored_node(view, name)?;
    let status = node.status.clone().unwrap_or_default();
    let has_session = view.get(&view.keys.alive(name)).is_some();
    if !status.keeps_etcd {
        // An agent reports a moment after its session has begun. Until its first report it may keep an etcd.
        let is_unsaid = has_session && status.agent_release.is_none();
        return Ok(match is_unsaid {
            true => Vote::Awaited(format!(
                "node/{name}: its agent has yet to report whether it keeps an etcd, once all its CSI plugins have answered"
            )),
            false => Vote::NotAwaited,
        });
    }
    let join = match view.get(&view.keys.join(name)).map(|kv| decode_join(&kv.value)) {
        Some(Err(malformed)) => {
            let why = format!("node/{name}: its join cannot be read: {malformed}");
            return Ok(Vote::Awaited(why));
        }
        Some(Ok(join)) => join,
        None => Join::default(),
    };
    let is_own = |join: &Join| {
        let request = join.request.as_ref();
        request.is_some_and(|request| request.node_uid == node.uid())
    };
    let lost = condition::find(&status.conditions, node::DATA_LOST);
    // A member without its data is a voter in the list, and gives no vote.
    if lost.is_none()
        && is_own(&join)
        && let Some(member) = voter(view, &join)
    {
        return Ok(Vote::Given(member));
    }
    let why = if let Some(paused) = paused(view) {
        paused.to_owned()
    } else if let Some(lost) = lost {
        let why = &lost.message;
        format!("{}: {why} (quorate replace {name})", lost.r#type)
    } else if !has_session {
        "its agent, which starts its etcd, has no session".to_owned()
    } else if let Some(why) = is_own(&join).then(|| awaited(name, &join)).flatten() {
        return Ok(Vote::Awaited(why));
    } else {
        "its agent has yet to ask that its etcd joins, or the leader to let it".to_owned()
    };
    Ok(Vote::Awaited(format!("node/{name}: {why}")))
}

/// The member to which a join has led, if it votes and stays.
fn voter(view: &View, join: &Join) -> Option<MemberId> {
    let member = member_of(join).filter(|_| join.progress() == Progress::Voter && is_answered(join))?;
    let record = decode_member(&view.get(&view.keys.member(member))?.value).ok()?;
    record.removal.is_none().then_some(member)
}

/// What the join of a node waits for; `None` if the leader has said nothing of its present request.
pub fn awaited(name: &Name, join: &Join) -> Option<String> {
    let why = reasoned(join);
    match join.progress() {
        _ if !is_answered(join) => None,
        Progress::Learner if why.is_empty() => Some(format!(
            "node/{name} is a learner and votes once it has started and caught up"
        )),
        Progress::Learner => Some(format!("node/{name} is a learner: {why}")),
        Progress::Voter | Progress::Unspecified => None,
        _ if why.is_empty() => None,
        Progress::Waiting | Progress::Adding | Progress::Refused | Progress::Removed => {
            Some(format!("node/{name}: {why}"))
        }
    }
}

/// What the leader says of a join; empty if it gives no reason.
pub fn reasoned(join: &Join) -> String {
    match join.reason.as_str() {
        "" => join.message.clone(),
        reason => format!("{reason}: {}", join.message),
    }
}

/// The key of a member record that cannot be read, if there is one.
fn unreadable_record(view: &View) -> Option<String> {
    let mut records = view.below(&view.keys.members());
    let unreadable = records.find(|kv| decode_member(&kv.value).is_err())?;
    Some(String::from_utf8_lossy(&unreadable.key).into_owned())
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::etcd::KeyValue;
    use crate::proto::{Condition, JoinRequest, Member, Metadata, NodeSpec, NodeStatus, Removal};
    use crate::store::Keys;

    fn put(view: &mut View, key: Vec<u8>, value: Vec<u8>) {
        let stored = KeyValue::written_at(key, value, 1);
        view.set(&stored.key, Some(&stored));
    }

    fn view() -> (View, Name) {
        (View::new(Keys::new("/q".parse().unwrap())), "n1".parse().unwrap())
    }

    /// The node n1, a manager.
    fn node(desired: Role, keeps_etcd: bool) -> Node {
        Node {
            metadata: Some(Metadata {
                name: "n1".to_owned(),
                uid: "u1".to_owned(),
                ..Metadata::default()
            }),
            spec: Some(NodeSpec {
                desired_role: desired.into(),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                role: Role::Manager.into(),
                keeps_etcd,
                ..NodeStatus::default()
            }),
        }
    }

    fn join(uid: &str, answers: &str, progress: Progress) -> Join {
        Join {
            request: Some(JoinRequest {
                id: "2".to_owned(),
                node_uid: uid.to_owned(),
                ..JoinRequest::default()
            }),
            answers: answers.to_owned(),
            progress: progress.into(),
            member_id: 0x1f,
            ..Join::default()
        }
    }

    fn member(removal: Option<Removal>) -> Vec<u8> {
        let member = Member {
            node: "n1".to_owned(),
            node_uid: "u1".to_owned(),
            removal,
            ..Member::default()
        };
        member.encode_to_vec()
    }

    #[test]
    fn a_vote_counts_by_the_join_of_this_very_node_and_the_record_of_a_member_that_stays() {
        let (mut view, name) = view();
        let keys = view.keys.clone();
        let set = |view: &mut View, uid: &str, answers: &str, progress, removal| {
            put(
                view,
                keys.join(&name),
                join(uid, answers, progress).encode_to_vec(),
            );
            put(view, keys.member(MemberId(0x1f)), member(removal));
        };
        let votes = |view: &View| matches!(vote_of(view, &name), Ok(Vote::Given(MemberId(0x1f))));
        put(
            &mut view,
            keys.node(&name),
            node(Role::Manager, true).encode_to_vec(),
        );
        assert!(!votes(&view), "it has asked for nothing");
        set(&mut view, "u1", "2", Progress::Voter, None);
        assert!(votes(&view));
        for (uid, answers, progress, removal) in [
            // Of an earlier node of this name, of an earlier request, a learner, one that leaves.
            ("u0", "2", Progress::Voter, None),
            ("u1", "1", Progress::Voter, None),
            ("u1", "2", Progress::Learner, None),
            ("u1", "2", Progress::Voter, Some(Removal::default())),
        ] {
            set(&mut view, uid, answers, progress, removal);
            assert!(!votes(&view), "{uid} {answers} {progress:?}");
        }
        set(&mut view, "u1", "2", Progress::Voter, None);
        let mut lost = node(Role::Manager, true);
        lost.status.get_or_insert_default().conditions = vec![Condition {
            r#type: node::DATA_LOST.to_owned(),
            ..Condition::default()
        }];
        put(&mut view, keys.node(&name), lost.encode_to_vec());
        assert!(!votes(&view), "its data is lost");
        put(
            &mut view,
            keys.node(&name),
            node(Role::Manager, true).encode_to_vec(),
        );
        assert!(votes(&view));
        // Its record is gone, and the join says still what it said.
        view.set(&keys.member(MemberId(0x1f)), None);
        assert!(!votes(&view));
        put(
            &mut view,
            keys.node(&name),
            node(Role::Manager, false).encode_to_vec(),
        );
        assert!(
            matches!(vote_of(&view, &name), Ok(Vote::NotAwaited)),
            "without such an agent, a person lets it join"
        );
    }

    #[test]
    fn an_agent_that_has_reported_nothing_yet_may_keep_an_etcd() {
        let (mut view, name) = view();
        let keys = view.keys.clone();
        let mut stored = node(Role::Manager, false);
        put(&mut view, keys.node(&name), stored.encode_to_vec());
        let waits = |view: &View| matches!(vote_of(view, &name), Ok(Vote::Awaited(_)));
        assert!(!waits(&view), "it has no agent");
        put(&mut view, keys.alive(&name), Vec::new());
        assert!(waits(&view));
        let release = crate::release::Release::new(1, 3, 0);
        stored.status.get_or_insert_default().agent_release = Some(release.to_proto());
        put(&mut view, keys.node(&name), stored.encode_to_vec());
        assert!(!waits(&view), "it has said that it keeps none");
    }

    #[test]
    fn what_a_vote_waits_for_is_said_from_the_pause_to_the_learner() {
        let (mut view, name) = view();
        let keys = view.keys.clone();
        let waits = |view: &View| match vote_of(view, &name) {
            Ok(Vote::Awaited(why)) => why,
            _ => panic!("it does not wait"),
        };
        put(
            &mut view,
            keys.node(&name),
            node(Role::Manager, true).encode_to_vec(),
        );
        assert!(waits(&view).contains("has no session"));
        put(&mut view, keys.alive(&name), Vec::new());
        assert!(waits(&view).contains("has yet to ask"));
        let refused = Join {
            reason: "PeerUrlTaken".to_owned(),
            message: "it is that of n2".to_owned(),
            ..join("u1", "2", Progress::Refused)
        };
        put(&mut view, keys.join(&name), refused.encode_to_vec());
        assert_eq!(waits(&view), "node/n1: PeerUrlTaken: it is that of n2");
        let learner = join("u1", "2", Progress::Learner);
        put(&mut view, keys.join(&name), learner.encode_to_vec());
        assert!(waits(&view).contains("is a learner"));
        let mut lost = node(Role::Manager, true);
        lost.status.get_or_insert_default().conditions = vec![Condition {
            r#type: node::DATA_LOST.to_owned(),
            message: "/var/lib/etcd is empty".to_owned(),
            ..Condition::default()
        }];
        put(&mut view, keys.node(&name), lost.encode_to_vec());
        assert!(waits(&view).contains("/var/lib/etcd is empty (quorate replace n1)"));
        put(&mut view, keys.roles_pause(), Vec::new());
        assert!(waits(&view).contains("quorate resume roles"));
    }

    #[test]
    fn a_demotion_that_an_unreadable_member_record_holds_back_names_its_key() {
        let (mut view, name) = view();
        let node = node(Role::Worker, false);
        let (node_key, record_key) = (view.keys.node(&name), view.keys.member(MemberId(0x1f)));
        put(&mut view, node_key, node.encode_to_vec());
        let waits = |view: &View| role_of(view, &name, Role::Worker).ok().flatten().unwrap();
        assert!(waits(&view).ends_with("the leader has yet to carry it out"));
        put(&mut view, record_key, b"\xff\xff".to_vec());
        let why = waits(&view);
        assert!(
            why.contains("/q/members/000000000000001f cannot be read"),
            "{why}"
        );
    }
}
