//! A kube-apiserver, an elected leader, and reconcilers of its term.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use quorate::etcd::{Config, Etcd, Fence};
use quorate::kube::{KubeClient, Limits};
use quorate::metrics::Metrics;
use quorate::proto::Applied;
use quorate::resources::{Bundle, Inventory, Reconciler, Report, Settings};
use quorate::store::Store;
use serde_json::{Value, json};

use crate::support::client::{connect_with, ordinary_config, store};
use crate::support::directory::directory;
use crate::support::kubernetes::Kubernetes;
use crate::support::leader::Leader;
use crate::support::proxy::Proxy;
use crate::support::wait::SOON;

pub struct Site {
    pub kubernetes: Kubernetes,
    pub store: Store,
    leader: Leader,
}

impl Site {
    pub async fn start() -> Self {
        Self::on(Kubernetes::start().await).await
    }

    pub async fn on(kubernetes: Kubernetes) -> Self {
        // A request may take as long as in production: the API server keeps its objects in the same etcd.
        let etcd = connect_with(ordinary_config(kubernetes.etcd.endpoints())).await;
        Self::through(kubernetes, &etcd).await
    }

    /// A site whose leader and reconcilers use this connection to etcd.
    pub async fn through(kubernetes: Kubernetes, etcd: &Etcd) -> Self {
        let store = store(etcd);
        let leader = Leader::elect(&store, "test").await;
        Self {
            kubernetes,
            store,
            leader,
        }
    }

    /// A site whose leader and inventory are behind this network.
    pub async fn behind_a_network() -> (Self, Proxy) {
        let kubernetes = Kubernetes::start().await;
        let network = Proxy::in_front_of(&kubernetes.etcd.endpoints()[0]);
        let mut config = Config::new(vec![network.url()]);
        config.sync_endpoints = false;
        // A write that is not answered is awaited, however long the test takes.
        config.request_timeout = SOON * 2;
        let etcd = connect_with(config).await;
        (Self::through(kubernetes, &etcd).await, network)
    }

    pub fn fence(&self) -> &Fence {
        self.leader.fence()
    }

    /// A reconciler as the administrator.
    pub async fn reconciler(&self, bundle: Bundle) -> Reconciler {
        self.reconciler_as(self.kubernetes.kubeconfig(), bundle).await
    }

    /// A reconciler with this kubeconfig and without memory, as in a new term.
    pub async fn reconciler_as(&self, kubeconfig: PathBuf, bundle: Bundle) -> Reconciler {
        let settings = Settings {
            gone_within: Duration::from_secs(2),
            lingers_after: SOON,
            ..Settings::default()
        };
        self.reconciler_with(kubeconfig, bundle, Duration::from_secs(3), settings)
            .await
    }

    /// A reconciler that waits long for an answer, in each pass as well.
    pub async fn waiting_reconciler_as(&self, kubeconfig: PathBuf, bundle: Bundle) -> Reconciler {
        let settings = Settings {
            lingers_after: SOON,
            ..Settings::default()
        };
        self.reconciler_with(kubeconfig, bundle, SOON, settings).await
    }

    /// A reconciler that waits long for an answer, and for an object to be gone, but whose passes soon go on without it.
    pub async fn patient_reconciler_as(&self, kubeconfig: PathBuf, bundle: Bundle) -> Reconciler {
        self.reconciler_with(kubeconfig, bundle, SOON, Settings::default())
            .await
    }

    /// A reconciler with these limits, and this one for each request.
    pub async fn reconciler_with(
        &self,
        kubeconfig: PathBuf,
        bundle: Bundle,
        request: Duration,
        settings: Settings,
    ) -> Reconciler {
        let limits = Limits {
            request,
            ..Limits::default()
        };
        let kube = KubeClient::connect_with(Some(&kubeconfig), limits).await.unwrap();
        let inventory = Inventory::new(self.store.clone());
        Reconciler::new(kube, Arc::new(bundle), inventory, Metrics::new("test"), settings)
    }

    /// One pass of a reconciler without memory.
    pub async fn pass(&self, bundle: Bundle) -> Report {
        self.reconciler(bundle).await.pass(self.fence()).await
    }

