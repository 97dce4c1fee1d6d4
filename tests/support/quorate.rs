//! The real `quorate` program: commands that end, and replicas that run on.

use std::ffi::{OsStr, OsString};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use quorate_dev::replica::{Options, Replica};
use quorate_dev::workspace::{self, Programs};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use super::directory::directory;
use super::etcd::TestEtcd;
use super::kubernetes::Kubernetes;
use super::metrics;
use super::wait::{SOON, eventually, grows};

/// The program under test.
pub fn binary() -> PathBuf {
    programs().quorate
}

/// Both programs, built from the sources as they are. No test runs with stale ones.
pub fn programs() -> Programs {
    workspace::programs().unwrap_or_else(|error| panic!("{error}"))
}

/// How a command ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; panics for one that died of a signal.
    pub code: i32,
    /// Its stdout.
    pub stdout: String,
    /// Its stderr.
    pub stderr: String,
}

impl Finished {
    /// Its stdout, where it succeeded. Panics where it did not.
    #[track_caller]
    pub fn expect_done(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// Its stderr, where it failed with this code. Panics otherwise.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        self.stderr
    }
}

/// The limit of a command. No test has one wait that long, but a busy machine is slow.
const COMMAND_LIMIT: Duration = SOON.saturating_mul(5);

/// Runs a command without any `QUORATE_…` variable and waits until it ends. Panics if that takes longer than
/// [`COMMAND_LIMIT`].
pub async fn quorate<I: IntoIterator<Item: AsRef<OsStr>>>(args: I) -> Finished {
    quorate_with(args, None, &[]).await
}

/// The program under test, without any `QUORATE_…` variable.
pub fn program() -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUORATE_") {
            command.env_remove(name);
        }
    }
    command
}

/// [`quorate`] with something on stdin and further variables.
pub async fn quorate_with<I: IntoIterator<Item: AsRef<OsStr>>>(
    args: I,
    stdin: Option<&str>,
    variables: &[(&str, &str)],
) -> Finished {
    use std::process::Stdio;
    use tokio::io::AsyncWriteExt;
    let mut child = program()
        .args(args)
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // A command that does not read it may have closed it already.
    let _ = input.write_all(stdin.unwrap_or_default().as_bytes()).await;
    drop(input);
    let output = timeout(COMMAND_LIMIT, child.wait_with_output())
        .await
        .expect("the command ends")
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let stderr = text(&output.stderr);
    Finished {
        code: output
            .status
            .code()
            .unwrap_or_else(|| panic!("{}: {stderr}", output.status)),
        stdout: text(&output.stdout),
        stderr,
    }
}

/// Runs a command on this etcd, whatever it demands.
pub async fn quorate_on(etcd: &TestEtcd, args: &[&str], stdin: &str) -> Finished {
    let flags = etcd_flags(etcd);
    let flags = flags.iter().map(String::as_str);
    let args = args.iter().copied().chain(flags).map(OsStr::new);
    quorate_with(args, Some(stdin), &[]).await
}

/// The flags by which commands and replicas reach this etcd.
pub fn etcd_flags(etcd: &TestEtcd) -> Vec<String> {
    let mut flags = etcd.credentials().flags();
    flags.push(format!("--etcd-endpoints={}", etcd.endpoints_flag()));
    flags
}

/// How to start replicas of the program under test.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    endpoints: Vec<String>,
    kubeconfig: Option<PathBuf>,
    flags: Vec<String>,
    variables: Vec<(String, OsString)>,
    trial: Duration,
}

impl Launch {
    /// Replicas on this etcd, whatever it demands, without Kubernetes.
    pub fn on(etcd: &TestEtcd) -> Self {
        Self {
            endpoints: etcd.endpoints(),
            flags: etcd.credentials().flags(),
            ..Self::default()
        }
    }

    /// Replicas that keep resources in this kube-apiserver, as its administrator, and use the etcd below it.
    pub fn on_kubernetes(kubernetes: &Kubernetes) -> Self {
        Self::on(&kubernetes.etcd).kubeconfig(kubernetes.kubeconfig())
    }

    /// Through other URLs, such as a proxy's.
    pub fn endpoints(self, endpoints: Vec<String>) -> Self {
        Self { endpoints, ..self }
    }

    /// As the user of this kubeconfig.
    pub fn kubeconfig(self, file: PathBuf) -> Self {
        Self {
            kubeconfig: Some(file),
            ..self
        }
    }

    /// With one more flag, as `--name=value`.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Older ones yield to a newer candidate that has stood for this long; to any without this.
    pub fn trial(self, trial: Duration) -> Self {
        Self { trial, ..self }
    }

