//! Calls that etcd cannot fence, and the polls of readiness.

use serde::{Deserialize, Serialize};

use super::{At, Process};

/// A call of a CSI plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CsiCall {
    /// Who called; none where the harness cannot tell.
    pub by: Option<Process>,
    /// The plugin: its name.
    pub plugin: String,
    /// The method, as in `CreateVolume`.
    pub rpc: String,
    /// The backend's id of the volume; of CreateVolume, the id that the volume gets or has. Empty for a call that is about none.
    pub volume: String,
    /// The node id: none for a call without such a field, empty if the field is.
    pub node_id: Option<String>,
    /// Of a publication, whether the node only reads.
    #[serde(default)]
    pub read_only: bool,
    /// When the plugin ended it; none: the plugin died first.
    pub ended: Option<At>,
    /// How.
    pub outcome: CsiOutcome,
}

/// How a CSI call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CsiOutcome {
    /// With this gRPC code; 0 is success. The plugin carried it out even if the answer was lost.
    Code(i32),
    /// The caller went away, or the plugin died: it may have been carried out.
    Unknown,
}

/// A request to the apiserver that writes, from its audit log or from the proxy beside the sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KubernetesWrite {
    /// Who sent it.
    pub by: Process,
    /// What it asks for.
    pub verb: Verb,
    /// API group and kind or resource, as in `apps/deployments`.
    pub resource: String,
    /// The namespace; empty for an object of the cluster.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// A dry run writes nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The status of the answer; none: there was none.
    pub code: Option<u16>,
}

/// What a request to the apiserver asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// A creation.
    Create,
    /// A replacement.
    Update,
    /// A patch or an apply.
    Patch,
    /// A deletion.
    Delete,
}

/// A poll of `/readyz`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Poll {
    /// The replica that answered.
    pub of: Process,
    /// When it answered.
    pub answered: At,
    /// Whether it is ready.
    pub ready: bool,
}
