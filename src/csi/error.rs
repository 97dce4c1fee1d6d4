//! What went wrong with a call, or with making a plugin ready for calls.

use tonic::{Code, Status};

use super::class::{Class, Effect, Method, classify, effect};
use super::endpoint::Endpoint;
use super::secret::Secrets;
use crate::causes::with_causes;
use crate::grpc_code;

/// Characters of a plugin's message that are kept. Some plugins print their whole request or the output of a program.
const LONGEST_MESSAGE: usize = 512;

/// A call that did not succeed. Holds no secret: the message is scrubbed of the values that the call was made with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{method}: {}: {message}", grpc_code::name(*code))]
pub struct CallError {
    /// Which call.
    pub method: Method,
    /// The gRPC code, the plugin's or the transport's.
    pub code: Code,
    /// What the plugin or the transport said, on one line and cut to a bearable length.
    pub message: String,
}

impl CallError {
    /// What follows from it.
    pub fn class(&self) -> Class {
        classify(self.method, self.code)
    }

    /// Whether the call may have had an effect all the same.
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
        // What the transport says itself, such as "transport error", has causes; what a plugin says has none.
        let text = with_causes(status.message(), std::error::Error::source(status));
        let mut message = presentable(&secrets.scrub(&text));
        if message.is_empty() {
            message = "no message".to_owned();
        }
        Self::new(method, status.code(), message)
    }
}

/// One line of a bearable length. Cut after scrubbing: half a secret value would not be recognised.
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

/// Why no call can be made to a plugin now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Nobody answers at its endpoint.
    #[error("cannot connect to {endpoint}: {message}")]
    Unreachable {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        message: String,
    },
    /// It said itself that it is not ready yet.
    #[error("the plugin at {endpoint} is still starting")]
    Starting {
        /// Where.
        endpoint: Endpoint,
    },
    /// It did not answer what must be known before it is used.
    #[error("the plugin at {endpoint} did not introduce itself: {failure}")]
    Handshake {
        /// Where.
        endpoint: Endpoint,
        /// Which question, and what became of it.
        failure: CallError,
    },
    /// Another driver listens at its endpoint.
    #[error("the plugin at {endpoint} is {answered:?}, not {expected:?}")]
    OtherDriver {
        /// Where.
        endpoint: Endpoint,
        /// The name that it gave.
        answered: String,
        /// The name that it should have.
        expected: String,
    },
}

impl NotReady {
    /// One word, as the reason of a condition.
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
        let failure = CallError::from_status(Method::CreateVolume, &Status::internal(text), &secrets);
        assert!(!failure.message.contains("s3cr"), "{}", failure.message);
        assert_eq!(failure.message.chars().count(), LONGEST_MESSAGE + 1);
    }

    #[test]
    fn a_message_is_one_line() {
        let status = Status::internal("first\nsecond\t\u{1b}[31mred\r\n");
        let failure = CallError::from_status(Method::DeleteVolume, &status, &Secrets::none());
        assert_eq!(failure.message, "first second [31mred");
        assert_eq!(
            failure.to_string(),
            "DeleteVolume: Internal: first second [31mred"
        );
        let silent = CallError::from_status(Method::DeleteVolume, &Status::internal(""), &Secrets::none());
        assert_eq!(silent.message, "no message");
    }
}
