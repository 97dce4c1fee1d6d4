use super::*;

const LIFE: Duration = Duration::from_secs(1000);

pub fn now() -> Now {
    Now {
        monotonic: Instant::now(),
        wall: "2026-03-01T12:00:00Z".parse().unwrap(),
    }
}

pub fn later(now: Now, seconds: u64) -> Now {
    let by = Duration::from_secs(seconds);
    Now {
        monotonic: now.monotonic + by,
        wall: now.wall + by,
    }
}

/// Received at once after its issue.
pub fn fresh(at: Now) -> Since {
    Since::received(at.wall, Some(at.monotonic), at)
}

fn held(since: Since) -> Held {
    Held {
        role: NodeRole::Worker,
        life: LIFE,
        since,
        renewed_at: renewed_at(LIFE, 0.5),
        awaits_another: false,
        is_refused_as_ended: false,
    }
}

fn shown(role: Role, certificate: State) -> Shown {
    Shown { role, certificate }
}

#[test]
fn without_a_certificate_and_with_one_that_has_ended_it_joins() {
    let begun = now();
    assert_eq!(plan(None, None, begun), Step::Join(Joining::First));
    let held = held(fresh(begun));
    let ended = plan(Some(&held), None, later(begun, 1000));
    assert_eq!(ended, Step::Join(Joining::Ended));
}

#[test]
fn one_that_a_server_takes_for_ended_has_ended_whatever_the_clocks_say_here() {
    let begun = now();
    let refused = Held {
        is_refused_as_ended: true,
        ..held(Since::Issued(begun.wall))
    };
    assert_eq!(refused.left(begun), Duration::ZERO);
    // It opens no session, in which another one could be requested.
    let step = plan(Some(&refused), None, later(begun, 650));
    assert_eq!(step, Step::Join(Joining::Ended));
}

#[test]
fn one_that_is_valid_stays_while_the_next_one_begins_later_by_the_clock_of_the_node() {
    let begun = now();
    let held = held(fresh(begun));
    let begin = later(begun, 500).wall;
    assert!(held.outlasts(begin, later(begun, 499)));
    assert!(!held.outlasts(begin, later(begun, 500)));
    let far = later(begun, 9000).wall;
    assert!(held.outlasts(far, later(begun, 999)));
    assert!(!held.outlasts(far, later(begun, 1000)), "it has ended");
    let refused = Held {
        is_refused_as_ended: true,
        ..held
    };
    assert!(!refused.outlasts(begin, begun));
}

#[test]
fn it_renews_between_half_and_four_fifths_of_the_life() {
    assert_eq!(renewed_at(LIFE, 0.0), Duration::from_secs(500));
    assert_eq!(renewed_at(LIFE, 1.0), Duration::from_secs(800));
    assert_eq!(renewed_at(LIFE, 7.0), Duration::from_secs(800));
    let begun = now();
    let held = held(fresh(begun));
    let early = plan(Some(&held), None, later(begun, 649));
    assert_eq!(early, Step::Rest(Duration::from_secs(1)));
    let due = plan(Some(&held), None, later(begun, 650));
    let left = Duration::from_secs(350);
    assert_eq!(due, Step::Renew(Reason::Age { left }));
}

#[test]
fn a_step_of_the_wall_clock_changes_nothing_until_a_restart() {
    let begun = now();
    let hour = Duration::from_secs(3600);
    let received = held(fresh(begun));
    for wall in [begun.wall + hour, begun.wall - hour] {
        let stepped = Now { wall, ..begun };
        let rest = Step::Rest(Duration::from_secs(650));
        assert_eq!(plan(Some(&received), None, stepped), rest);
    }
    let restored = held(Since::Issued(begun.wall));
    assert_eq!(
        plan(Some(&restored), None, later(begun, 640)),
        Step::Rest(Duration::from_secs(10))
    );
    let behind = Now {
        wall: begun.wall - hour,
        ..begun
    };
    assert_eq!(
        plan(Some(&restored), None, behind),
        Step::Rest(Duration::from_secs(650))
    );
}

#[test]
fn a_certificate_that_arrives_late_is_as_old_as_it_is() {
    let begun = now();
    // Requested by an earlier process, and issued while none ran.
    let issued = |seconds| begun.wall - Duration::from_secs(seconds);
    let late = |seconds| held(Since::received(issued(seconds), None, begun));
    assert_eq!(late(900).left(begun), Duration::from_secs(100));
    let left = Duration::from_secs(90);
    let due = plan(Some(&late(900)), None, later(begun, 10));
    assert_eq!(due, Step::Renew(Reason::Age { left }));
    let rest = plan(Some(&late(600)), None, begun);
    assert_eq!(rest, Step::Rest(Duration::from_secs(50)));
    for ended in [1000, 5000] {
        let step = plan(Some(&late(ended)), None, begun);
        assert_eq!(step, Step::Join(Joining::Ended), "{ended}");
    }
    // It settles from its receipt on, however old it is.
    let rotate = shown(Role::Worker, State::Rotate);
    let wished = |seconds| plan(Some(&late(600)), Some(&rotate), later(begun, seconds));
    assert_eq!(wished(0), Step::Rest(SETTLES));
    assert_eq!(wished(5), Step::Renew(Reason::Rotate));
}

#[test]
fn a_certificate_is_no_older_than_the_key_that_this_process_made_for_it() {
    let begun = now();
    let age = |made, issued| held(Since::received(issued, made, begun)).age(begun);
    let ago = Duration::from_secs(20);
    let made = begun.monotonic.checked_sub(ago);
    assert!(made.is_some());
    let hour = Duration::from_secs(3600);
    assert_eq!(age(made, begun.wall - hour), ago, "the wall clock is ahead");
    assert_eq!(age(made, begun.wall - ago / 2), ago / 2, "the answer has waited");
    assert_eq!(age(made, begun.wall + hour), Duration::ZERO, "it is behind");
    assert_eq!(age(None, begun.wall + hour), Duration::ZERO);
    assert_eq!(age(None, begun.wall - hour), hour);
}

#[test]
fn another_role_and_an_operators_wish_count_at_once() {
    let begun = now();
    let held = held(Since::Issued(begun.wall));
    let at = |shown: Shown| plan(Some(&held), Some(&shown), begun);
    assert_eq!(
        at(shown(Role::Manager, State::Issued)),
        Step::Renew(Reason::Role(NodeRole::Manager))
    );
    assert_eq!(
        at(shown(Role::Worker, State::Rotate)),
        Step::Renew(Reason::Rotate)
    );
    let rest = Step::Rest(Duration::from_secs(650));
    for nothing in [
        shown(Role::Worker, State::Issued),
        shown(Role::Worker, State::Pending),
        shown(Role::Unspecified, State::Failed),
    ] {
        assert_eq!(at(nothing), rest, "{nothing:?}");
    }
}

#[test]
fn a_request_without_an_answer_is_repeated() {
    let begun = now();
    let held = Held {
        awaits_another: true,
        ..held(Since::Issued(begun.wall))
    };
    assert_eq!(plan(Some(&held), None, begun), Step::Renew(Reason::Unanswered));
}

#[test]
fn what_a_replica_shows_late_replaces_no_certificate_that_was_just_received() {
    let begun = now();
    let held = held(fresh(begun));
    let late = shown(Role::Worker, State::Rotate);
    let at = |seconds| plan(Some(&held), Some(&late), later(begun, seconds));
    assert_eq!(at(0), Step::Rest(SETTLES));
    assert_eq!(at(4), Step::Rest(Duration::from_secs(1)));
    assert_eq!(at(5), Step::Renew(Reason::Rotate));
}
