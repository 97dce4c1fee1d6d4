//! The flags of `quorate run`, and the settings that they describe.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use jiff::SignedDuration;

use crate::cli::connection::EtcdArgs;
use crate::cli::duration::whole_seconds;
use crate::cli::encryption::KeyFiles;
use crate::cli::exit::Failure;
use crate::cli::kubernetes::NotBoth;
use crate::cli::values::{address, host_name, switch};
use crate::control::{self, ControlPort};
use crate::etcd::Config;
use crate::failpoint::Pause;
use crate::gate::controller::Times;
use crate::gate::plan::BundleVersions;
use crate::identity::controller as identity;
use crate::identity::etcd::AGENT_LIFE;
use crate::identity::node::LIFE;
use crate::kube::Limits;
use crate::kube::events::Pod;
use crate::replica::{RIGHTS_INTERVAL, Settings, first_trial};
use crate::resources;
use crate::roles::controller as roles;
use crate::roles::plan::Limits as RoleLimits;
use crate::secrets::Reader;
use crate::store::Name;
use crate::traces::Collector;
use crate::volumes::controller as volumes;

/// How long a start waits for etcd before it fails, except in a pod. The supervisor then starts it again.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The TTL of a lease, in seconds: long enough for a renewal to reach etcd, short enough to wait for a successor.
const LEASE_TTL: RangeInclusive<u64> = 2..=3600;

/// An API server takes 400 requests that are not about reading at a time, from all its clients.
const MOST_IN_FLIGHT: usize = 200;

/// The life of a certificate of a node, in seconds: an hour to ten years, that of an authority.
const CERTIFICATE_LIFE: RangeInclusive<u64> = 3600..=315_360_000;

/// How long a member may take to start, in seconds: up to a week.
const LEARNER_TIMEOUT: RangeInclusive<u64> = 1..=604_800;

