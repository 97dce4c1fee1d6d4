//! Errors of starting, watching and stopping servers.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// A failed operation, with its operand.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program is not found.
    #[error("{program} is not installed: {hint}")]
    NotInstalled {
        /// The program's file name.
        program: &'static str,
        /// How to get it.
        hint: &'static str,
    },
    /// The programs of this workspace could not be built.
    #[error("cannot build the programs of this workspace: {reason}")]
    Build {
        /// The reason, for people.
        reason: String,
    },
    /// The operating system could not start a program.
    #[error("cannot start {name} ({})", path.display())]
    Start {
        /// The process's name in messages.
        name: String,
        /// The program file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A process ended by itself.
    #[error("{name} ended ({status}); the last lines of its log are:\n{last_lines}")]
    Ended {
        /// The process's name in messages.
        name: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output, indented.
        last_lines: String,
    },
    /// A process runs and does not serve within its limit.
    #[error("{name} does not serve after {waited:?} ({seen}); the last lines of its log are:\n{last_lines}")]
    NotServing {
        /// The process's name in messages.
        name: String,
        /// The limit.
        waited: Duration,
        /// The last answer.
        seen: String,
        /// The end of its output, indented.
        last_lines: String,
    },
    /// A process to wait for was not started.
    #[error("{name} was not started")]
    NotStarted {
        /// The process's name in messages.
        name: String,
    },
    /// A process could not be waited for.
    #[error("cannot wait for {name}")]
    Wait {
        /// The process's name in messages.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// A file or directory could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file of an earlier run is not in the format that this program writes.
    #[error("{} is not a record of an earlier run", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
    /// A data directory holds a cluster of another size than the one asked for.
    #[error("{} holds an etcd cluster of {found}, not of {wanted}", path.display())]
    OtherSize {
        /// The directory.
        path: PathBuf,
        /// Members of the existing cluster.
        found: usize,
        /// Members asked for.
        wanted: usize,
    },
    /// The path of a data directory is not a directory.
    #[error("{} is not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// A data directory holds files, and no lock file of an earlier run.
    #[error("{} holds files that are not from an earlier run", path.display())]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// Another cluster uses the data directory.
    #[error("{} is in use by process {holder}", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The id of the process that uses it.
        holder: String,
    },
    /// A command failed.
    #[error("{command} failed: {stderr}")]
    Command {
        /// Its first words, that of the program included.
        command: String,
        /// What it wrote to stderr.
        stderr: String,
    },
    /// No free port was found on 127.0.0.1.
    #[error("no free port on 127.0.0.1")]
    Ports(#[source] io::Error),
    /// A key or certificate could not be generated.
    #[error("cannot make a certificate for {subject}")]
    Certificate {
        /// Its subject.
        subject: String,
        /// The cause.
        source: rcgen::Error,
    },
}

impl Error {
    /// Whether a process ended because another one has its port. A start on other ports may succeed.
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
