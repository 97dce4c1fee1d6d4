//! Replicas with a control port, and nodes that call there.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use prost::Message;
use quorate::grpc_status;
use quorate::identity::control::server_name;
use quorate::proto::control_client::ControlClient;
use quorate::proto::node_certificate::State;
use quorate::proto::version::Release;
use quorate::proto::{
    CertificateStatusRequest, CertificateStatusResponse, CsiNode, NodeCertificate, NodeJoinRequest, Removed,
    RenewRequest, ReportRequest, Role,
};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

use crate::support::base::{Base, document};
use crate::support::quorate::{Launch, TestReplica, quorate};
use crate::support::wait::{SOON, eventually};

/// Our client.
pub type Client = ControlClient<Channel>;

/// An etcd, authorities and tokens.
pub struct Site {
    base: Base,
    home: TempDir,
    /// The directory of the authorities.
    pub ca: String,
}

impl Deref for Site {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl Site {
    pub async fn start() -> Self {
        let home = tempfile::Builder::new()
            .prefix("quorate-test-")
            .tempdir()
            .unwrap();
        let ca = home.path().join("ca").display().to_string();
        quorate(["ca", "init", "-o", &ca]).await.expect_done();
        let base = Base::start().await;
        Self { base, home, ca }
    }

    pub fn launch(&self) -> Launch {
        let launch = Launch::on(&self.etcd);
        launch
            .flag(format!("--ca-dir={}", self.ca))
            .flag("--control-listen=127.0.0.1:0")
    }

    /// A replica that leads and serves.
    pub async fn replica(&self) -> TestReplica {
        let replica = self.launch().start("c1");
        leads(&replica).await;
        replica
    }

    /// A file of the node authority: `node-ca.crt` or `node-ca.key`.
    pub fn authority(&self, file: &str) -> String {
        fs::read_to_string(Path::new(&self.ca).join("current").join(file)).unwrap()
    }

    /// Makes a token, as `--role ROLE` or `--node NAME` say.
    pub async fn token(&self, of: &[&str]) -> String {
        self.token_by("create", of).await
    }

    /// Runs `quorate token create …` or `quorate token rotate …`.
    pub async fn token_by(&self, command: &str, of: &[&str]) -> String {
        let args = [&["token", command], of, &["--ca-dir", &self.ca]].concat();
        self.run(&args).await.expect_done().trim().to_owned()
    }

    pub fn server_name(&self) -> String {
        server_name(self.store.etcd.cluster_id().unwrap())
    }

    /// How to reach the control port of a replica. Its certificate is verified by the node authority and its name alone.
    pub async fn endpoint(&self, replica: &mut TestReplica, identity: Option<Identity>) -> Endpoint {
        self.endpoint_at(&control_address(replica).await, identity)
    }

    /// How to reach a control port at another address, such as a proxy's.
    pub fn endpoint_at(&self, address: &str, identity: Option<Identity>) -> Endpoint {
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.authority("node-ca.crt")))
            .domain_name(self.server_name());
        if let Some(identity) = identity {
            tls = tls.identity(identity);
        }
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
        endpoint.tls_config(tls).unwrap()
    }

    /// A connection to a replica, again until the replica has its certificate.
    pub async fn channel(&self, replica: &mut TestReplica, identity: Option<Identity>) -> Channel {
        let endpoint = self.endpoint(replica, identity).await;
        let what = "a connection to the control port";
        eventually(SOON, what, async || {
            endpoint.connect().await.map_err(|error| format!("{error:?}"))
        })
        .await
    }

    /// A client without a certificate.
    pub async fn client(&self, replica: &mut TestReplica) -> Client {
        ControlClient::new(self.channel(replica, None).await)
    }

    /// A client with the certificate of a node.
    pub async fn client_of(&self, replica: &mut TestReplica, node: &Member) -> Client {
        ControlClient::new(self.channel(replica, Some(node.identity())).await)
    }

    /// Joins with a token of workers, and waits for the certificate.
    pub async fn member(&self, client: &mut Client, name: &str, token: &str) -> Member {
        let key = Key::new();
        let uid = key.join(client, name, token).await.unwrap();
        let status = status(client, &uid).await.unwrap();
        assert_eq!(status.state(), State::Issued, "{status:?}");
        Member {
            name: name.to_owned(),
            uid,
            key,
            chain: status.chain,
        }
    }

    /// The stored record of a certificate.
    pub async fn record(&self, uid: &str) -> NodeCertificate {
        let stored = self.read(&self.store.keys.certificate(uid)).await;
        NodeCertificate::decode(&*stored.expect("there is a record").value).unwrap()
    }

    /// Creates a node as an operator; its uid.
    pub async fn add_node(&self, name: &str) -> String {
        self.apply(&document("Node", name, "{desiredRole: worker}")).await;
        self.node(name).await.metadata.unwrap().uid
    }

    /// Deletes a node for good.
    pub async fn remove(&self, name: &str) {
        self.run(&["delete", "node", name, "--yes", "--force"])
            .await
            .expect_done();
    }

    /// Writes a file beside the authorities.
    pub fn path(&self, file: &str) -> String {
        self.home.path().join(file).display().to_string()
    }
}

