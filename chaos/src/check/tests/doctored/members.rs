//! What is added to the sound history about etcd's members.

use quorate::etcd::MemberId;
use quorate::proto::join::Progress;
use quorate::proto::{Join, removal};

use super::super::excused::etcd;
use super::super::sound::{list, list_with, member, members};
use super::super::story::{Story, name, process, put};
use super::Doctor;
use crate::history::{LeaseOp, Life, MemberChange, Process, Signal, What};

/// For each check of members and their changes, what it alone finds.
pub const MEMBERS: [(&str, Doctor); 27] = [
    ("calls start within the window", |story| {
        let joining = add_intent(story);
        story.silently_after(9_000);
        story.member_by(joining, add(true), 5);
    }),
    ("calls start within the window", |story| {
        // No replica is known to have asked, and none may.
        _ = add_intent(story);
        story.silently_after(9_000);
        story.member_by(None, add(true), 5);
    }),
    ("an intent stands before its call", |story| {
        story.member(MemberChange::Promote(1), 5);
    }),
    ("an intent stands before its call", |story| {
        story.member_by(None, MemberChange::Promote(1), 5);
    }),
    ("an intent stands before its call", |story| {
        story.member(add(true), 5);
    }),
    ("an intent stands before its call", |story| {
        let peer_urls = vec!["http://n2".to_owned()];
        story.member(MemberChange::Update { id: 9, peer_urls }, 5);
    }),
    ("voters are added as learners", |story| {
        _ = add_intent(story);
        story.member(add(false), 5);
    }),
    ("voters are added as learners", |story| {
        _ = add_intent(story);
        story.member_by(None, add(false), 5);
    }),
    ("voters are added as learners", |story| {
        unjudged(story, add(false), 4);
        list(story, &[(1, true), (2, true), (3, true), (4, true)]);
    }),
    ("members change one at a time", |story| {
        _ = add_intent(story);
        story.member(add(true), 900);
        story.member(add(true), 5);
    }),
    ("members change one at a time", |story| {
        _ = add_intent(story);
        story.member(add(true), 900);
        story.unanswered();
        story.member(add(true), 5);
    }),
    ("only recorded members are removed", |story| {
        story.member(MemberChange::Remove(77), 5);
    }),
    ("only recorded members are removed", |story| {
        story.member_by(None, MemberChange::Remove(77), 5);
    }),
    ("only recorded members are removed", |story| {
        unjudged(story, MemberChange::Remove(2), 2);
        list(story, &[(1, true), (3, true)]);
    }),
    ("a quorum is healthy after a change", |story| {
        stalled_while_third_is_ill(story);
        unjudged(story, MemberChange::Remove(1), 1);
        list(story, &[(2, true), (3, false)]);
    }),
    ("a quorum is healthy after a change", |story| {
        stalled_while_third_is_ill(story);
        story.member(MemberChange::Remove(1), 5);
        members(story, [true, true, false]);
    }),
    ("a quorum is healthy after a change", |story| {
        stalled_while_third_is_ill(story);
        story.member_by(None, MemberChange::Remove(1), 5);
        members(story, [true, true, false]);
    }),
    ("a quorum is healthy after a change", |story| {
        stalled_while_third_is_ill(story);
        // It was asked for, though etcd knew better.
        story.member(MemberChange::Remove(1), 5);
        story.refused();
        members(story, [true, true, false]);
    }),
    ("a change is decided with a healthy quorum after it", |story| {
        for _ in 0..110 {
            members(story, [true, true, false]);
        }
        let demoted = member("n1", "u1", Some(removal::Cause::Stalled), false);
        story.leads(Vec::new(), vec![put(story.keys.member(MemberId(1)), &demoted)]);
        members(story, [true, true, false]);
    }),
    ("a change is decided with a healthy quorum after it", |story| {
        let learner = |story: &mut Story| {
            let voters = [(1, true), (2, true), (3, false)];
            list_with(story, &voters, &[(4, false)]);
        };
        unjudged(story, add(true), 4);
        for _ in 0..110 {
            learner(story);
        }
        let promoted = member("n4", "u4", None, true);
        story.leads(Vec::new(), vec![put(story.keys.member(MemberId(4)), &promoted)]);
        learner(story);
    }),
    ("a change is decided with a healthy quorum after it", |story| {
        // No look says so, but the process ended long before.
        let third = etcd(story, "etcd-3");
        story.life(&third, Life::Exited { code: None });
        story.after(6_000);
        list(story, &[(1, true), (2, true), (3, true)]);
        let stalled = member("n1", "u1", Some(removal::Cause::Stalled), false);
        story.leads(Vec::new(), vec![put(story.keys.member(MemberId(1)), &stalled)]);
        list(story, &[(1, true), (2, true), (3, true)]);
    }),
    ("no retry is hot", |story| {
        _ = add_intent(story);
        for _ in 0..30 {
            story.member(add(true), 5);
            story.refused();
        }
        // As often as that within a second.
        let calls = story.events.iter_mut().rev();
        let calls = calls.filter(|event| matches!(event.what, What::Member(_)));
        for (call, event) in calls.take(30).enumerate() {
            event.at = story.now.minus_millis(30 * call as u64);
        }
    }),
    ("nothing happens after the lease is revoked", |story| {
        // Its term is over: nothing is left that begins a change of members.
        let (by, lease) = (process("replica-c#1"), 3);
        let joining = add_intent(story);
        story.signal(&by, Signal::Terminate);
        story.after(300);
        story.lease(&by, lease, LeaseOp::Revoke);
        story.after(450);
        story.member_by(joining, add(true), 5);
        story.after(300);
        story.life(&by, Life::Exited { code: Some(0) });
    }),
    ("what ends has its record", |story| {
        // The node is merely absent: nothing says that it was removed.
        let record = member("n7", "u7", Some(removal::Cause::NodeGone), false);
        story.leads(Vec::new(), vec![put(story.keys.member(MemberId(7)), &record)]);
    }),
    ("every change of members was seen", |story| {
        let voters = [(1, true), (2, true), (3, true)];
        list_with(story, &voters, &[(8, true)]);
    }),
    ("every change of members was seen", |story| {
        let voters = [(1, true), (2, true), (3, true)];
        list_with(story, &voters, &[(9, true)]);
        // It was another one that was promoted.
        let promoted = member("n8", "u8", None, true);
        story.leads(Vec::new(), vec![put(story.keys.member(MemberId(8)), &promoted)]);
        unjudged(story, add(true), 8);
        list_with(story, &voters, &[(9, true), (8, true)]);
        list_with(story, &[(1, true), (2, true), (3, true), (8, true)], &[(9, true)]);
    }),
    ("every change of members was seen", |story| {
        let stalled = member("n1", "u1", Some(removal::Cause::Stalled), false);
        story.leads(Vec::new(), vec![put(story.keys.member(MemberId(1)), &stalled)]);
        list(story, &[(2, true), (3, true)]);
    }),
];

/// The first member is decided to be removed, and the third one is ill.
fn stalled_while_third_is_ill(story: &mut Story) {
    let stalled = member("n1", "u1", Some(removal::Cause::Stalled), false);
    story.leads(Vec::new(), vec![put(story.keys.member(MemberId(1)), &stalled)]);
    for _ in 0..110 {
        members(story, [true, true, false]);
    }
}

/// A member is decided to be added, by the process that it returns.
fn add_intent(story: &mut Story) -> Option<Process> {
    let join = Join {
        progress: Progress::Adding.into(),
        peer_urls: vec!["http://n9".to_owned()],
        ..Join::default()
    };
    story.leads(Vec::new(), vec![put(story.keys.join(&name("n9")), &join)]);
    story.leader.as_ref().map(|leader| leader.process.clone())
}

/// A change that no check of calls judges, since no replica asked for it.
fn unjudged(story: &mut Story, change: MemberChange, id: u64) {
    story.member_by(Some(process("operator#1")), change, 5);
    story.answered_with(id);
}

fn add(learner: bool) -> MemberChange {
    MemberChange::Add {
        learner,
        peer_urls: vec!["http://n9".to_owned()],
    }
}
