//! Writes of commands: read, decide, commit, and decide again if others wrote first.

use super::exit::Failure;
use crate::etcd::{Class, Etcd, Revision, Txn, TxnError};
use crate::retry::Delays;
use crate::store::Store;

/// How often a command decides again before it gives up.
const ATTEMPTS: u32 = 10;

/// What follows from what a command read.
pub enum Decision<T> {
    /// There is nothing to write.
    Nothing(T),
    /// Commit this transaction, which compares what the decision was made from. `T` holds once it is committed.
    Write(Txn, T),
}

/// A change that a person may be asked about before it is made.
#[derive(Clone, Debug)]
pub struct Proposal<T> {
    /// What happens to which object: `node/n1 is deleted: …`.
    pub statement: String,
    /// What has happened once the transaction is committed.
    pub outcome: T,
    /// Compares what was read, and makes the change; `None` if there is nothing to change.
    pub txn: Option<Txn>,
}

impl<T> From<Proposal<T>> for Decision<T> {
    fn from(proposal: Proposal<T>) -> Self {
        match proposal.txn {
            Some(txn) => Self::Write(txn, proposal.outcome),
            None => Self::Nothing(proposal.outcome),
        }
    }
}

impl<T> Proposal<T> {
    /// The decision where this still means what a person agreed to.
    ///
    /// # Errors
    /// 5 if it does not.
    pub fn still_means(self, agreed: &str) -> Result<Decision<T>, Failure> {
        match self.txn.is_some() && self.statement != agreed {
            true => Err(Failure::conflict(format!(
                "something changed meanwhile; now: {}",
                self.statement
            ))),
            false => Ok(self.into()),
        }
    }
}

/// Commits what `decide` returns, and calls it again as long as others change what it read.
///
/// # Errors
/// A failure of `decide`; 1 if etcd refuses the transaction or does not answer (`done` is what may then have happened);
/// 5 after 10 conflicts in a row.
pub async fn settle<T>(
    store: &Store,
    done: &str,
    mut decide: impl AsyncFnMut() -> Result<Decision<T>, Failure>,
) -> Result<T, Failure> {
    let first = decide().await?;
    settle_from(store, done, first, decide).await
}

/// [`settle`] for a command that has made its first decision already, to ask for confirmation for example.
///
/// # Errors
/// As [`settle`].
pub async fn settle_from<T>(
    store: &Store,
    done: &str,
    first: Decision<T>,
    mut again: impl AsyncFnMut() -> Result<Decision<T>, Failure>,
) -> Result<T, Failure> {
    let mut delays = Delays::etcd();
    let mut decision = first;
    for _ in 0..ATTEMPTS {
        let (txn, outcome) = match decision {
            Decision::Nothing(outcome) => return Ok(outcome),
            Decision::Write(txn, outcome) => (txn, outcome),
        };
        if commit(&store.etcd, txn, done).await?.is_some() {
            return Ok(outcome);
        }
        delays.wait().await;
        decision = again().await?;
    }
    Err(Failure::conflict(format!(
        "others changed it {ATTEMPTS} times in a row; try again"
    )))
}

/// Commits a transaction once, and returns its revision; `None` if something that it compares has changed, so that nothing was
/// written.
///
/// # Errors
/// 1 if etcd refuses it or does not answer; `done` is what may then have happened.
pub async fn commit(etcd: &Etcd, txn: Txn, done: &str) -> Result<Option<Revision>, Failure> {
    #[expect(
        clippy::disallowed_methods,
        reason = "an operator's write, which no leadership guards; it compares what it was decided from"
    )]
    let outcome = etcd.unfenced(txn).await;
    match outcome {
        Ok(committed) => Ok(Some(committed.revision)),
        Err(TxnError::Conflict { .. }) => Ok(None),
        Err(TxnError::Failed(error)) => {
            let failure = Failure::failed(&error);
            Err(match error.class {
                Class::TooLarge => failure.hint(
                    "etcd takes requests of up to 1.5 MiB, unless its --max-request-bytes says another limit",
                ),
                _ => failure,
            })
        }
        Err(TxnError::Unknown(error)) => {
            let failure = Failure::failed(format!("it may or may not be {done} yet, look again: {error}"));
            Err(match error.is_out_of_space() {
                true => failure.hint(
                    "make space (compact, defragment, or a higher --quota-backend-bytes), then etcdctl alarm disarm",
                ),
                false => failure,
            })
        }
    }
}
