//! `quorate agent`: the agent of a node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::exit::{Exit, Failure};
use super::run::{LogFormat, cancel_then_abort, end, own_name, pulse_check, start_log};
use super::signals::{ENDING, Signals};
use super::values::address;
use crate::agent::{
    self, AgentError, AgentStatus, CsiNodePlugin, ServerAddress, Settings, StateDirectory, StateError,
};
use crate::csi::Endpoint;
use crate::failpoint;
use crate::metrics::Metrics;
use crate::release::Release;
use crate::serve::{self, Probes, Report};
use crate::store::Name;
use crate::traces::Collector;
use etcd::EtcdOfNodeArgs;

mod etcd;

/// Arguments of `quorate agent`.
#[derive(Args, Debug)]
#[command(after_help = "\
It joins with the token, unless its state directory holds a certificate. A server is known by the token, which names its authority, \
and from then on by the state: neither names nor addresses of servers count.

Removed from the cluster, it ends with exit code 4, and leaves its state and its mounts. A node never comes back: to join as another \
one, start it with another --state-dir, or remove agent.json alone from this one. Unmount what is left below its directory volumes \
first: a command that deletes the directory would delete what is on the volumes.

With --peer-url it keeps the etcd of the node: once the node is promoted it joins, starts etcd and watches it, and once the node is \
demoted it stops etcd and sets its data aside. Etcd runs on when the agent ends; the next agent takes it over.

It needs none of the flags with which commands reach etcd.

Examples:
  quorate agent --server https://10.0.0.1:7443,https://10.0.0.2:7443 \\
    --join-token-file worker.token --state-dir /var/lib/quorate
  quorate agent --server https://10.0.0.1:7443 \\
    --join-token-file worker.token --state-dir /var/lib/quorate \\
    --peer-url https://10.0.0.4:2380 --etcd unit:quorate-etcd

Exit codes: 0 stopped, 1 failed, 4 the node was removed, 64 usage.")]
pub struct AgentArgs {
    /// Comma-separated addresses of the control API
    #[arg(
        long,
        env = "QUORATE_SERVER",
        value_name = "URL,…",
        value_delimiter = ',',
        required = true
    )]
    server: Vec<ServerAddress>,

    /// File that holds the join token; needed until the first certificate has come, and again where one has ended
    #[arg(long, env = "QUORATE_JOIN_TOKEN_FILE", value_name = "FILE")]
    join_token_file: Option<PathBuf>,

    /// Directory of the agent's state, made if need be
    #[arg(long, env = "QUORATE_STATE_DIR", value_name = "DIR")]
    state_dir: PathBuf,

    /// Name of the node [default: the host's name]
    #[arg(long, env = "QUORATE_NODE_NAME", value_name = "NAME")]
    name: Option<String>,

    /// A CSI plugin that runs on this node, and where it listens; may be repeated
    #[arg(long, value_name = "NAME=unix:///…", value_parser = csi_node)]
    csi_node: Vec<CsiNodePlugin>,

    #[command(flatten)]
    etcd: EtcdOfNodeArgs,

    /// Address for health and metrics
    #[arg(
        long,
        env = "QUORATE_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:8080",
        value_parser = address
    )]
    listen: SocketAddr,

    /// Form of the log on stderr; $RUST_LOG sets levels by module
    #[arg(long, env = "QUORATE_LOG_FORMAT", value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    /// Collector to which traces are exported over OTLP: http://HOST:4317, or https:// with a certificate that the system
    /// trusts [default: no traces]
    #[arg(long, env = "QUORATE_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<Collector>,

    /// Age at which each certificate is replaced, in milliseconds [default: at random between 50 and 80 % of its life]
    #[arg(long, hide = true)]
    renewed_at_ms: Option<u64>,

    /// Abort the process at a named point, for fault runs
    #[arg(long, hide = true, value_name = "POINT")]
    crash_at: Option<String>,
}

/// A plugin of `--csi-node`.
fn csi_node(text: &str) -> Result<CsiNodePlugin, String> {
    let expected = "expected NAME=unix:///path/to/plugin.sock";
    let (name, endpoint) = text.split_once('=').ok_or(expected)?;
    let endpoint: Endpoint = endpoint.parse().map_err(|_| expected)?;
    if !matches!(endpoint, Endpoint::Unix(_)) {
        return Err(format!("{expected}: it mounts on this machine"));
    }
    let name: Name = name.parse().map_err(|error| format!("{error}"))?;
    Ok(CsiNodePlugin {
        name: name.to_string(),
        endpoint,
    })
}

impl AgentArgs {
    fn settings(self) -> Result<Settings, Failure> {
        let mut names: Vec<_> = self.csi_node.iter().map(|plugin| plugin.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Failure::usage(format_args!(
                "--csi-node: {} is given twice",
                pair[0]
            )));
        }
        let release = env!("CARGO_PKG_VERSION").parse::<Release>();
        Ok(Settings {
            name: own_name(self.name.as_deref(), "--name")?,
            servers: self.server,
            token_file: self.join_token_file,
            plugins: self.csi_node,
            etcd: self.etcd.settings()?,
            renewed_at: self.renewed_at_ms.map(Duration::from_millis),
            release: release.map_err(Failure::failed)?,
        })
    }
}

