//! What keeps a volume from being taken into use although the view says so.

use super::*;

/// INV-9: something may unmount it again and again.
#[test]
fn a_mount_that_goes_is_made_again_only_after_a_rest_each_time() {
    for stages in [true, false] {
        let mut world = World::new(Instruction::Publish);
        world.plugin.as_mut().unwrap().offers.stage = stages;
        world.run();
        for _ in 0..3 {
            world.seen().target = At::Nothing;
            assert_eq!(world.run(), [], "stages: {stages}");
            assert_eq!(world.rest(), Some("MountGone"));
            let again = match stages {
                true => vec![Step::Stage, Step::Publish],
                false => vec![Step::Publish],
            };
            assert_eq!(world.run(), again);
            assert_eq!(world.plan(), Decision::Settled);
        }
    }
    let mut world = ending();
    world.seen().target = At::Nothing;
    assert_eq!(world.step(), Some(Step::Unlink), "a volume that is given back");
}

/// INV-6: an operator may have confirmed in the node's place.
#[test]
fn without_a_session_nothing_is_taken_into_use_and_everything_may_be_given_back() {
    let mut world = World::new(Instruction::Publish);
    world.is_current = false;
    assert_eq!(world.waits_for(), Some("NoSession"));
    world.is_current = true;
    world.carry_out(Step::Stage);
    world.is_current = false;
    assert_eq!(world.waits_for(), Some("NoSession"), "half of it is done");
    world.is_current = true;
    world.run();
    world.is_current = false;
    assert_eq!(world.plan(), Decision::Settled, "what is in use stays");
    world.seen().target = At::Nothing;
    assert_eq!(world.waits_for(), Some("NoSession"));
    let mut world = ending();
    world.is_current = false;
    let back = [
        Step::Unlink,
        Step::Unpublish,
        Step::Unstage,
        Step::ConfirmUnpublished,
    ];
    assert_eq!(world.run(), back);
}

/// INV-6: another replica may show what was before the confirmation.
#[test]
fn what_was_just_confirmed_is_not_taken_into_use_by_a_late_view() {
    for stages in [true, false] {
        let mut world = ending();
        world.run();
        world.plugin.as_mut().unwrap().offers.stage = stages;
        world.forget();
        world.publication.set_instruction(Instruction::Publish);
        assert_eq!(world.waits_for(), Some("JustConfirmed"), "stages: {stages}");
        world.now += CONFIRMED_FOR;
        assert!(world.step().is_some(), "it starts over");
    }
    let mut world = published();
    world.was_confirmed = Some(world.now);
    assert_eq!(world.plan(), Decision::Settled, "what is in use stays");
}
