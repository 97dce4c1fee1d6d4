//! Nodes that ask to be members: one learner at a time, the others queue.

use jiff::Timestamp;

use super::removal::decide_on;
use super::{Blocked, Limits, Picture, Plan, Seat, Step, Subject, Whose, first, left, says};
use crate::etcd::members::same_urls;
use crate::etcd::{MemberId, Revision};
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::proto::{Join, Role};
use crate::roles::checks::{Known, Managed, Managers, Refusal};
use crate::roles::quorum::{Change, Quorum};
use crate::roles::reason::Reason;
use crate::store::object::member::{is_answered, member_of};
use crate::store::object::time;

/// A join that is not ended.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The node.
    pub node: String,
    /// As stored.
    pub join: Join,
    /// The node of this name and the uid of the request.
    pub known: Option<Known>,
    /// That uid is on record as removed.
    pub removed: bool,
    /// Whether its peer URLs were tried.
    pub dial: Dial,
}

/// What came of trying the peer URLs of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dial {
    /// Not tried yet, or under way.
    Pending,
    /// Something answered, or refused the connection: an etcd that is to join does not listen before it was added.
    Reached {
        /// Whether something listens there.
        listening: bool,
    },
    /// Nothing answered in time, or the name is unknown.
    Unreachable(String),
}

impl Asked {
    fn peer_urls(&self) -> &[String] {
        self.join
            .request
            .as_ref()
            .map_or(&[], |request| &request.peer_urls)
    }

    fn uid(&self) -> &str {
        self.join.request.as_ref().map_or("", |request| &request.node_uid)
    }

    fn block(&self, reason: Reason, message: impl Into<String>) -> Blocked {
        Blocked {
            subject: Subject::Join(self.node.clone()),
            node: self.node.clone(),
            reason,
            message: message.into(),
        }
    }

    /// Its peer URLs are to be taken as they are.
    fn is_untried(&self) -> bool {
        self.join.request.as_ref().is_some_and(|request| request.no_dial)
    }

    /// Where it cannot be reached. Tried again with the next request; an add that was decided on goes on.
    fn unreachable(&self) -> Option<Refusal> {
        match &self.dial {
            Dial::Unreachable(why) if !self.is_adding() && !self.is_untried() => {
                Some(Refusal::new(Reason::PeerUnreachable, why))
            }
            _ => None,
        }
    }

    fn is_adding(&self) -> bool {
        self.join.progress() == Progress::Adding
    }

    fn note(&self, progress: Progress, member: Option<MemberId>, why: Option<(Reason, String)>) -> Step {
        Step::Note {
            node: self.node.clone(),
            member,
            progress,
            why,
        }
    }

    fn refuse(&self, refusal: &Refusal) -> Step {
        let why = (refusal.rule, refusal.to_string());
        self.note(Progress::Refused, None, Some(why))
    }

    /// Whether its node is still to be a member.
    fn is_eligible(&self) -> bool {
        let manager = |known: Known| known.observed == Role::Manager && known.desired != Role::Worker;
        self.known.is_some_and(manager) && !self.removed
    }
}

/// Adds that were decided on and have been made: the member with these peer URLs and without a record is ours. It can be
/// no other: at the intent no member had one of them, and no other intent has.
pub fn record(picture: &Picture, _: Timestamp, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let adding = picture.joins.iter().filter(|asked| asked.is_adding());
    let made = adding.filter_map(|asked| {
        let seat = picture.seats.iter().find(|seat| {
            let place = seat.listed.as_ref().filter(|place| place.learner);
            seat.record.is_none()
                && place.is_some_and(|place| same_urls(&place.peer_urls, &asked.join.peer_urls))
        })?;
        let node = asked.node.clone();
        Some((
            &*asked.node,
            Ok(Step::Record {
                node,
                member: seat.id,
            }),
        ))
    });
    first(picture, plan, made)
}

