//! Who listens at a peer URL: asked in the protocol that members speak with each other, by a question that changes nothing.
//!
//! A member opens a stream to another by its own id, and names the id that it expects there. A member has all others as its
//! peers, but not itself. So to a stream in the name of the expected member, meant for no member at all, that member alone
//! answers that it does not know the sender; every other one answers that the stream is meant for someone else. No stream
//! is opened either way. The texts are the same from etcd 3.4 to 3.6.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::etcd::alert;
use crate::etcd::connect::Etcd;
use crate::etcd::kv::MemberId;
use crate::etcd::store_identity::ClusterId;

/// Who listens at a peer URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listener {
    /// No server: connections are refused, or reset as they are made, as by a proxy whose server does not run.
    Absent,
    /// The member that was expected.
    Expected,
    /// Another server, described in words that follow the URL.
    Another(String),
    /// A server that was not asked who it is, or could not be; why, in words.
    Unproven(String),
}

/// As much as is read of an answer: a list of members fits.
const LONGEST_ANSWER: usize = 1 << 18;

impl Etcd {
    /// Who listens at a peer URL. A server is asked only where a member is `expected`.
    ///
    /// # Errors
    /// Why the URL cannot be reached, in words: its host is unknown, or gave no answer within `limit`.
    pub async fn who_listens(
        &self,
        peer_url: &str,
        expected: Option<MemberId>,
        limit: Duration,
    ) -> Result<Listener, String> {
        let deadline = Instant::now() + limit;
        let unreachable = |why: String| format!("peer URL {peer_url} cannot be reached: {why}");
        let connected = connect(address(peer_url), deadline).await;
        let Some(tcp) = connected.map_err(|error| unreachable(in_words(&error, limit)))? else {
            return Ok(Listener::Absent);
        };
        let Some(expected) = expected else {
            return Ok(Listener::Unproven("it was not asked".to_owned()));
        };
        let Some(cluster) = self.0.store.identity().cluster() else {
            return Ok(Listener::Unproven("etcd has not named its cluster".to_owned()));
        };
        let asked = timeout_at(deadline, self.ask_listener(peer_url, tcp, expected, cluster)).await;
        let asked = asked.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        Ok(asked.unwrap_or_else(|error| {
            Listener::Unproven(format!("it does not say who it is: {}", in_words(&error, limit)))
        }))
    }

    async fn ask_listener(
        &self,
        peer_url: &str,
        tcp: TcpStream,
        expected: MemberId,
        cluster: ClusterId,
    ) -> io::Result<Listener> {
        let server = tcp.peer_addr()?;
        let request = stream_request(expected, cluster);
        let answer = self.exchange(peer_url, tcp, &request).await?;
        if let Some(other) = not_expected(&answer, cluster) {
            return Ok(other);
        }
        // A member that is new does not know the expected one either, but it does not list it. The same address of the host is
        // asked.
        let tcp = TcpStream::connect(server).await?;
        let list = self.exchange(peer_url, tcp, "GET /members HTTP/1.0\r\n").await?;
        Ok(match lists(&list, expected) {
            Some(true) => Listener::Expected,
            Some(false) => {
                Listener::Another("is the address of a member that does not know this one".to_owned())
            }
            None => Listener::Unproven("its list of members cannot be read".to_owned()),
        })
    }

    /// Sends a request of these lines, and reads the whole answer. By HTTP/1.0, so that it comes in one piece, whose end is
    /// that of the connection: by a later version, etcd cuts long answers up, and closes only seconds later.
    async fn exchange(&self, peer_url: &str, tcp: TcpStream, request: &str) -> io::Result<String> {
        let host = address(peer_url);
        let request = format!("{request}Host: {host}\r\n\r\n");
        if !peer_url.starts_with("https://") {
            return ask(tcp, &request).await;
        }
        let unusable = || io::Error::other("its TLS settings are unusable");
        let config = alert::client_config(&self.connection().credentials).ok_or_else(unusable)?;
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|_| unusable())?;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        ask(tls, &request).await
    }
}

