//! An etcd that is restored from a snapshot under three replicas, wherever their leader is (INV-4, INV-11).

use std::path::PathBuf;

use prost::Message as _;
use quorate::gate::status::{State, Status};
use quorate::proto::Registration;
use quorate::release::Version;
use quorate::store::{Keys, Store};
use rustix::process::Signal;

use super::bundles::Release as Shipped;
use super::release;
use crate::support::client::{commit, connect_patiently, put};
use crate::support::etcd::{EtcdVersion, TestEtcd};
use crate::support::hold::Hold;
use crate::support::kubernetes::Kubernetes;
use crate::support::proxy::Proxy;
use crate::support::quorate::{Launch, Replicas, status_json};
use crate::support::wait::{SOON, eventually, same};

/// Where the leader is when etcd is restored.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Position {
    /// Everything is in place.
    Idle,
    /// The nodes are read, and the transaction that restricts the status is about to be sent.
    Restricting,
    /// The status is restricted, and nothing is reconciled yet.
    Restricted,
    /// A pass over the resources has begun.
    Reconciling,
}

const POSITIONS: [Position; 4] = [
    Position::Idle,
    Position::Restricting,
    Position::Restricted,
    Position::Reconciling,
];

/// Where etcd serves once it is restored.
#[derive(Clone, Copy, PartialEq)]
enum Ports {
    Same,
    /// The replicas reach both over one address.
    Others,
}

const REGISTRATION: &str = "/quorate/nodes/c2/release";

/// A kube-apiserver that the restored etcd has no part in, and a bundle that excludes what is older.
struct Site {
    kubernetes: Kubernetes,
    shipped: Shipped,
}

impl Site {
    async fn start() -> Self {
        Self {
            kubernetes: Kubernetes::start().await,
            shipped: Shipped::of("restored", "1.0.0", "0.1.0", "1.0.0"),
        }
    }

    fn launch(&self, endpoint: String) -> Launch {
        Launch::default()
            .endpoints(vec![endpoint])
            .kubeconfig(self.kubernetes.kubeconfig())
            .bundle(self.shipped.bundle())
            .flag("--lease-ttl=30")
            .flag("--etcd-sync-endpoints=false")
            .flag("--etcd-endpoint-interval-ms=300")
    }

    /// Starts three replicas and waits until their leader is there. The hold keeps it there.
    async fn start_at(
        &self,
        position: Position,
        endpoint: String,
        etcd: &TestEtcd,
    ) -> (Replicas, Option<Hold>) {
        let launch = self.launch(endpoint);
        let names = ["a", "b", "c"];
        let settled = |launch: Launch| launch.flag("--settle-ms=100");
        let replicas = match position {
            Position::Idle => {
                let replicas = settled(launch).start_all(&names);
                wait_for_status(etcd, &self.done()).await;
                replicas
            }
            Position::Restricting => {
                let hold = Hold::at("gate.restricting");
                let replicas = hold.on(settled(launch)).start_all(&names);
                hold.reached().await;
                return (replicas, Some(hold));
            }
            Position::Restricted => {
                let replicas = launch.flag("--settle-ms=600000").start_all(&names);
                wait_for_status(etcd, &self.restricted()).await;
                replicas
            }
            Position::Reconciling => {
                let hold = Hold::at("gate.planned");
                let replicas = hold.on(settled(launch)).start_all(&names);
                hold.reached().await;
                self.kubernetes.signal(Signal::STOP);
                hold.release();
                wait_for_status(etcd, &self.restricted()).await;
                replicas
            }
        };
        (replicas, None)
    }

    fn done(&self) -> Status {
        self.status(State::Done)
    }

    fn status(&self, state: State) -> Status {
        Status::new(
            state,
            Version::from(self.shipped.release),
            self.shipped.min_apiserver,
        )
    }

    /// The versions are those of before.
    fn restricted(&self) -> Status {
        Status::new(
            State::Working,
            Version::from(release("0.4.0")),
            self.shipped.min_apiserver,
        )
    }
}

fn before() -> Status {
    Status::new(State::Done, Version::from(release("0.4.0")), release("0.1.0"))
}

async fn status(etcd: &TestEtcd) -> Option<Status> {
    let store = Store {
        etcd: connect_patiently(etcd).await,
        keys: Keys::new("/quorate".parse().unwrap()),
    };
    let (found, _) = store.etcd.get(&store.keys.status()).await.unwrap();
    found.map(|kv| Status::decode(&kv.value).unwrap())
}

