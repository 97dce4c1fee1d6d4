//! Child processes that do not outlive this process.

use std::env;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::Error;
use quorate::cli::companion::find_on_path;

/// Lines of a process's output that an error shows.
const SHOWN_LINES: usize = 12;

/// Limit until a dropped process has died of SIGKILL; after it, reaping is left to the kernel. It takes milliseconds, unless
/// the disk hangs.
const REAP_LIMIT: Duration = Duration::from_secs(5);

/// A program with its arguments and environment. It can be started any number of times.
#[derive(Clone, Debug)]
pub struct Program {
    /// The process's name in messages.
    pub name: String,
    /// The program file.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables added to the environment.
    pub env: Vec<(String, OsString)>,
    /// Prefix of the variables of this process that it does not inherit: each would stand in for a flag.
    pub hidden_env: &'static str,
    /// The file to which its stdout and stderr are appended.
    pub log: PathBuf,
}

impl Program {
    /// Starts it in a process group of its own: Ctrl-C in the terminal reaches this process alone, which stops its children
    /// in order.
    ///
    /// Where `setpriv` (util-linux) is installed, the kernel kills it when the *thread* that calls this ends, so that it
    /// does not survive a SIGKILL of this process. Call it from a thread that lives as long as the process should.
    pub fn start(&self) -> Result<Supervised, Error> {
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .map_err(Error::write(&self.log))?;
        let log_start = log.metadata().map_err(Error::read(&self.log))?.len();
        let errors = log.try_clone().map_err(Error::write(&self.log))?;
        let mut command = match find_on_path("setpriv") {
            Some(setpriv) => {
                let mut command = Command::new(setpriv);
                command.args(["--pdeathsig", "KILL", "--"]).arg(&self.path);
                command
            }
            None => Command::new(&self.path),
        };
        command
            .args(&self.args)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with(self.hidden_env) && !self.hidden_env.is_empty() {
                command.env_remove(name);
            }
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let started = |source| Error::Start {
            name: self.name.clone(),
            path: self.path.clone(),
            source,
        };
        let child = command.spawn().map_err(started)?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .ok_or_else(|| started(std::io::ErrorKind::NotFound.into()))?;
        Ok(Supervised {
            program: self.clone(),
            child,
            pid,
            log_start,
            ended: None,
        })
    }
}

/// A process with its process group. Dropping it kills the group and reaps the process.
#[derive(Debug)]
pub struct Supervised {
    program: Program,
    child: Child,
    pid: Pid,
    /// Length of the log before this start, written by earlier runs.
    log_start: u64,
    ended: Option<ExitStatus>,
}

impl Supervised {
    /// Its process id, which is the id of its group, too.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Its exit status; none while it runs.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            // An error means that the child is reaped already; `exited` reports it.
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Waits until it ends. Safe to cancel.
    pub async fn exited(&mut self) -> Result<ExitStatus, Error> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        let status = self.child.wait().await.map_err(|source| Error::Wait {
            name: self.program.name.clone(),
            source,
        })?;
        self.ended = Some(status);
        Ok(status)
    }

    /// Asks it to stop (SIGTERM).
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Suspends it (SIGSTOP), as a suspended machine would.
    pub fn pause(&mut self) {
        self.signal(Signal::STOP);
    }

    /// Resumes it (SIGCONT) after [`pause`](Self::pause).
    pub fn resume(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Kills it (SIGKILL) and waits until it has ended.
    pub async fn kill(&mut self) -> Result<ExitStatus, Error> {
        self.signal(Signal::KILL);
        self.exited().await
    }

    /// Asks it to stop, and kills it if it runs after `limit`. Resumes a paused process.
    pub async fn stop(&mut self, limit: Duration) -> Result<ExitStatus, Error> {
        self.terminate();
        self.resume();
        match timeout(limit, self.exited()).await {
            Ok(exited) => exited,
            Err(_) => self.kill().await,
        }
    }

    /// Its output since this start.
    pub fn output(&self) -> Result<String, Error> {
        let read = || {
            let mut file = File::open(&self.program.log)?;
            file.seek(SeekFrom::Start(self.log_start))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().map_err(Error::read(&self.program.log))
    }

    /// The end of its output, indented, for messages. Never fails.
    pub fn last_lines(&self) -> String {
        let output = match self.output() {
            Ok(output) => output,
            Err(error) => return format!("    ({error})"),
        };
        let lines: Vec<&str> = output.lines().collect();
        if lines.is_empty() {
            return "    (it wrote nothing)".to_owned();
        }
        lines[lines.len().saturating_sub(SHOWN_LINES)..]
            .iter()
            .map(|line| format!("    {line}"))
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The error for an end by itself, with this exit status.
    pub fn ended_error(&self, status: ExitStatus) -> Error {
        Error::Ended {
            name: self.program.name.clone(),
            status,
            last_lines: self.last_lines(),
        }
    }

    /// Repeats `ask` until it answers `Ok`, the process ends, or `limit` has passed. The error of `ask` says what it saw.
    pub async fn wait_until<F>(&mut self, limit: Duration, mut ask: impl FnMut() -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), String>>,
    {
        // Short compared with every start, and long enough to cost nothing.
        const INTERVAL: Duration = Duration::from_millis(50);
        let begun = Instant::now();
        loop {
            let seen = match ask().await {
                Ok(()) => return Ok(()),
                Err(seen) => seen,
            };
            if let Ok(exited) = timeout(INTERVAL, self.exited()).await {
                return Err(self.ended_error(exited?));
            }
            if begun.elapsed() >= limit {
                return Err(Error::NotServing {
                    name: self.program.name.clone(),
                    waited: limit,
                    seen,
                    last_lines: self.last_lines(),
                });
            }
        }
    }

    /// Signals the whole group. Does nothing once the process is reaped: another process may have its id by then.
    fn signal(&mut self, signal: Signal) {
        if self.status().is_none() {
            // It fails only if the group has just ended.
            let _ = kill_process_group(self.pid, signal);
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        let begun = Instant::now();
        while self.status().is_none() && begun.elapsed() < REAP_LIMIT {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Waits until the first of these processes ends, and returns which and how. Waits for ever if there are none.
pub async fn first_end<'a>(processes: impl IntoIterator<Item = &'a mut Supervised>) -> Error {
    let mut ends: FuturesUnordered<_> = processes
        .into_iter()
        .map(|process| async {
            match process.exited().await {
                Ok(status) => process.ended_error(status),
                Err(error) => error,
            }
        })
        .collect();
    match ends.next().await {
        Some(error) => error,
        None => std::future::pending().await,
    }
}

/// Whether the process died of SIGKILL, as after [`Supervised::stop`] if it exceeds its limit.
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

#[cfg(test)]
mod tests;