/// Arguments of `quorate run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Name of this replica, unique among them [default: the pod's or the host's name]
    #[arg(long, env = "QUORATE_NODE_ID", value_name = "NAME")]
    pub(super) node_id: Option<String>,

    #[command(flatten)]
    _not_both: NotBoth,

    /// Kubeconfig file [default: in-cluster, then $KUBECONFIG, then ~/.kube/config]
    #[arg(long, env = "QUORATE_KUBECONFIG", value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,

    /// Do not touch Kubernetes: no resources, no status key, no gate
    #[arg(long, env = "QUORATE_NO_KUBERNETES", action = ArgAction::SetTrue, value_parser = switch)]
    pub(super) no_kubernetes: bool,

    /// Directory of the bundle of Kubernetes resources [default: the built-in one]
    #[arg(long, env = "QUORATE_BUNDLE", value_name = "DIR")]
    pub(super) bundle: Option<PathBuf>,

    /// Objects that may be pruned at once; needed for many, and for those of a bundle with another name
    #[arg(long, env = "QUORATE_ALLOW_PRUNE", value_name = "COUNT", default_value_t = 0, value_parser = count)]
    allow_prune: usize,

    /// TTL of the leases of the election and of the registration: whole seconds, 2s to 1h
    #[arg(long, env = "QUORATE_LEASE_TTL", value_name = "DURATION", default_value = "10s",
          value_parser = whole_seconds(LEASE_TTL))]
    lease_ttl: Duration,

    /// Requests about objects to the API server at a time; more where each takes long, on a server that takes more
    #[arg(long, env = "QUORATE_KUBE_IN_FLIGHT", value_name = "COUNT",
          default_value_t = resources::Settings::default().in_flight, value_parser = requests)]
    kube_in_flight: usize,

    /// Address for health, metrics and the status page
    #[arg(
        long,
        env = "QUORATE_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:8080",
        value_parser = address
    )]
    pub(super) listen: SocketAddr,

    /// Serve no status page: neither / nor /api/v1/state
    #[arg(long, env = "QUORATE_NO_PAGE", action = ArgAction::SetTrue, value_parser = switch)]
    pub(super) no_page: bool,

    /// Name of the public DNS under which the status page is also shown over a loopback address, as behind a proxy on the same
    /// machine; may be given several times
    #[arg(
        long = "page-host",
        env = "QUORATE_PAGE_HOST",
        value_name = "NAME",
        value_delimiter = ',',
        value_parser = host_name
    )]
    pub(super) page_hosts: Vec<String>,

    /// Form of the log on stderr; $RUST_LOG sets levels by module
    #[arg(long, env = "QUORATE_LOG_FORMAT", value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    pub(super) log_format: LogFormat,

    /// Collector to which traces are exported over OTLP: http://HOST:4317, or https:// with a certificate that the system
    /// trusts [default: no traces]
    #[arg(long, env = "QUORATE_OTLP_ENDPOINT", value_name = "URL")]
    pub(super) otlp_endpoint: Option<Collector>,

    /// Whether the endpoints follow etcd's member list; false for proxies and port forwards
    #[arg(long, env = "QUORATE_ETCD_SYNC_ENDPOINTS", value_name = "BOOL", default_value_t = true,
          action = ArgAction::Set, value_parser = switch)]
    etcd_sync_endpoints: bool,

    /// For a newer candidate to stand before this one yields to it, in milliseconds [default: twice the TTL of the leases, and a second]
    #[arg(long, hide = true)]
    trial_ms: Option<u64>,

    /// Between a leader's questions whether it may write, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(RIGHTS_INTERVAL))]
    rights_interval_ms: u64,

    /// Wait before reconciling over an existing status, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Times::default().settle))]
    settle_ms: u64,

    /// Between passes when nothing changes, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Times::default().pass_interval))]
    pass_interval_ms: u64,

    /// Between comparisons with the volumes that a plugin lists, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(volumes::Times::default().compare_every))]
    volume_compare_interval_ms: u64,

    /// Between two probes of etcd's endpoints, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Config::new(Vec::new()).endpoint_interval))]
    etcd_endpoint_interval_ms: u64,

    /// Limit on a request to etcd, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Config::new(Vec::new()).request_timeout))]
    etcd_request_timeout_ms: u64,

    /// Silence after which a progress notification is requested on a watch, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Config::new(Vec::new()).watch_silence))]
    etcd_watch_silence_ms: u64,

    /// Lease of an agent's session, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(control::SESSION_LEASE))]
    session_lease_ms: u64,

    /// Limit on a request to the API server, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(Limits::default().request))]
    kube_request_timeout_ms: u64,

    /// For an object that is replaced to be gone, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(resources::Settings::default().gone_within))]
    gone_within_ms: u64,

    /// For a CustomResourceDefinition to become established, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(resources::Settings::default().established_within))]
    established_within_ms: u64,

    /// How long a learner may make no progress before it is removed again: to start, then to catch up; for that, 1 s more for
    /// each 5 MB of etcd's data, since a snapshot counts only once it is complete
    #[arg(long, env = "QUORATE_LEARNER_TIMEOUT", value_name = "DURATION", default_value = "10m",
          value_parser = whole_seconds(LEARNER_TIMEOUT))]
    learner_timeout: Duration,

    /// How many voters etcd may have; further managers wait to join
    #[arg(long, env = "QUORATE_MAX_VOTERS", value_name = "NUMBER", default_value = "7", value_parser = voters)]
    max_voters: NonZeroUsize,

    /// Directory of the authorities, as quorate ca init writes it: the leader issues certificates to nodes, and agents call at
    /// the control port [default: no certificates, and no control port]
    #[arg(long, env = "QUORATE_CA_DIR", value_name = "DIR")]
    ca_dir: Option<PathBuf>,

    /// How long a certificate of a node is valid; at least 1h
    #[arg(long, env = "QUORATE_NODE_CERT_TTL", value_name = "DURATION", default_value = "2160h",
          value_parser = whole_seconds(CERTIFICATE_LIFE))]
    node_cert_ttl: Duration,

    /// How long a certificate of a node's member of etcd is valid; at least 1h
    #[arg(long, env = "QUORATE_ETCD_CERT_TTL", value_name = "DURATION", default_value = "720h",
          value_parser = whole_seconds(CERTIFICATE_LIFE))]
    etcd_cert_ttl: Duration,

    /// Address of the control port, where agents call; there is none without --ca-dir
    #[arg(
        long,
        env = "QUORATE_CONTROL_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "0.0.0.0:7443",
        value_parser = address
    )]
    control_listen: SocketAddr,

    /// A node that joins with the token of a role gets a certificate only after quorate accept
    #[arg(long, env = "QUORATE_APPROVE_JOINS", action = ArgAction::SetTrue, value_parser = switch)]
    approve_joins: bool,

    #[command(flatten)]
    pub(super) encryption: KeyFiles,

    #[command(flatten)]
    role_times: RoleTimes,

    /// How long a start waits for etcd, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(START_LIMIT))]
    start_limit_ms: u64,

    /// Abort the process, or drop a reply, at a named point, for fault runs
    #[arg(long, hide = true, value_name = "POINT")]
    pub(super) crash_at: Option<String>,

    /// Pause at a named point: creates the file there, and continues once the file is removed, for fault runs
    #[arg(long, hide = true, value_name = "POINT=FILE")]
    pub(super) hold_at: Option<Pause>,

    #[command(flatten)]
    pod: PodArgs,
}

