//! `quorate-dev csi-plugin`: a CSI plugin to test against. `quorate dev --csi-demo` and the tests start it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::csi_plugin::options::{NodeOptions, Offers, Options};
use crate::csi_plugin::server::serve;
use crate::pki::CertificateFiles;
use quorate::cli::exit::Failure;
use quorate::csi::Endpoint;

/// Arguments of the command.
#[derive(Args, Debug)]
pub struct CsiPluginArgs {
    /// Where to listen: unix:///…, http://127.0.0.1:PORT or, with a certificate, https://127.0.0.1:PORT
    #[arg(long, value_name = "ENDPOINT")]
    listen: Endpoint,

    /// Serve over TLS with this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// Key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Serve only clients with a certificate of this authority (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,

    /// The unix socket for orders; without it the plugin takes none
    #[arg(long, value_name = "FILE")]
    control: Option<PathBuf>,

    /// The directory of the volumes
    #[arg(long, value_name = "DIR")]
    backend: PathBuf,

    /// The file that gets a line for every call
    #[arg(long, value_name = "FILE")]
    log: PathBuf,

    /// The driver's name
    #[arg(long, value_name = "NAME", default_value = "demo.csi.quorate.dev")]
    driver: String,

    /// The driver's version
    #[arg(long, value_name = "VERSION", default_value = "1")]
    driver_version: String,

    /// Serve no Controller service
    #[arg(long)]
    without_controller: bool,

    /// Do not offer CREATE_DELETE_VOLUME
    #[arg(long)]
    without_create: bool,

    /// Do not offer PUBLISH_UNPUBLISH_VOLUME
    #[arg(long)]
    without_publish: bool,

    /// Offer SINGLE_NODE_MULTI_WRITER
    #[arg(long)]
    exact_access_modes: bool,

    /// Offer EXPAND_VOLUME
    #[arg(long)]
    expand: bool,

    /// Expand a volume only while it is published nowhere
    #[arg(long, requires = "expand")]
    expand_offline: bool,

    /// Offer LIST_VOLUMES
    #[arg(long)]
    list: bool,

    /// Also offer LIST_VOLUMES_PUBLISHED_NODES
    #[arg(long)]
    list_nodes: bool,

    /// Refuse to publish a volume to a second node
    #[arg(long)]
    single_node: bool,

    /// Segments of the topology that it serves, as in zone=a,rack=1; may be repeated
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = place)]
    place: Vec<BTreeMap<String, String>>,

    /// Delay of every call about a volume, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    latency_ms: u64,

    /// Answer Probe with "not ready" until an order changes that
    #[arg(long)]
    not_ready: bool,

    /// The identity of its backend, which GetPluginInfo tells
    #[arg(long, value_name = "ID")]
    backend_id: Option<String>,

    /// The capacity of every new volume in bytes, whatever is asked for
    #[arg(long, value_name = "BYTES")]
    capacity: Option<u64>,

    /// The bytes of its backend; offer GET_CAPACITY
    #[arg(long, value_name = "BYTES")]
    room: Option<u64>,

    /// The size of the context that it gives with every publication, beside what it usually gives
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    large_context: usize,

    /// Serve the Node service, with this id of the node
    #[arg(long, value_name = "ID")]
    node_id: Option<String>,

    /// Where the node is, as in zone=a,rack=1
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = place, requires = "node_id")]
    node_topology: Option<BTreeMap<String, String>>,

    /// Do not offer STAGE_UNSTAGE_VOLUME
    #[arg(long, requires = "node_id")]
    without_stage: bool,

    /// Offer EXPAND_VOLUME on the node
    #[arg(long, requires = "node_id")]
    node_expand: bool,

    /// Make bind mounts on the node, which need root, instead of links
    #[arg(long, requires = "node_id")]
    mounts: bool,
}

fn place(text: &str) -> Result<BTreeMap<String, String>, String> {
    let segments = text.split(',').map(|segment| match segment.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{segment:?} is not KEY=VALUE")),
    });
    segments.collect()
}

/// Serves until a signal. Keeps volumes and log.
pub async fn run(args: CsiPluginArgs) -> Result<(), Failure> {
    let listen =
        |kind| signal(kind).map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let node = args.node_id.map(|id| NodeOptions {
        id,
        topology: args.node_topology.unwrap_or_default(),
        stages: !args.without_stage,
        expands: args.node_expand,
        mounts: args.mounts,
    });
    let options = Options {
        node,
        listen: args.listen,
        tls: args
            .tls_cert
            .zip(args.tls_key)
            .map(|(cert, key)| CertificateFiles { cert, key }),
        client_ca: args.tls_client_ca,
        control: args.control,
        backend: args.backend,
        log: args.log,
        driver: args.driver,
        version: args.driver_version,
        offers: Offers {
            controller: !args.without_controller,
            create: !args.without_create,
            publish: !args.without_publish,
            exact_access_modes: args.exact_access_modes,
            expand: args.expand,
            expand_offline: args.expand_offline,
            list: args.list,
            list_nodes: args.list_nodes,
        },
        single_node: args.single_node,
        places: args.place,
        latency: Duration::from_millis(args.latency_ms),
        not_ready: args.not_ready,
        backend_id: args.backend_id,
        capacity: args.capacity,
        room: args.room,
        large_context: args.large_context,
    };
    tokio::select! {
        ended = serve(options) => {
            ended.map_err(|error| Failure::failed(format!("the plugin cannot serve: {error}")))
        }
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}
