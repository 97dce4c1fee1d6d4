//! Nodes that ask to be members: one learner at a time, the others queue.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::{Blocked, Limits, Picture, Plan, Seat, Step, Subject, Whose, left, says};
use crate::etcd::{MemberId, Revision};
use crate::proto::Join;
use crate::proto::join::Progress;
use crate::proto::removal::Cause;
use crate::roles::checks::{Known, Managed, Managers, Refusal};
use crate::roles::quorum::{Quorum, Standing};
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
    fn subject(&self) -> Subject {
        Subject::Join(self.node.clone())
    }

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
            subject: self.subject(),
            node: self.node.clone(),
            reason,
            message: message.into(),
        }
    }

    /// Its peer URLs are to be taken as they are.
    fn is_untried(&self) -> bool {
        self.join.request.as_ref().is_some_and(|request| request.no_dial)
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

    /// Wants to be what it is not, and is still wanted.
    fn is_eligible(&self) -> bool {
        let manager = |known: Known| known.observed == crate::proto::Role::Manager;
        self.known.is_some_and(manager) && !self.removed
    }
}

/// Adds that were decided on and have been made: the member with these peer URLs and without a record is ours. It can be
/// no other: at the intent no member had one of them.
pub fn record(picture: &Picture, _: Timestamp, _: &Limits, _: &mut Plan) -> Option<Step> {
    picture
        .joins
        .iter()
        .filter(|asked| asked.is_adding())
        .find_map(|asked| {
            let made = |seat: &&Seat| {
                let urls = &asked.join.peer_urls;
                seat.record.is_none()
                    && seat
                        .listed
                        .as_ref()
                        .is_some_and(|place| place.learner && same(&place.peer_urls, urls))
            };
            let seat = picture.seats.iter().find(made)?;
            Some(Step::Record {
                node: asked.node.clone(),
                member: seat.id,
            })
        })
}

/// Joins whose member has become what it was to be, or is gone.
pub fn conclude(picture: &Picture, _: Timestamp, _: &Limits, _: &mut Plan) -> Option<Step> {
    let added = picture
        .joins
        .iter()
        .filter(|asked| asked.join.progress() == Progress::Learner && is_answered(&asked.join));
    added.into_iter().find_map(|asked| {
        let member = member_of(&asked.join);
        match member.and_then(|id| picture.seat(id)) {
            Some(seat) if seat.is_voter() && seat.cause().is_none() => {
                Some(asked.note(Progress::Voter, member, None))
            }
            Some(seat) if seat.listed.is_some() => None,
            _ => {
                let why = (
                    Reason::Overtaken,
                    "its member is not in the list any more".to_owned(),
                );
                Some(asked.note(Progress::Removed, member, Some(why)))
            }
        }
    })
}

/// Joins that are to go on.
pub fn begin(picture: &Picture, now: Timestamp, limits: &Limits, plan: &mut Plan) -> Option<Step> {
    for asked in &picture.joins {
        let planned = match (
            next(picture, asked, now, limits, plan),
            picture.rests(&asked.subject()),
        ) {
            (Ok(Some(_)), Some((reason, message))) => Err(asked.block(reason, message)),
            (planned, _) => planned,
        };
        match planned {
            Ok(Some(step)) => return Some(step),
            Ok(None) => {}
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
    let answered = is_answered(&asked.join);
    if asked.is_adding() {
        let wanted = same(&asked.join.peer_urls, asked.peer_urls()) && asked.is_eligible();
        let changed = time::from_proto(asked.join.changed_at.as_ref());
        if !wanted && !left(changed, limits.add_doubt, now).is_zero() {
            let message = "an add that was begun earlier may still be made";
            return Err(asked.block(Reason::Pending, message));
        }
    } else if asked.join.progress() == Progress::Learner && answered {
        return Ok(None);
    }
    let managers = managers(picture);
    if let Err(refusal) = managers.check_join(&asked.node, asked.known, asked.removed, asked.peer_urls()) {
        return Ok(Some(asked.refuse(&refusal)));
    }
    if let Some(seat) = picture.seat_of(&asked.node, asked.uid()) {
        return again(picture, asked, seat, plan);
    }
    if let (Dial::Unreachable(why), false, false) = (&asked.dial, asked.is_adding(), asked.is_untried()) {
        return Ok(Some(asked.refuse(&Refusal::new(Reason::PeerUnreachable, why))));
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
    let decided = asked.is_adding() && same(&asked.join.peer_urls, asked.peer_urls());
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

/// A member that joins again gets its new address, nothing else changes.
fn again(picture: &Picture, asked: &Asked, seat: &Seat, plan: &mut Plan) -> Result<Option<Step>, Blocked> {
    let Some(place) = &seat.listed else {
        return Ok(None);
    };
    if seat.cause().is_some() {
        let message = format!("member {}, which it had before, is being removed", seat.id);
        return Err(asked.block(Reason::RemovalPending, message));
    }
    if same(&place.peer_urls, asked.peer_urls()) {
        let progress = if place.learner {
            Progress::Learner
        } else {
            Progress::Voter
        };
        return Ok(Some(asked.note(progress, Some(seat.id), None)));
    }
    let listening = dial(asked, plan)?;
    if place.learner {
        // etcd before 3.5.31 makes a voter of a learner that is updated (REQ-M-4).
        return Ok(Some(Step::DecideRemoval(seat.id, Cause::Replaced)));
    }
    // INV-5: at an address where nothing listens it may be lost to the others. A single voter needs nobody to reach it.
    let lost = picture.standings().into_iter().map(|standing| Standing {
        healthy: standing.healthy && (listening || standing.id != seat.id),
        ..standing
    });
    let lost: Vec<Standing> = lost.collect();
    let quorum = Quorum::of(&lost);
    if !quorum.holds() && quorum.voters > 1 {
        let message = format!("if nothing listens at the new address, etcd has no healthy quorum: {quorum}");
        return Err(asked.block(Reason::QuorumRisk, message));
    }
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
        // Tried again with the next request; an add that was decided on goes on.
        Dial::Unreachable(_) if asked.is_adding() => Ok(false),
        Dial::Unreachable(why) => Err(asked.block(Reason::PeerUnreachable, why.clone())),
    }
}

fn same(urls: &[String], others: &[String]) -> bool {
    let set = |urls: &[String]| -> BTreeSet<String> {
        let plain = urls.iter().map(|url| url.trim_end_matches('/').to_owned());
        plain.collect()
    };
    set(urls) == set(others)
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
