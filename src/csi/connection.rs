//! One connection to a plugin, made once: a session with a plugin never connects again.

use std::time::Duration;

use tokio::net::UnixStream;
use tonic::transport::Endpoint as Target;

use super::endpoint::Endpoint;
use super::tls::Tls;
use crate::causes;
use crate::one_stream::{self, Connection};

/// The limit from the first packet to the end of the TLS handshake. A plugin is on this machine or in this cluster.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The host in a request over a unix socket: a request has to name one.
const HERE: &str = "http://localhost";

/// Connects to a plugin. The error is a sentence for people.
pub(super) async fn open(endpoint: &Endpoint, tls: &Tls) -> Result<Connection, String> {
    match tokio::time::timeout(CONNECT_LIMIT, connect(endpoint, tls)).await {
        Ok(result) => result,
        Err(_) => Err(format!("no connection within {CONNECT_LIMIT:?}")),
    }
}

async fn connect(endpoint: &Endpoint, tls: &Tls) -> Result<Connection, String> {
    match endpoint {
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path)
                .await
                .map_err(|error| error.to_string())?;
            Connection::over(Target::from_static(HERE), stream).await
        }
        Endpoint::Tcp(uri) => {
            // An endpoint has a host and a port, or it would not have been made.
            let authority = uri.authority().map_or("", |authority| authority.as_str());
            let stream = one_stream::dial(authority)
                .await
                .map_err(|error| error.to_string())?;
            let target = Target::from(uri.clone());
            let target = if uri.scheme_str() == Some("https") {
                target
                    .tls_config(tls.config()?)
                    .map_err(|error| causes::chain(&error))?
            } else {
                target
            };
            Connection::over(target, stream).await
        }
    }
}