    /// One pass of a reconciler without memory that may prune this many objects at once.
    pub async fn pass_allowing(&self, bundle: Bundle, allow_prune: usize) -> Report {
        let kubeconfig = self.kubernetes.kubeconfig();
        let settings = Settings {
            allow_prune,
            lingers_after: SOON,
            ..Settings::default()
        };
        let mut reconciler = self
            .reconciler_with(kubeconfig, bundle, Duration::from_secs(3), settings)
            .await;
        reconciler.pass(self.fence()).await
    }

    /// Makes a pass after each change that the reconciler notices, until one is as it should be.
    pub async fn reconcile_until(&self, reconciler: &mut Reconciler, is_done: impl Fn(&Report) -> bool) {
        let mut last = None;
        let passes = async {
            loop {
                reconciler.changed().await;
                let report = reconciler.pass(self.fence()).await;
                if is_done(&report) {
                    return;
                }
                last = Some(report);
            }
        };
        if tokio::time::timeout(SOON, passes).await.is_err() {
            panic!("not within {SOON:?}; the last pass: {last:#?}");
        }
    }

    /// Makes passes until nothing that the reconciler noticed asks for another one.
    pub async fn settle(&self, reconciler: &mut Reconciler) {
        let quiet = Duration::from_millis(500);
        while tokio::time::timeout(quiet, reconciler.changed()).await.is_ok() {
            expect_success(&reconciler.pass(self.fence()).await);
        }
    }

    /// The keys of the inventory without their common prefix.
    pub fn inventory(&self) -> Vec<String> {
        let prefix = "/q/kubernetes/reconciler/inventory/";
        let keys = self.kubernetes.etcd.keys(prefix);
        keys.iter()
            .map(|key| key.strip_prefix(prefix).unwrap().to_owned())
            .collect()
    }

    /// The entry of an object, by its key without the common prefix. Panics if there is none.
    pub async fn entry(&self, path: &str) -> Applied {
        let key = format!("/q/kubernetes/reconciler/inventory/{path}");
        let (stored, _) = self.store.etcd.get(key.as_bytes()).await.unwrap();
        let stored = stored.unwrap_or_else(|| panic!("{path}: {:?}", self.inventory()));
        Applied::decode(stored.value.as_slice()).unwrap()
    }

    pub async fn get(&self, path: &str) -> Option<Value> {
        self.kubernetes.get(path).await
    }

    pub async fn uid(&self, path: &str) -> String {
        let object = self
            .get(path)
            .await
            .unwrap_or_else(|| panic!("{path} does not exist"));
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Changes an object as another client.
    pub async fn patch(&self, path: &str, patch: Value) -> Value {
        self.kubernetes.send("PATCH", path, &patch).await
    }

    pub async fn delete(&self, path: &str) {
        self.kubernetes.send("DELETE", path, &json!({})).await;
    }
}

/// A bundle named `web` with these documents.
pub fn bundle(manifests: &str) -> Bundle {
    let directory = bundle_directory("1.0.0", manifests);
    Bundle::load(directory.path()).unwrap_or_else(|error| panic!("{error}"))
}

/// The directory of a bundle named `web` with these documents.
pub fn bundle_directory(release: &str, manifests: &str) -> tempfile::TempDir {
    let directory = directory();
    let description =
        format!("name: web\nrelease: {release}\nminReconcilerRelease: 1.0.0\nminApiserverRelease: 1.0.0\n");
    std::fs::write(directory.path().join("bundle.yaml"), description).unwrap();
    std::fs::write(directory.path().join("manifests.yaml"), manifests).unwrap();
    directory
}

/// A ConfigMap in the namespace `default`.
pub fn config_map(name: &str, value: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: default}}\ndata: {{key: {value}}}\n"
    )
}

/// The path of a ConfigMap in the namespace `default`.
pub fn config_map_path(name: &str) -> String {
    format!("/api/v1/namespaces/default/configmaps/{name}")
}

/// The objects with this outcome, as the report shows them.
pub fn ended(report: &Report, word: &str) -> Vec<String> {
    let objects = report
        .objects()
        .iter()
        .filter(|(_, outcome)| outcome.word() == word);
    objects.map(|(object, _)| object.to_string()).collect()
}

/// Panics with the reasons unless the pass succeeded.
pub fn expect_success(report: &Report) {
    assert!(report.is_success(), "{}", report.summary());
}

/// The definition of a cluster-scoped kind `Ball` that takes any fields.
pub const BALLS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: balls.toys.example.com}
spec:
  group: toys.example.com
  scope: Cluster
  names: {kind: Ball, plural: balls, singular: ball, listKind: BallList}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";
