//! The node agent: what runs beside the workload of a node.

pub mod confirm;
pub mod volumes;

use std::sync::Arc;

use crate::csi::Endpoint;
use crate::proto::NodeView;

/// What the cluster wants of this node. `None` until this process has had a first view; then always the latest, also while no
/// session is open.
pub type ViewReceiver = tokio::sync::watch::Receiver<Option<Arc<NodeView>>>;

/// A CSI plugin on this node: `--csi-node NAME=unix:///…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiNodePlugin {
    /// The name of the driver.
    pub name: String,
    /// Where its Node service listens.
    pub endpoint: Endpoint,
}
