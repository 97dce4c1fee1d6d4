//! What the parts of a replica know, for people.

use crate::deallocator::summary::DeletionsSummary;
use crate::gate::status::StatusJson;
use crate::gate::summary::ReleasesSummary;
use crate::resources::summary::ResourcesSummary;
use crate::roles::summary::{NodesSummary, RolesSummary};
use crate::summary::Latest;
use crate::volumes::summary::VolumesSummary;

/// The latest summaries. Those that say so are made by every replica, the others by the leader alone. All clones share them.
#[derive(Clone, Debug, Default)]
pub struct Summaries {
    /// The releases that run: of every replica.
    pub releases: Latest<ReleasesSummary>,
    /// The nodes: of every replica that serves agents.
    pub nodes: Latest<NodesSummary>,
    /// The gate.
    pub gate: Latest<StatusJson>,
    /// Members of etcd, and the roles of nodes.
    pub roles: Latest<RolesSummary>,
    /// Volumes and CSI plugins.
    pub volumes: Latest<VolumesSummary>,
    /// Services and networks that are marked for deletion.
    pub deletions: Latest<DeletionsSummary>,
    /// The last pass over the Kubernetes resources.
    pub resources: Latest<ResourcesSummary>,
}
