//! `get members`, `describe member`, and what `get nodes` and `describe node` say of membership.

use std::time::Duration;

use quorate::proto::condition::Status;
use quorate::proto::{Condition, Role};
use serde_json::Value;

use super::{Site, free_url};
use crate::support::wait::{SOON, eventually};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn members_are_shown_with_node_role_leader_health_version_size_lag_and_alarms() {
    let site = Site::adopted(3).await;
    let all_answer = |table: &str| table.matches(" healthy ").count() == 3 && !table.contains("<unknown>");
    let table = site.shows(&["get", "members"], all_answer).await;
    let mut lines = table.lines();
    let titles: Vec<&str> = lines
        .next()
        .unwrap()
        .split("  ")
        .map(str::trim)
        .filter(|t| !t.is_empty())
        .collect();
    assert_eq!(
        titles,
        [
            "NAME",
            "ETCD NAME",
            "NODE",
            "ROLE",
            "LEADER",
            "HEALTH",
            "VERSION",
            "DB SIZE",
            "LAG",
            "ALARMS"
        ]
    );
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{table}");
    for row in &rows {
        assert_eq!(row[1], row[2], "{table}");
        assert_eq!((row[3], row[5]), ("voter", "healthy"), "{table}");
        assert!(row[6].starts_with("3."), "{table}");
    }
    assert_eq!(rows.iter().filter(|row| row[4] == "yes").count(), 1, "{table}");

    let id = site.member("etcd-2").await.to_string();
    let names = site.run(&["get", "members", "-o", "name"]).await.expect_done();
    assert!(
        names.lines().any(|line| line == format!("member/{id}")),
        "{names}"
    );
    let list = json(&site.run(&["get", "members", "-o", "json"]).await.expect_done());
    assert_eq!(list["kind"], "List");
    assert_eq!(list["items"].as_array().unwrap().len(), 3);
    // By its id, and by the name that etcd has for it.
    let one = ["get", "member", &id, "-o", "json"];
    let one = json(&site.shows(&one, |one| json(one)["status"]["lag"].is_u64()).await);
    let named = json(
        &site
            .run(&["get", "member", "etcd-2", "-o", "json"])
            .await
            .expect_done(),
    );
    assert_eq!(one["metadata"], named["metadata"]);
    assert_eq!(one["metadata"]["name"], id);
    let status = &one["status"];
    assert_eq!(
        (&status["node"], &status["role"], &status["healthy"]),
        (&"etcd-2".into(), &"voter".into(), &true.into())
    );
    assert!(status["dbSizeBytes"].as_u64().unwrap() > 0 && status["lag"].is_u64());
    let wide = site.run(&["get", "members", "-o", "wide"]).await.expect_done();
    assert!(wide.contains(&site.etcd.members[0].peer_url), "{wide}");
    let described = ["describe", "member", "etcd-2"];
    let described = site.shows(&described, |all| !all.contains("unhealthy")).await;
    for said in [
        "Node:",
        "etcd-2 (uid ",
        "Raft Leader:",
        "healthy",
        "Alarms:",
        "Conditions:",
    ] {
        assert!(described.contains(said), "{said}: {described}");
    }
    let node = json(
        &site
            .run(&["get", "node", "etcd-2", "-o", "json"])
            .await
            .expect_done(),
    );
    assert_eq!(node["status"]["memberID"], id);
    let described = site.run(&["describe", "node", "etcd-2"]).await.expect_done();
    assert!(described.contains(&format!("{id}, joined ")), "{described}");
}

