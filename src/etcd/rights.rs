//! Whether etcd lets this client write, asked without a write.

use super::connect::Etcd;
use super::error::Error;
use super::txn::{Txn, TxnError};

impl Etcd {
    /// Asks etcd whether this client may write this key, and changes nothing: etcd checks the permissions of a transaction before
    /// its compares, and the compare here never holds.
    ///
    /// # Errors
    /// [`Error`]: of class [`Class::Denied`](super::Class::Denied) if etcd refuses the client. After any other the rights are not
    /// known.
    pub async fn may_write(&self, key: &[u8]) -> Result<(), Error> {
        match self.commit(Txn::new().when_never(key).put(key, "")).await {
            Ok(_) | Err(TxnError::Conflict { .. }) => Ok(()),
            Err(TxnError::Unknown(error) | TxnError::Failed(error)) => Err(error),
        }
    }
}
