//! A node becomes a voter and a worker again, with its agent and by hand, in turns.

use anyhow::Result;

use super::cluster::Cluster;
use super::measure::{Samples, Table, Unit};

pub async fn table(rounds: usize) -> Result<Table> {
    // Each agent is promoted once: a node may write so often in a time, and few nodes change their role twice in a minute.
    let names: Vec<String> = (2..rounds + 2).map(|number| format!("n{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut cluster = Cluster::start(&names).await?;
    let (mut up_by_hand, mut up) = (Samples::default(), Samples::default());
    let (mut down_by_hand, mut role, mut down) = (Samples::default(), Samples::default(), Samples::default());
    for round in 1..=rounds {
        eprintln!("round {round}/{rounds}: by hand");
        let by_hand = cluster.by_hand().await?;
        up_by_hand.push_time(by_hand.up);
        down_by_hand.push_time(by_hand.down);
        eprintln!("round {round}/{rounds}: by the agent");
        let (by_agent, to_worker) = cluster.by_agent(round).await?;
        up.push_time(by_agent.up);
        role.push_time(to_worker);
        down.push_time(by_agent.down);
    }
    cluster.stop().await?;
    let mut table = Table::new("Managers by agents: a second member beside one, with TLS");
    table.row(
        "member add, start of etcd, member promote: by hand",
        &up_by_hand,
        Unit::Millis,
        "",
    );
    table.row("promotion asked for → voter, by the agent", &up, Unit::Millis, "");
    let ratio = up.per(&up_by_hand);
    table.row("the latter over the former", &ratio, Unit::Times, "at most 1.3");
    table.row(
        "member remove, stop of etcd: by hand",
        &down_by_hand,
        Unit::Millis,
        "",
    );
    table.row("demotion asked for → worker", &role, Unit::Millis, "");
    table.row(
        "demotion asked for → worker and etcd stopped, by the agent",
        &down,
        Unit::Millis,
        "",
    );
    let ratio = down.per(&down_by_hand);
    table.row("the same over that by hand", &ratio, Unit::Times, "");
    table.note("By hand, the certificates are on disk before the clock starts. The agent requests two: its own as a manager, and that of etcd.");
    Ok(table)
}
