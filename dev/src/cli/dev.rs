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
use crate::{Error, apiserver};
use quorate::cli::bundle;
use quorate::cli::companion;
use quorate::cli::connection::EtcdArgs;
use quorate::cli::dev::PROGRAM_VARIABLE;
use quorate::cli::exit::{Exit, Failure};
use quorate::cli::roles;
use quorate::cli::signals::{HANGUP, INTERRUPT, Named, Signals, TERMINATE};
use quorate::etcd::members::MemberList;
use quorate::etcd::{Config, Etcd};
use quorate::metrics::Metrics;
use quorate::resources::Bundle;
use quorate::store::{Keys, Prefix, Store};

mod hints;
mod progress;

use hints::{Hints, Kubectl, Roles};
use progress::{counted, say, seconds, tell, tell_departure, tell_end, with_progress};

/// The name of the CSI plugin to try things out with.
const DEMO_DRIVER: &str = "demo.csi.quorate.dev";

/// For a member to have a name in the list. It has been told by then, or never will be.
const NAMED_WITHIN: Duration = Duration::from_secs(10);

/// How often that is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A signal this long after the first one is meant as another one.
const INSISTENCE: Duration = Duration::from_secs(1);

/// All that may ask for the end: a terminal, or whoever runs this.
const ENDING: [Named; 3] = [INTERRUPT, TERMINATE, HANGUP];

/// Arguments of the command.
#[derive(Args, Debug)]
#[command(after_help = "\
It starts an etcd of its own: of the flags for etcd, only --prefix applies.

To try failover, kill a process of several: the others take over, and it is started again after a moment. The end of one \
that has no other of its kind ends everything.")]
pub struct DevArgs {
    /// Members of the etcd cluster: 1, or 3 to try the loss of one
    #[arg(long, value_enum, value_name = "N", default_value_t = Members::One)]
    pub members: Members,

    /// Replicas of the controller, 1 to 9: 3 to try failover
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub replicas: u8,

    /// Where to keep everything, also for the next run [default: a temporary directory, removed at the end]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Run without a kube-apiserver
    #[arg(long)]
    pub no_kubernetes: bool,

    /// Run a CSI plugin, too, whose volumes are directories
    #[arg(long)]
    pub csi_demo: bool,

    /// The bundle of Kubernetes resources [default: the one that is built in]
    #[arg(long, value_name = "DIR")]
    pub bundle: Option<PathBuf>,

    /// The `quorate` to run replicas of [default: the one beside this program, or on PATH]
    #[arg(long, value_name = "FILE", env = PROGRAM_VARIABLE, hide = true)]
    pub program: Option<PathBuf>,
}

/// Sizes of the etcd cluster.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Members {
    /// Quick to start.
    #[value(name = "1")]
    One,
    /// Survives the loss of one.
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

/// Runs everything until a signal, or until a process ends that has no other of its kind; then stops everything.
///
/// Of the etcd flags only the prefix applies: this etcd is its own.
pub async fn run(args: DevArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let mut signals = Signals::listen(&ENDING)?;
    let keys = etcd.keys()?;
    // Each replica reads it; what is wrong with it is better said once, and first.
    let bundle = bundle::of_flag(args.bundle.as_deref())?;
    let settings = replica_settings(&args, keys.prefix())?;
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
        Err(failed) = bring_up(&mut cluster, &args, keys, &bundle, &settings) => Err(failed),
    };
    // Whoever insists gets a quicker end: dropping the cluster kills it.
    let stopped = tokio::select! {
        biased;
        insisted = insists() => insisted,
        stopped = cluster.stop() => stopped.map_err(failure),
    };
    ended.and(stopped)?;
    say("dev", "everything is stopped")
}

/// Fails at the next signal. The first one may come twice, from the terminal and from whoever runs this process:
/// only a later one insists.
async fn insists() -> Result<(), Failure> {
    sleep(INSISTENCE).await;
    let name = Signals::listen(&ENDING)?.next().await;
    Err(Failure::failed(format!("{name} again: killed everything")))
}

