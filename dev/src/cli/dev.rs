//! `quorate dev`: a whole cluster on this machine.

use std::convert::Infallible;
use std::env;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, ReplicaSettings};
use crate::data_directory::DataDirectory;
use crate::etcd::Member;
use crate::observe::Observer;
use crate::{Error, apiserver, join};
use quorate::cli::bundle;
use quorate::cli::companion;
use quorate::cli::connection::{self, EtcdArgs};
use quorate::cli::dev::PROGRAM_VARIABLE;
use quorate::cli::exit::{Exit, Failure};
use quorate::cli::roles;
use quorate::cli::signals::{ENDING, Signals};
use quorate::etcd::members::MemberList;
use quorate::resources::Bundle;
use quorate::store::{Keys, Prefix, Store};

mod hints;
mod progress;

use hints::{Hints, Kubectl, Roles};
use progress::{counted, report, report_departure, report_end, say, seconds, with_progress};

/// The driver name of the CSI plugin of `--csi-demo`.
const DEMO_DRIVER: &str = "demo.csi.quorate.dev";

/// Limit until every member has published its name in the member list. Adoption goes by name.
const NAMED_WITHIN: Duration = Duration::from_secs(10);

/// Interval between two reads of that list.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A signal that comes later than this after the first one is a second request. The first one may arrive twice, from the
/// terminal and from the process that runs this one.
const REPETITION: Duration = Duration::from_secs(1);

/// Arguments of the command.
#[derive(Args, Debug)]
#[command(after_help = "\
It starts an etcd of its own. Of the flags for etcd, only --prefix applies.

To try failover, kill one of several members or replicas: the others take over, and it is restarted after a second. The \
end of a process that is the only one of its kind ends the run.")]
pub struct DevArgs {
    /// Members of the etcd cluster: 1, or 3 to try the loss of one
    #[arg(long, value_enum, value_name = "N", default_value_t = Members::One)]
    pub members: Members,

    /// Replicas of the controller, 1 to 9: 3 to try failover
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub replicas: u8,

    /// Agents of worker nodes, up to 9, which join with a token; that of a node that is promoted starts an etcd
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=9))]
    pub agents: u8,

    /// Directory for all data, kept for later runs [default: a temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Run without a kube-apiserver
    #[arg(long)]
    pub no_kubernetes: bool,

    /// Also run a CSI plugin, whose volumes are directories, and one on the node of each agent
    #[arg(long)]
    pub csi_demo: bool,

    /// The bundle of Kubernetes resources [default: the one that is built in]
    #[arg(long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,

    /// The program of the replicas [default: quorate beside this program, or on PATH]
    #[arg(long, value_name = "FILE", env = PROGRAM_VARIABLE, hide = true)]
    pub program: Option<PathBuf>,
}

/// Sizes of the etcd cluster.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Members {
    /// One member, which starts quickly.
    #[value(name = "1")]
    One,
    /// Three members, which survive the loss of one.
    #[value(name = "3")]
    Three,
}

impl Members {
    fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Three => 3,
        }
    }
}

/// Runs a cluster until a signal, or until a process ends that is the only one of its kind. Then stops the other processes.
pub async fn run(args: DevArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let mut signals = Signals::listen(&ENDING)?;
    let keys = etcd.keys()?;
    // Each replica reads the bundle; a fault in it is reported here, once, before anything starts.
    let bundle = bundle::of_flag(args.bundle.as_deref())?;
    let mut settings = replica_settings(&args, keys.prefix())?;
    let directory = match &args.data_dir {
        Some(path) => DataDirectory::open(path),
        None => DataDirectory::temporary(),
    };
    let mut cluster = Cluster::new(directory.map_err(failure)?);
    let ended = tokio::select! {
        biased;
        name = signals.next() => {
            say("dev", &format!("{name}: stopping"))?;
            Ok(())
        }
        Err(failed) = bring_up(&mut cluster, &args, keys, &bundle, &mut settings) => Err(failed),
    };
    // A second signal ends the run at once: dropping the cluster kills it.
    let stopped = tokio::select! {
        biased;
        killed = second_signal() => killed,
        stopped = cluster.stop() => stopped.map_err(failure),
    };
    ended.and(stopped)?;
    say("dev", "everything is stopped")
}

/// Fails at the next signal that is not a repetition of the first one.
async fn second_signal() -> Result<(), Failure> {
    sleep(REPETITION).await;
    let name = Signals::listen(&ENDING)?.next().await;
    Err(Failure::failed(format!("{name} again: killed everything")))
}

