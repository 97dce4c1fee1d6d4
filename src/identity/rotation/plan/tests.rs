use super::*;
use crate::etcd::MemberId;
use crate::identity::authority::AuthorityDigest;
use crate::identity::rotation::facts::{Report, Seen};
use crate::identity::rotation::record::Roots;

const BEFORE: Roots = Roots {
    node: AuthorityDigest([1; 32]),
    etcd: AuthorityDigest([2; 32]),
};

const AFTER: Roots = Roots {
    node: AuthorityDigest([3; 32]),
    etcd: AuthorityDigest([4; 32]),
};

const CA: &str = "the new root";

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

/// What is seen, and the record.
struct World {
    rotation: Rotation,
    certified: Vec<Certified>,
    sessions: Vec<Session>,
    replicas: Vec<Replica>,
    members: Option<Vec<Member>>,
    unreadable: Vec<Box<str>>,
    may_drop: bool,
}

impl World {
    fn in_phase(phase: Phase) -> Self {
        Self {
            rotation: Rotation::begun(BEFORE, AFTER, 0, now()).moved_to(phase, now()),
            certified: Vec::new(),
            sessions: Vec::new(),
            replicas: Vec::new(),
            members: Some(Vec::new()),
            unreadable: Vec::new(),
            may_drop: true,
        }
    }

    fn plan(&self) -> Plan {
        let facts = Facts {
            certified: &self.certified,
            sessions: &self.sessions,
            replicas: &self.replicas,
            members: self.members.as_deref(),
            unreadable: &self.unreadable,
            may_drop: self.may_drop,
        };
        plan(&self.rotation, &facts, CA, now())
    }

    /// Plans, takes the plan over, and returns what holds the phase up: its name and the reason.
    fn holds(&mut self) -> Vec<(String, String)> {
        if let Some(next) = self.plan().next {
            self.rotation = next;
        }
        let waits = self.rotation.value.waits.iter();
        waits
            .map(|hold| (hold.name.clone(), hold.reason.clone()))
            .collect()
    }

    fn phase(&mut self) -> Phase {
        let holds = self.holds();
        assert!(holds.is_empty(), "{holds:?}");
        self.rotation.phase
    }

    fn member(&mut self, id: u64) -> &mut Member {
        let members = self.members.as_mut().unwrap();
        members
            .iter_mut()
            .find(|member| member.id == MemberId(id))
            .unwrap()
    }

    fn restart(&self) -> Option<u64> {
        self.rotation
            .value
            .restart
            .as_ref()
            .map(|restart| restart.member_id)
    }
}

fn held(name: &str, reason: &str) -> (String, String) {
    (name.to_owned(), reason.to_owned())
}

fn certified(kind: AuthorityKind, node: &str, signer: AuthorityDigest) -> Certified {
    Certified {
        kind,
        node: node.into(),
        uid: format!("uid-of-{node}").into(),
        signer: Some(signer),
        is_asked: false,
    }
}

fn session(node: &str, authority: AuthorityDigest) -> Session {
    Session {
        uid: format!("uid-of-{node}").into(),
        authority: Some(authority),
    }
}

const OLD: Seen = Seen {
    is_healthy: true,
    shows_new: true,
    takes_old: true,
    takes_new: false,
};

const NEW: Seen = Seen {
    takes_old: false,
    takes_new: true,
    ..OLD
};

fn member(id: u64, has_agent: bool) -> Member {
    Member {
        id: MemberId(id),
        name: format!("etcd-{id}").into(),
        node: Some((format!("n{id}").into(), format!("uid-of-n{id}").into())),
        has_agent,
        votes: true,
        changes: false,
        seen: Looked::Seen(OLD),
    }
}

#[test]
fn every_replica_has_to_report_the_phase_of_this_very_rotation_and_is_named_until_then() {
    let mut world = World::in_phase(Phase::Trust);
    let replica = |name: &str, report| Replica {
        name: name.into(),
        report,
    };
    let report = |after, phase, hindrance: &str| {
        Some(Report {
            after,
            phase,
            hindrance: hindrance.to_owned(),
        })
    };
    world.replicas = vec![
        replica("c1", report(AFTER, Some(Phase::Trust), "")),
        replica("c2", None),
        replica("c3", report(AFTER, None, "next/ is missing")),
        replica("c4", report(BEFORE, Some(Phase::Done), "")),
        replica("c5", report(AFTER, None, "")),
    ];
    let expected = [
        held("c2", "NoReport"),
        held("c3", "Hindered"),
        held("c4", "NoReport"),
        held("c5", "Behind"),
    ];
    assert_eq!(world.holds(), expected);
    assert_eq!(world.rotation.phase, Phase::Trust);
    world.replicas.truncate(1);
    assert_eq!(world.phase(), Phase::Reissue);
    assert_eq!(
        world.holds(),
        [held("c1", "Behind")],
        "the next phase begins anywhere once more"
    );
}

