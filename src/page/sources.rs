//! Where the status page looks: at what the parts of a replica have published.

use jiff::Timestamp;

use super::compose::{Answer, Seen, compose};
use super::state::State;
use crate::clock;
use crate::deallocator::summary::DeletionsSummary;
use crate::etcd::Etcd;
use crate::gate::status::StatusJson;
use crate::gate::summary::ReleasesSummary;
use crate::replica::ReplicaStatus;
use crate::resources::summary::ResourcesSummary;
use crate::roles::summary::{NodesSummary, RolesSummary};
use crate::summary::Reader;
use crate::volumes::summary::VolumesSummary;

pub use super::compose::About;

/// The sources of one replica. They must be there before its parts begin: what has no reader is not summarized.
pub struct Sources {
    about: About,
    status: ReplicaStatus,
    releases: Reader<ReleasesSummary>,
    nodes: Reader<NodesSummary>,
    gate: Reader<StatusJson>,
    roles: Reader<RolesSummary>,
    volumes: Reader<VolumesSummary>,
    deletions: Reader<DeletionsSummary>,
    resources: Reader<ResourcesSummary>,
}

impl Sources {
    /// Reads what this replica publishes.
    pub fn new(about: About, status: &ReplicaStatus) -> Self {
        let summaries = &status.summaries;
        Self {
            about,
            releases: summaries.releases.reader(),
            nodes: summaries.nodes.reader(),
            gate: summaries.gate.reader(),
            roles: summaries.roles.reader(),
            volumes: summaries.volumes.reader(),
            deletions: summaries.deletions.reader(),
            resources: summaries.resources.reader(),
            status: status.clone(),
        }
    }

    /// The state now, from memory alone. It does not block.
    pub fn look(&self) -> State {
        compose(&self.about, &self.seen())
    }

    fn seen(&self) -> Seen {
        let status = &self.status;
        let etcd = status.etcd();
        let answer = etcd.and_then(Etcd::last_answer).map(|last| Answer {
            age: clock::now().saturating_duration_since(last.sent),
            time: Timestamp::try_from(last.time).unwrap_or(Timestamp::UNIX_EPOCH),
        });
        let not_registered = (!status.readiness.registered())
            .then(|| "this replica is not registered in etcd, or cannot reach etcd".to_owned());
        let not_admitted = || status.readiness.gate().err().map(|reason| reason.to_string());
        Seen {
            answer,
            is_cut_off: etcd.is_some_and(Etcd::is_cut_off),
            is_registered: not_registered.is_none(),
            leads: status.leads(),
            leader: status.leader(),
            not_standing: status.refused().or_else(|| status.yields_to()),
            not_ready: not_registered.or_else(not_admitted),
            status: status.readiness.status(),
            releases: self.releases.latest(),
            nodes: self.nodes.latest(),
            gate: self.gate.latest(),
            roles: self.roles.latest(),
            volumes: self.volumes.latest(),
            deletions: self.deletions.latest(),
            resources: self.resources.latest(),
        }
    }
}
