//! Who passes at the ports of an etcd that an agent keeps, and certificates that are replaced while it runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use prost::Message;
use quorate::proto::NodeCertificate;
use quorate::proto::node_certificate::State;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::site::Managers;
use crate::support::etcd::EtcdVersion;
use crate::support::wait::{SOON, eventually, same};

/// A certificate and its key, each in a file.
pub(super) type Identity<'a> = Option<(&'a Path, &'a Path)>;

fn config(ca: &Path, shown: Identity<'_>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(ca).unwrap() {
        roots.add(root.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    match shown {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_file_iter(certificate).unwrap();
            let chain = chain.map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_file(key).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    }
}

/// The certificate that the server at this port shows, once it has answered; the error says why it does not answer.
pub(super) async fn asked(port: u16, ca: &Path, shown: Identity<'_>) -> Result<Vec<u8>, String> {
    let text = |error: std::io::Error| error.to_string();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(text)?;
    let connector = TlsConnector::from(Arc::new(config(ca, shown)));
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = connector.connect(name, stream).await.map_err(text)?;
    let request = b"GET /version HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
    stream.write_all(request).await.map_err(text)?;
    let mut answer = Vec::new();
    // A server that refuses the certificate says so only now, in TLS 1.3, or closes the connection.
    let read = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    if !answer.contains(" 200 OK") {
        return Err(format!("{read:?} {answer:?}"));
    }
    let (_, tls) = stream.get_ref();
    Ok(tls.peer_certificates().unwrap()[0].to_vec())
}

#[tokio::test]
async fn members_that_stay_pass_at_the_peer_port_and_no_other_certificate_does() {
    members_that_stay_pass_alone(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn no_other_certificate_passes_at_the_peer_port_of_the_next_etcd_either() {
    members_that_stay_pass_alone(EtcdVersion::Next).await;
}

async fn members_that_stay_pass_alone(version: EtcdVersion) {
    let managers = Managers::with_tls(version, &[]).await;
    let n2 = managers.worker("n2").await;
    let n3 = managers.worker("n3").await;
    let worker = managers.worker("n4").await;
    managers.voter(&n2).await;
    managers.voter(&n3).await;
    let [member, ca] = n3.tls();
    for file in [&member, &ca] {
        let mode = fs::metadata(file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", file.display());
    }
    // What n3 keeps a copy of.
    let kept = managers.home().join("kept.pem");
    fs::copy(&member, &kept).unwrap();
    let of_n3: Identity<'_> = Some((&kept, &kept));
    for port in [n2.peer, n2.client] {
        asked(port, &ca, of_n3).await.unwrap();
        asked(port, &ca, None).await.unwrap_err();
    }
    // The certificate of a node is none of etcd's.
    let (chain, key) = (managers.home().join("node.crt"), managers.home().join("node.key"));
    fs::write(&chain, worker.chain()).unwrap();
    fs::write(&key, worker.stored()["certificate"]["key"].as_str().unwrap()).unwrap();
    for port in [n2.peer, n2.client] {
        asked(port, &ca, Some((&chain, &key))).await.unwrap_err();
    }
    // That of a client passes where clients do.
    let client = managers.etcd.tls.clone().unwrap().client;
    let of_client: Identity<'_> = Some((&client.cert, &client.key));
    asked(n2.client, &ca, of_client).await.unwrap();
    asked(n2.peer, &ca, of_client).await.unwrap_err();

    let trusted: PathBuf = n2.tls()[1].clone();
    managers.demote("n3").await;
    n3.rests().await;
    for port in [n2.peer, n2.client] {
        eventually(SOON, "the certificate is revoked", async || {
            match asked(port, &trusted, of_n3).await {
                Ok(_) => Err("it passes"),
                Err(_) => Ok(()),
            }
        })
        .await;
    }
    eventually(SOON, "the demoted one keeps no certificate", async || {
        same(member.exists(), false)
    })
    .await;
    managers.writes("without n3").await;
}

#[tokio::test]
async fn a_certificate_is_replaced_while_etcd_runs_on() {
    replaced_while_etcd_runs_on(EtcdVersion::Installed).await;
}

#[tokio::test]
async fn a_certificate_is_replaced_while_the_next_etcd_runs_on() {
    replaced_while_etcd_runs_on(EtcdVersion::Next).await;
}

async fn replaced_while_etcd_runs_on(version: EtcdVersion) {
    let managers = Managers::with_tls(version, &[]).await;
    let n2 = managers.worker("n2").await;
    managers.voter(&n2).await;
    let (pid, [member, ca]) = (n2.etcd().unwrap(), n2.tls());
    let before = asked(n2.peer, &ca, Some((&member, &member))).await.unwrap();

    let key = managers.store.keys.etcd_certificate(&managers.uid("n2").await);
    let stored = managers.read(&key).await.unwrap();
    let mut record = NodeCertificate::decode(&*stored.value).unwrap();
    record.set_state(State::Rotate);
    managers.put(&key, record.encode_to_vec()).await;
    let after = eventually(SOON, "another certificate is shown", async || {
        let shown = asked(n2.peer, &ca, Some((&member, &member))).await?;
        if shown == before {
            return Err("the same".to_owned());
        }
        Ok(shown)
    })
    .await;
    let first = CertificateDer::pem_file_iter(&member)
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(first.as_ref(), after);
    assert_eq!(n2.etcd(), Some(pid), "it was not started again");
    managers.writes("with another certificate").await;
}
