//! What can go wrong while servers are started, watched and stopped.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// One variant per operation, with its operand.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program is nowhere where it is looked for.
    #[error("{program} is not installed: {hint}")]
    NotInstalled {
        /// Its file name.
        program: &'static str,
        /// How to get it.
        hint: &'static str,
    },
    /// The programs of this workspace could not be built.
    #[error("cannot build the programs of this workspace: {reason}")]
    Build {
        /// Why.
        reason: String,
    },
    /// The operating system could not start a program.
    #[error("cannot start {name} ({})", path.display())]
    Start {
        /// What the process is called here.
        name: String,
        /// The program file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A process ended that should have gone on.
    #[error("{name} ended ({status}); the last lines of its log are:\n{last_lines}")]
    Ended {
        /// What the process is called here.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its output, indented.
        last_lines: String,
    },
    /// A process runs, but did not begin to serve.
    #[error("{name} does not serve after {waited:?} ({seen}); the last lines of its log are:\n{last_lines}")]
    NotServing {
        /// What the process is called here.
        name: String,
        /// How long was waited.
        waited: Duration,
        /// The last answer.
        seen: String,
        /// The end of its output, indented.
        last_lines: String,
    },
    /// A process that does not run cannot be waited for.
    #[error("{name} was not started")]
    NotStarted {
        /// What the process is called here.
        name: String,
    },
    /// A process could not be waited for.
    #[error("cannot wait for {name}")]
    Wait {
        /// What the process is called here.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// A file or directory could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of an earlier run does not hold what this program writes there.
    #[error("{} is not a record of an earlier run", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A data directory holds a cluster of another size than the one asked for.
    #[error("{} holds an etcd cluster of {found}, not of {wanted}", path.display())]
    OtherSize {
        /// The directory.
        path: PathBuf,
        /// Members of the cluster that is there.
        found: usize,
        /// Members asked for.
        wanted: usize,
    },
    /// A data directory is something else.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// What was given.
        path: PathBuf,
    },
    /// A data directory holds files, and none of an earlier run.
    #[error("{} holds files that are not from an earlier run", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// A data directory is used by another cluster.
    #[error("{} is in use by process {holder}", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that uses it.
        holder: String,
    },
    /// No loopback port could be had.
    #[error("no free port on 127.0.0.1")]
    Ports(#[source] io::Error),
    /// A key or certificate could not be made.
    #[error("cannot make a certificate for {subject}")]
    Certificate {
        /// Whom it was for.
        subject: String,
        /// Why.
        source: rcgen::Error,
    },
}

impl Error {
    /// Whether a process ended because another one has its port: the start is worth repeating on other ports.
    pub fn is_address_in_use(&self) -> bool {
        matches!(self, Self::Ended { last_lines, .. } if last_lines.contains("address already in use"))
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }

    pub(crate) fn malformed(path: &Path) -> impl FnOnce(serde_json::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Malformed { path, source }
    }
}
