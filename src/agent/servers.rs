//! Connections to the servers of the control API: to one at a time, and to another one when that is gone.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint as Target};

use super::trust::{Pinned, client_config, shows_signer};
use crate::csi::{Endpoint, EndpointError};
use crate::etcd::ClusterId;
use crate::identity::control::{cluster_of_server, server_name};
use crate::identity::{AuthorityDigest, NodeChain, NodeKey};
use crate::one_stream::{self, Connection};
use crate::proto::control_client::ControlClient;
use crate::retry;

/// The limit from the first packet to the end of the TLS handshake, as at the server.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A server that does not answer an HTTP/2 ping within the one, sent every other, is gone: together a third of the lease of a
/// session (30 s), so that the node stays ready.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_LIMIT: Duration = Duration::from_secs(5);

/// The largest answer accepted, in bytes: what concerns a node, with the secrets of its volumes.
const LARGEST_ANSWER: usize = 64 << 20;

/// The address of a server: `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress(String);

/// A text is not the address of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected https://HOST:PORT, as in https://quorate.example:7443")]
pub struct BadAddress;

impl FromStr for ServerAddress {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let parsed: Result<Endpoint, EndpointError> = text.parse();
        match parsed {
            Ok(Endpoint::Tcp(uri)) if uri.scheme_str() == Some("https") => {
                Ok(Self(uri.authority().ok_or(BadAddress)?.to_string()))
            }
            _ => Err(BadAddress),
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.0)
    }
}

/// What an agent shows at a server.
#[derive(Debug)]
pub struct Identity {
    /// The key of the certificate.
    pub key: NodeKey,
    /// The certificate.
    pub chain: NodeChain,
    /// The servers that it is for.
    pub pinned: Pinned,
}

/// A connection to a server that has proven to be one.
#[derive(Clone, Debug)]
pub struct Link {
    /// Where it leads.
    pub server: ServerAddress,
    /// The cluster, by the verified certificate of the server.
    pub cluster: ClusterId,
    /// Cancelled when either side closes it.
    pub ended: CancellationToken,
    /// The certificates that the server has shown.
    shown: Arc<[CertificateDer<'static>]>,
    channel: Channel,
}

impl Link {
    /// A client on this connection.
    pub fn client(&self) -> ControlClient<Channel> {
        ControlClient::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER)
    }

    /// Whether the server has shown the authority of this digest, and that one has signed this certificate (DER).
    pub fn shows_signer(&self, authority: AuthorityDigest, certificate: &[u8]) -> bool {
        shows_signer(&self.shown, authority, certificate)
    }
}

/// A server could not be connected to, or is none.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {server}: {reason}")]
pub struct NoLink {
    server: ServerAddress,
    reason: String,
}

/// The servers, of which one is tried at a time.
#[derive(Clone, Debug)]
pub struct Servers {
    /// In an order of this agent's own: agents spread over the replicas, and those of one that is gone over the others.
    addresses: Vec<ServerAddress>,
    at: usize,
}

impl Servers {
    /// These servers; there must be one.
    pub fn new(mut addresses: Vec<ServerAddress>) -> Self {
        for last in (1..addresses.len()).rev() {
            let count = f64::from(u32::try_from(last + 1).unwrap_or(u32::MAX));
            let any = (retry::random() * count) as usize;
            addresses.swap(any.min(last), last);
        }
        Self { addresses, at: 0 }
    }

    /// Connects to the present server with the certificate of the node.
    ///
    /// # Errors
    /// If the server cannot be reached, or does not prove to be one.
    pub async fn connect(&self, identity: &Identity) -> Result<Link, NoLink> {
        let shown = Some((&identity.key, &identity.chain));
        self.connect_as(identity.pinned, shown).await
    }

    /// The same, without a certificate, to join.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_to_join(&self, pinned: Pinned) -> Result<Link, NoLink> {
        self.connect_as(pinned, None).await
    }

    /// Takes the next server for the present one: this one is gone, or of no use.
    pub fn turn_to_another(&mut self) {
        self.at = self.at.wrapping_add(1);
    }

    async fn connect_as(
        &self,
        pinned: Pinned,
        shown: Option<(&NodeKey, &NodeChain)>,
    ) -> Result<Link, NoLink> {
        let server = self.addresses[self.at % self.addresses.len()].clone();
        let connected = timeout(CONNECT_LIMIT, connect(&server, pinned, shown)).await;
        let connected = connected.unwrap_or_else(|_| Err(format!("no connection within {CONNECT_LIMIT:?}")));
        connected.map_err(|reason| NoLink { server, reason })
    }
}

async fn connect(
    server: &ServerAddress,
    pinned: Pinned,
    shown: Option<(&NodeKey, &NodeChain)>,
) -> Result<Link, String> {
    let config = client_config(pinned, shown).map_err(|error| error.to_string())?;
    let stream = one_stream::dial(&server.0)
        .await
        .map_err(|error| error.to_string())?;
    // Only servers of the cluster have a name, and that is checked instead of this one.
    let name = ServerName::try_from("control").map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| error.to_string())?;
    let (_, tls) = stream.get_ref();
    let shown: Arc<[_]> = tls.peer_certificates().unwrap_or_default().into();
    // It was verified, by this very name.
    let cluster = shown
        .first()
        .and_then(|leaf| cluster_of_server(leaf))
        .ok_or("the server has shown no certificate")?;
    let origin = format!("https://{}", server_name(cluster));
    let origin = origin.parse::<Uri>().map_err(|error| error.to_string())?;
    let target = Target::from_static("http://control")
        .origin(origin)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_LIMIT)
        .keep_alive_while_idle(true);
    let Connection { channel, ended } = Connection::over(target, stream).await?;
    Ok(Link {
        server: server.clone(),
        cluster,
        ended,
        shown,
        channel,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_host_and_port_with_tls() {
        for text in ["https://quorate.example:7443", "https://[::1]:7443"] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "",
            "http://h:1",
            "https://h",
            "h:7443",
            "unix:///s",
            "https://h:1/x",
        ] {
            assert_eq!(text.parse::<ServerAddress>(), Err(BadAddress), "{text}");
        }
    }

    #[test]
    fn agents_spread_over_the_servers_and_those_of_one_that_is_gone_over_the_others() {
        let addresses: Vec<ServerAddress> = ["https://a:1", "https://b:1", "https://c:1"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let mut orders = std::collections::BTreeMap::new();
        for _ in 0..6000 {
            let order: Vec<String> = Servers::new(addresses.clone())
                .addresses
                .iter()
                .map(ToString::to_string)
                .collect();
            *orders.entry(order).or_insert(0) += 1;
        }
        assert_eq!(orders.len(), 6, "{orders:?}");
        // 1,000 each, and less than 500 or more than 1,500 once in more runs than there will be.
        assert!(
            orders.values().all(|count| (500..1500).contains(count)),
            "{orders:?}"
        );
    }

    #[tokio::test]
    async fn servers_are_tried_one_after_the_other() {
        let address = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            format!("https://{}", listener.local_addr().unwrap())
                .parse()
                .unwrap()
        };
        let mut servers = Servers::new(vec![address(), address()]);
        let pinned = Pinned {
            authority: AuthorityDigest([7; 32]),
            cluster: None,
        };
        let mut tried = Vec::new();
        for _ in 0..4 {
            tried.push(servers.connect_to_join(pinned).await.unwrap_err().server);
            servers.turn_to_another();
        }
        assert_ne!(tried[0], tried[1]);
        assert_eq!(tried[..2], tried[2..]);
    }
}
