//! Writes for callers: read, decide, commit, and decide again if others wrote first.

use tonic::Status;

use super::refusal;
use crate::etcd::{Etcd, Revision, Txn, TxnError};
use crate::retry::Delays;

/// How often a call decides again before it gives up.
const ATTEMPTS: u32 = 10;

/// What follows from what a call has read.
pub enum Decision<T> {
    /// There is nothing to write.
    Nothing(T),
    /// Commit this transaction, which compares what the decision was made from. `T` is the answer once it is committed.
    Write(Txn, T),
}

/// The attempts of one call.
pub struct Attempts {
    left: u32,
    delays: Delays,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            left: ATTEMPTS,
            delays: Delays::etcd(),
        }
    }
}

impl Attempts {
    /// Carries out a decision. `None` if something that it compares has changed, after a delay: read again, and decide again.
    ///
    /// # Errors
    /// The answer to the call, if etcd gives none or others were always first.
    pub async fn carry_out<T>(&mut self, etcd: &Etcd, decision: Decision<T>) -> Result<Option<T>, Status> {
        let (txn, answer) = match decision {
            Decision::Nothing(answer) => return Ok(Some(answer)),
            Decision::Write(txn, answer) => (txn, answer),
        };
        if commit(etcd, txn).await?.is_some() {
            return Ok(Some(answer));
        }
        self.left -= 1;
        if self.left == 0 {
            let why = format!("others changed it {ATTEMPTS} times in a row; try again");
            return Err(Status::unavailable(why));
        }
        self.delays.wait().await;
        Ok(None)
    }
}

/// Commits a transaction once, and returns its revision; `None` if something that it compares has changed.
///
/// # Errors
/// The answer to the call, if etcd refuses it or gives no answer. It may then have been committed: every call can be repeated.
pub async fn commit(etcd: &Etcd, txn: Txn) -> Result<Option<Revision>, Status> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a write for an authenticated caller or a token, which no leadership guards; it compares what it was decided from"
    )]
    match etcd.unfenced(txn).await {
        Ok(committed) => Ok(Some(committed.revision)),
        Err(TxnError::Conflict { .. }) => Ok(None),
        Err(TxnError::Unknown(error) | TxnError::Failed(error)) => Err(refusal::unavailable(&error)),
    }
}