/// Starts the cluster and reports what happens in it. Returns only with a failure.
async fn bring_up(
    cluster: &mut Cluster,
    args: &DevArgs,
    keys: Keys,
    bundle: &Bundle,
    settings: &mut ReplicaSettings,
) -> Result<Infallible, Failure> {
    let begun = Instant::now();
    say_where(cluster)?;
    start_agents_before_etcd(cluster, args, settings).await?;
    let endpoints = start_etcd(cluster, args).await?;
    // As commands connect: the members may elect their leader once more just after they serve.
    let reached = EtcdArgs {
        etcd_endpoints: endpoints.clone(),
        prefix: keys.prefix().to_string(),
        ..EtcdArgs::default()
    };
    let store = connection::connect(&reached).await?;
    adopt(&store, cluster.etcd_members()).await?;
    let kubeconfig = if args.no_kubernetes {
        None
    } else {
        start_apiserver(cluster, &endpoints).await?
    };
    let csi_plugin = match args.csi_demo {
        true => Some(start_csi_plugin(cluster, usize::from(args.agents)).await?),
        false => None,
    };
    if args.agents > 0 {
        let ca = join::authorities(&settings.binary, cluster.directory().path()).await;
        settings.ca_dir = Some(ca.map_err(failure)?);
    }
    say(
        "controller",
        &format!("starting {}", counted(settings.count, "replica")),
    )?;
    cluster
        .start_replicas(&endpoints, kubeconfig.clone(), settings)
        .map_err(failure)?;
    start_agents(cluster, args, &keys, &endpoints, settings).await?;
    let pages = cluster.replicas().iter();
    let hints = Hints {
        endpoints: endpoints.join(","),
        pages: pages
            .map(|replica| {
                (
                    replica.node_id.clone(),
                    format!("http://127.0.0.1:{}/", replica.port),
                )
            })
            .collect(),
        kubectl: kubeconfig.map(|kubeconfig| Kubectl::new(kubeconfig, bundle)),
        csi_plugin,
        prefix: keys.prefix().to_string(),
        data: cluster.directory().path().to_owned(),
        agents: cluster.agents().iter().map(|agent| agent.name.clone()).collect(),
        program: settings.binary.clone(),
        roles: Roles::of(cluster.etcd_members()).map_err(failure)?,
    };
    // Members may join and leave.
    let etcd = store.etcd.clone();
    let observer = Observer::new(store, cluster.replicas(), cluster.agents());
    tokio::select! {
        failed = report(&observer, &hints, begun) => failed,
        ended = cluster.keep_up(report_end, report_departure) => Err(failure(ended)),
        () = etcd.follow_endpoints(CancellationToken::new()) => {
            Err(Failure::failed("stopped following the endpoints of etcd"))
        }
    }
}

fn say_where(cluster: &Cluster) -> Result<(), Failure> {
    let directory = cluster.directory();
    let end = if directory.is_temporary() {
        ", removed at the end"
    } else {
        ""
    };
    let place = directory.path().display();
    say("dev", &format!("data and logs are in {place}{end}"))
}

async fn start_etcd(cluster: &mut Cluster, args: &DevArgs) -> Result<Vec<String>, Failure> {
    let members = args.members.count();
    say("etcd", &format!("starting {}", counted(members, "member")))?;
    let begun = Instant::now();
    let endpoints = with_progress("etcd", cluster.start_etcd(members))
        .await?
        .map_err(failure)?;
    say(
        "etcd",
        &format!("serves on {} ({})", endpoints.join(","), seconds(begun)),
    )?;
    Ok(endpoints)
}

