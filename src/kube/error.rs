//! Failed requests to the API server, classified by what a caller can do about them.

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::object::ObjectRef;
use super::operand::{Action, Operand, Permission};
use super::refusal;

/// A request to the API server that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("failed to {action} {operand}: {cause}")]
pub struct Error {
    /// The operation.
    pub action: Action,
    /// The object, kind or group version that it was about.
    pub operand: String,
    /// The reason, with the consequence.
    pub cause: Cause,
}

impl Error {
    /// The error in a line that names this object already.
    pub fn about(&self, object: &ObjectRef) -> String {
        match self.operand == object.to_string() {
            true => format!("failed to {}: {}", self.action, self.cause),
            false => self.to_string(),
        }
    }

    /// Whether a watch or a paged list cannot continue after this error. The caller lists the kind again.
    pub fn lost_track(&self) -> bool {
        matches!(self.cause, Cause::Gone(_))
    }
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// No connection could be made: the request was not sent.
    #[error("API server {server} is unreachable: {why}")]
    Unreachable {
        /// URL of the server.
        server: String,
        /// The innermost error of the transport.
        why: String,
    },
    /// The connection broke before the response was complete. The server may have carried out a write.
    #[error("the connection to API server {server} broke: {why}")]
    Broken {
        /// URL of the server.
        server: String,
        /// The innermost error of the transport.
        why: String,
    },
    /// No response within the limit. The server may have carried out a write.
    #[error("API server {server} did not respond within {limit:?}")]
    TimedOut {
        /// URL of the server.
        server: String,
        /// The limit of one attempt.
        limit: Duration,
    },
    /// 429: too many requests.
    #[error("API server throttled the request (HTTP 429): {message}")]
    Throttled {
        /// The server's message.
        message: String,
        /// `Retry-After`, if the response has one.
        after: Option<Duration>,
    },
    /// 5xx: the server, a webhook or an aggregated API server failed.
    #[error("API server error (HTTP {code}): {message}")]
    Server {
        /// HTTP status.
        code: u16,
        /// The server's message.
        message: String,
        /// `Retry-After`, if the response has one.
        after: Option<Duration>,
    },
    /// The client cannot load its credentials: the request was not sent.
    #[error("cannot load the credentials for the API server: {0}")]
    NoCredentials(String),
    /// 401. The server passes on that of an extension's API, which may reject the server's own certificate.
    #[error("API server rejected the credentials: {0}")]
    Unauthorized(String),
    /// 403 by the authorizer.
    #[error("missing permission: {permission} ({message})")]
    Forbidden {
        /// The permission that the request needs.
        permission: Box<Permission>,
        /// The server's message.
        message: String,
    },
    /// 403 by admission: a webhook, a policy, a quota, a namespace that is being deleted. No permission is missing.
    #[error("denied by admission (HTTP 403): {0}")]
    Denied(String),
    /// 404, and the server names the object of the request: it does not exist.
    #[error("not found: {0}")]
    Absent(String),
    /// Any other 404: of the namespace, or of the path, because the server does not serve the kind in this version. It says
    /// nothing about the object (INV-12).
    #[error("not found: {0}")]
    NotFound(String),
    /// 409, or another object has the name: the object is no longer as it was read.
    #[error("conflict: {0}")]
    Conflict(String),
    /// 410: the server no longer has the changes since this resource version.
    #[error("resource version expired: {0}")]
    Gone(String),
    /// 422, and every cause is an immutable field.
    #[error("immutable fields: {0}")]
    Immutable(String),
    /// Any other refusal: 400, 422, …
    #[error("rejected (HTTP {code}): {message}")]
    Rejected {
        /// HTTP status.
        code: u16,
        /// The server's message.
        message: String,
    },
    /// The object does not exist, and the server creates none of this kind if the manifest has a resource version.
    #[error("cannot create the object with a resource version: {0}")]
    NoPrecondition(String),
    /// The response is not what the API promises.
    #[error("cannot parse the response: {0}")]
    Malformed(String),
}

