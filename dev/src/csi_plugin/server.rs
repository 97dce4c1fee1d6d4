//! Serving: the plugin's socket, and the one over which it is told what to do wrong.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::unfold;
use tokio::net::{TcpListener, UnixListener};
use tonic::transport::server::Router;
use tonic::transport::{Identity, Server, ServerTlsConfig};

use super::control;
use super::service::Plugin;
use crate::csi_plugin::wire::controller_server::ControllerServer;
use crate::csi_plugin::wire::identity_server::IdentityServer;
use crate::pki::CertificateFiles;
use quorate::csi::Endpoint;

/// How the plugin is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: Endpoint,
    /// By what it proves itself, with TLS; none: in clear text.
    pub tls: Option<CertificateFiles>,
    /// Where it takes orders; none: nowhere.
    pub control: Option<PathBuf>,
    /// The directory of its volumes.
    pub backend: PathBuf,
    /// The file in which it writes down its calls.
    pub log: PathBuf,
    /// Its name.
    pub driver: String,
    /// Its version.
    pub version: String,
    /// What it says that it can do, and does.
    pub offers: Offers,
    /// No volume is published to two nodes, whatever its access mode.
    pub single_node: bool,
    /// The places that it serves; none: topology means nothing to it.
    pub places: Vec<BTreeMap<String, String>>,
    /// Added to every call about a volume.
    pub latency: Duration,
    /// It says that it is still starting, until it is told otherwise.
    pub not_ready: bool,
}

/// Capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// A Controller service at all.
    pub controller: bool,
    /// CREATE_DELETE_VOLUME
    pub create: bool,
    /// PUBLISH_UNPUBLISH_VOLUME and PUBLISH_READONLY
    pub publish: bool,
    /// EXPAND_VOLUME
    pub expand: bool,
    /// Growing only while published nowhere.
    pub expand_offline: bool,
    /// LIST_VOLUMES
    pub list: bool,
    /// LIST_VOLUMES_PUBLISHED_NODES
    pub list_nodes: bool,
}

impl Default for Offers {
    /// What most plugins do: create and publish.
    fn default() -> Self {
        Self {
            controller: true,
            create: true,
            publish: true,
            expand: false,
            expand_offline: false,
            list: false,
            list_nodes: false,
        }
    }
}

/// Serves until it is dropped, or until it cannot go on.
///
/// # Errors
/// A socket or a directory cannot be had, with its name.
pub async fn serve(options: Options) -> io::Result<()> {
    let listen = options.listen.clone();
    let orders = match &options.control {
        Some(path) => Some(bind(path)?),
        None => None,
    };
    let has_controller = options.offers.controller;
    let named = |error| named(&options.backend, error);
    let plugin = Arc::new(Plugin::open(options.clone()).map_err(named)?);
    let mut server = match &options.tls {
        Some(files) => with_tls(files)?,
        None => Server::builder(),
    };
    let identity = server.add_service(IdentityServer::from_arc(plugin.clone()));
    let router = if has_controller {
        identity.add_service(ControllerServer::from_arc(plugin.clone()))
    } else {
        identity
    };
    let take_orders = async {
        match orders {
            Some(listener) => control::obey(listener, &plugin).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = answer(router, &listen) => ended,
        () = take_orders => Ok(()),
    }
}

fn with_tls(files: &CertificateFiles) -> io::Result<Server> {
    let read = |path: &Path| fs::read(path).map_err(|error| named(path, error));
    let identity = Identity::from_pem(read(&files.cert)?, read(&files.key)?);
    let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity));
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

/// A socket at this path; one that an earlier run left there is replaced.
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
