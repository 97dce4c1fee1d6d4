//! What happened in a run, one JSON object a line: first the [`Run`], then its [`Event`]s.
//!
//! A recorder writes an event when it knows all of it, for a call after its end. So the lines of a file are not in order:
//! [`History::read`] sorts the events by the instant at which each began.

mod bytes;
mod calls;
mod store;
mod world;

use std::fmt;
use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

pub use bytes::Bytes;
pub use calls::{CsiCall, CsiOutcome, KubernetesWrite, Poll, Verb};
pub use store::{
    Applied, Change, Changed, Compare, Is, LeaseCall, LeaseOp, Listed, MemberCall, MemberChange, Members, Op,
    Outcome, Revision, StoreCall, Target,
};
pub use world::{AgentFact, AgentWord, Command, Fault, Life, Lived, ReplicaRelease, Role, Settings, Signal};

/// Microseconds since the begin of the run, by the monotonic clock of the recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct At(pub u64);

impl At {
    /// This long after the begin of the run.
    pub const fn millis(millis: u64) -> Self {
        Self(millis * 1000)
    }

    /// The instant `millis` later.
    #[must_use]
    pub const fn plus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis * 1000))
    }

    /// The instant `millis` earlier, at the earliest the begin of the run.
    #[must_use]
    pub const fn minus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_sub(millis * 1000))
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06} s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// One process from its start to its end: `<name>#<n>` for the n-th start of what has this name, as in `replica-a#2`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Process(pub String);

impl Process {
    /// The name without the number of the start.
    pub fn name(&self) -> &str {
        self.0.split_once('#').map_or(self.0.as_str(), |(name, _)| name)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What was run: the first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The seed from which everything follows that the harness decides.
    pub seed: u64,
    /// How many faults it was asked for.
    pub faults: u32,
    /// Quorate's prefix in etcd.
    pub prefix: String,
    /// The releases that replicas may be of.
    pub releases: Vec<ReplicaRelease>,
    /// What the checks have to know of how the processes were started.
    pub settings: Settings,
    /// The guard that the replicas were run without; empty in a run of the product as it is.
    #[serde(default)]
    pub mutation: String,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When it began: of a call, when it was sent.
    pub at: At,
    /// What it was.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// etcd stored a change of one key, as a watch of the whole store has it.
    Changed(Changed),
    /// A process sent a transaction, a put or a deletion.
    Store(StoreCall),
    /// A process granted, renewed or revoked a lease.
    Lease(LeaseCall),
    /// A process asked for a change of etcd's members.
    Member(MemberCall),
    /// etcd's members, as one of them listed them.
    Members(Members),
    /// A plugin was called.
    Csi(CsiCall),
    /// The apiserver got a request that writes.
    Kubernetes(KubernetesWrite),
    /// A replica was asked whether it is ready.
    Poll(Poll),
    /// An agent did something on its node.
    Agent(AgentFact),
    /// A process started, ended, or got a signal.
    Life(Lived),
    /// A fault was begun.
    Fault(Fault),
    /// etcd was restored from a snapshot: what follows is of this epoch. The event is at the instant at which the last member
    /// of the old store was stopped.
    Restored {
        /// The epoch that begins; the store of the begin of the run has 0.
        epoch: u32,
        /// The revision of the snapshot.
        revision: i64,
    },
    /// The harness itself did not run from the instant of the event on, since the machine was too busy: what happened meanwhile
    /// it saw late.
    Stalled {
        /// When it ran again.
        until: At,
    },
    /// An operator ran a command.
    Command(Command),
    /// The harness stopped making faults and changes, and began to wait until everything is settled.
    Calm,
    /// The run is over. What is not settled by now is a fault: one sentence each.
    End {
        /// What the harness wanted and did not get.
        unsettled: Vec<String>,
        /// The ids of the volumes at the backend.
        backend_volumes: Vec<String>,
    },
}

/// A whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// What was run.
    pub run: Run,
    /// In the order of [`Event::at`].
    pub events: Vec<Event>,
}

/// Why a file holds no history.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file ends before its first line does.
    #[error("the file is empty: its first line has to describe the run")]
    Empty,
    /// A line cannot be read from the file.
    #[error("cannot read the file")]
    Io(#[from] io::Error),
    /// A line is not what it has to be.
    #[error("line {line} is no {expected}")]
    Line {
        /// Its number, from 1 on.
        line: usize,
        /// What it has to be.
        expected: &'static str,
        /// What is wrong.
        source: serde_json::Error,
    },
}

impl History {
    /// Reads a file and sorts its events.
    pub fn read(file: impl BufRead) -> Result<Self, Unreadable> {
        let mut lines = file.lines().enumerate();
        let (_, first) = lines.next().ok_or(Unreadable::Empty)?;
        let run = parse(0, &first?, "description of a run")?;
        let mut events = Vec::new();
        for (number, line) in lines {
            events.push(parse(number, &line?, "event")?);
        }
        events.sort_by_key(|event: &Event| event.at);
        Ok(Self { run, events })
    }

    /// Writes the file that [`History::read`] reads.
    pub fn write(&self, mut file: impl Write) -> io::Result<()> {
        line(&mut file, &self.run)?;
        self.events.iter().try_for_each(|event| line(&mut file, event))
    }
}

/// Writes one line, for a recorder that writes a history as it happens.
pub fn line(mut file: impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    file.write_all(&text)
}

fn parse<T: serde::de::DeserializeOwned>(
    index: usize,
    line: &str,
    expected: &'static str,
) -> Result<T, Unreadable> {
    serde_json::from_str(line).map_err(|source| Unreadable::Line {
        line: index + 1,
        expected,
        source,
    })
}
