//! `quorate run`: a replica of the controller.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::connection::{self, EtcdArgs};
use super::exit::Failure;
use super::kubernetes;
use super::signals::{ENDING, Signals};
use crate::causes;
use crate::check::Check;
use crate::control::{ControlPort, ControlStatus};
use crate::etcd::{Config, Etcd, Pulse};
use crate::failpoint;
use crate::gate::plan::BundleVersions;
use crate::kube::KubeClient;
use crate::kube::events::Events;
use crate::lines;
use crate::metrics::Metrics;
use crate::replica::{self, MakeEvents, ReplicaStatus, Settings};
use crate::resources::{self, Bundle, TermReconciler};
use crate::retry::Delays;
use crate::secrets::Reader;
use crate::serve::{self, LeaderReport, Probes, Report};
use crate::store::{Name, Store};
use crate::traces::{self, Collector, Exporter};

mod flags;
mod known_faults;
mod log;
mod page;

use known_faults::warn_of_known_faults;

pub(super) use flags::LogFormat;
pub use flags::RunArgs;
pub(super) use log::Log;

/// A work runtime whose pulse stopped for this long hangs, and is not only busy: `/livez` fails.
const PULSE_LIMIT: Duration = Duration::from_secs(10);

/// Runs a replica until a signal asks it to end.
///
/// # Errors
/// A failure if it cannot start, or a part of it ended unexpectedly.
pub async fn run(args: RunArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    // Everything that can be wrong with the command line or its files is found before anything is touched.
    let keys = etcd.keys()?;
    let node = own_name(args.node_id.as_deref(), "--node-id")?;
    let bundle = super::bundle::of_flag(args.bundle.as_deref())?;
    let keyring = Arc::new(args.encryption.read()?);
    let mut signals = Signals::listen(&ENDING)?;
    let versions = versions_of(&bundle);
    let metrics = Metrics::new(&versions.version.to_string());
    let collector = args.otlp_endpoint.as_ref();
    let (log, traces) = start_log(args.log_format, collector, ("quorate", &node), &metrics)?;
    allow_open_files();
    arm_failpoints(&args);

    let kubernetes = tokio::select! {
        connected = connect_to_kubernetes(&args) => connected?,
        name = signals.next() => {
            info!("{name}: stopped before the API server was known");
            return Ok(());
        }
    };
    info!(%node, "quorate {} starts, bundle {} at release {}", env!("CARGO_PKG_VERSION"), bundle.name, versions.version);

    let status = ReplicaStatus::default();
    let stop = CancellationToken::new();
    let control = args.control(&node)?;
    let shown = Probes {
        page: page::page(&args, &node, &bundle, &status),
        ..probes(&status, control.as_ref().map(ControlPort::status))
    };
    let server = serve::start(args.listen, shown, metrics.clone())
        .map_err(|error| Failure::failed(error).hint("give another address with --listen"))?;
    info!("health and metrics on http://{}", server.address());
    let page = page::address(&args, server.address());
    if let Some(page) = &page {
        info!("status page on {page}");
    }

    let config = args.etcd_config(etcd);
    let replica = async {
        let etcd = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = status.pulse.clone().beat_forever() => return Ok(()),
            etcd = connect(config, &metrics, args.start_limit()) => etcd?,
        };
        let store = Store { etcd, keys };
        let (lost, warning) = (store.etcd.clone(), warn_of_known_faults(store.clone()));
        let wiring = Wiring {
            settings: args.settings(node, versions, Reader::new(keyring, kubernetes.clone()), page),
            store,
            kubernetes,
            bundle,
            control,
            args: &args,
        };
        let mut running = pin!(wiring.run(&status, &stop));
        tokio::select! {
            ended = &mut running => ended,
            lost = lost.store_lost() => {
                // No window is open any more. Started again, the replica reads what is there now.
                stop.cancel();
                let _ = running.await;
                Err(lost.into())
            }
            never = warning => never,
            // Not before the replica ends, which publishes the levels.
            () = log.follow(status.log_levels.subscribe()) => Ok(()),
        }
    };
    let mut ending = pin!(cancel_then_abort(signals, &stop));
    let outcome = tokio::select! {
        outcome = replica => outcome,
        () = &mut ending => Ok(()),
    };
    end(traces, ending).await;
    // Last: the probes answer until nothing else runs, /readyz with 503 and /livez with 200.
    server.stop();
    info!("stopped");
    outcome
}

/// Sends the last spans. A second signal, which `ending` listens to, aborts meanwhile.
pub(super) async fn end(traces: Option<Exporter>, ending: impl Future<Output = ()>) {
    if let Some(traces) = traces {
        tokio::select! {
            () = traces.stop() => {}
            () = ending => {}
        }
    }
}

fn versions_of(bundle: &Bundle) -> BundleVersions {
    BundleVersions {
        version: bundle.version.clone(),
        min_reconciler: bundle.min_reconciler_release,
        min_apiserver: bundle.min_apiserver_release,
    }
}

/// Everything that a replica is made of, once etcd answers.
struct Wiring<'a> {
    settings: Settings,
    store: Store,
    /// `None` without Kubernetes.
    kubernetes: Option<KubeClient>,
    bundle: Bundle,
    /// `None` without authorities.
    control: Option<ControlPort>,
    args: &'a RunArgs,
}

