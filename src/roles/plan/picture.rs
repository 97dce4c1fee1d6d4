//! From the store, etcd's list and the answers of its members to a [`Picture`].

use std::collections::{BTreeMap, BTreeSet};

use super::{Asked, Dial, Picture, Place, Seat, Tie, Whose};
use crate::etcd::members::{ListedMember, Status};
use crate::etcd::{MemberId, Revision};
use crate::proto::{Join, Removal};
use crate::roles::checks::Known;
use crate::roles::index::{Index, NodeFacts, Owner, Record};
use crate::store::object::member::is_ended;

/// What one member answered in time.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// It proved that it is healthy.
    pub healthy: bool,
    /// What it said of itself.
    pub status: Option<Status>,
}

/// Whatever is known now. Members without an answer have not given one yet, or, where it is `complete`, not in time.
pub fn picture(
    index: &Index,
    list: &[ListedMember],
    answers: &BTreeMap<MemberId, Answer>,
    complete: bool,
) -> Picture {
    let ids: BTreeSet<MemberId> = list
        .iter()
        .map(|member| member.id)
        .chain(index.records().map(|(id, ..)| id))
        .collect();
    let seats: Vec<Seat> = ids
        .into_iter()
        .map(|id| Seat {
            id,
            listed: list
                .iter()
                .find(|member| member.id == id)
                .map(|member| place(member, answers.get(&id))),
            record: index.record(id).map(|(record, _)| tie(index, record)),
        })
        .collect();
    let raft_leader = raft_leader(&seats, answers);
    let mut joins: Vec<(Revision, Asked)> = index
        .joins()
        .filter(|(_, join, _)| !is_ended(join))
        .map(|(node, join, revision)| (revision, asked(index, node, join)))
        .collect();
    // Begun before not begun, then in the order in which they were asked for: until then only the request is written.
    joins.sort_by_key(|(revision, asked)| (asked.join.progress == 0, *revision));
    Picture {
        complete,
        seats,
        joins: joins.into_iter().map(|(_, asked)| asked).collect(),
        raft_leader,
        resting: BTreeMap::new(),
    }
}

fn place(member: &ListedMember, answer: Option<&Answer>) -> Place {
    let status = answer.and_then(|answer| answer.status.as_ref());
    Place {
        learner: member.learner,
        started: member.is_started() && !member.client_urls.is_empty(),
        peer_urls: member.peer_urls.clone(),
        healthy: answer.is_some_and(|answer| answer.healthy),
        applied: status.map_or(0, |status| status.applied),
    }
}

fn tie(index: &Index, record: &Record) -> Tie {
    let Record {
        member, joined_at, ..
    } = record;
    Tie {
        node: member.node.clone(),
        uid: member.node_uid.clone(),
        owner: match index.owner(member) {
            Owner::Node(facts, revision) => Whose::Node(known(facts, revision)),
            Owner::Unknown => Whose::Unknown,
            Owner::Gone => Whose::Gone,
        },
        joined_at: *joined_at,
        removal: member.removal.as_ref().map(Removal::cause),
        promotion: member.promotion.is_some(),
    }
}

fn known(facts: &NodeFacts, revision: Revision) -> Known {
    Known {
        desired: facts.desired,
        observed: facts.observed,
        node: revision,
    }
}

fn asked(index: &Index, node: &str, join: &Join) -> Asked {
    let uid = join
        .request
        .as_ref()
        .map_or("", |request| request.node_uid.as_str());
    Asked {
        node: node.to_owned(),
        join: join.clone(),
        known: index
            .known_node(node, uid)
            .map(|(facts, revision)| known(facts, revision)),
        removed: index.is_removed(uid),
        dial: Dial::Pending,
    }
}

/// Whom a majority of the voters that stay takes for the leader, as far as they have answered.
fn raft_leader(seats: &[Seat], answers: &BTreeMap<MemberId, Answer>) -> Option<MemberId> {
    let stays = |seat: &&Seat| {
        let going = seat.record.as_ref().is_some_and(|tie| tie.removal.is_some());
        seat.listed.as_ref().is_some_and(|place| !place.learner) && !going
    };
    let mut votes: BTreeMap<MemberId, usize> = BTreeMap::new();
    let mut voters = 0;
    for seat in seats.iter().filter(stays) {
        voters += 1;
        let status = answers.get(&seat.id).and_then(|answer| answer.status.as_ref());
        if let Some(leader) = status.and_then(|status| status.raft_leader) {
            *votes.entry(leader).or_default() += 1;
        }
    }
    let majority = voters / 2 + 1;
    votes
        .into_iter()
        .find(|(_, votes)| *votes >= majority)
        .map(|(id, _)| id)
}
