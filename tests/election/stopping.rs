//! Replicas that stop: in which order, and within which time (INV-10).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorate::replica::{self, ReplicaStatus, Settings};
use quorate::term::{self, Notices};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{ELECTION, TTL, launch, store_of_replicas, three, wait_for_candidates};
use crate::gate::term::{Recorder, TIMES, bundle};
use crate::support::client::{connect, lead, pulse, store};
use crate::support::etcd::TestEtcd;
use crate::support::hold::Hold;
use crate::support::quorate::Replicas;
use crate::support::wait::{SOON, eventually, same};

/// The order of serving (INV-4) in reverse.
#[tokio::test]
async fn a_replica_that_is_asked_to_stop_is_unready_before_its_record_goes() {
    let etcd = TestEtcd::start().await;
    let between = Hold::at("registration.unready");
    let mut replica = between.on(launch(&etcd)).start("a");
    replica.wait_ready().await;
    let client = connect(&etcd).await;
    let record = store_of_replicas(&client)
        .keys
        .registration(&"a".parse().unwrap());
    replica.terminate();
    between.reached().await;
    eventually(SOON, "it says that it is unready", async || {
        same(replica.status_of("/readyz").await, Some(503))
    })
    .await;
    // The replica is paused here: its record still stands.
    assert!(client.get(&record).await.unwrap().0.is_some());
    between.release();
    let status = replica.ended().await;
    assert!(status.success(), "{status}");
    eventually(SOON, "its record is deleted", async || {
        same(client.get(&record).await.unwrap().0.is_none(), true)
    })
    .await;
}

#[tokio::test]
async fn a_replica_gives_its_lead_back_at_every_signal_that_asks_it_to_end() {
    let etcd = TestEtcd::start().await;
    for signal in [Signal::INT, Signal::HUP, Signal::USR1, Signal::USR2] {
        let mut replica = launch(&etcd).start("a");
        replica.wait_leading().await;
        let pid = Pid::from_raw(replica.pid().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let status = replica.ended().await;
        assert!(status.success(), "{signal:?}: {status}");
        assert_eq!(etcd.keys(ELECTION), [""; 0], "{signal:?}");
    }
}

/// The plugin blocks the thread that asks it.
#[tokio::test]
async fn a_replica_that_waits_for_a_plugin_for_credentials_stops_when_it_is_asked_to() {
    let etcd = TestEtcd::start().await;
    let (file, begun) = (
        etcd.directory().join("kubeconfig"),
        etcd.directory().join("begun"),
    );
    let script = format!("echo $$ > {}; exec sleep {}", begun.display(), SOON.as_secs());
    let kubeconfig = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "users": [{"name": "a", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
            "interactiveMode": "Never",
        }}}],
    });
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let mut replica = launch(&etcd).kubeconfig(file).start("a");
    let plugin: i32 = eventually(SOON, "the plugin runs", async || {
        let pid = std::fs::read_to_string(&begun).map_err(|error| error.to_string())?;
        pid.trim().parse().map_err(|_| pid)
    })
    .await;
    let asked = Instant::now();
    // The replica alone: the plugin goes on.
    let pid = Pid::from_raw(replica.pid().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let status = replica.ended().await;
    let took = asked.elapsed();
    // It may have ended with the replica.
    let _ = kill_process(Pid::from_raw(plugin).unwrap(), Signal::KILL);
    assert!(status.success(), "{status}");
    assert!(took < SOON / 2, "{took:?}");
}

#[tokio::test]
async fn a_standby_that_is_asked_to_stop_begins_no_term() {
    let etcd = TestEtcd::start().await;
    let (mut replicas, leader) = three(&etcd).await;
    let standby = (leader + 1) % 3;
    let asked = Instant::now();
    replicas.0[standby].terminate();
    let status = replicas.0[standby].ended().await;
    assert!(status.success(), "{status}");
    assert!(asked.elapsed() < TTL / 2, "{:?}", asked.elapsed());
    let log = replicas.0[standby].log();
    assert!(!log.contains("leading"), "{log}");
    assert!(
        log.contains("stopped") && !log.contains("not everything ended"),
        "{log}"
    );
    assert_eq!(etcd.keys(ELECTION).len(), 2);
    assert!(replicas.0[leader].leads().await);
}

