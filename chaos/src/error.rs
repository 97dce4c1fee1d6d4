//! Why a run could not be carried out. A broken invariant is no such error.

use std::io;
use std::path::{Path, PathBuf};

/// A run that says nothing about the product.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A server did not start or stop.
    #[error(transparent)]
    Server(#[from] quorate_dev::Error),
    /// A file could not be written.
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
    /// The history that was written cannot be read.
    #[error("the history cannot be read")]
    History(#[from] crate::history::Unreadable),
    /// The harness could not do its part.
    #[error("{0}")]
    Harness(String),
}

impl Error {
    /// The error of writing this file.
    pub fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }

    /// The error of reading this file.
    pub fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }
}
