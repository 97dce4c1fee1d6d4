//! Nodes without members: many change their roles at once.

use std::time::Instant;

use anyhow::{Context as _, Result};
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use futures::StreamExt as _;
use futures::stream;
use prost::Message;
use quorate::proto::{Node, Role};
use quorate_dev::etcd::{Etcd as Server, Options};

use super::leader;
use super::measure::{Samples, Table, Unit};
use super::seen::Seen;
use super::{LIMIT, follow_roles, node};

/// Transactions under way at once, and nodes in each, as the leader has them.
const PARALLEL: usize = 8;
const BATCH: usize = 60;

fn name(number: usize) -> String {
    format!("n{number:05}")
}

fn key(number: usize) -> String {
    format!("/quorate/nodes/{}", name(number))
}

pub async fn measure(nodes: usize, rounds: usize) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("quorate-bench-").tempdir()?;
    let mut server = Server::start(directory.path(), &Options::default()).await?;
    let client = Client::connect(server.endpoints(), None).await?;
    let (mut ours, mut raw) = (Samples::default(), Samples::default());
    let a_second = |since: Instant| nodes as f64 / since.elapsed().as_secs_f64();
    let worker = |number| node(&name(number), Role::Worker, Role::Worker);
    let asked = |number| node(&name(number), Role::Manager, Role::Worker);
    for round in 1..=rounds {
        eprintln!("round {round}/{rounds}: {nodes} roles change at once, beside raw transactions");
        let leader = leader::elect(&server.endpoints().concat()).await?;
        let working = follow_roles(&leader);
        fill(&client, nodes, worker).await?;
        let mut seen = Seen::watch(&client, "/quorate/nodes/").await?;
        // From the first request to the last role: the requests themselves are part of it on one etcd.
        let begun = Instant::now();
        fill(&client, nodes, asked).await?;
        let mut left = nodes;
        while left > 0 {
            let message = tokio::time::timeout(LIMIT, seen.stream.message()).await??;
            let message = message.context("the watch ended")?;
            let values = message.events().iter().filter_map(|event| event.kv());
            left -= values.filter(|kv| is_manager(kv.value())).count();
        }
        ours.push(a_second(begun));
        drop(working);
        leader.resign().await;

        // Each node is written twice, as above: the desired role, and the observed role.
        fill(&client, nodes, worker).await?;
        let begun = Instant::now();
        fill(&client, nodes, asked).await?;
        let txns = (0..nodes).step_by(BATCH).map(|first| {
            let batch = first..(first + BATCH).min(nodes);
            let compares: Vec<Compare> = batch
                .clone()
                .map(|number| Compare::mod_revision(key(number), CompareOp::Greater, 0))
                .collect();
            let managers = batch.map(|number| {
                let value = node(&name(number), Role::Manager, Role::Manager);
                TxnOp::put(key(number), value, None)
            });
            Txn::new().when(compares).and_then(managers.collect::<Vec<_>>())
        });
        commit_all(&client, txns).await?;
        raw.push(a_second(begun));
    }
    let mut table = Table::new("Roles without members: many nodes at once");
    table.row("asked for and changed: nodes a second", &ours, Unit::Count, "");
    table.row("the same written raw: nodes a second", &raw, Unit::Count, "");
    let ratio = ours.per(&raw);
    table.row("the former over the latter", &ratio, Unit::Times, "over 0.5");
    table.note(format!("{nodes} nodes."));
    println!("{table}");
    Ok(server.stop().await?)
}

fn is_manager(value: &[u8]) -> bool {
    let status = Node::decode(value).ok().and_then(|node| node.status);
    status.is_some_and(|status| status.role() == Role::Manager)
}

async fn fill(client: &Client, nodes: usize, value: impl Fn(usize) -> Vec<u8>) -> Result<()> {
    let puts: Vec<TxnOp> = (0..nodes)
        .map(|number| TxnOp::put(key(number), value(number), None))
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
