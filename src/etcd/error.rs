//! Errors of requests to etcd. One table gives each a class, which says what follows from it.

use std::time::Duration;

use tonic::Code;

use crate::causes;
use crate::grpc_code;

/// What a failed request means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// etcd gave no answer, or one that means "not now". A write may still have been applied.
    Unavailable,
    /// The token is no longer valid, and a new one is needed. Nothing was applied.
    StaleToken,
    /// The user lacks the permission, or its password is wrong. Nothing was applied.
    Denied,
    /// The requested revision is compacted.
    Compacted,
    /// The lease does not exist (any more).
    LeaseNotFound,
    /// The message is larger than etcd or this client accepts.
    TooLarge,
    /// etcd is out of space or asks to slow down. What ran out of space may have been applied all the same: see
    /// [`Error::outcome_unknown`].
    Exhausted,
    /// etcd refused the request for any other reason. Nothing was applied.
    Refused,
    /// etcd was restored or replaced: see [`StoreLost`](super::StoreLost). A write may have been applied to what answers
    /// now. Every further request fails like this one.
    StoreLost,
    /// The client's own settings do not allow a connection (certificates, addresses).
    Settings,
}

/// A failed request to etcd.
#[derive(Clone, Debug, thiserror::Error)]
#[error("etcd {operation}: {message}")]
pub struct Error {
    /// `range`, `txn`, `lease_grant`, …
    pub operation: &'static str,
    /// The gRPC code by its name.
    pub code: &'static str,
    /// What the failure means for the caller.
    pub class: Class,
    message: String,
}

impl Error {
    pub(super) fn from_client(operation: &'static str, error: etcd_client::Error) -> Self {
        use etcd_client::Error as E;
        match error {
            E::GRpcStatus(status) => {
                let (code, message) = (status.code(), status.message());
                Self::from_status(operation, code, message, std::error::Error::source(&status))
            }
            E::TransportError(error) => Self::new(
                operation,
                "Unavailable",
                Class::Unavailable,
                causes::chain(&error),
            ),
            E::IoError(error) => Self::new(operation, "Unavailable", Class::Unavailable, error.to_string()),
            // The client library reports a keep-alive answered with TTL 0 in words only.
            E::LeaseKeepAliveError(text) if text.contains("not found") => {
                Self::new(operation, "NotFound", Class::LeaseNotFound, text)
            }
            E::LeaseKeepAliveError(text) | E::WatchError(text) | E::ElectError(text) | E::Internal(text) => {
                Self::new(operation, "Unavailable", Class::Unavailable, text)
            }
            E::InvalidArgs(_)
            | E::InvalidUri(_)
            | E::Utf8Error(_)
            | E::InvalidMetadataValue(_)
            | E::EndpointError(_)
            | E::EndpointsNotManaged => {
                Self::new(operation, "InvalidArgument", Class::Settings, error.to_string())
            }
        }
    }

