//! The proof of leadership that every write of the leader carries (INV-1).

use super::connect::Etcd;
use super::error::{Class, Error};
use super::kv::Revision;
use super::session::Window;
use super::txn::{Committed, Txn, TxnError};
use crate::mutation::{self, Guard};
use crate::retry::Policy;

/// Leadership of one term. Only the election makes one. Its holder may write as the leader while the election key exists
/// with the create revision with which the term was won.
#[derive(Clone, Debug)]
pub struct Fence {
    pub(super) key: Vec<u8>,
    pub(super) term: Revision,
    window: Window,
}

impl Fence {
    pub(super) fn new(key: Vec<u8>, term: Revision, window: Window) -> Self {
        Self { key, term, window }
    }

    /// The create revision of the election key: grows with every term.
    pub fn term(&self) -> Revision {
        self.term
    }

    /// When calls that etcd cannot fence may start, and must end (INV-2, INV-3).
    pub fn window(&self) -> &Window {
        &self.window
    }
}

/// Why a fenced transaction did not commit. A different reaction follows from each variant.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FencedError {
    /// The term is over. Nothing was written, and nothing ever will be under this fence.
    #[error("leadership is lost (term {0})")]
    LostLeadership(Revision),
    /// A compare other than the fence did not hold. Nothing was written. Read again, then decide.
    #[error("something changed since it was read")]
    Conflict,
    /// etcd gave no answer, or ran out of space: the writes may have been made. Never repeat them blindly: read again, then decide.
    #[error("the outcome is unknown")]
    Unknown(#[source] Error),
    /// etcd refused it; nothing was written.
    #[error(transparent)]
    Failed(Error),
}

/// What ends a controller's pass over etcd: every failed read or fenced write is one of three, and `?` sorts it.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// The term is over: the controller ends.
    #[error("leadership is lost")]
    LostLeadership,
    /// Something changed since it was read: read again at once, then decide again.
    #[error("something changed since it was read")]
    Stale,
    /// etcd did not answer or refused, and a write may have been made: read again after a delay, then decide again.
    #[error(transparent)]
    Unavailable(#[from] Error),
}

impl Stop {
    /// How a read or a write ended, in one word: for traces.
    pub fn outcome<T>(done: &Result<T, Self>) -> &'static str {
        match done {
            Ok(_) => "OK",
            Err(Self::LostLeadership) => "LostLeadership",
            Err(Self::Stale) => "Stale",
            Err(Self::Unavailable(error)) => error.code,
        }
    }

    /// How long what was stopped rests before the next attempt.
    pub fn policy(&self) -> Policy {
        match self {
            Self::Unavailable(error) if !error.is_retryable() => Policy::REFUSED,
            Self::Unavailable(_) | Self::Stale | Self::LostLeadership => Policy::ETCD,
        }
    }
}

impl From<FencedError> for Stop {
    fn from(error: FencedError) -> Self {
        match error {
            FencedError::LostLeadership(_) => Self::LostLeadership,
            FencedError::Conflict => Self::Stale,
            FencedError::Unknown(error) | FencedError::Failed(error) => Self::Unavailable(error),
        }
    }
}

impl Etcd {
    /// Commits `txn` if the term still holds.
    ///
    /// # Errors
    /// [`FencedError`]; its variants say whether anything may have been written.
    pub async fn fenced(&self, fence: &Fence, txn: Txn) -> Result<Committed, FencedError> {
        if !fence.window.is_open() {
            return Err(FencedError::LostLeadership(fence.term));
        }
        let txn = match mutation::without(Guard::Fence) {
            true => txn,
            false => txn.first_created_at(&fence.key, fence.term),
        };
        match self.commit(txn).await {
            Ok(committed) => Ok(committed),
            Err(TxnError::Conflict { first_key_created }) if first_key_created == fence.term => {
                Err(FencedError::Conflict)
            }
            Err(TxnError::Conflict { .. }) => {
                self.metrics().fenced_writes_refused.inc();
                fence.window.close();
                Err(FencedError::LostLeadership(fence.term))
            }
            Err(TxnError::Unknown(error)) => Err(FencedError::Unknown(error)),
            Err(TxnError::Failed(error)) => {
                if error.class == Class::Denied {
                    self.0.denied.notify_one();
                }
                Err(FencedError::Failed(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_term_ends_a_controller_and_only_a_conflict_asks_for_a_read_at_once() {
        let error = || Error::new("txn", "Unavailable", Class::Unavailable, "no answer".to_owned());
        let lost = FencedError::LostLeadership(Revision(7));
        assert!(matches!(Stop::from(lost), Stop::LostLeadership));
        assert!(matches!(Stop::from(FencedError::Conflict), Stop::Stale));
        for unavailable in [FencedError::Unknown(error()), FencedError::Failed(error())] {
            assert!(matches!(Stop::from(unavailable), Stop::Unavailable(_)));
        }
    }

    /// INV-9
    #[test]
    fn only_what_etcd_refuses_rests_for_longer_than_seconds() {
        let error = |class| Stop::Unavailable(Error::new("txn", "Any", class, "not now".to_owned()));
        assert_eq!(error(Class::Denied).policy(), Policy::REFUSED);
        assert_eq!(error(Class::TooLarge).policy(), Policy::REFUSED);
        assert_eq!(error(Class::Unavailable).policy(), Policy::ETCD);
        assert_eq!(Stop::Stale.policy(), Policy::ETCD);
    }
}
