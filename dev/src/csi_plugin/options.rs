//! The configuration of a plugin.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::pki::CertificateFiles;
use quorate::csi::Endpoint;

/// The configuration of a plugin.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: Endpoint,
    /// Its certificate, for TLS; none: clear text.
    pub tls: Option<CertificateFiles>,
    /// The certificate authority of its clients, with TLS; none: it asks for no certificate.
    pub client_ca: Option<PathBuf>,
    /// The unix socket for orders; none: it takes no orders.
    pub control: Option<PathBuf>,
    /// The directory of its volumes.
    pub backend: PathBuf,
    /// The file that gets a line for every call.
    pub log: PathBuf,
    /// The driver's name.
    pub driver: String,
    /// The driver's version.
    pub version: String,
    /// Its capabilities.
    pub offers: Offers,
    /// Refuses to publish a volume to a second node, whatever its access mode.
    pub single_node: bool,
    /// The segments of the topology that it serves; empty: it has no topology.
    pub places: Vec<BTreeMap<String, String>>,
    /// Delays every call about a volume.
    pub latency: Duration,
    /// Probe answers "not ready" until an order changes that.
    pub not_ready: bool,
    /// The identity of its backend, which GetPluginInfo tells; none: it tells none.
    pub backend_id: Option<String>,
    /// The capacity of every new volume in bytes, whatever is asked for.
    pub capacity: Option<u64>,
    /// The bytes of its backend, which it tells (GET_CAPACITY); none: no limit.
    pub room: Option<u64>,
    /// The size in bytes of the context that it gives with every publication, beside what it usually gives.
    pub large_context: usize,
    /// The node that it runs on; none: it has no Node service.
    pub node: Option<NodeOptions>,
}

/// The node that a plugin runs on.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its id of the node.
    pub id: String,
    /// Where the node is; empty: it says no place.
    pub topology: BTreeMap<String, String>,
    /// STAGE_UNSTAGE_VOLUME
    pub stages: bool,
    /// EXPAND_VOLUME
    pub expands: bool,
    /// Makes bind mounts, which need root; else links.
    pub mounts: bool,
}

impl NodeOptions {
    /// A node whose volumes are staged, and links.
    pub fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            topology: BTreeMap::new(),
            stages: true,
            expands: false,
            mounts: false,
        }
    }
}

/// Capabilities that a plugin reports and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers {
    /// The Controller service.
    pub controller: bool,
    /// CREATE_DELETE_VOLUME
    pub create: bool,
    /// PUBLISH_UNPUBLISH_VOLUME and PUBLISH_READONLY
    pub publish: bool,
    /// SINGLE_NODE_MULTI_WRITER
    pub exact_access_modes: bool,
    /// EXPAND_VOLUME
    pub expand: bool,
    /// Expands a volume only while it is published nowhere.
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
            exact_access_modes: false,
            expand: false,
            expand_offline: false,
            list: false,
            list_nodes: false,
        }
    }
}

impl Options {
    /// A plugin with its files in this directory, listening on a unix socket there.
    pub fn in_directory(directory: &Path, driver: &str) -> Self {
        Self {
            listen: Endpoint::Unix(directory.join("csi.sock")),
            tls: None,
            client_ca: None,
            control: Some(directory.join("control.sock")),
            backend: directory.join("volumes"),
            log: directory.join("calls.jsonl"),
            driver: driver.to_owned(),
            version: "1".to_owned(),
            offers: Offers::default(),
            single_node: false,
            places: Vec::new(),
            latency: Duration::ZERO,
            not_ready: false,
            backend_id: None,
            capacity: None,
            room: None,
            large_context: 0,
            node: None,
        }
    }
}
