//! What agents need before they can join: authorities, and a token. Both are made as a person makes them, by commands.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::Error;
use super::command::run;
use super::pki::write_private;

/// The exit code of a command that finds what it would make.
const EXISTS: i32 = 5;

/// The directory of the authorities (`--ca-dir`) below this one. Those of an earlier run are used again: agents know them.
pub async fn authorities(binary: &Path, directory: &Path) -> Result<PathBuf, Error> {
    let ca = directory.join("ca");
    if !ca.join("current").exists() {
        let args: [&OsStr; 4] = ["ca".as_ref(), "init".as_ref(), "-o".as_ref(), ca.as_os_str()];
        run(binary, &args, "").await?.expect_done()?;
    }
    Ok(ca)
}

/// The file with the token of workers, below the directory of a run.
pub fn token_file(directory: &Path) -> PathBuf {
    directory.join("worker.token")
}

/// The file with the token of workers. That of an earlier run lets in as well.
pub async fn worker_token(
    binary: &Path,
    directory: &Path,
    ca: &Path,
    etcd: &[String],
) -> Result<PathBuf, Error> {
    let file = token_file(directory);
    if file.exists() {
        return Ok(file);
    }
    let make = async |verb: &'static str| {
        let args: [&OsStr; 5] = [
            "token".as_ref(),
            OsStr::new(verb),
            "--role=worker".as_ref(),
            "--ca-dir".as_ref(),
            ca.as_os_str(),
        ];
        let args: Vec<&OsStr> = args.into_iter().chain(etcd.iter().map(OsStr::new)).collect();
        run(binary, &args, "").await
    };
    let mut made = make("create").await?;
    if made.code == Some(EXISTS) {
        // A run that was interrupted has made one, and not kept it.
        made = make("rotate").await?;
    }
    write_private(&file, &made.expect_done()?)?;
    Ok(file)
}
