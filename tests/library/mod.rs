//! The library as other programs use it: the programs of `examples`, and one of them in a crate outside this workspace.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

use quorate::etcd::Etcd;
use quorate::gate::status::{State, Status};
use quorate::prelude::{Release, elect};
use quorate_dev::workspace::{self, root};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

use crate::support::client::{RENEWED_TTL, connect, put, renewed};
use crate::support::etcd::TestEtcd;
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::programs;
use crate::support::wait::{SOON, eventually, same};

/// A running program with its output in a file.
struct Running {
    child: Child,
    output: PathBuf,
}

impl Running {
    fn start(program: &Path, args: &[&str], output: PathBuf) -> Self {
        let child = Command::new(program)
            .args(args)
            .stdout(File::create(&output).unwrap())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        Self { child, output }
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    async fn prints(&self, text: &str) {
        eventually(SOON, text, async || {
            let printed = self.printed();
            same(printed.contains(text), true).map_err(|_| printed)
        })
        .await;
    }

    async fn ends(&mut self) -> ExitStatus {
        eventually(SOON, "the program ends", async || {
            self.child.try_wait().unwrap().ok_or("it runs")
        })
        .await
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cargo(args: &[&str]) {
    let built = workspace::cargo().args(args).status().unwrap();
    assert!(built.success(), "cargo {args:?}: {built}");
}

/// `<target directory>/debug`, where the programs of this build are.
fn profile() -> PathBuf {
    programs().quorate.parent().unwrap().to_owned()
}

/// A program of `examples`, built from its source as it is.
fn example(name: &str) -> PathBuf {
    let profile = profile();
    let target = profile.parent().unwrap().to_str().unwrap();
    cargo(&[
        "build",
        "--locked",
        "--workspace",
        "--examples",
        "--quiet",
        "--target-dir",
        target,
    ]);
    profile.join("examples").join(name)
}

#[tokio::test]
async fn the_example_of_an_election_leads_and_hands_over() {
    let etcd = TestEtcd::start().await;
    let program = example("elect");
    let start = |name: &str| {
        Running::start(
            &program,
            &[&etcd.endpoints()[0], name],
            etcd.directory().join(name),
        )
    };
    let mut first = start("first");
    first.prints("first leads, term ").await;
    let second = start("second");
    eventually(SOON, "two candidates", async || {
        same(etcd.keys("/example/leader/").len(), 2)
    })
    .await;
    assert_eq!(second.printed(), "");
    first.interrupt();
    assert!(first.ends().await.success(), "{}", first.printed());
    second.prints("second leads, term ").await;
    assert!(
        first.printed().ends_with("first resigns\n"),
        "{}",
        first.printed()
    );
}

#[tokio::test]
async fn the_example_of_wait_ready_waits_for_the_status() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let output = etcd.directory().join("wait_ready");
    let args = [&etcd.endpoints()[0], "1.4.0", "1.3.0"];
    let mut waiting = Running::start(&example("wait_ready"), &args, output);
    waiting
        .prints("waiting: there is no reconciler status yet\n")
        .await;
    let status = |release: &str| {
        let (version, minimum): (Release, Release) = (release.parse().unwrap(), "1.2.0".parse().unwrap());
        Status::new(State::Done, version.into(), minimum).encode()
    };
    put(&client, "/quorate/kubernetes/reconciler/status", status("1.2.0")).await;
    eventually(SOON, "another reason", async || {
        same(waiting.printed().lines().count(), 2)
    })
    .await;
    put(&client, "/quorate/kubernetes/reconciler/status", status("1.3.0")).await;
    assert!(waiting.ends().await.success());
    assert!(waiting.printed().ends_with("\nready\n"), "{}", waiting.printed());
}

fn expect_fenced_write(etcd: &TestEtcd, program: &Path) {
    let output = Command::new(program).arg(&etcd.endpoints()[0]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = printed.lines().collect();
    assert!(
        matches!(lines[..], [written, refused]
            if written.starts_with("written at revision ") && refused.starts_with("refused: term ")),
        "{printed}"
    );
    assert_eq!(etcd.get("/example/key").as_deref(), Some("written by the leader"));
    assert_eq!(etcd.keys("/example/leader/"), [""; 0], "the lease is given back");
}

#[tokio::test]
async fn the_example_of_a_fenced_write_is_refused_after_its_term() {
    let etcd = TestEtcd::start().await;
    expect_fenced_write(&etcd, &example("fenced_write"));
}

/// Built without the controller's dependencies, in a folder of its own below the target directory, which later runs find
/// built.
#[tokio::test]
async fn a_crate_outside_the_workspace_builds_with_the_library_alone() {
    let etcd = TestEtcd::start().await;
    let folder = profile().parent().unwrap().join("embedder");
    fs::create_dir_all(&folder).unwrap();
    let manifest = include_str!("embedder.toml").replace("@ROOT@", root().to_str().unwrap());
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    // The same versions as here, so that cargo needs nothing that it has not downloaded.
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let path = folder.join("Cargo.toml");
    let begun = Instant::now();
    cargo(&[
        "build",
        "--offline",
        "--quiet",
        "--manifest-path",
        path.to_str().unwrap(),
        // Whatever target directory the environment names.
        "--target-dir",
        folder.join("target").to_str().unwrap(),
    ]);
    println!("built in {:?}", begun.elapsed());
    // What this crate names itself: etcd-client brings axum along, through the default features of tonic.
    let lock = fs::read_to_string(folder.join("Cargo.lock")).unwrap();
    let mut packages = lock.split("[[package]]");
    let own = packages
        .find(|package| package.contains("name = \"quorate\"\n"))
        .unwrap();
    for library in ["kube", "axum", "clap"] {
        assert!(
            !own.contains(&format!("\"{library}\"")),
            "{library} is built: {own}"
        );
    }
    expect_fenced_write(&etcd, &folder.join("target/debug/fenced_write"));
}

#[tokio::test]
async fn a_connection_follows_its_endpoints_without_a_companion() {
    let etcd = TestEtcd::start().await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let client = Etcd::builder([proxy.url()]).connect().await.unwrap();
    assert_eq!(client.live_endpoints(), [proxy.url()]);
    eventually(SOON, "the member's own URL", async || {
        same(client.live_endpoints().contains(&etcd.endpoints()[0]), true)
    })
    .await;
    proxy.set(Network::Resets);
    // Requests that fail on the way have the endpoints checked at once.
    eventually(SOON, "the proxy's URL is dropped", async || {
        let _ = client.get(b"/").await;
        same(client.live_endpoints(), etcd.endpoints())
    })
    .await;
}

#[tokio::test]
async fn a_leader_without_a_pulse_of_its_own_keeps_its_lease() {
    let etcd = TestEtcd::start().await;
    let client = Etcd::builder(etcd.endpoints()).connect().await.unwrap();
    let leadership = elect(&client, "/example/leader", "a", RENEWED_TTL).await.unwrap();
    for _ in 0..2 {
        renewed(leadership.fence().window()).await;
    }
    assert!(leadership.fence().window().is_open());
    etcd.etcdctl(&["del", "--prefix", "/example/leader/"]);
    timeout(SOON, leadership.lost()).await.expect("the key is gone");
    leadership.resign().await;
}