    /// With one more variable in its environment.
    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// With this bundle.
    pub fn bundle(self, directory: &Path) -> Self {
        self.flag(format!("--bundle={}", directory.display()))
    }

    /// Starts one.
    pub fn start(&self, node_id: &str) -> TestReplica {
        let directory = directory();
        let trial = format!("--trial-ms={}", self.trial.as_millis());
        let flags = self.flags.iter().cloned().chain([trial]);
        let options = Options {
            binary: binary(),
            node_id: node_id.to_owned(),
            etcd_endpoints: self.endpoints.clone(),
            kubeconfig: self.kubeconfig.clone(),
            flags: flags.collect(),
            env: self.variables.clone(),
        };
        let replica = Replica::start(directory.path(), options).unwrap_or_else(|error| panic!("{error}"));
        TestReplica {
            replica,
            _directory: directory,
        }
    }

    /// Starts several.
    pub fn start_all(&self, node_ids: &[&str]) -> Replicas {
        Replicas(node_ids.iter().map(|id| self.start(id)).collect())
    }
}

/// A replica with a directory of its own. Dereferences to [`Replica`].
pub struct TestReplica {
    replica: Replica,
    _directory: TempDir,
}

impl TestReplica {
    /// Waits until `/readyz` answers 200.
    pub async fn wait_ready(&mut self) {
        self.expect_page("/readyz").await;
    }

    /// Waits until this replica leads.
    pub async fn wait_leading(&mut self) {
        self.expect_page("/leaderz").await;
    }

    async fn expect_page(&mut self, page: &str) {
        let waited = self.replica.wait_until(page, SOON).await;
        waited.unwrap_or_else(|error| panic!("{error}"));
    }

    /// The status code of a page; none without an answer.
    pub async fn status_of(&self, page: &str) -> Option<u16> {
        self.get(page).await.ok().map(|response| response.status)
    }

    /// Whether it says that it leads.
    pub async fn leads(&self) -> bool {
        self.status_of("/leaderz").await == Some(200)
    }

    /// A series of `/metrics` ([`metrics::value`]), as in `quorate_resources{result="applied"}`.
    pub async fn metric(&self, series: &str) -> f64 {
        let page = self.get("/metrics").await.unwrap();
        metrics::value(&page.body, series)
    }

    /// Waits until the leader's lease was renewed once more than now.
    pub async fn lease_renewed(&self) {
        let margin = async || self.metric("quorate_lease_margin_seconds").await;
        grows("the lease is renewed", margin).await;
    }

    /// Its log since its last start.
    pub fn log(&mut self) -> String {
        match self.replica.process() {
            Some(process) => process.output().unwrap(),
            None => std::fs::read_to_string(self.log_file()).unwrap(),
        }
    }

    /// Waits until its log contains `text`.
    pub async fn wait_for_log(&mut self, text: &str) {
        let what = format!("{} logs {text:?}", self.node_id);
        eventually(SOON, &what, async || {
            let log = self.log();
            if log.contains(text) { Ok(()) } else { Err(log) }
        })
        .await;
    }

    /// Sends SIGTERM and does not wait.
    pub fn terminate(&mut self) {
        self.running().terminate();
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.node_id);
        let ended = timeout(SOON, self.running().exited()).await;
        ended
            .unwrap_or_else(|_| panic!("{what}: not within {SOON:?}: {}", self.log()))
            .unwrap()
    }

    fn running(&mut self) -> &mut quorate_dev::process::Supervised {
        self.replica.process().expect("the replica was not stopped")
    }
}

impl Deref for TestReplica {
    type Target = Replica;

    fn deref(&self) -> &Replica {
        &self.replica
    }
}

impl DerefMut for TestReplica {
    fn deref_mut(&mut self) -> &mut Replica {
        &mut self.replica
    }
}

/// Several replicas of one cluster.
pub struct Replicas(pub Vec<TestReplica>);

impl Replicas {
    /// Waits until exactly one of them leads, and returns its index and the time of that observation.
    pub async fn leader(&self) -> (usize, Instant) {
        eventually(SOON, "one replica leads", async || {
            let mut leading = Vec::new();
            for (index, replica) in self.0.iter().enumerate() {
                if replica.leads().await {
                    leading.push(index);
                }
            }
            match leading[..] {
                [leader] => Ok((leader, Instant::now())),
                _ => Err(format!("{leading:?} lead")),
            }
        })
        .await
    }
}

/// `status.json` below the prefix, if it is there.
pub fn status_json(etcd: &TestEtcd, prefix: &str) -> Option<Value> {
    let text = etcd.get(&format!("{prefix}/kubernetes/reconciler/status.json"))?;
    Some(serde_json::from_str(&text).unwrap())
}
