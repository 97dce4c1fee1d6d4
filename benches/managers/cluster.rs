//! One etcd with TLS that a person has started, a machine for another one that is started by hand, and a replica with agents that keep
//! further ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, ensure};
use etcd_client::{Certificate, Client, ConnectOptions, Identity, MemberAddOptions, TlsOptions};
use jiff::Timestamp;
use prost::Message;
use quorate::identity::etcd::{Host, LIFE, client, member};
use quorate::identity::issue::Issued;
use quorate::identity::{AuthorityKind, directory};
use quorate::proto::join::Progress;
use quorate::proto::{Member, Metadata, Node, NodeSpec, NodeStatus, Role};
use quorate_dev::agent::{self, Agent};
use quorate_dev::etcd::{Etcd, Options, PeerTls, Tls, find};
use quorate_dev::pki::{CertificateFiles, write_private};
use quorate_dev::replica::{self, Replica};
use quorate_dev::workspace::programs;
use quorate_dev::{join, ports};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::LIMIT;
use super::seen::Seen;

/// The node of the first member.
const FIRST: &str = "etcd-1";

fn node_key(name: &str) -> String {
    format!("/quorate/nodes/{name}")
}

fn join_key(name: &str) -> String {
    format!("/quorate/joins/{name}")
}

/// How often a person's script tries to promote a learner.
const TRY_EVERY: Duration = Duration::from_millis(100);

/// How often it is looked whether etcd has ended.
const LOOK: Duration = Duration::from_millis(1);

/// The way up to a voter, and down again.
pub struct Times {
    pub up: Duration,
    pub down: Duration,
}

/// The servers. They end in this order.
pub struct Cluster {
    pub agents: Vec<Kept>,
    replica: Replica,
    server: Etcd,
    client: Client,
    pub pki: Pki,
    /// The authorities.
    pub ca: PathBuf,
    _directory: TempDir,
}

/// An agent, and where its etcd is reached.
pub struct Kept {
    agent: Agent,
    /// By its clients.
    pub endpoint: String,
    /// Where it serves its metrics.
    pub metrics: u16,
}

/// What clients and members of etcd show, as files.
pub struct Pki {
    trusted: PathBuf,
    member: CertificateFiles,
    client: CertificateFiles,
    /// The folder of what a client needs, as `quorate ca issue etcd-client` writes it.
    pub of_client: PathBuf,
}

impl Pki {
    /// The flags of `quorate` for this etcd.
    pub fn flags(&self, endpoints: &str) -> Vec<String> {
        vec![
            format!("--etcd-endpoints={endpoints}"),
            format!("--etcd-cacert={}", self.trusted.display()),
            format!("--etcd-cert={}", self.client.cert.display()),
            format!("--etcd-key={}", self.client.key.display()),
        ]
    }

    /// With the files as they are now.
    pub async fn connect(&self, endpoints: &[String]) -> Result<Client> {
        let certificate = Certificate::from_pem(fs::read(&self.trusted)?);
        let identity = Identity::from_pem(fs::read(&self.client.cert)?, fs::read(&self.client.key)?);
        let tls = TlsOptions::new().ca_certificate(certificate).identity(identity);
        let options = ConnectOptions::new().with_tls(tls);
        Ok(Client::connect(endpoints, Some(options)).await?)
    }
}

fn written(home: &Path, name: &str, issued: &Issued) -> Result<CertificateFiles> {
    let file = |ending: &str| home.join(format!("{name}.{ending}"));
    let files = CertificateFiles {
        cert: file("crt"),
        key: file("key"),
    };
    fs::write(&files.cert, &issued.chain_pem)?;
    write_private(&files.key, &issued.key_pem)?;
    Ok(files)
}

fn pki(home: &Path, ca: &Path) -> Result<Pki> {
    let now = Timestamp::now();
    let authority = directory::read(ca, AuthorityKind::Etcd, now)?;
    let host = Host::parse("127.0.0.1").map_err(Error::msg)?;
    let of_client = home.join("client");
    fs::create_dir(&of_client)?;
    let trusted = of_client.join("ca.crt");
    fs::write(&trusted, authority.certificates_pem())?;
    Ok(Pki {
        trusted,
        member: written(home, "member", &member(&authority, [host], LIFE, now)?)?,
        client: written(&of_client, "client", &client(&authority, "bench", LIFE, now)?)?,
        of_client,
    })
}

