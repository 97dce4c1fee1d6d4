//! A cluster whose first member was started by a person, and agents that keep further ones.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use quorate::etcd::MemberId;
use quorate::etcd::members::{ListedMember, MemberList};
use quorate::proto::Role;
use quorate_dev::ports;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::agent::site::{Site, TestAgent};
use crate::identity::authorities;
use crate::support::base::Base;
use crate::support::client::raft_leader;
use crate::support::clock;
use crate::support::directory::directory;
use crate::support::etcd::{EtcdVersion, TestEtcd};
use crate::support::quorate::{Finished, Launch, quorate};
use crate::support::wait::{SOON, eventually};

/// An etcd of one member with a node, `etcd-1`, and a replica that serves agents. Dereferences to [`Site`].
pub struct Managers {
    site: Site,
    version: EtcdVersion,
    has_tls: bool,
    /// The token of workers.
    pub token: PathBuf,
}

impl Deref for Managers {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl DerefMut for Managers {
    fn deref_mut(&mut self) -> &mut Site {
        &mut self.site
    }
}

impl Managers {
    /// In clear text, on the etcd that is installed.
    pub async fn start() -> Self {
        Self::start_with(&[], &[]).await
    }

    /// The same with these flags of the first etcd, and of the replica.
    pub async fn start_with(of_etcd: &[&str], of_replica: &[&str]) -> Self {
        Self::launched(of_etcd, flagged(of_replica)).await
    }

    /// The same, with the replica launched like this.
    pub async fn launched(of_etcd: &[&str], change: impl Fn(Launch) -> Launch) -> Self {
        Self::of(EtcdVersion::Installed, of_etcd, change).await
    }

    /// The same on this release of etcd.
    pub async fn of(version: EtcdVersion, of_etcd: &[&str], change: impl Fn(Launch) -> Launch) -> Self {
        let etcd = TestEtcd::of(version, 1, of_etcd).await;
        let home = directory();
        let ca = authorities(&home).await;
        let site = Site::on(Base::on(etcd).await, home, ca, 1, change).await;
        Self::on(site, version, false, async |site| site.token().await).await
    }

    /// With TLS everywhere, on this release of etcd, with further flags of the replica.
    pub async fn with_tls(version: EtcdVersion, flags: &[&str]) -> Self {
        let home = directory();
        let ca = authorities(&home).await;
        let etcd = TestEtcd::of_authority(version, &ca).await;
        let site = Site::on(Base::on(etcd).await, home, ca, 1, flagged(flags)).await;
        Self::on(site, version, true, async |site| site.token().await).await
    }

    /// With TLS everywhere by the authorities of this directory, where everything is as long ago as a clock says that is off by this
    /// much, such as `-1d`. Etcd goes by the right one.
    pub async fn off_by(
        offset: &str,
        version: EtcdVersion,
        (home, ca): (TempDir, String),
        flags: &[&str],
    ) -> Self {
        let etcd = TestEtcd::of_authority_off_by(version, &ca, offset).await;
        let off = |launch| flagged(flags)(clock::off_by(offset, launch));
        let site = Site::on(Base::on(etcd).await, home, ca, 1, off).await;
        let token = async |site: &Site| {
            let args = ["create", "--role=worker"];
            site.token_off_by(offset, &args).await
        };
        Self::on(site, version, true, token).await
    }

    async fn on(
        site: Site,
        version: EtcdVersion,
        has_tls: bool,
        token: impl AsyncFnOnce(&Site) -> PathBuf,
    ) -> Self {
        // Adoption goes by name, which a member publishes after it serves.
        eventually(SOON, "the first member is adopted", async || {
            let adopted = site.run(&["adopt", "etcd-1"]).await;
            match adopted.code {
                0 => Ok(()),
                _ => Err(format!("{adopted:?}")),
            }
        })
        .await;
        let token = token(&site).await;
        Self {
            site,
            version,
            has_tls,
            token,
        }
    }

    /// How to start further replicas, which serve agents at a port that none knows.
    pub fn launch(&self) -> Launch {
        let launch = Launch::on(&self.etcd).flag(format!("--ca-dir={}", self.ca));
        launch.flag("--control-listen=127.0.0.1:0")
    }

    /// Starts the agent of a worker, which would keep an etcd, and waits until it is ready. Its etcd ends with it.
    pub async fn worker(&self, name: &str) -> Manager {
        self.worker_with(name, &["--etcd-ends-with-agent"]).await
    }

    /// The same with these flags.
    pub async fn worker_with(&self, name: &str, flags: &[&str]) -> Manager {
        self.worker_at(&self.servers, name, flags).await
    }

