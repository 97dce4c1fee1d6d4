//! Voters that move to other peer URLs. The others may not reach a voter at URLs where it does not listen, although it goes on
//! to answer as long as its own connections to them hold. So it must be found there, before the change where the quorum
//! needs it, and after the change in any case.

use super::rule::{Limits, Plan, first};
use super::step::Step;
use crate::etcd::members::{Listener, same_urls};
use crate::proto::Readdress;
use crate::roles::blocked::{Blocked, Subject};
use crate::roles::membership::{Member, Membership, Reachability};
use crate::roles::quorum::Change;
use crate::roles::reason::Reason;

/// Carries out the moves that are decided, ends those that are done, and withdraws those that cannot be made.
pub fn carry_out(membership: &Membership, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let moving = membership.listed().filter(|member| member.removal().is_none());
    let attempts: Vec<_> = moving
        .filter_map(|member| Some((member, next(membership, member, member.readdress()?))))
        .collect();
    let untested = attempts.iter().filter(|(member, _)| awaits_test(member));
    let untested = untested.map(|(member, _)| Subject::Member(member.id));
    plan.probe.extend(untested);
    let attempts = attempts.into_iter();
    first(
        membership,
        plan,
        attempts.map(|(member, step)| (member.node(), step)),
    )
}

fn awaits_test(member: &Member) -> bool {
    let tested = |readdress: &Readdress| !readdress.no_dial;
    member.moved == Reachability::Pending && member.readdress().is_some_and(tested)
}

/// The next step of a move.
pub fn next(membership: &Membership, member: &Member, readdress: &Readdress) -> Result<Step, Blocked> {
    if member.is_at(&readdress.peer_urls) {
        return end(member, readdress);
    }
    let is_requested = is_requested(membership, member, &readdress.peer_urls);
    let call = match is_requested {
        true => call(membership, member, readdress),
        false => Err(member.block(
            Reason::Pending,
            "an earlier change of its peer URLs may still be made",
        )),
    };
    let waits = |blocked: &Blocked| matches!(blocked.reason, Reason::Pending | Reason::EtcdUnavailable);
    let is_void = call
        .as_ref()
        .is_err_and(|blocked| !is_requested || !waits(blocked));
    // As long as it is decided, every check counts the voter as one that the others may not reach.
    match is_void && member.quiet && membership.complete {
        true => Ok(Step::Withdraw(member.id)),
        false => call,
    }
}

fn call(membership: &Membership, member: &Member, readdress: &Readdress) -> Result<Step, Blocked> {
    let listener = listener(member, readdress)?;
    check(membership, member, &listener)?;
    let unavailable = || member.block(Reason::EtcdUnavailable, "no voter answers");
    Ok(Step::Readdress {
        member: member.id,
        through: membership.through(None).ok_or_else(unavailable)?,
    })
}

/// Whether its node, which is a manager still, asks for these peer URLs.
fn is_requested(membership: &Membership, member: &Member, peer_urls: &[String]) -> bool {
    let uid = member.record.as_ref().map(|record| record.uid.as_str());
    member.stays()
        && membership.joins.iter().any(|pending| {
            let own = pending.node == member.node() && Some(pending.uid()) == uid;
            own && same_urls(pending.peer_urls(), peer_urls)
        })
}

fn listener(member: &Member, readdress: &Readdress) -> Result<Listener, Blocked> {
    match &member.moved {
        _ if readdress.no_dial => Ok(Listener::Unproven("it was not asked".to_owned())),
        Reachability::Pending => Err(member.block(Reason::Pending, "its new peer URLs are being tested")),
        Reachability::Unreachable(why) => Err(member.block(Reason::PeerUnreachable, why)),
        Reachability::Reached(Listener::Another(what)) => {
            let urls = readdress.peer_urls.join(", ");
            Err(member.block(
                Reason::PeerMismatch,
                format_args!("its new peer URL {urls} {what}"),
            ))
        }
        Reachability::Reached(listener) => Ok(listener.clone()),
    }
}

/// INV-5: whether the voter may move to where this listens.
pub fn check(membership: &Membership, member: &Member, listener: &Listener) -> Result<(), Blocked> {
    let change = Change::Readdress {
        member: member.id,
        found: *listener == Listener::Expected,
    };
    let unless_found = match listener {
        Listener::Expected => String::new(),
        Listener::Absent => ", where nothing listens,".to_owned(),
        Listener::Another(what) => format!(", which {what},"),
        Listener::Unproven(why) => format!(", where it was not found ({why}),"),
    };
    let with = format_args!("with member {} at its new peer URL{unless_found}", member.id);
    let checked = membership.check_quorum(change, with);
    checked.map_err(|why| member.block(Reason::QuorumRisk, why))
}

/// The end of a move that the list shows.
fn end(member: &Member, readdress: &Readdress) -> Result<Step, Blocked> {
    let urls = readdress.peer_urls.join(", ");
    let unproven = |why: &str| {
        let hint = "start its etcd there, or join again with the peer URL at which it runs";
        member.block(
            Reason::AddressUnproven,
            format_args!("{why} at its new peer URL {urls}: {hint}"),
        )
    };
    match listener(member, readdress)? {
        Listener::Expected => Ok(Step::EndReaddress(member.id)),
        // More cannot be known of a server that does not say who it is, or that must not be dialled.
        Listener::Unproven(_) if member.is_healthy() => Ok(Step::EndReaddress(member.id)),
        Listener::Unproven(_) | Listener::Another(_) => Err(unproven("it does not answer")),
        Listener::Absent => Err(unproven("nothing listens")),
    }
}
