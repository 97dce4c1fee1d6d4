//! Waiting until nodes are observed in a role.

use std::time::Duration;

use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::view::View;
use crate::cli::output::{Reader, print};
use crate::cli::wait::until_all;
use crate::etcd::KeyRange;
use crate::proto::{Condition, Node, Role};
use crate::roles::reason::ROLE_CHANGE_BLOCKED;
use crate::store::object::{decode, node};
use crate::store::{Name, Store};

/// Waits until all of these nodes are observed in this role.
///
/// # Errors
/// 2 if the time is over, 3 if a node is deleted meanwhile, 5 if somebody asks for another role meanwhile.
pub async fn for_roles(
    store: &Store,
    names: &[Name],
    role: Role,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    let ranges = names.iter().map(|name| KeyRange::key(store.keys.node(name)));
    let word = node::role_word(role.into());
    let hint = "the request stays: it is carried out once nothing holds it up and a replica leads";
    let names: Vec<&Name> = names.iter().collect();
    until_all(store, ranges.collect(), limit, hint, &names, |view, name| {
        let waits = role_of(view, name, role)?;
        if waits.is_none() {
            let _: Reader = print(&format!("node/{name} is a {word}\n"))?;
        }
        Ok(waits)
    })
    .await
}

/// Why the node is not in this role yet; `None` if it is.
fn role_of(view: &View, name: &Name, role: Role) -> Result<Option<String>, Failure> {
    let Some(stored) = view.get(&view.keys.node(name)) else {
        return Err(Failure::new(
            Exit::NotFound,
            format!("node/{name} was deleted meanwhile"),
        ));
    };
    let node: Node = decode(name.as_str(), &stored.value)
        .map_err(|malformed| Failure::failed(format!("node/{name} cannot be read: {malformed}")))?;
    let desired = node.spec.unwrap_or_default().desired_role;
    if desired != i32::from(role) {
        let desired = node::role_word(desired);
        return Err(Failure::new(
            Exit::Conflict,
            format!(
                "another client requested another role meanwhile: the desired role of node/{name} is {desired}"
            ),
        ));
    }
    let status = node.status.unwrap_or_default();
    if status.role == i32::from(role) {
        return Ok(None);
    }
    Ok(Some(match blocked(&status.conditions) {
        Some(why) => format!("node/{name}: {why}"),
        None => format!("node/{name}: the leader has yet to carry it out"),
    }))
}

/// Why the leader does not carry out what the node's desired role asks for.
fn blocked(conditions: &[Condition]) -> Option<String> {
    let blocked = conditions
        .iter()
        .find(|condition| condition.r#type == ROLE_CHANGE_BLOCKED)?;
    Some(format!("{}: {}", blocked.reason, blocked.message))
}
