//! INV-5 over all clusters of up to seven voters and a learner, whatever is wanted of each member, whichever of them are
//! down, and whatever is under way: no step leads to a cluster without a healthy quorum.

use proptest::prelude::*;

use super::*;
use crate::roles::quorum::{Change, Quorum, Standing};

type Make = fn(u64) -> Seat;

/// All that a voter can be, as far as a plan looks at it.
const VOTERS: [Make; 10] = [
    voter,
    |id| voter(id).down(),
    |id| voter(id).demoted(),
    |id| voter(id).demoted().down(),
    |id| voter(id).nodeless(),
    |id| voter(id).nodeless().down(),
    |id| voter(id).unmanaged(),
    |id| voter(id).unmanaged().down(),
    // Not asked any more, so it counts as down.
    |id| voter(id).decided(Cause::Demoted).down(),
    |id| voter(id).nodeless().decided(Cause::NodeGone).down(),
];

fn unstarted(id: u64) -> Seat {
    voter(id).learner().down().place(|place| place.started = false)
}

/// All that a learner can be.
const LEARNERS: [Make; 9] = [
    |id| voter(id).learner(),
    |id| voter(id).learner().down(),
    unstarted,
    |id| voter(id).learner().tie(|tie| tie.promotion = true),
    |id| voter(id).learner().down().tie(|tie| tie.promotion = true),
    |id| voter(id).learner().demoted(),
    |id| {
        voter(id)
            .learner()
            .nodeless()
            .down()
            .tie(|tie| tie.promotion = true)
    },
    |id| {
        voter(id)
            .learner()
            .decided(Cause::Demoted)
            .down()
            .tie(|tie| tie.promotion = true)
    },
    |id| voter(id).learner().unmanaged(),
];

/// Calls `each` with every multiset of up to `most` of `kinds`.
fn multisets(kinds: usize, most: usize, each: &mut impl FnMut(&[usize])) {
    fn extend(kinds: usize, most: usize, chosen: &mut Vec<usize>, each: &mut impl FnMut(&[usize])) {
        each(chosen);
        if chosen.len() < most {
            for kind in chosen.last().copied().unwrap_or(0)..kinds {
                chosen.push(kind);
                extend(kinds, most, chosen, each);
                chosen.pop();
            }
        }
    }
    extend(kinds, most, &mut Vec::new(), each);
}

/// Every cluster that this one may be an instant later by itself: each change that was decided on made or not.
fn landings(picture: &Picture) -> Vec<Vec<Standing>> {
    let mut may_be = vec![Vec::new()];
    for seat in &picture.seats {
        let Some(place) = &seat.listed else { continue };
        let standing = Standing {
            id: seat.id,
            learner: place.learner,
            healthy: place.healthy,
        };
        let mut fates = vec![Some(standing)];
        let tie = seat.record.as_ref();
        if tie.is_some_and(|tie| tie.removal.is_some()) {
            fates.push(None);
        }
        if place.learner && tie.is_some_and(|tie| tie.promotion) {
            fates.push(Some(Standing {
                learner: false,
                ..standing
            }));
        }
        may_be = may_be
            .into_iter()
            .flat_map(|cluster: Vec<Standing>| {
                fates
                    .iter()
                    .map(move |fate| cluster.iter().copied().chain(*fate).collect())
            })
            .collect();
    }
    may_be
}

/// The picture after a step, as if everybody answered as before.
fn after(picture: &Picture, step: &Step) -> Picture {
    let mut after = picture.clone();
    let mut change = |id: MemberId, change: &dyn Fn(&mut Seat)| {
        let seat = after.seats.iter_mut().find(|seat| seat.id == id);
        change(seat.expect("a step is about a seat"));
    };
    match step {
        Step::Forget(id) => after.seats.retain(|seat| seat.id != *id),
        Step::DecideRemoval(id, cause) => change(*id, &|seat| {
            seat.record.as_mut().unwrap().removal = Some(*cause);
        }),
        Step::MoveLeadership { to, .. } => after.raft_leader = Some(*to),
        Step::Remove { member, .. } => change(*member, &|seat| seat.listed = None),
        Step::DecidePromotion(id) => change(*id, &|seat| seat.record.as_mut().unwrap().promotion = true),
        Step::Promote { member, .. } => {
            change(*member, &|seat| seat.listed.as_mut().unwrap().learner = false)
        }
        Step::DecideAdd(_) => {
            let join = &mut after.joins[0].join;
            join.progress = Progress::Adding.into();
            join.answers = "r1".to_owned();
            join.peer_urls = vec!["http://10.0.0.9:2380".to_owned()];
            join.changed_at = Some(prost_types::Timestamp::default());
        }
        Step::Add { .. } => after.seats.push(voter(9).learner().down().unmanaged()),
        Step::Record { member, .. } => {
            change(*member, &|seat| seat.record = voter(9).record);
            let join = &mut after.joins[0].join;
            join.progress = Progress::Learner.into();
            join.member_id = member.0;
        }
        Step::Readdress { member, .. } => {
            let urls = picture.joins[0].join.request.as_ref().unwrap().peer_urls.clone();
            change(*member, &|seat| {
                seat.listed.as_mut().unwrap().peer_urls.clone_from(&urls)
            });
        }
        Step::Note { progress, .. } => match progress {
            Progress::Waiting => {
                let (reason, message) = match step {
                    Step::Note { why: Some(why), .. } => why.clone(),
                    _ => unreachable!("a wait has a reason"),
                };
                let join = &mut after.joins[0].join;
                join.progress = Progress::Waiting.into();
                join.answers = "r1".to_owned();
                (join.reason, join.message) = (reason.to_string(), message);
            }
            _ => after.joins.clear(),
        },
    }
    after
}