/// Waits until a replica leads.
pub async fn leads(replica: &TestReplica) {
    eventually(SOON, "the replica leads", async || match replica.leads().await {
        true => Ok(()),
        false => Err("it does not"),
    })
    .await;
}

/// Where a replica listens for agents, from its log.
pub async fn control_address(replica: &mut TestReplica) -> String {
    const LINE: &str = "control API on https://";
    replica.wait_for_log(LINE).await;
    let log = replica.log();
    let (_, rest) = log.split_once(LINE).unwrap();
    rest.split_whitespace().next().unwrap().to_owned()
}

/// The key of a node, and a request for it.
pub struct Key {
    pub pair: KeyPair,
    pub csr: Vec<u8>,
}

impl Key {
    pub fn new() -> Self {
        let pair = KeyPair::generate().unwrap();
        let csr = CertificateParams::default().serialize_request(&pair).unwrap();
        let csr = csr.der().to_vec();
        Self { pair, csr }
    }

    /// Joins; the uid.
    pub async fn join(&self, client: &mut Client, name: &str, token: &str) -> Result<String, Status> {
        let request = NodeJoinRequest {
            token: token.to_owned(),
            name: name.to_owned(),
            csr: self.csr.clone(),
        };
        Ok(client.join(request).await?.into_inner().node_uid)
    }
}

/// A node that has joined.
pub struct Member {
    pub name: String,
    pub uid: String,
    pub key: Key,
    /// Its certificate (PEM).
    pub chain: String,
}

impl Member {
    pub fn identity(&self) -> Identity {
        Identity::from_pem(&self.chain, self.key.pair.serialize_pem())
    }
}

/// Waits for the answer to a request, for as long as tests wait.
pub async fn status(client: &mut Client, uid: &str) -> Result<CertificateStatusResponse, Status> {
    status_within(client, uid, SOON).await
}

/// The same, with this deadline.
pub async fn status_within(
    client: &mut Client,
    uid: &str,
    limit: Duration,
) -> Result<CertificateStatusResponse, Status> {
    let mut request = Request::new(CertificateStatusRequest {
        node_uid: uid.to_owned(),
    });
    request.set_timeout(limit);
    Ok(client.certificate_status(request).await?.into_inner())
}

/// Requests another certificate.
pub async fn renew(client: &mut Client, csr: &[u8]) -> Result<(), Status> {
    let request = RenewRequest {
        csr: csr.to_vec(),
        role: Role::Manager.into(),
    };
    client.renew(request).await.map(drop)
}

/// Reports a release, and node ids by plugin.
pub async fn report(client: &mut Client, major: i64, csi: &[(&str, &str)]) -> Result<(), Status> {
    let csi = csi.iter().map(|(plugin, node_id)| CsiNode {
        plugin: (*plugin).to_owned(),
        node_id: (*node_id).to_owned(),
        ..CsiNode::default()
    });
    let request = ReportRequest {
        agent_release: Some(Release {
            major,
            minor: 0,
            patch: 1,
        }),
        csi: csi.collect(),
    };
    client.report(request).await.map(drop)
}

/// The uid that a refusal says was removed.
pub fn removed_uid(refused: &Status) -> Option<String> {
    let removed: Removed = grpc_status::find("quorate.v1.Removed", refused.details())?;
    Some(removed.node_uid)
}
