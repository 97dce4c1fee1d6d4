//! INV-5 over all clusters of up to seven voters and a learner, for every desired role of each member, every set of members
//! that are down, and every change under way: no step leads to a cluster without a healthy quorum.

use proptest::prelude::*;

use super::*;
use crate::proto::Readdress;
use crate::roles::quorum::{Change, Quorum, Vote};

type Make = fn(u64) -> Member;

/// Every kind of voter that a plan distinguishes.
const VOTERS: [Make; 17] = [
    voter,
    |id| voter(id).down(),
    |id| voter(id).demoted(),
    |id| voter(id).demoted().down(),
    |id| voter(id).nodeless(),
    |id| voter(id).nodeless().down(),
    |id| voter(id).unmanaged(),
    |id| voter(id).unmanaged().down(),
    |id| voter(id).demoted().leaving(Cause::Demoted).down(),
    |id| voter(id).nodeless().leaving(Cause::NodeGone).down(),
    // It is asked only whether it serves.
    |id| voter(id).demoted().leaving(Cause::Demoted),
    |id| voter(id).leaving(Cause::Demoted).quiet(),
    // From here on in smaller clusters alone. Its move may be made at any moment, or was made, and it was not found.
    |id| voter(id).moving(Listener::Absent),
    |id| voter(id).moved(Listener::Absent).quiet(),
    |id| voter(id).moved(Listener::Expected),
    // Its demotion was withdrawn, and a call of it may be under way.
    |id| voter(id).leaving(Cause::Demoted),
    |id| voter(id).leaving(Cause::Demoted).down(),
];

/// How many of them, from the first on, large clusters are made of.
const OF_LARGE: usize = 12;

fn unstarted(id: u64) -> Member {
    voter(id).learner().unstarted()
}

/// Every kind of learner.
pub(super) const LEARNERS: [Make; 9] = [
    |id| voter(id).learner(),
    |id| voter(id).learner().down(),
    unstarted,
    |id| voter(id).learner().rising(),
    |id| voter(id).learner().down().rising(),
    |id| voter(id).learner().demoted(),
    |id| voter(id).learner().nodeless().down().rising(),
    |id| voter(id).learner().leaving(Cause::Demoted).down().rising(),
    |id| voter(id).learner().unmanaged(),
];

/// Calls `each` with every multiset of up to `most` of the `kinds`.
pub(super) fn multisets(kinds: usize, most: usize, each: &mut impl FnMut(&[usize])) {
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

/// Every cluster that this one may become on its own: each decided change made or not.
fn landings(membership: &Membership) -> Vec<Vec<Vote>> {
    let mut may_be = vec![Vec::new()];
    for member in &membership.members {
        let Some(listing) = &member.listed else { continue };
        let vote = Vote {
            id: member.id,
            learner: listing.learner,
            healthy: member.is_healthy(),
        };
        let mut fates = vec![Some(vote)];
        let record = member.record.as_ref().filter(|_| !member.quiet);
        if record.is_some_and(|record| record.removal.is_some()) {
            fates.push(None);
        }
        if listing.learner && record.is_some_and(|record| record.promotion) {
            fates.push(Some(Vote {
                learner: false,
                ..vote
            }));
        }
        may_be = may_be
            .into_iter()
            .flat_map(|cluster: Vec<Vote>| {
                fates
                    .iter()
                    .map(move |fate| cluster.iter().copied().chain(*fate).collect())
            })
            .collect();
    }
    // Where a voter moves to, or has moved to, the others may not reach it.
    for member in membership.listed().filter(|member| !member.is_found()) {
        let moves = |to: &&Readdress| !member.quiet || member.is_at(&to.peer_urls);
        if member.readdress().filter(moves).is_some() {
            let reached = may_be.clone();
            may_be.extend(
                reached
                    .into_iter()
                    .map(|cluster| without_reaching(cluster, member.id)),
            );
        }
    }
    may_be
}

/// The cluster, in which the others, if there are any, do not reach this voter.
fn without_reaching(mut cluster: Vec<Vote>, id: MemberId) -> Vec<Vote> {
    let alone = Quorum::of(&cluster).voters == 1;
    for vote in cluster.iter_mut().filter(|vote| vote.id == id && !alone) {
        vote.healthy = false;
    }
    cluster
}

/// The member that an add for this join makes: by the peer URL, as in [`voter`].
pub(super) fn added_for(pending: &PendingJoin) -> MemberId {
    let url = pending.peer_urls().first().map_or("", String::as_str);
    let id = url.trim_start_matches("http://10.0.0.").trim_end_matches(":2380");
    MemberId(
        id.parse()
            .expect("the peer URL of a join is one of those of the tests"),
    )
}

fn join_of<'m>(membership: &'m mut Membership, node: &str) -> &'m mut PendingJoin {
    let mut joins = membership.joins.iter_mut();
    joins
        .find(|pending| pending.node == node)
        .expect("a step is about a join")
}