/// The member list, once it has the names of the members that run here. A member publishes its name shortly after it
/// serves.
async fn named(store: &Store, running: &[Member]) -> Result<MemberList, Failure> {
    let limit = Instant::now() + NAMED_WITHIN;
    loop {
        let list = store.etcd.list_members().await.map_err(Failure::failed)?;
        let named = |member: &Member| list.members.iter().any(|listed| listed.name == member.name);
        if running.iter().all(named) || Instant::now() > limit {
            return Ok(list);
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Adopts each member as a node, so that its role can be changed at once.
async fn adopt(store: &Store, running: &[Member]) -> Result<(), Failure> {
    let mut nodes = Vec::new();
    for member in &named(store, running).await?.members {
        match roles::adopt::adopt(store, member, roles::adopt::Adopter::OwnOfNamed).await {
            Ok(_) => nodes.push(member.name.clone()),
            // A member that this program has not started.
            Err(failure) => say("etcd", &format!("left alone: {failure}"))?,
        }
    }
    nodes.sort();
    say(
        "etcd",
        &format!(
            "{} adopted as {}: {}",
            counted(nodes.len(), "member"),
            if nodes.len() == 1 { "node" } else { "nodes" },
            nodes.join(", ")
        ),
    )
}

/// Starts a kube-apiserver and returns the administrator's kubeconfig; none where no kube-apiserver is installed.
async fn start_apiserver(cluster: &mut Cluster, endpoints: &[String]) -> Result<Option<PathBuf>, Failure> {
    let step = "kube-apiserver";
    let Some(binary) = apiserver::find() else {
        say(step, "none found: going on without Kubernetes resources")?;
        say(step, &format!("to have one: {}", apiserver::HINT))?;
        return Ok(None);
    };
    say(step, &format!("starting {}", binary.display()))?;
    let begun = Instant::now();
    let (url, kubeconfig) = with_progress(step, cluster.start_apiserver(endpoints))
        .await?
        .map_err(failure)?;
    say(step, &format!("ready on {url} ({})", seconds(begun)))?;
    Ok(Some(kubeconfig))
}

/// Starts the CSI plugin and returns the file with its Plugin object, which the person at the terminal may apply.
async fn start_csi_plugin(cluster: &mut Cluster, agents: usize) -> Result<PathBuf, Failure> {
    let step = "csi-plugin";
    let this = this_program()?;
    let plugin = cluster
        .start_csi_plugin(&this, DEMO_DRIVER)
        .await
        .map_err(failure)?;
    let endpoint = plugin.endpoint().clone();
    say(step, &format!("{DEMO_DRIVER} listens on {endpoint}"))?;
    start_node_plugins(cluster, agents).await?;
    let file = cluster.directory().path().join("csi").join("plugin.yaml");
    let object = format!(
        "apiVersion: quorate.dev/v1\nkind: Plugin\nmetadata: {{name: {DEMO_DRIVER}}}\nspec: {{endpoint: \"{endpoint}\"}}\n"
    );
    std::fs::write(&file, object).map_err(|error| failure(Error::write(&file)(error)))?;
    Ok(file)
}

/// Starts a CSI plugin on the node of each agent.
async fn start_node_plugins(cluster: &mut Cluster, agents: usize) -> Result<(), Failure> {
    let this = this_program()?;
    let started = cluster.start_node_plugins(&this, DEMO_DRIVER, agents).await;
    started.map_err(failure)
}

fn this_program() -> Result<PathBuf, Failure> {
    env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find the file of this program: {error}")))
}

/// Starts the agents of an earlier run of which one keeps an etcd: they have certificates already, and need no token.
async fn start_agents_before_etcd(
    cluster: &mut Cluster,
    args: &DevArgs,
    settings: &ReplicaSettings,
) -> Result<(), Failure> {
    let count = usize::from(args.agents);
    if !cluster.has_managers(count) {
        return Ok(());
    }
    say("agents", &format!("starting {}", counted(count, "agent")))?;
    if args.csi_demo {
        start_node_plugins(cluster, count).await?;
    }
    cluster.choose_servers(settings.count).map_err(failure)?;
    let token = join::token_file(cluster.directory().path());
    cluster
        .start_agents(&settings.binary, count, &token, DEMO_DRIVER)
        .map_err(failure)
}

/// Makes a token for workers, and starts agents that join with it, unless they were started.
async fn start_agents(
    cluster: &mut Cluster,
    args: &DevArgs,
    keys: &Keys,
    endpoints: &[String],
    settings: &ReplicaSettings,
) -> Result<(), Failure> {
    let Some(ca_dir) = &settings.ca_dir else {
        return Ok(());
    };
    let count = usize::from(args.agents);
    if cluster.agents().len() < count {
        say("agents", &format!("starting {}", counted(count, "agent")))?;
    }
    let etcd = [
        format!("--etcd-endpoints={}", endpoints.join(",")),
        format!("--prefix={}", keys.prefix()),
    ];
    let directory = cluster.directory().path();
    let token = join::worker_token(&settings.binary, directory, ca_dir, &etcd).await;
    cluster
        .start_agents(&settings.binary, count, &token.map_err(failure)?, DEMO_DRIVER)
        .map_err(failure)
}

/// The product's program.
fn program(args: &DevArgs) -> Result<PathBuf, Failure> {
    let found = args.program.clone().or_else(|| companion::find("quorate"));
    found.ok_or_else(|| {
        Failure::failed("the program quorate is neither beside quorate-dev nor on PATH")
            .hint("name its file with --program")
    })
}

fn replica_settings(args: &DevArgs, prefix: &Prefix) -> Result<ReplicaSettings, Failure> {
    let mut flags = vec![format!("--prefix={prefix}")];
    if let Some(bundle) = &args.bundle {
        flags.push(format!("--bundle={}", bundle.display()));
    }
    Ok(ReplicaSettings {
        binary: program(args)?,
        count: usize::from(args.replicas),
        flags,
        ca_dir: None,
    })
}

/// The failure with its causes, exit code and hint.
fn failure(error: Error) -> Failure {
    let mut message = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message += &format!(": {cause}");
        source = cause.source();
    }
    match error {
        Error::NotADirectory { .. } => Failure::usage(message),
        Error::Foreign { .. } => Failure::new(Exit::Refused, message)
            .hint("--data-dir takes a new or empty directory, or one of an earlier `quorate dev`"),
        Error::InUse { .. } => {
            Failure::new(Exit::Refused, message).hint("stop that one, or give another --data-dir")
        }
        Error::OtherSize { found, .. } => Failure::new(Exit::Refused, message)
            .hint(format!("give --members {found}, or another --data-dir")),
        Error::Ended { .. } | Error::NotServing { .. } => {
            Failure::failed(message).hint("with --data-dir DIR the whole logs are kept")
        }
        Error::NotInstalled { .. }
        | Error::Build { .. }
        | Error::Start { .. }
        | Error::NotStarted { .. }
        | Error::Wait { .. }
        | Error::Write { .. }
        | Error::Read { .. }
        | Error::Malformed { .. }
        | Error::Ports(_)
        | Error::Command { .. }
        | Error::Certificate { .. } => Failure::failed(message),
    }
}