    fn from_status(
        operation: &'static str,
        code: Code,
        message: &str,
        source: Option<&(dyn std::error::Error + 'static)>,
    ) -> Self {
        let (class, text) = match source {
            // A status made by the transport has causes, and whatever code the library gives it: a server that closes the
            // connection over too many pings becomes ResourceExhausted. One sent by etcd has none.
            Some(source) => (Class::Unavailable, causes::chain(source)),
            None if message.is_empty() => (classify(code, message), grpc_code::name(code).to_owned()),
            None => (classify(code, message), message.to_owned()),
        };
        Self::new(operation, grpc_code::name(code), class, text)
    }

    pub(super) fn timed_out(operation: &'static str, limit: Duration) -> Self {
        let message = format!("no answer within {limit:?}");
        Self::new(operation, "DeadlineExceeded", Class::Unavailable, message)
    }

    pub(super) fn new(operation: &'static str, code: &'static str, class: Class, message: String) -> Self {
        Self {
            operation,
            code,
            class,
            message,
        }
    }

    /// An error of this class, for unit tests of what follows from it.
    #[cfg(test)]
    pub(crate) fn of_class(class: Class) -> Self {
        Self::new(
            "status",
            "PermissionDenied",
            class,
            "permission denied".to_owned(),
        )
    }

    /// The text of etcd or of the transport.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the same request may succeed later although nothing else changes.
    pub fn is_retryable(&self) -> bool {
        match self.class {
            Class::Unavailable | Class::StaleToken | Class::Exhausted => true,
            Class::Denied
            | Class::Compacted
            | Class::LeaseNotFound
            | Class::TooLarge
            | Class::Refused
            | Class::StoreLost
            | Class::Settings => false,
        }
    }

    /// Whether TLS failed for a certificate. Goes by the texts of rustls: for the server's certificate, for the alerts by
    /// which a server refuses the client's, and for a client key that does not match its certificate.
    pub fn is_about_certificates(&self) -> bool {
        const TEXTS: [&str; 8] = [
            "invalid peer certificate",
            "BadCertificate",
            "UnsupportedCertificate",
            "CertificateExpired",
            "CertificateUnknown",
            "CertificateRequired",
            "UnknownCA",
            "KeyMismatch",
        ];
        TEXTS.iter().any(|text| self.message.contains(text))
    }

    /// Whether the other side ended the connection without a reason.
    pub fn is_hangup(&self) -> bool {
        const TEXTS: [&str; 4] = [
            "connection closed",
            "broken pipe",
            "reset",
            "operation was canceled",
        ];
        self.class == Class::Unavailable && TEXTS.iter().any(|text| self.message.contains(text))
    }

    /// Whether the members had no raft leader or were changing it, or the one that was asked was leaving them. In a healthy cluster
    /// that lasts about a second.
    pub fn is_between_leaders(&self) -> bool {
        const TEXTS: [&str; 3] = [
            "etcdserver: no leader",
            "etcdserver: leader changed",
            "raft: stopped",
        ];
        TEXTS.iter().any(|text| self.message.contains(text))
    }

    /// Whether the member refused the request before it did anything, since it knew no raft leader. Requests that require a
    /// leader get this text, and for reads and transactions it has no other meaning.
    pub fn is_refused_without_a_leader(&self) -> bool {
        self.message.contains("etcdserver: no leader")
    }

    /// Whether a learner refused the request, which only voters serve.
    pub fn is_of_learner(&self) -> bool {
        self.message.contains("not supported for learner")
    }

    /// Whether no connection was made, so that nothing was sent. Goes by the text of the HTTP library.
    pub fn is_refused_connection(&self) -> bool {
        self.class == Class::Unavailable && self.message.contains("tcp connect error")
    }

    /// Whether etcd has no room left for what is written.
    pub fn is_out_of_space(&self) -> bool {
        self.class == Class::Exhausted && self.message.contains(OUT_OF_SPACE)
    }

    /// Whether a write that failed with this may have been applied. etcd applies a write that was proposed before its database was
    /// full, and only then answers that there is no space.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self.class, Class::Unavailable | Class::StoreLost) || self.is_out_of_space()
    }
}

const OUT_OF_SPACE: &str = "database space exceeded";