impl Wiring<'_> {
    async fn run(self, status: &ReplicaStatus, stop: &CancellationToken) -> Result<(), Failure> {
        let pod = self.args.pod();
        let replica = self.settings.node.to_string();
        let events = self.kubernetes.clone().map(|kube| {
            let (pod, replica) = (pod.clone(), replica.clone());
            Box::new(move || Events::new(kube.clone(), pod.clone(), &replica)) as MakeEvents
        });
        let resources = self.kubernetes.map(|kube| {
            TermReconciler::factory(resources::Config {
                kube,
                bundle: self.bundle,
                store: self.store.clone(),
                settings: self.args.reconciling(),
                summaries: status.summaries.resources.clone(),
            })
        });
        replica::run(
            self.store,
            self.settings,
            resources,
            events,
            self.control,
            status.clone(),
            stop.clone(),
        )
        .await
        .map_err(Failure::failed)
    }
}

/// Lets this process have as many files open as the system allows. A process begins with 1,024 in many containers: with a connection
/// for each agent, a thousand agents would leave none for etcd.
fn allow_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let most = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, most) {
        warn!("cannot raise the limit of open files: {error}");
    }
}

fn arm_failpoints(args: &RunArgs) {
    if let Some(point) = &args.crash_at {
        failpoint::arm_crash(point);
    }
    if let Some(pause) = args.hold_at.clone() {
        failpoint::arm_pause(pause);
    }
}

/// Connects to the API server; `None` with `--no-kubernetes`.
async fn connect_to_kubernetes(args: &RunArgs) -> Result<Option<KubeClient>, Failure> {
    if args.no_kubernetes {
        return Ok(None);
    }
    let connected = kubernetes::connect(args.kubeconfig.clone(), args.kube_limits()).await;
    connected.map(Some).map_err(|unconnected| {
        Failure::failed(unconnected).hint("give --kubeconfig FILE, or --no-kubernetes to run without")
    })
}

/// Connects to etcd. Tries again after an error that may pass: for `limit`, or for as long as it takes.
async fn connect(config: Config, metrics: &Metrics, limit: Option<Duration>) -> Result<Etcd, Failure> {
    let started = std::time::Instant::now();
    let mut delays = Delays::etcd();
    loop {
        match Etcd::connect(config.clone(), metrics.clone()).await {
            Ok(etcd) => return Ok(etcd),
            Err(error) if error.is_retryable() && limit.is_none_or(|limit| started.elapsed() < limit) => {
                let how_long = limit.map_or_else(String::new, |limit| format!(" for {limit:?}"));
                warn!("{}; trying again{how_long}", causes::chain(&error));
                delays.wait().await;
            }
            Err(error) => return Err(connection::refused(&error)),
        }
    }
}

/// The node id of this replica: the flag, else the name of the pod, else that of the host.
pub(super) fn own_name(given: Option<&str>, flag: &'static str) -> Result<Name, Failure> {
    let (name, source) = match (given, std::env::var("POD_NAME"), std::env::var("HOSTNAME")) {
        (Some(name), ..) => (name.to_owned(), flag),
        (None, Ok(pod), _) if !pod.is_empty() => (pod, "POD_NAME"),
        (None, _, Ok(host)) if !host.is_empty() => (host.to_lowercase(), "HOSTNAME"),
        _ => (host_name(), "the host's name"),
    };
    name.parse().map_err(|error| {
        Failure::usage(format!("{source}: {error}")).hint(format_args!("give a name with {flag}"))
    })
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .to_lowercase()
}

/// Starts the log and, where there is a collector, the export of traces. They are those of a service, and of an instance of it.
pub(super) fn start_log(
    format: LogFormat,
    collector: Option<&Collector>,
    (service, instance): (&str, &Name),
    metrics: &Metrics,
) -> Result<(Log, Option<Exporter>), Failure> {
    let started = collector.map(|collector| traces::start(collector, service, instance.as_str(), metrics));
    let started = started
        .transpose()
        .map_err(|error| Failure::failed(format_args!("cannot export traces: {error}")))?;
    let (layer, exporter) = started.unzip();
    Ok((Log::start(format, layer), exporter))
}

fn probes(status: &ReplicaStatus, control: Option<ControlStatus>) -> Probes {
    let (live, ready, leader) = (status.clone(), status.clone(), status.clone());
    Probes {
        live: Box::new(move || Report {
            checks: vec![pulse_check(&live.pulse)],
        }),
        ready: Box::new(move || {
            let registration = match (ready.refused(), ready.readiness.registered()) {
                (Some(refused), _) => Check::failed("etcd", refused),
                (None, true) => Check::passed("etcd"),
                (None, false) => Check::failed(
                    "etcd",
                    "this replica is not registered in etcd, or cannot reach etcd",
                ),
            };
            let gate = match ready.readiness.gate() {
                Ok(()) => Check::passed("gate"),
                Err(reason) => Check::failed("gate", reason.to_string()),
            };
            let control = control.as_ref().map(|control| control.check(Timestamp::now()));
            Report {
                checks: [registration, gate].into_iter().chain(control).collect(),
            }
        }),
        leader: Some(Box::new(move || {
            let known = leader.leader();
            LeaderReport {
                leading: leader.leads(),
                is_last_known: known.is_some() && !leader.readiness.registered(),
                leader: known.map(|leader| leader.name),
                yields_to: leader.yields_to(),
                refused: leader.refused(),
            }
        })),
        page: None,
    }
}

pub(super) fn pulse_check(pulse: &Pulse) -> Check {
    let age = pulse.age();
    match age < PULSE_LIMIT {
        true => Check::passed("runtime"),
        false => Check::failed(
            "runtime",
            format!("the work runtime has not run for {} s", age.as_secs()),
        ),
    }
}

/// Cancels at the first signal, aborts at the second. Never returns.
pub(super) async fn cancel_then_abort(mut signals: Signals, stop: &CancellationToken) {
    let name = signals.next().await;
    info!("{name}: asked to stop");
    stop.cancel();
    let name = signals.next().await;
    lines::abort(format_args!("{name}: asked to stop again: aborting"));
}