/// Runs an agent until a signal asks it to end, or until its node is removed.
///
/// # Errors
/// A failure if it cannot start, or the node was removed.
pub async fn run(args: AgentArgs) -> Result<(), Failure> {
    // Before anything secret is read.
    agent::keep_memory_private()
        .map_err(|error| Failure::failed(format_args!("cannot keep the memory private: {error}")))?;
    let (listen, log_format, state_dir) = (args.listen, args.log_format, args.state_dir.clone());
    if let Some(point) = &args.crash_at {
        failpoint::arm_crash(point);
    }
    let collector = args.otlp_endpoint.clone();
    let settings = args.settings()?;
    let directory = StateDirectory::open(&state_dir)?;
    let signals = Signals::listen(&ENDING)?;
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let service = ("quorate-agent", &settings.name);
    let (_, traces) = start_log(log_format, collector.as_ref(), service, &metrics)?;
    let status = AgentStatus::default();
    let server = serve::start(listen, probes(&status), metrics.clone())
        .map_err(|error| Failure::failed(error).hint("give another address with --listen"))?;
    info!("health and metrics on http://{}", server.address());
    let stop = CancellationToken::new();
    let mut ending = pin!(cancel_then_abort(signals, &stop));
    let outcome = tokio::select! {
        ended = agent::run(&settings, &directory, &status, &metrics) => {
            let Err(error) = ended;
            Err(error.into())
        }
        () = status.pulse.clone().beat_forever() => Ok(()),
        () = stop.cancelled() => Ok(()),
        () = &mut ending => Ok(()),
    };
    end(traces, ending).await;
    server.stop();
    info!("stopped");
    outcome
}

fn probes(status: &AgentStatus) -> Probes {
    let (live, ready) = (status.clone(), status.clone());
    Probes {
        live: Box::new(move || Report {
            checks: vec![pulse_check(&live.pulse)],
        }),
        ready: Box::new(move || ready.ready()),
        leader: None,
        page: None,
    }
}

/// What to do where a node was removed, whose volumes are in this directory.
fn after_removal(volumes: &Path, mounted: &Result<Vec<PathBuf>, String>) -> String {
    let next = "its state is left as it is; a new node joins with another --state-dir, or once agent.json alone was removed; \
                what its etcd has left, if it kept one, is moved away first: the data, and etcd.json beside it";
    let left = match mounted {
        Ok(mounted) if mounted.is_empty() => return next.to_owned(),
        Ok(mounted) => {
            let lines = mounted.iter().map(|path| format!("    {}\n", path.display()));
            format!("still mounted:\n{}", lines.collect::<String>())
        }
        Err(why) => format!("what is mounted below {} is unknown: {why}\n", volumes.display()),
    };
    format!("{left}  unmount that first: to delete its directory deletes what is on the volume\n  {next}")
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::State(error) => error.into(),
            AgentError::Removed {
                ref volumes,
                ref mounted,
                ..
            } => {
                let hint = after_removal(volumes, mounted);
                Self::new(Exit::Refused, error).hint(hint)
            }
            AgentError::OtherName { .. } => {
                Self::usage(error).hint("give that --name, or another --state-dir")
            }
            AgentError::NoToken(_) => Self::usage(error).hint("give --join-token-file FILE"),
            AgentError::Unusable { .. } | AgentError::Thread(..) | AgentError::ThreadEnded(_) => {
                Self::failed(error)
            }
        }
    }
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        match error {
            StateError::Open { ref path, .. } => {
                let hint = format!("chmod go-w {}", path.display());
                Self::failed(error).hint(hint)
            }
            // Not 4, which is for good: the other process may end.
            StateError::InUse { .. }
            | StateError::Use { .. }
            | StateError::Read { .. }
            | StateError::Write(_) => Self::failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_removal_the_mounts_that_are_left_are_named_before_anything_is_deleted() {
        let volumes = Path::new("/var/lib/quorate/volumes");
        let nothing = after_removal(volumes, &Ok(Vec::new()));
        assert!(!nothing.contains("mount"), "{nothing}");
        assert!(nothing.contains("agent.json alone"), "{nothing}");
        let left = ["/v/.mounts/a/staging", "/v/.mounts/a/b"].map(PathBuf::from);
        assert_eq!(
            after_removal(volumes, &Ok(left.to_vec())),
            format!(
                "still mounted:\n    /v/.mounts/a/staging\n    /v/.mounts/a/b\n  \
                 unmount that first: to delete its directory deletes what is on the volume\n  {nothing}"
            )
        );
        let unknown = after_removal(volumes, &Err("no table".to_owned()));
        let said =
            "what is mounted below /var/lib/quorate/volumes is unknown: no table\n  unmount that first";
        assert!(unknown.starts_with(said), "{unknown}");
    }

    #[test]
    fn a_plugin_is_a_name_and_a_socket_of_this_machine() {
        let plugin = csi_node("demo.csi.quorate.dev=unix:///run/csi.sock").unwrap();
        assert_eq!(plugin.name, "demo.csi.quorate.dev");
        assert_eq!(plugin.endpoint.to_string(), "unix:///run/csi.sock");
        for bad in [
            "",
            "demo",
            "demo=",
            "=unix:///s",
            "Demo=unix:///s",
            "demo=http://h:1",
        ] {
            assert!(csi_node(bad).is_err(), "{bad}");
        }
    }
}
