//! Etcd as a process that the agent starts.
//!
//! It is in a process group of its own and outlives the agent, however that ends: two agents that are updated at once must not cost a
//! cluster of three its quorum. The next agent finds it by a variable in its environment, which names the data directory: nothing has
//! to be written for that, so that an agent may be killed at any moment.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Marks an etcd that an agent has started, in its environment.
const MARK: &str = "QUORATE_ETCD_OF";

/// Variables of the agent that etcd does not get: each of the first would stand for a flag, and the others are none of its business.
const HIDDEN: [&str; 2] = ["ETCD_", "QUORATE_"];

/// How long an etcd may take to end before it is killed. It moves its raft leadership first, which takes an election at most, and
/// finishes its requests.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// How often a process is looked at that has no environment, and the pause between two looks: execve(2) takes far less than both.
const EXEC_LOOKS: u32 = 20;
const EXEC_PAUSE: Duration = Duration::from_millis(1);

/// The limit until a process has died of SIGKILL: longer than a busy disk takes.
const KILL_LIMIT: Duration = Duration::from_secs(30);

/// How etcd is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program: a path, or a name that is looked for in `PATH`.
    pub path: PathBuf,
    /// The kernel kills it when the agent ends, however that ends, for clusters that last as long as a test. Needs `setpriv` of
    /// util-linux, and that it is started from a thread that lives as long as the agent.
    pub ends_with_agent: bool,
}

/// An etcd that runs.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
    /// Readable once it has ended. It names this very process, also after its id was given to another.
    process: AsyncFd<OwnedFd>,
    /// To reap it, where this process has started it.
    child: Option<Child>,
}

/// Starts etcd on this data directory. What it writes goes to the standard error of the agent.
///
/// # Errors
/// It cannot be started.
pub fn start(program: &Program, data: &Path, variables: &[(String, String)]) -> io::Result<Running> {
    let mut command = match program.ends_with_agent {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--"]).arg(&program.path);
            command
        }
        false => Command::new(&program.path),
    };
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy();
        if HIDDEN.iter().any(|prefix| shown.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    let child = command
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .env(MARK, data)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .stderr(Stdio::inherit())
        .spawn()?;
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    let pid = pid.and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("it has ended at once"))?;
    // It is not reaped, so that the id is still its own.
    Running::of(pid, Some(child))
}

/// The etcd that an agent has started on this data directory, if it still runs.
///
/// # Errors
/// What runs cannot be listed, or the process cannot be watched.
pub fn find(data: &Path) -> io::Result<Option<Running>> {
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw)
        else {
            continue;
        };
        if !is_marked(pid, data) {
            continue;
        }
        let running = match Running::of(pid, None) {
            // It has just ended.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => continue,
            running => running?,
        };
        // Now that the process is held, its id is not given to another: the mark was its own.
        if is_marked(pid, data) {
            return Ok(Some(running));
        }
    }
    Ok(None)
}

/// Whether an agent has started a process on this data directory. Another user can write the mark, too, and so does an agent in a
/// container, to whom the path means another directory.
fn is_marked(pid: Pid, data: &Path) -> bool {
    let process = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    has_mark(&process, data) && shares_directory(&process, data)
}

/// Whether the environment of a process has the mark. That of another user cannot be read, and is none.
fn has_mark(process: &Path, data: &Path) -> bool {
    let mut mark = OsString::from(MARK);
    mark.push("=");
    mark.push(data);
    for _ in 0..EXEC_LOOKS {
        let Ok(environment) = fs::read(process.join("environ")) else {
            return false;
        };
        // A process that begins another program has no environment for a moment. A thread of the kernel never has one, and no program.
        if !environment.is_empty() || fs::read_link(process.join("exe")).is_err() {
            let mut variables = environment.split(|byte| *byte == 0);
            return variables.any(|variable| variable == mark.as_bytes());
        }
        std::thread::sleep(EXEC_PAUSE);
    }
    false
}

/// Whether a process is of the user of this one, or of the user to whom the parent of the data directory belongs, and finds the same
/// directory there. Others cannot write to that, and it exists as long as an agent uses it.
fn shares_directory(process: &Path, data: &Path) -> bool {
    let Some(parent) = data.parent() else {
        return false;
    };
    let in_process = process
        .join("root")
        .join(parent.strip_prefix("/").unwrap_or(parent));
    let found = [process, parent, in_process.as_path()].map(fs::metadata);
    let [Ok(process), Ok(own), Ok(theirs)] = found else {
        return false;
    };
    let users = [geteuid().as_raw(), own.uid()];
    users.contains(&process.uid()) && (own.dev(), own.ino()) == (theirs.dev(), theirs.ino())
}

