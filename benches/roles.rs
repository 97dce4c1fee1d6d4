//! Node roles: how long a promotion and a demotion take beside etcd's own calls, and how many roles change a second.
//! `cargo bench --bench roles`.
//!
//! Every round does the same twice on the same cluster: through desired roles and joins with a leader, and with etcd's
//! calls alone. etcd's own check (`--strict-reconfig-check`) is off: it counts a member only 5 s after it connected,
//! which would be all that is measured. The table (Markdown) goes to stdout, progress to stderr.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use etcd_client::{Client, Compare, CompareOp, EventType, MemberAddOptions, Txn, TxnOp, WatchOptions};
use futures::StreamExt as _;
use futures::stream;
use prost::Message;
use quorate::dev::etcd::{Etcd as Server, Options};
use quorate::etcd::election::{Leadership, campaign};
use quorate::etcd::{Config, Etcd, Pulse};
use quorate::metrics::Metrics;
use quorate::proto::join::Progress;
use quorate::proto::{Join, JoinRequest, Member, Metadata, Node, NodeSpec, NodeStatus, Role};
use quorate::roles::controller::{RoleController, Settings};
use quorate::store::{Keys, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 10;
const NODES: usize = 10_000;
const BULK_ROUNDS: usize = 3;

/// Transactions under way at once, and nodes in each, as the leader has them.
const PARALLEL: usize = 8;
const BATCH: usize = 60;

/// For anything that is waited for here; only a fault exceeds it.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut words = args.iter().filter(|arg| !arg.starts_with('-')).peekable();
    if words.peek().is_some() && !words.any(|word| "roles".contains(word.as_str())) {
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::select! {
            measured = async {
                measure_membership().await?;
                measure_bulk().await
            } => measured,
            // Dropping what runs ends its processes and removes its files.
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })
}

/// Samples of one thing.
type Samples = Vec<f64>;

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn row(what: &str, samples: &[f64], unit: &str, aim: &str) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let show = |value: Option<&f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
    let (least, middle, greatest) = (sorted.first(), sorted.get(sorted.len() / 2), sorted.last());
    println!(
        "| {what} | {} {unit} | {} – {} | {aim} |",
        show(middle),
        show(least),
        show(greatest)
    );
}

fn over(own: &[f64], other: &[f64]) -> Samples {
    own.iter().zip(other).map(|(own, other)| own / other).collect()
}

async fn measure_membership() -> Result<()> {
    let directory = tempfile::Builder::new().prefix("quorate-bench-").tempdir()?;
    let mut cluster = Cluster::start(directory.path()).await?;
    let (mut up, mut up_raw, mut down, mut down_raw, mut put) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut lead, mut lead_raw) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        eprintln!("round {round}/{ROUNDS}: etcd's own calls");
        let (added, removed) = cluster.raw(false).await?;
        up_raw.push(millis(added));
        down_raw.push(millis(removed));
        lead_raw.push(millis(cluster.raw(true).await?.1));
        put.push(millis(cluster.one_put().await?));
        eprintln!("round {round}/{ROUNDS}: through roles");
        let leader = Leader::elect(&cluster.server.endpoints()).await?;
        let working = leader.work();
        let (added, removed) = cluster.through_roles(false).await?;
        up.push(millis(added));
        down.push(millis(removed));
        lead.push(millis(cluster.through_roles(true).await?.1));
        drop(working);
        leader.leadership.resign().await;
    }
    println!("### Promotion and demotion: a fourth member beside three\n");
    println!("| measured | median | least – greatest | aim |\n| --- | --- | --- | --- |");
    row("one etcd put", &put, "ms", "");
    row(
        "member add, start of etcd, member promote: etcd's calls alone",
        &up_raw,
        "ms",
        "",
    );
    row(
        "promotion asked for → voter, the same start of etcd in it",
        &up,
        "ms",
        "",
    );
    row(
        "the latter over the former",
        &over(&up, &up_raw),
        "×",
        "at most 2",
    );
    row("member remove: etcd's call alone", &down_raw, "ms", "");
    row("demotion asked for → worker", &down, "ms", "");
    row(
        "the latter over the former",
        &over(&down, &down_raw),
        "×",
        "at most 2",
    );
    row(
        "move leader, then member remove: etcd's calls alone",
        &lead_raw,
        "ms",
        "",
    );
    row("demotion of the raft leader asked for → worker", &lead, "ms", "");
    row(
        "the latter over the former",
        &over(&lead, &lead_raw),
        "×",
        "at most 2",
    );
    println!();
    cluster.server.stop().await?;
    Ok(())
}

