//! What the leader does about a rotation. Pure.
//!
//! A phase ends once nothing holds it up. Not knowing holds it up, too: a replica that has reported nothing, a node that is down, a
//! member that could not be looked at. Each is named.

use std::collections::HashMap;

use jiff::Timestamp;

use super::facts::{Certified, Facts, Looked, Member, Replica, Session};
use super::record::{Phase, Rotation};
use crate::identity::authority::AuthorityKind;
use crate::proto;
use crate::store::object::time;

mod hold;

pub use hold::{Hold, Kind, Why};

/// The most that a record names; the rest is counted.
const MOST_NAMED: usize = 32;

/// The most nodes that are asked for another certificate in one pass, a second at least: each answer is a signature, and a write of a
/// replica.
const MOST_ASKED: usize = 64;

/// What there is to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The record that takes the place of the present one; `None` if it may stay.
    pub next: Option<Rotation>,
    /// The certificates that have to be replaced, with the uids of their nodes.
    pub asked: Vec<(AuthorityKind, Box<str>)>,
}

/// Plans the next step of a rotation. `authorities` are the certificates that etcd trusts in the end (PEM), empty if they are not at
/// hand.
pub fn plan(rotation: &Rotation, facts: &Facts<'_>, authorities: &str, now: Timestamp) -> Plan {
    if rotation.phase == Phase::Done {
        return Plan::default();
    }
    let mut holds = of_replicas(rotation, facts);
    let mut next = rotation.clone();
    let mut asked = Vec::new();
    match rotation.phase {
        Phase::Trust | Phase::Done => {}
        Phase::Reissue => {
            holds.extend(of_certificates(rotation, facts));
            let unreadable = facts.unreadable.iter();
            holds.extend(unreadable.map(|uid| Hold::new(Kind::Node, &**uid, Why::Unreadable)));
            holds.extend(of_sessions(rotation, facts));
            holds.extend(of_members_in_reissue(rotation, facts));
            if !facts.may_drop {
                holds.push(Hold::new(Kind::Operator, "etcd", Why::Unconfirmed));
            }
            asked = to_ask(rotation, facts);
        }
        Phase::Drop => {
            let (waits, restart) = of_members_in_drop(rotation, facts, authorities, now);
            holds.extend(waits);
            if let Some(restart) = &restart {
                next.value.last_restart = restart.number;
            }
            next.value.restart = restart;
        }
    }
    holds.sort();
    if holds.is_empty()
        && asked.is_empty()
        && let Some(phase) = rotation.phase.next()
    {
        return Plan {
            next: Some(next.moved_to(phase, now)),
            asked,
        };
    }
    next.value.held_up = u32::try_from(holds.len()).unwrap_or(u32::MAX);
    next.value.waits = holds.iter().take(MOST_NAMED).map(Hold::to_proto).collect();
    Plan {
        next: (next != *rotation).then_some(next),
        asked,
    }
}

fn of_replicas(rotation: &Rotation, facts: &Facts<'_>) -> Vec<Hold> {
    let hold = |replica: &Replica| {
        let report = replica
            .report
            .as_ref()
            .filter(|report| report.after == rotation.after);
        let why = match report {
            None => Why::Silent,
            Some(report) if report.phase >= Some(rotation.phase) => return None,
            Some(report) if !report.hindrance.is_empty() => Why::Hindered(report.hindrance.clone()),
            Some(_) => Why::Behind,
        };
        Some(Hold::new(Kind::Replica, &*replica.name, why))
    };
    facts.replicas.iter().filter_map(hold).collect()
}

fn is_old(rotation: &Rotation, certified: &Certified) -> bool {
    certified.signer != Some(rotation.after.of(certified.kind))
}

fn of_certificates(rotation: &Rotation, facts: &Facts<'_>) -> Vec<Hold> {
    let old = facts
        .certified
        .iter()
        .filter(|certified| is_old(rotation, certified));
    old.map(|certified| {
        let why = match certified.kind {
            AuthorityKind::Node => Why::OldCertificate,
            AuthorityKind::Etcd => Why::OldEtcdCertificate,
        };
        Hold::new(Kind::Node, &*certified.node, why)
    })
    .collect()
}

fn to_ask(rotation: &Rotation, facts: &Facts<'_>) -> Vec<(AuthorityKind, Box<str>)> {
    let due = facts.certified.iter();
    let due = due.filter(|certified| is_old(rotation, certified) && !certified.is_asked);
    due.take(MOST_ASKED)
        .map(|certified| (certified.kind, certified.uid.clone()))
        .collect()
}

/// That the record has the new certificate says that it was signed. That the agent has it, and knows servers by the new authority, its
/// session says.
fn of_sessions(rotation: &Rotation, facts: &Facts<'_>) -> Vec<Hold> {
    let wanted = Some(rotation.after.node);
    let sessions = facts.sessions.iter();
    let sessions: HashMap<&str, &Session> = sessions.map(|session| (&*session.uid, session)).collect();
    let renewed = facts
        .certified
        .iter()
        .filter(|certified| certified.kind == AuthorityKind::Node && !is_old(rotation, certified));
    let hold = |certified: &Certified| {
        let session = sessions.get(&*certified.uid);
        let why = match session {
            None => Why::Down,
            Some(session) if session.authority == wanted => return None,
            Some(_) => Why::ShowsOld,
        };
        Some(Hold::new(Kind::Node, &*certified.node, why))
    };
    renewed.filter_map(hold).collect()
}

fn unknown_members() -> Hold {
    Hold::new(Kind::Member, "etcd", Why::ListUnknown)
}

