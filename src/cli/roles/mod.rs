//! Node roles on the command line: `promote`, `demote`, `join`, `replace`, `adopt`. They write requests and wait; only the leader
//! changes etcd's member list.

pub mod adopt;
pub mod demote;
pub mod join;
pub mod pause;
pub mod promote;
pub mod recover;
pub mod replace;
pub mod request;
mod wait;

use std::fmt;

use crate::cli::exit::Failure;
use crate::roles::checks::Refusal;
use crate::roles::facts::NotRead;
use crate::roles::reason::Reason;

impl From<NotRead> for Failure {
    fn from(not_read: NotRead) -> Self {
        match not_read {
            NotRead::MemberList(error) => Self::failed(format!("the member list cannot be read: {error}"))
                .hint("does etcd have a quorum? etcdctl endpoint health --cluster"),
            NotRead::Records(error) => error.into(),
        }
    }
}

/// A refusal as the failure of a command.
pub fn refused(refusal: &Refusal) -> Failure {
    refused_by(refusal.rule.as_str(), refusal)
}

/// A refusal by the rule with this word as the failure of a command.
pub fn refused_by(rule: &str, why: impl fmt::Display) -> Failure {
    let failure = Failure::refused(rule, why);
    match hint(rule) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// What can be done about a refusal, by the word of its rule.
fn hint(rule: &str) -> Option<&'static str> {
    let hints = [
        (Reason::LastManager, "promote another node and let it join first"),
        (
            Reason::NotAMember,
            "let it join (quorate join), or delete the node",
        ),
        (
            Reason::QuorumRisk,
            "quorate get members shows the unhealthy members; repair them first",
        ),
        (
            Reason::MemberOfEtcd,
            "--force does not change that: etcd would lose a member that it counts on. Demote the node first",
        ),
        (Reason::LastVoter, "without it there is no etcd"),
        (
            Reason::MemberHealthy,
            "--force replaces it all the same; empty its data directory first",
        ),
        (Reason::NotAManager, "quorate promote makes it a manager"),
        (
            Reason::NodeRemoved,
            "a node that comes back is a new node: create it again",
        ),
        (
            Reason::PeerUrlTaken,
            "quorate get members -o wide shows the peer URLs",
        ),
        (
            Reason::PeerUnreachable,
            "the leading replica must reach it; if only the members can, add --no-dial",
        ),
    ];
    let found = hints.iter().find(|(reason, _)| reason.as_str() == rule);
    found.map(|(_, hint)| *hint)
}
