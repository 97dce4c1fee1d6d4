//! A cluster that serves agents, and agents of it.

use std::ffi::OsString;
use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use prost::Message;
use quorate::proto::NodeCertificate;
use quorate_dev::agent::{self, Agent};
use quorate_dev::ports;
use quorate_dev::process::Supervised;
use rcgen::{KeyPair, PublicKeyData};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::timeout;

use crate::identity::authorities;
use crate::support::base::Base;
use crate::support::clock;
use crate::support::directory::directory;
use crate::support::etcd::TestEtcd;
use crate::support::leader::store_on;
use crate::support::metrics;
use crate::support::quorate::{Launch, TestReplica, binary, etcd_flags};
use crate::support::wait::{SOON, eventually};

/// An etcd, authorities, and replicas that serve agents.
pub struct Site {
    base: Base,
    pub ca: String,
    pub replicas: Vec<TestReplica>,
    /// Where each replica serves agents.
    pub servers: Vec<String>,
    launches: Vec<Launch>,
    home: TempDir,
}

impl Deref for Site {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl Site {
    /// With one replica.
    pub async fn start() -> Self {
        Self::with(1, &[]).await
    }

    /// With so many replicas, each with these flags.
    pub async fn with(replicas: usize, flags: &[&str]) -> Self {
        let launched = |launch: Launch| flags.iter().fold(launch, |launch, flag| launch.flag(*flag));
        Self::launched(replicas, launched).await
    }

    /// With so many replicas, each launched like this.
    pub async fn launched(replicas: usize, change: impl Fn(Launch) -> Launch) -> Self {
        let home = directory();
        let ca = authorities(&home).await;
        Self::on(Base::start().await, home, ca, replicas, change).await
    }

    /// The same on this etcd, with the authorities of this directory.
    pub async fn on(
        base: Base,
        home: TempDir,
        ca: String,
        replicas: usize,
        change: impl Fn(Launch) -> Launch,
    ) -> Self {
        let mut site = Self {
            base,
            ca,
            replicas: Vec::new(),
            servers: Vec::new(),
            launches: Vec::new(),
            home,
        };
        for number in 1..=replicas {
            let address = format!("127.0.0.1:{}", ports::free_port().unwrap());
            let launch = Launch::on(&site.etcd)
                .flag(format!("--ca-dir={}", site.ca))
                .flag(format!("--control-listen={address}"));
            let launch = change(launch);
            site.replicas.push(launch.start(&format!("c{number}")));
            site.launches.push(launch);
            site.servers.push(format!("https://{address}"));
        }
        for replica in &mut site.replicas {
            replica.wait_ready().await;
        }
        site
    }

    /// Replaces the only replica by one at the same address whose wall clock is off by this much, such as `+1h`.
    pub async fn replace_off_by(&mut self, offset: &str) {
        let launch = clock::off_by(offset, self.only_launch());
        let replica = self.replaced_by(&launch).await;
        replica.wait_ready().await;
    }

    /// Replaces the only replica by one that is launched like this, and does not wait until that is ready.
    pub async fn replaced_by(&mut self, launch: &Launch) -> &mut TestReplica {
        let replica = &mut self.replicas[0];
        replica.stop().await.unwrap();
        *replica = launch.start("c1");
        replica
    }

    /// How the only replica was launched.
    pub fn only_launch(&self) -> Launch {
        let [launch] = &self.launches[..] else {
            panic!("there is one replica");
        };
        launch.clone()
    }

    /// The etcd, to stop and start its members.
    pub fn etcd_mut(&mut self) -> &mut TestEtcd {
        &mut self.base.etcd
    }

    /// A directory for files of the test.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Makes a token for workers, and returns its file.
    pub async fn token(&self) -> PathBuf {
        self.token_of(&["create", "--role=worker"]).await
    }

    /// Makes a token, and returns its file.
    pub async fn token_of(&self, args: &[&str]) -> PathBuf {
        let ca = format!("--ca-dir={}", self.ca);
        let args: Vec<&str> = ["token"]
            .iter()
            .chain(args)
            .copied()
            .chain([ca.as_str()])
            .collect();
        let token = self.run(&args).await.expect_done();
        self.keep(args[2], token)
    }