/// Joins whose member has become what it was to be, or is gone.
pub fn conclude(picture: &Picture, _: Timestamp, _: &Limits, plan: &mut Plan) -> Option<Step> {
    let added = picture
        .joins
        .iter()
        .filter(|asked| asked.join.progress() == Progress::Learner && is_answered(&asked.join));
    let ended = added.filter_map(|asked| {
        let member = member_of(&asked.join);
        let note = match member.and_then(|id| picture.seat(id)) {
            Some(seat) if seat.is_voter() && seat.cause().is_none() => {
                asked.note(Progress::Voter, member, None)
            }
            // On its way up, or out: its removal ends the join, too.
            Some(_) => return None,
            None => {
                let message = "its member is not in the list any more".to_owned();
                asked.note(Progress::Removed, member, Some((Reason::Overtaken, message)))
            }
        };
        Some((&*asked.node, Ok(note)))
    });
    first(picture, plan, ended)
}

/// Joins that are to go on.
pub fn begin(picture: &Picture, now: Timestamp, limits: &Limits, plan: &mut Plan) -> Option<Step> {
    for asked in &picture.joins {
        let planned = match next(picture, asked, now, limits, plan) {
            Ok(None) => continue,
            Ok(Some(step)) => picture.unless_resting(step, &asked.node),
            Err(blocked) => Err(blocked),
        };
        match planned {
            Ok(step) => return Some(step),
            Err(blocked) => {
                let why = Some((blocked.reason, blocked.message.clone()));
                // Whoever waits for it is told. Not before every member had its time to answer, not where it is over in
                // an instant, and not over an intent, which has to stay.
                let to_tell = picture.complete && blocked.reason != Reason::Pending && !asked.is_adding();
                let told = says(&asked.join, Progress::Waiting, None, why.as_ref());
                plan.blocked.push(blocked);
                if to_tell && !told {
                    return Some(asked.note(Progress::Waiting, None, why));
                }
            }
        }
    }
    None
}

/// The next step of one join; `None` while its member is to make the next.
fn next(
    picture: &Picture,
    asked: &Asked,
    now: Timestamp,
    limits: &Limits,
    plan: &mut Plan,
) -> Result<Option<Step>, Blocked> {
    // On these very peer URLs.
    let decided = asked.is_adding() && same_urls(&asked.join.peer_urls, asked.peer_urls());
    if asked.is_adding() {
        let wanted = decided && asked.is_eligible();
        let changed = time::from_proto(asked.join.changed_at.as_ref());
        if !wanted && !left(changed, limits.add_doubt, now).is_zero() {
            let message = "an add that was begun earlier may still be made";
            return Err(asked.block(Reason::Pending, message));
        }
    } else if asked.join.progress() == Progress::Learner && is_answered(&asked.join) {
        return Ok(None);
    }
    let managers = managers(picture);
    let checked = managers
        .check_join(&asked.node, asked.known, asked.removed, asked.peer_urls())
        .and_then(|()| {
            if decided {
                Ok(())
            } else {
                check_other_adds(picture, asked)
            }
        });
    if let Err(refusal) = checked {
        return Ok(Some(asked.refuse(&refusal)));
    }
    if let Some(seat) = picture.seat_of(&asked.node, asked.uid()) {
        return again(picture, asked, seat, plan);
    }
    if let Some(refusal) = asked.unreachable() {
        return Ok(Some(asked.refuse(&refusal)));
    }
    dial(asked, plan)?;
    if picture.seats.iter().any(Seat::is_learner) {
        let message = "another learner is there; etcd takes one at a time";
        return Err(asked.block(Reason::LearnerPending, message));
    }
    let quorum = Quorum::of(&picture.standings());
    if !quorum.holds() {
        return Err(asked.block(
            Reason::QuorumRisk,
            format!("etcd has no healthy quorum: {quorum}"),
        ));
    }
    let changed = time::from_proto(asked.join.changed_at.as_ref());
    // An intent is renewed before it gets so old that what follows from it would no longer be looked for.
    if !decided || left(changed, limits.add_doubt / 2, now).is_zero() {
        return Ok(Some(Step::DecideAdd(asked.node.clone())));
    }
    let through = picture
        .through(None)
        .ok_or_else(|| asked.block(Reason::EtcdUnavailable, "no voter answers"))?;
    let node = asked.node.clone();
    Ok(Some(Step::Add { node, through }))
}