impl Cause {
    /// How many times one call sends the request in total. A request that is not repeated here may be sent again by the
    /// next pass, which observes the cluster first.
    pub(super) fn attempts(&self) -> u32 {
        match self {
            // A server that sheds load accepts the request soon.
            Self::Throttled { .. } => 6,
            Self::Server { .. } => 4,
            // The second attempt opens a new connection. A server that is down stays down for longer than these delays.
            Self::Unreachable { .. } | Self::Broken { .. } => 2,
            // The request has used its time.
            Self::TimedOut { .. } => 1,
            // The caller has to read the object first.
            Self::Conflict(_) | Self::Gone(_) => 1,
            // The server would refuse again.
            Self::NoCredentials(_)
            | Self::Unauthorized(_)
            | Self::Forbidden { .. }
            | Self::Denied(_)
            | Self::Absent(_)
            | Self::NotFound(_)
            | Self::Immutable(_)
            | Self::Rejected { .. }
            | Self::NoPrecondition(_)
            | Self::Malformed(_) => 1,
        }
    }

    /// The cause in one word, for traces.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "Unreachable",
            Self::Broken { .. } => "Broken",
            Self::TimedOut { .. } => "TimedOut",
            Self::Throttled { .. } => "Throttled",
            Self::Server { .. } => "Server",
            Self::NoCredentials(_) => "NoCredentials",
            Self::Unauthorized(_) => "Unauthorized",
            Self::Forbidden { .. } => "Forbidden",
            Self::Denied(_) => "Denied",
            Self::Absent(_) => "Absent",
            Self::NotFound(_) => "NotFound",
            Self::Conflict(_) => "Conflict",
            Self::Gone(_) => "Gone",
            Self::Immutable(_) => "Immutable",
            Self::Rejected { .. } => "Rejected",
            Self::NoPrecondition(_) => "NoPrecondition",
            Self::Malformed(_) => "Malformed",
        }
    }

    /// The wait that the server asked for; an hour if it asked for more.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Throttled { after, .. } | Self::Server { after, .. } => {
                after.map(|after| after.min(LONGEST_WAIT))
            }
            _ => None,
        }
    }

    /// Whether the server as a whole is unusable, so that a request for another object would fail too. A connection that
    /// breaks is no proof of that: a proxy in between may break it because of what one request holds. Nor is a 401, before
    /// the server itself was asked ([`super::KubeClient::is_unusable`]).
    pub fn is_the_server(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NoCredentials(_))
    }

    /// Whether the server as a whole may be unusable. It is if every request ended this way; a single kind can hang or
    /// fail alone, behind a webhook or an aggregated API server. A 401 is not among them: the server was asked itself.
    pub fn may_be_the_server(&self) -> bool {
        self.is_the_server()
            || matches!(
                self,
                Self::Broken { .. } | Self::TimedOut { .. } | Self::Server { .. } | Self::Throttled { .. }
            )
    }
}

/// The longest wait that a server gets. Servers ask for seconds; one that asks for years is at fault, and no clock of ours
/// counts them. An object that waits for an hour is shown with the time of its next attempt.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The `Status` object in the body of a refusal. Missing fields stay empty.
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
    name: String,
    causes: Vec<refusal::FieldCause>,
    retry_after_seconds: Option<u64>,
}

/// The characters of a message that are shown.
const SHOWN: usize = 1_000;