fn in_words(error: &io::Error, limit: Duration) -> String {
    match error.kind() {
        ErrorKind::TimedOut => format!("no answer within {limit:?}"),
        _ => error.to_string(),
    }
}

fn address(url: &str) -> &str {
    let address = url.split_once("://").map_or(url, |(_, address)| address);
    address.trim_end_matches('/')
}

/// Connects to all addresses of a host at once, since some of them may lead nowhere; `None` if one refuses or resets the connection
/// and none accepts it.
async fn connect(address: &str, deadline: Instant) -> io::Result<Option<TcpStream>> {
    let timed_out = |_| io::Error::from(ErrorKind::TimedOut);
    let resolved = timeout_at(deadline, tokio::net::lookup_host(address)).await;
    let resolved: Vec<SocketAddr> = resolved.map_err(timed_out)??.collect();
    let mut attempts: FuturesUnordered<_> = resolved.into_iter().map(TcpStream::connect).collect();
    let is_refusal = |error: &io::Error| {
        matches!(
            error.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset
        )
    };
    let (mut refused, mut failed) = (false, io::Error::from(ErrorKind::NotFound));
    loop {
        match timeout_at(deadline, attempts.next()).await {
            Ok(Some(Ok(tcp))) => return Ok(Some(tcp)),
            Ok(Some(Err(error))) if is_refusal(&error) => refused = true,
            Ok(Some(Err(error))) => failed = error,
            Ok(None) | Err(_) if refused => return Ok(None),
            Ok(None) => return Err(failed),
            Err(elapsed) => return Err(timed_out(elapsed)),
        }
    }
}

