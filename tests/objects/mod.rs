//! `get`, `describe`, `apply` and `delete` with the real program on a real etcd.

mod apply;
mod commit;
mod conflicts;
mod delete;
mod get;
mod watch;

use quorate::etcd::{Config, Etcd, Txn};
use quorate::metrics::Metrics;
use quorate::proto::Node;
use quorate::store::Keys;

use crate::support::etcd::TestEtcd;
use crate::support::quorate::{Finished, quorate_on};

/// An empty etcd, and the program on it.
struct Cluster {
    etcd: TestEtcd,
}

impl Cluster {
    async fn start() -> Self {
        Self {
            etcd: TestEtcd::start().await,
        }
    }

    async fn run(&self, args: &[&str]) -> Finished {
        self.run_with(args, "").await
    }

    async fn run_with(&self, args: &[&str], stdin: &str) -> Finished {
        quorate_on(&self.etcd, args, stdin).await
    }

    /// Applies a text and returns the output. Panics if that fails.
    async fn apply(&self, text: &str) -> String {
        self.run_with(&["apply", "-f", "-"], text).await.expect_done()
    }

    /// All keys and values, to see that nothing was written.
    fn contents(&self) -> String {
        self.etcd.etcdctl(&["get", "--prefix", "--write-out=json", "/"])
    }

    async fn client(&self) -> Etcd {
        Etcd::connect(Config::new(self.etcd.endpoints()), Metrics::new("test"))
            .await
            .unwrap()
    }

    /// The stored node. Panics if it does not exist.
    async fn node(&self, name: &str) -> Node {
        let key = keys().node(&name.parse().unwrap());
        let (stored, _) = self.client().await.get(&key).await.unwrap();
        prost::Message::decode(&*stored.expect("the node is there").value).unwrap()
    }

    /// Changes a stored node as another writer would.
    async fn change(&self, name: &str, change: impl FnOnce(&mut Node)) {
        let mut node = self.node(name).await;
        change(&mut node);
        let value = prost::Message::encode_to_vec(&node);
        self.put(&keys().node(&name.parse().unwrap()), value).await;
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a test plays the leader and the nodes, who write these keys"
    )]
    async fn put(&self, key: &[u8], value: Vec<u8>) {
        let client = self.client().await;
        client.unfenced(Txn::new().put(key, value)).await.unwrap();
    }
}

fn keys() -> Keys {
    Keys::new("/quorate".parse().unwrap())
}

/// The document of a node, `spec` in flow style.
fn node(name: &str, spec: &str) -> String {
    document("Node", name, spec)
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: quorate.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n")
}
