//! Requests to the API server that failed, sorted by what follows from it.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::operand::{Action, Operand, Permission};
use super::refusal;

/// A request to the API server that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{action} {operand}: {cause}")]
pub struct Error {
    /// What was being done.
    pub action: Action,
    /// To what: an object, a kind, a group version.
    pub operand: String,
    /// Why it failed.
    pub cause: Cause,
}

impl Error {
    /// Whether a watch, or a list in pages, that failed so cannot go on: all has to be listed anew.
    pub fn lost_track(&self) -> bool {
        matches!(self.cause, Cause::Gone(_))
    }
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// No connection, or it broke. A write may have been made all the same.
    #[error("the API server {server} cannot be reached: {why}")]
    Unreachable {
        /// Its URL.
        server: String,
        /// The innermost reason.
        why: String,
    },
    /// No answer within the limit. A write may have been made all the same.
    #[error("the API server {server} gave no answer within {limit:?}")]
    TimedOut {
        /// Its URL.
        server: String,
        /// The limit of one attempt.
        limit: Duration,
    },
    /// 429: too many requests.
    #[error("the API server asks to slow down: {message}")]
    Throttled {
        /// What it said.
        message: String,
        /// `Retry-After`, if it said so.
        after: Option<Duration>,
    },
    /// 5xx: it failed, or something behind it did.
    #[error("the API server failed (HTTP {code}): {message}")]
    Server {
        /// HTTP status.
        code: u16,
        /// What it said.
        message: String,
        /// `Retry-After`, if it said so.
        after: Option<Duration>,
    },
    /// 401, or the client's own credentials cannot be loaded.
    #[error("the API server does not accept these credentials: {0}")]
    Unauthorized(String),
    /// 403.
    #[error("missing permission: {permission} ({message})")]
    Forbidden {
        /// Which.
        permission: Box<Permission>,
        /// What the server said.
        message: String,
    },
    /// 404.
    #[error("not found: {0}")]
    NotFound(String),
    /// 409, or another object of that name: what was read is no longer so.
    #[error("changed meanwhile: {0}")]
    Conflict(String),
    /// 410: the resource version is too old to go on from.
    #[error("too old to continue from: {0}")]
    Gone(String),
    /// 422 in which every cause is a field that cannot change.
    #[error("fields that cannot change: {0}")]
    Immutable(String),
    /// Any other refusal: 400, 422, …
    #[error("rejected (HTTP {code}): {message}")]
    Rejected {
        /// HTTP status.
        code: u16,
        /// What the server said.
        message: String,
    },
    /// The object does not exist, and the server does not create it with a resource version in the manifest.
    #[error("no creation with a resource version: {0}")]
    NoPrecondition(String),
    /// The answer cannot be read.
    #[error("the answer cannot be read: {0}")]
    Malformed(String),
}

impl Cause {
    /// How often a request is sent in all, within one call. What is not repeated there may be all the same in the next
    /// pass, which looks at the cluster anew.
    pub(super) fn attempts(&self) -> u32 {
        match self {
            // A server that sheds load takes the request soon.
            Self::Throttled { .. } => 6,
            Self::Server { .. } => 4,
            // A connection that broke is made anew; a server that is down stays so for longer than is waited for here.
            Self::Unreachable { .. } => 2,
            // What hung for so long has had its time.
            Self::TimedOut { .. } => 1,
            // What was read is no longer so: it has to be read again first.
            Self::Conflict(_) | Self::Gone(_) => 1,
            // A refusal stays one.
            Self::Unauthorized(_)
            | Self::Forbidden { .. }
            | Self::NotFound(_)
            | Self::Immutable(_)
            | Self::Rejected { .. }
            | Self::NoPrecondition(_)
            | Self::Malformed(_) => 1,
        }
    }

    /// How long the server asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Throttled { after, .. } | Self::Server { after, .. } => *after,
            _ => None,
        }
    }

    /// Whether it concerns the server as a whole, so that asking it for something else is of no use now.
    pub fn is_the_server(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Unauthorized(_))
    }

    /// Whether it may concern the server as a whole: if everything that was asked for ended so, it does. One kind may
    /// hang or fail alone, behind a webhook or an aggregated API server.
    pub fn may_be_the_server(&self) -> bool {
        self.is_the_server()
            || matches!(
                self,
                Self::TimedOut { .. } | Self::Server { .. } | Self::Throttled { .. }
            )
    }
}

/// The `Status` object that comes with a refusal; whatever it lacks stays empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    causes: Vec<refusal::FieldCause>,
    retry_after_seconds: Option<u64>,
}

