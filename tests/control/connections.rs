//! Connections: TLS 1.3 alone, and none that delays another.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    ClientConfig, HandshakeKind, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
};
use tonic::Code;

use super::site::{Key, Site, control_address, leads, report};
use crate::support::etcd::TestEtcd;
use crate::support::quorate::{Launch, TestReplica, binary};
use crate::support::wait::{SOON, eventually, same};

fn config(site: &Site, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(site.authority("node-ca.crt").as_bytes()).unwrap();
    roots.add(authority).unwrap();
    let mut config = ClientConfig::builder_with_protocol_versions(versions)
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

async fn handshake(
    replica: &mut TestReplica,
    config: &Arc<ClientConfig>,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let address = control_address(replica).await;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let tcp = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::clone(config)).connect(name, tcp).await
}

#[tokio::test]
async fn the_port_speaks_tls_1_3_alone_under_one_name_and_resumes_no_connection() {
    let site = Site::start().await;
    let mut replica = site.replica().await;
    drop(site.client(&mut replica).await);
    let name = site.server_name();
    let old = config(&site, &[&TLS12]);
    let refused = handshake(&mut replica, &old, &name).await.unwrap_err();
    assert!(refused.to_string().contains("ProtocolVersion"), "{refused}");
    let both = config(&site, &[&TLS12, &TLS13]);
    for _ in 0..2 {
        let mut stream = handshake(&mut replica, &both, &name).await.unwrap();
        // Whatever the server sends after the handshake, a ticket to resume by among it, is read with its first frame.
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        stream.read_u8().await.unwrap();
        let (_, session) = stream.get_ref();
        assert_eq!(session.protocol_version(), Some(ProtocolVersion::TLSv1_3));
        assert_eq!(session.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
        let chain = session.peer_certificates().unwrap();
        let authority = CertificateDer::from_pem_slice(site.authority("node-ca.crt").as_bytes()).unwrap();
        assert_eq!(chain.last(), Some(&authority), "the whole chain is sent");
    }
    for other in ["localhost", "control.1.quorate", "n1"] {
        let refused = handshake(&mut replica, &both, other).await.unwrap_err();
        assert!(refused.to_string().contains("not valid for name"), "{refused}");
    }
}

#[tokio::test]
async fn connections_that_never_finish_their_handshake_delay_no_other_and_are_closed() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let mut replica = site.replica().await;
    drop(site.client(&mut replica).await);
    let address = control_address(&mut replica).await;
    let mut hanging = Vec::new();
    // More than are open at a time: the oldest make way.
    for _ in 0..300 {
        hanging.push(TcpStream::connect(&address).await.unwrap());
    }
    let mut client = site.client(&mut replica).await;
    Key::new().join(&mut client, "n1", &token).await.unwrap();
    let first = timeout(SOON, hanging[0].read_u8()).await.expect("it is closed");
    assert!(first.is_err());
    let last = hanging.last_mut().unwrap();
    let ended = timeout(SOON, last.read_u8()).await.expect("it is closed as well");
    assert!(ended.is_err());
    let made_way = replica
        .metric("quorate_control_handshakes_total{result=\"made_way\"}")
        .await;
    assert!(made_way >= 1.0, "{made_way}");
    eventually(SOON, "the others have timed out", async || {
        let late = replica
            .metric("quorate_control_handshakes_total{result=\"timed_out\"}")
            .await;
        if late >= 1.0 { Ok(()) } else { Err(late) }
    })
    .await;
}

