//! A node joins: with a token, once, under its own name.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use quorate::proto::node_certificate::State;
use serde_json::Value;

use super::site::Site;
use crate::identity::site::read;
use crate::support::quorate::quorate;
use crate::support::traced::traces_libraries;
use crate::support::wait::{SOON, eventually};

/// INV-13.
#[tokio::test]
async fn a_node_joins_with_a_token_gets_the_certificate_of_its_role_and_is_ready() {
    let mut site = Site::start().await;
    let token = site.token().await;
    let secret = fs::read_to_string(&token).unwrap();
    let secret = secret.trim().rsplit('-').next().unwrap().to_owned();
    let mut agent = site.agent_that_traces("n1", &token);
    agent.ready().await;
    site.shows("n1", "READY", "yes").await;
    let uid = site.uid("n1").await;
    let record = site.record(&uid).await;
    assert_eq!(record.state(), State::Issued);
    assert_eq!(agent.chain(), record.chain);
    let cluster = site.store.etcd.cluster_id().unwrap();
    let (subject, _) = read(&record.chain);
    assert_eq!(subject, format!("CN={uid}, O={cluster}, OU=quorate-worker"));
    let left = agent.metric("quorate_agent_certificate_seconds").await;
    assert!(left > 89.0 * 86400.0 && left <= 90.0 * 86400.0, "{left}");
    for (series, count) in [
        ("quorate_agent_session", 1.0),
        ("quorate_agent_sessions_opened_total", 1.0),
        ("quorate_agent_certificates_received_total", 1.0),
    ] {
        assert_eq!(agent.metric(series).await, count, "{series}");
    }
    eventually(SOON, "it reports its release", async || {
        site.node("n1").await.status.unwrap().agent_release.ok_or("none")
    })
    .await;

    let mode = |file: &str| fs::metadata(agent.state.join(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("agent.json")), (0o711, 0o600));
    let proc = |file: &str| fs::read(format!("/proc/{}/{file}", agent.pid().unwrap())).unwrap();
    let limits = String::from_utf8(proc("limits")).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"))
        .unwrap();
    assert!(
        core.split_whitespace().filter(|word| *word == "0").count() == 2,
        "{core}"
    );
    let key = agent.stored()["certificate"]["key"].as_str().unwrap().to_owned();
    let line = key.lines().nth(1).unwrap().to_owned();
    let argv = String::from_utf8(proc("cmdline")).unwrap();
    let keys = site.contents().await;
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(traces_libraries(&agent.log()), "it said everything");
    let authority = |file: &str| {
        let key = fs::read_to_string(format!("{}/current/{file}", site.ca)).unwrap();
        key.lines().nth(1).unwrap().to_owned()
    };
    let hidden = [secret, line, authority("node-ca.key"), authority("etcd-ca.key")];
    for hidden in &hidden {
        assert!(!argv.contains(hidden), "{argv}");
        assert!(!agent.log().contains(hidden), "{}", agent.log());
        assert!(!site.replicas[0].log().contains(hidden));
        assert!(keys.iter().all(|kv| !has(&kv.value, hidden)), "it is in etcd");
    }
}

