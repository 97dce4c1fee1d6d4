//! The condition of a node that two agents run as.

use jiff::Timestamp;
use prost::Message as _;
use tonic::Status;
use tracing::{info, warn};

use super::judgement::Facts;
use crate::control::refusal;
use crate::control::write::{Attempts, Decision};
use crate::etcd::Txn;
use crate::proto::Node;
use crate::roles::node_update;
use crate::store::object::Object;
use crate::store::object::node::DUPLICATE_AGENT;
use crate::store::{Name, Store};

/// Reason and message of the condition.
const WHY: (&str, &str) = (
    "SessionsCollide",
    "sessions of this node end one another: several agents run with its certificate, perhaps with copies of one state directory",
);

/// The condition as it must be.
#[derive(Debug)]
pub struct Note {
    node: Name,
    uid: String,
    is_duplicate: bool,
}

impl Note {
    /// Several agents run as this node.
    pub fn duplicate(session: &Facts) -> Self {
        Self {
            node: session.name.clone(),
            uid: session.uid.clone(),
            is_duplicate: true,
        }
    }

    /// One agent does.
    pub fn single(session: &Facts) -> Self {
        Self {
            is_duplicate: false,
            ..Self::duplicate(session)
        }
    }

    /// The node.
    pub fn node(&self) -> &Name {
        &self.node
    }

    /// Writes the condition, unless the node has it so.
    ///
    /// # Errors
    /// etcd refuses it or does not answer. The session goes on, and notes it again.
    pub async fn write(&self, store: &Store) -> Result<(), Status> {
        let mut attempts = Attempts::default();
        loop {
            let decision = self.decide(store).await?;
            if attempts.carry_out(&store.etcd, decision).await?.is_some() {
                return Ok(());
            }
        }
    }

    async fn decide(&self, store: &Store) -> Result<Decision<()>, Status> {
        let key = store.keys.node(&self.node);
        let stored = store.etcd.get(&key).await;
        let (stored, _) = stored.map_err(|error| refusal::unavailable(&error))?;
        let Some(stored) = stored else {
            return Ok(Decision::Nothing(()));
        };
        // A later node of the same name is another one.
        if Node::decode(&*stored.value).is_ok_and(|node| node.uid() != self.uid) {
            return Ok(Decision::Nothing(()));
        }
        let why = self.is_duplicate.then_some(WHY);
        let value = node_update::with_condition(&stored.value, DUPLICATE_AGENT, why, Timestamp::now());
        let Some(value) = value else {
            return Ok(Decision::Nothing(()));
        };
        match self.is_duplicate {
            true => warn!("node {}: {}", self.node, WHY.1),
            false => info!("node {}: one agent is left", self.node),
        }
        let txn = Txn::new()
            .when_unchanged(&key, stored.mod_revision)
            .put(&key, value);
        Ok(Decision::Write(txn, ()))
    }
}
