//! An etcd cluster of one or more members.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use serde::{Deserialize, Serialize};

use super::pki::CertificateFiles;
use super::process::{Program, Supervised, find_on_path};
use super::restartable::Restartable;
use super::{Error, http, ports, record};
use crate::metrics;

/// How long a cluster may take to elect its leader and serve. About a second on an idle machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long a member may take to stop. It hands its leadership over first, if it can.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// How often a new cluster is tried on other ports when somebody took one of them.
const PORT_ATTEMPTS: usize = 5;

/// The [`Record`], in the directory of the cluster.
const RECORD: &str = "cluster.json";

/// What etcd of every release says at last when it finds that it is in the member list no more.
const REMOVED: &str = "data-dir used by this member must be removed";

/// What the cluster should be like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of members.
    pub members: usize,
    /// Serve clients over TLS; none: plain HTTP.
    pub tls: Option<Tls>,
    /// Further flags of every member.
    pub flags: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            members: 1,
            tls: None,
            flags: Vec::new(),
        }
    }
}

/// TLS towards clients. The members reach each other in the clear: they share a machine.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The authority that signs clients' certificates.
    pub ca: PathBuf,
    /// The servers' certificate.
    pub server: CertificateFiles,
    /// Whether clients must show a certificate.
    pub client_certificates: bool,
}

/// What a later start on the same directory needs: members keep their peer addresses for good.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    /// Keeps members of different clusters apart, should one get a port that was another's.
    token: String,
    members: Vec<Ports>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ports {
    client: u16,
    peer: u16,
    /// Plain HTTP, for `/health` and `/metrics`, whatever clients must use.
    metrics: u16,
    /// It was removed from the cluster: its data is of no further use.
    #[serde(default)]
    left: bool,
}

/// A running cluster. Dropping it kills its members; [`stop`](Self::stop) is the orderly way.
#[derive(Debug)]
pub struct Etcd {
    /// The members, in the order of their names.
    pub members: Vec<Member>,
    directory: PathBuf,
    program: PathBuf,
    options: Options,
}

impl Etcd {
    /// Starts a cluster with its data in `directory`, or goes on with the one that is there, on the same ports.
    /// Returns once every member serves linearizable reads.
    pub async fn start(directory: &Path, options: &Options) -> Result<Self, Error> {
        let program = find_on_path("etcd").ok_or(Error::NotInstalled {
            program: "etcd",
            hint: "install the Debian package etcd-server, or put an etcd of version 3.4 or newer on $PATH",
        })?;
        fs::create_dir_all(directory).map_err(Error::write(directory))?;
        let file = directory.join(RECORD);
        if let Some(record) = record::read::<Record>(&file)? {
            if record.members.len() != options.members {
                return Err(Error::OtherSize {
                    path: directory.to_owned(),
                    found: record.members.len(),
                    wanted: options.members,
                });
            }
            let mut cluster = Self::start_members(directory, &program, &record, options).await?;
            // One that left while nobody looked ends again.
            cluster.take_departed()?;
            return Ok(cluster);
        }
        let mut attempt = 1;
        loop {
            let record = new_record(options.members)?;
            match Self::start_members(directory, &program, &record, options).await {
                Ok(cluster) => {
                    record::write(&file, &record)?;
                    return Ok(cluster);
                }
                Err(error) if error.is_address_in_use() && attempt < PORT_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
            for index in 0..options.members {
                let data = data_directory(directory, index);
                if data.exists() {
                    fs::remove_dir_all(&data).map_err(Error::write(&data))?;
                }
            }
        }
    }

    async fn start_members(
        directory: &Path,
        program: &Path,
        record: &Record,
        options: &Options,
    ) -> Result<Self, Error> {
        let mut members = Vec::with_capacity(record.members.len());
        let here = record.members.iter().enumerate().filter(|(_, ports)| !ports.left);
        for (index, _) in here {
            let mut member = Member::describe(directory, program, record, index, options);
            member.launch()?;
            members.push(member);
        }
        try_join_all(members.iter_mut().map(Member::wait_healthy_or_gone)).await?;
        Ok(Self {
            members,
            directory: directory.to_owned(),
            program: program.to_owned(),
            options: options.clone(),
        })
    }

    /// Takes the members out whose processes ended because they were removed from the cluster; their names. The next
    /// start on the same directory leaves them out, too.
    pub fn take_departed(&mut self) -> Result<Vec<String>, Error> {
        let mut gone = Vec::new();
        self.members.retain_mut(|member| {
            let departed = member.has_left();
            if departed {
                gone.push(member.name.clone());
            }
            !departed
        });
        let file = self.directory.join(RECORD);
        if !gone.is_empty()
            && let Some(mut record) = record::read::<Record>(&file)?
        {
            for (index, ports) in record.members.iter_mut().enumerate() {
                ports.left |= gone.contains(&member_name(index));
            }
            record::write(&file, &record)?;
        }
        Ok(gone)
    }

    /// One more member, with ports of its own, that does not run: see [`Member::join`]. A later start on the same
    /// directory does not know it.
    pub fn add(&mut self) -> Result<&mut Member, Error> {
        let Self {
            directory,
            program,
            options,
            members,
        } = self;
        let taken = |index: &usize| members.iter().any(|member| member.name == member_name(*index));
        let index = (0..).find(|index| !taken(index)).unwrap_or(members.len());
        let member = Member::with_ports(directory, program, index, new_ports()?, [], options);
        members.push(member);
        let last = members.len() - 1;
        Ok(&mut members[last])
    }

    /// Client URLs of all members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members
            .iter()
            .map(|member| member.client_url.clone())
            .collect()
    }

