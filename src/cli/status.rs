//! `quorate status`: leader, gate and replicas at a glance.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::connection::{self, EtcdArgs};
use super::exit::Failure;
use super::outage;
use super::output::{Description, NONE, Reader, one_line, print};
use crate::etcd::members::Alarm;
use crate::etcd::{KeyRange, Watcher};
use crate::gate::overview::Overview;
use crate::proto::Pause;
use crate::release::Release;
use crate::retry::Delays;
use crate::roles::facts::Facts;
use crate::roles::faulty_releases::{FaultyRelease, faulty_releases};
use crate::store::Store;
use crate::store::object::time;

/// Arguments of `quorate status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// Show it again whenever it changes, until interrupted
    #[arg(short, long)]
    pub watch: bool,

    /// Format of the output
    #[arg(short, long, value_enum, default_value_t = StatusFormat::Text, value_name = "FORMAT")]
    pub output: StatusFormat,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatusFormat {
    /// Lines for people
    Text,
    /// The same, with the address of each replica's status page
    Wide,
    /// One JSON object; with --watch, one a line
    Json,
}

/// With `--watch`, changes within this time are shown together.
const BURST: Duration = Duration::from_millis(200);

/// Prints the overview; with `--watch` again whenever it changes.
///
/// # Errors
/// A failure if etcd does not answer. While watching, it waits for etcd instead.
pub async fn run(args: StatusArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = match args.watch {
        true => connection::connect(etcd).await?,
        false => connection::connect_to_show(etcd).await?,
    };
    if args.watch {
        return outage::following(&store.etcd, watch(&store, &args)).await?;
    }
    let (overview, faulty) = tokio::join!(Overview::read(&store), faulty(&store));
    print(&render(&overview?, &faulty, &args)).map(drop)
}

/// The releases of etcd with known faults that run. None where the members cannot be read, which the overview shows otherwise.
async fn faulty(store: &Store) -> Vec<FaultyRelease> {
    let facts = Facts::to_show(store).await;
    facts.map_or_else(|_| Vec::new(), |facts| faulty_releases(&facts.membership))
}

async fn watch(store: &Store, args: &StatusArgs) -> Result<(), Failure> {
    let mut changes = Changes::new(store).await?;
    // Once: releases change seldom, and what wakes the watch does not tell of it.
    let faulty = faulty(store).await;
    let (mut shown, mut warned) = (None, None);
    let mut delays = Delays::etcd();
    loop {
        match Overview::read(store).await {
            Ok(overview) if shown.as_ref() != Some(&overview) => {
                let again = if shown.is_some() && args.output != StatusFormat::Json {
                    "\n"
                } else {
                    ""
                };
                if print(&format!("{again}{}", render(&overview, &faulty, args)))? == Reader::Gone {
                    return Ok(());
                }
                shown = Some(overview);
            }
            Ok(_) => {}
            Err(error) => {
                // The change before it is not shown yet, and no other one may come.
                let why = error.to_string();
                if warned.as_ref() != Some(&why) {
                    super::output::warn(&why);
                    warned = Some(why);
                }
                delays.wait().await;
                continue;
            }
        }
        warned = None;
        delays.reset();
        changes.next().await;
        tokio::time::sleep(BURST).await;
    }
}

/// Wakes the watch when something changes. Carries no data: the overview is read again.
struct Changes {
    reconciler: Watcher,
    nodes: Watcher,
    alive: Watcher,
    pause: Watcher,
}