async fn wait_for_status(etcd: &TestEtcd, wanted: &Status) {
    eventually(SOON, "the status", async || {
        same(status(etcd).await.as_ref(), Some(wanted)).map(drop)
    })
    .await;
}

async fn register_c2(etcd: &TestEtcd, at: &str) {
    let record = Registration {
        version: Some(Version::from(release(at)).to_proto()),
        process: "another".to_owned(),
        registered_at: None,
        page: String::new(),
    };
    put(
        &connect_patiently(etcd).await,
        REGISTRATION,
        record.encode_to_vec(),
    )
    .await;
}

/// Restores the snapshot: under the replicas that reach etcd through the proxy, or elsewhere.
async fn restored(mut etcd: TestEtcd, ports: Ports, snapshot: PathBuf, proxy: &Proxy) -> TestEtcd {
    if ports == Ports::Same {
        etcd.restore(&snapshot).await;
        return etcd;
    }
    let mut other = TestEtcd::of(etcd.version, 1, &[]).await;
    other.restore(&snapshot).await;
    etcd.members[0].kill().await.unwrap();
    proxy.lead_to(&other.endpoints()[0]);
    other
}

/// The snapshot has a node that the release excludes. Later the node is upgraded, so that nothing is in the way of the
/// replicas; then the snapshot is restored under them.
async fn survives(site: &Site, position: Position, ports: Ports, version: EtcdVersion) {
    eprintln!("{position:?}");
    let etcd = TestEtcd::of(version, 1, &[]).await;
    let proxy = Proxy::in_front_of(&etcd.endpoints()[0]);
    let endpoint = match ports {
        Ports::Same => etcd.endpoints()[0].clone(),
        Ports::Others => proxy.url(),
    };
    let status_key = "/quorate/kubernetes/reconciler/status";
    put(&connect_patiently(&etcd).await, status_key, before().encode()).await;
    register_c2(&etcd, "0.2.0").await;
    let snapshot = etcd.snapshot();
    register_c2(&etcd, "1.0.0").await;
    let (mut replicas, held) = site.start_at(position, endpoint.clone(), &etcd).await;
    let client = connect_patiently(&etcd).await;
    for value in 0..200 {
        put(&client, "/filler", value.to_string()).await;
    }
    drop(client);

    let etcd = restored(etcd, ports, snapshot, &proxy).await;
    if let Some(hold) = held {
        hold.release();
    }
    for replica in &mut replicas.0 {
        let ended = replica.ended().await;
        let log = replica.log();
        assert_eq!(ended.code(), Some(1), "{position:?}: {log}");
        assert!(
            log.contains("restored") && log.contains("quorate adopt"),
            "{position:?}: {log}"
        );
    }
    if position == Position::Reconciling {
        site.kubernetes.signal(Signal::CONT);
    }
    assert_eq!(
        status(&etcd).await,
        Some(before()),
        "{position:?}: restricted on what was known before"
    );
    // Started again, as their supervisor does, they wait for the node that is there now.
    let launch = site.launch(endpoint).flag("--settle-ms=100");
    let replicas = launch.start_all(&["a", "b", "c"]);
    replicas.leader().await;
    eventually(SOON, "the node is waited for", async || {
        let json = status_json(&etcd, "/quorate").unwrap_or_default();
        let message = json["degraded"]["message"].clone();
        same(message, "waiting for node c2 at 0.2.0, needs 1.0.0".into())
    })
    .await;
    assert_eq!(status(&etcd).await, Some(before()), "{position:?}");
    let client = connect_patiently(&etcd).await;
    let gone = quorate::etcd::Txn::new().delete(REGISTRATION.as_bytes());
    commit(&client, gone).await.unwrap();
    wait_for_status(&etcd, &site.done()).await;
}

#[tokio::test]
async fn a_restore_under_three_replicas_restricts_and_reconciles_nothing_wherever_their_leader_is() {
    let site = Site::start().await;
    for position in POSITIONS {
        survives(&site, position, Ports::Same, EtcdVersion::Installed).await;
    }
}

#[tokio::test]
async fn the_same_holds_where_the_restored_etcd_serves_on_other_ports() {
    let site = Site::start().await;
    for position in POSITIONS {
        survives(&site, position, Ports::Others, EtcdVersion::Installed).await;
    }
}

#[tokio::test]
async fn and_where_both_are_of_the_next_release_of_etcd() {
    let site = Site::start().await;
    for position in POSITIONS {
        survives(&site, position, Ports::Same, EtcdVersion::Next).await;
    }
}
