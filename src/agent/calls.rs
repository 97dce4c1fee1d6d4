//! Calls of the control API, and what follows from each answer that is none.

use std::time::Duration;

use tokio::sync::watch;
use tonic::{Code, Request, Status};

use super::confirm::{Confirm, NotConfirmed};
use super::servers::Link;
use crate::causes;
use crate::grpc_status;
use crate::proto::{ConfirmExpandedRequest, ConfirmUnpublishedRequest, Removed};

/// The type of the detail by which a server says that a node was removed.
const REMOVED: &str = "quorate.v1.Removed";

/// The limit of a call that is answered at once.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);

/// The node was removed: a server of the cluster says so, of this uid.
#[derive(Clone, Copy, Debug)]
pub struct NodeRemoved;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The node was removed. Nothing but the typed detail of this uid says so (INV-12).
    #[error("the node was removed from the cluster")]
    Removed,
    /// The server refuses the call, and will again.
    #[error("{0}")]
    Refused(String),
    /// It may succeed later, or elsewhere.
    #[error("{0}")]
    Failed(String),
}

impl CallError {
    /// What follows from a status, for the node of this uid; empty before it has one.
    pub fn of(status: &Status, uid: &str) -> Self {
        if status.code() == Code::PermissionDenied && !uid.is_empty() && removes(status.details(), uid) {
            return Self::Removed;
        }
        let text = format!(
            "{} ({})",
            causes::with_causes(status.message(), std::error::Error::source(status)),
            crate::grpc_code::name(status.code())
        );
        match status.code() {
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::FailedPrecondition
            | Code::Unimplemented => Self::Refused(text),
            _ => Self::Failed(text),
        }
    }
}

/// Whether the details of a status say that the node of this uid was removed.
fn removes(details: &[u8], uid: &str) -> bool {
    let removed: Option<Removed> = grpc_status::find(REMOVED, details);
    removed.is_some_and(|removed| removed.node_uid == uid)
}

/// A request with this limit, which the server learns too.
pub fn within<T>(limit: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

/// Calls over the connection of the session.
#[derive(Clone, Debug)]
pub struct Calls {
    /// The connection; `None` while there is none.
    pub links: watch::Receiver<Option<Link>>,
}

impl Calls {
    /// Waits for a connection.
    pub async fn link(&mut self) -> Link {
        loop {
            if let Some(link) = self.links.borrow_and_update().clone() {
                return link;
            }
            if self.links.changed().await.is_err() {
                // The agent ends.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Confirm for Calls {
    async fn confirm_unpublished(&self, volume: &str, publication_uid: &str) -> Result<(), NotConfirmed> {
        let message = ConfirmUnpublishedRequest {
            volume: volume.to_owned(),
            publication_uid: publication_uid.to_owned(),
        };
        let mut client = self.clone().link().await.client();
        let called = client.confirm_unpublished(within(CALL_LIMIT, message)).await;
        called.map(drop).map_err(|status| not_confirmed(&status))
    }

    async fn confirm_expanded(
        &self,
        volume: &str,
        publication_uid: &str,
        capacity_bytes: i64,
    ) -> Result<(), NotConfirmed> {
        let message = ConfirmExpandedRequest {
            volume: volume.to_owned(),
            publication_uid: publication_uid.to_owned(),
            capacity_bytes,
        };
        let mut client = self.clone().link().await.client();
        let called = client.confirm_expanded(within(CALL_LIMIT, message)).await;
        called.map(drop).map_err(|status| not_confirmed(&status))
    }
}

/// A removal ends the agent by its session.
fn not_confirmed(status: &Status) -> NotConfirmed {
    match CallError::of(status, "") {
        CallError::Failed(why) => NotConfirmed::Failed(why),
        other => NotConfirmed::Refused(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: Code, uid: &str) -> Status {
        let removed = Removed {
            node_uid: uid.to_owned(),
        };
        let details = grpc_status::encode(code, "no", grpc_status::detail(REMOVED, &removed));
        Status::with_details(code, "no", details.into())
    }

    #[test]
    fn a_removal_is_one_of_this_very_node_and_of_nothing_but_the_detail() {
        let of = |status: &Status| CallError::of(status, "5d0b");
        let removed = of(&refused(Code::PermissionDenied, "5d0b"));
        assert!(matches!(removed, CallError::Removed), "{removed}");
        for other in [
            refused(Code::PermissionDenied, "other"),
            refused(Code::NotFound, "5d0b"),
            Status::permission_denied("the node was removed"),
            Status::not_found("no node"),
            Status::with_details(Code::PermissionDenied, "no", vec![1, 2, 3].into()),
        ] {
            let of = of(&other);
            assert!(matches!(of, CallError::Refused(_)), "{of}");
        }
        let unnamed = CallError::of(&refused(Code::PermissionDenied, ""), "");
        assert!(matches!(unnamed, CallError::Refused(_)), "{unnamed}");
        let gone = of(&Status::unavailable("gone"));
        assert_eq!(gone.to_string(), "gone (Unavailable)");
        assert!(matches!(gone, CallError::Failed(_)));
    }
}
