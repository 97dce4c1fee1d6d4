//! Everything has expired: the certificates of nodes, of etcd and of its clients, or the authorities as well. The cluster comes back by
//! the commands of docs/recover.md, as they stand there. The test does what stands between them: it copies files to where the page
//! says, and is systemd.
//!
//! What ended was valid three days ago, by whose clock the replica and the agents have run until then. Etcd knows no clock but the right
//! one: it runs with certificates that are valid, until the files of these are replaced by such as have ended.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use prost::Message;
use quorate::identity::{AuthorityKind, directory as authorities};
use quorate::proto::rotation::Phase;
use quorate::proto::{NodeCertificate, Role, Roots, Rotation};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::task::JoinSet;

use super::site::{Manager, Managers};
use crate::support::client::follow;
use crate::support::clock::{self, quorate_off_by};
use crate::support::directory::directory;
use crate::support::etcd::EtcdVersion;
use crate::support::shell::typed_on;
use crate::support::wait::{QUIET, SOON, eventually, same};

const DOCS: &str = include_str!("../../docs/recover.md");

/// The clock of everything before the end, and that by which authorities were made that have not ended.
const BEFORE: &str = "-3d";
const MADE: &str = "-4d";

/// Ten years and a day and a half: authorities that were made then have ended since [`BEFORE`].
const MADE_TO_END: &str = "-87636h";

/// The blocks of commands of a part of the page.
fn blocks<const N: usize>(begins: &str, ends: &str) -> [String; N] {
    let (_, section) = DOCS.split_once("\n## When everything has expired\n").unwrap();
    let (_, part) = section.split_once(begins).unwrap();
    let part = part.split_once(ends).map_or(part, |(part, _)| part);
    let blocks = part.split("```").skip(1).step_by(2);
    let block = |text: &str| text.strip_prefix("sh\n").expect("a block of commands").to_owned();
    let blocks: Vec<String> = blocks.map(block).collect();
    blocks
        .try_into()
        .unwrap_or_else(|blocks| panic!("the page has other blocks: {blocks:#?}"))
}

/// A cluster of which everything has expired, and which was started again since.
struct Expired {
    // Before what holds their directories.
    nodes: [Manager; 2],
    managers: Managers,
    uids: [String; 2],
    /// The test's own client reads its files again.
    _following: JoinSet<()>,
}

impl Expired {
    /// Three voters, of which agents keep two. `rotation` is left on record.
    async fn of(version: EtcdVersion, are_authorities_over: bool, rotation: Option<Phase>) -> Self {
        let home = directory();
        let folder = |name: &str| home.path().join(name).display().to_string();
        let [ca, ended] = ["ca", "ended"].map(folder);
        for (directory, made) in [(&ca, MADE), (&ended, MADE_TO_END)] {
            let init = ["ca", "init", "-o", directory];
            quorate_off_by(made, init).await.expect_done();
        }
        let replace = |kind: AuthorityKind| {
            for file in [kind.certificate_file(), kind.key_file()] {
                let of = |directory: &str| Path::new(directory).join("current").join(file);
                fs::copy(of(&ended), of(&ca)).unwrap();
            }
        };
        if are_authorities_over {
            replace(AuthorityKind::Node);
        }
        let flags = ["--node-cert-ttl=1h"];
        let mut managers = Managers::off_by(BEFORE, version, (home, ca.clone()), &flags).await;
        let following = follow(&managers.store.etcd);
        let mut nodes = [
            managers.worker_off_by(BEFORE, "n2").await,
            managers.worker_off_by(BEFORE, "n3").await,
        ];
        for node in &nodes {
            managers.voter(node).await;
        }
        managers.writes("before").await;
        let uids = [managers.uid("n2").await, managers.uid("n3").await];
        // It runs on throughout, so that it starts while etcd answers. Agents of three days ago know no server of today.
        let launch = clock::off_by("+0m", managers.only_launch());
        managers.replaced_by(&launch).await.wait_leading().await;
        if let Some(phase) = rotation {
            let foreign = |byte: u8| Roots {
                node_sha256: vec![byte; 32],
                etcd_sha256: vec![byte; 32],
            };
            let left = Rotation {
                phase: phase.into(),
                before: Some(foreign(1)),
                after: Some(foreign(2)),
                ..Rotation::default()
            };
            let key = managers.store.keys.rotation();
            managers.put(&key, left.encode_to_vec()).await;
        }
        for node in &mut nodes {
            node.kill().await.unwrap();
            node.rests().await;
        }
        managers.etcd_mut().members[0].stop().await.unwrap();
        if are_authorities_over {
            replace(AuthorityKind::Etcd);
        }
        let mut expired = Self {
            managers,
            nodes,
            uids,
            _following: following,
        };
        expired.replace_by_ended_ones().await;
        expired.start_again().await;
        expired
    }

    fn home(&self) -> &Path {
        self.managers.home()
    }

    /// Where the first member has its files, and the replica.
    fn by_hand(&self) -> [PathBuf; 2] {
        ["member", "client"].map(|name| self.managers.etcd.directory().join(name))
    }

