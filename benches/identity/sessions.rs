//! A thousand sessions on one replica: what each costs, what etcd has to do for them, and how they come back after its loss.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use etcd_client::{GetOptions, KeyValue};
use prost::Message;
use quorate::proto::NodeSession;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::Scale;
use super::cluster::Cluster;
use super::crowd::{self, Crowd};
use super::measure::{Table, Unit};
use super::processor::processor_time;
use super::servers::{LIMIT, resident_memory};

/// The lease of a session, and the limit until all of them are back: `quorate run` has this one unless its flag says otherwise.
const LEASE: Duration = Duration::from_secs(30);

/// Time for the work of the start to end.
const SETTLE: Duration = Duration::from_secs(5);

/// Between two looks at how many sessions are back.
const LOOK: Duration = Duration::from_millis(100);

/// How each replica is lost, one after the other.
const LOSSES: [&str; 2] = [
    "replica lost",
    "the next one lost, before the sessions are as old as their lease",
];

pub async fn measure(scale: Scale) -> Result<()> {
    let mut cluster = Cluster::start(2).await?;
    // The agents know both, and find the first.
    cluster.replicas[1].stop().await?;
    let members = crowd::members(scale.agents, &cluster.authority, cluster.id)?;
    cluster.put(&members).await?;
    let home = cluster.directory.path().join("crowd");
    let mut crowd = Crowd::new(&home, &cluster.authority, cluster.id, &cluster.servers)?;
    eprintln!("a replica without agents for {:?}", scale.window / 2);
    sleep(SETTLE).await;
    let alone = observe(&cluster, scale.window / 2).await?;
    // What the first connection and session need once for all.
    crowd.start(&members[..1]).await?;
    let pid = cluster.replicas[0].pid().context("the replica runs")?;
    let before = resident_memory(pid)?;
    let begun = Instant::now();
    crowd.start(&members[1..]).await?;
    eprintln!("{} agents started within {:?}", scale.agents, begun.elapsed());
    let memory = (resident_memory(pid)? - before) / (scale.agents - 1) as f64;
    sleep(SETTLE).await;
    let with_agents = observe(&cluster, scale.window).await?;

    // What was measured before is printed, too, where a session does not come back.
    let (mut losses, mut failure) = (Vec::new(), None);
    for (replica, what) in LOSSES.into_iter().enumerate() {
        eprintln!("{what}");
        match lose(&mut cluster, &crowd, replica, scale.agents).await {
            Ok(lost) => losses.push((what, lost)),
            Err(error) => {
                failure = Some(error.context(what));
                break;
            }
        }
    }

    let costs = Costs {
        memory,
        alone,
        with_agents,
    };
    println!("{}", table(scale, &costs, &losses));
    failure.map_or(Ok(()), Err)
}

/// What the sessions of a replica cost.
struct Costs {
    /// Resident bytes of the replica for each session.
    memory: f64,
    /// Without agents.
    alone: Observed,
    with_agents: Observed,
}

fn table(scale: Scale, costs: &Costs, losses: &[(&str, Lost)]) -> Table {
    let Costs {
        memory,
        alone,
        with_agents,
    } = costs;
    let thousand = 1e3 / scale.agents as f64;
    let mut table = Table::new("Sessions: a thousand agents on one replica");
    let mut row = |what: &str, value, unit, aim| table.single(what, value, unit, aim);
    row(
        "resident memory of the replica for each session",
        *memory,
        Unit::Bytes,
        "",
    );
    let heartbeats = with_agents.heartbeats * thousand;
    row("heartbeats a minute", heartbeats, Unit::Count, "");
    let requests = with_agents.beyond(alone);
    let sum = requests.values().sum::<f64>() * thousand;
    row(
        "requests to etcd a minute, beyond those of an idle replica",
        sum,
        Unit::Count,
        "",
    );
    row("the latter over the former", sum / heartbeats, Unit::Times, "");
    let processor = (with_agents.processor - alone.processor) * thousand;
    row(
        "processor time of the replica a minute, beyond that",
        processor,
        Unit::Seconds,
        "",
    );
    for (what, lost) in losses {
        let seconds = lost.taken.as_secs_f64();
        row(
            &format!("{what} → all sessions back"),
            seconds,
            Unit::Seconds,
            "within 30 s",
        );
        let handshakes = lost.handshakes / scale.agents as f64;
        row(
            &format!("{what}: TLS handshakes for each session"),
            handshakes,
            Unit::Times,
            "",
        );
        row(
            &format!("{what}: most sessions back in 0.1 s"),
            lost.most,
            Unit::Count,
            "",
        );
    }
    let by_method: Vec<String> = requests
        .iter()
        .filter(|(_, count)| count.round() != 0.0)
        .map(|(method, count)| format!("{method} {:.0}", count * thousand))
        .collect();
    table.note(format!("Requests a minute: {}.", by_method.join(", ")));
    table.note(format!(
        "{} agents, the product's own, in the benchmark's process; what is counted in a time is scaled to a thousand. The replica is \
         killed, and each session goes on with its lease of before, of {LEASE:?}.",
        scale.agents
    ));
    table
}