/// The membership after a step, with unchanged answers.
pub(super) fn after(membership: &Membership, step: &Step) -> Membership {
    let mut after = membership.clone();
    let mut change = |id: MemberId, change: &dyn Fn(&mut Member)| {
        let member = after.members.iter_mut().find(|member| member.id == id);
        change(member.expect("a step is about a member"));
    };
    match step {
        Step::Forget(id) => after.members.retain(|member| member.id != *id),
        Step::Withdraw(id) => change(*id, &|member| {
            let record = member.record.as_mut().unwrap();
            (record.removal, record.promotion) = (None, false);
            let listed = member.listed.as_ref().unwrap();
            record
                .readdress
                .take_if(|to| !listed.has_peer_urls(&to.peer_urls));
        }),
        Step::DecideRemoval(id, cause) => change(*id, &|member| {
            member.record.as_mut().unwrap().removal = Some(*cause);
        }),
        Step::MoveLeadership { to, .. } => after.raft_leader = Some(*to),
        Step::Remove { member, .. } => change(*member, &|member| member.listed = None),
        Step::DecidePromotion(id) => change(*id, &|member| member.record.as_mut().unwrap().promotion = true),
        Step::Promote { member, .. } => {
            change(*member, &|member| member.listed.as_mut().unwrap().learner = false)
        }
        Step::DecideAdd(node) => {
            let pending = join_of(&mut after, node);
            let (urls, uid) = (pending.peer_urls().to_vec(), pending.uid().to_owned());
            let join = &mut pending.join;
            join.node_uid = uid;
            join.progress = Progress::Adding.into();
            join.answers = "r1".to_owned();
            join.peer_urls = urls;
        }
        Step::Add { node, .. } => {
            let added = added_for(join_of(&mut after, node));
            after.members.push(voter(added.0).learner().down().unmanaged());
            after.members.sort_by_key(|member| member.id);
        }
        Step::Record { node, member } => {
            change(*member, &|recorded| recorded.record = voter(member.0).record);
            let join = &mut join_of(&mut after, node).join;
            join.progress = Progress::Learner.into();
            join.member_id = member.0;
        }
        Step::DecideReaddress { node, member } => {
            let mut joins = membership.joins.iter();
            let pending = joins.find(|pending| pending.node == *node);
            let pending = pending.expect("a step is about a join");
            change(*member, &|member| {
                member.moved = pending.reachability.clone();
                member.record.as_mut().unwrap().readdress = Some(Readdress {
                    peer_urls: pending.join.request.as_ref().unwrap().peer_urls.clone(),
                    ..Readdress::default()
                });
            });
        }
        Step::Readdress { member, .. } => change(*member, &|member| {
            let urls = member.readdress().unwrap().peer_urls.clone();
            member.listed.as_mut().unwrap().peer_urls = urls;
        }),
        Step::EndReaddress(id) => change(*id, &|member| {
            member.record.as_mut().unwrap().readdress = None;
        }),
        Step::Note {
            node, progress, why, ..
        } => match progress {
            Progress::Waiting => {
                let (reason, message) = why.clone().expect("a wait has a reason");
                let join = &mut join_of(&mut after, node).join;
                join.progress = Progress::Waiting.into();
                join.answers = "r1".to_owned();
                (join.reason, join.message) = (reason.to_string(), message);
            }
            _ => after.joins.retain(|pending| pending.node != *node),
        },
    }
    after
}

fn removed(membership: &Membership, after: &Membership) -> Vec<MemberId> {
    let listed = |membership: &Membership| -> Vec<MemberId> {
        let members = membership.members.iter().filter(|member| member.listed.is_some());
        members.map(|member| member.id).collect()
    };
    let left = listed(after);
    listed(membership)
        .into_iter()
        .filter(|id| !left.contains(id))
        .collect()
}

