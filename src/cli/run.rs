//! `quorate run`: a replica of the controller.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use super::connection::{self, EtcdArgs};
use super::exit::Failure;
use super::signals::{INTERRUPT, Signals, TERMINATE};
use crate::etcd::{Config, Etcd, Pulse};
use crate::failpoint::{self, Hold};
use crate::gate::controller::Times;
use crate::gate::plan::Own;
use crate::kube::events::{Events, Pod};
use crate::kube::{KubeClient, Limits};
use crate::metrics::Metrics;
use crate::replica::{self, MakeEvents, Settings, Vitals};
use crate::resources::{self, InTerm, Subject};
use crate::retry::Delays;
use crate::roles::controller as roles;
use crate::roles::plan::Limits as RoleLimits;
use crate::serve::{self, Check, LeaderReport, Probes, Report};
use crate::store::{Name, Store};
use crate::volumes::controller as volumes;

/// How long a start waits for etcd before it fails, to be started again by whoever supervises it.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A work runtime without a sign of life for this long is wedged, not busy: `/livez` fails.
const PULSE_LIMIT: Duration = Duration::from_secs(10);

/// Arguments of `quorate run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Name of this replica, unique among them [default: the pod's or the host's name]
    #[arg(long, env = "QUORATE_NODE_ID", value_name = "NAME")]
    pub node_id: Option<String>,

    /// Kubeconfig file [default: in-cluster, then $KUBECONFIG, then ~/.kube/config]
    #[arg(
        long,
        env = "QUORATE_KUBECONFIG",
        value_name = "FILE",
        conflicts_with = "no_kubernetes"
    )]
    pub kubeconfig: Option<PathBuf>,

    /// Do not touch Kubernetes: no resources, no status key, no gate
    #[arg(long, env = "QUORATE_NO_KUBERNETES")]
    pub no_kubernetes: bool,

    /// Directory of the bundle of Kubernetes resources [default: the built-in one]
    #[arg(long, env = "QUORATE_BUNDLE", value_name = "DIR")]
    pub bundle: Option<PathBuf>,

    /// TTL of the leases of the election and of the registration, in seconds (2 to 3600)
    #[arg(long, env = "QUORATE_LEASE_TTL", value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(2..=3600))]
    pub lease_ttl: u64,

    /// Address for health and metrics
    #[arg(
        long,
        env = "QUORATE_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:8080"
    )]
    pub listen: SocketAddr,

    /// Form of the log on stderr; $RUST_LOG sets levels by module
    #[arg(long, env = "QUORATE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Whether the endpoints follow etcd's member list; false for proxies and port forwards
    #[arg(long, env = "QUORATE_ETCD_SYNC_ENDPOINTS", value_name = "BOOL", default_value_t = true,
          action = clap::ArgAction::Set)]
    pub etcd_sync_endpoints: bool,

    /// Wait before reconciling over an existing status, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Times::default().settle))]
    settle_ms: u64,

    /// Between passes when nothing changes, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Times::default().pass_interval))]
    pass_interval_ms: u64,

    /// Between comparisons with the volumes that a plugin lists, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(volumes::Times::default().compare_every))]
    volume_compare_interval_ms: u64,

    /// Between looks at etcd's endpoints, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Config::new(Vec::new()).endpoint_interval))]
    etcd_endpoint_interval_ms: u64,

    /// Limit on a request to etcd, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Config::new(Vec::new()).request_timeout))]
    etcd_request_timeout_ms: u64,

    /// Silence after which a watch is asked for a sign of life, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Config::new(Vec::new()).watch_silence))]
    etcd_watch_silence_ms: u64,

    /// Limit on a request to the API server, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Limits::default().request))]
    kube_request_timeout_ms: u64,

    /// Requests to the API server at a time
    #[arg(long, hide = true, default_value_t = resources::Settings::default().in_flight)]
    kube_in_flight: usize,

    /// For an object that is created anew to be gone, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(resources::Settings::default().gone_within))]
    gone_within_ms: u64,

    /// For a CustomResourceDefinition to be taken up by the API server, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(resources::Settings::default().established_within))]
    established_within_ms: u64,

    /// How long a member that was added may take to start before it is removed again, in seconds
    #[arg(long, env = "QUORATE_LEARNER_TIMEOUT", value_name = "SECONDS",
          default_value_t = roles::Settings::default().limits.learner_timeout.as_secs())]
    pub learner_timeout: u64,

    #[command(flatten)]
    role_times: RoleTimes,

    /// How long a start waits for etcd, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(START_LIMIT))]
    start_limit_ms: u64,

    /// End the process, or lose the reply, at a named point, for fault runs
    #[arg(long, hide = true, value_name = "POINT")]
    crash_at: Option<String>,

    /// Wait at a named point as long as a file is there, which is made when it gets there, for fault runs
    #[arg(long, hide = true, value_name = "POINT=FILE")]
    hold_at: Option<Hold>,

    #[command(flatten)]
    pod: PodArgs,
}

