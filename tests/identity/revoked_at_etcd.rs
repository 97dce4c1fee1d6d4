//! What etcd makes of the list of revoked certificates: it reads the file again at every handshake.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use quorate::etcd::{ClusterId, Config, Etcd, TlsFiles};
use quorate::identity::etcd::{AGENT_LIFE, Host, MemberHolder, member, of_agent};
use quorate::identity::issue::Signed;
use quorate::identity::request::RequestedKey;
use quorate::identity::{Authority, AuthorityKind, NodeKey, crl};
use quorate::metrics::Metrics;
use quorate::proto::RevokedCertificate;
use quorate_dev::etcd::{Etcd as Cluster, Options, Tls};
use quorate_dev::pki::CertificateFiles;

use super::home;
use crate::support::client::{config, connect_with};
use crate::support::etcd::EtcdVersion;

fn write(path: PathBuf, content: impl AsRef<[u8]>) -> PathBuf {
    fs::write(&path, content).unwrap();
    path
}

/// The certificate of an agent's member, with its key as files.
fn certificate(authority: &Authority, folder: &Path, name: &str) -> (Signed, TlsFiles) {
    let key = NodeKey::create().unwrap();
    let requested = RequestedKey::read(&key.request().unwrap()).unwrap();
    let holder = MemberHolder {
        cluster: ClusterId(1),
        uid: name,
        hosts: &[Host::parse("127.0.0.1").unwrap()],
    };
    let signed = of_agent(authority, &requested, holder, AGENT_LIFE, Timestamp::now()).unwrap();
    let cert = write(folder.join(format!("{name}.crt")), &signed.chain_pem);
    let key = write(folder.join(format!("{name}.key")), key.pem());
    let files = TlsFiles {
        ca: Some(folder.join("ca.crt")),
        identity: Some((cert, key)),
    };
    (signed, files)
}

/// Replaces the list at once, as agents do.
fn revoke(authority: &Authority, file: &Path, revoked: &[&Signed], number: u64) {
    let revoked = revoked.iter().map(|signed| RevokedCertificate {
        serial: signed.serial.clone(),
        ..RevokedCertificate::default()
    });
    let list = crl::sign(authority, revoked.collect(), number, Timestamp::now()).unwrap();
    let new = write(file.with_extension("new"), &list.crl);
    fs::rename(new, file).unwrap();
}

fn settings(cluster: &Cluster, files: &TlsFiles) -> Config {
    let mut config = config(cluster.endpoints());
    config.tls = files.clone();
    config
}

async fn is_refused(cluster: &Cluster, files: &TlsFiles) -> bool {
    Etcd::connect(settings(cluster, files), Metrics::new("test"))
        .await
        .is_err()
}

/// INV-13: at etcd's own ports, new connections are refused by the list.
#[tokio::test]
async fn a_revoked_certificate_is_refused_from_the_next_connection_on_and_no_other_one_is() {
    for version in [EtcdVersion::Installed, EtcdVersion::Next] {
        let home = home();
        let folder = home.path();
        let (authority, _) = Authority::create(AuthorityKind::Etcd, Timestamp::now()).unwrap();
        let ca = write(folder.join("ca.crt"), authority.certificates_pem());
        let server = member(&authority, [], AGENT_LIFE, Timestamp::now()).unwrap();
        let server = CertificateFiles {
            cert: write(folder.join("server.crt"), server.chain_pem),
            key: write(folder.join("server.key"), server.key_pem),
        };
        let (stays, its_files) = certificate(&authority, folder, "stays");
        let (demoted, files) = certificate(&authority, folder, "demoted");
        let list = folder.join("crl.der");
        revoke(&authority, &list, &[], 1);
        let options = Options {
            tls: Some(Tls {
                ca,
                server,
                client_certificates: true,
            }),
            flags: vec![format!("--client-crl-file={}", list.display())],
            program: Some(version.program("etcd")),
            ..Options::default()
        };
        let cluster = Cluster::start(&folder.join("etcd"), &options).await.unwrap();
        // An empty list refuses none.
        connect_with(settings(&cluster, &files)).await;
        connect_with(settings(&cluster, &its_files)).await;
        revoke(&authority, &list, &[&demoted], 2);
        assert!(is_refused(&cluster, &files).await, "{version:?}");
        connect_with(settings(&cluster, &its_files)).await;
        revoke(&authority, &list, &[&demoted, &stays], 3);
        assert!(is_refused(&cluster, &its_files).await, "{version:?}");
        // Without the file, etcd refuses everybody: it is replaced, and never deleted.
        revoke(&authority, &list, &[], 4);
        connect_with(settings(&cluster, &files)).await;
        fs::remove_file(&list).unwrap();
        assert!(is_refused(&cluster, &files).await, "{version:?}");
    }
}