/// The table. Its texts are etcd's own, from api/v3rpc/rpctypes/error.go, and but for one the same from 3.4 to 3.6.
fn classify(code: Code, message: &str) -> Class {
    const TEXTS: &[(&str, Class)] = &[
        ("required revision has been compacted", Class::Compacted),
        ("requested lease not found", Class::LeaseNotFound),
        ("invalid auth token", Class::StaleToken),
        ("revision of auth store is old", Class::StaleToken),
        // The same in releases before 3.5.2, with the code Unknown (etcd issue 13300).
        ("revision in header is old", Class::StaleToken),
        ("invalid user ID or password", Class::Denied),
        ("user name is empty", Class::Denied),
        ("user name not found", Class::Denied),
        ("authentication is not enabled", Class::Denied),
        ("permission denied", Class::Denied),
        ("request is too large", Class::TooLarge),
        // grpc-go and tonic, respectively.
        ("larger than max", Class::TooLarge),
        ("message length too large", Class::TooLarge),
        (OUT_OF_SPACE, Class::Exhausted),
        ("too many requests", Class::Exhausted),
        // A raft follower that has yet to reach the revision of a page.
        ("required revision is a future revision", Class::Exhausted),
    ];
    if let Some((_, class)) = TEXTS.iter().find(|(text, _)| message.contains(text)) {
        return *class;
    }
    match code {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal
        | Code::Aborted
        | Code::DataLoss => Class::Unavailable,
        Code::Unauthenticated => Class::StaleToken,
        Code::PermissionDenied => Class::Denied,
        Code::ResourceExhausted => Class::Exhausted,
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Class::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_of_etcd_has_its_class() {
        for (code, message, class) in [
            (
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
                Class::Compacted,
            ),
            (
                Code::NotFound,
                "etcdserver: requested lease not found",
                Class::LeaseNotFound,
            ),
            (
                Code::Unauthenticated,
                "etcdserver: invalid auth token",
                Class::StaleToken,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old",
                Class::StaleToken,
            ),
            (
                Code::Unknown,
                "auth: revision in header is old",
                Class::StaleToken,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                Class::Denied,
            ),
            (
                Code::PermissionDenied,
                "etcdserver: permission denied",
                Class::Denied,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: request is too large",
                Class::TooLarge,
            ),
            (
                Code::ResourceExhausted,
                "grpc: received message larger than max (5 vs. 4)",
                Class::TooLarge,
            ),
            (
                Code::OutOfRange,
                "Error, decoded message length too large: found 9 bytes",
                Class::TooLarge,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                Class::Exhausted,
            ),
            (
                Code::Unavailable,
                "etcdserver: request timed out",
                Class::Unavailable,
            ),
            (
                Code::Unavailable,
                "etcdserver: leader changed",
                Class::Unavailable,
            ),
            (
                Code::InvalidArgument,
                "etcdserver: duplicate key given in txn request",
                Class::Refused,
            ),
        ] {
            assert_eq!(classify(code, message), class, "{code:?} {message}");
        }
    }

    #[test]
    fn a_connection_that_breaks_within_an_answer_is_unavailable() {
        let text = "h2 protocol error: error reading a body";
        assert_eq!(classify(Code::Unknown, text), Class::Unavailable);
    }

    #[test]
    fn a_status_that_the_transport_made_leaves_the_outcome_unknown_whatever_its_code() {
        for code in [Code::ResourceExhausted, Code::Cancelled, Code::PermissionDenied] {
            let mut status = tonic::Status::new(code, "h2 protocol error");
            status.set_source(std::sync::Arc::new(std::io::Error::other("too_many_pings")));
            let error = Error::from_client("txn", etcd_client::Error::GRpcStatus(status));
            assert!(
                error.outcome_unknown() && error.is_retryable(),
                "{code:?}: {error:?}"
            );
            assert_eq!(error.message(), "too_many_pings");
        }
    }

    #[test]
    fn only_a_write_that_is_not_answered_or_that_ran_out_of_space_has_an_unknown_outcome() {
        let exhausted = |text: &str| Error::from_status("txn", Code::ResourceExhausted, text, None);
        let full = exhausted("etcdserver: mvcc: database space exceeded");
        assert!(full.outcome_unknown() && full.is_retryable() && full.is_out_of_space());
        assert!(!exhausted("etcdserver: too many requests").outcome_unknown());
        let unanswered = Error::timed_out("txn", Duration::from_secs(5));
        assert!(unanswered.outcome_unknown() && unanswered.is_retryable());
        let denied = Error::new("txn", "PermissionDenied", Class::Denied, String::new());
        assert!(!denied.outcome_unknown() && !denied.is_retryable());
    }
}