impl RunArgs {
    /// The configuration of the connection to etcd.
    pub(super) fn etcd_config(&self, etcd: &EtcdArgs) -> Config {
        let mut config = etcd.config();
        config.sync_endpoints = self.etcd_sync_endpoints;
        config.endpoint_interval = Duration::from_millis(self.etcd_endpoint_interval_ms);
        config.request_timeout = Duration::from_millis(self.etcd_request_timeout_ms);
        config.watch_silence = Duration::from_millis(self.etcd_watch_silence_ms);
        config
    }

    /// How long a start waits for etcd. `None` in a pod, for as long as it takes: a container that ends is started again
    /// only after a delay that grows to minutes.
    pub(super) fn start_limit(&self) -> Option<Duration> {
        let limit = Duration::from_millis(self.start_limit_ms);
        self.pod().is_none().then_some(limit)
    }

    /// The limits on requests to the API server.
    pub(super) fn kube_limits(&self) -> Limits {
        Limits {
            request: Duration::from_millis(self.kube_request_timeout_ms),
            ..Limits::default()
        }
    }

    /// The settings of the passes over the resources.
    pub(super) fn reconciling(&self) -> resources::Settings {
        resources::Settings {
            in_flight: self.kube_in_flight,
            gone_within: Duration::from_millis(self.gone_within_ms),
            established_within: Duration::from_millis(self.established_within_ms),
            allow_prune: self.allow_prune,
            ..resources::Settings::default()
        }
    }

    /// The settings of the replica `node` with this bundle, which reads secrets like this, and whose status page has this address.
    pub(super) fn settings(
        &self,
        node: Name,
        bundle: BundleVersions,
        secrets: Reader,
        page: Option<String>,
    ) -> Settings {
        Settings {
            node,
            bundle,
            lease_ttl: self.lease_ttl,
            trial: self
                .trial_ms
                .map_or_else(|| first_trial(self.lease_ttl), Duration::from_millis),
            rights_interval: Duration::from_millis(self.rights_interval_ms),
            times: Times {
                settle: Duration::from_millis(self.settle_ms),
                pass_interval: Duration::from_millis(self.pass_interval_ms),
            },
            roles: self
                .role_times
                .settings(self.learner_timeout, self.max_voters.get()),
            volumes: volumes::Times {
                compare_every: Duration::from_millis(self.volume_compare_interval_ms),
            },
            certificates: self.ca_dir.clone().map(|ca_dir| identity::Settings {
                ca_dir,
                life: SignedDuration::try_from(self.node_cert_ttl).unwrap_or(LIFE),
                etcd_life: SignedDuration::try_from(self.etcd_cert_ttl).unwrap_or(AGENT_LIFE),
            }),
            secrets,
            page,
        }
    }

    /// Whether agents are served.
    pub(super) fn serves_agents(&self) -> bool {
        self.ca_dir.is_some()
    }

    /// The address of the pod; `None` outside Kubernetes.
    pub(super) fn pod_address(&self) -> Option<IpAddr> {
        self.pod.pod_ip.as_deref()?.parse().ok()
    }

