//! The servers of the plugin: its CSI endpoint, and the socket for orders.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use futures::stream::unfold;
use tokio::net::{TcpListener, UnixListener};
use tonic::transport::server::Router;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

use super::control;
use super::options::Options;
use super::service::Plugin;
use crate::csi_plugin::wire::controller_server::ControllerServer;
use crate::csi_plugin::wire::identity_server::IdentityServer;
use crate::csi_plugin::wire::node_server::NodeServer;
use crate::pki::CertificateFiles;
use quorate::csi::Endpoint;

/// Serves until it is dropped, or until it fails.
///
/// # Errors
/// The error of a socket, file or directory, with its path.
pub async fn serve(options: Options) -> io::Result<()> {
    let listen = options.listen.clone();
    let orders = match &options.control {
        Some(path) => Some(bind(path)?),
        None => None,
    };
    let (has_controller, has_node) = (options.offers.controller, options.node.is_some());
    let named = |error| named(&options.backend, error);
    let plugin = Arc::new(Plugin::open(options.clone()).map_err(named)?);
    let mut server = match &options.tls {
        Some(files) => with_tls(files, options.client_ca.as_deref())?,
        None => Server::builder(),
    };
    let identity = server.add_service(IdentityServer::from_arc(plugin.clone()));
    let controller = has_controller.then(|| ControllerServer::from_arc(plugin.clone()));
    let node = has_node.then(|| NodeServer::from_arc(plugin.clone()));
    let router = identity
        .add_optional_service(controller)
        .add_optional_service(node);
    let take_orders = async {
        match orders {
            Some(listener) => control::serve(listener, &plugin).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = answer(router, &listen) => ended,
        () = take_orders => Ok(()),
    }
}

fn with_tls(files: &CertificateFiles, client_ca: Option<&Path>) -> io::Result<Server> {
    let read = |path: &Path| fs::read(path).map_err(|error| named(path, error));
    let identity = Identity::from_pem(read(&files.cert)?, read(&files.key)?);
    let mut config = ServerTlsConfig::new().identity(identity);
    if let Some(client_ca) = client_ca {
        config = config.client_ca_root(Certificate::from_pem(read(client_ca)?));
    }
    let server = Server::builder().tls_config(config);
    server.map_err(|error| named(&files.cert, io::Error::other(error)))
}

async fn answer(router: Router, listen: &Endpoint) -> io::Result<()> {
    let ended = match listen {
        Endpoint::Unix(path) => {
            let connections = unfold(bind(path)?, async |listener| {
                let connection = listener.accept().await.map(|(stream, _)| stream);
                Some((connection, listener))
            });
            router.serve_with_incoming(connections).await
        }
        Endpoint::Tcp(uri) => {
            let address = uri.authority().map_or("", |authority| authority.as_str());
            let listener = TcpListener::bind(address).await;
            let listener = listener.map_err(|error| named(Path::new(address), error))?;
            let connections = unfold(listener, async |listener| {
                let connection = listener.accept().await.map(|(stream, _)| stream);
                Some((connection, listener))
            });
            router.serve_with_incoming(connections).await
        }
    };
    ended.map_err(io::Error::other)
}

/// Binds a socket at this path, and replaces the one of an earlier run.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(path, error)),
        _ => {}
    }
    UnixListener::bind(path).map_err(|error| named(path, error))
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
