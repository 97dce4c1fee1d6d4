//! What one hanging member of three costs each command.
//!
//! The member is paused (SIGSTOP): connections to it are made, and no request is answered. It is not the raft leader.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use quorate::gate::status::{State, Status};
use quorate::release::{Release, Version};
use quorate_dev::etcd::{Etcd, Options};
use quorate_dev::workspace::programs;
use tokio::process::Command;

use super::measure::{Samples, Table, Unit};
use super::servers::{PREFIX, directory, raw_client, wait_for};

const ROUNDS: usize = 20;

const COMMANDS: [(&str, &[&str]); 5] = [
    ("wait-ready", &["wait-ready", "--release=0.4.0", "--timeout=30s"]),
    ("get nodes", &["get", "nodes"]),
    ("status", &["status"]),
    ("get members", &["get", "members"]),
    ("delete secret", &["delete", "--yes", "secret"]),
];

struct Cluster {
    etcd: Etcd,
    endpoints: String,
    secrets: usize,
}

pub async fn run() -> Result<Table> {
    let directory = directory()?;
    let options = Options {
        members: 3,
        ..Options::default()
    };
    let etcd = Etcd::start(directory.path(), &options).await?;
    let endpoints = etcd.endpoints().join(",");
    let release = Release::new(0, 4, 0);
    let status = Status::new(State::Done, Version::from(release), release);
    let mut client = raw_client(&etcd.endpoints()[0]).await?;
    let key = format!("{PREFIX}/kubernetes/reconciler/status");
    client.put(key, status.encode(), None).await?;
    let mut cluster = Cluster {
        etcd,
        endpoints,
        secrets: 0,
    };
    let healthy = cluster.measure().await?;
    let hanging = cluster.hanging_member().await?;
    cluster.etcd.members[hanging].pause();
    let beside = cluster.measure().await?;
    cluster.etcd.members[hanging].resume();

    let mut table = Table::new("Endpoints: one of three members hangs");
    for (((name, _), healthy), beside) in COMMANDS.iter().zip(&healthy).zip(&beside) {
        table.row(&format!("{name}: all answer"), healthy, Unit::Millis, "");
        table.row(&format!("{name}: one hangs"), beside, Unit::Millis, "below 1 s");
    }
    table.note("The whole command, from its start to its exit.");
    Ok(table)
}

impl Cluster {
    /// The times of each command.
    async fn measure(&mut self) -> Result<Vec<Samples>> {
        let mut all = vec![Samples::default(); COMMANDS.len()];
        for _ in 0..ROUNDS {
            let secret = self.put_secret().await?;
            for ((name, args), samples) in COMMANDS.iter().zip(&mut all) {
                let object = (*name == "delete secret").then_some(secret.as_str());
                samples.push_time(self.command(args.iter().copied().chain(object)).await?);
            }
        }
        Ok(all)
    }

    async fn put_secret(&mut self) -> Result<String> {
        self.secrets += 1;
        let name = format!("s{}", self.secrets);
        let file = tempfile::NamedTempFile::new()?;
        let document = format!(
            "apiVersion: quorate.dev/v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData: {{a: b}}\n"
        );
        std::fs::write(file.path(), document)?;
        let path = file.path().display().to_string();
        self.command(["apply", "-f", &path].into_iter()).await?;
        Ok(name)
    }

    async fn command(&self, args: impl Iterator<Item = &str>) -> Result<Duration> {
        let program = programs()?.quorate;
        let begun = Instant::now();
        let ended = Command::new(program)
            .args(args)
            .arg(format!("--etcd-endpoints={}", self.endpoints))
            .stdin(Stdio::null())
            .output()
            .await?;
        let took = begun.elapsed();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "{}: {stderr}", ended.status);
        Ok(took)
    }

    /// A member that is not the raft leader.
    async fn hanging_member(&self) -> Result<usize> {
        wait_for("the members have a leader", async || {
            for (index, member) in self.etcd.members.iter().enumerate() {
                if member.metric("etcd_server_is_leader").await == Some(0.0) {
                    return Ok(Some(index));
                }
            }
            Ok(None)
        })
        .await
    }
}
