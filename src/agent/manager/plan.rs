//! What an agent does about the etcd of its node. Pure: what is noted, what is on disk, what runs and what a replica has said in, a
//! step with its reason out.
//!
//! Etcd is stopped for good for one reason alone: the records name this very member among those that are out of the cluster for good. A role,
//! silence, a refused call or an expired certificate stop nothing. It is stopped to start again where the leader permits that to this very
//! member, in a rotation of the authorities. Etcd starts on an empty directory only where etcd's own list says
//! that the member has never started, and nothing here says otherwise.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::etcd::{ClusterId, MemberId};
use crate::identity::node::NodeRole;

mod step;

pub use step::{Found, Renewal, Rest, Step, Task};

/// For so long the answer to a request to join counts. It names every member of the cluster, and etcd does not start with another list.
const ANSWER_COUNTS: Duration = Duration::from_secs(60);

/// A member of an etcd cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnMember {
    /// The cluster.
    pub cluster: ClusterId,
    /// The member in it.
    pub id: MemberId,
}

/// How far the member of the node is, as its agent has noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Etcd may have been started, and its log was not seen yet.
    New,
    /// Its data directory is its memory from now on.
    Started,
    /// It is out of the cluster for good, and what is left of it is set aside.
    Ended,
}

/// What the agent has noted beside the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The member.
    pub own: OwnMember,
    /// How far it is.
    pub stage: Stage,
}

/// What is in the data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Nothing: it is empty, or does not exist.
    Missing,
    /// Something, and neither a log nor a database of etcd.
    NoLog,
    /// A database of etcd, and no log that says whose: left by a first start that failed, or by another etcd, which has its log elsewhere.
    Unowned,
    /// The log of this member.
    Of(OwnMember),
    /// Something that cannot be read, and why.
    Unreadable(String),
}

/// Whether etcd runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// It does not.
    Stopped,
    /// It does.
    Running,
    /// That could not be found out, and why.
    Unknown(String),
}

/// What the session shows; [`Shown::default`] before it has shown anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The observed role of the node.
    pub role: Option<NodeRole>,
    /// The role that an operator wants is worker.
    pub is_demoted: bool,
    /// The removal of the member that belongs to the node is decided.
    pub is_leaving: bool,
    /// Members of the node that are out of the cluster for good.
    pub removed: Vec<MemberId>,
    /// Another certificate of etcd is wanted.
    pub rotates: bool,
    /// The number of the restart that the leader permits.
    pub restart: Option<u64>,
}

/// The answer to a request to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The member of the node.
    pub own: OwnMember,
    /// By etcd's list it has started before.
    pub has_started: bool,
    /// How old the answer is.
    pub age: Duration,
}

/// The files by which etcd proves itself to others, and others to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// All its URLs are in clear text.
    Unneeded,
    /// What is there of them.
    Needed {
        /// The certificate with its key.
        certificate: Certificate,
        /// The list of revoked certificates.
        list: List,
    },
}

/// The certificate of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// There is none that can be read.
    Missing,
    /// There is one, and a reason to replace it.
    Held(Option<Renewal>),
}

/// The file with the list of revoked certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// It is there.
    pub is_there: bool,
    /// The session shows another one.
    pub has_changed: bool,
}

/// What a plan is made from.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// `None` where there is no note.
    pub noted: Option<Noted>,
    /// The URLs of the agent are others than those noted.
    pub has_moved: bool,
    /// What is in the data directory.
    pub data: Data,
    /// Whether etcd runs.
    pub process: Process,
    /// The role that the certificate of the node says; `None` without one.
    pub certified: Option<NodeRole>,
    /// What the session shows.
    pub shown: &'a Shown,
    /// Whether there is a session that shows it.
    pub is_current: bool,
    /// The last answer to a request to join, since etcd was last started.
    pub answered: Option<Answered>,
    /// The files of etcd.
    pub tls: Tls,
    /// The number of the last restart that was carried out.
    pub restarted: u64,
    /// What has failed, and is tried again later.
    pub resting: &'a BTreeSet<Task>,
}

