//! Replicas with a control port, and nodes that call there.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use prost::Message;
use quorate::grpc_status;
use quorate::identity::control::server_name;
use quorate::proto::certificate_refused::Reason;
use quorate::proto::control_client::ControlClient;
use quorate::proto::node_certificate::State;
use quorate::proto::version::Release;
use quorate::proto::{
    CertificateRefused, CertificateStatusRequest, CertificateStatusResponse, ConfirmUnpublishedRequest,
    CsiNode, NodeCertificate, NodeJoinRequest, Removed, RenewRequest, ReportRequest, Role,
};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use tokio::time::sleep;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use crate::support::base::{Base, document};
use crate::support::csi::{DRIVER, TestPlugin};
use crate::support::proxy::Proxy;
use crate::support::quorate::{Launch, TestReplica, quorate};
use crate::support::wait::{QUIET, SOON, eventually};

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

    /// Joins with a token of workers, again where etcd did not answer in time, as agents do, and waits for the certificate.
    pub async fn member(&self, client: &mut Client, name: &str, token: &str) -> Member {
        let key = Key::new();
        let uid = eventually(SOON, "a node joins", async || key.join(client, name, token).await).await;
        let status = eventually(SOON, "its certificate is issued", async || {
            status(client, &uid).await
        })
        .await;
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

    /// Applies a plugin and the volume `data` of it, and waits until that is published to a node, which has reported its node id.
    pub async fn publish(&self, plugin: &TestPlugin, node: &str) {
        let endpoint = format!("{{endpoint: \"{}\"}}", plugin.endpoint());
        let mode = "{scope: singleNode, sharing: none, block: {}}";
        let volume = format!("{{driver: {{name: {DRIVER}}}, accessMode: {mode}}}");
        let both = document("Plugin", DRIVER, &endpoint) + &document("Volume", "data", &volume);
        self.apply(&both).await;
        let publish = ["publish", "data", node, "--wait", "--timeout=60s"];
        self.run(&publish).await.expect_done();
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

/// A replica that leads and serves, and a client of it.
pub struct Serving {
    pub site: Site,
    /// A token of workers.
    pub token: String,
    pub replica: TestReplica,
    /// Without a certificate.
    pub client: Client,
}

impl Serving {
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// The replica has these flags.
    pub async fn with(flags: &[&str]) -> Self {
        let site = Site::start().await;
        let launch = site.launch();
        Self::launched(site, launch, flags).await
    }

    /// The replica reaches etcd through a proxy, and leads on for a while without it.
    pub async fn behind_proxy(flags: &[&str]) -> (Self, Proxy) {
        let site = Site::start().await;
        let proxy = Proxy::in_front_of(&site.etcd.endpoints()[0]);
        let launch = site.launch().endpoints(vec![proxy.url()]);
        let launch = launch.flag("--etcd-sync-endpoints=false").flag("--lease-ttl=60s");
        (Self::launched(site, launch, flags).await, proxy)
    }

    async fn launched(site: Site, launch: Launch, flags: &[&str]) -> Self {
        let token = site.token(&["--role", "worker"]).await;
        let launch = flags.iter().fold(launch, |launch, flag| launch.flag(*flag));
        let mut replica = launch.start("c1");
        leads(&replica).await;
        let client = site.client(&mut replica).await;
        Self {
            site,
            token,
            replica,
            client,
        }
    }

    /// A worker joins; a client with its certificate.
    pub async fn worker(&mut self, name: &str) -> Client {
        let node = self.site.member(&mut self.client, name, &self.token).await;
        self.site.client_of(&mut self.replica, &node).await
    }

    /// A worker joins, and is the only one.
    pub async fn join(self, name: &str) -> Joined {
        let Self {
            site,
            token,
            mut replica,
            mut client,
        } = self;
        let node = site.member(&mut client, name, &token).await;
        let own = site.client_of(&mut replica, &node).await;
        Joined {
            site,
            replica,
            client,
            node,
            own,
        }
    }
}

/// A [`Serving`] replica, and a node that has joined there.
pub struct Joined {
    pub site: Site,
    pub replica: TestReplica,
    /// Without a certificate.
    pub client: Client,
    pub node: Member,
    /// With the certificate of the node.
    pub own: Client,
}

impl Joined {
    /// As `n1`.
    pub async fn start() -> Self {
        Serving::start().await.join("n1").await
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

/// Checks that the only leader so far leads on. One that noticed a newer candidate would yield to it at once.
pub async fn leads_on(replica: &TestReplica) {
    sleep(QUIET).await;
    assert!(replica.leads().await);
    assert_eq!(replica.metric("quorate_election_yields").await, 0.0);
    assert_eq!(replica.metric("quorate_leader_transitions_total").await, 1.0);
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
        Self::of(KeyPair::generate().unwrap())
    }

    /// The key of this pair, with a new request.
    pub fn of(pair: KeyPair) -> Self {
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

/// The answer to a call that ends before its deadline. It is made up to three times: on a busy machine an answer may be late.
pub async fn in_time<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> T {
    let mut late = Vec::new();
    while late.len() < 3 {
        match call().await {
            Ok(answer) => return answer,
            Err(error) if matches!(error.code(), Code::Cancelled | Code::DeadlineExceeded) => {
                late.push(error)
            }
            Err(refused) => panic!("{refused:?}"),
        }
    }
    panic!("each answer came after the deadline of its call: {late:?}")
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
        ..ReportRequest::default()
    };
    client.report(request).await.map(drop)
}

/// Confirms that the volume `data` is no longer used.
pub async fn confirm_unpublished(client: &mut Client, publication_uid: &str) -> Result<(), Status> {
    let request = ConfirmUnpublishedRequest {
        volume: "data".to_owned(),
        publication_uid: publication_uid.to_owned(),
    };
    client.confirm_unpublished(request).await.map(drop)
}

/// Why a refusal says that the certificate of the connection proves no node.
pub fn not_proven(refused: &Status) -> Option<Reason> {
    let why: CertificateRefused = grpc_status::find("quorate.v1.CertificateRefused", refused.details())?;
    Some(why.reason())
}

/// The uid that a refusal says was removed.
pub fn removed_uid(refused: &Status) -> Option<String> {
    let removed: Removed = grpc_status::find("quorate.v1.Removed", refused.details())?;
    Some(removed.node_uid)
}