fn of_members_in_reissue(rotation: &Rotation, facts: &Facts<'_>) -> Vec<Hold> {
    if rotation.before.etcd == rotation.after.etcd {
        return Vec::new();
    }
    let Some(members) = facts.members else {
        return vec![unknown_members()];
    };
    let hold = |member: &Member| {
        let why = match &member.seen {
            Looked::InClearText { .. } | Looked::Foreign { .. } => return None,
            Looked::Unreachable(why) => Why::Unreachable(why.clone()),
            Looked::Seen(seen) if !seen.shows_new => Why::MemberShowsOld(member.has_agent),
            // Its leaf leads to the former authority as well, by which it takes it.
            Looked::Seen(_) => return None,
        };
        Some(Hold::new(Kind::Member, member.title(), why))
    };
    members.iter().filter_map(hold).collect()
}

/// What holds up the end of the former etcd authority, and the member whose etcd may be started again, if one may. It has the
/// permission until it is back: never do two etcds end at once for a rotation (INV-5).
fn of_members_in_drop(
    rotation: &Rotation,
    facts: &Facts<'_>,
    authorities: &str,
    now: Timestamp,
) -> (Vec<Hold>, Option<proto::EtcdRestart>) {
    let present = rotation.value.restart.clone();
    if rotation.before.etcd == rotation.after.etcd {
        return (Vec::new(), None);
    }
    let Some(members) = facts.members else {
        return (vec![unknown_members()], present);
    };
    let mut holds = Vec::new();
    let mut due: Vec<&Member> = Vec::new();
    let mut under_way = None;
    for member in members {
        let is_permitted = present
            .as_ref()
            .is_some_and(|restart| restart.member_id == member.id.0);
        match judge(member, is_permitted) {
            Turn::Over => {}
            Turn::Held(why) => holds.push(Hold::new(Kind::Member, member.title(), why)),
            Turn::UnderWay => under_way = Some(member),
            Turn::Due => due.push(member),
        }
    }
    // Those that an agent keeps first: a person may take days.
    due.sort_by_key(|member| (!member.has_agent, member.id));
    let first = under_way.or_else(|| due.first().copied());
    let Some(first) = first else {
        return (holds, None);
    };
    let hold = |member: &Member, why| Hold::new(Kind::Member, member.title(), why);
    let ill = unhealthy_beside(first, members);
    // A permission that was not used yet is taken back: an agent may find it whenever it has a session again. The member keeps its
    // turn, since it is the first of those that are due, so that no other one starts while it does.
    let may_be_used = under_way.is_none_or(is_unused);
    if may_be_used && (!ill.is_empty() || authorities.is_empty()) {
        let waiting = due.iter().copied().chain(under_way);
        holds.extend(waiting.map(|member| hold(member, Why::Unhealthy(ill.clone()))));
        return (holds, None);
    }
    // A change counts both ways, until it is over.
    let changing = names(members.iter().filter(|member| member.changes));
    if under_way.is_none() && !changing.is_empty() {
        holds.extend(
            due.iter()
                .map(|member| hold(member, Why::Changing(changing.clone()))),
        );
        return (holds, None);
    }
    holds.push(hold(first, restarting(first)));
    // The others take their turn.
    let others = due.iter().filter(|member| member.id != first.id);
    holds.extend(others.map(|member| hold(member, Why::Unhealthy(first.title()))));
    let restart = match under_way {
        Some(_) => present,
        None => Some(permission(first, rotation, authorities, now)),
    };
    (holds, restart)
}

/// Where a member stands in the end of the former authority.
enum Turn {
    /// It takes the new authority alone.
    Over,
    /// This holds it up.
    Held(Why),
    /// It was permitted to start again, and is not back.
    UnderWay,
    /// It has to start again.
    Due,
}

fn judge(member: &Member, is_permitted: bool) -> Turn {
    match &member.seen {
        Looked::InClearText { .. } | Looked::Foreign { .. } => Turn::Over,
        Looked::Unreachable(_) if is_permitted => Turn::UnderWay,
        Looked::Unreachable(why) => Turn::Held(Why::Unreachable(why.clone())),
        Looked::Seen(seen) if !seen.takes_old && !seen.takes_new => Turn::Held(Why::RefusesNew),
        Looked::Seen(seen) if !seen.takes_old && (seen.is_healthy || !is_permitted) => Turn::Over,
        Looked::Seen(_) if is_permitted => Turn::UnderWay,
        Looked::Seen(_) => Turn::Due,
    }
}

fn permission(member: &Member, rotation: &Rotation, authorities: &str, now: Timestamp) -> proto::EtcdRestart {
    let (node, uid) = member.node.clone().unwrap_or_default();
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    proto::EtcdRestart {
        number: seconds.max(rotation.value.last_restart.saturating_add(1)),
        member_id: member.id.0,
        node: node.into(),
        node_uid: uid.into(),
        at: Some(time::to_proto(now)),
        authorities: authorities.to_owned(),
    }
}

fn restarting(member: &Member) -> Why {
    match member.has_agent {
        true => Why::Restarts,
        false => Why::RestartByHand,
    }
}

/// The other voters that are not healthy, in words. With three voters and more, one may be missing; with fewer none may, and there is
/// no other way.
fn unhealthy_beside(member: &Member, members: &[Member]) -> String {
    let others = members
        .iter()
        .filter(|other| other.id != member.id && other.votes);
    names(others.filter(|other| !other.is_healthy()))
}

fn names<'a>(members: impl Iterator<Item = &'a Member>) -> String {
    members.map(Member::title).collect::<Vec<_>>().join(", ")
}

/// Whether the etcd of a member runs as it did when it was permitted to start again.
fn is_unused(member: &Member) -> bool {
    matches!(&member.seen, Looked::Seen(seen) if seen.takes_old && seen.is_healthy)
}

#[cfg(test)]
mod tests;