    /// The same at these servers.
    pub async fn worker_at(&self, servers: &[String], name: &str, flags: &[&str]) -> Manager {
        let launch = |urls: &[String]| self.agent_of(servers, name, urls, flags);
        self.worker_launched(name, launch).await
    }

    /// The same with an agent whose clock is off by this much.
    pub async fn worker_off_by(&self, offset: &str, name: &str) -> Manager {
        let launch = |urls: &[String]| {
            let mut flags: Vec<&str> = urls.iter().map(String::as_str).collect();
            flags.push("--etcd-ends-with-agent");
            self.agent_in(clock::variables(offset), name, &self.token, &flags)
        };
        self.worker_launched(name, launch).await
    }

    async fn worker_launched(&self, name: &str, launch: impl FnOnce(&[String]) -> TestAgent) -> Manager {
        let scheme = if self.has_tls { "https" } else { "http" };
        let port = || ports::free_port().unwrap();
        let (peer, client, metrics) = (port(), port(), port());
        let urls = vec![
            format!("--peer-url={scheme}://127.0.0.1:{peer}"),
            format!("--client-url={scheme}://127.0.0.1:{client}"),
            format!("--etcd-metrics=127.0.0.1:{metrics}"),
            format!("--etcd={}", self.version.program("etcd").display()),
            "--etcd-look-ms=200".to_owned(),
        ];
        let mut manager = Manager {
            agent: launch(&urls),
            name: name.to_owned(),
            flags: urls,
            peer,
            client,
        };
        manager.agent.ready().await;
        manager
    }

    fn agent_of(&self, servers: &[String], name: &str, urls: &[String], flags: &[&str]) -> TestAgent {
        let urls = urls.iter().map(String::as_str);
        let flags: Vec<&str> = urls.chain(flags.iter().copied()).collect();
        self.agent_at(servers, name, Some(&self.token), &flags)
    }

    /// Starts another agent with the state of this one, which must have ended, and with these flags.
    pub fn relaunch(&self, manager: &mut Manager, flags: &[&str]) {
        manager.agent = self.agent_of(&self.servers, &manager.name, &manager.flags, flags);
    }

    /// Runs `quorate promote`, and waits until the node is a manager. Its member joins and votes later.
    pub async fn promote(&self, name: &str) {
        self.done(&["promote", name]).await;
        self.becomes(name, Role::Manager).await;
    }

    /// Lets the member of this name lead etcd.
    pub async fn lets_lead(&self, name: &str) {
        eventually(SOON, &format!("{name} is the raft leader"), async || {
            let leader = raft_leader(&self.store.etcd).await;
            if leader.name == name {
                return Ok(());
            }
            let list = self.members().await;
            let to = list.members.iter().find(|member| member.name == name);
            let to = to.ok_or("it is no member")?.id;
            let moved = self.store.etcd.move_leadership(&leader, to).await;
            Err(format!("it was {}: {moved:?}", leader.name))
        })
        .await;
    }

    /// Runs `quorate demote`, and waits until the node is a worker.
    pub async fn demote(&self, name: &str) {
        self.demoted(name, &["--wait", "--timeout=60s"]).await;
    }

    /// The member list.
    pub async fn members(&self) -> MemberList {
        eventually(SOON, "the member list", async || {
            self.store.etcd.list_members().await
        })
        .await
    }

    /// Waits until the member of this name votes; its id.
    pub async fn votes(&self, name: &str) -> MemberId {
        let what = format!("{name} votes");
        eventually(SOON, &what, async || {
            let list = self
                .store
                .etcd
                .list_members()
                .await
                .map_err(|error| error.to_string())?;
            let votes = |member: &&ListedMember| member.name == name && !member.learner;
            let found = list.members.iter().find(votes).map(|member| member.id);
            found.ok_or_else(|| format!("{list:?}"))
        })
        .await
    }

    /// Promotes a worker, and waits until its member votes and serves.
    pub async fn voter(&self, manager: &Manager) -> MemberId {
        self.promote(&manager.name).await;
        let id = self.votes(&manager.name).await;
        manager.serves().await;
        id
    }

    /// Waits until etcd has so many members.
    pub async fn counts(&self, members: usize) {
        let what = format!("etcd has {members} members");
        eventually(SOON, &what, async || {
            let list = self
                .store
                .etcd
                .list_members()
                .await
                .map_err(|error| error.to_string())?;
            match list.members.len() == members {
                true => Ok(()),
                false => Err(format!("{list:?}")),
            }
        })
        .await;
    }

