//! What is below the client: the layers of the kube crate over connections of our own.

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::ConfigExt as _;
use tower::{BoxError, ServiceBuilder};

/// A client that repeats nothing by itself.
pub(super) fn client(config: kube::Config) -> kube::Result<kube::Client> {
    if config.proxy_url.is_some() {
        // Its error says which proxies it can use.
        return kube::Client::try_from(config);
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(Client::builder(TokioExecutor::new()).build(connector));
    Ok(kube::Client::new(service, config.default_namespace))
}

/// Connections that send everything at once. Otherwise the first request of a connection waits until the server acknowledges
/// the end of the TLS handshake, and Linux puts that off for 40 ms.
fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    // TLS is above it.
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn a_connection_sends_everything_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap());
        let connection = tcp().oneshot(server.parse().unwrap()).await.unwrap();
        assert!(connection.inner().nodelay().unwrap());
    }
}