    /// Puts certificates in place that were valid for a day.
    async fn replace_by_ended_ones(&self) {
        let ca = format!("--ca-dir={}", self.managers.ca);
        let issue = async |holder: &[&str], folder: &Path| {
            let output = folder.display().to_string();
            let flags = [ca.as_str(), "--life=24h", "-o", &output];
            let args = [&["ca", "issue"][..], holder, &flags].concat();
            quorate_off_by(BEFORE, args).await.expect_done();
        };
        let [member, client] = self.by_hand();
        issue(&["etcd-member", "--host=127.0.0.1"], &member).await;
        issue(&["etcd-client"], &client).await;
        for node in &self.nodes {
            let folder = self.home().join(format!("ended-{}", node.name));
            let name = format!("--host={}", node.name);
            issue(&["etcd-member", "--host=127.0.0.1", &name], &folder).await;
            let [files, trusted] = node.tls();
            let [chain, key] =
                ["member.crt", "member.key"].map(|file| fs::read_to_string(folder.join(file)).unwrap());
            fs::write(files, chain + &key).unwrap();
            fs::copy(folder.join("ca.crt"), trusted).unwrap();
        }
    }

    /// Starts etcd and the agents, today, and sees that nothing works.
    async fn start_again(&mut self) {
        let Self { managers, nodes, .. } = self;
        managers.etcd_mut().members[0].launch().unwrap();
        for node in nodes.iter_mut() {
            managers.relaunch(node, &[]);
            node.runs().await;
        }
        for node in nodes.iter_mut() {
            node.logs("the certificate of the node has ended").await;
        }
        tokio::time::sleep(QUIET).await;
        assert!(!managers.etcd.members[0].is_healthy().await);
        let written = ["--command-timeout=2s", "put", "/written", "in between"];
        managers.etcd.try_etcdctl(&written).unwrap_err();
        eventually(SOON, "no replica leads", async || {
            same(managers.replicas[0].leads().await, false)
        })
        .await;
    }

    /// Does what a block of the page says, for this node or for none.
    async fn does(&mut self, block: &str, node: Option<usize>) {
        for line in block.lines().map(str::trim) {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["systemctl", verb, "quorate-agent"] => self.systemctl(verb, node.expect("a node")).await,
                _ => drop(self.typed(line, node).await),
            }
        }
    }

    async fn typed(&self, line: &str, node: Option<usize>) -> String {
        let mut line = line.replace("10.0.0.4", "127.0.0.1");
        if let Some(node) = node.map(|node| &self.nodes[node]) {
            let own = [
                ("10.0.0.5", "127.0.0.1".to_owned()),
                ("n5", node.name.clone()),
                ("/var/lib/quorate", node.state.display().to_string()),
                (
                    "/etc/quorate/join.token",
                    self.managers.token.display().to_string(),
                ),
            ];
            for (word, own) in own {
                line = line.replace(word, &own);
            }
        }
        typed_on(&self.managers.etcd, self.home(), &line).await
    }

    async fn systemctl(&mut self, verb: &str, node: usize) {
        let (stops, starts) = match verb {
            "restart" => (true, true),
            "stop" => (true, false),
            "start" => (false, true),
            verb => panic!("{verb}"),
        };
        let node = &mut self.nodes[node];
        if stops {
            node.stop().await.unwrap();
        }
        if starts {
            self.managers.relaunch(node, &[]);
        }
    }

    /// Copies what a command has issued over the former files.
    fn copied(&self, from: &str, to: &Path, files: &[&str]) {
        for file in files {
            fs::copy(self.home().join(from).join(file), to.join(file)).unwrap();
        }
    }

    /// Waits until etcd has its quorum, which no client can see whose certificate has ended.
    async fn has_quorum(&self) {
        eventually(SOON, "etcd has its quorum", async || {
            same(self.managers.etcd.members[0].is_healthy().await, true)
        })
        .await;
    }

    /// The processes that are their etcds.
    fn pids(&self) -> [i32; 2] {
        [0, 1].map(|node| self.nodes[node].etcd().expect("it runs"))
    }

    /// Agents replace what was put in place by hand, as soon as they have a session.
    async fn agents_replace(&self, by_hand: &[String; 2]) {
        for (node, by_hand) in self.nodes.iter().zip(by_hand) {
            let what = format!("{} has another certificate", node.name);
            eventually(SOON, &what, async || {
                let present = fs::read_to_string(&node.tls()[0]).unwrap();
                match present == *by_hand {
                    true => Err("it has the same"),
                    false => Ok(()),
                }
            })
            .await;
        }
    }

    /// What the etcds of the agents show.
    fn shown(&self) -> [String; 2] {
        [0, 1].map(|node| fs::read_to_string(&self.nodes[node].tls()[0]).unwrap())
    }

    /// Everything is as it was.
    async fn is_whole(&mut self) {
        let Self {
            managers,
            nodes,
            uids,
            ..
        } = self;
        for (node, uid) in nodes.iter_mut().zip(&*uids) {
            node.ready().await;
            node.serves().await;
            managers.votes(&node.name).await;
            managers.becomes(&node.name, Role::Manager).await;
            assert_eq!(managers.uid(&node.name).await, *uid);
            let left = node.metric("quorate_agent_certificate_seconds").await;
            assert!(left > 0.0, "{left}");
        }
        managers.counts(3).await;
        assert_eq!(managers.etcd.get("/written").as_deref(), Some("before"));
        managers.writes("after").await;
        // What comes next goes by itself: another member, and its certificates.
        managers.demote("n3").await;
        nodes[1].rests().await;
        managers.voter(&nodes[1]).await;
        managers.counts(3).await;
    }
}

