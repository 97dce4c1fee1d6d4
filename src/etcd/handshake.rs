//! What a member shows and takes in a TLS handshake at its client URL, asked with certificates of the caller's own.
//!
//! Under TLS 1.3 a server refuses a certificate after the client's handshake: only an answer to a request proves that it took it.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, CertificateError};

use super::alert::client_config_of;

/// More bytes than an answer has that is looked at.
const LONGEST: u64 = 4096;

/// What a client shows, and by what it knows servers.
#[derive(Clone)]
pub struct Shown {
    /// The certificates that it trusts (PEM).
    pub roots: Vec<u8>,
    /// Its certificates and its key, both in PEM.
    pub identity: (Vec<u8>, Vec<u8>),
}

/// The answer of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The certificate that it shows (DER); empty where it refused that of the caller before it was read.
    pub certificate: Vec<u8>,
    /// It answers the request with this status; `None` where it refuses the certificate.
    pub status: Option<u16>,
}

/// Why a member could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAsked {
    /// The URL is none of a server with TLS.
    #[error("{0} is no https URL")]
    Url(String),
    /// The caller's own certificates are of no use.
    #[error("the certificates to ask with cannot be used")]
    Certificates,
    /// The member shows a certificate of an authority that the caller does not trust.
    #[error("{0} shows a certificate of another authority")]
    Foreign(String),
    /// There is no connection, or the member shows no certificate that is valid.
    #[error("{0}: {1}")]
    Unreachable(String, String),
    /// It has not answered in time.
    #[error("{0} has not answered within {1:?}")]
    Silent(String, Duration),
}

/// Asks the member at this URL for a page, within `limit`.
///
/// # Errors
/// If it cannot be asked. That it refuses the certificate is an answer.
pub async fn ask(url: &str, path: &str, shown: &Shown, limit: Duration) -> Result<Answer, NotAsked> {
    let asked = timeout(limit, ask_in_time(url, path, shown)).await;
    asked.unwrap_or_else(|_| Err(NotAsked::Silent(url.to_owned(), limit)))
}

async fn ask_in_time(url: &str, path: &str, shown: &Shown) -> Result<Answer, NotAsked> {
    let Some(mut stream) = connect(url, shown).await? else {
        return Ok(Answer {
            certificate: Vec::new(),
            status: None,
        });
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let first = certificates.and_then(|certificates| certificates.first());
    let certificate = first.map(|first| first.to_vec()).unwrap_or_default();
    // Version 1.0: the answer ends with the connection, and is not sent in chunks.
    let request = format!("GET {path} HTTP/1.0\r\nHost: etcd\r\n\r\n");
    let mut answer = Vec::new();
    // A refusal may come before the request is sent.
    if stream.write_all(request.as_bytes()).await.is_ok() {
        // A server may end a TLS connection without saying so; what it has sent is there all the same.
        let _ = stream.take(LONGEST).read_to_end(&mut answer).await;
    }
    let status = status(&String::from_utf8_lossy(&answer));
    // One that ends at this moment gives no answer either.
    if status.is_none() && !refuses(url, shown).await? {
        let why = "it has ended the connection without an answer".to_owned();
        return Err(NotAsked::Unreachable(url.to_owned(), why));
    }
    Ok(Answer { certificate, status })
}

/// Whether the server says that it refuses the certificate. It does on a connection that sends nothing: otherwise the end of the
/// connection may come before its word.
async fn refuses(url: &str, shown: &Shown) -> Result<bool, NotAsked> {
    let Some(mut stream) = connect(url, shown).await? else {
        return Ok(true);
    };
    let read = stream.read_u8().await;
    Ok(read.is_err_and(|error| is_alert(&error)))
}

/// Makes a connection; `None` where the server refuses the certificate in the handshake, as under TLS 1.2.
async fn connect(url: &str, shown: &Shown) -> Result<Option<TlsStream<TcpStream>>, NotAsked> {
    let no_url = || NotAsked::Url(url.to_owned());
    let uri: http::Uri = url.parse().map_err(|_| no_url())?;
    let host = uri.host().ok_or_else(no_url)?.trim_matches(['[', ']']);
    if uri.scheme_str() != Some("https") {
        return Err(no_url());
    }
    let name = ServerName::try_from(host.to_owned()).map_err(|_| no_url())?;
    let (chain, key) = &shown.identity;
    let config = client_config_of(
        Some(shown.roots.as_slice()),
        Some((chain.as_slice(), key.as_slice())),
    );
    let config = config.ok_or(NotAsked::Certificates)?;
    let failed = |error: std::io::Error| NotAsked::Unreachable(url.to_owned(), words(&error));
    let port = uri.port_u16().unwrap_or(443);
    let tcp = TcpStream::connect((host, port)).await.map_err(failed)?;
    match TlsConnector::from(Arc::new(config)).connect(name, tcp).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if is_alert(&error) => Ok(None),
        Err(error) if is_foreign(&error) => Err(NotAsked::Foreign(url.to_owned())),
        Err(error) => Err(failed(error)),
    }
}