/// What happened in a time, scaled to a minute.
struct Observed {
    /// Messages that etcd received, by method.
    requests: BTreeMap<String, f64>,
    heartbeats: f64,
    /// Processor seconds of the replica.
    processor: f64,
}

impl Observed {
    /// The requests that are not those of the other one.
    fn beyond(&self, other: &Self) -> BTreeMap<String, f64> {
        let requests = self.requests.iter();
        let beyond = requests.map(|(method, count)| {
            let others = other.requests.get(method).unwrap_or(&0.0);
            (method.clone(), count - others)
        });
        beyond.collect()
    }
}

/// Observes the first replica for this time.
async fn observe(cluster: &Cluster, window: Duration) -> Result<Observed> {
    let pid = cluster.replicas[0].pid().context("the replica runs")?;
    let heartbeats = async || cluster.metric(0, "quorate_session_heartbeats_total").await;
    let received = cluster.etcd.received().await?;
    let (used, beaten) = (processor_time(pid)?, heartbeats().await?);
    let begun = Instant::now();
    sleep(window).await;
    let a_minute = 60.0 / begun.elapsed().as_secs_f64();
    let (used, beaten) = (processor_time(pid)? - used, heartbeats().await? - beaten);
    let mut requests = cluster.etcd.received().await?;
    for (method, count) in &mut requests {
        *count = (*count - received.get(method).unwrap_or(&0.0)) * a_minute;
    }
    Ok(Observed {
        requests,
        heartbeats: beaten * a_minute,
        processor: used.as_secs_f64() * a_minute,
    })
}

/// How the sessions of a replica came to the other one.
struct Lost {
    /// From the end of the replica until each session is on record and its agent knows of it.
    taken: Duration,
    /// Those that the other replica had meanwhile.
    handshakes: f64,
    /// The most sessions that came within [`LOOK`].
    most: f64,
}

/// Kills a replica, and waits until its sessions are at the other one, which is started before. Each must have kept its lease.
async fn lose(cluster: &mut Cluster, crowd: &Crowd, replica: usize, agents: usize) -> Result<Lost> {
    let other = 1 - replica;
    cluster.replicas[other].launch()?;
    cluster.replicas[other].wait_until("/readyz", LIMIT).await?;
    cluster.serves(other).await?;
    let (held, before) = (sessions(cluster).await?, handshakes(cluster, other).await?);
    ensure!(held.len() == agents, "{} sessions are on record", held.len());
    cluster.replicas[replica].kill().await?;
    let begun = Instant::now();
    let (mut served, mut most) = (0.0, 0.0_f64);
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while served < agents as f64 {
        looks.tick().await;
        let now = cluster.metric(other, "quorate_sessions").await?;
        most = most.max(now - served);
        served = now;
        ensure!(
            begun.elapsed() < LEASE,
            "{served} of {agents} sessions are back in time"
        );
    }
    let to = cluster.replicas[other].node_id.clone();
    let now = loop {
        let now = sessions(cluster).await?;
        let back = now.values().filter(|session| session.replica == to).count();
        let know = crowd.in_session();
        if (back, know) == (agents, agents) {
            break now;
        }
        ensure!(
            begun.elapsed() < LEASE,
            "of {agents} sessions {back} are on record in time, and {know} agents know of theirs"
        );
        looks.tick().await;
    };
    let taken = begun.elapsed();
    let lapsed = held
        .iter()
        .filter(|(key, session)| now[*key].lease != session.lease);
    let lapsed = lapsed.count();
    ensure!(lapsed == 0, "{lapsed} sessions have lost their lease");
    Ok(Lost {
        taken,
        handshakes: handshakes(cluster, other).await? - before,
        most,
    })
}

/// A session that is on record.
struct OnRecord {
    lease: i64,
    /// The replica that serves it.
    replica: String,
}

/// The sessions that are on record, by their keys.
async fn sessions(cluster: &Cluster) -> Result<BTreeMap<Vec<u8>, OnRecord>> {
    let mut client = cluster.etcd_client().await?;
    let all = GetOptions::new().with_prefix();
    let alive = client.get("/quorate/alive/", Some(all)).await?;
    let session = |kv: &KeyValue| {
        let NodeSession { replica, .. } = NodeSession::decode(kv.value())?;
        let lease = kv.lease();
        anyhow::Ok((kv.key().to_vec(), OnRecord { lease, replica }))
    };
    alive.kvs().iter().map(session).collect()
}

/// The handshakes that a replica has had since its start, however they ended.
async fn handshakes(cluster: &Cluster, replica: usize) -> Result<f64> {
    let mut all = 0.0;
    for result in ["done", "failed", "timed_out", "made_way", "not_ready"] {
        let series = format!("quorate_control_handshakes_total{{result=\"{result}\"}}");
        all += cluster.metric(replica, &series).await?;
    }
    Ok(all)
}
