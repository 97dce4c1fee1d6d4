//! The servers of a benchmark, each in its own directory, and the figures that they and the kernel have of their work.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use etcd_client::Client;
use quorate_dev::apiserver::{self, ApiServer, User};
use quorate_dev::etcd::{Etcd, Options};
use quorate_dev::http;
use quorate_dev::replica::{self, Replica};
use quorate_dev::workspace::programs;
use tempfile::TempDir;
use tokio::time::sleep;

/// The prefix of the replicas.
pub const PREFIX: &str = "/quorate";

/// The limit of every wait. Far longer than any takes, so that only a fault exceeds it.
pub const LIMIT: Duration = Duration::from_secs(60);

/// One etcd member.
pub struct EtcdServer {
    server: Etcd,
    _directory: TempDir,
}

impl EtcdServer {
    pub async fn start() -> Result<Self> {
        let directory = directory()?;
        // The default quota of 2 GiB is enough, and by default etcd compacts nothing.
        let server = Etcd::start(directory.path(), &Options::default()).await?;
        Ok(Self {
            server,
            _directory: directory,
        })
    }

    pub fn endpoint(&self) -> String {
        self.server.endpoints().concat()
    }

    /// A client without Quorate's layers: the reference of the measurements.
    pub async fn raw_client(&self) -> Result<Client> {
        raw_client(&self.endpoint()).await
    }

    /// gRPC messages that etcd received since its start, by method: each request, each keep-alive, each creation
    /// of a watch.
    pub async fn received(&self) -> Result<BTreeMap<String, f64>> {
        let endpoint = self.endpoint();
        let port = endpoint.rsplit(':').next().unwrap_or_default();
        let page = http::get(port.parse()?, "/metrics").await?;
        let mut by_method = BTreeMap::new();
        for line in page.body.lines() {
            let Some(labels) = line.strip_prefix("grpc_server_msg_received_total{grpc_method=\"") else {
                continue;
            };
            if let (Some((method, _)), Some(value)) = (labels.split_once('"'), line.rsplit(' ').next()) {
                *by_method.entry(method.to_owned()).or_default() += value.parse::<f64>()?;
            }
        }
        Ok(by_method)
    }
}

/// A client without Quorate's layers.
pub async fn raw_client(endpoint: &str) -> Result<Client> {
    Ok(Client::connect([endpoint], None).await?)
}

/// A kube-apiserver with a separate etcd, so that its requests do not count as Quorate's.
pub struct Kubernetes {
    pub server: ApiServer,
    _etcd: EtcdServer,
    directory: TempDir,
}

impl Kubernetes {
    /// Starts it with these further administrators, and with flags made from its directory.
    pub async fn start(users: &[&str], flags: impl FnOnce(&Path) -> Result<Vec<String>>) -> Result<Self> {
        let directory = directory()?;
        let etcd = EtcdServer::start().await?;
        let user = |name: &&str| User {
            name: (*name).to_owned(),
            groups: vec!["system:masters".to_owned()],
            token: format!("{name}-token"),
        };
        let options = apiserver::Options {
            etcd_endpoints: vec![etcd.endpoint()],
            users: users.iter().map(user).collect(),
            flags: flags(directory.path())?,
        };
        let server = ApiServer::start(&directory.path().join("server"), &options).await?;
        Ok(Self {
            server,
            _etcd: etcd,
            directory,
        })
    }

    /// The kubeconfig of one of the further users.
    pub fn kubeconfig(&self, user: &str) -> Result<PathBuf> {
        Ok(self.server.write_kubeconfig(user, &format!("{user}-token"))?)
    }

    /// Its directory, for further files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// The release build of `quorate run`, and the directory of its log.
pub struct TestReplica {
    pub replica: Replica,
    _directory: TempDir,
}

impl TestReplica {
    /// Starts a replica without waiting.
    pub fn start(node_id: &str, endpoint: &str, kubeconfig: &Path, flags: &[&str]) -> Result<Self> {
        let directory = directory()?;
        let options = replica::Options {
            binary: programs()?.quorate,
            node_id: node_id.to_owned(),
            etcd_endpoints: vec![endpoint.to_owned()],
            kubeconfig: Some(kubeconfig.to_owned()),
            flags: flags.iter().map(ToString::to_string).collect(),
            env: Vec::new(),
        };
        let replica = Replica::start(directory.path(), options)?;
        Ok(Self {
            replica,
            _directory: directory,
        })
    }

    /// Waits until it is ready: registered, and admitted by the status.
    pub async fn wait_ready(&mut self) -> Result<()> {
        Ok(self.replica.wait_until("/readyz", LIMIT).await?)
    }

    /// The sum over all series of a metric. An error if it has none.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let page = self.replica.get("/metrics").await?;
        let samples = page.body.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            (rest.starts_with(' ') || rest.starts_with('{'))
                .then(|| line.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        let samples: Vec<f64> = samples.collect();
        ensure!(!samples.is_empty(), "no series of {name}");
        Ok(samples.iter().sum())
    }

    pub fn terminate(&mut self) -> Result<()> {
        self.process()?.terminate();
        Ok(())
    }

    /// SIGKILL, without waiting.
    pub fn kill(&mut self) -> Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid()?).context("no process id")?;
        Ok(rustix::process::kill_process(pid, rustix::process::Signal::KILL)?)
    }

    pub fn pid(&mut self) -> Result<i32> {
        Ok(self.process()?.pid())
    }

    /// The end of its log, for messages.
    pub fn last_lines(&mut self) -> String {
        let lines = self.process().map(|process| process.last_lines());
        format!(
            "the last lines of the replica's log are:\n{}",
            lines.unwrap_or_default()
        )
    }

    pub fn process(&mut self) -> Result<&mut quorate_dev::process::Supervised> {
        self.replica.process().context("the replica was stopped")
    }
}

/// Waits until `ask` returns a value.
pub async fn wait_for<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await.with_context(|| format!("waiting until {what}"))? {
            return Ok(answer);
        }
        if begun.elapsed() > LIMIT {
            bail!("waited for {LIMIT:?} in vain until {what}");
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Resident memory in bytes, counted page by page: /proc/…/status lags behind by up to 64 pages a thread.
pub fn resident_memory(pid: impl std::fmt::Display) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .context("no Rss in smaps_rollup")?;
    Ok(kib.parse::<f64>()? * 1024.0)
}

pub fn directory() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("quorate-bench-").tempdir()?)
}
