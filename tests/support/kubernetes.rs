//! kube-apiservers, each with its own etcd.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use quorate_dev::apiserver::{ApiServer, Options, User};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::directory::directory;
use super::etcd::{EtcdVersion, TestEtcd};
use super::wait::{SOON, eventually, same};

/// The number that run at once: each takes some 250 MB, and its start a core for seconds.
static PERMITS: Semaphore = Semaphore::const_new(2);

/// Waits for a turn to run one. A test that starts one without [`Kubernetes`] holds this meanwhile.
pub async fn turn() -> SemaphorePermit<'static> {
    // The semaphore is never closed.
    PERMITS.acquire().await.unwrap()
}

/// A kube-apiserver and its etcd, which Quorate may use as well (under a prefix of its own). Dereferences to [`ApiServer`].
///
/// Each test has its own: most objects of a bundle have no namespace, so tests with a common server would wait for each
/// other.
pub struct Kubernetes {
    server: ApiServer,
    /// The etcd that holds its objects, below `/kubernetes`.
    pub etcd: TestEtcd,
    directory: TempDir,
    _permit: SemaphorePermit<'static>,
}

impl Kubernetes {
    /// Starts one.
    pub async fn start() -> Self {
        Self::with(Vec::new(), &[]).await
    }

    /// Starts one that knows these users besides its administrator, with these further flags.
    pub async fn with(users: Vec<User>, flags: &[&str]) -> Self {
        let permit = turn().await;
        let directory = directory();
        // A kube-apiserver in a test shows no credentials.
        let etcd = TestEtcd::of(EtcdVersion::Installed, 1, &[]).await;
        let options = Options {
            etcd_endpoints: etcd.endpoints(),
            users,
            flags: flags.iter().map(ToString::to_string).collect(),
        };
        let server = ApiServer::start(directory.path(), &options)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let kubernetes = Self {
            server,
            etcd,
            directory,
            _permit: permit,
        };
        // The server creates it in the background once it is ready.
        eventually(SOON, "the namespace default exists", async || {
            let found = kubernetes.get("/api/v1/namespaces/default").await;
            same(found.is_some(), true)
        })
        .await;
        kubernetes
    }

    /// Sends the server this signal.
    pub fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(Pid::from_raw);
        kill_process(pid.expect("the API server runs"), signal).unwrap();
    }

    /// Gets an object as the administrator; none if it does not exist.
    pub async fn get(&self, path: &str) -> Option<Value> {
        let response = self.request("GET", path, None).await.unwrap();
        match response.status {
            200 => Some(serde_json::from_str(&response.body).unwrap()),
            404 => None,
            status => panic!("GET {path}: {status} {}", response.body),
        }
    }

    /// Sends a request with a JSON body as the administrator. Panics where it is refused.
    pub async fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let content_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let text = body.to_string();
        let response = self
            .request(method, path, Some((content_type, &text)))
            .await
            .unwrap();
        assert!(
            (200..300).contains(&response.status),
            "{method} {path}: {} {}",
            response.status,
            response.body
        );
        serde_json::from_str(&response.body).unwrap()
    }

    /// A kubeconfig with a fresh token of a ServiceAccount, which must exist.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> PathBuf {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let answer = self.send("POST", &path, &request).await;
        let token = answer["status"]["token"].as_str().unwrap();
        self.write_kubeconfig(name, token).unwrap()
    }

    /// Its directory, for further files of a test.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }
}

impl Deref for Kubernetes {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.server
    }
}

impl DerefMut for Kubernetes {
    fn deref_mut(&mut self) -> &mut ApiServer {
        &mut self.server
    }
}