#[test]
fn a_phase_that_nothing_new_is_known_of_writes_nothing() {
    let mut world = World::in_phase(Phase::Reissue);
    world.may_drop = false;
    assert_eq!(world.holds(), [held("etcd", "DropUnconfirmed")]);
    assert_eq!(world.plan(), Plan::default());
    world.may_drop = true;
    assert_eq!(world.phase(), Phase::Drop);
    assert_eq!(world.phase(), Phase::Done);
    assert_eq!(world.plan(), Plan::default(), "it is over");
}

#[test]
fn a_certificate_of_the_former_authority_is_asked_for_once_and_holds_the_phase_up_by_its_node() {
    let mut world = World::in_phase(Phase::Reissue);
    world.certified = vec![
        certified(AuthorityKind::Node, "n1", BEFORE.node),
        certified(AuthorityKind::Etcd, "n1", BEFORE.etcd),
        certified(AuthorityKind::Etcd, "n2", AFTER.etcd),
        // Of a release that did not say it.
        Certified {
            signer: None,
            ..certified(AuthorityKind::Etcd, "n3", AFTER.etcd)
        },
    ];
    let uid = |node: &str| format!("uid-of-{node}").into_boxed_str();
    let asked = [
        (AuthorityKind::Node, uid("n1")),
        (AuthorityKind::Etcd, uid("n1")),
        (AuthorityKind::Etcd, uid("n3")),
    ];
    assert_eq!(world.plan().asked, asked);
    for certified in &mut world.certified {
        certified.is_asked = true;
    }
    assert!(world.plan().asked.is_empty());
    let expected = [
        held("n1", "OldCertificate"),
        held("n1", "OldEtcdCertificate"),
        held("n3", "OldEtcdCertificate"),
    ];
    assert_eq!(world.holds(), expected);
}

/// Otherwise a node whose reply was lost would know no server any more.
#[test]
fn the_former_authority_is_not_dropped_before_the_session_of_each_node_shows_the_new_certificate() {
    let mut world = World::in_phase(Phase::Reissue);
    world.certified = vec![certified(AuthorityKind::Node, "n1", AFTER.node)];
    assert_eq!(world.holds(), [held("n1", "Down")]);
    world.sessions = vec![session("n1", BEFORE.node)];
    assert_eq!(world.holds(), [held("n1", "ShowsOldCertificate")]);
    world.sessions = vec![session("n1", AFTER.node)];
    assert_eq!(world.phase(), Phase::Drop);
}

#[test]
fn a_member_that_shows_the_former_certificate_or_cannot_be_looked_at_is_named() {
    let mut world = World::in_phase(Phase::Reissue);
    let old = Looked::Seen(Seen {
        shows_new: false,
        ..OLD
    });
    world.members = Some(vec![
        member(1, false),
        member(2, true),
        member(3, true),
        member(4, true),
        member(5, true),
    ]);
    world.member(1).seen = old;
    world.member(2).seen = Looked::Unreachable("refused".to_owned());
    world.member(4).seen = Looked::InClearText { serves: true };
    world.member(5).seen = Looked::Foreign { serves: true };
    let expected = [held("n2", "Unreachable"), held("n1", "MemberShowsOldCertificate")];
    let mut holds = world.holds();
    holds.sort();
    let mut sorted = expected.to_vec();
    sorted.sort();
    assert_eq!(holds, sorted);
    let message = &world
        .rotation
        .value
        .waits
        .iter()
        .find(|hold| hold.name == "n1")
        .unwrap()
        .message;
    assert!(message.contains("no agent keeps it"), "{message}");
    world.members = None;
    assert_eq!(world.holds(), [held("etcd", "MembersUnknown")]);
}

/// INV-5.
#[test]
fn one_etcd_at_a_time_is_started_again_and_the_next_one_once_it_is_back() {
    let mut world = World::in_phase(Phase::Drop);
    world.members = Some(vec![member(1, true), member(2, true), member(3, true)]);
    let mut numbers = Vec::new();
    for id in 1..=3 {
        world.holds();
        assert_eq!(world.restart(), Some(id));
        let restart = world.rotation.value.restart.clone().unwrap();
        assert_eq!(
            (restart.authorities.as_str(), &*restart.node),
            (CA, &*format!("n{id}"))
        );
        numbers.push(restart.number);
        // It is away, back and not yet healthy.
        for seen in [
            Looked::Unreachable("refused".to_owned()),
            Looked::Seen(Seen {
                is_healthy: false,
                ..NEW
            }),
        ] {
            world.member(id).seen = seen;
            world.holds();
            assert_eq!(world.restart(), Some(id));
        }
        world.member(id).seen = Looked::Seen(NEW);
    }
    assert!(numbers.is_sorted_by(|one, other| one < other), "{numbers:?}");
    assert_eq!(world.phase(), Phase::Done);
    assert_eq!(world.restart(), None);
}

