//! Where spans are exported to.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http::Uri;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use crate::causes;

/// The limit on a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// After this much silence the connection is tested, so that one whose other end is gone is given up.
const TEST_AFTER: Duration = Duration::from_secs(10);

/// The URL of a collector that speaks OTLP over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector(Uri);

/// What an URL of a collector has to look like.
#[derive(Debug, thiserror::Error)]
#[error(
    "expected the URL of a collector that takes OTLP over gRPC: like http://localhost:4317 or https://HOST:PORT"
)]
pub struct NoCollector;

impl FromStr for Collector {
    type Err = NoCollector;

    fn from_str(text: &str) -> Result<Self, NoCollector> {
        let uri: Uri = text.parse().map_err(|_| NoCollector)?;
        let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
        // A password in the URL would stand in logs, and gRPC does not send it. A path is that of OTLP over HTTP.
        let is_plain = uri
            .authority()
            .is_some_and(|authority| !authority.as_str().contains('@') && !authority.host().is_empty());
        let is_root = matches!(uri.path(), "" | "/") && uri.query().is_none();
        match is_known && is_plain && is_root {
            true => Ok(Self(uri)),
            false => Err(NoCollector),
        }
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Collector {
    /// The settings of the connection. The error is a sentence for people.
    pub(super) fn endpoint(&self) -> Result<Endpoint, String> {
        let endpoint = Channel::builder(self.0.clone())
            .connect_timeout(CONNECT_LIMIT)
            .http2_keep_alive_interval(TEST_AFTER)
            .keep_alive_timeout(CONNECT_LIMIT);
        match self.0.scheme_str() {
            Some("https") => endpoint
                .tls_config(ClientTlsConfig::new().with_native_roots())
                .map_err(|error| causes::chain(&error)),
            _ => Ok(endpoint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_an_url_with_a_host_and_nothing_after_it() {
        for good in [
            "http://localhost:4317",
            "https://c.example:443/",
            "http://[::1]:4317",
        ] {
            assert!(good.parse::<Collector>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "localhost:4317",
            "grpc://c:4317",
            "http://",
            "http://u:p@c:4317",
            "http://c:4318/v1/traces",
            "/run/collector.sock",
        ] {
            assert!(bad.parse::<Collector>().is_err(), "{bad}");
        }
    }
}