/// A message in one line, for logs and conditions: a refusal may quote a whole object over many lines.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The part of a message that is shown.
fn cut(mut line: String) -> String {
    if let Some((end, _)) = line.char_indices().nth(SHOWN) {
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Classifies a response that is not a success.
pub(super) fn classify(
    action: Action,
    operand: &Operand,
    code: StatusCode,
    retry_after: Option<Duration>,
    body: &[u8],
) -> Cause {
    // Filters in front of the API (overload, authentication) respond in plain text.
    let status = serde_json::from_slice(body).unwrap_or_else(|_| Status {
        message: String::from_utf8_lossy(body).trim().to_owned(),
        ..Status::default()
    });
    let Status {
        message,
        reason,
        details,
    } = status;
    // What the server says counts to its end: it may quote a long name before it says what is missing.
    let mut whole = one_line(&message);
    if whole.is_empty() {
        whole = code.canonical_reason().unwrap_or("no reason given").to_owned();
    }
    // A refusal may quote what it refuses, and an admission webhook may refuse with any code. What a Secret holds must not get into
    // conditions, Events and the status page.
    let sends_values = matches!(action, Action::Apply | Action::Delete);
    let message = match sends_values && operand.resource == "secrets" {
        true => cut(refusal::without_values(&whole, &details.causes)),
        false => cut(whole.clone()),
    };
    let after = retry_after.or(details.retry_after_seconds.map(Duration::from_secs));
    match code.as_u16() {
        401 => Cause::Unauthorized(message),
        403 => match refusal::missing_permission(action, operand, &whole) {
            Some(permission) => Cause::Forbidden {
                permission: Box::new(permission),
                // What names the user and the permission quotes nothing.
                message: cut(whole),
            },
            None => Cause::Denied(message),
        },
        404 if !operand.name.is_empty() && details.name == operand.name => Cause::Absent(message),
        404 => Cause::NotFound(message),
        409 => Cause::Conflict(message),
        410 => Cause::Gone(message),
        422 if refusal::is_other_object(&details.causes) => Cause::Conflict(message),
        422 if refusal::is_immutable(&details.causes) => Cause::Immutable(message),
        429 => Cause::Throttled { message, after },
        // Current servers report an expired continue token as 410, older ones with this reason.
        400 if reason == "Expired" => Cause::Gone(message),
        500 if refusal::is_creation_with_version(&whole) => Cause::NoPrecondition(message),
        500 if refusal::is_bad_manifest(&whole) => Cause::Rejected { code: 500, message },
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
    fn every_status_code_has_its_class_and_its_number_of_attempts() {
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
    fn only_a_404_that_names_the_object_proves_that_it_is_absent() {
        let named = |name: &str| {
            cause(
                404,
                &format!(r#"{{"message":"m","reason":"NotFound","details":{{"name":"{name}"}}}}"#),
            )
        };
        assert!(matches!(named("a"), Cause::Absent(_)));
        assert!(matches!(named("team"), Cause::NotFound(_)), "its namespace");
        assert!(
            matches!(cause(404, "404 page not found"), Cause::NotFound(_)),
            "the path of a version that is not served"
        );
    }

    #[test]
    fn retry_after_is_read_from_the_header_and_else_from_the_body() {
        let body = r#"{"message":"later","details":{"retryAfterSeconds":7}}"#;
        assert_eq!(cause(429, body).retry_after(), Some(Duration::from_secs(7)));
        let code = StatusCode::TOO_MANY_REQUESTS;
        let header = Some(Duration::from_secs(3));
        let both = classify(Action::Apply, &operand(), code, header, body.as_bytes());
        assert_eq!(both.retry_after(), header);
    }

    #[test]
    fn no_server_gets_more_than_an_hour() {
        let asks = |seconds: u64| {
            let body = format!(r#"{{"message":"later","details":{{"retryAfterSeconds":{seconds}}}}}"#);
            let code = StatusCode::SERVICE_UNAVAILABLE;
            let header = Some(Duration::from_secs(seconds));
            let in_header = classify(Action::Apply, &operand(), code, header, b"later");
            [in_header.retry_after(), cause(429, &body).retry_after()]
        };
        assert_eq!(asks(3_599), [Some(Duration::from_secs(3_599)); 2]);
        assert_eq!(asks(3_601), [Some(LONGEST_WAIT); 2]);
        assert_eq!(asks(u64::MAX), [Some(LONGEST_WAIT); 2]);
    }

    #[test]
    fn a_refusal_without_a_status_object_has_a_message() {
        assert_eq!(
            cause(503, "").to_string(),
            "API server error (HTTP 503): Service Unavailable"
        );
        assert_eq!(
            cause(429, "Too many requests, please try again later.\n").to_string(),
            "API server throttled the request (HTTP 429): Too many requests, please try again later."
        );
    }

    #[test]
    fn a_message_of_many_lines_is_shown_in_one_and_a_long_one_is_cut() {
        let lines =
            r#"Deployment.apps \"a\" is invalid: spec.selector:\n\tv1.LabelSelector{\n\t\tMatchLabels: nil}"#;
        assert_eq!(
            cause(422, &format!(r#"{{"message":"{lines}"}}"#)).to_string(),
            "rejected (HTTP 422): Deployment.apps \"a\" is invalid: spec.selector: v1.LabelSelector{ MatchLabels: nil}"
        );
        let long = cause(422, &"long ".repeat(10_000)).to_string();
        assert!(long.chars().count() < 1_100 && long.ends_with('…'), "{long}");
    }

    #[test]
    fn a_refused_secret_is_named_with_its_fields_and_never_quoted() {
        let secret = Operand {
            shown: "Secret default/a".to_owned(),
            resource: "secrets".to_owned(),
            ..operand()
        };
        let refused = |code: u16, body: &str| {
            let code = StatusCode::from_u16(code).unwrap();
            classify(Action::Apply, &secret, code, None, body.as_bytes()).to_string()
        };
        let invalid = r#"{"message":"Secret \"a\" is invalid: data[token]: Invalid value: \"s3cr3t\": no",
            "details":{"causes":[{"message":"Invalid value: \"s3cr3t\": no","field":"data[token]"}]}}"#;
        assert_eq!(
            refused(422, invalid),
            "rejected (HTTP 422): Secret \"a\" is invalid: data[token] (the rest may quote the secret)"
        );
        // Older servers quote the bytes around what they cannot read.
        let unreadable = r#"{"message":"Secret in version \"v1\" cannot be handled as a Secret: v1.Secret.Data: ...|\"token\":\"s3cr3t\"}|..."}"#;
        let denied = r#"{"message":"admission webhook \"w.example\" denied the request: s3cr3t is weak"}"#;
        for (code, body, begin) in [
            (
                400,
                unreadable,
                "rejected (HTTP 400): Secret in version \"v1\" cannot be handled as a Secret",
            ),
            (
                403,
                denied,
                "denied by admission (HTTP 403): admission webhook \"w.example\" denied the request",
            ),
        ] {
            assert_eq!(
                refused(code, body),
                format!("{begin} (the rest may quote the secret)")
            );
        }
        for code in [404, 409, 410, 429, 500, 503] {
            let shown = refused(code, denied);
            assert!(
                !shown.contains("s3cr3t") && shown.contains("w.example"),
                "{shown}"
            );
        }
        for said in [
            "etcdserver: request timed out",
            "Internal error occurred: failed calling webhook \"w.example\": no route",
        ] {
            let shown = refused(500, &serde_json::json!({"message": said}).to_string());
            assert!(
                shown.contains("timed out") || shown.contains("w.example"),
                "{shown}"
            );
        }
        // What names the user and the permission quotes nothing.
        let forbidden =
            r#"{"message":"secrets \"a\" is forbidden: User \"u\" cannot patch resource \"secrets\""}"#;
        assert!(refused(403, forbidden).contains("User \"u\""));
    }

    #[test]
    fn a_permission_that_is_named_behind_a_long_quotation_is_missing_all_the_same() {
        let rules = "{APIGroups:[apps], Resources:[deployments]} ".repeat(100);
        let message = format!(
            "clusterroles is forbidden: {rules} user is attempting to grant RBAC permissions not currently held"
        );
        assert!(
            matches!(cause(403, &message), Cause::Forbidden { permission, .. } if permission.verb == "escalate")
        );
    }

    #[test]
    fn a_500_about_the_manifest_is_a_rejection_and_not_a_server_error() {
        let version = r#"{"message":"resourceVersion should not be set on objects to be created"}"#;
        assert!(matches!(cause(500, version), Cause::NoPrecondition(_)));
        let schema = r#"{"message":"failed to create typed patch object: .spec.ports: element 0: …"}"#;
        let cause = cause(500, schema);
        assert!(matches!(cause, Cause::Rejected { code: 500, .. }) && cause.attempts() == 1);
    }

    #[test]
    fn an_immutable_uid_is_a_conflict_and_not_a_reason_to_recreate() {
        let body = r#"{"reason":"Invalid","message":"m","details":{"causes":[
            {"reason":"FieldValueInvalid","message":"Invalid value: \"x\": field is immutable","field":"metadata.uid"}]}}"#;
        assert!(matches!(cause(422, body), Cause::Conflict(_)));
    }
}
