use super::*;

mod world;

use world::{CLUSTER, World, own};

fn removes(world: &mut World, id: u64) {
    world.shown.removed.push(MemberId(id));
}

fn rests(step: &Step) -> &Rest {
    match step {
        Step::Rest(why) => why,
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_promoted_node_joins_is_certified_and_notes_its_member_before_etcd_starts() {
    let mut world = World::promoted();
    let new = |stage| Step::Note(Noted { own: own(1), stage });
    assert_eq!(
        world.run(),
        [
            Step::Join,
            Step::Certify(Renewal::First),
            new(Stage::New),
            Step::Start,
            new(Stage::Started),
            Step::Rest(Rest::Runs)
        ]
    );
}

#[test]
fn without_certificates_it_does_the_same_in_clear_text() {
    let mut world = World::promoted();
    world.tls = Tls::Unneeded;
    assert!(!world.run().contains(&Step::Certify(Renewal::First)));
    assert_eq!(world.process, Process::Running);
}

#[test]
fn a_worker_and_a_manager_without_its_certificate_or_a_session_ask_for_nothing() {
    let mut world = World::promoted();
    world.certified = Some(NodeRole::Worker);
    assert_eq!(world.run(), [Step::Rest(Rest::NotCertified)]);
    world.certified = Some(NodeRole::Manager);
    world.shown.role = Some(NodeRole::Worker);
    assert_eq!(world.run(), [Step::Rest(Rest::NotAManager)]);
    world.shown.role = None;
    assert_eq!(world.run(), [Step::Rest(Rest::NoSession)]);
}

#[test]
fn a_demoted_node_stops_etcd_and_sets_its_data_aside_and_the_next_member_starts_on_nothing() {
    let mut world = World::running();
    world.shown.role = Some(NodeRole::Worker);
    removes(&mut world, 1);
    let ended = Step::Note(Noted {
        own: own(1),
        stage: Stage::Ended,
    });
    let end = [
        ended,
        Step::Stop(MemberId(1)),
        Step::SetAside(MemberId(1)),
        Step::Forget(MemberId(1)),
        Step::Rest(Rest::NotAManager),
    ];
    assert_eq!(world.run(), end);
    assert_eq!(world.aside, [Data::Of(own(1))], "nothing is deleted");
    // Promoted again.
    world.shown.role = Some(NodeRole::Manager);
    world.listed = (own(2), false);
    let steps = world.run();
    assert!(steps.contains(&Step::Certify(Renewal::First)), "{steps:?}");
    assert_eq!((world.process, world.data), (Process::Running, Data::Of(own(2))));
    assert_eq!(world.aside, [Data::Of(own(1))]);
}

#[test]
fn demoted_and_promoted_before_it_noticed_it_ends_the_old_member_first() {
    let mut world = World::running();
    removes(&mut world, 1);
    world.listed = (own(2), false);
    let steps = world.run();
    let stops = steps.iter().position(|step| *step == Step::Stop(MemberId(1)));
    let joins = steps.iter().position(|step| *step == Step::Join);
    assert!(stops < joins, "{steps:?}");
    assert_eq!(world.data, Data::Of(own(2)));
    assert_eq!(world.aside, [Data::Of(own(1))]);
}

#[test]
fn demoted_before_the_join_it_starts_nothing_and_leaves_nothing() {
    // Before it has asked, while its demotion is under way, and after it has noted the answer.
    let mut world = World::promoted();
    world.shown.is_demoted = true;
    assert_eq!(world.run(), [Step::Rest(Rest::NotAManager)]);
    let mut world = World::promoted();
    while world.noted.is_none() {
        world.step();
    }
    world.shown.role = Some(NodeRole::Worker);
    world.answered = None;
    assert_eq!(world.run(), [Step::Rest(Rest::NotAManager)]);
    removes(&mut world, 1);
    let steps = world.run();
    assert!(!steps.contains(&Step::Start), "{steps:?}");
    assert_eq!((world.noted, world.data), (None, Data::Missing));
    assert!(world.aside.is_empty(), "there was nothing to set aside");
}

#[test]
fn an_answer_that_names_a_removed_member_or_is_old_is_asked_for_again() {
    let mut world = World::promoted();
    world.step();
    removes(&mut world, 1);
    assert_eq!(world.plan(), Step::Join);
    let mut world = World::promoted();
    world.step();
    assert_ne!(world.plan(), Step::Join);
    world.age(ANSWER_COUNTS);
    assert_eq!(world.plan(), Step::Join);
}

/// A restore, a wrong replica, silence, a node that is unknown and a certificate that has ended all look like one of these.
#[test]
fn nothing_but_the_removal_of_this_very_member_stops_etcd() {
    for role in [None, Some(NodeRole::Worker), Some(NodeRole::Manager)] {
        for certified in [None, Some(NodeRole::Worker), Some(NodeRole::Manager)] {
            for flags in 0..8 {
                let mut world = World::running();
                world.certified = certified;
                world.shown = Shown {
                    role,
                    is_demoted: flags & 1 != 0,
                    is_leaving: flags & 2 != 0,
                    removed: vec![MemberId(7)],
                    ..Shown::default()
                };
                if flags & 4 != 0 {
                    world.expire();
                }
                world.listed = (own(9), false);
                world.run();
                assert_eq!(world.process, Process::Running, "{role:?} {certified:?} {flags}");
                assert_eq!(world.noted.map(|noted| noted.own), Some(own(1)));
            }
        }
    }
}

#[test]
fn etcd_starts_again_without_a_word_of_any_replica() {
    let mut world = World::running();
    world.process = Process::Stopped;
    world.shown = Shown::default();
    world.certified = None;
    world.expire();
    assert_eq!(world.run(), [Step::Start, Step::Rest(Rest::Runs)]);
}

#[test]
fn a_member_that_has_started_never_starts_on_what_is_not_its_data() {
    for data in [
        Data::Missing,
        Data::NoLog,
        Data::Unowned,
        Data::Unreadable("input/output error".to_owned()),
        Data::Of(own(2)),
        Data::Of(OwnMember {
            cluster: ClusterId(CLUSTER + 1),
            id: MemberId(1),
        }),
    ] {
        let mut world = World::running();
        (world.process, world.data) = (Process::Stopped, data.clone());
        let steps = world.run();
        assert_eq!(steps.len(), 1, "{steps:?}");
        assert!(matches!(rests(&steps[0]), Rest::Lost { own: lost, .. } if *lost == own(1)));
        assert_eq!(world.data, data);
    }
}

#[test]
fn a_replacement_brings_lost_data_back_as_another_member() {
    let mut world = World::running();
    (world.process, world.data) = (Process::Stopped, Data::Missing);
    assert!(matches!(world.run().as_slice(), [Step::Rest(Rest::Lost { .. })]));
    // An operator runs quorate replace.
    removes(&mut world, 1);
    world.listed = (own(2), false);
    world.run();
    assert_eq!((world.process, world.data), (Process::Running, Data::Of(own(2))));
}

#[test]
fn a_disk_that_lost_the_note_as_well_starts_nothing_that_etcd_lists_as_started() {
    let mut world = World::promoted();
    world.listed = (own(1), true);
    let steps = world.run();
    let lost = Rest::Lost {
        own: own(1),
        found: Found::Nothing,
    };
    assert_eq!(steps, [Step::Join, Step::Rest(lost)]);
    // The data is there, and the note is not: it is the member that the list says.
    world.data = Data::Of(own(1));
    world.run();
    assert_eq!(world.process, Process::Running);
    assert!(world.aside.is_empty());
}

#[test]
fn data_of_another_member_is_in_the_way_and_stays() {
    let mut world = World::promoted();
    world.data = Data::Of(own(5));
    let steps = world.run();
    let way = Rest::InTheWay(Found::Of(own(5)));
    assert_eq!(steps, [Step::Join, Step::Rest(way)]);
    assert_eq!(world.data, Data::Of(own(5)));
}

/// Etcd would apply the log of the cluster to it, as far as it does not say itself that it has.
#[test]
fn a_database_without_a_log_is_in_the_way_unless_a_first_start_of_this_member_has_left_it() {
    let mut world = World::promoted();
    world.data = Data::Unowned;
    let way = Rest::InTheWay(Found::Unowned);
    assert_eq!(world.run(), [Step::Join, Step::Rest(way)]);
    let mut world = World::promoted();
    while world.process != Process::Running {
        world.step();
    }
    (world.process, world.data) = (Process::Stopped, Data::Unowned);
    world.run();
    assert_eq!((world.process, world.data), (Process::Running, Data::Of(own(1))));
}

#[test]
fn an_etcd_without_a_note_is_left_alone() {
    let mut world = World::promoted();
    world.process = Process::Running;
    assert_eq!(world.run(), [Step::Join, Step::Rest(Rest::RunsUnnoted)]);
    // One that runs as the member of the node is noted.
    world.data = Data::Of(own(1));
    world.run();
    assert_eq!(world.noted.map(|noted| noted.stage), Some(Stage::Started));
}

#[test]
fn where_it_is_unknown_whether_etcd_runs_nothing_is_done() {
    let unknown = Process::Unknown("no answer".to_owned());
    let rest = Step::Rest(Rest::ProcessUnknown("no answer".to_owned()));
    for is_removed in [false, true] {
        let mut world = World::running();
        world.process = unknown.clone();
        if is_removed {
            removes(&mut world, 1);
        }
        assert_eq!(world.run().last(), Some(&rest));
        assert_eq!((&world.process, &world.data), (&unknown, &Data::Of(own(1))));
    }
    let mut world = World::promoted();
    world.process = unknown;
    assert_eq!(world.run(), [rest]);
}

#[test]
fn a_first_start_that_wrote_nothing_is_tried_with_a_later_list_and_as_the_member_of_that() {
    let mut world = World::promoted();
    while world.process != Process::Running {
        world.step();
    }
    // It ended before its log was there.
    (world.process, world.data) = (Process::Stopped, Data::NoLog);
    assert_eq!(world.plan(), Step::Join, "the list of members may be another one");
    world.listed = (own(2), false);
    world.run();
    assert_eq!(world.noted.map(|noted| noted.own), Some(own(2)));
    // By the list, it has started: then what it has written is gone.
    let mut world = World::promoted();
    while world.noted.is_none() {
        world.step();
    }
    (world.answered, world.listed) = (None, (own(1), true));
    let steps = world.run();
    assert!(
        matches!(steps.last(), Some(Step::Rest(Rest::Lost { .. }))),
        "{steps:?}"
    );
}

#[test]
fn a_certificate_is_replaced_while_etcd_runs_on_and_the_list_is_written_when_it_changes() {
    let mut world = World::running();
    world.expire();
    let left = Duration::ZERO;
    let renewal = Step::Certify(Renewal::Age { left });
    assert_eq!(world.run(), [renewal, Step::Rest(Rest::Runs)]);
    world.change_list();
    assert_eq!(world.run(), [Step::WriteList, Step::Rest(Rest::Runs)]);
    // A manager that stays is answered, and no other node.
    let changes: [fn(&mut Shown); 3] = [
        |shown| shown.role = Some(NodeRole::Worker),
        |shown| shown.is_leaving = true,
        |shown| shown.is_demoted = true,
    ];
    for change in changes {
        let mut world = World::running();
        world.expire();
        change(&mut world.shown);
        assert_eq!(world.run(), [Step::Rest(Rest::Runs)]);
    }
}

#[test]
fn etcd_does_not_start_without_its_certificate_or_the_list_of_revoked_ones() {
    let mut world = World::promoted();
    world.has_list = false;
    let steps = world.run();
    assert_eq!(steps.last(), Some(&Step::Rest(Rest::NoList)));
    assert_eq!(world.process, Process::Stopped);
    // The leader has made one.
    world.change_list();
    world.run();
    assert_eq!(world.process, Process::Running);
    let mut world = World::running();
    world.process = Process::Stopped;
    world.lose_certificate();
    world.certified = None;
    assert_eq!(world.run(), [Step::Rest(Rest::NotCertified)]);
}

#[test]
fn what_has_failed_delays_nothing_else() {
    let mut world = World::running();
    world.expire();
    world.change_list();
    world.resting = BTreeSet::from([Task::Files, Task::Certify]);
    assert_eq!(world.run(), [Step::Rest(Rest::Runs)]);
    world.process = Process::Stopped;
    assert_eq!(world.plan(), Step::Start);
    world.resting.insert(Task::Start);
    assert_eq!(world.plan(), Step::Rest(Rest::After(Task::Start)));
}

#[test]
fn a_member_that_runs_is_moved_by_a_request_to_join() {
    let mut world = World::running();
    world.has_moved = true;
    assert_eq!(world.run(), [Step::Join, Step::Rest(Rest::Runs)]);
}

/// INV-9. The session shows later that the member of this etcd is out of the cluster, if it is.
#[test]
fn a_member_that_runs_asks_seldom_where_the_answer_names_another_one() {
    let mut world = World::running();
    world.has_moved = true;
    world.answered = Some(Answered {
        own: own(2),
        has_started: false,
        age: Duration::ZERO,
    });
    assert_eq!(world.plan(), Step::Rest(Rest::Runs));
    world.age(ANSWER_COUNTS);
    assert_eq!(world.plan(), Step::Join);
}

/// An agent that is killed after any step goes on where it was: what it does is planned from what is on disk.
#[test]
fn whatever_the_step_after_which_the_agent_is_killed_it_ends_where_the_records_say() {
    let situations: [fn() -> World; 4] = [
        World::promoted,
        || {
            let mut world = World::running();
            world.shown.role = Some(NodeRole::Worker);
            removes(&mut world, 1);
            world
        },
        || {
            let mut world = World::running();
            removes(&mut world, 1);
            world.listed = (own(2), false);
            world
        },
        || {
            let mut world = World::running();
            (world.process, world.data) = (Process::Stopped, Data::Missing);
            removes(&mut world, 1);
            world.listed = (own(2), false);
            world
        },
    ];
    for situation in situations {
        let mut whole = situation();
        let steps = whole.run().len();
        for killed in 0..steps {
            let mut world = situation();
            for _ in 0..killed {
                world.step();
            }
            world.answered = None;
            world.run();
            assert_eq!(world.noted, whole.noted, "after step {killed}");
            assert_eq!((&world.process, &world.data), (&whole.process, &whole.data));
            assert_eq!(world.aside, whole.aside);
        }
    }
}

#[test]
fn etcd_is_started_again_once_for_each_permission_and_goes_on_with_its_data() {
    let mut world = World::running();
    world.shown.restart = Some(5);
    let again = [Step::Restart(5), Step::Start, Step::Rest(Rest::Runs)];
    assert_eq!(world.run(), again);
    assert_eq!(world.run(), [Step::Rest(Rest::Runs)], "it is the same permission");
    assert_eq!(world.data, Data::Of(own(1)));
    // The agent was killed after the stop, before it had noted that.
    world.shown.restart = Some(6);
    world.process = Process::Stopped;
    assert_eq!(
        world.run(),
        [Step::Restart(6), Step::Start, Step::Rest(Rest::Runs)]
    );
    world.shown.restart = None;
    assert_eq!(world.run(), [Step::Rest(Rest::Runs)]);
}

/// INV-5: by now it may be another member's turn.
#[test]
fn a_permission_that_no_session_shows_any_more_stops_nothing() {
    let mut world = World::running();
    world.shown.restart = Some(5);
    world.is_current = false;
    assert_eq!(world.run(), [Step::Rest(Rest::Runs)]);
    world.is_current = true;
    assert_eq!(world.run()[0], Step::Restart(5));
}

#[test]
fn data_of_another_member_stays_where_it_is_when_the_member_ends() {
    let mut world = World::running();
    world.process = Process::Stopped;
    world.data = Data::Of(own(9));
    world.shown.role = Some(NodeRole::Worker);
    removes(&mut world, 1);
    world.run();
    assert_eq!((world.noted, &world.data), (None, &Data::Of(own(9))));
    assert_eq!(world.aside, []);
}

/// INV-5, INV-12: as after a restore, by which a member has the id of before again.
#[test]
fn the_etcd_of_another_member_runs_on_when_the_member_of_the_note_ends() {
    let mut world = World::running();
    world.data = Data::Of(own(9));
    world.shown.role = Some(NodeRole::Worker);
    removes(&mut world, 1);
    let steps = world.run();
    assert!(!steps.contains(&Step::Stop(own(1).id)), "{steps:?}");
    assert_eq!(
        (&world.process, &world.data),
        (&Process::Running, &Data::Of(own(9)))
    );
    assert_eq!(world.noted, None);
}

#[test]
fn lost_data_shows_although_a_unit_that_starts_again_and_again_counts_as_running() {
    let mut world = World::running();
    for data in [Data::Missing, Data::NoLog, Data::Unowned, Data::Of(own(9))] {
        world.data = data;
        let step = world.plan();
        assert!(matches!(step, Step::Rest(Rest::Lost { .. })), "{step:?}");
    }
    world.data = Data::Unreadable("a log that is being removed".to_owned());
    assert_eq!(world.plan(), Step::Rest(Rest::Runs));
}

#[test]
fn an_etcd_in_clear_text_and_a_member_that_is_out_of_the_cluster_are_not_started_again() {
    let mut world = World::running();
    world.tls = Tls::Unneeded;
    world.shown.restart = Some(5);
    assert_eq!(world.run(), [Step::Rest(Rest::Runs)]);
    let mut world = World::running();
    world.shown.restart = Some(5);
    removes(&mut world, 1);
    world.shown.role = Some(NodeRole::Worker);
    let steps = world.run();
    assert!(!steps.contains(&Step::Restart(5)), "{steps:?}");
}
