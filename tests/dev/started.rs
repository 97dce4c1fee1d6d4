//! A run of `quorate dev` and its child processes.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use quorate_dev::process::{Program, Supervised};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::directory::directory;
use crate::support::quorate::binary;
use crate::support::wait::{SOON, eventually};

/// Limit until a cluster is up, on a machine that is busy with other tests.
const UP: Duration = Duration::from_secs(90);

/// A run of `quorate dev` with a directory for its temporary files.
pub struct Dev {
    pub process: Supervised,
    pub temporary: TempDir,
    /// Every child process that was observed.
    pub children: BTreeSet<i32>,
}

impl Dev {
    pub fn start(args: &[&str]) -> Self {
        Self::with(args, &[])
    }

    pub fn with(args: &[&str], variables: &[(&str, OsString)]) -> Self {
        let temporary = directory();
        let files = temporary.path().join("tmp");
        std::fs::create_dir(&files).unwrap();
        let mut env = vec![("TMPDIR".to_owned(), files.into_os_string())];
        env.extend(
            variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone())),
        );
        let program = Program {
            name: "quorate dev".to_owned(),
            path: binary(),
            args: [&["dev"], args].concat().into_iter().map(Into::into).collect(),
            env,
            hidden_env: "QUORATE_",
            log: temporary.path().join("output"),
        };
        Self {
            process: program.start().unwrap(),
            temporary,
            children: BTreeSet::new(),
        }
    }

    pub fn output(&self) -> String {
        self.process.output().unwrap()
    }

    pub async fn wait_for(&mut self, text: &str) {
        let what = format!("quorate dev prints {text:?}");
        eventually(UP, &what, async || {
            self.children.extend(children_of(self.process.pid()));
            // Before its output, which it may complete before it ends.
            let ended = self.process.status();
            let output = self.output();
            if output.contains(text) {
                return Ok(());
            }
            assert!(ended.is_none(), "it ended: {output}");
            Err(output)
        })
        .await;
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.process.pid()).unwrap(), signal).unwrap();
    }

    pub async fn ended(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(SOON, self.process.exited()).await;
        ended
            .unwrap_or_else(|_| panic!("it does not end: {}", self.output()))
            .unwrap()
    }

    /// The child process with this text in its command line.
    pub fn child(&self, name: &str) -> i32 {
        self.find_child(name)
            .unwrap_or_else(|| panic!("{name} does not run"))
    }

    pub fn find_child(&self, name: &str) -> Option<i32> {
        let named = |pid: &i32| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(name)
        };
        children_of(self.process.pid()).into_iter().find(named)
    }

    /// Panics if a process, a listening port or a temporary file of the run is left.
    pub async fn assert_nothing_is_left(&self) {
        assert!(!self.children.is_empty(), "no child was seen");
        for pid in &self.children {
            assert!(!runs(*pid), "process {pid} is left");
        }
        let ports = ports_in(&self.output());
        assert!(!ports.is_empty(), "no port was printed");
        for port in ports {
            let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
            assert!(connected.is_err(), "port {port} is still served");
        }
        assert_eq!(
            files_in(&self.temporary.path().join("tmp")),
            Vec::<PathBuf>::new()
        );
    }
}

pub fn runs(pid: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A child of a killed process is a zombie until its new parent reaps it.
    !state.is_empty() && !state.contains(") Z ")
}

pub fn children_of(parent: i32) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // After the name, which may hold anything: state, parent.
            let after_name = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned());
            after_name.is_some_and(|rest| rest.split(' ').nth(1) == Some(&parent.to_string()))
        })
        .collect()
}

fn ports_in(text: &str) -> BTreeSet<u16> {
    text.split("127.0.0.1:")
        .skip(1)
        .filter_map(|rest| {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..digits].parse().ok()
        })
        .collect()
}

pub fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}
