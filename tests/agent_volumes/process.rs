//! Volumes on the node of an agent's process: for the programs of other users, and beside mounts that hang.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::cluster::{NODE, Servers};
use super::mounted::{Hung, can_hang, can_mount, is_mounted, unmount};
use crate::support::csi::DRIVER;
use crate::support::quorate::binary;
use crate::support::wait::{SOON, eventually, same};

/// A user of the machine to whom nothing belongs.
const OTHER: u32 = 65534;

/// Writes a file of a volume once the volume is at its path.
async fn written(path: &Path) {
    eventually(SOON, "the volume is at its path", async || {
        fs::write(path, "text").map_err(|error| error.to_string())
    })
    .await;
}

/// What a program of another user prints.
fn as_other(program: &str, path: &Path) -> Result<String, String> {
    let output = Command::new(program)
        .arg(path)
        .uid(OTHER)
        .gid(OTHER)
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

/// Also where the agent was started with a umask that leaves others no right, as the unit for systemd does.
#[tokio::test]
async fn programs_of_other_users_reach_a_volume_and_nothing_of_the_agents_state() {
    if !can_mount() {
        eprintln!("without root, there is no other user to be");
        return;
    }
    let servers = Servers::start().await;
    let home = fs::canonicalize(servers.site.home()).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o711)).unwrap();
    let state = home.join("made/by/the-agent");
    let log = home.join("log");
    let token = servers.site.token().await;
    let mut agent = tokio::process::Command::new("/bin/sh")
        .args(["-c", "umask 077; exec \"$0\" \"$@\""])
        .arg(binary())
        .args([
            "agent",
            &format!("--name={NODE}"),
            "--listen=127.0.0.1:0",
            &servers.csi_flag(),
        ])
        .arg(format!("--server={}", servers.site.servers[0]))
        .arg(format!("--join-token-file={}", token.display()))
        .arg(format!("--state-dir={}", state.display()))
        .env_clear()
        .stdin(Stdio::null())
        .stderr(fs::File::create(&log).unwrap())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    eventually(SOON, "the node joins", async || {
        let nodes = servers
            .site
            .run(&["get", "nodes", "--no-headers"])
            .await
            .expect_done();
        match nodes.starts_with(NODE) {
            true => Ok(()),
            false => Err(fs::read_to_string(&log).unwrap()),
        }
    })
    .await;
    servers.publish_new("data").await;
    let file = state.join("volumes/data/file");
    written(&file).await;
    let target = fs::canonicalize(file.parent().unwrap()).unwrap();
    // The root of the volume, and the file, are the volume's own.
    fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(as_other("cat", &file).unwrap(), "text");
    assert!(
        as_other("ls", &state.join("volumes/data"))
            .unwrap()
            .contains("file")
    );

    let volumes = state.join("volumes");
    let record = target.with_extension("json");
    let known = volumes.join(format!(".plugins/{DRIVER}.json"));
    for file in [state.join("agent.json"), state.join("agent.lock"), record, known] {
        assert!(file.exists(), "{}", file.display());
        let refused = as_other("cat", &file).unwrap_err();
        assert!(refused.contains("Permission denied"), "{refused}");
    }
    let (mounts, plugins) = (volumes.join(".mounts"), volumes.join(".plugins"));
    let of_volume = target.parent().unwrap().to_owned();
    for directory in [&state, &volumes, &mounts, &plugins, &of_volume] {
        let refused = as_other("ls", directory).unwrap_err();
        assert!(refused.contains("Permission denied"), "{refused}");
    }
    let said = fs::read_to_string(&log).unwrap();
    assert!(!said.contains("do not pass through"), "{said}");
    agent.kill().await.unwrap();
}

/// INV-8: what hangs holds up neither the session nor the end of the process, nor its next start.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_agent_starts_stays_ready_and_stops_while_mounts_hang() {
    if !can_hang() {
        return;
    }
    let servers = Servers::start().await;
    let token = servers.site.token().await;
    let flag = servers.csi_flag();
    let mut agent = servers.site.agent_with(NODE, Some(&token), &[flag.as_str()]);
    agent.ready().await;
    servers.publish_new("data").await;
    let volumes = fs::canonicalize(&agent.state).unwrap().join("volumes");
    written(&volumes.join("data/file")).await;
    assert_eq!(agent.stop().await.unwrap().unwrap().code(), Some(0));
    // The volume's own mount, and one in the place of a volume that is yet to come.
    let target = fs::canonicalize(volumes.join("data")).unwrap();
    unmount(&target);
    let foreign = volumes.join("next");
    fs::create_dir(&foreign).unwrap();
    let _hung = [Hung::at(&target).await, Hung::at(&foreign).await];
    agent.launch().unwrap();
    agent.ready().await;
    servers.publish_new("next").await;
    servers.publish_new("other").await;
    written(&volumes.join("other/file")).await;
    eventually(
        SOON,
        "the volume in the way of which something hangs is blocked",
        async || {
            same(
                agent.metric("quorate_agent_volumes{state=\"blocked\"}").await,
                1.0,
            )
        },
    )
    .await;
    servers.site.shows(NODE, "READY", "yes").await;
    let log = agent.log();
    assert!(log.contains("PathInUse"), "{log}");
    assert!(is_mounted(&target) && is_mounted(&foreign));
    assert_eq!(agent.stop().await.unwrap().unwrap().code(), Some(0), "{log}");
}
