//! `version`: of the program, and of the replicas that run.

use serde_json::{Value, json};

use crate::support::base::Base;
use crate::support::quorate::{Launch, quorate};
use crate::support::wait::{SOON, eventually, same};

#[tokio::test]
async fn the_version_of_the_program_and_of_each_replica_is_shown() {
    let own = quorate(["version", "--client"]).await.expect_done();
    let version = own.strip_prefix("This program: ").unwrap().trim();
    assert!(version.starts_with(env!("CARGO_PKG_VERSION")), "{own}");
    let base = Base::start().await;
    let none = base.done(&["version"]).await;
    assert_eq!(none, format!("{own}No replica is registered\n"));

    let launch = Launch::on(&base.etcd);
    let mut leader = launch.start("r1");
    leader.wait_leading().await;
    let _standby = launch.start("r2");
    let expected = json!({
        "client": version,
        "replicas": [
            {"name": "r1", "version": version, "leader": true, "malformed": null},
            {"name": "r2", "version": version, "leader": false, "malformed": null},
        ],
    });
    eventually(SOON, "both replicas are shown", async || {
        let shown = base.done(&["version", "-o", "json"]).await;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        same(&shown, &expected).map(drop)
    })
    .await;
    let words = base.done(&["version"]).await;
    let rows: Vec<Vec<&str>> = words
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["REPLICA", "VERSION", "LEADER"]);
    assert_eq!(rows[1], ["r1", version, "yes"]);
    assert_eq!(rows[2], ["r2", version, "no"]);
}

#[tokio::test]
async fn without_an_etcd_the_version_of_the_program_is_shown_and_the_command_fails() {
    let own = quorate(["version", "--client"]).await.expect_done();
    let nowhere = ["version", "--etcd-endpoints=http://127.0.0.1:1"];
    let ended = quorate(nowhere).await;
    assert_eq!(ended.stdout, own);
    ended.expect_code(1);
}
