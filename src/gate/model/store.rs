//! What etcd and Kubernetes hold, as far as the gate goes, and what a transaction of the leader proves.

use std::collections::{BTreeMap, BTreeSet};

use crate::etcd::Revision;
use crate::gate::status::Status;

/// What etcd and Kubernetes hold. A backup is of one moment of both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    pub revision: Revision,
    /// The replica whose key is the oldest in the election, and the revision at which that was created.
    pub leader: Option<(usize, Revision)>,
    pub status: Option<Stored>,
    /// Whether `status.json` or an inventory shows that a leader has begun.
    pub begun: bool,
    /// The registrations below `/nodes/`, by replica.
    pub registrations: BTreeMap<usize, Registration>,
    /// The bundles of which an object may be in Kubernetes.
    pub reconciled: BTreeSet<usize>,
}

/// The value of the status key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    pub value: Vec<u8>,
    pub written: Revision,
}

/// The registration of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Registration {
    pub written: Revision,
    /// Whether the process that runs has written it.
    pub own: bool,
}

/// What a transaction of the leader compares.
#[derive(Clone, Copy, Debug, Default)]
pub struct Proof {
    /// The fence.
    pub leader: Option<(usize, Revision)>,
    /// The status was last written at this revision.
    pub status: Option<Revision>,
    /// The last write below `/nodes/` was at this revision; [`Revision::ABSENT`] if there is no key.
    pub nodes: Option<Revision>,
}

/// Why a transaction was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    LostLeadership,
    Stale,
}

impl Stored {
    pub fn status(&self) -> Option<Status> {
        Status::decode(&self.value).ok()
    }
}

impl Store {
    /// The revision of a write.
    pub fn write(&mut self) -> Revision {
        self.revision = self.revision.next();
        self.revision
    }

    /// The revision at which the status was last written.
    pub fn status_written(&self) -> Revision {
        self.status
            .as_ref()
            .map_or(Revision::ABSENT, |stored| stored.written)
    }

    /// The last write below `/nodes/`.
    pub fn nodes_written(&self) -> Revision {
        let written = self
            .registrations
            .values()
            .map(|registration| registration.written);
        written.max().unwrap_or(Revision::ABSENT)
    }

    /// Whether a transaction with these compares is carried out.
    pub fn check(&self, proof: Proof) -> Result<(), Refused> {
        if proof.leader.is_some() && proof.leader != self.leader {
            return Err(Refused::LostLeadership);
        }
        let is_so = proof.status.is_none_or(|status| status == self.status_written())
            && proof.nodes.is_none_or(|nodes| nodes == self.nodes_written());
        is_so.then_some(()).ok_or(Refused::Stale)
    }

    pub fn put_status(&mut self, value: Vec<u8>) -> Stored {
        let written = self.write();
        let stored = Stored { value, written };
        self.status = Some(stored.clone());
        stored
    }

    /// Every revision in it.
    pub fn revisions(&mut self) -> Vec<&mut Revision> {
        let Self {
            revision,
            leader,
            status,
            registrations,
            ..
        } = self;
        let mut all = vec![revision];
        all.extend(leader.iter_mut().map(|(_, created)| created));
        all.extend(status.iter_mut().map(|stored| &mut stored.written));
        all.extend(
            registrations
                .values_mut()
                .map(|registration| &mut registration.written),
        );
        all
    }
}