impl Changes {
    async fn new(store: &Store) -> Result<Self, Failure> {
        let (_, revision) = store.etcd.get(&store.keys.status()).await?;
        let reconciler = store.keys.reconciler();
        Ok(Self {
            reconciler: Watcher::new(&store.etcd, reconciler, revision.next()),
            nodes: Watcher::new(&store.etcd, store.keys.nodes(), revision.next()),
            alive: Watcher::new(&store.etcd, store.keys.all_alive(), revision.next()),
            pause: Watcher::new(
                &store.etcd,
                KeyRange::key(store.keys.roles_pause()),
                revision.next(),
            ),
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.reconciler.next() => {}
            _ = self.nodes.next() => {}
            _ = self.alive.next() => {}
            _ = self.pause.next() => {}
        }
    }
}

fn render(overview: &Overview, faulty: &[FaultyRelease], args: &StatusArgs) -> String {
    match args.output {
        StatusFormat::Text => text(overview, faulty, false),
        StatusFormat::Wide => text(overview, faulty, true),
        StatusFormat::Json if args.watch => format!("{}\n", document(overview, faulty)),
        StatusFormat::Json => format!("{:#}\n", document(overview, faulty)),
    }
}

fn text(overview: &Overview, faulty: &[FaultyRelease], is_wide: bool) -> String {
    let mut lines = Description::default();
    if overview.quorum_lost {
        let text = "QuorumLost: etcd answers no linearizable read, and takes no write (quorate recover plan)";
        lines.field("Quorum", text);
    }
    match overview.leader() {
        Some(leader) => lines.field("Leader", format!("{} (term {})", leader.name, leader.entered)),
        None => lines.field("Leader", NONE),
    };
    for candidate in overview.candidates_without_lease() {
        let key = String::from_utf8_lossy(&candidate.key);
        lines.field(
            "Election",
            format!(
                "the key of {} is on no lease: it outlives its replica, and no other replica can lead until it is \
                 deleted: etcdctl del {key}",
                candidate.name
            ),
        );
    }
    if overview.alarms.is_none() {
        lines.field("Alarm", "unknown: etcd did not list its alarms");
    }
    for alarm in overview.alarms.iter().flatten() {
        let meaning = match alarm.kind.as_str() {
            Alarm::NOSPACE => {
                "etcd refuses every write until there is space again (compact, defragment, or raise \
                               --quota-backend-bytes) and the alarm is cleared: etcdctl alarm disarm"
                    .to_owned()
            }
            Alarm::CORRUPT => format!(
                "its data differs from that of the others, and etcd refuses every write: {}, then quorate replace its node",
                Alarm::BEFORE_REPLACEMENT
            ),
            _ => "see etcdctl alarm list".to_owned(),
        };
        lines.field(
            "Alarm",
            format!("{} of member {}: {meaning}", alarm.kind, alarm.member),
        );
    }
    for release in faulty {
        lines.field("Known fault", release.to_string());
    }
    if let Some(degraded) = &overview.degraded {
        lines.field(
            "Degraded",
            format!(
                "{} since {}: {}",
                degraded.reason, degraded.since, degraded.message
            ),
        );
    }
    match &overview.status {
        None => lines.field(
            "Status",
            "none yet: nothing is reconciled, no replica is admitted",
        ),
        Some(Err(malformed)) => lines.field("Status", format!("malformed: {malformed}")),
        Some(Ok(status)) => lines
            .field("Status", status.state.to_string())
            .field("Reconciled by", status.version.to_string())
            .field("Minimum release", status.minimum_compatible.to_string()),
    };
    lines.field(
        "Resources",
        format!("{}/{} applied", overview.applied, overview.inventory),
    );
    if let Some(pause) = &overview.roles_paused {
        lines.field("Roles", paused(pause));
    }
    add_replicas(&mut lines, overview);
    if is_wide {
        add_pages(&mut lines, overview);
    }
    add_nodes(&mut lines, overview);
    lines.render()
}

/// How many nodes are ready, and of which managers the certificates of etcd end soon.
fn add_nodes(lines: &mut Description, overview: &Overview) {
    if overview.nodes > 0 {
        let text = format!("{}/{} ready", overview.ready_nodes, overview.nodes);
        lines.field("Nodes", text);
    }
    for (node, end) in &overview.members_ending {
        let text = format!("that of the etcd of node {node} ends at {}", time::rfc3339(*end));
        lines.field("Certificate", text);
    }
}

fn add_replicas(lines: &mut Description, overview: &Overview) {
    if overview.replicas.is_empty() {
        lines.field("Replicas", NONE);
    }
    let position_of = |name: &str| {
        let mut candidates = overview.candidates.iter();
        candidates.position(|candidate| candidate.name == name)
    };
    let standing = overview.replicas.iter();
    let standing = standing.filter(|(name, _)| position_of(name).is_some());
    let newest = standing.filter_map(|(name, version)| Some((version.as_ref()?.release, name.as_str())));
    let newest = newest.max();
    let mut title = "Replicas";
    for (name, version) in &overview.replicas {
        let position = position_of(name);
        let text = match version {
            Some(version) => {
                let newer = newest.filter(|(release, _)| *release > version.release);
                format!("{name} at {version}, {}", role(position, newer))
            }
            None => {
                let role = position.map_or_else(|| NOT_STANDING.to_owned(), |at| role(Some(at), None));
                format!("{name}, {role}: its registration cannot be read")
            }
        };
        lines.field(title, text);
        title = "";
    }
}

/// Where each replica shows its status page. Any client of etcd can write these texts.
fn add_pages(lines: &mut Description, overview: &Overview) {
    let mut title = "Pages";
    for (name, _) in &overview.replicas {
        let page = overview
            .pages
            .get(name)
            .map_or_else(|| NONE.to_owned(), |page| one_line(page));
        lines.field(title, format!("{page} ({name})"));
        title = "";
    }
}

/// That roles are paused, since when and why.
fn paused(pause: &Pause) -> String {
    let since = time::from_proto(pause.since.as_ref()).map(|at| format!(" since {at}"));
    let reason = one_line(&pause.reason);
    let because = if reason.is_empty() {
        String::new()
    } else {
        format!(": {reason}")
    };
    format!(
        "paused{}{because} (quorate resume roles)",
        since.unwrap_or_default()
    )
}

const NOT_STANDING: &str = "not standing for election";

/// What a replica is in the election, by its position among the candidates. `newer` keeps it from standing.
fn role(position: Option<usize>, newer: Option<(Release, &str)>) -> String {
    match (position, newer) {
        (Some(0), _) => "leader".to_owned(),
        (Some(_), _) => "standby".to_owned(),
        // A replica that etcd refuses can write down nothing of it.
        (None, None) => format!("{NOT_STANDING}: its log and its /leaderz say why"),
        (None, Some((release, name))) => {
            format!("{NOT_STANDING}: replica {name} runs release {release}, which is newer")
        }
    }
}

fn document(overview: &Overview, faulty: &[FaultyRelease]) -> Value {
    let status = match &overview.status {
        Some(Ok(status)) => json!({
            "state": status.state.to_string(),
            "version": status.version.to_string(),
            "minimumCompatibleRelease": status.minimum_compatible.to_string(),
        }),
        Some(Err(malformed)) => json!({ "malformed": malformed.to_string() }),
        None => Value::Null,
    };
    let replicas: Vec<Value> = overview
        .replicas
        .iter()
        .map(|(name, version)| {
            let version = version.as_ref().map(ToString::to_string);
            json!({ "name": name, "version": version, "page": overview.pages.get(name) })
        })
        .collect();
    json!({
        "quorumLost": overview.quorum_lost,
        "leader": overview.leader().map(|leader| json!({ "name": leader.name, "term": leader.entered.0 })),
        "candidates": overview.candidates.iter().map(|candidate| &candidate.name).collect::<Vec<_>>(),
        "keysWithoutLease": overview
            .candidates_without_lease()
            .map(|candidate| String::from_utf8_lossy(&candidate.key))
            .collect::<Vec<_>>(),
        "status": status,
        "alarms": overview.alarms.as_ref().map(|alarms| {
            let alarm = |alarm: &Alarm| json!({ "alarm": alarm.kind, "member": alarm.member.to_string() });
            alarms.iter().map(alarm).collect::<Vec<_>>()
        }),
        "knownFaults": faulty.iter().map(|release| json!({
            "version": release.version,
            "members": release.members,
            "fault": release.found.fault.what,
            "source": release.found.fault.source,
            "remedy": release.found.remedy(),
        })).collect::<Vec<_>>(),
        "degraded": overview.degraded,
        "rolesPaused": overview.roles_paused.as_ref().map(|pause| json!({
            "since": time::document(pause.since.as_ref()),
            "reason": pause.reason,
        })),
        "resources": { "applied": overview.applied, "inventory": overview.inventory },
        "replicas": replicas,
        "nodes": { "ready": overview.ready_nodes, "all": overview.nodes },
        "membersEnding": overview
            .members_ending
            .iter()
            .map(|(node, end)| json!({ "node": node, "notAfter": time::rfc3339(*end) }))
            .collect::<Vec<_>>(),
    })
}