/// Sorts an answer that is not a success.
pub(super) fn classify(
    action: Action,
    operand: &Operand,
    code: StatusCode,
    retry_after: Option<Duration>,
    body: &[u8],
) -> Cause {
    // Filters in front of the API (overload, authentication) answer in plain text.
    let status = serde_json::from_slice(body).unwrap_or_else(|_| Status {
        message: String::from_utf8_lossy(body).trim().to_owned(),
        ..Status::default()
    });
    let Status {
        mut message,
        reason,
        details,
    } = status;
    if message.is_empty() {
        message = code.canonical_reason().unwrap_or("no reason given").to_owned();
    }
    let after = retry_after.or(details.retry_after_seconds.map(Duration::from_secs));
    match code.as_u16() {
        401 => Cause::Unauthorized(message),
        403 => Cause::Forbidden {
            permission: Box::new(refusal::missing_permission(action, operand, &message)),
            message,
        },
        404 => Cause::NotFound(message),
        409 => Cause::Conflict(message),
        410 => Cause::Gone(message),
        422 if refusal::is_other_object(&details.causes) => Cause::Conflict(message),
        422 if refusal::is_immutable(&details.causes) => Cause::Immutable(message),
        429 => Cause::Throttled { message, after },
        // An expired continue token comes as 410 from current servers, as this reason from others.
        400 if reason == "Expired" => Cause::Gone(message),
        500 if refusal::is_creation_with_version(&message) => Cause::NoPrecondition(message),
        500 if refusal::is_bad_manifest(&message) => Cause::Rejected { code: 500, message },
        code @ 500..=599 => Cause::Server { code, message, after },
        code => Cause::Rejected { code, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand() -> Operand {
        Operand {
            shown: "ClusterRole a".to_owned(),
            resource: "clusterroles.rbac.authorization.k8s.io".to_owned(),
            name: "a".to_owned(),
            namespace: None,
            bound_role: None,
        }
    }

    fn cause(code: u16, body: &str) -> Cause {
        let code = StatusCode::from_u16(code).unwrap();
        classify(Action::Apply, &operand(), code, None, body.as_bytes())
    }

    #[test]
    fn every_status_code_has_its_consequence() {
        assert!(matches!(cause(401, "Unauthorized"), Cause::Unauthorized(_)));
        assert!(matches!(cause(404, "{}"), Cause::NotFound(_)));
        assert!(matches!(cause(409, "{}"), Cause::Conflict(_)));
        assert!(matches!(cause(410, "{}"), Cause::Gone(_)));
        assert!(matches!(
            cause(429, "slow down"),
            Cause::Throttled { after: None, .. }
        ));
        assert!(matches!(cause(500, "{}"), Cause::Server { code: 500, .. }));
        assert!(matches!(cause(504, "{}"), Cause::Server { code: 504, .. }));
        assert!(matches!(cause(400, "{}"), Cause::Rejected { code: 400, .. }));
        assert!(matches!(cause(422, "{}"), Cause::Rejected { code: 422, .. }));
        for code in [429, 500, 502, 503, 504] {
            assert!(cause(code, "{}").attempts() > 1, "{code}");
        }
        for code in [400, 401, 403, 404, 409, 410, 422] {
            assert_eq!(cause(code, "{}").attempts(), 1, "{code}");
        }
    }

    #[test]
    fn the_wait_that_the_server_asks_for_is_kept_from_header_and_body() {
        let body = r#"{"message":"later","details":{"retryAfterSeconds":7}}"#;
        assert_eq!(cause(429, body).retry_after(), Some(Duration::from_secs(7)));
        let code = StatusCode::TOO_MANY_REQUESTS;
        let header = Some(Duration::from_secs(3));
        let both = classify(Action::Apply, &operand(), code, header, body.as_bytes());
        assert_eq!(both.retry_after(), header);
    }

    #[test]
    fn an_answer_without_words_still_says_something() {
        assert_eq!(
            cause(503, "").to_string(),
            "the API server failed (HTTP 503): Service Unavailable"
        );
        assert_eq!(
            cause(429, "Too many requests, please try again later.\n").to_string(),
            "the API server asks to slow down: Too many requests, please try again later."
        );
    }

    #[test]
    fn a_500_about_the_manifest_is_no_failure_of_the_server() {
        let version = r#"{"message":"resourceVersion should not be set on objects to be created"}"#;
        assert!(matches!(cause(500, version), Cause::NoPrecondition(_)));
        let schema = r#"{"message":"failed to create typed patch object: .spec.ports: element 0: …"}"#;
        let cause = cause(500, schema);
        assert!(matches!(cause, Cause::Rejected { code: 500, .. }) && cause.attempts() == 1);
    }

    #[test]
    fn a_conflict_of_uids_is_a_conflict_and_nothing_that_is_recreated() {
        let body = r#"{"reason":"Invalid","message":"m","details":{"causes":[
            {"reason":"FieldValueInvalid","message":"Invalid value: \"x\": field is immutable","field":"metadata.uid"}]}}"#;
        assert!(matches!(cause(422, body), Cause::Conflict(_)));
    }
}
