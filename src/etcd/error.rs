//! Errors of etcd, sorted in one table by what follows from them.

use std::time::Duration;

use tonic::Code;

/// What a failed request means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// No answer, or an answer that says "not now". A write may have been applied all the same.
    Unavailable,
    /// The token is no longer good; another one helps. Nothing was applied.
    StaleToken,
    /// The user may not do this, or is not who it claims to be.
    Denied,
    /// The revision asked for is compacted away.
    Compacted,
    /// The lease is gone.
    LeaseNotFound,
    /// Larger than etcd or this client takes in one message.
    TooLarge,
    /// etcd is out of space or asks to slow down. Nothing was applied.
    Exhausted,
    /// Anything else that etcd said no to. Nothing was applied.
    Refused,
    /// This client's own settings do not allow a connection (certificates, addresses).
    Settings,
}

/// A request to etcd that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("etcd {operation}: {message}")]
pub struct Error {
    /// `range`, `txn`, `lease_grant`, …
    pub operation: &'static str,
    /// gRPC code by its name.
    pub code: &'static str,
    /// What follows from it.
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
            E::TransportError(error) => {
                Self::new(operation, "Unavailable", Class::Unavailable, with_sources(&error))
            }
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
        // What the transport says itself, such as "transport error", has causes; what etcd says has none.
        let text = match source {
            Some(source) => with_sources(source),
            None if message.is_empty() => code_name(code).to_owned(),
            None => message.to_owned(),
        };
        Self::new(operation, code_name(code), classify(code, message), text)
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

    /// What etcd, or the transport, said.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the same request may succeed later without anyone changing anything.
    pub fn is_retryable(&self) -> bool {
        match self.class {
            Class::Unavailable | Class::StaleToken | Class::Exhausted => true,
            Class::Denied
            | Class::Compacted
            | Class::LeaseNotFound
            | Class::TooLarge
            | Class::Refused
            | Class::Settings => false,
        }
    }

    /// Whether TLS failed for who the two sides are. By the texts of rustls: for the server's certificate, for the
    /// alerts by which a server refuses the client's, and for a client's key that is not its certificate's.
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

    /// Whether the other side ended the connection without a word.
    pub fn is_hangup(&self) -> bool {
        const TEXTS: [&str; 4] = [
            "connection closed",
            "broken pipe",
            "reset",
            "operation was canceled",
        ];
        self.class == Class::Unavailable && TEXTS.iter().any(|text| self.message.contains(text))
    }

    /// Whether etcd had no leader, or another one, at that moment: in a healthy cluster a matter of a second.
    pub fn is_between_leaders(&self) -> bool {
        const TEXTS: [&str; 2] = ["etcdserver: no leader", "etcdserver: leader changed"];
        TEXTS.iter().any(|text| self.message.contains(text))
    }

    /// Whether the member that was asked refused before it did anything, as it knew of no leader. That is what requests
    /// that ask for a leader get, and for reads and transactions this text has no other meaning.
    pub fn is_refused_for_want_of_a_leader(&self) -> bool {
        self.message.contains("etcdserver: no leader")
    }

    /// Whether no connection came about, so that nothing was sent. By the text of the HTTP library.
    pub fn is_refused_connection(&self) -> bool {
        self.class == Class::Unavailable && self.message.contains("tcp connect error")
    }

    /// Whether a write that ended so may have been applied.
    pub fn outcome_unknown(&self) -> bool {
        self.class == Class::Unavailable
    }
}

/// The one table. Texts are etcd's own, from api/v3rpc/rpctypes/error.go, the same from 3.4 to 3.6.
fn classify(code: Code, message: &str) -> Class {
    const TEXTS: &[(&str, Class)] = &[
        ("required revision has been compacted", Class::Compacted),
        ("requested lease not found", Class::LeaseNotFound),
        ("invalid auth token", Class::StaleToken),
        ("revision of auth store is old", Class::StaleToken),
        ("invalid user ID or password", Class::Denied),
        ("user name is empty", Class::Denied),
        ("user name not found", Class::Denied),
        ("authentication is not enabled", Class::Denied),
        ("permission denied", Class::Denied),
        ("request is too large", Class::TooLarge),
        // grpc-go and tonic, respectively.
        ("larger than max", Class::TooLarge),
        ("message length too large", Class::TooLarge),
        ("database space exceeded", Class::Exhausted),
        ("too many requests", Class::Exhausted),
        // A follower that has not caught up with the revision of a page; it will.
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

fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "Ok",
        Code::Cancelled => "Cancelled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// The chain of causes in one line: a transport error alone says only "transport error".
fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        // A wrapper often repeats what it wraps.
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        next = error.source();
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_of_etcd_falls_into_its_class() {
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
                Code::Unknown,
                "h2 protocol error: error reading a body",
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
    fn only_a_write_without_an_answer_has_an_unknown_outcome() {
        let unanswered = Error::timed_out("txn", Duration::from_secs(5));
        assert!(unanswered.outcome_unknown() && unanswered.is_retryable());
        let denied = Error::new("txn", "PermissionDenied", Class::Denied, String::new());
        assert!(!denied.outcome_unknown() && !denied.is_retryable());
    }
}