    /// The processes of the members that were started.
    pub fn processes(&mut self) -> impl Iterator<Item = &mut Supervised> {
        self.members.iter_mut().filter_map(|member| member.process())
    }

    /// Stops all members at the same time; those that do not obey are killed.
    pub async fn stop(&mut self) -> Result<(), Error> {
        for stopped in join_all(self.members.iter_mut().map(|member| member.stop())).await {
            stopped?;
        }
        Ok(())
    }
}

/// One member of the cluster, running or not. Everything of [`Restartable`] can be done to it.
#[derive(Debug)]
pub struct Member {
    /// `etcd-1`, …
    pub name: String,
    /// Where clients reach it.
    pub client_url: String,
    /// Where its peers reach it.
    pub peer_url: String,
    metrics_port: u16,
    process: Restartable,
    data: PathBuf,
}

impl Member {
    fn describe(directory: &Path, program: &Path, record: &Record, index: usize, options: &Options) -> Self {
        let initial_cluster: Vec<String> = record
            .members
            .iter()
            .enumerate()
            .map(|(index, ports)| format!("{}={}", member_name(index), peer_url(*ports)))
            .collect();
        let initial = [
            format!("--initial-cluster={}", initial_cluster.join(",")),
            format!("--initial-cluster-token={}", record.token),
        ];
        Self::with_ports(directory, program, index, record.members[index], initial, options)
    }