fn removed(picture: &Picture, after: &Picture) -> Vec<MemberId> {
    let listed = |picture: &Picture| -> Vec<MemberId> {
        let seats = picture.seats.iter().filter(|seat| seat.listed.is_some());
        seats.map(|seat| seat.id).collect()
    };
    let left = listed(after);
    listed(picture)
        .into_iter()
        .filter(|id| !left.contains(id))
        .collect()
}

/// Takes steps until there is none, and proves each.
fn check(mut picture: Picture) {
    let begun = picture.clone();
    for _ in 0..40 {
        let planned = next(&picture);
        let Some(step) = planned.step else { return };
        let next = after(&picture, &step);
        let told = || format!("{step}\nin {picture:#?}");
        let changes_voters = match step {
            Step::Remove { .. } | Step::Promote { .. } => true,
            // From the intent on, the change may come.
            Step::DecideRemoval(..) | Step::DecidePromotion(_) => true,
            _ => false,
        };
        if changes_voters {
            // A removal is decided on, and made, only if the cluster without the member is healthy whatever else lands;
            // while it is not made, the cluster is no worse than it was.
            let member = match step.subject() {
                Subject::Member(id) => id,
                Subject::Join(_) => unreachable!("joins change no voters"),
            };
            let change = match step {
                Step::Remove { .. } | Step::DecideRemoval(..) => Change::Remove(member),
                _ => Change::Promote(member),
            };
            for landed in landings(&next) {
                let made = match change {
                    Change::Remove(id) => landed.iter().all(|standing| standing.id != id),
                    Change::Promote(id) => landed
                        .iter()
                        .any(|standing| standing.id == id && !standing.learner),
                    Change::Readdress { .. } => unreachable!("an address is no vote"),
                };
                let quorum = Quorum::of(&landed);
                assert!(!made || quorum.holds(), "{quorum}: {}", told());
            }
        }
        if let Step::Readdress { member, .. } = step
            && picture.joins[0].dial == (Dial::Reached { listening: false })
        {
            // The others may not reach it any more.
            for mut landed in landings(&next) {
                if Quorum::of(&landed).voters > 1 {
                    let lost = landed.iter_mut().find(|standing| standing.id == member);
                    lost.unwrap().healthy = false;
                }
                let quorum = Quorum::of(&landed);
                assert!(quorum.holds(), "{quorum}: {}", told());
            }
        }
        for id in removed(&picture, &next) {
            let seat = picture.seat(id).unwrap();
            let tie = seat
                .record
                .as_ref()
                .unwrap_or_else(|| panic!("nobody's member goes: {}", told()));
            assert!(tie.removal.is_some(), "no intent: {}", told());
            assert_ne!(picture.raft_leader, Some(id), "the raft leader goes: {}", told());
        }
        let learners = next.seats.iter().filter(|seat| seat.is_learner()).count();
        let before = picture.seats.iter().filter(|seat| seat.is_learner()).count();
        assert!(learners <= before.max(1), "two learners: {}", told());
        picture = next;
    }
    panic!("this never ends: {begun:#?}");
}

/// A join of the first node, which wants to be reached elsewhere.
fn moving(seats: &[Seat], listening: bool) -> Option<Asked> {
    let tie = seats.first()?.record.as_ref()?;
    let Whose::Node(known) = tie.owner else {
        return None;
    };
    let mut asked = asking();
    asked.node.clone_from(&tie.node);
    asked.join.request.as_mut()?.node_uid.clone_from(&tie.uid);
    asked.known = Some(known);
    asked.dial = Dial::Reached { listening };
    Some(asked)
}

fn cluster(voters: &[usize], learner: Option<usize>) -> Vec<Seat> {
    let seats = (1..).zip(voters).map(|(id, kind)| VOTERS[*kind](id));
    seats.chain(learner.map(|kind| LEARNERS[kind](8))).collect()
}

#[test]
fn no_step_leads_to_a_cluster_without_a_healthy_quorum() {
    let mut clusters = 0_u64;
    multisets(VOTERS.len(), 7, &mut |voters| {
        // With seven voters the learner is one that is about to vote, and the others are left to chance below.
        let learners = if voters.len() < 6 { LEARNERS.len() } else { 4 };
        for learner in std::iter::once(None).chain((0..learners).map(Some)) {
            let mut picture = seen(cluster(voters, learner));
            clusters += 1;
            picture.raft_leader = match clusters % 3 {
                0 => None,
                1 => Some(MemberId(1)),
                _ => Some(MemberId(voters.len() as u64)),
            };
            match clusters % 4 {
                0 => picture.joins.push(asking()),
                1 => picture.joins.extend(moving(&picture.seats, false)),
                _ => {}
            }
            check(picture);
        }
    });
    assert!(clusters > 90_000, "{clusters} clusters");
}

proptest! {
    #[test]
    fn no_step_does_with_several_learners_and_pending_operations(
        voters in proptest::collection::vec(0..VOTERS.len(), 0..=7),
        learners in proptest::collection::vec(0..LEARNERS.len(), 0..=3),
        leader in 0_u64..8,
        join in 0..4,
        complete in any::<bool>(),
    ) {
        let mut seats = cluster(&voters, None);
        seats.extend((20..).zip(&learners).map(|(id, kind)| LEARNERS[*kind](id)));
        let mut picture = seen(seats);
        picture.raft_leader = (leader > 0).then_some(MemberId(leader));
        picture.complete = complete;
        picture.joins.extend(match join {
            0 => Some(asking()),
            1 => moving(&picture.seats, true),
            2 => moving(&picture.seats, false),
            _ => None,
        });
        check(picture);
    }
}