    /// Writes a key, and reads it back: etcd has a quorum.
    pub async fn writes(&self, value: &str) {
        eventually(SOON, "a write", async || {
            self.etcd.try_etcdctl(&["put", "/written", value])
        })
        .await;
        assert_eq!(self.etcd.get("/written").as_deref(), Some(value));
    }
}

/// Launches with these flags.
fn flagged(flags: &[&str]) -> impl Fn(Launch) -> Launch {
    move |launch| {
        flags
            .iter()
            .fold(launch, |launch: Launch, flag| launch.flag(*flag))
    }
}

/// An agent that keeps an etcd. Dereferences to [`TestAgent`].
pub struct Manager {
    agent: TestAgent,
    /// The name of the node.
    pub name: String,
    /// The flags that stay the same.
    flags: Vec<String>,
    /// The port of its etcd for peers, of 127.0.0.1.
    pub peer: u16,
    /// And for clients.
    pub client: u16,
}

impl Deref for Manager {
    type Target = TestAgent;

    fn deref(&self) -> &TestAgent {
        &self.agent
    }
}

impl DerefMut for Manager {
    fn deref_mut(&mut self) -> &mut TestAgent {
        &mut self.agent
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // One that outlives its agent.
        if let Some(pid) = self.etcd().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Manager {
    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        fs::canonicalize(&self.agent.state).unwrap().join("etcd")
    }

    /// The process id of its etcd, if one runs.
    pub fn etcd(&self) -> Option<i32> {
        let mark = format!("QUORATE_ETCD_OF={}", self.data().display());
        let marked = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment
                .split(|byte| *byte == 0)
                .any(|variable| variable == mark.as_bytes())
        };
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(marked)
    }

    /// Waits until its etcd is healthy, and the agent ready.
    pub async fn serves(&self) {
        let what = format!("the etcd of {} serves", self.name);
        eventually(SOON, &what, async || {
            let page = self.agent.get("/readyz?verbose").await;
            let page = page.map_err(|error| error.to_string())?;
            let healthy = self.agent.metric("quorate_agent_etcd_healthy").await;
            match page.status == 200 && healthy > 0.0 {
                true => Ok(()),
                false => Err(page.body),
            }
        })
        .await;
    }

    /// Waits until its member is noted as one that has started: the next agent notes nothing of it by itself.
    pub async fn noted_as_started(&self) {
        let file = self.agent.state.join("etcd.json");
        let what = format!("the start of {} is noted", self.name);
        eventually(SOON, &what, async || {
            let noted = fs::read_to_string(&file).map_err(|error| error.to_string())?;
            match noted.contains(r#""stage": "started""#) {
                true => Ok(()),
                false => Err(noted),
            }
        })
        .await;
    }

    /// Waits until no etcd of it runs.
    pub async fn rests(&self) {
        let what = format!("no etcd of {} runs", self.name);
        eventually(SOON, &what, async || match self.etcd() {
            None => Ok(()),
            Some(pid) => Err(format!("process {pid}")),
        })
        .await;
    }

    /// Waits until its etcd is another process than this one, or none.
    pub async fn lost(&self, pid: i32) {
        let what = format!("process {pid} has ended");
        eventually(SOON, &what, async || match self.etcd() {
            Some(same) if same == pid => Err("it runs"),
            _ => Ok(()),
        })
        .await;
    }

    /// Waits until its etcd runs, whether there is a session or not.
    pub async fn runs(&self) {
        let what = format!("the etcd of {} runs", self.name);
        eventually(SOON, &what, async || {
            let page = self.agent.get("/metrics").await;
            let page = page.map_err(|error| error.to_string())?;
            match page.body.contains("\nquorate_agent_etcd_running 1\n") {
                true => Ok(()),
                false => Err(page.body),
            }
        })
        .await;
    }

    /// Runs a command through its etcd alone.
    pub async fn run(&self, args: &[&str]) -> Finished {
        let endpoints = format!("--etcd-endpoints=http://127.0.0.1:{}", self.client);
        quorate(args.iter().copied().chain([endpoints.as_str()])).await
    }

    /// The files by which its etcd proves itself: the certificate with the key, what it trusts.
    pub fn tls(&self) -> [PathBuf; 2] {
        ["member.pem", "ca.crt"].map(|name| self.agent.state.join("etcd-tls").join(name))
    }

    /// What was set aside of this member.
    pub fn aside(&self, member: MemberId) -> Vec<PathBuf> {
        let prefix = format!("etcd.{member}.");
        let entries = fs::read_dir(&self.agent.state).unwrap().map(Result::unwrap);
        let names = entries.filter(|entry| entry.file_name().to_str().unwrap().starts_with(&prefix));
        names.map(|entry| entry.path()).collect()
    }
}

/// Whether a directory holds the log of an etcd.
pub fn has_log(data: &Path) -> bool {
    let mut entries = fs::read_dir(data.join("member/wal"))
        .into_iter()
        .flatten()
        .flatten();
    entries.any(|entry| {
        entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "wal")
    })
}