/// INV-5.
#[test]
fn no_etcd_is_started_again_while_another_voter_is_ill_and_a_learner_holds_none_up() {
    let mut world = World::in_phase(Phase::Drop);
    world.members = Some(vec![member(1, true), member(2, true), member(3, true)]);
    world.member(3).seen = Looked::Unreachable("refused".to_owned());
    let holds = world.holds();
    assert_eq!(world.restart(), None);
    assert!(holds.contains(&held("n1", "QuorumAtRisk")), "{holds:?}");
    assert!(holds.contains(&held("n3", "Unreachable")), "{holds:?}");
    // Nothing is rotated there, and its vote counts all the same.
    world.member(3).seen = Looked::InClearText { serves: false };
    world.holds();
    assert_eq!(world.restart(), None);
    world.member(3).votes = false;
    world.holds();
    assert_eq!(world.restart(), Some(1));
}

/// INV-5: its agent may have no session, and finds the permission hours later.
#[test]
fn a_permission_that_was_not_used_is_taken_back_while_another_voter_is_ill() {
    let mut world = World::in_phase(Phase::Drop);
    world.members = Some(vec![member(1, true), member(2, true), member(3, true)]);
    world.holds();
    let first = world.rotation.value.last_restart;
    assert_eq!(world.restart(), Some(1));
    world.member(3).seen = Looked::Unreachable("refused".to_owned());
    let holds = world.holds();
    assert_eq!(world.restart(), None);
    assert!(holds.contains(&held("n1", "QuorumAtRisk")), "{holds:?}");
    world.member(3).seen = Looked::Seen(OLD);
    world.holds();
    assert_eq!(world.restart(), Some(1), "it keeps its turn");
    assert!(world.rotation.value.last_restart > first);
    // It was used: nothing can be taken back.
    world.member(1).seen = Looked::Unreachable("refused".to_owned());
    world.member(3).seen = Looked::Unreachable("refused".to_owned());
    world.holds();
    assert_eq!(world.restart(), Some(1));
}

/// INV-5: a change that is decided counts both ways.
#[test]
fn no_etcd_is_started_again_while_a_change_of_a_member_is_decided() {
    let mut world = World::in_phase(Phase::Drop);
    world.members = Some(vec![member(1, true), member(2, true), member(3, true)]);
    world.member(3).changes = true;
    let holds = world.holds();
    assert_eq!(world.restart(), None);
    assert!(holds.contains(&held("n1", "MembersChange")), "{holds:?}");
    world.members.as_mut().unwrap().remove(2);
    world.holds();
    assert_eq!(world.restart(), Some(1));
}

/// INV-12.
#[test]
fn a_record_of_a_certificate_that_cannot_be_read_holds_the_former_authority() {
    let mut world = World::in_phase(Phase::Reissue);
    world.unreadable = vec!["uid-of-n1".into()];
    assert_eq!(world.holds(), [held("uid-of-n1", "Unreadable")]);
    world.unreadable.clear();
    assert_eq!(world.phase(), Phase::Drop);
}

#[test]
fn a_member_without_an_agent_takes_its_turn_last_and_is_named_with_what_to_do() {
    let mut world = World::in_phase(Phase::Drop);
    world.members = Some(vec![member(1, false), member(2, true)]);
    world.holds();
    assert_eq!(world.restart(), Some(2));
    world.member(2).seen = Looked::Seen(NEW);
    assert_eq!(world.holds(), [held("n1", "RestartByHand")]);
    assert_eq!(world.restart(), Some(1));
    world.member(1).seen = Looked::Seen(Seen {
        takes_new: false,
        ..NEW
    });
    assert_eq!(world.holds(), [held("n1", "RefusesNew")]);
    world.member(1).seen = Looked::Seen(NEW);
    assert_eq!(world.phase(), Phase::Done);
}

#[test]
fn a_member_that_has_left_gives_its_turn_back() {
    let mut world = World::in_phase(Phase::Drop);
    world.members = Some(vec![member(1, true), member(2, true)]);
    world.holds();
    assert_eq!(world.restart(), Some(1));
    world.members.as_mut().unwrap().remove(0);
    world.holds();
    assert_eq!(world.restart(), Some(2));
}

#[test]
fn a_record_names_a_part_and_counts_all() {
    let mut world = World::in_phase(Phase::Reissue);
    world.certified = (0..100)
        .map(|at| certified(AuthorityKind::Node, &format!("n{at}"), BEFORE.node))
        .collect();
    assert_eq!(world.plan().asked.len(), MOST_ASKED);
    assert_eq!(world.holds().len(), MOST_NAMED);
    assert_eq!(world.rotation.value.held_up, 100);
}
