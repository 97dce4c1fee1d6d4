//! Commands of quorate that end.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::Error;

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its first words.
    pub command: String,
    /// Its exit code; none where a signal ended it.
    pub code: Option<i32>,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

impl Finished {
    /// Its stdout, where it succeeded.
    ///
    /// # Errors
    /// [`Error::Command`] with its stderr, where it did not.
    pub fn expect_done(self) -> Result<String, Error> {
        match self.code {
            Some(0) => Ok(self.stdout),
            _ => Err(Error::Command {
                command: format!("quorate {}", self.command),
                stderr: self.stderr.trim().to_owned(),
            }),
        }
    }
}

/// Runs a command without the variables that stand in for flags, with something on stdin. It is killed where this is dropped.
///
/// # Errors
/// The program cannot be started.
pub async fn run(binary: &Path, args: &[&OsStr], stdin: &str) -> Result<Finished, Error> {
    let words: Vec<_> = args.iter().take(2).map(|word| word.to_string_lossy()).collect();
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUORATE_") {
            command.env_remove(name);
        }
    }
    let failed = |source| Error::Start {
        name: words.join(" "),
        path: binary.to_owned(),
        source,
    };
    let mut child = command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // A command that does not read it may have closed it already.
        let _ = input.write_all(stdin.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(failed)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Finished {
        command: words.join(" "),
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    })
}