/// Takes steps until there is none, and checks each.
fn check(mut membership: Membership) {
    let begun = membership.clone();
    for _ in 0..40 {
        let planned = next(&membership);
        let Some(step) = planned.step else { return };
        let next = after(&membership, &step);
        let context = || format!("{step}\nin {membership:#?}");
        let changes_voters = match step {
            Step::Remove { .. } | Step::Promote { .. } => true,
            // From the intent on, the change may come.
            Step::DecideRemoval(..) | Step::DecidePromotion(_) => true,
            _ => false,
        };
        if changes_voters {
            // A removal is decided and made only if the cluster without the member is healthy, whatever else is made. Until
            // it is made, the cluster is no worse than before.
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
                    Change::Remove(id) => landed.iter().all(|vote| vote.id != id),
                    Change::Promote(id) => landed.iter().any(|vote| vote.id == id && !vote.learner),
                    Change::Readdress { .. } => unreachable!("an address is no vote"),
                };
                let quorum = Quorum::of(&landed);
                assert!(!made || quorum.holds(), "{quorum}: {}", context());
            }
        }
        if let Step::DecideReaddress { member, .. } | Step::Readdress { member, .. } = step
            && !next.member(member).unwrap().is_found()
        {
            // The others may no longer reach it.
            for landed in landings(&next) {
                let quorum = Quorum::of(&without_reaching(landed, member));
                assert!(quorum.holds(), "{quorum}: {}", context());
            }
        }
        for id in removed(&membership, &next) {
            let member = membership.member(id).unwrap();
            let record = member
                .record
                .as_ref()
                .unwrap_or_else(|| panic!("an unmanaged member is removed: {}", context()));
            assert!(record.removal.is_some(), "no intent: {}", context());
            // Then the others elect the next one.
            let voters = membership.voters().count();
            let others = membership
                .voters()
                .filter(|other| other.id != id && other.is_healthy());
            let healthy = others.count();
            assert!(
                membership.raft_leader != Some(id)
                    || (!member.is_healthy() && Quorum { voters, healthy }.holds()),
                "the raft leader is removed: {}",
                context()
            );
        }
        let learners = next.members.iter().filter(|member| member.is_learner()).count();
        let before = membership
            .members
            .iter()
            .filter(|member| member.is_learner())
            .count();
        assert!(learners <= before.max(1), "two learners: {}", context());
        membership = next;
    }
    panic!("the steps never end: {begun:#?}");
}

/// A join of the first node at another address.
fn moving(members: &[Member], listener: Listener) -> Option<PendingJoin> {
    let record = members.first()?.record.as_ref()?;
    let Owner::Node(roles) = record.owner else {
        return None;
    };
    let mut pending = new_join();
    pending.node.clone_from(&record.node);
    pending.join.request.as_mut()?.node_uid.clone_from(&record.uid);
    pending.roles = Some(roles);
    pending.reachability = Reachability::Reached(listener);
    Some(pending)
}

fn cluster(voters: &[usize], learner: Option<usize>) -> Vec<Member> {
    let members = (1..).zip(voters).map(|(id, kind)| VOTERS[*kind](id));
    members.chain(learner.map(|kind| LEARNERS[kind](8))).collect()
}

#[test]
fn no_step_leads_to_a_cluster_without_a_healthy_quorum() {
    let mut clusters = 0_u64;
    let mut each = |voters: &[usize]| {
        // With seven voters, the learner is one that may vote soon; the random test below has the others.
        let learners = if voters.len() < 6 { LEARNERS.len() } else { 4 };
        for learner in std::iter::once(None).chain((0..learners).map(Some)) {
            let mut membership = surveyed(cluster(voters, learner));
            clusters += 1;
            membership.raft_leader = match clusters % 3 {
                0 => None,
                1 => Some(MemberId(1)),
                _ => Some(MemberId(voters.len() as u64)),
            };
            match clusters % 4 {
                0 => membership.joins.push(new_join()),
                1 => membership
                    .joins
                    .extend(moving(&membership.members, Listener::Absent)),
                _ => {}
            }
            check(membership);
        }
    };
    multisets(OF_LARGE, 7, &mut each);
    multisets(VOTERS.len(), 4, &mut each);
    assert!(clusters > 200_000, "{clusters} clusters");
}

proptest! {
    #[test]
    fn no_step_does_with_several_learners_and_changes_under_way(
        voters in proptest::collection::vec(0..VOTERS.len(), 0..=7),
        learners in proptest::collection::vec(0..LEARNERS.len(), 0..=3),
        leader in 0_u64..8,
        join in 0..4,
        complete in any::<bool>(),
    ) {
        let mut members = cluster(&voters, None);
        members.extend((20..).zip(&learners).map(|(id, kind)| LEARNERS[*kind](id)));
        let mut membership = surveyed(members);
        membership.raft_leader = (leader > 0).then_some(MemberId(leader));
        membership.complete = complete;
        membership.joins.extend(match join {
            0 => Some(new_join()),
            1 => moving(&membership.members, Listener::Expected),
            2 => moving(&membership.members, Listener::Absent),
            _ => None,
        });
        check(membership);
    }
}
