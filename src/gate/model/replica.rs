//! A replica, as far as the gate goes: what its process remembers.

use super::store::Stored;
use crate::etcd::Revision;

/// A replica. Its process is started as long as the operator has not stopped it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Replica {
    pub process: Option<Process>,
    pub stopped: bool,
}

/// A process of the replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Process {
    /// Whether it has registered, and the window of that lease is open.
    pub registered: bool,
    /// The window has closed. It is not registered any more, unless a guard is missing.
    pub cut: bool,
    pub judged: Option<Judged>,
    pub lead: Option<Lead>,
}

/// The status as the process has judged it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Judged {
    /// When the status was written.
    pub written: Revision,
    pub admitted: bool,
}

/// A term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lead {
    pub term: Revision,
    /// Whether the window is open.
    pub open: bool,
    pub phase: Phase,
}

/// How far the leader is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Elected,
    /// The status was read, and a plan follows from it.
    Planned(Read),
    /// No node was in the way, and the last write below `/nodes/` was then at this revision.
    Free(Read, Revision),
    /// The gate allows to reconcile.
    Allowed(Read),
    Reconciling(Read),
    Reconciled(Read),
    /// All is done, and the status was written at this revision.
    Done(Revision),
}

/// The status as the leader knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Read {
    pub status: Option<Stored>,
    /// See [`plan`](crate::gate::plan::plan).
    pub preceded: bool,
}

/// A step of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadStep {
    ReadsStatus,
    Begins,
    SetsWorking,
    FindsNoneInTheWay,
    Restricts,
    BeginsToReconcile,
    HasReconciled,
    WritesDone,
    SeesAnotherStatus,
}

impl Process {
    pub fn serves(&self) -> bool {
        self.registered && self.judged.as_ref().is_some_and(|judged| judged.admitted)
    }

    /// Every revision in it.
    pub fn revisions(&mut self) -> Vec<&mut Revision> {
        let mut all: Vec<&mut Revision> = self.judged.iter_mut().map(|judged| &mut judged.written).collect();
        if let Some(Lead { term, phase, .. }) = &mut self.lead {
            all.push(term);
            all.extend(phase.revisions());
        }
        all
    }
}

impl Phase {
    fn revisions(&mut self) -> Vec<&mut Revision> {
        match self {
            Self::Elected => Vec::new(),
            Self::Planned(read) | Self::Allowed(read) | Self::Reconciling(read) | Self::Reconciled(read) => {
                read.revision().into_iter().collect()
            }
            Self::Free(read, nodes) => read.revision().into_iter().chain([nodes]).collect(),
            Self::Done(written) => vec![written],
        }
    }
}

impl Read {
    /// When the status was written.
    pub fn written(&self) -> Revision {
        self.status
            .as_ref()
            .map_or(Revision::ABSENT, |stored| stored.written)
    }

    fn revision(&mut self) -> Option<&mut Revision> {
        self.status.as_mut().map(|stored| &mut stored.written)
    }
}
