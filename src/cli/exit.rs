//! Exit codes, and failures as a person reads them.

use std::fmt;
use std::process::ExitCode;

use crate::etcd::{Error, StoreLost};

/// The exit codes, as the end of `--help` lists them.
pub const TABLE: &str = "Exit codes: 0 done, 1 failed, 2 timed out, 3 not found, 4 refused (the reason says by which rule), \
                         5 conflict, 6 warnings found, 7 faults found, 64 usage.";

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command did what was asked.
    Done = 0,
    /// A server, a file or the network failed.
    Failed = 1,
    /// The time given with `--timeout` is over.
    TimedOut = 2,
    /// A named object does not exist.
    NotFound = 3,
    /// A rule forbids it. The message names the rule.
    Refused = 4,
    /// Someone else changed the object meanwhile.
    Conflict = 5,
    /// `doctor` found something that will matter, and nothing worse.
    Warnings = 6,
    /// `doctor` found something that does not work, or endangers data.
    Faults = 7,
    /// The command line or a given file is wrong (`EX_USAGE` of sysexits.h).
    Usage = 64,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a command failed: what was tried on which object, and a hint at what to do about it.
#[derive(Debug)]
pub struct Failure {
    /// The exit code of the command.
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

    /// Exit code 3.
    pub fn not_found(message: impl fmt::Display) -> Self {
        Self::new(Exit::NotFound, message)
    }

    /// Exit code 5.
    pub fn conflict(message: impl fmt::Display) -> Self {
        Self::new(Exit::Conflict, message)
    }

    /// Exit code 4, by the named rule.
    pub fn refused(rule: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self::new(Exit::Refused, format!("refused by rule {rule}: {why}"))
    }

    /// Exit code 64.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// One failure that lists several under a headline, with the exit code of the first.
    ///
    /// # Errors
    /// That failure, unless there is none to list.
    pub fn all(headline: &str, failures: &[Self]) -> Result<(), Self> {
        let Some(first) = failures.first() else {
            return Ok(());
        };
        let lines = failures
            .iter()
            .map(|failure| format!("\n{failure}").replace('\n', "\n  "));
        Err(Self::new(
            first.exit,
            format!("{headline}{}", lines.collect::<String>()),
        ))
    }

    /// Puts before the message which object or document it concerns.
    #[must_use]
    pub fn on(mut self, subject: impl fmt::Display) -> Self {
        self.message = format!("{subject}: {}", self.message);
        self
    }

    /// Adds a hint at what the reader can do about it.
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

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::failed(error)
    }
}

impl From<StoreLost> for Failure {
    fn from(lost: StoreLost) -> Self {
        Self::failed(lost)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_failures_are_listed_with_their_hints_and_end_with_the_code_of_the_first() {
        assert!(Failure::all("nothing was written", &[]).is_ok());
        let failures = [
            Failure::new(Exit::Conflict, "changed")
                .hint("get it again")
                .on("node/n1"),
            Failure::failed("no answer").on("node/n2"),
        ];
        let all = Failure::all("nothing was written", &failures).unwrap_err();
        assert_eq!(all.exit, Exit::Conflict);
        assert_eq!(
            all.to_string(),
            "nothing was written\n  node/n1: changed\n    get it again\n  node/n2: no answer"
        );
    }
}
