//! An etcd cluster of one or more members.

use std::fs;
use std::path::{Path, PathBuf};

use futures::future::{join_all, try_join_all};
use serde::{Deserialize, Serialize};

use super::pki::CertificateFiles;
use super::process::Supervised;
use super::proxy::Proxy;
use super::{Error, cache, ports, record};
use quorate::cli::companion::{find_on_path, is_executable};

mod member;
mod snapshot;

pub use member::Member;

/// Attempts to start a new cluster, each on other ports, where another process takes one of them.
const PORT_ATTEMPTS: usize = 5;

/// The file of the [`Record`], in the cluster's directory.
const RECORD: &str = "cluster.json";

/// The configuration of a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of members.
    pub members: usize,
    /// TLS towards clients; none: plain HTTP.
    pub tls: Option<Tls>,
    /// TLS between the members; none: plain HTTP.
    pub peer_tls: Option<PeerTls>,
    /// Flags added to every member's default ones.
    pub flags: Vec<String>,
    /// The etcd to run; none: the one on `$PATH`.
    pub program: Option<PathBuf>,
    /// Puts a proxy in front of each member, through which the others reach it. They are others at each start, so that a cluster with
    /// them is not started again on its directory.
    pub peer_proxies: bool,
    /// The client URLs that the members advertise, in their order, such as those of proxies. A member beyond them advertises where it
    /// listens.
    pub advertised: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            members: 1,
            tls: None,
            peer_tls: None,
            flags: Vec::new(),
            program: None,
            peer_proxies: false,
            advertised: Vec::new(),
        }
    }
}

/// The etcd on `$PATH`.
pub fn find() -> Result<PathBuf, Error> {
    find_on_path("etcd").ok_or(Error::NotInstalled {
        program: "etcd",
        hint: "install the Debian package etcd-server, or put an etcd of version 3.4 or newer on $PATH",
    })
}

/// The folder with the etcd, etcdctl and etcdutl of Debian's next release, if `.ci/etcd next` has left it in the user's cache.
pub fn next_release() -> Option<PathBuf> {
    let folder = cache::folder()?.join("etcd-next");
    let all = ["etcd", "etcdctl", "etcdutl"].map(|name| is_executable(&folder.join(name)));
    (all == [true; 3]).then_some(folder)
}

/// TLS towards clients.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The authority that signs clients' certificates.
    pub ca: PathBuf,
    /// The servers' certificate.
    pub server: CertificateFiles,
    /// Whether clients must show a certificate.
    pub client_certificates: bool,
}

/// TLS between the members, as Quorate issues their certificates.
#[derive(Clone, Debug)]
pub struct PeerTls {
    /// The authority that signs members' certificates.
    pub ca: PathBuf,
    /// The members' certificate.
    pub member: CertificateFiles,
}

/// State that a later start on the same directory needs: members keep their peer addresses.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    /// The cluster token. It keeps clusters apart when one gets a port that another had.
    token: String,
    members: Vec<Ports>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ports {
    client: u16,
    peer: u16,
    /// The port of `/health` and `/metrics`: plain HTTP, also where clients use TLS.
    metrics: u16,
    /// The member was removed from the cluster and is not started again.
    #[serde(default)]
    left: bool,
}

/// A running cluster. Dropping it kills its members; [`stop`](Self::stop) stops them in order.
#[derive(Debug)]
pub struct Etcd {
    /// The members, sorted by name.
    pub members: Vec<Member>,
    directory: PathBuf,
    program: PathBuf,
    options: Options,
}

impl Etcd {
    /// Starts a cluster with its data in `directory`, or restarts the one of an earlier run on the same ports. Waits until
    /// every member serves linearizable reads.
    pub async fn start(directory: &Path, options: &Options) -> Result<Self, Error> {
        let given = options.program.clone();
        let program = given.map_or_else(find, Ok)?;
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
            // A member that was removed unnoticed has ended again.
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
        let reached = record.members.iter().map(|ports| Reached::of(*ports, options));
        let reached: Vec<Reached> = reached.collect();
        let urls: Vec<String> = reached.iter().map(|reached| reached.url.clone()).collect();
        for (index, reached) in reached.into_iter().enumerate() {
            if record.members[index].left {
                continue;
            }
            let mut member = Member::describe(directory, program, record, index, (reached, &urls), options);
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

    /// Drops the members whose processes ended because they were removed from the cluster, also for later starts on the
    /// same directory. Returns their names.
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

    /// A further member, with ports of its own, that does not run yet: see [`Member::join`]. Later starts on the same
    /// directory do not include it.
    pub fn add(&mut self) -> Result<&mut Member, Error> {
        let Self {
            directory,
            program,
            options,
            members,
        } = self;
        let taken = |index: &usize| members.iter().any(|member| member.name == member_name(*index));
        let index = (0..).find(|index| !taken(index)).unwrap_or(members.len());
        let ports = new_ports()?;
        let reached = Reached::of(ports, options);
        let member = Member::with_ports(directory, program, index, (ports, reached), [], options);
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

    /// The processes of the members that run.
    pub fn processes(&mut self) -> impl Iterator<Item = &mut Supervised> {
        self.members.iter_mut().filter_map(|member| member.process())
    }

    /// Stops all members at the same time, and kills those that exceed their limit.
    pub async fn stop(&mut self) -> Result<(), Error> {
        for stopped in join_all(self.members.iter_mut().map(|member| member.stop())).await {
            stopped?;
        }
        Ok(())
    }
}

/// How the other members reach one.
struct Reached {
    url: String,
    proxy: Option<Proxy>,
}

impl Reached {
    fn of(ports: Ports, options: &Options) -> Self {
        let proxy = options.peer_proxies.then(|| Proxy::between_members(ports.peer));
        Self {
            url: proxy
                .as_ref()
                .map_or_else(|| peer_url(ports, options), Proxy::url),
            proxy,
        }
    }
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

fn peer_url(ports: Ports, options: &Options) -> String {
    let scheme = if options.peer_tls.is_some() {
        "https"
    } else {
        "http"
    };
    format!("{scheme}://127.0.0.1:{}", ports.peer)
}
