//! The gate as a whole: replicas of several releases on a real kube-apiserver, and the upgrades, rollbacks and mishaps
//! between them.

mod apiserver;
mod blocked;
pub mod bundles;
mod crashes;
mod first_start;
mod held_back;
mod history;
mod mishaps;
mod restores;
mod rolling;
mod witness;

use std::collections::BTreeSet;

use quorate::etcd::Etcd;
use quorate::gate::status::Status;
use quorate::release::Release;
use quorate::store::{Keys, Store};
use rustix::process::Signal;

use crate::support::client::connect_patiently;
use crate::support::etcd::TestEtcd;
use crate::support::kubernetes::Kubernetes;
use crate::support::quorate::{Finished, Launch, TestReplica, quorate, quorate_with};
use crate::support::wait::{SOON, eventually, same};
use bundles::Release as Shipped;

/// An API server, and replicas of one cluster on the etcd below it.
struct Cluster {
    kubernetes: Kubernetes,
    client: Etcd,
}

impl Cluster {
    async fn start() -> Self {
        // As JSON, since the tests read the history of the objects in etcd.
        let kubernetes = Kubernetes::with(Vec::new(), &["--storage-media-type=application/json"]).await;
        let client = connect_patiently(&kubernetes.etcd).await;
        Self { kubernetes, client }
    }

    fn etcd(&self) -> &TestEtcd {
        &self.kubernetes.etcd
    }

    /// Pauses the API server (SIGSTOP): it answers no request until it is resumed.
    fn pause_kubernetes(&self) {
        self.kubernetes.signal(Signal::STOP);
    }

    fn resume_kubernetes(&self) {
        self.kubernetes.signal(Signal::CONT);
    }

    /// Below the prefix `/<name>`.
    fn deployment<'a>(&'a self, name: &'a str) -> Deployment<'a> {
        Deployment { cluster: self, name }
    }
}

/// Replicas that share one prefix, and the bundles of one name.
struct Deployment<'a> {
    cluster: &'a Cluster,
    name: &'a str,
}

impl Deployment<'_> {
    fn prefix(&self) -> String {
        format!("/{}", self.name)
    }

    /// Replicas with short waits, and leases that no busy machine lets expire.
    fn launch(&self) -> Launch {
        self.launch_without_ttl().flag("--lease-ttl=30")
    }

    /// The same for replicas that are killed: the test waits until their leases expire.
    fn launch_with_short_leases(&self) -> Launch {
        self.launch_without_ttl().flag("--lease-ttl=8")
    }

    fn launch_without_ttl(&self) -> Launch {
        Launch::on_kubernetes(&self.cluster.kubernetes)
            .flag(format!("--prefix={}", self.prefix()))
            .flag("--settle-ms=200")
            .flag("--pass-interval-ms=1000")
    }

    /// Starts a replica of a release.
    fn start(&self, node_id: &str, release: &Shipped) -> TestReplica {
        self.launch().bundle(release.bundle()).start(node_id)
    }

    fn store(&self) -> Store {
        Store {
            etcd: self.cluster.client.clone(),
            keys: Keys::new(self.prefix().parse().unwrap()),
        }
    }

    /// The status; `None` if it is absent or malformed.
    async fn status(&self) -> Option<Status> {
        let key = self.store().keys.status();
        let (stored, _) = self.cluster.client.get(&key).await.unwrap();
        Status::decode(&stored?.value).ok()
    }

    /// The status in one line; `none` if it is absent or malformed.
    async fn status_line(&self) -> String {
        let status = self.status().await;
        status.map_or("none".to_owned(), |status| status.to_string())
    }

    /// Waits until the status is DONE by this release.
    async fn wait_done(&self, release: &Shipped) {
        eventually(SOON, "the status is DONE", async || {
            same(self.status_line().await, release.done())
        })
        .await;
    }

    /// Waits until the objects in place are of this release alone. A write that an older leader had sent can land after its
    /// successor is done, where that waits too short a time to settle; the successor sees it and mends it.
    async fn expect_in_place(&self, release: &str) {
        let what = format!("{}: the objects are of {release}", self.name);
        eventually(SOON, &what, async || {
            same(self.releases_in_place(), BTreeSet::from([release.to_owned()]))
        })
        .await;
    }

    /// The releases that the objects in place are of.
    fn releases_in_place(&self) -> BTreeSet<String> {
        let prefix = format!("/kubernetes/configmaps/default/{}-", self.name);
        let texts = self
            .cluster
            .etcd()
            .etcdctl(&["get", "--prefix", "--print-value-only", &prefix]);
        let objects = texts.lines().filter(|line| !line.is_empty());
        objects
            .map(|line| {
                let object: serde_json::Value = serde_json::from_str(line).unwrap();
                object["data"]["release"].as_str().unwrap().to_owned()
            })
            .collect()
    }

    /// Runs a command on this prefix.
    async fn run(&self, args: &[&str]) -> Finished {
        let endpoints = format!("--etcd-endpoints={}", self.cluster.etcd().endpoints_flag());
        let prefix = format!("--prefix={}", self.prefix());
        let args = args.iter().copied().chain([endpoints.as_str(), &prefix]);
        quorate(args).await
    }

    /// `quorate status`.
    async fn shown(&self) -> String {
        self.run(&["status"]).await.expect_done()
    }

    /// Waits until `quorate status` shows a text.
    async fn wait_shown(&self, text: &str) -> String {
        let what = format!("quorate status shows {text:?}");
        eventually(SOON, &what, async || {
            let shown = self.shown().await;
            if shown.contains(text) {
                Ok(shown)
            } else {
                Err(shown)
            }
        })
        .await
    }
}

/// Waits until a replica is unready for a reason that contains this text.
async fn wait_unready(replica: &TestReplica, reason: &str) {
    let what = format!("{} is unready: {reason}", replica.node_id);
    eventually(SOON, &what, async || {
        let page = replica.get("/readyz?verbose").await;
        let page = page.map_err(|error| error.to_string())?;
        match page.status == 503 && page.body.contains(reason) {
            true => Ok(()),
            false => Err(format!("{} {}", page.status, page.body)),
        }
    })
    .await;
}

fn release(text: &str) -> Release {
    text.parse().unwrap()
}

/// Runs `quorate apply` below the prefix of this deployment.
async fn apply(deployment: &Deployment<'_>, text: &str, further: &[&str]) {
    let endpoints = format!("--etcd-endpoints={}", deployment.cluster.etcd().endpoints_flag());
    let prefix = format!("--prefix={}", deployment.prefix());
    let args = ["apply", "-f", "-", &endpoints, &prefix];
    let args = args.iter().copied().chain(further.iter().copied());
    quorate_with(args, Some(text), &[]).await.expect_done();
}
