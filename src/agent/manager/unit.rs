//! Etcd as a unit of systemd, whose file is the operator's. The agent writes what it reads (`EnvironmentFile=`), starts it and stops
//! it: an update of the agent never stops it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::environment;
use super::plan::Process;
use crate::identity::directory::{self, DirectoryError};

/// The limit of a question and of a request that is not waited for.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// The limit of a stop: longer than systemd waits before it kills (90 s).
const STOP_LIMIT: Duration = Duration::from_secs(120);

/// The mode of the file with the settings. It holds no secret.
const MODE: u32 = 0o644;

/// A unit.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Its name.
    name: String,
    /// The file with the settings, which it reads.
    file: PathBuf,
}

impl Unit {
    /// The unit of this name, for the etcd on this data directory. Its settings are in `<data directory>.env`.
    pub fn new(name: &str, data: &Path) -> Self {
        let mut file = data.as_os_str().to_owned();
        file.push(".env");
        Self {
            name: name.to_owned(),
            file: file.into(),
        }
    }

    /// Whether it runs. One that is about to be started, again or to end runs.
    pub async fn observe(&self) -> Process {
        let properties = ["show", "--property=LoadState,ActiveState,Job"];
        match self.ask(&properties, ASK_LIMIT).await {
            Ok(answer) => judge(&answer, &self.name),
            Err(error) => Process::Unknown(error.to_string()),
        }
    }

    /// Writes the settings.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn configure(&self, variables: &[(String, String)]) -> Result<(), DirectoryError> {
        directory::write(&self.file, environment::file(variables).as_bytes(), MODE)
    }

    /// Starts it. Etcd is not waited for: it serves once it is in the cluster.
    ///
    /// # Errors
    /// systemd refuses, or does not answer.
    pub async fn start(&self) -> io::Result<()> {
        // After some failures in a row systemd refuses a start. The agent has delays of its own. It fails for a unit that has not failed.
        let _ = self.ask(&["reset-failed"], ASK_LIMIT).await;
        self.ask(&["start", "--no-block"], ASK_LIMIT).await.map(drop)
    }

    /// Stops it, and waits until it has ended.
    ///
    /// # Errors
    /// systemd refuses, or does not answer.
    pub async fn stop(&self) -> io::Result<()> {
        self.ask(&["stop"], STOP_LIMIT).await.map(drop)
    }

    /// Runs a command of systemctl about this unit; what it prints.
    async fn ask(&self, words: &[&str], limit: Duration) -> io::Result<String> {
        let name = [OsStr::new("--"), OsStr::new(&self.name)];
        let mut command = Command::new("systemctl");
        command.args(words).args(name);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let done = timeout(limit, command.output()).await;
        let output =
            done.map_err(|_| io::Error::other(format!("systemctl does not answer within {limit:?}")))?;
        let output = output.map_err(|error| io::Error::new(error.kind(), format!("systemctl: {error}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let words = words.first().copied().unwrap_or_default();
        Err(io::Error::other(format!(
            "systemctl {words} {}: {}",
            self.name,
            said.trim()
        )))
    }
}

/// What `systemctl show` says.
fn judge(answer: &str, name: &str) -> Process {
    let property = |name: &str| {
        let mut lines = answer.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    };
    // A start that is queued has begun.
    let is_queued = property("Job").is_some_and(|job| !matches!(job, "" | "0"));
    match (property("LoadState"), property("ActiveState")) {
        (Some("loaded"), Some(_)) if is_queued => Process::Running,
        (Some("loaded"), Some("inactive" | "failed")) => Process::Stopped,
        (Some("loaded"), Some(_)) => Process::Running,
        (Some(state), _) => Process::Unknown(format!("systemd has no unit {name} that it can use ({state})")),
        (None, _) => Process::Unknown(format!("systemd says nothing about {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_runs_while_it_is_active_and_what_systemd_cannot_use_is_unknown() {
        let judge = |load: &str, active: &str| {
            let answer = format!("LoadState={load}\nActiveState={active}\n");
            super::judge(&answer, "quorate-etcd")
        };
        for active in ["active", "activating", "deactivating", "reloading"] {
            assert_eq!(judge("loaded", active), Process::Running, "{active}");
        }
        for stopped in ["inactive", "failed"] {
            assert_eq!(judge("loaded", stopped), Process::Stopped, "{stopped}");
        }
        for load in ["not-found", "masked", "error"] {
            let Process::Unknown(why) = judge(load, "inactive") else {
                panic!("{load}");
            };
            assert!(why.contains("quorate-etcd") && why.contains(load), "{why}");
        }
        assert!(matches!(super::judge("", "u"), Process::Unknown(_)));
        let queued = "LoadState=loaded\nActiveState=inactive\nJob=17\n";
        assert_eq!(super::judge(queued, "u"), Process::Running);
    }

    #[test]
    fn its_settings_are_beside_the_data_directory() {
        let home = tempfile::tempdir().unwrap();
        let unit = Unit::new("quorate-etcd", &home.path().join("etcd"));
        unit.configure(&[("ETCD_NAME".to_owned(), "n1".to_owned())])
            .unwrap();
        let written = std::fs::read_to_string(home.path().join("etcd.env")).unwrap();
        assert_eq!(written, "ETCD_NAME=\"n1\"\n");
    }
}