#[tokio::test]
async fn unhealthy_unstarted_and_unmanaged_members_are_distinguished() {
    let mut site = Site::start(3).await;
    site.run(&["adopt", "etcd-1", "etcd-2"]).await.expect_done();
    site.add_by_hand(&free_url()).await;
    site.etcd.members[1].kill().await.unwrap();
    site.etcd.members[0].wait_healthy().await.unwrap();
    site.etcd.members[2].wait_healthy().await.unwrap();
    let table = site.run(&["get", "members", "--no-headers"]).await.expect_done();
    let row = |with: &str| {
        table
            .lines()
            .find(|line| line.contains(with))
            .unwrap_or_else(|| panic!("{with}: {table}"))
    };
    assert!(row("etcd-2").contains("unhealthy"), "{table}");
    assert!(row("learner").contains("not started"), "{table}");
    let described = site.run(&["describe", "member", "etcd-3"]).await.expect_done();
    assert!(described.contains("UnmanagedMember:"), "{described}");
    let ill = site.run(&["describe", "member", "etcd-2"]).await.expect_done();
    assert!(ill.contains("unhealthy: "), "{ill}");
}

#[tokio::test]
async fn a_watch_shows_a_member_that_falls_ill_although_no_key_changes() {
    let mut site = Site::adopted(3).await;
    let endpoints = format!("--etcd-endpoints={}", site.etcd.members[0].client_url);
    let mut watching = tokio::process::Command::new(crate::support::quorate::binary())
        .args(["get", "members", "--watch", "-o", "json", &endpoints])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let id = site.member("etcd-3").await.to_string();
    let mut lines = {
        use tokio::io::AsyncBufReadExt;
        tokio::io::BufReader::new(watching.stdout.take().unwrap()).lines()
    };
    let mut text = String::new();
    let mut seen = async |wanted: &str| {
        let found = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                text += &line;
                text.push('\n');
                let Ok(event) = serde_json::from_str::<Value>(&text) else {
                    continue;
                };
                text.clear();
                let object = &event["object"];
                let healthy = object["status"]["healthy"] == true;
                if object["metadata"]["name"] == id && (wanted == "healthy") == healthy {
                    return;
                }
            }
        };
        tokio::time::timeout(SOON, found)
            .await
            .unwrap_or_else(|_| panic!("never {wanted}"));
    };
    seen("healthy").await;
    site.etcd.members[2].kill().await.unwrap();
    seen("unhealthy").await;
    site.etcd.members[2].start().await.unwrap();
    seen("healthy").await;
}

#[tokio::test]
async fn a_blocked_role_change_shows_its_reason_wherever_the_node_is_shown() {
    let site = Site::adopted(2).await;
    site.demoted("etcd-2", &[]).await;
    site.change("etcd-2", |node| {
        node.status.get_or_insert_default().conditions = vec![Condition {
            r#type: "RoleChangeBlocked".to_owned(),
            status: Status::True.into(),
            reason: "QuorumRisk".to_owned(),
            message: "1 of 2 voters healthy, 2 needed".to_owned(),
            ..Condition::default()
        }];
    })
    .await;
    let described = site.run(&["describe", "node", "etcd-2"]).await.expect_done();
    assert!(
        described.contains("RoleChangeBlocked:") && described.contains("QuorumRisk"),
        "{described}"
    );
    let waiting = ["demote", "etcd-2", "--yes", "--wait", "--timeout", "2s"];
    site.times_out_with(&waiting, "QuorumRisk: 1 of 2 voters healthy")
        .await;
    // A waiting command ends once another one requests the contrary.
    let waiting = site.run(&["demote", "etcd-2", "--yes", "--wait", "--timeout", "30s"]);
    let withdrawing = async {
        // Again and again: one that comes before the wait has begun is overruled by it.
        loop {
            site.run(&["promote", "etcd-2"]).await.expect_done();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let waited = tokio::select! {
        waited = waiting => waited,
        never = withdrawing => never,
    };
    let output = waited.expect_code(5);
    assert!(output.contains("became a desired manager meanwhile"), "{output}");
    eventually(SOON, "the role", async || {
        if site.desired("etcd-2").await == Role::Manager {
            Ok(())
        } else {
            Err("worker")
        }
    })
    .await;
}
