//! Exit codes, and failures as a person reads them.

use std::fmt;
use std::process::ExitCode;

/// Shown at the end of `--help`.
pub const TABLE: &str = "Exit codes: 0 done, 1 failed, 2 timed out, 3 not found, 4 refused (the reason says by which rule), \
                         5 conflict, 64 usage.";

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did what was asked.
    Done = 0,
    /// Something did not work: a server, a file, the network.
    Failed = 1,
    /// It did not happen within the given time.
    TimedOut = 2,
    /// The named thing does not exist.
    NotFound = 3,
    /// A rule forbids it; the message names the rule.
    Refused = 4,
    /// Someone else changed it meanwhile.
    Conflict = 5,
    /// The command line or a file given to it is wrong (`EX_USAGE` of sysexits.h).
    Usage = 64,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a command failed: what was tried, on what, and what to do about it.
#[derive(Debug)]
pub struct Failure {
    /// The exit code that this failure means.
    pub exit: Exit,
    message: String,
    hint: Option<String>,
}

impl Failure {
    /// A failure with this exit code.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self {
            exit,
            message: message.to_string(),
            hint: None,
        }
    }

    /// Exit code 1.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(Exit::Failed, message)
    }

    /// Exit code 64.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Adds what the reader can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}