    fn with_ports(
        directory: &Path,
        program: &Path,
        index: usize,
        ports: Ports,
        initial: impl IntoIterator<Item = String>,
        options: &Options,
    ) -> Self {
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let name = member_name(index);
        let client_url = format!("{scheme}://127.0.0.1:{}", ports.client);
        let mut args = vec![
            format!("--name={name}"),
            format!("--data-dir={}", data_directory(directory, index).display()),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls={}", peer_url(ports)),
            format!("--initial-advertise-peer-urls={}", peer_url(ports)),
            format!("--listen-metrics-urls=http://127.0.0.1:{}", ports.metrics),
            // The default of 3.4 is another, older logger.
            "--logger=zap".to_owned(),
            "--log-outputs=stderr".to_owned(),
        ];
        if let Some(tls) = &options.tls {
            args.push(format!("--cert-file={}", tls.server.cert.display()));
            args.push(format!("--key-file={}", tls.server.key.display()));
            args.push(format!("--trusted-ca-file={}", tls.ca.display()));
            args.push(format!("--client-cert-auth={}", tls.client_certificates));
        }
        args.extend(initial);
        args.extend(options.flags.iter().cloned());
        let program = Program {
            name: name.clone(),
            path: program.to_owned(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            hidden_env: "ETCD_",
            log: directory.join(format!("{name}.log")),
        };
        Self {
            name,
            client_url,
            peer_url: peer_url(ports),
            metrics_port: ports.metrics,
            data: data_directory(directory, index),
            process: Restartable::new(program, STOP_LIMIT),
        }
    }

    /// Starts it as a member that a running cluster has listed already, on an empty data directory. `initial_cluster` names
    /// all members, this one too: `etcd-1=http://…,etcd-2=http://…`.
    pub fn join(&mut self, initial_cluster: &str) -> Result<(), Error> {
        if self.data.exists() {
            fs::remove_dir_all(&self.data).map_err(Error::write(&self.data))?;
        }
        // The last of several flags of one name holds.
        self.process
            .add_flag(format!("--initial-cluster={initial_cluster}"));
        self.process
            .add_flag("--initial-cluster-state=existing".to_owned());
        self.launch()
    }

    /// From its next start on, clients are told to reach it here, where a proxy may be.
    pub fn advertise(&mut self, client_url: &str) {
        self.process
            .add_flag(format!("--advertise-client-urls={client_url}"));
    }

    /// Starts it and waits until it serves linearizable reads.
    pub async fn start(&mut self) -> Result<(), Error> {
        self.launch()?;
        self.wait_healthy().await
    }

    /// Waits until it serves linearizable reads. It must have been started.
    pub async fn wait_healthy(&mut self) -> Result<(), Error> {
        let port = self.metrics_port;
        self.process.wait_until(START_LIMIT, || healthy(port)).await
    }

    /// Waits until it serves linearizable reads, or has ended because it was removed from the cluster.
    async fn wait_healthy_or_gone(&mut self) -> Result<(), Error> {
        match self.wait_healthy().await {
            Err(_) if self.has_left() => Ok(()),
            waited => waited,
        }
    }

    /// Whether its process has ended because it was removed from the cluster.
    pub fn has_left(&mut self) -> bool {
        self.has_ended()
            && self
                .process()
                .and_then(|process| process.output().ok())
                .is_some_and(|output| output.contains(REMOVED))
    }

    /// Whether it serves linearizable reads now.
    pub async fn is_healthy(&self) -> bool {
        self.pid().is_some() && healthy(self.metrics_port).await.is_ok()
    }

    /// A sample of its `/metrics`, by its full name with labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let response = http::get(self.metrics_port, "/metrics").await.ok()?;
        metrics::sample(&response.body, name)
    }
}

impl Deref for Member {
    type Target = Restartable;

    fn deref(&self) -> &Restartable {
        &self.process
    }
}

impl DerefMut for Member {
    fn deref_mut(&mut self) -> &mut Restartable {
        &mut self.process
    }
}

/// etcd answers `/health` after a read that went through raft.
async fn healthy(metrics_port: u16) -> Result<(), String> {
    http::is_ok("/health", http::get(metrics_port, "/health").await)
}

fn new_record(members: usize) -> Result<Record, Error> {
    Ok(Record {
        token: uuid::Uuid::new_v4().to_string(),
        members: (0..members).map(|_| new_ports()).collect::<Result<_, _>>()?,
    })
}

fn new_ports() -> Result<Ports, Error> {
    Ok(Ports {
        client: ports::free_port()?,
        peer: ports::free_port()?,
        metrics: ports::free_port()?,
        left: false,
    })
}

fn member_name(index: usize) -> String {
    format!("etcd-{}", index + 1)
}

fn data_directory(directory: &Path, index: usize) -> PathBuf {
    directory.join(format!("{}.data", member_name(index)))
}

fn peer_url(ports: Ports) -> String {
    format!("http://127.0.0.1:{}", ports.peer)
}
