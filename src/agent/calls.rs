//! Calls of the control API, and what follows from each answer that is none.

use std::time::Duration;

use tokio::sync::watch;
use tonic::{Code, Request, Status};

use super::confirm::{Confirm, NotConfirmed};
use super::servers::Link;
use crate::causes;
use crate::grpc_status;
use crate::proto::certificate_refused::Reason;
use crate::proto::{CertificateRefused, ConfirmExpandedRequest, ConfirmUnpublishedRequest, Removed};

/// The type of the detail by which a server says that a node was removed.
const REMOVED: &str = "quorate.v1.Removed";

/// The type of the detail by which it says why the certificate of the connection proves no node.
const CERTIFICATE_REFUSED: &str = "quorate.v1.CertificateRefused";

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
    /// The certificate of the connection has ended, by the clock of the server. Nothing but the typed detail says so.
    #[error("{0}")]
    CertificateEnded(String),
    /// The server has ended the session, and another one can begin at once.
    #[error("{0}")]
    Aborted(String),
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
            Code::PermissionDenied if has_ended(status.details()) => Self::CertificateEnded(text),
            Code::Aborted => Self::Aborted(text),
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

/// Whether the details of a status say that the certificate of the connection has ended.
fn has_ended(details: &[u8]) -> bool {
    let refused: Option<CertificateRefused> = grpc_status::find(CERTIFICATE_REFUSED, details);
    refused.is_some_and(|refused| refused.reason() == Reason::Expired)
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

/// A removal ends the agent by its session. With another certificate, or in another session, the call may succeed.
fn not_confirmed(status: &Status) -> NotConfirmed {
    match CallError::of(status, "") {
        CallError::Failed(why) | CallError::Aborted(why) | CallError::CertificateEnded(why) => {
            NotConfirmed::Failed(why)
        }
        other @ (CallError::Removed | CallError::Refused(_)) => NotConfirmed::Refused(other.to_string()),
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

    #[test]
    fn the_end_of_a_certificate_is_one_detail_of_one_code_and_no_other_refusal() {
        let detail = |reason: Reason| {
            let refused = CertificateRefused {
                reason: reason.into(),
            };
            grpc_status::detail(CERTIFICATE_REFUSED, &refused)
        };
        let refused = |code: Code, reason: Reason| {
            let details = grpc_status::encode(code, "no", detail(reason));
            Status::with_details(code, "no", details.into())
        };
        let ended = CallError::of(&refused(Code::PermissionDenied, Reason::Expired), "5d0b");
        assert!(matches!(ended, CallError::CertificateEnded(_)), "{ended}");
        for other in [
            refused(Code::PermissionDenied, Reason::NotYetValid),
            refused(Code::PermissionDenied, Reason::Foreign),
            refused(Code::PermissionDenied, Reason::Unspecified),
            refused(Code::NotFound, Reason::Expired),
            Status::permission_denied("the certificate has expired"),
        ] {
            let of = CallError::of(&other, "5d0b");
            assert!(matches!(of, CallError::Refused(_)), "{of}");
        }
    }

    #[test]
    fn a_session_that_another_one_ended_is_neither_refused_nor_lost_with_its_server() {
        let superseded = CallError::of(&Status::aborted("another session"), "5d0b");
        assert!(matches!(superseded, CallError::Aborted(_)), "{superseded}");
    }
}
