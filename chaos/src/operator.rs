//! Commands of an operator on the cluster, recorded.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate::csi::Endpoint;
use quorate_dev::command::{self, Finished};
use tokio::time::{sleep, timeout};

use crate::Error;
use crate::admin;
use crate::history::{Command, Role, What};
use crate::polls;
use crate::recorder::Recorder;

/// The name of the plugin.
pub const DRIVER: &str = "chaos.csi.quorate.dev";

/// How long a command may take. In the middle of faults etcd may not answer for long.
const COMMAND_LIMIT: Duration = Duration::from_secs(25);

/// For how long members were lost when a node is demoted because of that. No answer of theirs is as old that a leader counts.
const RISK: Duration = Duration::from_secs(6);

/// How long a command is repeated that has to succeed. A node that is about to become a manager is demoted once it is one.
const PERSISTENCE: Duration = Duration::from_secs(240);

/// Who runs commands of `quorate`. They reach the members directly, not through the proxies of the replicas.
#[derive(Clone)]
pub struct Operator {
    binary: PathBuf,
    endpoints: Vec<String>,
    recorder: Arc<Recorder>,
}

impl Operator {
    /// On the members at these URLs.
    pub fn new(binary: &Path, endpoints: Vec<String>, recorder: Arc<Recorder>) -> Self {
        Self {
            binary: binary.to_owned(),
            endpoints,
            recorder,
        }
    }

    /// Runs a command, with something on stdin; none where it did not end in time and was killed.
    ///
    /// # Errors
    /// The program cannot be started.
    pub async fn run(&self, args: &[&str], stdin: &str) -> Result<Option<Finished>, Error> {
        self.recorder.started("operator", Role::Operator);
        let (at, by) = (self.recorder.now(), self.recorder.current("operator"));
        let endpoints = format!("--etcd-endpoints={}", self.endpoints.join(","));
        let all: Vec<&OsStr> = args
            .iter()
            .copied()
            .chain([endpoints.as_str()])
            .map(OsStr::new)
            .collect();
        let ended = timeout(COMMAND_LIMIT, command::run(&self.binary, &all, stdin)).await;
        let finished = ended.ok().transpose()?;
        let command = Command {
            by,
            args: args.iter().map(ToString::to_string).collect(),
            ended: self.recorder.now(),
            code: finished.as_ref().and_then(|finished| finished.code),
        };
        self.recorder.record(at, What::Command(command));
        Ok(finished)
    }

    /// Runs a command until it ends with one of these codes.
    ///
    /// # Errors
    /// It does not within some minutes.
    pub async fn insist(&self, args: &[&str], stdin: &str, codes: &[i32]) -> Result<String, Error> {
        let begun = Instant::now();
        loop {
            let finished = self.run(args, stdin).await?;
            let code = finished.as_ref().and_then(|finished| finished.code);
            match finished {
                Some(finished) if code.is_some_and(|code| codes.contains(&code)) => {
                    return Ok(finished.stdout);
                }
                finished if begun.elapsed() > PERSISTENCE => {
                    let said = finished.map_or("no end".to_owned(), |finished| finished.stderr);
                    return Err(Error::Harness(format!("quorate {}: {said}", args.join(" "))));
                }
                _ => sleep(Duration::from_secs(1)).await,
            }
        }
    }

    /// Writes that the desired role of a node is worker, as a program may that knows nothing of the checks of `quorate demote`. The
    /// leader checks again.
    pub async fn write_worker(&self, node: &str) {
        self.recorder.started("operator", Role::Operator);
        let (at, by) = (self.recorder.now(), self.recorder.current("operator"));
        let is_written = admin::write_worker(&self.endpoints, node).await;
        let command = Command {
            by,
            args: vec!["write-worker".to_owned(), node.to_owned()],
            ended: self.recorder.now(),
            code: Some(i32::from(!is_written)),
        };
        self.recorder.record(at, What::Command(command));
    }

    /// The same at the worst moment: only while the members that would be left without that of the node have no healthy quorum, and
    /// have had none for a while.
    pub async fn write_worker_at_risk(&self, node: &str) {
        if self.is_at_risk(node).await {
            sleep(RISK).await;
            if self.is_at_risk(node).await {
                self.write_worker(node).await;
            }
        }
    }

    async fn is_at_risk(&self, node: &str) -> bool {
        let asked = timeout(COMMAND_LIMIT, polls::members(&self.endpoints, 0)).await;
        let Ok(Ok(members)) = asked else {
            return false;
        };
        let (own, others): (Vec<_>, Vec<_>) = members
            .members
            .iter()
            .filter(|member| !member.learner)
            .partition(|member| member.name == node);
        let healthy = others.iter().filter(|member| member.healthy).count();
        own.iter().any(|own| own.healthy) && healthy < others.len() / 2 + 1
    }

    /// Makes the plugin known, and adopts the members of etcd.
    ///
    /// # Errors
    /// A command fails.
    pub async fn introduce(&self, plugin: &Endpoint) -> Result<(), Error> {
        let object = format!(
            "apiVersion: quorate.dev/v1\nkind: Plugin\nmetadata: {{name: {DRIVER}}}\n\
             spec: {{endpoint: \"{plugin}\"}}\n"
        );
        self.insist(&["apply", "-f", "-"], &object, &[0]).await?;
        self.insist(&["adopt"], "", &[0]).await?;
        Ok(())
    }
}
