//! Node roles on the command line: `promote`, `demote`, `join`, `adopt`. They write requests and wait; the leader alone
//! changes etcd's member list.

pub mod adopt;
pub mod demote;
pub mod facts;
pub mod join;
pub mod promote;
pub mod request;
mod wait;

use crate::cli::exit::{Exit, Failure};
use crate::roles::checks::Refusal;
use crate::roles::reason::Reason;

/// A refusal as the commands tell it.
pub fn refused(refusal: &Refusal) -> Failure {
    let failure = Failure::new(
        Exit::Refused,
        format!("refused by rule {}: {refusal}", refusal.rule),
    );
    match hint(refusal.rule.as_str()) {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// What can be done about a refusal, by the word for its rule.
pub fn hint(rule: &str) -> Option<&'static str> {
    let hints = [
        (Reason::LastManager, "promote another node and let it join first"),
        (
            Reason::NotAMember,
            "let it join (quorate join), or delete the node",
        ),
        (
            Reason::QuorumRisk,
            "quorate get members shows which are unhealthy: bring them back first",
        ),
        (
            Reason::MemberOfEtcd,
            "--force does not change that: etcd would lose a member that it counts on. Demote the node first",
        ),
        (Reason::LastVoter, "without it there is no etcd"),
        (Reason::NotAManager, "quorate promote makes a manager of it"),
        (
            Reason::NodeRemoved,
            "a removed node does not come back: create a new one",
        ),
        (
            Reason::PeerUrlTaken,
            "quorate get members -o wide shows whose it is",
        ),
        (
            Reason::PeerUnreachable,
            "the replica that leads must reach it; where only the members do, add --no-dial",
        ),
    ];
    let found = hints.iter().find(|(reason, _)| reason.as_str() == rule);
    found.map(|(_, hint)| *hint)
}