    /// Listens at the control port of the replica with this name; `None` without authorities.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub(super) fn control(&self, replica: &Name) -> Result<Option<ControlPort>, Failure> {
        let Some(ca_dir) = self.ca_dir.clone() else {
            return Ok(None);
        };
        let settings = control::Settings {
            replica: replica.clone(),
            ca_dir,
            approve_joins: self.approve_joins,
            session_lease: Duration::from_millis(self.session_lease_ms),
        };
        ControlPort::bind(self.control_listen, settings)
            .map(Some)
            .map_err(|error| Failure::failed(error).hint("give another address with --control-listen"))
    }

    /// The pod of this replica; `None` outside Kubernetes.
    pub(super) fn pod(&self) -> Option<Pod> {
        self.pod.pod()
    }
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

    /// The longest delay before a role change is tried again, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().retry))]
    role_retry_ms: u64,

    /// Between two surveys of etcd's members while nothing is pending, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().resync))]
    role_resync_ms: u64,

    /// How long a learner may take before that is reported, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().patience))]
    learner_patience_ms: u64,

    /// For an add whose reply was lost to show in the member list, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().limits.add_doubt))]
    add_doubt_ms: u64,

    /// How long the ended join of a node that is gone is kept, in milliseconds
    #[arg(long, hide = true, default_value_t = millis(roles::Settings::default().keep_joins))]
    keep_joins_ms: u64,
}

impl RoleTimes {
    fn settings(&self, learner_timeout: Duration, max_voters: usize) -> roles::Settings {
        roles::Settings {
            limits: RoleLimits {
                learner_timeout,
                add_doubt: Duration::from_millis(self.add_doubt_ms),
                max_voters,
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

/// The pod that Kubernetes Events are about, and where it is reached, from the downward API.
#[derive(Args, Debug)]
struct PodArgs {
    #[arg(long, hide = true, env = "POD_NAME")]
    pod_name: Option<String>,
    #[arg(long, hide = true, env = "POD_NAMESPACE")]
    pod_namespace: Option<String>,
    #[arg(long, hide = true, env = "POD_UID")]
    pod_uid: Option<String>,
    #[arg(long, hide = true, env = "POD_IP")]
    pod_ip: Option<String>,
}

impl PodArgs {
    fn pod(&self) -> Option<Pod> {
        Some(Pod {
            name: self.pod_name.clone()?,
            namespace: self.pod_namespace.clone()?,
            uid: self.pod_uid.clone()?,
        })
    }
}

/// Form of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// A JSON object a line
    Json,
}

fn count(text: &str) -> Result<usize, String> {
    text.parse()
        .map_err(|_| "expected a number of objects, such as 12".to_owned())
}

fn requests(text: &str) -> Result<usize, String> {
    let parsed = text
        .parse()
        .ok()
        .filter(|count| (1..=MOST_IN_FLIGHT).contains(count));
    parsed.ok_or_else(|| format!("expected a number of requests, 1 to {MOST_IN_FLIGHT}"))
}

fn voters(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| "expected a number of voters, 1 or more".to_owned())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        run: RunArgs,
    }

    fn parsed(flags: &[&str]) -> Result<RunArgs, String> {
        let words = ["quorate"].iter().chain(flags);
        let parsed = Alone::try_parse_from(words).map(|alone| alone.run);
        parsed.map_err(|error| error.to_string())
    }

    #[test]
    fn times_default_to_the_settings_of_the_controllers() {
        let args = parsed(&[]).unwrap();
        assert_eq!(args.lease_ttl, Duration::from_secs(10));
        let limits = roles::Settings::default().limits;
        assert_eq!(args.learner_timeout, limits.learner_timeout);
        assert_eq!(args.max_voters.get(), limits.max_voters);
        assert!(parsed(&["--max-voters=0"]).is_err());
    }

    #[test]
    fn a_flag_that_takes_a_number_says_so() {
        let error = parsed(&["--allow-prune=many"]).err().unwrap();
        assert!(error.contains("expected a number of objects"), "{error}");
        assert!(parsed(&["--allow-prune=12"]).is_ok());
    }

    #[test]
    fn a_time_to_live_is_a_duration_or_a_plain_number_of_seconds() {
        for text in ["90s", "1m30s", "90"] {
            let args = parsed(&[&format!("--lease-ttl={text}")]).unwrap();
            assert_eq!(args.lease_ttl, Duration::from_secs(90), "{text}");
        }
        for text in ["1s", "1", "2500ms", "2h", "ten", "", "-5s"] {
            let error = parsed(&[&format!("--lease-ttl={text}")]).err().unwrap();
            assert!(error.contains("--lease-ttl <DURATION>"), "{error}");
            assert!(error.contains("expected whole seconds, 2s to 1h"), "{error}");
        }
    }
}