impl Seen<'_> {
    /// The next step.
    pub fn plan(&self) -> Step {
        let step = match self.noted {
            None => self.without_note(),
            Some(Noted {
                own,
                stage: Stage::Ended,
            }) => self.end(own),
            Some(noted) if self.shown.removed.contains(&noted.own.id) => Step::Note(Noted {
                stage: Stage::Ended,
                ..noted
            }),
            Some(noted) => self.keep(noted),
        };
        match step.task() {
            Some(task) if self.resting.contains(&task) => Step::Rest(Rest::After(task)),
            _ => step,
        }
    }

    /// The member is out of the cluster for good: etcd stops, then its data is set aside, then the note goes.
    fn end(&self, own: OwnMember) -> Step {
        match (&self.process, &self.data) {
            (Process::Unknown(why), _) => Step::Rest(Rest::ProcessUnknown(why.clone())),
            // A person has put that there, as after a restore: it stays, and so does the etcd of that member (INV-12).
            (_, Data::Of(other)) if *other != own => Step::Forget(own.id),
            (Process::Running, _) => Step::Stop(own.id),
            (Process::Stopped, Data::Missing) => Step::Forget(own.id),
            (Process::Stopped, _) => Step::SetAside(own.id),
        }
    }

    fn without_note(&self) -> Step {
        if let Process::Unknown(why) = &self.process {
            return Step::Rest(Rest::ProcessUnknown(why.clone()));
        }
        let answered = match self.answer() {
            Ok(answered) => answered,
            Err(step) => return step,
        };
        match &self.data {
            // The note was lost, and the data was not.
            Data::Of(own) if *own == answered.own => Step::Note(Noted {
                own: *own,
                stage: Stage::Started,
            }),
            _ if self.process == Process::Running => Step::Rest(Rest::RunsUnnoted),
            data if answered.has_started => lost(answered.own, data),
            Data::Missing | Data::NoLog => self.unless_unproven(Step::Note(Noted {
                own: answered.own,
                stage: Stage::New,
            })),
            data => Step::Rest(Rest::InTheWay(Found::of(data))),
        }
    }

    fn keep(&self, noted: Noted) -> Step {
        match &self.process {
            Process::Unknown(why) => Step::Rest(Rest::ProcessUnknown(why.clone())),
            Process::Running if noted.stage == Stage::New && self.data == Data::Of(noted.own) => {
                Step::Note(Noted {
                    stage: Stage::Started,
                    ..noted
                })
            }
            // A unit that systemd starts again and again runs on what is lost, as far as is seen.
            Process::Running if noted.stage == Stage::Started && self.has_lost(noted.own) => {
                lost(noted.own, &self.data)
            }
            Process::Running => self.restart().unwrap_or_else(|| self.care()),
            Process::Stopped if noted.stage == Stage::Started => {
                self.restart().unwrap_or_else(|| self.start(noted))
            }
            Process::Stopped => self.start(noted),
        }
    }

    /// The data directory holds no data of this member. One that cannot be read may.
    fn has_lost(&self, own: OwnMember) -> bool {
        match &self.data {
            Data::Missing | Data::NoLog | Data::Unowned => true,
            Data::Of(found) => *found != own,
            Data::Unreadable(_) => false,
        }
    }

    /// The restart that is permitted and was not carried out. A permission that is shown by no session any more may be another
    /// member's by now (INV-5). An etcd in clear text trusts no authority.
    fn restart(&self) -> Option<Step> {
        let number = self.shown.restart.filter(|number| *number > self.restarted)?;
        if !self.is_current {
            return None;
        }
        let can = matches!(self.tls, Tls::Needed { .. }) && !self.resting.contains(&Task::Stop);
        can.then_some(Step::Restart(number))
    }

    /// Keeps the files of an etcd that runs up to date, which reads them at every handshake.
    fn care(&self) -> Step {
        let rests = |task| self.resting.contains(&task);
        if let Tls::Needed { certificate, list } = self.tls {
            if list.has_changed && !rests(Task::Files) {
                return Step::WriteList;
            }
            let due = match certificate {
                Certificate::Missing => Some(Renewal::First),
                Certificate::Held(due) => due,
            };
            if let Some(why) = due.filter(|_| self.may_call() && !rests(Task::Certify)) {
                return Step::Certify(why);
            }
        }
        // One that has named another member moves nothing, and nor would the next one at once.
        let was_answered = self.answered.is_some_and(|answered| answered.age < ANSWER_COUNTS);
        match self.has_moved && !was_answered && self.may_call() && !rests(Task::Join) {
            true => Step::Join,
            false => Step::Rest(Rest::Runs),
        }
    }

    fn start(&self, noted: Noted) -> Step {
        match (&self.data, noted.stage) {
            (Data::Of(own), Stage::New) if *own == noted.own => Step::Note(Noted {
                stage: Stage::Started,
                ..noted
            }),
            (Data::Of(own), _) if *own == noted.own => self.unless_unproven(Step::Start),
            // The note was made where there was no database: it is that of an attempt, which has applied nothing without a log.
            (Data::Missing | Data::NoLog | Data::Unowned, Stage::New) => self.start_first(noted.own),
            (data, _) => lost(noted.own, data),
        }
    }

    /// Starts a member that has no data, as far as is noted: for the first time, or after an attempt that wrote none.
    fn start_first(&self, own: OwnMember) -> Step {
        match self.answer() {
            Err(step) => step,
            // The list is the later word. There is nothing of the former member that could be lost.
            Ok(answered) if answered.own != own => match answered.has_started {
                true => lost(answered.own, &self.data),
                false => Step::Note(Noted {
                    own: answered.own,
                    stage: Stage::New,
                }),
            },
            Ok(answered) if answered.has_started => lost(own, &self.data),
            Ok(_) => self.unless_unproven(Step::Start),
        }
    }

    /// The answer to a request to join, or how to come by one.
    fn answer(&self) -> Result<Answered, Step> {
        let counts = |answered: &Answered| {
            answered.age < ANSWER_COUNTS && !self.shown.removed.contains(&answered.own.id)
        };
        if let Some(answered) = self.answered.filter(counts) {
            return Ok(answered);
        }
        Err(match (self.shown.role, self.certified) {
            (None, _) => Step::Rest(Rest::NoSession),
            (Some(NodeRole::Worker), _) => Step::Rest(Rest::NotAManager),
            (Some(NodeRole::Manager), _) if self.shown.is_demoted => Step::Rest(Rest::NotAManager),
            (Some(NodeRole::Manager), Some(NodeRole::Manager)) => Step::Join,
            (Some(NodeRole::Manager), _) => Step::Rest(Rest::NotCertified),
        })
    }

    /// This step, or what comes before it: etcd starts neither without its certificate nor without the list of revoked ones.
    fn unless_unproven(&self, step: Step) -> Step {
        let Tls::Needed { certificate, list } = self.tls else {
            return step;
        };
        match (certificate, list) {
            (Certificate::Missing, _) if self.may_call() => Step::Certify(Renewal::First),
            (Certificate::Missing, _) if self.shown.is_leaving || self.shown.is_demoted => {
                Step::Rest(Rest::Leaving)
            }
            (Certificate::Missing, _) if self.shown.role.is_none() => Step::Rest(Rest::NoSession),
            (Certificate::Missing, _) => Step::Rest(Rest::NotCertified),
            (_, List { is_there: true, .. }) => step,
            (
                _,
                List {
                    has_changed: true, ..
                },
            ) => Step::WriteList,
            _ => Step::Rest(Rest::NoList),
        }
    }

    /// Whether a call of managers may succeed.
    fn may_call(&self) -> bool {
        let Shown {
            role,
            is_demoted,
            is_leaving,
            ..
        } = *self.shown;
        let manager = Some(NodeRole::Manager);
        role == manager && self.certified == manager && !is_demoted && !is_leaving
    }
}

fn lost(own: OwnMember, data: &Data) -> Step {
    let found = Found::of(data);
    Step::Rest(Rest::Lost { own, found })
}

impl std::fmt::Display for OwnMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "member {} of cluster {}", self.id, self.cluster)
    }
}

#[cfg(test)]
mod tests;
