//! The plugin as a child process: `quorate-dev csi-plugin`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};

use super::backend::Backend;
use super::control;
use super::log::{self, Call};
use super::options::{NodeOptions, Options};
use super::order::Order;
use crate::Error;
use crate::process::{Program, Supervised};
use quorate::csi::Endpoint;

/// Limit until it serves. It takes milliseconds; the machine may be busy.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Limit until it has stopped. It ends on SIGTERM at once.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A plugin, running or not. Its volumes and its log outlive its process. Dropping it kills the process.
#[derive(Debug)]
pub struct PluginProcess {
    options: Options,
    binary: PathBuf,
    output: PathBuf,
    process: Option<Supervised>,
}

impl Options {
    /// The arguments of `quorate-dev` that mean these options.
    fn args(&self) -> Vec<OsString> {
        let file = |flag: &str, path: &Path| {
            let mut arg = OsString::from(flag);
            arg.push(path);
            arg
        };
        let mut args = vec![
            "csi-plugin".into(),
            format!("--listen={}", self.listen).into(),
            file("--backend=", &self.backend),
            file("--log=", &self.log),
            format!("--driver={}", self.driver).into(),
            format!("--driver-version={}", self.version).into(),
            format!("--latency-ms={}", self.latency.as_millis()).into(),
        ];
        if let Some(control) = &self.control {
            args.push(file("--control=", control));
        }
        if let Some(id) = &self.backend_id {
            args.push(format!("--backend-id={id}").into());
        }
        if let Some(capacity) = self.capacity {
            args.push(format!("--capacity={capacity}").into());
        }
        if let Some(room) = self.room {
            args.push(format!("--room={room}").into());
        }
        if self.large_context > 0 {
            args.push(format!("--large-context={}", self.large_context).into());
        }
        if let Some(tls) = &self.tls {
            args.extend([file("--tls-cert=", &tls.cert), file("--tls-key=", &tls.key)]);
        }
        if let Some(client_ca) = &self.client_ca {
            args.push(file("--tls-client-ca=", client_ca));
        }
        let places = self.places.iter();
        args.extend(places.map(|place| format!("--place={}", segments(place)).into()));
        args.extend(self.node.iter().flat_map(NodeOptions::args));
        let offers = &self.offers;
        for (given, flag) in [
            (!offers.controller, "--without-controller"),
            (!offers.create, "--without-create"),
            (!offers.publish, "--without-publish"),
            (offers.exact_access_modes, "--exact-access-modes"),
            (offers.expand, "--expand"),
            (offers.expand_offline, "--expand-offline"),
            (offers.list, "--list"),
            (offers.list_nodes, "--list-nodes"),
            (self.single_node, "--single-node"),
            (self.not_ready, "--not-ready"),
        ] {
            if given {
                args.push(flag.into());
            }
        }
        args
    }
}

impl NodeOptions {
    /// The arguments that mean these options.
    fn args(&self) -> Vec<OsString> {
        let mut args = vec![format!("--node-id={}", self.id).into()];
        if !self.topology.is_empty() {
            args.push(format!("--node-topology={}", segments(&self.topology)).into());
        }
        let flags = [
            (!self.stages, "--without-stage"),
            (self.expands, "--node-expand"),
            (self.mounts, "--mounts"),
        ];
        let given = flags.into_iter().filter(|(given, _)| *given);
        args.extend(given.map(|(_, flag)| flag.into()));
        args
    }
}

/// The segments of a place, as flags take them.
fn segments(place: &BTreeMap<String, String>) -> String {
    let segments = place.iter().map(|(key, value)| format!("{key}={value}"));
    segments.collect::<Vec<_>>().join(",")
}

impl PluginProcess {
    /// Starts one and waits until it accepts connections. `binary` is the program `quorate-dev`.
    pub async fn start(binary: &Path, options: Options) -> Result<Self, Error> {
        let output = options.log.with_extension("output");
        let mut plugin = Self {
            options,
            binary: binary.to_owned(),
            output,
            process: None,
        };
        plugin.launch().await?;
        Ok(plugin)
    }

    /// Starts its process with the present options, unless it runs.
    pub async fn launch(&mut self) -> Result<(), Error> {
        if self
            .process
            .as_mut()
            .is_some_and(|process| process.status().is_none())
        {
            return Ok(());
        }
        for path in [&self.options.backend, &self.options.log, &self.output] {
            let parent = path.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(parent).map_err(Error::write(parent))?;
        }
        let program = Program {
            name: format!("CSI plugin {}", self.options.driver),
            path: self.binary.clone(),
            args: self.options.args(),
            env: Vec::new(),
            hidden_env: "QUORATE_",
            log: self.output.clone(),
        };
        // The socket of an earlier run would look like this one's.
        let sockets = [self.socket(), self.options.control.as_deref()];
        for socket in sockets.into_iter().flatten() {
            match fs::remove_file(socket) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::write(socket)(error));
                }
                _ => {}
            }
        }
        let mut process = program.start()?;
        let (listen, control) = (self.options.listen.clone(), self.options.control.clone());
        process
            .wait_until(START_LIMIT, || {
                let (listen, control) = (listen.clone(), control.clone());
                async move {
                    answers(&listen).await?;
                    match control {
                        Some(path) => answers(&Endpoint::Unix(path)).await,
                        None => Ok(()),
                    }
                }
            })
            .await?;
        self.process = Some(process);
        Ok(())
    }

    /// The options of its next start, which are those of its process unless they were changed since.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The same, to change them before the next [`launch`](Self::launch).
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// The endpoint where it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.options.listen
    }

    /// Sends it an order and waits until it is carried out.
    pub async fn send(&self, order: &Order) -> io::Result<()> {
        match &self.options.control {
            Some(socket) => control::send(socket, order).await,
            None => Err(io::Error::other("this plugin takes no orders")),
        }
    }

    /// The calls in its log, those of earlier runs included.
    pub fn calls(&self) -> io::Result<Vec<Call>> {
        log::read(&self.options.log)
    }

    /// Its backend, to read its volumes.
    pub fn backend(&self) -> Backend {
        Backend::at(&self.options.backend)
    }

    /// The file of its output.
    pub fn output_file(&self) -> &Path {
        &self.output
    }

    /// Its process, unless it was stopped or killed.
    pub fn process(&mut self) -> Option<&mut Supervised> {
        self.process.as_mut()
    }

    /// Stops it. None if it does not run.
    pub async fn stop(&mut self) -> Result<Option<ExitStatus>, Error> {
        match self.process.take() {
            Some(mut process) => process.stop(STOP_LIMIT).await.map(Some),
            None => Ok(None),
        }
    }

    /// Kills it (SIGKILL). None if it does not run.
    pub async fn kill(&mut self) -> Result<Option<ExitStatus>, Error> {
        match self.process.take() {
            Some(mut process) => process.kill().await.map(Some),
            None => Ok(None),
        }
    }

    fn socket(&self) -> Option<&Path> {
        match &self.options.listen {
            Endpoint::Unix(path) => Some(path),
            Endpoint::Tcp(_) => None,
        }
    }
}

async fn answers(endpoint: &Endpoint) -> Result<(), String> {
    let connected = match endpoint {
        Endpoint::Unix(path) => UnixStream::connect(path).await.map(|_| ()),
        Endpoint::Tcp(uri) => {
            let authority = uri.authority().map_or("", |authority| authority.as_str());
            TcpStream::connect(authority).await.map(|_| ())
        }
    };
    connected.map_err(|error| format!("{endpoint}: {error}"))
}
