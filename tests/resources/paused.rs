//! A leader that is paused amid its writes while another one leads (INV-1, INV-3).

use super::faults::{Fault, FaultProxy};
use super::site::{bundle_directory, config_map, config_map_path};
use crate::support::client::{connect, written_since};
use crate::support::kubernetes::Kubernetes;
use crate::support::proxy::{Network, Proxy};
use crate::support::quorate::{Launch, status_json};
use crate::support::wait::{SOON, eventually, same};

const ELECTION: &str = "/quorate/kubernetes/reconciler/leader/";

/// The number of objects: many more than are written at a time, so that most are not yet written when the leader is
/// paused.
const OBJECTS: usize = 40;

/// The fault of each write, by a part of its URL. One is refused while the leader sleeps, so that the leader would
/// continue with the next object at once. One reaches the server after all. Any other has to be repeated, and its wait is
/// over when the leader wakes up.
const FAULTS: [(&str, Fault); 3] = [
    ("map-00", Fault::Held(Some(422))),
    ("map-01", Fault::Held(None)),
    ("map-", Fault::Status(429, Some(2))),
];

/// The writes in flight when the leader is paused.
const IN_FLIGHT: [&str; 3] = ["map-00", "map-01", "map-02"];

#[tokio::test]
async fn a_leader_that_was_paused_amid_its_writes_writes_nothing_more() {
    let kubernetes = Kubernetes::start().await;
    let proxy = FaultProxy::in_front_of(&kubernetes).await;
    let manifests: String = (0..OBJECTS)
        .map(|n| config_map(&format!("map-{n:02}"), "v"))
        .collect();
    let bundle = bundle_directory("1.0.0", &manifests);
    for (holds, fault) in FAULTS {
        proxy.fail("PATCH", holds, usize::MAX, fault);
    }
    let launch = Launch::on_kubernetes(&kubernetes)
        .bundle(bundle.path())
        // The test waits until the lease expires. Before that a busy machine has 6 s to renew it.
        .flag("--lease-ttl=8")
        .flag("--settle-ms=100")
        .flag(format!("--kube-in-flight={}", IN_FLIGHT.len()));

    // The leader reaches etcd through a proxy as well: its own clock has to end its term, not news from etcd.
    let to_etcd = Proxy::in_front_of(&kubernetes.etcd.endpoints().concat());
    let mut paused = launch
        .clone()
        .endpoints(vec![to_etcd.url()])
        .flag("--etcd-sync-endpoints=false")
        .kubeconfig(proxy.kubeconfig())
        .start("paused");
    eventually(SOON, "its writes are in flight", async || {
        let noted = proxy.noted();
        let sent = |name: &str| {
            noted
                .iter()
                .any(|noted| noted.method == "PATCH" && noted.uri.contains(name))
        };
        same(IN_FLIGHT.map(sent), [true; 3])
    })
    .await;
    let mut next = launch.start("next");
    wait_for_candidates(&kubernetes, 2).await;
    let pid = paused.process().unwrap().pid();
    let old_key = kubernetes.etcd.keys(ELECTION);
    paused.pause();
    to_etcd.set(Network::BlackHole);

    next.wait_leading().await;
    eventually(SOON, "the next leader is done", async || {
        let status = status_json(&kubernetes.etcd, "/quorate").unwrap_or_default();
        same(
            (&status["state"], &status["leader"]),
            (&"DONE".into(), &"next".into()),
        )
        .map(drop)
    })
    .await;
    assert_eq!(proxy.held(), 2, "still in flight");
    proxy.release();
    eventually(SOON, "the held writes have arrived", async || {
        same(proxy.held(), 0)
    })
    .await;
    proxy.take_noted();
    let resumed_at = kubernetes.etcd.revision();
    paused.resume();

    paused.wait_for_log("no longer leading").await;
    to_etcd.set(Network::Passes);
    wait_for_candidates(&kubernetes, 2).await;
    paused.wait_ready().await;
    let sent = proxy.take_noted();
    assert!(sent.is_empty(), "sent after its term was over: {sent:#?}");
    let etcd = connect(&kubernetes.etcd).await;
    let written = written_since(&etcd, "/quorate/", resumed_at).await;
    let own = |key: &String| {
        key == "/quorate/nodes/paused/release" || (key.starts_with(ELECTION) && !old_key.contains(key))
    };
    assert!(written.iter().any(own), "it did not campaign again: {written:?}");
    assert!(written.iter().all(own), "{written:?}");
    assert_eq!(paused.process().unwrap().pid(), pid, "the same process");
    assert!(!paused.leads().await && next.leads().await);

    // The writes that were in flight undid nothing of the next leader.
    for number in 0..OBJECTS {
        let path = config_map_path(&format!("map-{number:02}"));
        let object = kubernetes.get(&path).await.unwrap();
        assert_eq!(object["data"]["key"], "v", "{object}");
    }
}

async fn wait_for_candidates(kubernetes: &Kubernetes, wanted: usize) {
    eventually(SOON, "every replica is a candidate", async || {
        same(kubernetes.etcd.keys(ELECTION).len(), wanted)
    })
    .await;
}