/// Starts everything and tells what happens to it; returns only with a failure.
async fn bring_up(
    cluster: &mut Cluster,
    args: &DevArgs,
    keys: Keys,
    bundle: &Bundle,
    settings: &ReplicaSettings,
) -> Result<Infallible, Failure> {
    let begun = Instant::now();
    let directory = cluster.directory();
    say(
        "dev",
        &format!(
            "data and logs are in {}{}",
            directory.path().display(),
            if directory.is_temporary() {
                ", removed at the end"
            } else {
                ""
            }
        ),
    )?;
    let endpoints = start_etcd(cluster, args).await?;
    let store = Store {
        etcd: Etcd::connect(Config::new(endpoints.clone()), Metrics::new("dev"))
            .await
            .map_err(Failure::failed)?,
        keys: keys.clone(),
    };
    adopt(&store, cluster.etcd_members()).await?;
    let kubeconfig = if args.no_kubernetes {
        None
    } else {
        start_apiserver(cluster, &endpoints).await?
    };
    let csi_plugin = match args.csi_demo {
        true => Some(start_csi_plugin(cluster).await?),
        false => None,
    };
    say(
        "controller",
        &format!("starting {}", counted(settings.count, "replica")),
    )?;
    cluster
        .start_replicas(&endpoints, kubeconfig.clone(), settings)
        .map_err(failure)?;
    let hints = Hints {
        endpoints: endpoints.join(","),
        kubectl: kubeconfig.map(|kubeconfig| Kubectl::new(kubeconfig, bundle)),
        csi_plugin,
        prefix: keys.prefix().to_string(),
        data: cluster.directory().path().to_owned(),
        program: settings.binary.clone(),
        roles: Roles::of(cluster.etcd_members()).map_err(failure)?,
    };
    // Members come and go here.
    let etcd = store.etcd.clone();
    let observer = Observer::new(store, cluster.replicas());
    tokio::select! {
        failed = tell(&observer, &hints, begun) => failed,
        ended = cluster.keep_up(tell_end, tell_departure) => Err(failure(ended)),
        () = etcd.follow_endpoints(CancellationToken::new()) => {
            Err(Failure::failed("the endpoints of etcd are followed no more"))
        }
    }
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

/// The member list, once those that run here have told it their names, which they do a moment after they serve: a
/// member is adopted by its name.
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

/// Makes a node of each member, so that roles can be tried at once.
async fn adopt(store: &Store, running: &[Member]) -> Result<(), Failure> {
    let mut nodes = Vec::new();
    for member in &named(store, running).await?.members {
        match roles::adopt::adopt(store, member).await {
            Ok(_) => nodes.push(member.name.clone()),
            // One that somebody else added: nobody knows what it is.
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

/// The administrator's kubeconfig, or none where no kube-apiserver is installed.
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

/// The file with the Plugin object to apply. It is not applied here: what is in etcd is an operator's.
async fn start_csi_plugin(cluster: &mut Cluster) -> Result<PathBuf, Failure> {
    let step = "csi-plugin";
    let this = env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find the file of this program: {error}")))?;
    let plugin = cluster
        .start_csi_plugin(&this, DEMO_DRIVER)
        .await
        .map_err(failure)?;
    let endpoint = plugin.endpoint().clone();
    say(step, &format!("{DEMO_DRIVER} listens on {endpoint}"))?;
    let file = cluster.directory().path().join("csi").join("plugin.yaml");
    let object = format!(
        "apiVersion: quorate.dev/v1\nkind: Plugin\nmetadata: {{name: {DEMO_DRIVER}}}\nspec: {{endpoint: \"{endpoint}\"}}\n"
    );
    std::fs::write(&file, object).map_err(|error| failure(Error::write(&file)(error)))?;
    Ok(file)
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
    })
}

/// With the cause behind it, the exit code, and what to do.
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
        | Error::Certificate { .. } => Failure::failed(message),
    }
}