#[tokio::test]
async fn what_is_no_tls_and_what_is_no_grpc_harms_no_other() {
    let site = Site::start().await;
    let mut replica = site.replica().await;
    let mut client = site.client(&mut replica).await;
    let address = control_address(&mut replica).await;
    let mut plain = TcpStream::connect(&address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    // An alert, or nothing.
    let _ = timeout(SOON, plain.read_to_end(&mut rest))
        .await
        .expect("it is closed");
    assert!(rest.len() < 100, "{rest:?}");
    let both = config(&site, &[&TLS13]);
    let mut garbage = handshake(&mut replica, &both, &site.server_name()).await.unwrap();
    garbage.write_all(&[0xff; 1000]).await.unwrap();
    let _ = timeout(SOON, garbage.read_to_end(&mut rest))
        .await
        .expect("it is closed");
    let refused = report(&mut client, 1, &[]).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_replica_that_stops_ends_its_calls_and_exits_in_time() {
    let site = Site::start().await;
    let token = site.token(&["--role", "worker"]).await;
    let launch = site.launch().flag("--approve-joins");
    let mut replica = launch.variable("RUST_LOG", "info,quorate=debug").start("c1");
    let mut client = site.client(&mut replica).await;
    let uid = Key::new().join(&mut client, "n1", &token).await.unwrap();
    let mut waiting = client.clone();
    let waits = format!("a call waits for the certificate of {uid}");
    let calling = async move { super::site::status(&mut waiting, &uid).await };
    let stopping = async {
        // Otherwise it is answered only at its deadline.
        replica.wait_for_log(&waits).await;
        replica.terminate();
        replica.ended().await
    };
    let (ended, exit) = tokio::join!(calling, stopping);
    // By the replica, or by the end of the connection.
    ended.unwrap_err();
    assert!(exit.success(), "{exit}");
}

#[tokio::test]
async fn without_authorities_there_is_no_control_port_and_an_address_in_use_is_named() {
    let site = Site::start().await;
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let launch = || Launch::on(&site.etcd).flag(format!("--control-listen={address}"));
    let mut refused = launch().flag(format!("--ca-dir={}", site.ca)).start("c1");
    assert_eq!(refused.ended().await.code(), Some(1));
    let log = refused.log();
    assert!(
        log.contains(&format!("cannot listen on {address} for the control API")),
        "{log}"
    );
    assert!(log.contains("--control-listen"), "{log}");
    let mut without = launch().start("c2");
    eventually(SOON, "it leads", async || same(without.leads().await, true)).await;
    assert!(!without.log().contains("control API on"), "{}", without.log());
}

/// Its part in the election does not depend on agents.
#[tokio::test]
async fn a_replica_is_ready_once_its_control_port_has_a_certificate_and_says_what_hinders_another_one() {
    let site = Site::start().await;
    let (file, away) = (
        format!("{}/current/node-ca.key", site.ca),
        site.path("node-ca.key"),
    );
    std::fs::rename(&file, &away).unwrap();
    let mut replica = site.launch().start("c1");
    leads(&replica).await;
    let page = async |wanted: u16, line: &str| {
        let what = format!("/readyz answers {wanted} with {line:?}");
        eventually(SOON, &what, async || {
            let page = replica.get("/readyz?verbose").await;
            match page.map_err(|error| error.to_string())? {
                page if page.status == wanted && page.body.contains(line) => Ok(()),
                page => Err(format!("{} {}", page.status, page.body)),
            }
        })
        .await;
    };
    page(
        503,
        "[-]control failed: the control port has no certificate, so that no agent can call: cannot read",
    )
    .await;
    page(503, "[+]gate ok").await;
    assert!(replica.leads().await);
    std::fs::rename(&away, &file).unwrap();
    page(200, "[+]control ok\n").await;
    // Agents are served on, so that this replica stays ready.
    std::fs::rename(&file, &away).unwrap();
    page(200, "and cannot be replaced: cannot read").await;
    drop(site.client(&mut replica).await);
}

/// Each agent is a connection, and in many containers a process begins with 1,024 files.
#[tokio::test]
async fn a_replica_may_have_as_many_files_open_as_the_system_allows() {
    let etcd = TestEtcd::start().await;
    let endpoints = format!("--etcd-endpoints={}", etcd.endpoints_flag());
    let replica = Command::new("/bin/sh")
        .args(["-c", "ulimit -S -n 128; exec \"$0\" \"$@\""])
        .arg(binary())
        .args(["run", "--no-kubernetes", "--node-id=c1", "--listen=127.0.0.1:0"])
        .arg(endpoints)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let process = Path::new("/proc").join(replica.id().unwrap().to_string());
    let own = binary().canonicalize().unwrap();
    eventually(SOON, "the replica has replaced the shell", async || {
        same(process.join("exe").read_link().unwrap(), own.clone())
    })
    .await;
    eventually(SOON, "the limit is raised", async || {
        let limits = std::fs::read_to_string(process.join("limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files"));
        let mut words = line.unwrap().split_whitespace().skip(3);
        let (soft, hard) = (words.next().unwrap(), words.next().unwrap());
        assert_ne!(hard, "128");
        same(soft.to_owned(), hard.to_owned())
    })
    .await;
}
