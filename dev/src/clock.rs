//! Processes whose wall clock is wrong.

use std::ffi::OsString;
use std::path::PathBuf;

use super::Error;

/// The variables that set the wall clock of a process off by `offset`, such as `+1d`. Its monotonic clock is right.
///
/// # Errors
/// [`Error::NotInstalled`] without libfaketime.
pub fn off_by(offset: &str) -> Result<[(&'static str, OsString); 3], Error> {
    Ok([
        ("LD_PRELOAD", library()?.into()),
        ("FAKETIME", offset.into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
    ])
}

/// libfaketime, which Debian keeps below the folder of the architecture.
fn library() -> Result<PathBuf, Error> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    libraries
        .find(|library| library.exists())
        .ok_or(Error::NotInstalled {
            program: "libfaketime",
            hint: "`make prepare` installs it",
        })
}
