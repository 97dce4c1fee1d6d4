//! What the node confirms about its volumes.

/// Confirms to the cluster what the node has done. Each method waits for a connection to a server, and makes one call.
pub trait Confirm: Clone + Send + Sync + 'static {
    /// The node no longer uses a volume.
    fn confirm_unpublished(
        &self,
        volume: &str,
        publication_uid: &str,
    ) -> impl Future<Output = Result<(), NotConfirmed>> + Send;

    /// The node has expanded what is on a volume, up to this capacity.
    fn confirm_expanded(
        &self,
        volume: &str,
        publication_uid: &str,
        capacity_bytes: i64,
    ) -> impl Future<Output = Result<(), NotConfirmed>> + Send;
}

/// A confirmation did not arrive, as far as the node knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotConfirmed {
    /// The server refuses it, and will again until the session shows something else.
    #[error("{0}")]
    Refused(String),
    /// It may succeed later, or elsewhere.
    #[error("{0}")]
    Failed(String),
}
