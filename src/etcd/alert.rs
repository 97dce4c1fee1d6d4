//! Why a server ends a connection right after the TLS handshake.
//!
//! Under TLS 1.3 the client's handshake is complete before the server has checked the client's certificate. A server that
//! refuses it sends an alert and closes the connection. A request often sees only the closed connection: its write
//! fails first, or the connection is gone before the request is sent. On a connection that sends nothing after the
//! handshake the alert always arrives.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::config::Credentials;
use super::error::{Class, Error};

/// The alert that the server at this endpoint sends after the handshake, if it sends one within `limit`.
pub(super) async fn read(endpoint: &str, credentials: &Credentials, limit: Duration) -> Option<Error> {
    let refusal = tokio::time::timeout(limit, read_after_handshake(endpoint, credentials));
    let refusal = refusal.await.ok()??.err()?;
    let alert = refusal.get_ref()?.downcast_ref::<rustls::Error>()?;
    matches!(alert, rustls::Error::AlertReceived(_))
        .then(|| Error::new("connect", "Unavailable", Class::Unavailable, alert.to_string()))
}

/// The result of the first read; `None` if these settings make no TLS connection.
async fn read_after_handshake(endpoint: &str, credentials: &Credentials) -> Option<std::io::Result<u8>> {
    let uri: http::Uri = endpoint.parse().ok()?;
    if uri.scheme_str() != Some("https") {
        return None;
    }
    let host = uri.host()?.trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let mut config = client_config(credentials)?;
    // Another protocol than gRPC's might be served by someone who asks for no certificate.
    config.alpn_protocols.push(b"h2".to_vec());
    let tls = TlsConnector::from(Arc::new(config));
    let tcp = TcpStream::connect((host, uri.port_u16().unwrap_or(443)))
        .await
        .ok()?;
    Some(match tls.connect(name, tcp).await {
        Ok(mut stream) => stream.read_u8().await,
        Err(error) => Err(error),
    })
}

/// The client's side of TLS with these credentials; `None` if they are unusable.
pub(super) fn client_config(credentials: &Credentials) -> Option<ClientConfig> {
    let identity = credentials.identity.as_ref();
    client_config_of(
        credentials.ca.as_deref(),
        identity.map(|(chain, key)| (&**chain, &**key)),
    )
}

/// The same with these roots, the system's own if none are given, and this certificate with its key (PEM).
pub(super) fn client_config_of(ca: Option<&[u8]>, identity: Option<(&[u8], &[u8])>) -> Option<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(ca) => {
            roots.add_parsable_certificates(certificates(ca)?);
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .ok()?
        .with_root_certificates(roots);
    match identity {
        Some((chain, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key).ok()?;
            config.with_client_auth_cert(certificates(chain)?, key).ok()
        }
        None => Some(config.with_no_client_auth()),
    }
}

fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()
}
