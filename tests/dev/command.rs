//! `quorate dev`, as a person starts it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use quorate::cli::companion::find_on_path;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::started::{Dev, children_of, files_in, runs};
use crate::support::kubernetes;
use crate::support::quorate::quorate;
use crate::support::wait::{SOON, eventually};

#[tokio::test]
async fn it_comes_up_with_kubernetes_and_ctrl_c_leaves_nothing_behind() {
    let _turn = kubernetes::turn().await;
    let mut dev = Dev::start(&[]);
    dev.wait_for("Ctrl-C stops everything").await;
    let output = dev.output();
    for line in [
        "etcd            serves on http://127.0.0.1:",
        "kube-apiserver  ready on https://127.0.0.1:",
        "controller      leader dev-1, term ",
        "controller      status DONE, version ",
        "  etcdctl --endpoints http://127.0.0.1:",
        "  kubectl --kubeconfig /",
        " status --etcd-endpoints http://127.0.0.1:",
    ] {
        assert!(output.contains(line), "{line:?} is missing:\n{output}");
    }
    let applied = output
        .lines()
        .filter_map(|line| line.split_once("resources applied ")?.1.split_once('/'))
        .next_back();
    assert!(
        applied.is_some_and(|(in_place, all)| in_place == all && in_place != "0"),
        "{output}"
    );
    assert_eq!(dev.children.len(), 3, "etcd, kube-apiserver, one replica");
    let asked = Instant::now();
    dev.signal(Signal::INT);
    dev.wait_for("stopping").await;
    // As when the parent process repeats at once the signal that the terminal has sent already.
    if asked.elapsed() < Duration::from_millis(500) {
        dev.signal(Signal::INT);
    }
    assert_eq!(dev.ended().await.code(), Some(0), "{}", dev.output());
    dev.assert_nothing_is_left().await;
}

#[tokio::test]
async fn three_members_and_three_replicas_come_up_without_kubernetes() {
    let mut dev = Dev::start(&["--members=3", "--replicas=3", "--no-kubernetes"]);
    dev.wait_for("Ctrl-C stops everything").await;
    assert_eq!(dev.children.len(), 6, "three members and three replicas");
    let output = dev.output();
    assert!(!output.contains("kube-apiserver"), "{output}");
    assert!(output.contains("leader dev-"), "{output}");
    dev.signal(Signal::TERM);
    assert_eq!(dev.ended().await.code(), Some(0), "{}", dev.output());
    dev.assert_nothing_is_left().await;
}

#[tokio::test]
async fn one_of_several_that_is_killed_is_started_again_while_the_others_take_over() {
    let mut dev = Dev::start(&["--members=3", "--replicas=3", "--no-kubernetes"]);
    dev.wait_for("Ctrl-C stops everything").await;
    let output = dev.output();
    let (_, leader) = output.rsplit_once("leader dev-").unwrap();
    let leader = format!("dev-{}", leader.split(',').next().unwrap());
    for (name, process) in [
        ("etcd-2", "--name=etcd-2".to_owned()),
        (&*format!("replica {leader}"), format!("--node-id={leader}")),
    ] {
        kill_process(Pid::from_raw(dev.child(&process)).unwrap(), Signal::KILL).unwrap();
        dev.wait_for(&format!(
            "{name} ended (signal: 9 (SIGKILL)), and is started again"
        ))
        .await;
        eventually(SOON, &format!("{name} runs again"), async || {
            match dev.find_child(&process) {
                Some(_) => Ok(()),
                None => Err("it does not"),
            }
        })
        .await;
    }
    eventually(SOON, "another one leads", async || {
        let output = dev.output();
        let (_, last) = output.rsplit_once("leader dev-").unwrap();
        match format!("dev-{last}").starts_with(&format!("{leader},")) {
            true => Err(output),
            false => Ok(()),
        }
    })
    .await;
    dev.children.extend(children_of(dev.process.pid()));
    dev.signal(Signal::INT);
    assert_eq!(dev.ended().await.code(), Some(0), "{}", dev.output());
    dev.assert_nothing_is_left().await;
}

