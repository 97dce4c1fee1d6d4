//! What the status page shows: the document of `/api/v1/state`. Fields may be added; those that are there keep their names and
//! meanings. Pure.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::deallocator::summary::DeletionsSummary;
use crate::gate::status::Degraded;
use crate::gate::summary::ReleasesSummary;
use crate::resources::summary::ResourcesSummary;
use crate::roles::summary::{NodesSummary, RolesSummary};
use crate::volumes::summary::VolumesSummary;

/// What a replica knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// How old all of this is.
    pub picture: Picture,
    /// The replica that shows it.
    pub replica: OwnReplica,
    /// The leader, as far as this replica knows.
    pub leader: Option<Leader>,
    /// The gate; `None` for a replica without Kubernetes.
    pub gate: Option<Gate>,
    /// The releases that run.
    pub releases: Part<ReleasesSummary>,
    /// Members of etcd, and changes of roles.
    pub roles: Part<RolesSummary>,
    /// The nodes.
    pub nodes: Part<NodesSummary>,
    /// The volumes.
    pub volumes: Part<VolumesSummary>,
    /// Services and networks that are marked for deletion.
    pub deletions: Part<DeletionsSummary>,
    /// The Kubernetes resources; `None` for a replica without Kubernetes.
    pub resources: Option<Part<ResourcesSummary>>,
}

/// How old the picture is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Picture {
    /// When the request was sent that etcd has answered last, in RFC 3339; `None` before the first.
    pub as_of: Option<String>,
    /// How long ago that was, in seconds.
    pub age_seconds: Option<u64>,
    /// Whether etcd does not answer this replica now.
    pub cut_off: bool,
}

/// The replica that shows the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnReplica {
    /// Its node id.
    pub name: String,
    /// The version of the program.
    pub program: &'static str,
    /// The name and version of its bundle.
    pub bundle: String,
    /// Whether it leads.
    pub leads: bool,
    /// Whether it may serve.
    pub ready: bool,
    /// Why it may not serve, or does not stand for election; empty where neither holds.
    pub remarks: Vec<String>,
}

/// The leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Leader {
    /// Its node id.
    pub name: String,
    /// Its term.
    pub term: i64,
    /// Whether it is only the last one that was seen: this replica is not registered, or cut off.
    pub is_last_known: bool,
    /// The address of its status page; `None` where that is not known.
    pub page: Option<String>,
}

/// The gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gate {
    /// The status, as every replica follows it.
    pub status: GateStatus,
    /// What is wrong according to the leader, and what it waits for.
    pub degraded: Part<Option<Degraded>>,
}

/// The status of the gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "is")]
pub enum GateStatus {
    /// It was not read yet.
    Unread,
    /// There is none: no replica is admitted.
    Absent,
    /// It cannot be read.
    Malformed {
        /// Why.
        message: String,
    },
    /// There is one.
    Stored {
        /// `DONE`, `WORKING`
        state: String,
        /// The version that reconciled.
        version: String,
        /// Releases below this one must not serve.
        minimum_compatible_release: String,
    },
}

/// One part of the picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Part<T> {
    /// Whether it is known, and since when not any more.
    pub known: Known,
    /// For [`Known::Past`]: when it was last known to hold, in RFC 3339.
    pub as_of: Option<String>,
    /// What is known.
    #[serde(serialize_with = "content", bound(serialize = "T: Serialize"))]
    pub content: Option<Arc<T>>,
}

/// Whether a part is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Known {
    /// It is kept up to date.
    Now,
    /// It was known before the replica was cut off.
    Past,
    /// It will be known in a moment.
    NotYet,
    /// The leader alone knows it, and this replica does not lead.
    ByTheLeader,
}

impl<T> Part<T> {
    /// Nothing is known, for this reason.
    pub fn unknown(known: Known) -> Self {
        Self {
            known,
            as_of: None,
            content: None,
        }
    }
}

fn content<T: Serialize, S: Serializer>(content: &Option<Arc<T>>, serializer: S) -> Result<S::Ok, S::Error> {
    content.as_deref().serialize(serializer)
}
