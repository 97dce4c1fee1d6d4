//! HTTP requests to servers on this machine, each over a connection of its own.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// Limit of a request. The servers are on this machine: one that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(10);

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// HTTP status code.
    pub status: u16,
    /// The body, as text.
    pub body: String,
}

/// A request to a port of 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The port of the server.
    pub port: u16,
    /// `GET`, `POST`, …
    pub method: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// The certificate authority (PEM) of an HTTPS server; none: plain HTTP.
    pub ca: Option<&'a str>,
    /// The bearer token; none: no Authorization header.
    pub token: Option<&'a str>,
    /// Content type and body; none: no body.
    pub body: Option<(&'a str, &'a str)>,
}

/// GET over plain HTTP.
pub async fn get(port: u16, path: &str) -> io::Result<Response> {
    let request = Request {
        port,
        method: "GET",
        path,
        ca: None,
        token: None,
        body: None,
    };
    request.send().await
}

/// Whether a page answered 200. The error says what it answered.
pub fn is_ok(page: &str, answer: io::Result<Response>) -> Result<(), String> {
    match answer {
        Ok(Response { status: 200, .. }) => Ok(()),
        Ok(Response { status, body }) => Err(format!("{page}: {status} {}", body.trim())),
        Err(error) => Err(format!("{page}: {error}")),
    }
}

impl Request<'_> {
    /// Sends it and reads the whole response, within ten seconds.
    pub async fn send(&self) -> io::Result<Response> {
        timeout(LIMIT, self.exchange())
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer within 10 s")))
    }

    async fn exchange(&self) -> io::Result<Response> {
        let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))).await?;
        match self.ca {
            None => self.exchange_on(stream).await,
            Some(ca) => {
                let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
                let stream = tls(ca)?.connect(name, stream).await?;
                self.exchange_on(stream).await
            }
        }
    }

    async fn exchange_on(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<Response> {
        stream.write_all(self.text().as_bytes()).await?;
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer).await {
            Ok(_) => {}
            // A TLS server may close without notice. `parse` finds a truncated head.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => return Err(error),
        }
        parse(&answer).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("not HTTP: {:?}", String::from_utf8_lossy(&answer)),
            )
        })
    }

    /// HTTP/1.0, so that the server closes the connection and sends the body in one piece.
    fn text(&self) -> String {
        let Self {
            method, path, port, ..
        } = self;
        let mut text = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\n");
        if let Some(token) = self.token {
            text += &format!("Authorization: Bearer {token}\r\n");
        }
        match self.body {
            None => text += "\r\n",
            Some((content_type, body)) => {
                text += &format!(
                    "Content-Type: {content_type}\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
            }
        }
        text
    }
}

fn parse(answer: &[u8]) -> Option<Response> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head
        .strip_prefix("HTTP/1.")?
        .split(' ')
        .nth(1)?
        .get(..3)?
        .parse()
        .ok()?;
    Some(Response {
        status,
        body: body.to_owned(),
    })
}

fn tls(ca: &str) -> io::Result<TlsConnector> {
    let invalid = |error: &dyn std::fmt::Display| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("certificate authority: {error}"),
        )
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        let certificate = certificate.map_err(|error| invalid(&error))?;
        roots.add(certificate).map_err(|error| invalid(&error))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_split_into_status_and_body() {
        assert_eq!(
            parse(b"HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\n[-]etcd failed\r\n\r\n"),
            Some(Response {
                status: 503,
                body: "[-]etcd failed\r\n\r\n".to_owned()
            })
        );
    }

    #[test]
    fn what_is_not_http_is_no_answer() {
        for bytes in [
            &b""[..],
            b"HTTP/1.0 200 OK\r\n",
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1 2\r\n\r\n",
        ] {
            assert_eq!(parse(bytes), None, "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