    /// Makes a token by a clock that is off by this much, such as `-1d`, and returns its file.
    pub async fn token_off_by(&self, offset: &str, args: &[&str]) -> PathBuf {
        let (ca, flags) = (format!("--ca-dir={}", self.ca), etcd_flags(&self.etcd));
        let flags = flags.iter().chain([&ca]).map(String::as_str);
        let all = ["token"].iter().chain(args).copied().chain(flags);
        let token = clock::quorate_off_by(offset, all).await.expect_done();
        self.keep(args[1], token)
    }

    fn keep(&self, holder: &str, token: String) -> PathBuf {
        let file = self
            .home()
            .join(format!("{}.token", holder.replace(['-', '='], "")));
        fs::write(&file, token).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file
    }

    /// Starts an agent that may try all servers.
    pub fn agent(&self, name: &str, token: &Path) -> TestAgent {
        self.agent_with(name, Some(token), &[])
    }

    pub fn agent_with(&self, name: &str, token: Option<&Path>, flags: &[&str]) -> TestAgent {
        self.agent_at(&self.servers, name, token, flags)
    }

    /// Starts an agent that knows these servers.
    pub fn agent_at(
        &self,
        servers: &[String],
        name: &str,
        token: Option<&Path>,
        flags: &[&str],
    ) -> TestAgent {
        self.start_agent(self.options(servers, name, token, flags))
    }

    /// Starts an agent whose wall clock is off by this much, such as `+1h`.
    pub fn agent_off_by(&self, offset: &str, name: &str, token: &Path) -> TestAgent {
        self.agent_in(clock::variables(offset), name, token, &[])
    }

    /// Starts an agent with these variables in its environment.
    pub fn agent_in<'v>(
        &self,
        variables: impl IntoIterator<Item = (&'v str, impl Into<OsString>)>,
        name: &str,
        token: &Path,
        flags: &[&str],
    ) -> TestAgent {
        let mut options = self.options(&self.servers, name, Some(token), flags);
        let variables = variables.into_iter();
        options.env = variables
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        self.start_agent(options)
    }

    /// Starts another agent for the node of a name, beside the first one, with a state directory of its own: with a copy of what the
    /// first one remembers, or with nothing.
    pub fn another_agent(&self, name: &str, token: Option<&Path>, remembered: Option<&Path>) -> TestAgent {
        let directory = self.home().join("others");
        if let Some(file) = remembered {
            let state = directory.join(name);
            fs::create_dir_all(&state).unwrap();
            fs::copy(file, state.join("agent.json")).unwrap();
        }
        Self::start_agent_in(&directory, self.options(&self.servers, name, token, &[]))
    }

    /// Starts an agent that logs all that it and its libraries can say.
    pub fn agent_that_traces(&self, name: &str, token: &Path) -> TestAgent {
        let mut options = self.options(&self.servers, name, Some(token), &[]);
        options.env = vec![("RUST_LOG".to_owned(), "trace".into())];
        self.start_agent(options)
    }

    fn start_agent(&self, options: agent::Options) -> TestAgent {
        Self::start_agent_in(&self.home().join("agents"), options)
    }

    fn start_agent_in(directory: &Path, options: agent::Options) -> TestAgent {
        TestAgent(Agent::start(directory, options).unwrap_or_else(|error| panic!("{error}")))
    }

    fn options(
        &self,
        servers: &[String],
        name: &str,
        token: Option<&Path>,
        flags: &[&str],
    ) -> agent::Options {
        agent::Options {
            binary: binary(),
            name: name.to_owned(),
            servers: servers.to_vec(),
            token_file: token.map(Path::to_owned),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            env: Vec::new(),
        }
    }