/// Three members that stay, and a machine for one that comes and goes.
struct Cluster {
    server: Server,
    /// To the three.
    client: Client,
    machine: usize,
}

fn uid(name: &str) -> String {
    format!("uid-of-{name}")
}

fn node(name: &str, desired: Role, observed: Role) -> Vec<u8> {
    let node = Node {
        metadata: Some(Metadata {
            name: name.to_owned(),
            uid: uid(name),
            generation: 1,
            ..Metadata::default()
        }),
        spec: Some(NodeSpec {
            desired_role: desired.into(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            role: observed.into(),
            ..NodeStatus::default()
        }),
    };
    node.encode_to_vec()
}

impl Cluster {
    async fn start(directory: &Path) -> Result<Self> {
        let options = Options {
            members: 3,
            tls: None,
            flags: vec!["--strict-reconfig-check=false".to_owned()],
        };
        let mut server = Server::start(directory, &options).await?;
        let client = Client::connect(server.endpoints(), None).await?;
        let machine = server.members.len();
        server.add()?;
        let cluster = Self {
            server,
            client,
            machine,
        };
        let mut client = cluster.client.clone();
        for member in client.member_list().await?.members() {
            let record = Member {
                node: member.name().to_owned(),
                node_uid: uid(member.name()),
                peer_urls: member.peer_urls().to_vec(),
                ..Member::default()
            };
            let key = format!("/quorate/members/{:016x}", member.id());
            client.put(key, record.encode_to_vec(), None).await?;
            let key = format!("/quorate/nodes/{}", member.name());
            client
                .put(key, node(member.name(), Role::Manager, Role::Manager), None)
                .await?;
        }
        Ok(cluster)
    }

    async fn one_put(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.client.put("/put", "", None).await?;
        Ok(begun.elapsed())
    }

    /// Starts the machine's etcd as the member that was added for it.
    async fn start_machine(&mut self, id: u64) -> Result<()> {
        let machine = &self.server.members[self.machine];
        let (name, peer_url) = (machine.name.clone(), machine.peer_url.clone());
        // Whoever answers may not have it yet.
        let listed = loop {
            let listed = self.client.member_list().await?;
            if listed.members().len() == 4 && listed.members().iter().any(|member| member.id() == id) {
                break listed;
            }
        };
        let entries: Vec<String> = listed
            .members()
            .iter()
            .map(|member| {
                let url = member.peer_urls().concat();
                let name = if url == peer_url { &name } else { member.name() };
                format!("{name}={url}")
            })
            .collect();
        Ok(self.server.members[self.machine].join(&entries.join(","))?)
    }

    async fn stop_machine(&mut self) -> Result<()> {
        self.server.members[self.machine].kill().await?;
        // A member's id is made of its peer URLs and the second in which it is added, and never used again.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    }

    /// A client of the raft leader, the leader's id, and whether that is the machine's.
    async fn raft_leader(&self) -> Result<(Client, u64)> {
        for member in &self.server.members {
            let Ok(mut client) = Client::connect([&member.client_url], None).await else {
                continue;
            };
            let Ok(status) = client.status().await else {
                continue;
            };
            if status
                .header()
                .is_some_and(|header| header.member_id() == status.leader())
            {
                return Ok((client, status.leader()));
            }
        }
        bail!("no member is the raft leader")
    }

    /// Lets the machine's member lead.
    async fn let_lead(&self, member: u64) -> Result<()> {
        let (mut client, leader) = self.raft_leader().await?;
        if leader != member {
            client.move_leader(member).await?;
        }
        Ok(())
    }

    /// From the add to a voter, and from the removal to its end, with etcd's calls alone.
    async fn raw(&mut self, leading: bool) -> Result<(Duration, Duration)> {
        let peer_url = self.server.members[self.machine].peer_url.clone();
        let begun = Instant::now();
        let options = MemberAddOptions::new().with_is_learner();
        let added = self.client.member_add([peer_url], Some(options)).await?;
        let id = added.member().context("a member")?.id();
        self.start_machine(id).await?;
        while self.client.member_promote(id).await.is_err() {
            if begun.elapsed() > LIMIT {
                bail!("the learner is not promoted within {LIMIT:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let up = begun.elapsed();
        if leading {
            self.let_lead(id).await?;
        }
        let begun = Instant::now();
        if leading {
            let (mut client, _) = self.raft_leader().await?;
            let other = self.client.member_list().await?;
            let other = other
                .members()
                .iter()
                .find(|member| member.id() != id)
                .context("another member")?;
            client.move_leader(other.id()).await?;
        }
        self.client.member_remove(id).await?;
        let down = begun.elapsed();
        self.stop_machine().await?;
        Ok((up, down))
    }

    /// The same, asked for by what operators and nodes write.
    async fn through_roles(&mut self, leading: bool) -> Result<(Duration, Duration)> {
        let machine = &self.server.members[self.machine];
        let (name, peer_url) = (machine.name.clone(), machine.peer_url.clone());
        let (node_key, join_key) = (format!("/quorate/nodes/{name}"), format!("/quorate/joins/{name}"));
        self.client
            .put(node_key.as_str(), node(&name, Role::Worker, Role::Worker), None)
            .await?;
        self.client.delete(join_key.as_str(), None).await?;
        let mut seen = Seen::watch(&self.client, "/quorate/").await?;

        let begun = Instant::now();
        self.client
            .put(node_key.as_str(), node(&name, Role::Manager, Role::Worker), None)
            .await?;
        seen.role(&node_key, Role::Manager).await?;
        let join = Join {
            request: Some(JoinRequest {
                id: uuid::Uuid::new_v4().to_string(),
                node_uid: uid(&name),
                peer_urls: vec![peer_url],
                ..JoinRequest::default()
            }),
            ..Join::default()
        };
        self.client
            .put(join_key.as_str(), join.encode_to_vec(), None)
            .await?;
        let member = seen.progress(&join_key, Progress::Learner).await?;
        self.start_machine(member).await?;
        seen.progress(&join_key, Progress::Voter).await?;
        let up = begun.elapsed();
        if leading {
            self.let_lead(member).await?;
        }
        let begun = Instant::now();
        self.client
            .put(node_key.as_str(), node(&name, Role::Worker, Role::Manager), None)
            .await?;
        seen.role(&node_key, Role::Worker).await?;
        let down = begun.elapsed();
        self.stop_machine().await?;
        Ok((up, down))
    }
}

/// What a watch brings.
struct Seen {
    stream: etcd_client::WatchStream,
}

impl Seen {
    async fn watch(client: &Client, prefix: &str) -> Result<Self> {
        let options = WatchOptions::new().with_prefix();
        let mut stream = client.watch_client().watch(prefix, Some(options)).await?;
        // The watch is there once etcd says so.
        stream.message().await?;
        Ok(Self { stream })
    }

    /// The first value of this key that is as wanted.
    async fn value<T>(&mut self, key: &str, mut wanted: impl FnMut(&[u8]) -> Option<T>) -> Result<T> {
        let waiting = async {
            while let Some(message) = self.stream.message().await? {
                for event in message
                    .events()
                    .iter()
                    .filter(|event| event.event_type() == EventType::Put)
                {
                    if let Some(kv) = event.kv().filter(|kv| kv.key() == key.as_bytes())
                        && let Some(value) = wanted(kv.value())
                    {
                        return Ok(value);
                    }
                }
            }
            bail!("the watch ended")
        };
        tokio::time::timeout(LIMIT, waiting)
            .await
            .with_context(|| format!("{key} is not as wanted within {LIMIT:?}"))?
    }

    async fn role(&mut self, key: &str, role: Role) -> Result<()> {
        self.value(key, |value| {
            let node = Node::decode(value).ok()?;
            (node.status?.role() == role).then_some(())
        })
        .await
    }

    async fn progress(&mut self, key: &str, progress: Progress) -> Result<u64> {
        self.value(key, |value| {
            let join = Join::decode(value).ok()?;
            (join.progress() == progress).then_some(join.member_id)
        })
        .await
    }
}

async fn measure_bulk() -> Result<()> {
    let directory = tempfile::Builder::new().prefix("quorate-bench-").tempdir()?;
    let mut server = Server::start(directory.path(), &Options::default()).await?;
    let client = Client::connect(server.endpoints(), None).await?;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    let name = |number: usize| format!("n{number:05}");
    for round in 1..=BULK_ROUNDS {
        eprintln!("round {round}/{BULK_ROUNDS}: {NODES} roles change at once, beside raw transactions");
        let leader = Leader::elect(&server.endpoints()).await?;
        let working = leader.work();
        fill(&client, |number| node(&name(number), Role::Worker, Role::Worker)).await?;
        let mut seen = Seen::watch(&client, "/quorate/nodes/").await?;
        let wants = |number| node(&name(number), Role::Manager, Role::Worker);
        let begun = Instant::now();
        fill(&client, wants).await?;
        let asked = begun.elapsed();
        let mut left = NODES;
        while left > 0 {
            let message = tokio::time::timeout(LIMIT, seen.stream.message()).await??;
            let message = message.context("the watch ended")?;
            let values = message.events().iter().filter_map(|event| event.kv());
            left -= values
                .filter(|kv| {
                    let node = Node::decode(kv.value()).ok();
                    node.and_then(|node| node.status)
                        .is_some_and(|status| status.role() == Role::Manager)
                })
                .count();
        }
        // From the first request to the last role: the requests themselves are part of it on one etcd.
        ours.push(NODES as f64 / begun.elapsed().as_secs_f64());
        drop(working);
        leader.leadership.resign().await;

        fill(&client, wants).await?;
        let begun = Instant::now();
        let txns = (0..NODES).step_by(BATCH).map(|first| {
            let batch = first..(first + BATCH).min(NODES);
            let compares: Vec<Compare> = batch
                .clone()
                .map(|number| {
                    Compare::mod_revision(format!("/quorate/nodes/{}", name(number)), CompareOp::Greater, 0)
                })
                .collect();
            let puts: Vec<TxnOp> = batch
                .map(|number| {
                    let key = format!("/quorate/nodes/{}", name(number));
                    TxnOp::put(key, node(&name(number), Role::Manager, Role::Manager), None)
                })
                .collect();
            Txn::new().when(compares).and_then(puts)
        });
        commit_all(&client, txns).await?;
        // Written twice, too: once as they are asked for, as above.
        raw.push(NODES as f64 / (begun.elapsed() + asked).as_secs_f64());
    }
    println!("### Roles without members: {NODES} nodes at once\n");
    println!("| measured | median | least – greatest | aim |\n| --- | --- | --- | --- |");
    row("asked for and changed: nodes a second", &ours, "", "");
    row("the same written raw: nodes a second", &raw, "", "");
    let percent: Samples = over(&ours, &raw).iter().map(|ratio| 100.0 * ratio).collect();
    row("the former over the latter", &percent, "%", "over 50 %");
    println!();
    server.stop().await?;
    Ok(())
}

async fn fill(client: &Client, value: impl Fn(usize) -> Vec<u8>) -> Result<()> {
    let puts: Vec<TxnOp> = (0..NODES)
        .map(|number| TxnOp::put(format!("/quorate/nodes/n{number:05}"), value(number), None))
        .collect();
    commit_all(client, puts.chunks(BATCH).map(|puts| Txn::new().and_then(puts))).await
}

async fn commit_all(client: &Client, txns: impl Iterator<Item = Txn>) -> Result<()> {
    let mut committed = stream::iter(txns.map(|txn| {
        let mut client = client.clone();
        async move { client.txn(txn).await }
    }))
    .buffer_unordered(PARALLEL);
    while let Some(response) = committed.next().await {
        anyhow::ensure!(response?.succeeded(), "a transaction was refused");
    }
    Ok(())
}

/// A leader in this process, which follows roles and does nothing else.
struct Leader {
    leadership: Leadership,
    store: Store,
    _tasks: JoinSet<()>,
}

impl Leader {
    async fn elect(endpoints: &[String]) -> Result<Self> {
        let mut tasks = JoinSet::new();
        let etcd = Etcd::connect(Config::new(endpoints[..1].to_vec()), Metrics::new("bench")).await?;
        let following = etcd.clone();
        tasks.spawn(async move { following.follow_endpoints(CancellationToken::new()).await });
        let store = Store {
            etcd,
            keys: Keys::new("/quorate".parse()?),
        };
        let pulse = Pulse::default();
        pulse.beat();
        tasks.spawn(pulse.clone().beat_forever());
        let never = CancellationToken::new();
        let ttl = Duration::from_secs(10);
        let election = store.keys.election();
        let leadership = campaign(&store.etcd, &election, "bench", ttl, &pulse, &never).await?;
        Ok(Self {
            leadership,
            store,
            _tasks: tasks,
        })
    }

    /// Works until dropped.
    fn work(&self) -> JoinSet<()> {
        let controller = RoleController {
            store: self.store.clone(),
            fence: self.leadership.fence().clone(),
            notices: None,
            settings: Settings::default(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(controller.run());
        tasks
    }
}