/// An error in words that stay the same as long as it does: what is made of them is on record, and read by people. Those of TLS count
/// the seconds since a certificate has expired.
fn words(error: &std::io::Error) -> String {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    match of_tls(error) {
        Some(rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. })) => {
            "its certificate has expired".to_owned()
        }
        Some(rustls::Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. })) => {
            "its certificate is not valid yet".to_owned()
        }
        _ => error.to_string(),
    }
}

fn is_alert(error: &std::io::Error) -> bool {
    matches!(of_tls(error), Some(rustls::Error::AlertReceived(_)))
}

fn is_foreign(error: &std::io::Error) -> bool {
    let unknown = CertificateError::UnknownIssuer;
    matches!(of_tls(error), Some(rustls::Error::InvalidCertificate(why)) if *why == unknown)
}

fn of_tls(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The status of an answer, such as `HTTP/1.0 200 OK`; `None` if it is none.
fn status(answer: &str) -> Option<u16> {
    let line = answer.lines().next().filter(|line| line.starts_with("HTTP/"))?;
    line.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::pki_types::UnixTime;

    use super::*;

    #[test]
    fn the_status_of_an_answer_is_read_and_a_connection_that_ended_has_none() {
        assert_eq!(status("HTTP/1.0 200 OK\r\n\r\n{}"), Some(200));
        assert_eq!(status("HTTP/1.1 503 Service Unavailable\r\n"), Some(503));
        for none in ["", "\u{15}\u{3}", "200", "HTTP/1.0"] {
            assert_eq!(status(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_certificate_that_is_not_valid_is_described_in_the_same_words_at_any_time() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let described = |why| {
            let error = rustls::Error::InvalidCertificate(why);
            words(&std::io::Error::new(std::io::ErrorKind::InvalidData, error))
        };
        let expired = |seconds| {
            described(CertificateError::ExpiredContext {
                time: at(seconds),
                not_after: at(100),
            })
        };
        let early = |seconds| {
            described(CertificateError::NotValidYetContext {
                time: at(seconds),
                not_before: at(9000),
            })
        };
        assert_eq!(expired(200), expired(201));
        assert!(expired(200).contains("expired"), "{}", expired(200));
        assert_eq!(early(200), early(201));
        assert!(early(200).contains("not valid yet"), "{}", early(200));
        let revoked = described(CertificateError::Revoked);
        assert!(revoked.contains("Revoked"), "{revoked}");
    }

    #[tokio::test]
    async fn a_url_in_clear_text_and_one_where_nothing_listens_are_not_asked() {
        let shown = Shown {
            roots: Vec::new(),
            identity: (Vec::new(), Vec::new()),
        };
        let limit = Duration::from_secs(10);
        let asked = ask("http://127.0.0.1:1", "/health", &shown, limit).await;
        assert!(matches!(asked, Err(NotAsked::Url(_))), "{asked:?}");
        let asked = ask("https://127.0.0.1:1", "/health", &shown, limit).await;
        assert_eq!(asked, Err(NotAsked::Certificates));
    }
}