    /// Restores etcd from a snapshot while the replicas are stopped. With another token, the cluster has another id.
    pub async fn restore(&mut self, snapshot: &Path, token: Option<&str>) {
        for replica in &mut self.replicas {
            replica.stop().await.unwrap();
        }
        match token {
            None => self.base.etcd.restore(snapshot).await,
            Some(token) => self.base.etcd.restore_as(token, snapshot).await,
        }
        self.base.store = store_on(&self.base.etcd.endpoints()).await;
        for replica in &mut self.replicas {
            replica.launch().unwrap();
            replica.wait_ready().await;
        }
    }

    /// The uid of a node.
    pub async fn uid(&self, name: &str) -> String {
        self.node(name).await.metadata.unwrap().uid
    }

    /// The record of the certificate of a node.
    pub async fn record(&self, uid: &str) -> NodeCertificate {
        let stored = self.read(&self.store.keys.certificate(uid)).await;
        NodeCertificate::decode(&*stored.expect("there is a record").value).unwrap()
    }

    /// Waits until `get nodes` has this word in the row of a node.
    pub async fn shows(&self, name: &str, column: &str, word: &str) {
        let what = format!("{name} has {word:?} as {column}");
        eventually(SOON, &what, async || {
            let table = self.run(&["get", "nodes"]).await.expect_done();
            match cell(&table, name, column) {
                Some(found) if found == word => Ok(()),
                _ => Err(table),
            }
        })
        .await;
    }
}

/// A cell of a table of words.
fn cell<'t>(table: &'t str, name: &str, column: &str) -> Option<&'t str> {
    let mut lines = table.lines();
    let at = lines.next()?.split_whitespace().position(|head| head == column)?;
    let row = lines.find(|line| line.split_whitespace().next() == Some(name))?;
    row.split_whitespace().nth(at)
}

/// An agent. Dereferences to [`Agent`].
pub struct TestAgent(Agent);

impl Deref for TestAgent {
    type Target = Agent;

    fn deref(&self) -> &Agent {
        &self.0
    }
}

impl DerefMut for TestAgent {
    fn deref_mut(&mut self) -> &mut Agent {
        &mut self.0
    }
}

impl TestAgent {
    /// Waits until its node has a certificate and a session.
    pub async fn ready(&mut self) {
        self.0
            .wait_ready(SOON)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
    }

    fn running(&mut self) -> &mut Supervised {
        self.0.process().expect("the agent was started")
    }

    /// Its log since its last start.
    pub fn log(&mut self) -> String {
        self.running().output().unwrap()
    }

    /// Waits until its log contains `text`.
    pub async fn logs(&mut self, text: &str) {
        let what = format!("{} logs {text:?}", self.name);
        eventually(SOON, &what, async || {
            let log = self.log();
            if log.contains(text) { Ok(()) } else { Err(log) }
        })
        .await;
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = timeout(SOON, self.running().exited()).await;
        let log = self.log();
        ended.unwrap_or_else(|_| panic!("it runs on: {log}")).unwrap()
    }

    /// A series of its metrics ([`metrics::value`]).
    pub async fn metric(&self, series: &str) -> f64 {
        let page = self.get("/metrics").await.unwrap();
        metrics::value(&page.body, series)
    }

    /// Waits until it has opened a session more than these.
    pub async fn opens_another_session(&self, than: f64) {
        eventually(SOON, "another session", async || {
            let opened = self.metric("quorate_agent_sessions_opened_total").await;
            if opened > than { Ok(()) } else { Err(opened) }
        })
        .await;
    }

    /// What it remembers.
    pub fn stored(&self) -> Value {
        serde_json::from_slice(&fs::read(self.file()).unwrap()).unwrap()
    }

    /// The file in which it does.
    pub fn file(&self) -> PathBuf {
        self.state.join("agent.json")
    }

    /// The chain that it shows, whose key it holds.
    pub fn chain(&self) -> String {
        let stored = self.stored();
        let text = |field: &str| stored["certificate"][field].as_str().unwrap().to_owned();
        let key = KeyPair::from_pem(&text("key")).unwrap();
        let chain = text("chain");
        let (_, public) = crate::identity::site::read(&chain);
        assert_eq!(
            public,
            key.subject_public_key_info(),
            "the key is that of the certificate"
        );
        chain
    }
}
