//! The etcd of the node, whichever way it is started.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

use super::Launch;
use super::child::{self, Program, Running};
use super::plan::Process;
use super::unit::Unit;

/// How often a unit is asked whether it still runs.
const LOOK: Duration = Duration::from_secs(1);

/// The etcd of the node.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "an agent has one of it")]
pub enum Etcd {
    /// A process that the agent starts.
    Child {
        /// How.
        program: Program,
        /// Its data directory.
        data: PathBuf,
        /// The process, while it runs.
        running: Option<Running>,
        /// Whether what runs was looked through for one that an earlier agent has started, or that a program in between has left. From
        /// then on until one ends this agent starts each.
        was_looked_for: bool,
    },
    /// A unit of systemd.
    Unit(Unit),
}

impl Etcd {
    /// That on this data directory.
    pub fn new(launch: &Launch, data: PathBuf) -> Self {
        match launch {
            Launch::Unit(name) => Self::Unit(Unit::new(name, &data)),
            Launch::Child(program) => Self::Child {
                program: program.clone(),
                data,
                running: None,
                was_looked_for: false,
            },
        }
    }

    /// Whether it runs.
    pub async fn observe(&mut self) -> Process {
        match self {
            Self::Unit(unit) => unit.observe().await,
            Self::Child {
                data,
                running,
                was_looked_for,
                ..
            } => {
                if !*was_looked_for {
                    match child::find(data) {
                        Ok(found) => *running = found,
                        Err(error) => return Process::Unknown(error.to_string()),
                    }
                    *was_looked_for = true;
                }
                match running {
                    Some(_) => Process::Running,
                    None => Process::Stopped,
                }
            }
        }
    }

    /// Waits until it has ended by itself, and says how. A unit is asked for its state instead, time and again: this waits for ever.
    /// Safe to cancel.
    pub async fn ended(&mut self) -> String {
        match self {
            Self::Child {
                running: Some(process),
                ..
            } => process.ended().await,
            _ => std::future::pending().await,
        }
    }

    /// Waits until it does not run any more. Safe to cancel.
    pub async fn gone(&mut self) {
        loop {
            tokio::select! {
                _ = self.ended() => return,
                () = sleep(LOOK) => {}
            }
            if self.observe().await == Process::Stopped {
                return;
            }
        }
    }

    /// It has ended, as [`ended`](Self::ended) says.
    pub fn forget(&mut self) {
        if let Self::Child {
            running,
            was_looked_for,
            ..
        } = self
        {
            (*running, *was_looked_for) = (None, false);
        }
    }

    /// Gives it other settings for its next start, where it starts again by itself.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn configure(&self, variables: &[(String, String)]) -> io::Result<()> {
        match self {
            Self::Unit(unit) => unit.configure(variables).map_err(io::Error::other),
            Self::Child { .. } => Ok(()),
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start(&mut self, variables: &[(String, String)]) -> io::Result<()> {
        self.configure(variables)?;
        match self {
            Self::Unit(unit) => unit.start().await,
            Self::Child {
                program,
                data,
                running,
                was_looked_for,
            } => match child::start(program, data, variables) {
                Ok(started) => {
                    *running = Some(started);
                    Ok(())
                }
                Err(error) => {
                    // It may run all the same, where the process could not be held.
                    *was_looked_for = false;
                    let path = program.path.display();
                    Err(io::Error::new(
                        error.kind(),
                        format!("cannot start {path}: {error}"),
                    ))
                }
            },
        }
    }

    /// Stops it. Safe to cancel, and to repeat.
    ///
    /// # Errors
    /// It runs all the same, as far as is known.
    pub async fn stop(&mut self) -> io::Result<()> {
        match self {
            Self::Unit(unit) => unit.stop().await,
            Self::Child {
                running,
                was_looked_for,
                ..
            } => {
                if let Some(process) = running {
                    process.stop().await?;
                }
                // A script may have been stopped, and not the etcd that it has started: its data must not be set aside as yet.
                (*running, *was_looked_for) = (None, false);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[tokio::test]
    async fn an_etcd_that_a_script_has_left_is_found_and_stopped_too() {
        let home = tempfile::tempdir().unwrap();
        let (path, data) = (home.path().join("etcd.sh"), home.path().join("etcd"));
        fs::write(&path, "#!/bin/sh\nsleep 1000 &\nwait\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let program = Program {
            path,
            ends_with_agent: false,
        };
        let mut etcd = Etcd::new(&Launch::Child(program), data.clone());
        loop {
            match etcd.start(&[]).await {
                // Another test forks with the script open for writing.
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                started => break started.unwrap(),
            }
        }
        while etcd.observe().await == Process::Running {
            etcd.stop().await.unwrap();
        }
        assert!(child::find(&data).unwrap().is_none());
    }
}
