//! Waiting until nodes have an observed role.

use std::time::Duration;

use crate::cli::exit::Failure;
use crate::cli::objects::view::View;
use crate::cli::output::{Reader, print};
use crate::cli::wait::until_all;
use crate::etcd::KeyRange;
use crate::proto::{Node, Role};
use crate::roles::reason::ROLE_CHANGE_BLOCKED;
use crate::store::object::member::decode_member;
use crate::store::object::{condition, decode, node};
use crate::store::{Name, Store};

/// What becomes of a request when the command that made it stops waiting.
pub const REQUEST_STAYS: &str =
    "the request stays, and is carried out once nothing blocks it and a replica leads";

/// Waits until all of these nodes have this observed role.
///
/// # Errors
/// 2 if the time is over, 3 if a node is deleted meanwhile, 5 if another role is requested meanwhile.
pub async fn for_roles(
    store: &Store,
    names: &[Name],
    role: Role,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    let nodes = names.iter().map(|name| KeyRange::key(store.keys.node(name)));
    let others = [KeyRange::key(store.keys.roles_pause()), store.keys.members()];
    let ranges = nodes.chain(others).collect();
    let word = node::role_word(role.into());
    let names: Vec<&Name> = names.iter().collect();
    until_all(store, ranges, limit, REQUEST_STAYS, &names, |view, name, _| {
        let waits = role_of(view, name, role)?;
        if waits.is_none() {
            let _: Reader = print(&format!("node/{name} is a {word}\n"))?;
        }
        Ok(waits)
    })
    .await
}

/// That roles are paused, if they are.
pub fn paused(view: &View) -> Option<&'static str> {
    view.get(&view.keys.roles_pause())?;
    Some("roles are paused (quorate resume roles)")
}

/// Why the node does not have this role yet; `None` if it has.
fn role_of(view: &View, name: &Name, role: Role) -> Result<Option<String>, Failure> {
    let Some(stored) = view.get(&view.keys.node(name)) else {
        return Err(Failure::not_found(format!("node/{name} was deleted meanwhile")));
    };
    let node: Node = decode(name.as_str(), &stored.value)
        .map_err(|malformed| Failure::failed(format!("node/{name} cannot be read: {malformed}")))?;
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
    use crate::etcd::{KeyValue, MemberId, Revision};
    use crate::proto::{Metadata, NodeSpec, NodeStatus};
    use crate::store::Keys;

    fn put(view: &mut View, key: Vec<u8>, value: Vec<u8>) {
        let stored = KeyValue {
            key: key.clone(),
            value,
            create_revision: Revision(1),
            mod_revision: Revision(1),
            lease: None,
        };
        view.set(&key, Some(&stored));
    }

    #[test]
    fn a_demotion_that_an_unreadable_member_record_holds_back_names_its_key() {
        let mut view = View::new(Keys::new("/q".parse().unwrap()));
        let name: Name = "n1".parse().unwrap();
        let node = Node {
            metadata: Some(Metadata {
                name: "n1".to_owned(),
                ..Metadata::default()
            }),
            spec: Some(NodeSpec {
                desired_role: Role::Worker.into(),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                role: Role::Manager.into(),
                ..NodeStatus::default()
            }),
        };
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
