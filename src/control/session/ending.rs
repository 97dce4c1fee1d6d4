//! Why a session ends, and what its agent gets to know of it.

use tonic::Status;

use super::judgement::{OLDEST, Verdict};
use crate::control::not_proven::NotProven;
use crate::control::refusal;
use crate::store::Name;

/// Why a session ends.
pub enum Ending {
    /// What etcd says of the node or of the session.
    Verdict(Verdict),
    /// The copy of etcd by which it is judged is too old.
    Stale,
    /// The certificate of the connection proves the node no more: it has ended, or the authority was replaced.
    Certificate(NotProven),
    /// The replica stops. The node stays ready for as long as its lease lasts.
    Stopped,
    /// It has lasted long enough.
    Aged,
    /// The agent ended it, or its connection did.
    Closed,
    /// It could not begin.
    Refused(Status),
}

impl From<Verdict> for Ending {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
}

impl From<NotProven> for Ending {
    fn from(why: NotProven) -> Self {
        Self::Certificate(why)
    }
}

impl Ending {
    /// The reason as a label of the metric, and the answer to the agent of the node with this name and uid. `None` where no agent is
    /// there to be answered.
    pub fn answer(self, name: &Name, uid: &str) -> Option<(&'static str, Status)> {
        Some(match self {
            Self::Refused(status) => ("refused", status),
            Self::Closed => return None,
            Self::Verdict(verdict) => of_verdict(verdict, name, uid),
            Self::Stale => {
                let why = format!("this replica has not seen for {OLDEST:?} what is in etcd");
                ("stale", Status::unavailable(why))
            }
            Self::Certificate(why) => (of_certificate(&why), refusal::not_proven(&why)),
            Self::Aged => {
                let why = "the session is old enough: begin another one, with any replica";
                ("aged", Status::unavailable(why))
            }
            Self::Stopped => ("stopped", Status::unavailable("this replica stops")),
        })
    }
}

fn of_certificate(why: &NotProven) -> &'static str {
    match why {
        NotProven::Expired | NotProven::NotYetValid => "certificate",
        NotProven::NoCertificate | NotProven::Foreign | NotProven::NotOfNode | NotProven::OtherCluster => {
            "authority"
        }
    }
}

fn of_verdict(verdict: Verdict, name: &Name, uid: &str) -> (&'static str, Status) {
    match verdict {
        Verdict::Removed => ("removed", refusal::removed(uid)),
        Verdict::Gone => ("gone", refusal::gone(uid)),
        Verdict::Unreadable => ("unreadable", refusal::unreadable(format_args!("node {name}"))),
        Verdict::NotAccepted => ("pending", refusal::not_accepted()),
        Verdict::RoleChanged => {
            let why = format!("the observed role of node {name} has changed");
            ("role", Status::aborted(why))
        }
        Verdict::Superseded => {
            let why = format!("another session of node {name} has begun");
            ("superseded", Status::aborted(why))
        }
        Verdict::Lapsed => {
            let why = format!("the lease of the session of node {name} has ended: no heartbeat renewed it");
            ("lapsed", Status::unavailable(why))
        }
    }
}
