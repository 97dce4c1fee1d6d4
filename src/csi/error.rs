//! Errors of calls, and why a plugin cannot be called.

use tonic::{Code, Status};

use super::class::{Class, Effect, Method, classify, effect};
use super::endpoint::Endpoint;
use super::secret::Secrets;
use crate::causes::with_causes;
use crate::grpc_code;

/// How many characters of a plugin's message are kept. Some plugins print their whole request, or the output of a program.
const LONGEST_MESSAGE: usize = 512;

/// How the transport's error begins for an answer that is longer than is taken.
const ANSWER_TOO_LONG: &str = "Error, decoded message length too large";

/// An error of one call. It holds no secret: the message is scrubbed of the values that the call was made with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{method}: {}: {message}", grpc_code::name(*code))]
pub struct CallError {
    /// The call that failed.
    pub method: Method,
    /// The gRPC code, the plugin's or the transport's.
    pub code: Code,
    /// What the plugin or the transport said, on one line of at most 512 characters.
    pub message: String,
}

impl CallError {
    /// What follows from the error, by the table of codes.
    pub fn class(&self) -> Class {
        classify(self.method, self.code)
    }

    /// Whether the call may have had an effect.
    pub fn effect(&self) -> Effect {
        effect(self.method, self.code)
    }

    /// The code's name, as in `FailedPrecondition`.
    pub fn code_name(&self) -> &'static str {
        grpc_code::name(self.code)
    }

    pub(super) fn new(method: Method, code: Code, message: impl Into<String>) -> Self {
        Self {
            method,
            code,
            message: message.into(),
        }
    }

    pub(super) fn from_status(method: Method, status: &Status, secrets: &Secrets) -> Self {
        // The transport's own errors, such as "transport error", have sources; a plugin's have none.
        let text = with_causes(status.message(), std::error::Error::source(status));
        let mut message = presentable(&secrets.scrub(&text));
        if message.is_empty() {
            message = "no message".to_owned();
        }
        Self::new(method, code(status), message)
    }
}

/// The code of a status. The transport says of an answer that is longer than is taken that it is out of range, which from a plugin means
/// that it has done nothing. Here it may have done everything.
fn code(status: &Status) -> Code {
    match status.code() {
        Code::OutOfRange if status.message().starts_with(ANSWER_TOO_LONG) => Code::Internal,
        code => code,
    }
}

/// One line of at most 512 characters. It is cut after scrubbing, which would not recognise half a secret value.
pub(super) fn presentable(text: &str) -> String {
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    let line = words.join(" ");
    match line.char_indices().nth(LONGEST_MESSAGE) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

/// Why a plugin cannot be called now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// No connection can be made to its endpoint.
    #[error("cannot connect to {endpoint}: {message}")]
    Unreachable {
        /// The plugin's endpoint.
        endpoint: Endpoint,
        /// The error of the connection.
        message: String,
    },
    /// It answered that it is not ready yet.
    #[error("the plugin at {endpoint} is still starting")]
    Starting {
        /// The plugin's endpoint.
        endpoint: Endpoint,
    },
    /// It failed to answer a question of the handshake.
    #[error("the handshake with the plugin at {endpoint} failed: {error}")]
    Handshake {
        /// The plugin's endpoint.
        endpoint: Endpoint,
        /// Why it failed.
        error: CallError,
    },
    /// Another driver listens at its endpoint.
    #[error("the plugin at {endpoint} is {answered:?}, not {expected:?}")]
    OtherDriver {
        /// The plugin's endpoint.
        endpoint: Endpoint,
        /// The name in its answer.
        answered: String,
        /// The name of the Plugin object.
        expected: String,
    },
}

impl NotReady {
    /// One stable word, as the reason of a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "PluginUnreachable",
            Self::Starting { .. } => "PluginStarting",
            Self::Handshake { .. } => "PluginHandshakeFailed",
            Self::OtherDriver { .. } => "PluginIsAnother",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::secret::SecretValue;
    use super::*;

    #[test]
    fn a_message_is_scrubbed_before_it_is_cut() {
        let secrets: Secrets = [("token".to_owned(), SecretValue::new("s3cr3t-value".to_owned()))]
            .into_iter()
            .collect();
        // The cut would fall into the middle of the value.
        let text = format!("{} s3cr3t-value", "x".repeat(LONGEST_MESSAGE - 6));
        let error = CallError::from_status(Method::CreateVolume, &Status::internal(text), &secrets);
        assert!(!error.message.contains("s3cr"), "{}", error.message);
        assert_eq!(error.message.chars().count(), LONGEST_MESSAGE + 1);
    }

    #[test]
    fn an_answer_that_is_too_long_is_no_refusal() {
        let of = |message: &str| {
            let status = Status::out_of_range(message);
            CallError::from_status(Method::ControllerPublishVolume, &status, &Secrets::none())
        };
        let long =
            of("Error, decoded message length too large: found 17000000 bytes, the limit is: 16777216 bytes");
        assert_eq!(
            (long.class(), long.effect()),
            (Class::Retry, Effect::Unknown),
            "{long}"
        );
        assert_eq!(of("no such size").effect(), Effect::None, "a plugin has refused");
    }

    #[test]
    fn a_message_is_one_line() {
        let status = Status::internal("first\nsecond\t\u{1b}[31mred\r\n");
        let error = CallError::from_status(Method::DeleteVolume, &status, &Secrets::none());
        assert_eq!(error.message, "first second [31mred");
        assert_eq!(error.to_string(), "DeleteVolume: Internal: first second [31mred");
        let silent = CallError::from_status(Method::DeleteVolume, &Status::internal(""), &Secrets::none());
        assert_eq!(silent.message, "no message");
    }
}
