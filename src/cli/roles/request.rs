//! Changes of a node's desired role, as `promote` and `demote` request them.

use super::refused;
use crate::cli::commit::{self, Decision, Proposal};
use crate::cli::exit::Failure;
use crate::cli::objects::stored::Versioned;
use crate::etcd::{MemberId, Txn};
use crate::proto::{Node, Role};
use crate::roles::facts::Facts;
use crate::roles::owner::NodeRoles;
use crate::store::object::Object;
use crate::store::{Name, Store};

/// What has happened if a request is committed.
const REQUESTED: &str = "requested";

/// Reads the node that a request is about.
///
/// # Errors
/// 3 if it does not exist, 4 if it cannot be read.
pub async fn read_node(store: &Store, name: &Name) -> Result<Versioned<Node>, Failure> {
    Versioned::read(store, name.as_str(), store.keys.node(name)).await
}

impl Versioned<Node> {
    /// The roles of the node, for the checks.
    pub fn roles(&self) -> NodeRoles {
        NodeRoles::of(&self.object, self.revision)
    }

    /// The transaction that gives it this desired role.
    fn with_desired(&self, role: Role) -> Txn {
        let mut node = self.object.clone();
        node.spec.get_or_insert_default().desired_role = role.into();
        node.next_generation();
        self.put(&node)
    }
}

/// Requests a promotion, and returns in words what was done.
///
/// # Errors
/// 3, 4 or 5.
pub async fn promote(store: &Store, name: &Name) -> Result<String, Failure> {
    commit::settle(store, REQUESTED, async || {
        let found = read_node(store, name).await?;
        let done = format!("node/{name} is a desired manager");
        Ok(match found.roles().desired {
            Role::Manager => Decision::Nothing(format!("{done} already")),
            _ => Decision::Write(found.with_desired(Role::Manager), done),
        })
    })
    .await
}

/// A demotion that is allowed.
pub type Demotion = Proposal<String>;

/// Checks a demotion. The demotion of a desired worker is not checked, because nothing is requested then.
///
/// # Errors
/// 3 if the node does not exist, 4 by the rule that refuses the demotion.
pub async fn plan_demotion(store: &Store, name: &Name) -> Result<Demotion, Failure> {
    let found = read_node(store, name).await?;
    let roles = found.roles();
    if roles.desired == Role::Worker {
        let already = format!("node/{name} is a desired worker already");
        return Ok(Demotion {
            statement: already.clone(),
            outcome: already,
            txn: None,
        });
    }
    let facts = Facts::with_health(store).await?;
    facts
        .membership
        .check_demotion(name.as_str(), found.object.uid(), roles.observed)
        .map_err(|refusal| refused(&refusal))?;
    let txn = found.with_desired(Role::Worker);
    Ok(Demotion {
        statement: statement(&facts, name, found.object.uid()),
        outcome: format!("node/{name} is a desired worker"),
        txn: Some(facts.compare(txn, store, name)),
    })
}

fn statement(facts: &Facts, name: &Name, uid: &str) -> String {
    let members = facts.membership.members_of_node(name.as_str(), uid);
    let members: Vec<MemberId> = members.map(|member| member.id).collect();
    if members.is_empty() {
        return format!("node/{name} stays a worker: its promotion is withdrawn");
    }
    let before = facts.membership.voters().count();
    let left = facts.membership.voters();
    let left = left.filter(|voter| !members.contains(&voter.id)).count();
    let ids: Vec<String> = members.iter().map(ToString::to_string).collect();
    format!(
        "node/{name} becomes a worker: its member {} is removed from etcd for good, which then {}; the data directory of \
         that member is of no further use",
        ids.join(", "),
        tolerance(before, left),
    )
}

/// What etcd has with `left` voters instead of `before`, and how many of them it can lose.
fn tolerance(before: usize, left: usize) -> String {
    let losses = |voters: usize| match voters.saturating_sub(1) / 2 {
        0 => "no loss".to_owned(),
        1 => "1 loss".to_owned(),
        many => format!("{many} losses"),
    };
    match (losses(before), losses(left)) {
        _ if before == left && before == 1 => "keeps its voter".to_owned(),
        _ if before == left => format!("keeps its {before} voters"),
        (then, now) if then == now => {
            format!("has {left} instead of {before} voters, and tolerates {now} as before")
        }
        (then, now) => {
            format!("has {left} instead of {before} voters, and tolerates {now} instead of {then}")
        }
    }
}

/// Requests the demotion that was agreed to. If something has changed since, the demotion is checked again, and requested
/// if it still means the same. Returns in words what was done.
///
/// # Errors
/// 3, 4 or 5.
pub async fn demote(store: &Store, name: &Name, agreed: Demotion) -> Result<String, Failure> {
    let statement = agreed.statement.clone();
    let again = async || plan_demotion(store, name).await?.still_means(&statement);
    commit::settle_from(store, REQUESTED, agreed.into(), again).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demotion_says_how_many_losses_etcd_tolerates_then() {
        for (before, left, said) in [
            (
                3,
                2,
                "has 2 instead of 3 voters, and tolerates no loss instead of 1 loss",
            ),
            (4, 3, "has 3 instead of 4 voters, and tolerates 1 loss as before"),
            (
                5,
                4,
                "has 4 instead of 5 voters, and tolerates 1 loss instead of 2 losses",
            ),
            (2, 1, "has 1 instead of 2 voters, and tolerates no loss as before"),
            (3, 3, "keeps its 3 voters"),
        ] {
            assert_eq!(tolerance(before, left), said);
        }
    }
}