#[tokio::test]
async fn a_signal_while_it_starts_stops_what_has_started() {
    let mut dev = Dev::start(&["--members=3"]);
    dev.wait_for("starting 3 members").await;
    eventually(SOON, "a child runs", async || {
        dev.children.extend(children_of(dev.process.pid()));
        if dev.children.is_empty() {
            Err("none")
        } else {
            Ok(())
        }
    })
    .await;
    dev.signal(Signal::INT);
    assert_eq!(dev.ended().await.code(), Some(0), "{}", dev.output());
    for pid in &dev.children {
        assert!(!runs(*pid), "process {pid} is left");
    }
    assert_eq!(files_in(&dev.temporary.path().join("tmp")), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_child_that_dies_ends_the_run_and_is_named_with_its_last_lines() {
    let mut dev = Dev::start(&["--no-kubernetes"]);
    dev.wait_for("Ctrl-C stops everything").await;
    kill_process(Pid::from_raw(dev.child("--node-id=dev-1")).unwrap(), Signal::KILL).unwrap();
    assert_eq!(dev.ended().await.code(), Some(1));
    let output = dev.output();
    assert!(
        output.contains(
            "error: replica dev-1 ended (signal: 9 (SIGKILL)); the last lines of its log are:\n    "
        ),
        "{output}"
    );
    dev.assert_nothing_is_left().await;
}

#[tokio::test]
async fn not_even_sigkill_leaves_a_child_behind() {
    let mut dev = Dev::start(&["--no-kubernetes"]);
    dev.wait_for("Ctrl-C stops everything").await;
    assert_eq!(dev.children.len(), 2, "etcd and one replica");
    dev.signal(Signal::KILL);
    dev.ended().await;
    eventually(SOON, "the children are gone", async || {
        match dev.children.iter().find(|pid| runs(**pid)) {
            Some(pid) => Err(format!("process {pid} runs")),
            None => Ok(()),
        }
    })
    .await;
}

#[tokio::test]
async fn a_data_directory_is_gone_on_with_and_used_by_one_run_at_a_time() {
    let _turn = kubernetes::turn().await;
    let parent = tempfile::tempdir().unwrap();
    let data = parent.path().join("my data");
    let flag = format!("--data-dir={}", data.display());
    let mut first = Dev::start(&[&flag]);
    first.wait_for("Ctrl-C stops everything").await;

    let refused = quorate(["dev", &flag]).await.expect_code(4);
    assert!(
        refused.contains(&format!("is in use by process {}", first.process.pid())),
        "{refused}"
    );

    first.signal(Signal::INT);
    assert_eq!(first.ended().await.code(), Some(0));
    first.assert_nothing_is_left().await;
    let addresses = |dev: &Dev| {
        let output = dev.output();
        let address = |before: &str| {
            output
                .split_once(before)
                .unwrap()
                .1
                .split(' ')
                .next()
                .map(str::to_owned)
        };
        (address("serves on "), address("ready on "))
    };

    let refused = quorate(["dev", "--members=3", &flag]).await.expect_code(4);
    assert!(refused.contains("an etcd cluster of 1, not of 3"), "{refused}");
    assert!(refused.contains("--members 1"), "{refused}");

    let mut second = Dev::start(&[&flag]);
    second.wait_for("Ctrl-C stops everything").await;
    assert_eq!(addresses(&second), addresses(&first));
    assert!(data.join("replicas/dev-1.log").exists());
    second.signal(Signal::INT);
    assert_eq!(second.ended().await.code(), Some(0));
}

/// A directory that stands in for `$PATH`, with links to these programs only.
fn path_with(programs: &[&str]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for program in programs {
        let file = find_on_path(program).unwrap();
        std::os::unix::fs::symlink(file, directory.path().join(program)).unwrap();
    }
    directory
}

#[tokio::test]
async fn without_a_kube_apiserver_it_says_so_and_runs_the_rest() {
    let path = path_with(&["etcd", "setpriv"]);
    let nothing = tempfile::tempdir().unwrap();
    let variables = [
        ("PATH", path.path().into()),
        ("KUBEBUILDER_ASSETS", "".into()),
        ("XDG_CACHE_HOME", nothing.path().into()),
    ];
    let mut dev = Dev::with(&[], &variables);
    dev.wait_for("Ctrl-C stops everything").await;
    let output = dev.output();
    assert!(output.contains("kube-apiserver  none found"), "{output}");
    assert!(output.contains(".ci/kube-apiserver"), "{output}");
    assert!(!output.contains("kubectl"), "{output}");
    assert_eq!(dev.children.len(), 2, "etcd and one replica");
    dev.signal(Signal::HUP);
    assert_eq!(dev.ended().await.code(), Some(0));
    dev.assert_nothing_is_left().await;
}

#[tokio::test]
async fn without_etcd_it_names_the_package() {
    let path = path_with(&["setpriv"]);
    let mut dev = Dev::with(&[], &[("PATH", path.path().into())]);
    assert_eq!(dev.ended().await.code(), Some(1));
    let output = dev.output();
    assert!(output.contains("etcd is not installed"), "{output}");
    assert!(output.contains("Debian package etcd-server"), "{output}");
    assert_eq!(files_in(&dev.temporary.path().join("tmp")), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn bad_input_is_named_and_nothing_is_started() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let not_a_directory = format!("--data-dir={}", file.display());
    let foreign = format!("--data-dir={}", directory.path().display());
    for (flag, code, named) in [
        ("--members=2", 64, "--members"),
        ("--replicas=0", 64, "--replicas"),
        ("--replicas=10", 64, "--replicas"),
        ("--prefix=quorate", 64, "cannot be a prefix"),
        ("--bundle=/nonexistent", 64, "/nonexistent"),
        (not_a_directory.as_str(), 64, "is not a directory"),
        (
            foreign.as_str(),
            4,
            "holds files that are not from an earlier run",
        ),
    ] {
        let finished = quorate(["dev", flag]).await;
        assert_eq!(finished.stdout, "", "{flag}");
        let message = finished.expect_code(code);
        assert!(message.contains(named), "{flag}: {message}");
    }
    assert_eq!(files_in(directory.path()), [file]);
}
