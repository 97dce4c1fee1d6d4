//! Servers that are none of the cluster: they get no secret.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::site::Site;
use crate::support::wait::{QUIET, SOON, eventually};

/// A server with this chain, which counts connections and the bytes that it gets after a handshake.
struct Impostor {
    url: String,
    connections: Arc<AtomicUsize>,
    received: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Impostor {
    async fn start(chain: Vec<CertificateDer<'static>>, key: &KeyPair) -> Self {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (connections, received) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (connected, got) = (connections.clone(), received.clone());
        #[expect(clippy::disallowed_methods, reason = "it ends with the value that holds it")]
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let mut bytes = [0; 4096];
                    let read = stream.read(&mut bytes).await.unwrap_or(0);
                    got.fetch_add(read, Ordering::SeqCst);
                }
                connected.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self {
            url,
            connections,
            received,
            serving,
        }
    }
}

/// An authority that anyone can make, with a server of this name, and both their certificates.
fn forged(name: &str) -> (Vec<CertificateDer<'static>>, KeyPair) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::default();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.subject_alt_names = vec![SanType::DnsName(name.to_owned().try_into().unwrap())];
    let key = KeyPair::generate().unwrap();
    let leaf = params.signed_by(&key, &issuer).unwrap();
    let chain = vec![leaf.der().clone(), issuer.der().clone()];
    (chain, key)
}

#[tokio::test]
async fn a_server_that_appends_the_real_authority_to_its_own_chain_gets_no_secret() {
    let site = Site::start().await;
    let token = site.token().await;
    let cluster = site.store.etcd.cluster_id().unwrap();
    let (mut chain, key) = forged(&format!("control.{cluster}.quorate"));
    let real = std::fs::read(std::path::Path::new(&site.ca).join("current/node-ca.crt")).unwrap();
    chain.push(CertificateDer::from_pem_slice(&real).unwrap());
    let impostor = Impostor::start(chain, &key).await;
    let mut agent = site.agent_at(std::slice::from_ref(&impostor.url), "n1", Some(&token), &[]);
    agent.logs("invalid peer certificate").await;
    eventually(SOON, "it tries again", async || {
        match impostor.connections.load(Ordering::SeqCst) {
            0..=2 => Err("not yet"),
            _ => Ok(()),
        }
    })
    .await;
    assert_eq!(impostor.received.load(Ordering::SeqCst), 0, "not a byte");
    assert!(agent.stored().get("uid").is_none(), "{}", agent.stored());
    agent.stop().await.unwrap();

    // With the real server beside it, the node joins there.
    let both = [impostor.url.clone(), site.servers[0].clone()];
    let mut agent = site.agent_at(&both, "n2", Some(&token), &[]);
    agent.ready().await;
    assert_eq!(impostor.received.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_node_with_its_own_certificate_is_no_server_and_neither_is_one_of_another_cluster() {
    let (site, other) = (Site::start().await, Site::start().await);
    let token = site.token().await;
    let mut node = site.agent("n1", &token);
    node.ready().await;
    let stored = node.stored();
    let text = |field: &str| stored["certificate"][field].as_str().unwrap().to_owned();
    let pem = text("chain");
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes());
    let mut chain: Vec<CertificateDer<'static>> = chain.collect::<Result<_, _>>().unwrap();
    let real = std::fs::read(std::path::Path::new(&site.ca).join("current/node-ca.crt")).unwrap();
    chain.push(CertificateDer::from_pem_slice(&real).unwrap());
    let impostor = Impostor::start(chain, &KeyPair::from_pem(&text("key")).unwrap()).await;
    let mut agent = site.agent_at(std::slice::from_ref(&impostor.url), "n2", Some(&token), &[]);
    agent.logs("invalid peer certificate").await;
    agent.stop().await.unwrap();
    assert_eq!(impostor.received.load(Ordering::SeqCst), 0);

    let mut agent = site.agent_at(&other.servers, "n3", Some(&token), &[]);
    agent.logs("invalid peer certificate").await;
    tokio::time::sleep(QUIET).await;
    let keys = other.contents().await;
    let key = other.store.keys.node(&"n3".parse().unwrap());
    assert!(keys.iter().all(|kv| *kv.key != *key), "it joined elsewhere");
}