impl Running {
    fn of(pid: Pid, child: Option<Child>) -> io::Result<Self> {
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        // It owns the descriptor that it registers, which nothing else closes.
        #[allow(deprecated, reason = "what takes its place needs unsafe code")]
        let process = AsyncFd::with_interest(process, Interest::READABLE)?;
        Ok(Self { pid, process, child })
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until it has ended; how, as far as that is known. Safe to cancel.
    pub async fn ended(&mut self) -> String {
        match &mut self.child {
            Some(child) => match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            },
            None => {
                // It is never read, so that it stays readable. An error says that nothing can be waited for any more.
                let ended = self.process.readable().await.map(drop);
                ended.map_or_else(|error| error.to_string(), |()| "of an earlier agent".to_owned())
            }
        }
    }

    /// Stops it: asks it to end, then kills it. Safe to cancel, and to repeat.
    ///
    /// # Errors
    /// It runs all the same.
    pub async fn stop(&mut self) -> io::Result<()> {
        for (signal, limit) in [(Signal::TERM, STOP_LIMIT), (Signal::KILL, KILL_LIMIT)] {
            match pidfd_send_signal(&self.process, signal) {
                Err(rustix::io::Errno::SRCH) => {}
                sent => sent?,
            }
            if timeout(limit, self.ended()).await.is_ok() {
                return Ok(());
            }
        }
        Err(io::Error::other(format!("process {} does not end", self.pid())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// A program that does this.
    fn script(home: &Path, text: &str) -> Program {
        use std::os::unix::fs::PermissionsExt;
        let path = home.join("etcd.sh");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Program {
            path,
            ends_with_agent: false,
        }
    }

    /// Starts it, again while another test forks with the script open for writing.
    fn started(program: &Program, data: &Path, variables: &[(String, String)]) -> Running {
        loop {
            match start(program, data, variables) {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                started => return started.unwrap(),
            }
        }
    }

    #[tokio::test]
    async fn an_etcd_is_found_by_its_data_directory_alone_and_stopped_once() {
        let home = tempfile::tempdir().unwrap();
        let (data, other) = (home.path().join("etcd"), home.path().join("etcd-2"));
        let program = script(home.path(), "exec sleep 1000");
        assert!(find(&data).unwrap().is_none());
        let mut started = started(&program, &data, &[]);
        let mut found = find(&data).unwrap().unwrap();
        assert_eq!(found.pid(), started.pid());
        assert!(find(&other).unwrap().is_none());
        timeout(Duration::from_millis(50), found.ended())
            .await
            .unwrap_err();
        started.stop().await.unwrap();
        timeout(SOON, found.ended()).await.unwrap();
        found.stop().await.unwrap();
        assert!(find(&data).unwrap().is_none());
    }

    /// Another user, or an agent in a container, may start one with the same mark.
    #[test]
    fn a_process_of_another_user_or_with_another_directory_at_that_path_is_not_taken_over() {
        let home = tempfile::tempdir().unwrap();
        let parent = home.path().join("state");
        let data = parent.join("etcd");
        let process = home.path().join("1");
        let root = process.join("root");
        for directory in [&parent, &process] {
            fs::create_dir(directory).unwrap();
        }
        assert!(!shares_directory(&process, &data), "it has ended");
        std::os::unix::fs::symlink("/", &root).unwrap();
        assert!(shares_directory(&process, &data));
        // Only root can give it away.
        if std::os::unix::fs::chown(&process, Some(65534), None).is_ok() {
            assert!(!shares_directory(&process, &data));
            std::os::unix::fs::chown(&parent, Some(65534), None).unwrap();
            assert!(shares_directory(&process, &data), "of the user of the directory");
        }
        fs::remove_file(&root).unwrap();
        fs::create_dir_all(root.join(parent.strip_prefix("/").unwrap())).unwrap();
        assert!(!shares_directory(&process, &data));
    }

    #[tokio::test]
    async fn the_end_of_one_is_described_and_one_that_cannot_be_started_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let program = script(home.path(), "exit 7");
        let mut ends = started(&program, &home.path().join("etcd"), &[]);
        let how = timeout(SOON, ends.ended()).await.unwrap();
        assert!(how.contains('7'), "{how}");
        let refused = Program {
            path: home.path().join("nothing"),
            ends_with_agent: false,
        };
        start(&refused, home.path(), &[]).unwrap_err();
    }

    #[tokio::test]
    async fn it_gets_its_settings_and_no_variable_of_the_agent() {
        let home = tempfile::tempdir().unwrap();
        let seen = home.path().join("seen");
        let program = script(
            home.path(),
            &format!("env > {}.part && mv {0}.part {0}", seen.display()),
        );
        let variables = vec![("ETCD_NAME".to_owned(), "n 1".to_owned())];
        let mut started = started(&program, &home.path().join("etcd"), &variables);
        timeout(SOON, started.ended()).await.unwrap();
        let seen = fs::read_to_string(&seen).unwrap();
        assert!(seen.contains("ETCD_NAME=n 1"), "{seen}");
        let marks = seen.lines().filter(|line| line.starts_with("QUORATE_")).count();
        assert_eq!(marks, 1, "{seen}");
    }
}
