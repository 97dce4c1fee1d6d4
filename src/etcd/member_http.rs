//! What a member says over HTTP. Beside gRPC, etcd serves its metrics and the variables of its process at its client URL, from
//! 3.4 to 3.6, unless `--listen-client-http-urls` has moved them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::join;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::alert;
use super::config::Credentials;

/// More bytes than a page of a member has.
const LONGEST: u64 = 4 << 20;

/// What a member says over HTTP. All of it may be missing: a proxy serves none, and nothing depends on it.
#[derive(Clone, Debug, Default)]
pub struct HttpSeen {
    /// Its clock.
    pub clock: Option<ClockSeen>,
    /// The size that its database may have, in bytes (`--quota-backend-bytes`).
    pub quota: Option<u64>,
    /// The flags that its process was started with. What its environment or a file sets is not among them.
    pub flags: Vec<String>,
}

/// The clock of a server, as it dates an answer.
#[derive(Clone, Debug)]
pub struct ClockSeen {
    /// The `Date` header: whole seconds, rounded down.
    pub date: String,
    /// When the request was sent, by the clock of this machine.
    pub sent: SystemTime,
    /// When the answer was there.
    pub received: SystemTime,
}

/// Asks the member behind an endpoint, within `limit`.
pub(super) async fn look(endpoint: &str, credentials: &Credentials, limit: Duration) -> HttpSeen {
    let page = async |path| {
        let page = tokio::time::timeout(limit, get(endpoint, path, credentials)).await;
        page.ok().flatten()
    };
    let (metrics, variables) = join(page("/metrics"), page("/debug/vars")).await;
    let clock = |page: &Option<Page>| page.as_ref()?.clock.clone();
    HttpSeen {
        clock: clock(&metrics).or_else(|| clock(&variables)),
        quota: metrics.as_ref().and_then(|page| quota(&page.body)),
        flags: variables
            .as_ref()
            .map(|page| flags(&page.body))
            .unwrap_or_default(),
    }
}

struct Page {
    clock: Option<ClockSeen>,
    body: String,
}

/// Gets a page; `None` if there is none.
async fn get(endpoint: &str, path: &str, credentials: &Credentials) -> Option<Page> {
    let uri: http::Uri = endpoint.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']);
    let is_tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let tcp = TcpStream::connect((host, port)).await.ok()?;
    // Version 1.0: the answer ends with the connection, and is not sent in chunks.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    if !is_tls {
        return exchange(tcp, &request).await;
    }
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let tls = TlsConnector::from(Arc::new(alert::client_config(credentials)?));
    exchange(tls.connect(name, tcp).await.ok()?, &request).await
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Option<Page> {
    let sent = SystemTime::now();
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    // A server may end a TLS connection without saying so; what it has sent is there all the same.
    let _ = stream.take(LONGEST).read_to_end(&mut answer).await;
    let received = SystemTime::now();
    let (date, body) = parse(&String::from_utf8_lossy(&answer))?;
    let clock = date.map(|date| ClockSeen { date, sent, received });
    Some(Page { clock, body })
}

/// The date and the body of an answer; `None` unless its status is 200.
pub fn parse(answer: &str) -> Option<(Option<String>, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?;
    let date = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| value.trim().to_owned())
    });
    (status == "200").then(|| (date, body.to_owned()))
}

/// The limit of the database in bytes, by the page of metrics.
pub fn quota(metrics: &str) -> Option<u64> {
    let sample = |line: &str| {
        line.strip_prefix("etcd_server_quota_backend_bytes ")?
            .trim()
            .parse()
            .ok()
    };
    let bytes: f64 = metrics.lines().find_map(sample)?;
    // A float casts to the nearest value that there is; a quota is no negative number.
    (bytes >= 1.0).then_some(bytes as u64)
}

/// The command line of the process, which Go publishes with its variables.
pub fn flags(variables: &str) -> Vec<String> {
    #[derive(Default, serde::Deserialize)]
    struct Variables {
        cmdline: Vec<String>,
    }
    let read: Variables = serde_json::from_str(variables).unwrap_or_default();
    read.cmdline.into_iter().skip(1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_with_its_date_and_another_status_is_none() {
        let answer = "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\ndate: Mon, 23 Nov 2026 05:38:53 GMT\r\n\r\n\
                      etcd_server_has_leader 1\netcd_server_quota_backend_bytes 2.147483648e+09\n";
        let (date, body) = parse(answer).unwrap();
        assert_eq!(date.as_deref(), Some("Mon, 23 Nov 2026 05:38:53 GMT"));
        assert_eq!(quota(&body), Some(2 << 30));
        assert!(parse(&answer.replace("200", "404")).is_none());
        assert!(parse("nothing").is_none());
        assert_eq!(quota("etcd_server_quota_backend_bytes 0\n"), None);
    }

    #[test]
    fn the_flags_of_the_process_are_those_of_its_command_line() {
        let variables =
            r#"{"cmdline": ["/usr/bin/etcd", "--name=n1", "--strict-reconfig-check=false"], "memstats": {}}"#;
        assert_eq!(flags(variables), ["--name=n1", "--strict-reconfig-check=false"]);
        assert!(flags("no JSON").is_empty());
    }
}