/// Reads as much of the answer as its head says, since a proxy may leave the connection open.
async fn ask(mut server: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> io::Result<String> {
    server.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    while answer.len() < LONGEST_ANSWER && !is_whole(&answer) {
        match server.read_buf(&mut answer).await {
            Ok(0) => break,
            Ok(_) => {}
            // Many servers end a TLS connection without saying so.
            Err(error) if answer.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    match answer.is_empty() {
        true => Err(ErrorKind::UnexpectedEof.into()),
        false => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

/// Whether an answer that says how long it is has come as a whole.
fn is_whole(answer: &[u8]) -> bool {
    let answer = String::from_utf8_lossy(answer);
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        return false;
    };
    let length = header(head, "Content-Length").and_then(|length| length.parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}

/// A header of an answer.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (named, value) = line.split_once(':')?;
        named.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// A stream in the name of the expected member, meant for no member. The versions are those that every etcd 3 takes for
/// compatible.
fn stream_request(expected: MemberId, ClusterId(cluster): ClusterId) -> String {
    format!(
        "GET /raft/stream/message/{:x} HTTP/1.0\r\nX-Raft-To: 0\r\nX-Etcd-Cluster-ID: {cluster:x}\r\n\
         X-Server-Version: 3.4.0\r\nX-Min-Cluster-Version: 3.0.0\r\n",
        expected.0
    )
}

/// What the answer to a stream says, unless it may be that of the expected member.
fn not_expected(answer: &str, cluster: ClusterId) -> Option<Listener> {
    let another = |what: &str| Some(Listener::Another(what.to_owned()));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let answered = header(head, "X-Etcd-Cluster-ID").and_then(|id| u64::from_str_radix(id, 16).ok());
    match answered {
        None => return another("is the address of no member of etcd"),
        Some(id) if id != cluster.0 => {
            return another("is the address of a member of another etcd cluster");
        }
        Some(_) => {}
    }
    let status = head.split_ascii_whitespace().nth(1).unwrap_or_default();
    match (status, body.trim()) {
        ("404", body) if body.contains("sender not found") => None,
        ("412", body) if body.contains("to field mismatch") => {
            another("is the address of another member of etcd")
        }
        ("410", _) => another("is the address of a member that takes this one for removed"),
        (status, body) => Some(Listener::Unproven(format!("it answers {status}: {body}"))),
    }
}

/// Whether this answer to a request for the members lists the expected one; `None` if it cannot be read, as where it was
/// cut off.
fn lists(answer: &str, expected: MemberId) -> Option<bool> {
    #[derive(Deserialize)]
    struct Listed {
        id: u64,
    }
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let listed: Vec<Listed> = serde_json::from_str(body.trim()).ok()?;
    Some(listed.iter().any(|member| member.id == expected.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: ClusterId = ClusterId(0xd311);
    const EXPECTED: MemberId = MemberId(0x66);

    fn answered(status: &str, cluster: &str, body: &str) -> Option<Listener> {
        let answer = format!("HTTP/1.1 {status}\r\n{cluster}Date: now\r\n\r\n{body}\n");
        not_expected(&answer, OURS)
    }

    fn another(of: &Option<Listener>, words: &str) -> bool {
        matches!(of, Some(Listener::Another(what)) if what.contains(words))
    }

    #[test]
    fn each_answer_of_a_server_at_a_peer_url_says_who_it_is() {
        let ours = "X-Etcd-Cluster-Id: d311\r\n";
        assert_eq!(answered("404 Not Found", ours, "error sender not found"), None);
        for (status, cluster, body, words) in [
            (
                "412 Precondition Failed",
                ours,
                "to field mismatch",
                "another member",
            ),
            ("410 Gone", ours, "removed member", "removed"),
            (
                "412 Precondition Failed",
                "X-Etcd-Cluster-Id: 7\r\n",
                "cluster ID mismatch",
                "another etcd cluster",
            ),
            ("404 Not Found", "", "404 page not found", "no member of etcd"),
        ] {
            let answer = answered(status, cluster, body);
            assert!(another(&answer, words), "{answer:?}");
        }
        assert!(another(
            &not_expected("SSH-2.0-OpenSSH_9.2", OURS),
            "no member of etcd"
        ));
        let unknown = answered("412 Precondition Failed", ours, "incompatible version");
        assert!(matches!(unknown, Some(Listener::Unproven(_))), "{unknown:?}");
    }

    /// A proxy in front of an etcd that does not run yet accepts a connection and resets it at once.
    #[tokio::test]
    async fn a_host_that_resets_a_connection_as_it_is_made_is_reached() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut connecting = std::pin::pin!(connect(&address, deadline));
        assert!(futures::poll!(&mut connecting).is_pending());
        let (server, _) = listener.accept().await.unwrap();
        server.set_zero_linger().unwrap();
        drop(server);
        assert!(connecting.await.unwrap().is_none());
    }

    /// A proxy may leave the connection open.
    #[tokio::test]
    async fn an_answer_is_read_as_far_as_its_head_says() {
        let (client, mut server) = tokio::io::duplex(1 << 10);
        let answer = "HTTP/1.1 412 Precondition Failed\r\ncontent-length: 4\r\n\r\nto f";
        server.write_all(answer.as_bytes()).await.unwrap();
        let read = tokio::time::timeout(Duration::from_secs(30), ask(client, "GET /")).await;
        assert_eq!(read.expect("it ends").unwrap(), answer);
        assert!(!is_whole(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n1234"));
    }

    #[test]
    fn only_a_list_with_the_expected_member_is_its_own() {
        let list = |body: &str| lists(&format!("HTTP/1.1 200 OK\r\n\r\n{body}\n"), EXPECTED);
        let both = r#"[{"id":1,"name":"a"},{"id":102,"peerURLs":["http://127.0.0.1:1"]}]"#;
        assert_eq!(list(both), Some(true));
        assert_eq!(list(r#"[{"id":1}]"#), Some(false));
        for unreadable in [
            "nonsense",
            &both[..40],
            &format!("{:x}\r\n{both}\r\n0", both.len()),
        ] {
            assert_eq!(list(unreadable), None, "{unreadable}");
        }
    }

    /// One address of a host may lead nowhere while another one answers.
    #[tokio::test]
    async fn a_host_is_reached_where_one_of_its_addresses_answers() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let soon = || Instant::now() + Duration::from_secs(30);
        // Both of the addresses of this name, where it has two: one of them refuses.
        let local = connect(&format!("localhost:{port}"), soon()).await.unwrap();
        assert!(local.is_some());
        drop(listener);
        let refused = connect(&format!("127.0.0.1:{port}"), soon()).await.unwrap();
        assert!(refused.is_none());
    }
}