/// Waits and limits of node roles.
#[derive(Args, Debug)]
struct RoleTimes {
    /// For a member of etcd to prove that it is healthy, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().member_timeout))]
    member_timeout_ms: u64,

    /// For a peer URL to be reached, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().dial_timeout))]
    dial_timeout_ms: u64,

    /// The longest between two tries of a role change, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().retry))]
    role_retry_ms: u64,

    /// Between looks at etcd's members while nothing is pending, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().resync))]
    role_resync_ms: u64,

    /// How long a learner may take before that is told, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().patience))]
    learner_patience_ms: u64,

    /// For an add whose answer was lost to show, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().limits.add_doubt))]
    add_doubt_ms: u64,

    /// How long the ended join of a node that is gone is kept, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().keep_joins))]
    keep_joins_ms: u64,
}

impl RoleTimes {
    fn settings(&self, learner_timeout: u64) -> roles::Settings {
        roles::Settings {
            limits: RoleLimits {
                learner_timeout: Duration::from_secs(learner_timeout),
                add_doubt: Duration::from_millis(self.add_doubt_ms),
            },
            member_timeout: Duration::from_millis(self.member_timeout_ms),
            dial_timeout: Duration::from_millis(self.dial_timeout_ms),
            retry: Duration::from_millis(self.role_retry_ms),
            resync: Duration::from_millis(self.role_resync_ms),
            patience: Duration::from_millis(self.learner_patience_ms),
            keep_joins: Duration::from_millis(self.keep_joins_ms),
        }
    }
}

/// The pod that Kubernetes Events are about, from the downward API.
#[derive(Args, Debug)]
struct PodArgs {
    #[arg(long, hide = true, env = "POD_NAME")]
    pod_name: Option<String>,
    #[arg(long, hide = true, env = "POD_NAMESPACE")]
    pod_namespace: Option<String>,
    #[arg(long, hide = true, env = "POD_UID")]
    pod_uid: Option<String>,
}

impl PodArgs {
    fn pod(self) -> Option<Pod> {
        Some(Pod {
            name: self.pod_name?,
            namespace: self.pod_namespace?,
            uid: self.pod_uid?,
        })
    }
}

/// Form of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// A JSON object a line.
    Json,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Runs a replica until SIGTERM or SIGINT.
///
/// # Errors
/// A failure if it cannot start, or a part of it ended unexpectedly.
pub async fn run(args: RunArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    // Everything that is wrong with the command line or its files, before anything is touched.
    let keys = etcd.keys()?;
    let node = node_id(args.node_id.as_deref())?;
    let bundle = super::bundle::of_flag(args.bundle.as_deref())?;
    let signals = Signals::listen(&[TERMINATE, INTERRUPT])?;
    start_log(args.log_format);
    if let Some(point) = &args.crash_at {
        failpoint::crash_at(point);
    }
    if let Some(hold) = args.hold_at {
        failpoint::hold_at(hold);
    }

    let kube_limits = Limits {
        request: Duration::from_millis(args.kube_request_timeout_ms),
        ..Limits::default()
    };
    let kubernetes = match args.no_kubernetes {
        true => None,
        false => Some(
            KubeClient::connect_with(args.kubeconfig.as_deref(), kube_limits)
                .await
                .map_err(|error| {
                    Failure::failed(error).hint("give --kubeconfig FILE, or --no-kubernetes to run without")
                })?,
        ),
    };
    let own = Own {
        version: bundle.version.clone(),
        min_reconciler: bundle.min_reconciler_release,
        min_apiserver: bundle.min_apiserver_release,
    };
    let metrics = Metrics::new(&own.version.to_string());
    info!(%node, "quorate {} starts, bundle {} at release {}", env!("CARGO_PKG_VERSION"), bundle.name, own.version);

    let vitals = Vitals::default();
    let stop = CancellationToken::new();
    let server = serve::start(args.listen, probes(&vitals), metrics.clone())
        .map_err(|error| Failure::failed(error).hint("give another address with --listen"))?;
    info!("health and metrics on http://{}", server.address());

    let mut config = etcd.config();
    config.sync_endpoints = args.etcd_sync_endpoints;
    config.endpoint_interval = Duration::from_millis(args.etcd_endpoint_interval_ms);
    config.request_timeout = Duration::from_millis(args.etcd_request_timeout_ms);
    config.watch_silence = Duration::from_millis(args.etcd_watch_silence_ms);
    let settings = Settings {
        node,
        own,
        lease_ttl: Duration::from_secs(args.lease_ttl),
        times: Times {
            settle: Duration::from_millis(args.settle_ms),
            pass_interval: Duration::from_millis(args.pass_interval_ms),
        },
        roles: args.role_times.settings(args.learner_timeout),
        volumes: volumes::Times {
            compare_every: Duration::from_millis(args.volume_compare_interval_ms),
        },
    };
    let reconciling = resources::Settings {
        in_flight: args.kube_in_flight.max(1),
        gone_within: Duration::from_millis(args.gone_within_ms),
        established_within: Duration::from_millis(args.established_within_ms),
    };
    let replica = async {
        let etcd = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = vitals.pulse.clone().beat_forever() => return Ok(()),
            etcd = connect(config, &metrics, Duration::from_millis(args.start_limit_ms)) => etcd?,
        };
        let store = Store { etcd, keys };
        let pod = args.pod.pod();
        let events = kubernetes.clone().map(|kube| {
            let (pod, replica) = (pod.clone(), settings.node.to_string());
            Box::new(move || Events::new(kube.clone(), pod.clone(), &replica)) as MakeEvents
        });
        let resources = kubernetes.map(|kube| {
            InTerm::factory(Subject {
                kube,
                bundle,
                store: store.clone(),
                settings: reconciling,
                pod,
                replica: settings.node.to_string(),
            })
        });
        replica::run(store, settings, resources, events, vitals.clone(), stop.clone())
            .await
            .map_err(Failure::failed)
    };
    let outcome = tokio::select! {
        outcome = replica => outcome,
        () = cancel_then_abort(signals, &stop) => Ok(()),
    };
    // Probes answer until the very end: unready, but alive.
    server.stop();
    info!("stopped");
    outcome
}