/// A member with these peer URLs that turns up in the list has to be that of one node alone.
fn check_other_adds(picture: &Picture, asked: &Asked) -> Result<(), Refusal> {
    let taken = picture
        .joins
        .iter()
        .filter(|other| other.node != asked.node && other.is_adding())
        .find_map(|other| {
            let mut urls = asked.peer_urls().iter();
            Some((urls.find(|url| other.join.peer_urls.contains(url))?, &other.node))
        });
    taken.map_or(Ok(()), |(url, node)| {
        let message = format_args!("peer URL {url} is that of node {node}, which is being added");
        Err(Refusal::new(Reason::PeerUrlTaken, message))
    })
}

/// A member that joins again gets its new address, nothing else changes.
fn again(picture: &Picture, asked: &Asked, seat: &Seat, plan: &mut Plan) -> Result<Option<Step>, Blocked> {
    let Some(place) = &seat.listed else {
        return Ok(None);
    };
    if seat.cause().is_some() {
        let message = format!("member {}, which it had before, is being removed", seat.id);
        return Err(asked.block(Reason::RemovalPending, message));
    }
    if same_urls(&place.peer_urls, asked.peer_urls()) {
        let progress = if place.learner {
            Progress::Learner
        } else {
            Progress::Voter
        };
        return Ok(Some(asked.note(progress, Some(seat.id), None)));
    }
    if let Some(refusal) = asked.unreachable() {
        return Ok(Some(asked.refuse(&refusal)));
    }
    let listening = dial(asked, plan)?;
    if place.learner {
        // etcd before 3.5.31 makes a voter of a learner that is updated (REQ-M-4).
        return decide_on(picture, seat, Cause::Replaced).map(Some);
    }
    let change = Change::Readdress {
        member: seat.id,
        listening,
    };
    picture.check_quorum(change).map_err(|quorum| {
        let nothing = if listening {
            ""
        } else {
            "as nothing is known to listen there, "
        };
        let message = format!(
            "with member {} at its new address, {nothing}etcd would have no healthy quorum: {quorum}",
            seat.id
        );
        asked.block(Reason::QuorumRisk, message)
    })?;
    let through = picture
        .through(None)
        .ok_or_else(|| asked.block(Reason::EtcdUnavailable, "no voter answers"))?;
    Ok(Some(Step::Readdress {
        node: asked.node.clone(),
        member: seat.id,
        through,
    }))
}

/// Whether something listens at the peer URLs, as far as that is to be known.
fn dial(asked: &Asked, plan: &mut Plan) -> Result<bool, Blocked> {
    match &asked.dial {
        _ if asked.is_untried() => Ok(false),
        Dial::Reached { listening } => Ok(*listening),
        Dial::Pending => {
            plan.dial.push(asked.node.clone());
            Err(asked.block(Reason::Pending, "its peer URLs are being tried"))
        }
        // An add that was decided on goes on; anything else was refused before.
        Dial::Unreachable(_) => Ok(false),
    }
}

fn managers(picture: &Picture) -> Managers {
    let mut managers = Managers::default();
    for seat in &picture.seats {
        let (Some(place), Some(standing)) = (&seat.listed, seat.standing()) else {
            continue;
        };
        match &seat.record {
            None => managers.unmanaged.push((standing, place.peer_urls.clone())),
            Some(tie) => managers.managed.push(Managed {
                standing,
                peer_urls: place.peer_urls.clone(),
                // What is compared in transactions is taken from the index.
                record: Revision::ABSENT,
                removal: tie.removal.is_some(),
                node: tie.node.clone(),
                known: match tie.owner {
                    Whose::Node(known) => Some(known),
                    Whose::Unknown | Whose::Gone => None,
                },
            }),
        }
    }
    managers
}