#[tokio::test]
async fn a_restart_keeps_uid_and_certificate_and_needs_no_token() {
    let site = Site::start().await;
    let token = site.token().await;
    let mut first = site.agent("n1", &token);
    first.ready().await;
    let (uid, chain) = (site.uid("n1").await, first.chain());
    let same = quorate([
        "agent",
        "--server=https://127.0.0.1:1",
        "--name=n1",
        "--listen=127.0.0.1:0",
        "--state-dir",
        first.state.to_str().unwrap(),
    ])
    .await;
    let refused = same.expect_code(1);
    assert!(
        refused.contains(&format!("is in use by process {}", first.pid().unwrap())),
        "{refused}"
    );
    first.kill().await.unwrap();
    fs::remove_file(&token).unwrap();
    let mut second = site.agent_with("n1", None, &[]);
    second.ready().await;
    assert_eq!(
        (site.uid("n1").await, second.chain()),
        (uid.clone(), chain.clone())
    );
    assert_eq!(site.record(&uid).await.chain, chain, "no other was requested");
    second.stop().await.unwrap();

    let other = quorate([
        "agent",
        "--server=https://127.0.0.1:1",
        "--name=n2",
        "--listen=127.0.0.1:0",
        "--state-dir",
        second.state.to_str().unwrap(),
    ])
    .await;
    let refused = other.expect_code(64);
    assert!(
        refused.contains("is the state of node n1, not of n2"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_join_whose_reply_was_lost_is_repeated_with_the_same_key() {
    let site = Site::with(1, &["--approve-joins"]).await;
    let token = site.token().await;
    let mut agent = site.agent("n1", &token);
    agent
        .logs("an operator has yet to accept the node: quorate accept n1")
        .await;
    agent.kill().await.unwrap();
    let uid = site.uid("n1").await;
    let before = agent.stored();
    // As if the agent had ended before the reply.
    let mut lost = before.clone();
    lost.as_object_mut().unwrap().remove("uid");
    fs::write(agent.file(), lost.to_string()).unwrap();
    agent.launch().unwrap();
    agent.logs("an operator has yet to accept the node").await;
    assert_eq!(agent.stored(), before, "uid and key are the same");
    site.run(&["accept", "n1"]).await.expect_done();
    agent.ready().await;
    assert_eq!(site.uid("n1").await, uid);
    let stored = agent.stored();
    assert_eq!(stored["certificate"]["key"], before["requestedKey"]);
    assert_eq!(stored["requestedKey"], Value::Null);
    agent.chain();
}

#[tokio::test]
async fn a_wrong_token_and_a_name_in_use_are_reported_and_tried_again() {
    let site = Site::start().await;
    let token = site.token().await;
    let good = fs::read_to_string(&token).unwrap();
    site.token_of(&["rotate", "--role=worker"]).await;
    let rotated = fs::read_to_string(&token).unwrap();
    assert_ne!(rotated, good);
    fs::write(&token, &good).unwrap();
    let mut agent = site.agent("n1", &token);
    agent.logs("InvalidArgument").await;
    fs::write(&token, "no token").unwrap();
    agent.logs("not a join token").await;
    fs::remove_file(&token).unwrap();
    agent.logs("cannot read ").await;
    fs::write(&token, &rotated).unwrap();
    agent.ready().await;
    let uid = site.uid("n1").await;

    let home = site.home().join("elsewhere");
    fs::create_dir(&home).unwrap();
    let log = {
        let state = format!("--state-dir={}", home.join("n1").display());
        let file = format!("--join-token-file={}", token.display());
        let server = format!("--server={}", site.servers[0]);
        let args = [
            "agent",
            "--name=n1",
            "--listen=127.0.0.1:0",
            &state,
            &file,
            &server,
        ];
        let mut other = crate::support::quorate::program()
            .args(args)
            .stderr(fs::File::create(home.join("log")).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let log = eventually(SOON, "the name is in use", async || {
            let log = fs::read_to_string(home.join("log")).unwrap();
            if log.contains("AlreadyExists") {
                Ok(log)
            } else {
                Err(log)
            }
        })
        .await;
        other.kill().await.unwrap();
        log
    };
    assert!(
        !log.contains(good.trim()) && !log.contains(rotated.trim()),
        "{log}"
    );
    assert_eq!(site.uid("n1").await, uid);
}

#[tokio::test]
async fn a_clock_that_is_an_hour_off_hinders_no_agent_and_one_that_is_further_behind_finds_no_server() {
    let site = Site::start().await;
    let token = site.token().await;
    let mut agents: Vec<_> = [("+1h", "ahead"), ("-1h", "behind")]
        .into_iter()
        .map(|(offset, name)| site.agent_off_by(offset, name, &token))
        .collect();
    for agent in &mut agents {
        agent.ready().await;
    }
    // A certificate begins to be valid two hours before its issue.
    let mut lost = site.agent_off_by("-3h", "lost", &token);
    lost.logs("invalid peer certificate").await;
    assert!(lost.stored().get("uid").is_none(), "{}", lost.stored());
}

#[tokio::test]
async fn without_a_certificate_and_a_token_it_does_not_start() {
    let home = crate::support::directory::directory();
    let state = format!("--state-dir={}", home.path().join("state").display());
    let args = [
        "agent",
        "--name=n1",
        "--listen=127.0.0.1:0",
        "--server=https://127.0.0.1:1",
        &state,
    ];
    let refused = quorate(args).await.expect_code(64);
    assert!(refused.contains("give --join-token-file FILE"), "{refused}");
    let args = ["agent", "--name=n1", "--server=http://127.0.0.1:1", &state];
    let refused = quorate(args).await.expect_code(64);
    assert!(refused.contains("expected https://HOST:PORT"), "{refused}");
}