async fn connect(config: Config, metrics: &Metrics, limit: Duration) -> Result<Etcd, Failure> {
    let started = std::time::Instant::now();
    let mut delays = Delays::etcd();
    loop {
        match Etcd::connect(config.clone(), metrics.clone()).await {
            Ok(etcd) => return Ok(etcd),
            Err(error) if error.is_retryable() && started.elapsed() < limit => {
                warn!("{error}; trying again for {limit:?}");
                delays.wait().await;
            }
            Err(error) => return Err(connection::refused(&error)),
        }
    }
}

fn node_id(given: Option<&str>) -> Result<Name, Failure> {
    let (name, source) = match (given, std::env::var("POD_NAME"), std::env::var("HOSTNAME")) {
        (Some(name), ..) => (name.to_owned(), "--node-id"),
        (None, Ok(pod), _) if !pod.is_empty() => (pod, "POD_NAME"),
        (None, _, Ok(host)) if !host.is_empty() => (host.to_lowercase(), "HOSTNAME"),
        _ => {
            let host = rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .to_lowercase();
            (host, "the host's name")
        }
    };
    name.parse().map_err(|error| {
        Failure::usage(format!("{source}: {error}")).hint("name this replica with --node-id")
    })
}

fn start_log(format: LogFormat) {
    let levels = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(format!("info,{}", crate::kube::QUIET)));
    let log = tracing_subscriber::fmt()
        .with_env_filter(levels)
        .with_writer(std::io::stderr);
    // Fails only if a log was started before, which then is as good.
    let _ = match format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
}

fn probes(vitals: &Vitals) -> Probes {
    let (live, ready, leader) = (vitals.clone(), vitals.clone(), vitals.clone());
    Probes {
        live: Box::new(move || Report {
            checks: vec![pulse_check(&live.pulse)],
        }),
        ready: Box::new(move || {
            let registration = match ready.readiness.registered() {
                true => Check::passed("etcd"),
                false => Check::failed(
                    "etcd",
                    "this replica is not registered in etcd, or cannot reach it",
                ),
            };
            let gate = match ready.readiness.gate() {
                Ok(()) => Check::passed("gate"),
                Err(reason) => Check::failed("gate", reason.to_string()),
            };
            Report {
                checks: vec![registration, gate],
            }
        }),
        leader: Box::new(move || LeaderReport {
            leading: leader.leads(),
            leader: leader.leader(),
        }),
    }
}

fn pulse_check(pulse: &Pulse) -> Check {
    let age = pulse.age();
    match age < PULSE_LIMIT {
        true => Check::passed("runtime"),
        false => Check::failed(
            "runtime",
            format!("no sign of life from the work for {} s", age.as_secs()),
        ),
    }
}

/// Cancels at the first signal, aborts at the second, as operators expect. Never returns.
async fn cancel_then_abort(mut signals: Signals, stop: &CancellationToken) {
    let name = signals.next().await;
    info!("{name}: asked to stop");
    stop.cancel();
    let name = signals.next().await;
    eprintln!("{name}: asked to stop again: aborting");
    std::process::abort();
}
