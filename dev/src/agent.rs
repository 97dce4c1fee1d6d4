//! The agent of a node: `quorate agent` as a child process.

use std::ffi::OsString;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::http::{self, Response};
use super::process::Program;
use super::restartable::Restartable;
use super::{Error, ports, record};

/// Limit until it has stopped. It ends at once; the machine may be busy.
const STOP_LIMIT: Duration = Duration::from_secs(6);

/// The exit code of an agent whose node was removed.
const REMOVED: i32 = 4;

/// The ports of the etcd that an agent keeps. Later starts on the same directory use them again: the other members know them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct EtcdPorts {
    peer: u16,
    client: u16,
    metrics: u16,
}

/// The flags by which the agent of this name keeps an etcd on this machine, which ends with it.
pub fn etcd_flags(directory: &Path, name: &str, program: &Path) -> Result<Vec<String>, Error> {
    fs::create_dir_all(directory).map_err(Error::write(directory))?;
    let file = directory.join(format!("{name}.ports.json"));
    let ports = match record::read::<EtcdPorts>(&file)? {
        Some(ports) => ports,
        None => {
            let ports = EtcdPorts {
                peer: ports::free_port()?,
                client: ports::free_port()?,
                metrics: ports::free_port()?,
            };
            record::write(&file, &ports)?;
            ports
        }
    };
    Ok(vec![
        format!("--peer-url=http://127.0.0.1:{}", ports.peer),
        format!("--client-url=http://127.0.0.1:{}", ports.client),
        format!("--etcd-metrics=127.0.0.1:{}", ports.metrics),
        format!("--etcd={}", program.display()),
        "--etcd-ends-with-agent".to_owned(),
    ])
}

/// Whether the agent with this state directory keeps an etcd.
pub fn keeps_etcd(state: &Path) -> bool {
    state.join("etcd.json").exists()
}

/// The configuration of an agent.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `quorate` program.
    pub binary: PathBuf,
    /// `--name`
    pub name: String,
    /// `--server`
    pub servers: Vec<String>,
    /// `--join-token-file`
    pub token_file: Option<PathBuf>,
    /// Flags added to the default ones.
    pub flags: Vec<String>,
    /// Variables added to its environment.
    pub env: Vec<(String, OsString)>,
}

/// An agent, running or not, always on the same port. Dereferences to its [`Restartable`].
#[derive(Debug)]
pub struct Agent {
    /// The name of its node.
    pub name: String,
    /// The port of 127.0.0.1 for health and metrics.
    pub port: u16,
    /// Its `--state-dir`.
    pub state: PathBuf,
    process: Restartable,
}

impl Agent {
    /// Starts one with its state and its log in `directory`, without waiting: see [`wait_ready`](Self::wait_ready).
    pub fn start(directory: &Path, options: Options) -> Result<Self, Error> {
        fs::create_dir_all(directory).map_err(Error::write(directory))?;
        let Options {
            binary,
            name,
            servers,
            token_file,
            flags,
            env,
        } = options;
        let port = ports::free_port()?;
        let state = directory.join(&name);
        let mut args = vec![
            "agent".into(),
            format!("--server={}", servers.join(",")).into(),
            format!("--name={name}").into(),
            format!("--listen=127.0.0.1:{port}").into(),
            "--state-dir".into(),
            state.clone().into_os_string(),
        ];
        if let Some(file) = token_file {
            args.extend(["--join-token-file".into(), file.into_os_string()]);
        }
        args.extend(flags.into_iter().map(Into::into));
        let program = Program {
            name: format!("agent {name}"),
            path: binary,
            args,
            env,
            hidden_env: "QUORATE_",
            log: directory.join(format!("{name}.log")),
        };
        let mut process = Restartable::new(program, STOP_LIMIT);
        process.launch()?;
        Ok(Self {
            name,
            port,
            state,
            process,
        })
    }

    /// Gets one of its pages: `/readyz`, `/metrics`, …
    pub async fn get(&self, path: &str) -> std::io::Result<Response> {
        http::get(self.port, path).await
    }

    /// Waits until its node has a certificate and a session. The error has the last answer, or the exit status of the process.
    pub async fn wait_ready(&mut self, limit: Duration) -> Result<(), Error> {
        let port = self.port;
        let answers = || async move { http::is_ok("/readyz", http::get(port, "/readyz").await) };
        self.process.wait_until(limit, answers).await
    }

    /// Puts its state aside, so that its next start makes a node of the same name. It must not run.
    ///
    /// # Errors
    /// The directory cannot be renamed.
    pub fn set_state_aside(&self) -> Result<(), Error> {
        let to = unused(|number| self.state.with_extension(format!("removed-{number}")));
        fs::rename(&self.state, to).map_err(Error::write(&self.state))
    }

    /// Takes the data of its etcd away, if there is any. An etcd that has not ended yet writes to where nothing looks for it.
    ///
    /// # Errors
    /// The directory cannot be renamed.
    pub fn lose_etcd_data(&self) -> Result<(), Error> {
        let data = self.state.join("etcd");
        let to = unused(|number| self.state.join(format!("lost-{number}")));
        match data.exists() {
            true => fs::rename(&data, to).map_err(Error::write(&data)),
            false => Ok(()),
        }
    }

    /// Whether it has ended because its node was removed.
    pub fn was_removed(&mut self) -> bool {
        let ended = self.process.process().and_then(|process| process.status());
        ended.is_some_and(|status| status.code() == Some(REMOVED))
    }
}

impl Deref for Agent {
    type Target = Restartable;

    fn deref(&self) -> &Restartable {
        &self.process
    }
}

impl DerefMut for Agent {
    fn deref_mut(&mut self) -> &mut Restartable {
        &mut self.process
    }
}

/// The first of these places, from number 1, at which there is nothing.
fn unused(place: impl Fn(u32) -> PathBuf) -> PathBuf {
    let free = (1..).map(&place).find(|place| !place.exists());
    free.unwrap_or_else(|| place(0))
}