fn manager(name: &str) -> Node {
    Node {
        metadata: Some(Metadata::new(name, format!("uid-of-{name}"), Timestamp::now())),
        spec: Some(NodeSpec {
            desired_role: Role::Manager.into(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            role: Role::Manager.into(),
            ..NodeStatus::default()
        }),
    }
}

/// Records the member that stays, as `quorate adopt` does.
async fn adopt(client: &mut Client) -> Result<()> {
    let list = client.member_list().await?;
    let first = list.members().first().context("a member")?;
    let record = Member {
        node: first.name().to_owned(),
        node_uid: format!("uid-of-{}", first.name()),
        peer_urls: first.peer_urls().to_vec(),
        ..Member::default()
    };
    let key = format!("/quorate/members/{:016x}", first.id());
    client.put(key, record.encode_to_vec(), None).await?;
    let key = format!("/quorate/nodes/{}", first.name());
    client
        .put(key, manager(first.name()).encode_to_vec(), None)
        .await?;
    Ok(())
}

impl Cluster {
    /// With agents of workers of these names.
    pub async fn start(names: &[&str]) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("qbench-").tempdir()?;
        let home = directory.path();
        let binary = programs()?.quorate;
        let ca = join::authorities(&binary, home).await?;
        let pki = pki(home, &ca)?;
        let options = Options {
            tls: Some(Tls {
                ca: pki.trusted.clone(),
                server: pki.member.clone(),
                client_certificates: true,
            }),
            peer_tls: Some(PeerTls {
                ca: pki.trusted.clone(),
                member: pki.member.clone(),
            }),
            flags: vec!["--strict-reconfig-check=false".to_owned()],
            ..Options::default()
        };
        let mut server = Etcd::start(&home.join("etcd"), &options).await?;
        let endpoint = server.members[0].client_url.clone();
        let mut client = pki.connect(std::slice::from_ref(&endpoint)).await?;
        adopt(&mut client).await?;
        // The machine that a person works at.
        server.add()?;

        let flags = pki.flags(&endpoint);
        let token = join::worker_token(&binary, home, &ca, &flags).await?;
        let address = format!("127.0.0.1:{}", ports::free_port()?);
        let of_replica = [
            format!("--ca-dir={}", ca.display()),
            format!("--control-listen={address}"),
        ];
        let mut replica = Replica::start(
            home,
            replica::Options {
                binary,
                node_id: "c1".to_owned(),
                etcd_endpoints: vec![endpoint],
                kubeconfig: None,
                // The endpoints have a flag of their own.
                flags: flags.into_iter().skip(1).chain(of_replica).collect(),
                env: Vec::new(),
            },
        )?;
        replica.wait_until("/leaderz", LIMIT).await?;

        let mut agents = Vec::new();
        for name in names {
            agents.push(Kept::start(home, name, &address, &token).await?);
        }
        Ok(Self {
            agents,
            replica,
            server,
            client,
            pki,
            ca,
            _directory: directory,
        })
    }

    pub async fn stop(mut self) -> Result<()> {
        for kept in &mut self.agents {
            kept.agent.stop().await?;
        }
        self.replica.stop().await?;
        Ok(self.server.stop().await?)
    }

    /// Adds the etcd of the machine, and takes it out again, as a person does with a script.
    pub async fn by_hand(&mut self) -> Result<Times> {
        let (name, peer_url) = {
            let machine = self.machine();
            (machine.name.clone(), machine.peer_url.clone())
        };
        let begun = Instant::now();
        let options = MemberAddOptions::new().with_is_learner();
        let added = self.client.member_add([peer_url.as_str()], Some(options)).await?;
        let id = added.member().context("a member")?.id();
        let entries: Vec<String> = added
            .member_list()
            .iter()
            .map(|member| {
                let name = if member.id() == id { &name } else { member.name() };
                format!("{name}={}", member.peer_urls().concat())
            })
            .collect();
        self.machine().join(&entries.join(","))?;
        while self.client.member_promote(id).await.is_err() {
            ensure!(
                begun.elapsed() < LIMIT,
                "the learner is not promoted within {LIMIT:?}"
            );
            sleep(TRY_EVERY).await;
        }
        let up = begun.elapsed();
        let begun = Instant::now();
        self.client.member_remove(id).await?;
        self.machine().stop().await?;
        let down = begun.elapsed();
        // A member's id is made of its peer URLs and the second in which it is added, and never used again.
        sleep(Duration::from_secs(1)).await;
        Ok(Times { up, down })
    }

    fn machine(&mut self) -> &mut quorate_dev::etcd::Member {
        &mut self.server.members[1]
    }

    /// The same by desired roles, with the agent of this round; and how long the demotion took to the role.
    pub async fn by_agent(&mut self, round: usize) -> Result<(Times, Duration)> {
        let kept = self.agents.get(round % self.agents.len()).context("an agent")?;
        let (name, metrics) = (kept.agent.name.clone(), kept.metrics);
        let noted = kept.agent.state.join("etcd.json");
        // That of the round before says that its member votes.
        self.client.delete(join_key(&name), None).await?;
        let begun = Instant::now();
        self.promote(&name).await?;
        let up = begun.elapsed();
        let begun = Instant::now();
        self.demote(&name).await?;
        let to_worker = begun.elapsed();
        while TcpStream::connect(("127.0.0.1", metrics)).await.is_ok() {
            ensure!(begun.elapsed() < LIMIT, "etcd runs on after {LIMIT:?}");
            sleep(LOOK).await;
        }
        let down = begun.elapsed();
        // Its data is set aside before the next round.
        while noted.exists() {
            ensure!(begun.elapsed() < LIMIT, "etcd is noted still after {LIMIT:?}");
            sleep(LOOK).await;
        }
        sleep(Duration::from_secs(1)).await;
        Ok((Times { up, down }, to_worker))
    }

    /// Has all agents keep the members, and no person: each node is promoted, then the first member leaves.
    pub async fn by_agents_alone(&mut self) -> Result<()> {
        let names: Vec<String> = self.agents.iter().map(|kept| kept.agent.name.clone()).collect();
        for name in names {
            self.promote(&name).await?;
        }
        self.client = self.pki.connect(&self.endpoints()).await?;
        self.demote(FIRST).await
    }

    /// Where the etcds of the agents are reached.
    pub fn endpoints(&self) -> Vec<String> {
        self.agents.iter().map(|kept| kept.endpoint.clone()).collect()
    }

    /// Returns once its member votes.
    async fn promote(&mut self, name: &str) -> Result<()> {
        let mut seen = Seen::watch(&self.client, "/quorate/").await?;
        self.desire(name, Role::Manager).await?;
        seen.progress(&join_key(name), Progress::Voter).await?;
        Ok(())
    }

    /// Returns once it is a worker.
    async fn demote(&mut self, name: &str) -> Result<()> {
        let mut seen = Seen::watch(&self.client, "/quorate/").await?;
        self.desire(name, Role::Worker).await?;
        seen.role(&node_key(name), Role::Worker).await
    }

    /// Writes the desired role, as `quorate promote` and `demote` do once their checks have passed.
    async fn desire(&mut self, name: &str, role: Role) -> Result<()> {
        let key = node_key(name);
        let stored = self.client.get(key.as_str(), None).await?;
        let mut node = Node::decode(stored.kvs().first().context("the node")?.value())?;
        node.spec.get_or_insert_default().set_desired_role(role);
        self.client.put(key, node.encode_to_vec(), None).await?;
        Ok(())
    }
}

impl Kept {
    async fn start(home: &Path, name: &str, server: &str, token: &Path) -> Result<Self> {
        let (peer, of_clients, metrics) = (ports::free_port()?, ports::free_port()?, ports::free_port()?);
        let endpoint = format!("https://127.0.0.1:{of_clients}");
        let mut agent = Agent::start(
            &home.join("agents"),
            agent::Options {
                binary: programs()?.quorate,
                name: name.to_owned(),
                servers: vec![format!("https://{server}")],
                token_file: Some(token.to_owned()),
                flags: vec![
                    format!("--peer-url=https://127.0.0.1:{peer}"),
                    format!("--client-url={endpoint}"),
                    format!("--etcd-metrics=127.0.0.1:{metrics}"),
                    format!("--etcd={}", find()?.display()),
                    "--etcd-ends-with-agent".to_owned(),
                ],
                env: Vec::new(),
            },
        )?;
        agent.wait_ready(LIMIT).await?;
        Ok(Self {
            agent,
            endpoint,
            metrics,
        })
    }
}
