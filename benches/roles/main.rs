//! Node roles: how long a promotion and a demotion take beside etcd's own calls, and how many roles change a second.
//! `cargo bench --bench roles`; with `-- --small` a fraction of it, to see that it runs.
//!
//! Every round makes the same changes twice on the same cluster: through desired roles and joins with a leader, and with
//! etcd's calls alone. etcd's own check (`--strict-reconfig-check`) is off: it counts a member only 5 s after it
//! connected, and that wait would hide everything else. The tables (Markdown) go to stdout, progress to stderr.

use std::time::Duration;

use anyhow::Result;
use prost::Message;
use quorate::proto::{Metadata, Node, NodeSpec, NodeStatus, Role};
use quorate::roles::controller::{RoleController, Settings};
use quorate::summary::Latest;
use quorate::term::{NodeWrites, Notices};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

mod bulk;
mod cluster;
#[path = "../shared/leader.rs"]
mod leader;
#[allow(dead_code, reason = "the tables of the other benchmarks use more of it")]
#[path = "../cluster/measure.rs"]
mod measure;
#[path = "../shared/program.rs"]
mod program;
mod seen;

use cluster::Cluster;
use measure::{Samples, Table, Unit};
use quorate_dev::leader::Leader;

/// How much is measured.
#[derive(Clone, Copy)]
struct Scale {
    rounds: usize,
    nodes: usize,
    bulk_rounds: usize,
}

const FULL: Scale = Scale {
    rounds: 10,
    nodes: 10_000,
    bulk_rounds: 3,
};

const SMALL: Scale = Scale {
    rounds: 3,
    nodes: 500,
    bulk_rounds: 1,
};

/// The limit of every wait here; only a fault exceeds it.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    program::run("roles", &args, async |small| {
        let scale = if small { SMALL } else { FULL };
        measure_membership(scale.rounds).await?;
        bulk::measure(scale.nodes, scale.bulk_rounds).await
    })
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

/// Follows the desired roles, and does nothing else, until dropped.
fn follow_roles(leader: &Leader) -> JoinSet<()> {
    let controller = RoleController {
        store: leader.store.clone(),
        fence: leader.fence().clone(),
        notices: Notices::default(),
        node_writes: NodeWrites::default(),
        settings: Settings::default(),
        summaries: Latest::default(),
    };
    let etcd = leader.store.etcd.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { etcd.follow_endpoints(CancellationToken::new()).await });
    tasks.spawn(controller.run());
    tasks
}

/// The times of what was done through roles, and of etcd's own calls.
#[derive(Default)]
struct Pair {
    roles: Samples,
    raw: Samples,
}

impl Pair {
    fn rows(&self, table: &mut Table, raw: &str, roles: &str, aim: &str) {
        table.row(raw, &self.raw, Unit::Millis, "");
        table.row(roles, &self.roles, Unit::Millis, "");
        let ratio = self.roles.per(&self.raw);
        table.row("the latter over the former", &ratio, Unit::Times, aim);
    }
}

async fn measure_membership(rounds: usize) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("quorate-bench-").tempdir()?;
    let mut cluster = Cluster::start(directory.path()).await?;
    let endpoint = cluster.endpoint();
    let (mut put, mut writes) = (Samples::default(), Samples::default());
    let (mut up, mut down, mut leading) = (Pair::default(), Pair::default(), Pair::default());
    let mut replaced = Pair::default();
    for round in 1..=rounds {
        eprintln!("round {round}/{rounds}: etcd's own calls");
        let (added, removed) = cluster.raw(false).await?;
        up.raw.push_time(added);
        down.raw.push_time(removed);
        writes.push_time(cluster.raw_writes_of_a_demotion().await?);
        leading.raw.push_time(cluster.raw(true).await?.1);
        replaced.raw.push_time(cluster.raw_replacement().await?);
        put.push_time(cluster.one_put().await?);
        eprintln!("round {round}/{rounds}: through roles");
        let leader = leader::elect(&endpoint).await?;
        let working = follow_roles(&leader);
        let (added, removed) = cluster.through_roles(false).await?;
        up.roles.push_time(added);
        down.roles.push_time(removed);
        leading.roles.push_time(cluster.through_roles(true).await?.1);
        let replacement = cluster.replacement_through_roles().await?;
        replaced.roles.push_time(replacement);
        drop(working);
        leader.resign().await;
    }
    let mut table = Table::new("Promotion and demotion: a fourth member beside three");
    table.row("one etcd put", &put, Unit::Millis, "");
    up.rows(
        &mut table,
        "member add, start of etcd, member promote: etcd's calls alone",
        "promotion asked for → voter, the same start of etcd in it",
        "at most 2",
    );
    down.rows(
        &mut table,
        "member remove: etcd's call alone",
        "demotion asked for → worker",
        "at most 2.2",
    );
    table.row(
        "put, put, member remove, put, as a demotion needs them: etcd's calls alone",
        &writes,
        Unit::Millis,
        "",
    );
    table.row(
        "demotion asked for → worker, over those writes",
        &down.roles.per(&writes),
        Unit::Times,
        "",
    );
    leading.rows(
        &mut table,
        "move leader, then member remove: etcd's calls alone",
        "demotion of the raft leader asked for → worker",
        "at most 2",
    );
    replaced.rows(
        &mut table,
        "member remove, add, start of etcd, promote, of one whose disk is lost: etcd's calls alone",
        "replacement asked for → voter, the same start of etcd in it",
        "",
    );
    println!("{table}");
    cluster.stop().await
}