async fn leaves_have_expired(version: EtcdVersion) {
    let [first, of_agent, of_client, token] = blocks(
        "**The authorities have not ended**",
        "**The authorities have ended too.**",
    );
    let mut expired = Expired::of(version, false, None).await;
    let [member, client] = expired.by_hand();
    let pids = expired.pids();
    expired.does(&first, None).await;
    expired.copied("etcd-4", &member, &["member.crt", "member.key", "ca.crt"]);
    for node in [0, 1] {
        expired.does(&of_agent, Some(node)).await;
    }
    let by_hand = expired.shown();
    expired.has_quorum().await;
    expired.does(&of_client, None).await;
    expired.copied("controller", &client, &["client.crt", "client.key", "ca.crt"]);
    expired.managers.replicas[0].wait_leading().await;

    let shown = expired
        .managers
        .done(&["get", "certificates", "-o", "json"])
        .await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    for uid in &expired.uids {
        let mut all = shown["items"].as_array().expect("a list").iter();
        let shown = all.find(|one| one["metadata"]["name"] == uid.as_str());
        let end = shown.expect("it is shown")["status"]["notAfter"].as_str();
        let end: Timestamp = end.expect("an end").parse().unwrap();
        assert!(end < Timestamp::now(), "{shown:?}");
    }
    for node in [0, 1] {
        expired.does(&token, Some(node)).await;
        expired.nodes[node].ready().await;
    }
    expired.agents_replace(&by_hand).await;
    assert_eq!(expired.pids(), pids, "no etcd was started again");
    expired.is_whole().await;
}

async fn authorities_have_expired(version: EtcdVersion, rotation: Option<Phase>) {
    let [init, first, of_agent, of_client, of_rotation, token] =
        blocks("**The authorities have ended too.**", "\n## ");
    let mut expired = Expired::of(version, true, rotation).await;
    let [member, client] = expired.by_hand();
    expired.managers.replicas[0].stop().await.unwrap();
    expired.does(&init, None).await;
    expired.does(&first, None).await;
    expired.copied("etcd-4", &member, &["member.crt", "member.key", "ca.crt"]);
    let of_person = &mut expired.managers.etcd_mut().members[0];
    of_person.stop().await.unwrap();
    of_person.launch().unwrap();
    for node in [0, 1] {
        expired.does(&of_agent, Some(node)).await;
        let pid = expired.nodes[node].etcd().expect("it runs");
        kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
        expired.nodes[node].lost(pid).await;
    }
    let by_hand = expired.shown();
    expired.has_quorum().await;
    expired.does(&of_client, None).await;
    expired.copied("controller", &client, &["client.crt", "client.key", "ca.crt"]);
    if rotation.is_some_and(|phase| phase != Phase::Done) {
        expired.does(&of_rotation, None).await;
    }
    let replica = &mut expired.managers.replicas[0];
    replica.launch().unwrap();
    replica.wait_leading().await;
    for node in [0, 1] {
        expired.does(&token, Some(node)).await;
        expired.nodes[node].ready().await;
    }
    expired.agents_replace(&by_hand).await;
    expired.is_whole().await;

    // By what the new authority has signed.
    let managers = &expired.managers;
    let ca = Path::new(&managers.ca);
    let made = authorities::read_certificate(ca, AuthorityKind::Etcd, Timestamp::now()).unwrap();
    for uid in &expired.uids {
        let key = managers.store.keys.etcd_certificate(uid);
        eventually(SOON, "its record is of the new authority", async || {
            let stored = managers.read(&key).await.ok_or("there is none")?;
            let record = NodeCertificate::decode(&*stored.value).unwrap();
            match made.has_signed_first_of(&record.chain) {
                true => Ok(()),
                false => Err(format!("{record:?}")),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn where_certificates_have_expired_the_cluster_is_back_by_what_the_docs_say() {
    leaves_have_expired(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn where_certificates_have_expired_the_next_release_of_etcd_is_back_by_the_same() {
    leaves_have_expired(EtcdVersion::Next).await;
}

#[tokio::test]
async fn where_the_authorities_have_expired_the_cluster_is_back_by_what_the_docs_say() {
    authorities_have_expired(EtcdVersion::Installed, Some(Phase::Reissue)).await;
}

#[tokio::test]
async fn where_the_authorities_have_expired_the_next_release_of_etcd_is_back_by_the_same() {
    authorities_have_expired(EtcdVersion::Next, Some(Phase::Done)).await;
}
