//! A replica of the controller: `quorate run` as a child process.

use std::ffi::OsString;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::http::{self, Response};
use super::process::Program;
use super::restartable::Restartable;
use super::{Error, ports};

/// Limit until it has stopped. It exits within 3 s; the machine may be busy.
const STOP_LIMIT: Duration = Duration::from_secs(6);

/// The configuration of a replica.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `quorate` program.
    pub binary: PathBuf,
    /// `--node-id`
    pub node_id: String,
    /// `--etcd-endpoints`
    pub etcd_endpoints: Vec<String>,
    /// `--kubeconfig`; none: `--no-kubernetes`
    pub kubeconfig: Option<PathBuf>,
    /// Flags added to the default ones.
    pub flags: Vec<String>,
    /// Variables added to its environment.
    pub env: Vec<(String, OsString)>,
}

/// A replica, running or not, always on the same port. Dereferences to its [`Restartable`].
#[derive(Debug)]
pub struct Replica {
    /// Its `--node-id`.
    pub node_id: String,
    /// The port of 127.0.0.1 for health and metrics.
    pub port: u16,
    process: Restartable,
}

impl Replica {
    /// Starts one with its log in `directory`, without waiting: see [`wait_until`](Self::wait_until).
    pub fn start(directory: &Path, options: Options) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(Error::write(directory))?;
        let Options {
            binary,
            node_id,
            etcd_endpoints,
            kubeconfig,
            flags,
            env,
        } = options;
        let port = ports::free_port()?;
        let mut args = vec![
            "run".into(),
            format!("--etcd-endpoints={}", etcd_endpoints.join(",")).into(),
            format!("--node-id={node_id}").into(),
            format!("--listen=127.0.0.1:{port}").into(),
        ];
        match kubeconfig {
            Some(file) => args.extend(["--kubeconfig".into(), file.into_os_string()]),
            None => args.push("--no-kubernetes".into()),
        }
        args.extend(flags.into_iter().map(Into::into));
        let program = Program {
            name: format!("replica {node_id}"),
            path: binary,
            args,
            env,
            hidden_env: "QUORATE_",
            log: directory.join(format!("{node_id}.log")),
        };
        let mut process = Restartable::new(program, STOP_LIMIT);
        process.launch()?;
        Ok(Self {
            node_id,
            port,
            process,
        })
    }

    /// Gets one of its pages: `/readyz`, `/leaderz`, `/metrics`, …
    pub async fn get(&self, path: &str) -> std::io::Result<Response> {
        http::get(self.port, path).await
    }

    /// Waits until a page answers 200. The error has the last answer, or the exit status of the process.
    pub async fn wait_until(&mut self, page: &str, limit: Duration) -> Result<(), Error> {
        let port = self.port;
        let answers = || async move { http::is_ok(page, http::get(port, page).await) };
        self.process.wait_until(limit, answers).await
    }
}

impl Deref for Replica {
    type Target = Restartable;

    fn deref(&self) -> &Restartable {
        &self.process
    }
}

impl DerefMut for Replica {
    fn deref_mut(&mut self) -> &mut Restartable {
        &mut self.process
    }
}