#[tokio::test]
async fn while_etcd_is_silent_a_replica_stops_in_time_and_at_once_when_asked_twice() {
    use std::os::unix::process::ExitStatusExt;
    let mut etcd = TestEtcd::start().await;
    let patient = launch(&etcd).start("patient");
    let hasty = launch(&etcd).start("hasty");
    let mut replicas = Replicas(vec![patient, hasty]);
    wait_for_candidates(&etcd, 2).await;
    for replica in &mut replicas.0 {
        replica.wait_ready().await;
    }
    etcd.members[0].pause();
    let asked = Instant::now();
    for replica in &mut replicas.0 {
        replica.terminate();
        replica.wait_for_log("asked to stop").await;
    }
    // The lease cannot be revoked now: the replica tries until its limit.
    replicas.0[1].terminate();
    let status = replicas.0[1].ended().await;
    assert_eq!(
        status.signal(),
        Some(rustix::process::Signal::ABORT.as_raw()),
        "{status}"
    );
    let status = replicas.0[0].ended().await;
    assert!(status.success(), "{status}");
    assert!(asked.elapsed() < TTL / 2, "{:?}", asked.elapsed());
    etcd.members[0].resume();
}

/// Calls its function when it is dropped.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        self.0();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tasks_of_a_term_have_ended_before_its_lease_is_revoked() {
    let etcd = Arc::new(TestEtcd::start().await);
    let client = connect(&etcd).await;
    let mut beating = JoinSet::new();
    let leadership = lead(&client, "leader", &pulse(&mut beating)).await.unwrap();
    let (stop, ended) = (CancellationToken::new(), Arc::new(AtomicBool::new(false)));
    let end = term::run(leadership, TTL, &stop, |fence, tasks| {
        let (fence, etcd, ended, stop) = (fence.clone(), etcd.clone(), ended.clone(), stop.clone());
        tasks.spawn(async move {
            let _at_end = AtEnd(|| {
                // Longer than it takes to revoke a lease.
                std::thread::sleep(Duration::from_millis(300));
                assert_eq!(etcd.keys("/q/kubernetes/reconciler/leader/").len(), 1);
                assert!(!fence.window().is_open());
                ended.store(true, Ordering::Relaxed);
            });
            stop.cancel();
            std::future::pending::<()>().await;
        });
    })
    .await;
    assert_eq!(end, term::End::Stopped);
    assert!(ended.load(Ordering::Relaxed));
    assert_eq!(etcd.keys("/q/"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_ends_by_itself_ends_the_term() {
    let etcd = TestEtcd::start().await;
    let client = connect(&etcd).await;
    let mut beating = JoinSet::new();
    let leadership = lead(&client, "leader", &pulse(&mut beating)).await.unwrap();
    let never = CancellationToken::new();
    let running = term::run(leadership, TTL, &never, |_, tasks| {
        tasks.spawn(std::future::ready(()));
    });
    assert_eq!(timeout(SOON, running).await.unwrap(), term::End::Lost);
    assert_eq!(etcd.keys("/q/"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_is_never_taken_for_the_failure_of_a_part() {
    let etcd = TestEtcd::start().await;
    let store = store(&connect(&etcd).await);
    let settings = Settings {
        node: "a".parse().unwrap(),
        bundle: bundle(1, 0),
        lease_ttl: TTL,
        trial: TTL,
        rights_interval: replica::RIGHTS_INTERVAL,
        times: TIMES,
        roles: quorate::roles::controller::Settings::default(),
        volumes: Default::default(),
        certificates: None,
        secrets: Default::default(),
        page: None,
    };
    for round in 0..40 {
        let (status, stop) = (ReplicaStatus::default(), CancellationToken::new());
        let replica = replica::run(
            store.clone(),
            settings.clone(),
            None::<fn(Notices) -> Recorder>,
            None,
            None,
            status.clone(),
            stop.clone(),
        );
        let stopping = async {
            eventually(SOON, "it leads", async || same(status.leads(), true)).await;
            stop.cancel();
        };
        let (ended, ()) = tokio::join!(replica, stopping);
        assert!(ended.is_ok(), "round {round}: {ended:?}");
        let mut left = etcd.keys("/q/");
        // A leader records once how far etcd is, for every later one.
        left.retain(|key| key != "/q/history/volumes");
        assert_eq!(left, [""; 0], "round {round} left keys");
    }
}
