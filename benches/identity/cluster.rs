//! An etcd with authorities and a token, replicas that serve agents, and connections to them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use etcd_client::Client as EtcdClient;
use quorate::etcd::ClusterId;
use quorate::identity::Authority;
use quorate::identity::control::server_name;
use quorate::proto::control_client::ControlClient;
use quorate_dev::observe::sample;
use quorate_dev::replica::{Options, Replica};
use quorate_dev::workspace::programs;
use quorate_dev::{join, ports};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use super::crowd::{self, Member};
use super::leader::store;
use super::servers::{EtcdServer, LIMIT, directory, wait_for};

/// A client of the control API.
pub type Client = ControlClient<Channel>;

/// The servers. They end in this order.
pub struct Cluster {
    pub replicas: Vec<Replica>,
    /// Where each of them serves agents (`https://HOST:PORT`).
    pub servers: Vec<String>,
    pub etcd: EtcdServer,
    pub authority: Authority,
    pub id: ClusterId,
    /// The file with the token of workers.
    pub token_file: PathBuf,
    pub directory: TempDir,
}

impl Cluster {
    /// With so many replicas, of which the first leads.
    pub async fn start(replicas: usize) -> Result<Self> {
        let directory = directory()?;
        let etcd = EtcdServer::start().await?;
        let endpoint = etcd.endpoint();
        let binary = programs()?.quorate;
        let ca = join::authorities(&binary, directory.path()).await?;
        let flags = [format!("--etcd-endpoints={endpoint}")];
        let token_file = join::worker_token(&binary, directory.path(), &ca, &flags).await?;
        let id = store(&endpoint).await?.etcd.cluster_id();
        let mut cluster = Self {
            replicas: Vec::new(),
            servers: Vec::new(),
            etcd,
            authority: crowd::authority(&ca)?,
            id: id.context("etcd says the id of its cluster")?,
            token_file,
            directory,
        };
        for number in 1..=replicas {
            let address = format!("127.0.0.1:{}", ports::free_port()?);
            let options = Options {
                binary: binary.clone(),
                node_id: format!("c{number}"),
                etcd_endpoints: vec![endpoint.clone()],
                kubeconfig: None,
                flags: vec![
                    format!("--ca-dir={}", ca.display()),
                    format!("--control-listen={address}"),
                ],
                env: Vec::new(),
            };
            let mut replica = Replica::start(cluster.directory.path(), options)?;
            let page = if number == 1 { "/leaderz" } else { "/readyz" };
            replica.wait_until(page, LIMIT).await?;
            cluster.replicas.push(replica);
            cluster.servers.push(format!("https://{address}"));
        }
        cluster.serves(0).await?;
        Ok(cluster)
    }

    /// Waits until a replica has its certificate for the control port.
    pub async fn serves(&self, replica: usize) -> Result<()> {
        let target = self.target(replica, None)?;
        let what = "the control port is served";
        wait_for(what, async || Ok(target.connect().await.ok())).await?;
        Ok(())
    }

    /// How to reach a replica, as this node or without a certificate.
    pub fn target(&self, replica: usize, member: Option<&Member>) -> Result<Endpoint> {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.authority.certificates_pem()))
            .domain_name(server_name(self.id));
        if let Some(member) = member {
            tls = tls.identity(Identity::from_pem(&member.chain, member.key.pem()));
        }
        let endpoint = Endpoint::from_shared(self.servers[replica].clone())?;
        Ok(endpoint.tls_config(tls)?)
    }

    /// One TLS handshake with the first replica, and nothing else; how long it takes.
    pub async fn handshake(&self) -> Result<Duration> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(
            self.authority.certificates_pem().as_bytes(),
        )?)?;
        let mut config = ClientConfig::builder_with_protocol_versions(&[&TLS13])
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(server_name(self.id))?;
        let begun = Instant::now();
        let stream = TcpStream::connect(self.servers[0].trim_start_matches("https://")).await?;
        stream.set_nodelay(true)?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        Ok(begun.elapsed())
    }

    /// Writes the records of these nodes, as if they had joined.
    pub async fn put(&self, members: &[Member]) -> Result<()> {
        let mut client = self.etcd_client().await?;
        for member in members {
            let key = format!("/quorate/nodes/{}", member.name);
            client.put(key, member.record.clone(), None).await?;
        }
        Ok(())
    }

    /// A client without Quorate's layers.
    pub async fn etcd_client(&self) -> Result<EtcdClient> {
        self.etcd.raw_client().await
    }

    /// A series of a replica's metrics, by its name with labels.
    pub async fn metric(&self, replica: usize, series: &str) -> Result<f64> {
        let page = self.replicas[replica].get("/metrics").await?;
        sample(&page.body, series).with_context(|| format!("no series {series}"))
    }
}
