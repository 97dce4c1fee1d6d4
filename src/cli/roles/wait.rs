//! Waiting until the leader has carried a request out, telling what holds it up.

use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::view::{LiveView, View};
use crate::cli::output::{Reader, one_line, print};
use crate::etcd::KeyRange;
use crate::proto::{Condition, Node, Role};
use crate::roles::reason::ROLE_CHANGE_BLOCKED;
use crate::store::object::{decode, node};
use crate::store::{Name, Store};

/// Between two lines about what holds it up.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What a look showed.
pub enum Look<T> {
    /// It is done.
    Done(T),
    /// It is not, for these reasons.
    Waits(Vec<String>),
}

/// Looks at these ranges, and at who leads, whenever they change, until it is done.
///
/// # Errors
/// What a look ended with; 2 if the time is over, `hint` says what becomes of the request then.
pub async fn until<T>(
    store: &Store,
    mut ranges: Vec<KeyRange>,
    limit: Option<Duration>,
    hint: &str,
    mut look: impl FnMut(&View) -> Result<Look<T>, Failure>,
) -> Result<T, Failure> {
    ranges.push(store.keys.candidates());
    let mut live = LiveView::new(&store.etcd, store.keys.clone(), ranges);
    let mut seen: Vec<String> = Vec::new();
    let followed = async {
        live.changes().await;
        let mut tick = tokio::time::interval(TELL_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // The first comes at once: what is over in an instant needs no words.
        tick.tick().await;
        let mut told: Vec<String> = Vec::new();
        loop {
            match look(&live.view)? {
                Look::Done(done) => return Ok(done),
                Look::Waits(lines) => {
                    seen = lines;
                    if live.view.below(&store.keys.candidates()).next().is_none() {
                        seen.push("no replica of Quorate leads, so nobody carries it out".to_owned());
                    }
                }
            }
            tokio::select! {
                _ = live.changes() => {}
                _ = tick.tick() => {
                    for line in seen.iter().filter(|line| !told.contains(line)) {
                        eprintln!("waiting: {}", one_line(line));
                    }
                    told.clone_from(&seen);
                }
            }
        }
    };
    // A wait outlives members: the endpoints follow the member list meanwhile, until this future is dropped.
    let endpoints = store.etcd.follow_endpoints(CancellationToken::new());
    let limit_over = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        done = followed => return done,
        () = limit_over => {}
        () = endpoints => {}
    }
    let what = match seen.is_empty() {
        true => "nothing was heard of it".to_owned(),
        false => seen.join("\n  "),
    };
    let limit = limit.unwrap_or_default();
    Err(Failure::new(Exit::TimedOut, format!("not done after {limit:?}\n  {what}")).hint(hint))
}

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
    let mut left: Vec<&Name> = names.iter().collect();
    until(store, ranges.collect(), limit, hint, |view| {
        let mut waits = Vec::new();
        let mut still = Vec::new();
        for name in std::mem::take(&mut left) {
            match role_of(view, name, role)? {
                None => _ = print(&format!("node/{name} is a {word}\n"))? == Reader::Gone,
                Some(why) => {
                    still.push(name);
                    waits.push(why);
                }
            }
        }
        left = still;
        Ok(match waits.is_empty() {
            true => Look::Done(()),
            false => Look::Waits(waits),
        })
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
            format!("somebody else asked for another role meanwhile: node/{name} is to be a {desired}"),
        ));
    }
    let status = node.status.unwrap_or_default();
    if status.role == i32::from(role) {
        return Ok(None);
    }
    Ok(Some(match blocked(&status.conditions) {
        Some(why) => format!("node/{name}: {why}"),
        None => format!("node/{name}: the leader has not got to it yet"),
    }))
}

/// Why the leader does not carry out what the node's desired role asks for.
fn blocked(conditions: &[Condition]) -> Option<String> {
    let blocked = conditions
        .iter()
        .find(|condition| condition.r#type == ROLE_CHANGE_BLOCKED)?;
    Some(format!("{}: {}", blocked.reason, blocked.message))
}
