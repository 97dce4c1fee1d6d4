//! A change of a node's desired role, as `promote` and `demote` ask for it.

use super::facts::{self, Facts};
use super::refused;
use crate::cli::confirm::{self, ATTEMPTS};
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::stored::Versioned;
use crate::etcd::Txn;
use crate::proto::{Node, Role};
use crate::retry::Delays;
use crate::roles::membership::NodeRoles;
use crate::store::object::Object;
use crate::store::{Name, Store};

/// Reads the node that a request is about.
///
/// # Errors
/// 3 if it is not there, 4 if it cannot be read.
pub async fn read_node(store: &Store, name: &Name) -> Result<Versioned<Node>, Failure> {
    Versioned::read(store, name.as_str(), store.keys.node(name)).await
}

impl Versioned<Node> {
    /// What the checks know of it.
    pub fn roles(&self) -> NodeRoles {
        facts::roles_of(&self.object, self.revision)
    }

    /// Its uid.
    pub fn uid(&self) -> &str {
        let metadata = self.object.metadata.as_ref();
        metadata.map_or("", |metadata| metadata.uid.as_str())
    }

    /// The transaction that gives it this desired role.
    fn with_desired(&self, role: Role) -> Txn {
        let mut node = self.object.clone();
        node.spec.get_or_insert_default().desired_role = role.into();
        node.next_generation();
        self.put(&node)
    }
}

/// Whether the node had the desired role already, or has it from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was written.
    Already,
    /// The request is written.
    Requested,
}

/// Asks for a promotion.
///
/// # Errors
/// 3, 4 or 5.
pub async fn promote(store: &Store, name: &Name) -> Result<Outcome, Failure> {
    let mut delays = Delays::etcd();
    for _ in 0..ATTEMPTS {
        let found = read_node(store, name).await?;
        if found.roles().desired == Role::Manager {
            return Ok(Outcome::Already);
        }
        let txn = found.with_desired(Role::Manager);
        if confirm::commit(&store.etcd, txn, "requested").await? {
            return Ok(Outcome::Requested);
        }
        delays.wait().await;
    }
    Err(confirm::overtaken())
}

/// A demotion that is allowed, and what it means.
pub struct Demotion {
    /// What will happen to what.
    pub statement: String,
    txn: Option<Txn>,
}

impl Demotion {
    /// Whether there is anything to ask for.
    pub fn is_change(&self) -> bool {
        self.txn.is_some()
    }
}

/// Checks a demotion. A node that is a desired worker already is not checked: nothing is asked for.
///
/// # Errors
/// 3 if there is no such node, 4 by the rule that refuses it.
pub async fn plan_demotion(store: &Store, name: &Name) -> Result<Demotion, Failure> {
    let found = read_node(store, name).await?;
    let roles = found.roles();
    if roles.desired == Role::Worker {
        return Ok(Demotion {
            statement: format!("node/{name} is a desired worker already"),
            txn: None,
        });
    }
    let facts = Facts::with_health(store).await?;
    facts
        .managers
        .check_demotion(name.as_str(), roles.observed)
        .map_err(|refusal| refused(&refusal))?;
    let txn = found.with_desired(Role::Worker);
    let members: Vec<String> = facts
        .members_of(name)
        .iter()
        .map(|member| member.id.to_string())
        .collect();
    let statement = match &members[..] {
        [] => format!("node/{name} stays a worker: its promotion is withdrawn"),
        members => {
            let voters = facts.list.voters().count();
            let left = facts
                .list
                .voters()
                .filter(|voter| !members.contains(&voter.id.to_string()));
            format!(
                "node/{name} becomes a worker: its member {} is removed from etcd for good, which then has {} instead of \
                 {voters} voters; the data directory of that member is of no further use",
                members.join(", "),
                left.count(),
            )
        }
    };
    Ok(Demotion {
        statement,
        txn: Some(facts.compare(txn, store, name)),
    })
}

/// Asks for the demotion that was agreed on. What changed since is looked at again: if it would still mean the same, it
/// is asked for.
///
/// # Errors
/// 3, 4 or 5.
pub async fn demote(store: &Store, name: &Name, agreed: Demotion) -> Result<Outcome, Failure> {
    let Demotion { statement, mut txn } = agreed;
    let mut delays = Delays::etcd();
    for _ in 0..ATTEMPTS {
        let Some(decided) = txn else {
            return Ok(Outcome::Already);
        };
        if confirm::commit(&store.etcd, decided, "requested").await? {
            return Ok(Outcome::Requested);
        }
        let next = plan_demotion(store, name).await?;
        if next.txn.is_some() && next.statement != statement {
            return Err(Failure::new(
                Exit::Conflict,
                format!("something changed meanwhile; now: {}", next.statement),
            ));
        }
        txn = next.txn;
        delays.wait().await;
    }
    Err(confirm::overtaken())
}
