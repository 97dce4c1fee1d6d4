//! An etcd, a client of it, and the program on it: what the tests of every kind of object share.

use prost::Message;
use quorate::etcd::{KeyRange, KeyValue, Revision, Txn};
use quorate::proto::{Node, Publication, Volume};
use quorate::store::object::publication::{state, state_word};
use quorate::store::{Name, Store};

use super::client::commit;
use super::etcd::TestEtcd;
use super::leader::store_of;
use super::quorate::{Finished, quorate_on};
use super::wait::{SOON, eventually, same};

/// An etcd, a client of it below `/quorate`, and the program on it.
pub struct Base {
    pub etcd: TestEtcd,
    pub store: Store,
}

impl Base {
    /// On an etcd of one member.
    pub async fn start() -> Self {
        Self::on(TestEtcd::start().await).await
    }

    /// On this etcd.
    pub async fn on(etcd: TestEtcd) -> Self {
        let store = store_of(&etcd).await;
        Self { etcd, store }
    }

    /// Runs a command.
    pub async fn run(&self, args: &[&str]) -> Finished {
        self.run_with(args, "").await
    }

    /// Runs a command with this stdin.
    pub async fn run_with(&self, args: &[&str], stdin: &str) -> Finished {
        quorate_on(&self.etcd, args, stdin).await
    }

    /// Runs a command and returns what was printed. Panics where that fails.
    pub async fn done(&self, args: &[&str]) -> String {
        self.run(args).await.expect_done()
    }

    /// The same with `--wait`.
    pub async fn done_with(&self, args: &[&str]) -> String {
        self.done(&[args, &["--wait", "--timeout=60s"]].concat()).await
    }

    /// Repeats a command that only shows until its output is right, and returns that. Such a command gives a member of etcd 0.4 s to
    /// answer, which is little on a busy machine.
    pub async fn shows(&self, args: &[&str], is_right: impl Fn(&str) -> bool) -> String {
        eventually(SOON, &format!("{args:?} shows what is"), async || {
            let shown = self.done(args).await;
            if is_right(&shown) { Ok(shown) } else { Err(shown) }
        })
        .await
    }

    /// Repeats a command that runs out of time until it says `said`, and returns its output. On a busy machine its time may end before
    /// it has seen anything.
    pub async fn times_out_with(&self, args: &[&str], said: &str) -> String {
        eventually(SOON, &format!("{args:?} says {said:?}"), async || {
            let output = self.run(args).await.expect_code(2);
            if output.contains(said) {
                Ok(output)
            } else {
                Err(output)
            }
        })
        .await
    }

    /// Runs `quorate demote` with these flags until it is done: it is refused while a member has yet to answer, as on a busy machine.
    pub async fn demoted(&self, node: &str, flags: &[&str]) -> Finished {
        let args = [&["demote", node, "--yes"], flags].concat();
        eventually(SOON, &format!("{node} is demoted"), async || {
            let demoted = self.run(&args).await;
            match demoted.code {
                4 if demoted.stderr.contains("QuorumRisk") => Err(demoted.stderr),
                _ => {
                    assert_eq!(demoted.code, 0, "{demoted:?}");
                    Ok(demoted)
                }
            }
        })
        .await
    }

    /// Applies documents and returns what was printed. Panics where that fails.
    pub async fn apply(&self, documents: &str) -> String {
        let args = ["apply", "-f", "-"];
        self.run_with(&args, documents).await.expect_done()
    }

    /// Commits as an operator, a node or another program would.
    pub async fn commit(&self, txn: Txn) -> Revision {
        commit(&self.store.etcd, txn).await.unwrap().revision
    }

    /// Writes a key as an operator, a node or another program would.
    pub async fn put(&self, key: &[u8], value: impl Into<Vec<u8>>) -> Revision {
        self.commit(Txn::new().put(key, value)).await
    }

    /// Reads a key, again where a member has just died.
    pub async fn read(&self, key: &[u8]) -> Option<KeyValue> {
        let read = eventually(SOON, "a read", async || self.store.etcd.get(key).await).await;
        read.0
    }

    /// Reads a range, again where a member has just died.
    pub async fn list(&self, range: &KeyRange) -> Vec<KeyValue> {
        let read = eventually(SOON, "a read", async || self.store.etcd.list(range).await).await;
        read.0
    }

    /// Every key with its value and revisions, to compare them.
    pub async fn contents(&self) -> Vec<KeyValue> {
        self.list(&KeyRange::prefix(*b"/quorate/")).await
    }

    /// A stored node. Panics where there is none.
    pub async fn node(&self, name: &str) -> Node {
        let stored = self.read(&self.node_key(name)).await.expect("the node exists");
        Node::decode(&*stored.value).unwrap()
    }

    /// Changes a stored node as another writer would.
    pub async fn change(&self, name: &str, change: impl FnOnce(&mut Node)) {
        let mut node = self.node(name).await;
        change(&mut node);
        self.put(&self.node_key(name), node.encode_to_vec()).await;
    }

    /// A stored volume, if there is one.
    pub async fn volume(&self, name: &str) -> Option<Volume> {
        let stored = self.read(&self.store.keys.volume(&parsed(name))).await;
        stored.map(|kv| Volume::decode(&*kv.value).unwrap())
    }

    /// A stored publication, if there is one.
    pub async fn publication(&self, volume: &str, node: &str) -> Option<Publication> {
        let key = self.store.keys.publication(&parsed(volume), &parsed(node));
        let stored = self.read(&key).await;
        stored.map(|kv| Publication::decode(&*kv.value).unwrap())
    }

    /// Waits until the publication is in this state; "" means that it is gone.
    pub async fn expect_state(&self, volume: &str, node: &str, expected: &str) {
        let what = format!("{volume} on {node} is {expected:?}");
        eventually(SOON, &what, async || {
            let publication = self.publication(volume, node).await;
            let now = publication.map_or("", |publication| state_word(state(&publication)));
            same(now, expected)
        })
        .await;
    }

    fn node_key(&self, name: &str) -> Vec<u8> {
        self.store.keys.node(&parsed(name))
    }
}

/// A name that is well-formed.
pub fn parsed(text: &str) -> Name {
    text.parse().unwrap()
}

/// The document of an object, its spec in flow style.
pub fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: quorate.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n")
}
