mod guards;

use super::*;
use crate::proto::AccessMode;
use crate::proto::access_mode::Sharing;

/// A volume on a node, whose facts a test sets.
struct World {
    publication: NodePublication,
    plugin: Result<Ready, Wait>,
    seen: Option<Seen>,
    done: Done,
    is_current: bool,
    was_confirmed: Option<Instant>,
    now: Instant,
}

const ALL: NodeCapabilities = NodeCapabilities {
    stage: true,
    expand: true,
    exact_access_mode: false,
};

impl World {
    fn new(instruction: Instruction) -> Self {
        let mut publication = NodePublication::default();
        publication.set_instruction(instruction);
        Self {
            publication,
            plugin: Ok(Ready {
                session: 1,
                offers: ALL,
            }),
            seen: Some(Seen {
                target: At::Nothing,
                staging: At::Nothing,
                other: None,
                link: Link::Absent,
                asked: false,
                asked_to_stage: false,
            }),
            done: Done::default(),
            is_current: true,
            was_confirmed: None,
            now: Instant::now(),
        }
    }

    fn seen(&mut self) -> &mut Seen {
        self.seen.as_mut().unwrap()
    }

    fn plan(&self) -> Decision {
        let observed = Observed {
            publication: &self.publication,
            plugin: self.plugin.as_ref().copied(),
            seen: self.seen.as_ref(),
            done: &self.done,
            is_current: self.is_current,
            was_confirmed: self.was_confirmed,
        };
        plan(&observed, self.now)
    }

    fn step(&self) -> Option<Step> {
        match self.plan() {
            Decision::Do(step, because) => {
                assert!(!because.is_empty());
                Some(step)
            }
            Decision::Wait(_) | Decision::Rest(_) | Decision::Settled => None,
        }
    }

    fn waits_for(&self) -> Option<&'static str> {
        match self.plan() {
            Decision::Wait(wait) => Some(wait.reason),
            Decision::Do(..) | Decision::Rest(_) | Decision::Settled => None,
        }
    }

    /// Rests, where the plan says so. Returns why.
    fn rest(&mut self) -> Option<&'static str> {
        let Decision::Rest(why) = self.plan() else {
            return None;
        };
        self.done.has_rested = true;
        Some(why.reason)
    }

    /// Does the step as an obedient plugin does, with mounts.
    fn carry_out(&mut self, step: Step) {
        let (session, now) = (self.plugin.as_ref().map_or(0, |ready| ready.session), self.now);
        let offers_stage = self.plugin.as_ref().is_ok_and(|ready| ready.offers.stage);
        let asks = matches!(step, Step::Stage | Step::Publish);
        self.seen().asked |= asks;
        self.seen().asked_to_stage |= asks && offers_stage;
        let (seen, done) = (self.seen.as_mut().unwrap(), &mut self.done);
        match step {
            Step::Stage => {
                seen.staging = At::Mounted;
                (done.staged, done.published, done.was_mounted) = (Some(session), None, false);
            }
            Step::Publish => {
                seen.target = At::Mounted;
                (done.published, done.was_mounted, done.has_rested) = (Some(session), true, false);
            }
            Step::Link => seen.link = Link::Ours,
            Step::Expand { bytes } => done.expanded = bytes,
            Step::ConfirmExpanded { bytes } => done.expansion_confirmed = Some((bytes, now)),
            Step::Unlink => seen.link = Link::Absent,
            Step::Unpublish => {
                seen.target = At::Nothing;
                done.unpublished = true;
                done.unstaged = !offers_stage && !seen.asked_to_stage;
            }
            Step::Unstage => {
                seen.staging = At::Nothing;
                done.unstaged = true;
            }
            Step::ConfirmUnpublished => self.was_confirmed = Some(now),
        }
    }

    /// Every step until none is left.
    fn run(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some(step) = self.step() {
            assert!(steps.len() < 20, "{steps:?}");
            self.carry_out(step);
            steps.push(step);
        }
        steps
    }

    /// As after a restart of the agent, or another instruction.
    fn forget(&mut self) {
        self.done = Done::default();
    }
}

fn published() -> World {
    let mut world = World::new(Instruction::Publish);
    world.run();
    world
}

fn grown(bytes: i64) -> World {
    let mut world = published();
    world.publication.capacity_bytes = bytes;
    world
}

fn ending() -> World {
    let mut world = published();
    world.forget();
    world.publication.set_instruction(Instruction::Unpublish);
    world
}

#[test]
fn a_volume_is_staged_published_and_gets_its_path_and_the_other_way_round() {
    let mut world = World::new(Instruction::Publish);
    assert_eq!(world.run(), [Step::Stage, Step::Publish, Step::Link]);
    assert_eq!(world.plan(), Decision::Settled);
    let mut world = ending();
    assert_eq!(
        world.run(),
        [
            Step::Unlink,
            Step::Unpublish,
            Step::Unstage,
            Step::ConfirmUnpublished
        ]
    );
    assert_eq!(world.plan(), Decision::Settled);
}

#[test]
fn a_plugin_that_does_not_offer_it_stages_nothing() {
    let mut world = World::new(Instruction::Publish);
    world.plugin.as_mut().unwrap().offers.stage = false;
    assert_eq!(world.run(), [Step::Publish, Step::Link]);
    world.forget();
    world.publication.set_instruction(Instruction::Unpublish);
    assert_eq!(
        world.run(),
        [Step::Unlink, Step::Unpublish, Step::ConfirmUnpublished]
    );
}

#[test]
fn the_calls_are_repeated_for_another_process_of_the_agent_and_of_the_plugin() {
    let mut world = published();
    world.forget();
    assert_eq!(
        world.run(),
        [Step::Stage, Step::Publish],
        "the agent was restarted"
    );
    world.plugin.as_mut().unwrap().session = 2;
    assert_eq!(
        world.run(),
        [Step::Stage, Step::Publish],
        "the plugin was restarted"
    );
    assert_eq!(world.plan(), Decision::Settled);
}

#[test]
fn a_mount_that_is_gone_is_made_again() {
    let mut world = published();
    world.seen().target = At::Nothing;
    assert_eq!(world.rest(), Some("MountGone"));
    assert_eq!(world.run(), [Step::Stage, Step::Publish]);
    // As after a reboot.
    world.forget();
    *world.seen() = World::new(Instruction::Publish).seen.unwrap();
    assert_eq!(world.run(), [Step::Stage, Step::Publish, Step::Link]);
    // A plugin may publish without a mount.
    let mut world = published();
    world.done.was_mounted = false;
    world.seen().target = At::Nothing;
    assert_eq!(world.plan(), Decision::Settled);
}

/// INV-12: it may be anything.
#[test]
fn a_foreign_mount_is_never_touched_and_nothing_is_confirmed_beside_it() {
    for instruction in [Instruction::Publish, Instruction::Unpublish] {
        for at in [At::Mounted, At::Covered] {
            let mut world = World::new(instruction);
            world.seen().target = at;
            assert_eq!(world.waits_for(), Some(FOREIGN), "{instruction:?} {at:?}");
            world.seen().target = At::Nothing;
            world.seen().staging = at;
            assert_eq!(world.waits_for(), Some(FOREIGN), "{instruction:?} {at:?}");
        }
    }
    let mut covered = ending();
    covered.seen().target = At::Covered;
    assert_eq!(covered.waits_for(), Some(FOREIGN), "on top of the agent's own");
    let mut later = ending();
    assert_eq!(later.step(), Some(Step::Unlink));
    later.carry_out(Step::Unlink);
    later.carry_out(Step::Unpublish);
    later.seen().target = At::Mounted;
    assert_eq!(later.waits_for(), Some(FOREIGN), "it came after the unmount");
}

/// What an earlier publication left staged is the agent's; what is at the target of this one is not.
#[test]
fn a_volume_that_an_earlier_publication_left_staged_is_published_and_unstaged() {
    for instruction in [Instruction::Publish, Instruction::Unpublish] {
        let mut world = World::new(instruction);
        world.seen().staging = At::Mounted;
        world.seen().asked_to_stage = true;
        let steps = world.run();
        let expected = match instruction {
            Instruction::Publish => vec![Step::Stage, Step::Publish, Step::Link],
            _ => vec![Step::Unpublish, Step::Unstage, Step::ConfirmUnpublished],
        };
        assert_eq!(steps, expected, "{instruction:?}");
    }
    let mut world = World::new(Instruction::Publish);
    world.seen().target = At::Mounted;
    world.seen().asked_to_stage = true;
    assert_eq!(world.waits_for(), Some(FOREIGN));
}

/// INV-6.
#[test]
fn nothing_is_confirmed_before_all_of_the_volume_is_unmounted() {
    let mut world = ending();
    world.carry_out(Step::Unlink);
    world.carry_out(Step::Unpublish);
    world.plugin = Err(wait("PluginUnreachable", "no".to_owned()));
    assert_eq!(world.waits_for(), Some("PluginUnreachable"), "it is staged");

    let mut world = ending();
    for step in [Step::Unlink, Step::Unpublish, Step::Unstage] {
        world.carry_out(step);
    }
    world.seen().other = Some("/of/an/earlier/publication".into());
    assert_eq!(world.waits_for(), Some("StillMounted"));
    world.done.unstaged = false;
    assert_eq!(
        world.waits_for(),
        Some("StillMounted"),
        "it is unstaged after its last use"
    );
    world.done.unstaged = true;
    world.seen().other = None;
    world.plugin = Err(wait("PluginUnreachable", "no".to_owned()));
    assert_eq!(
        world.step(),
        Some(Step::ConfirmUnpublished),
        "the plugin has done its part"
    );

    let mut world = ending();
    world.plugin.as_mut().unwrap().offers.stage = false;
    world.carry_out(Step::Unlink);
    world.carry_out(Step::Unpublish);
    assert_eq!(world.waits_for(), Some("StillStaged"));
    world.seen().staging = At::Nothing;
    assert_eq!(
        world.waits_for(),
        Some("StillStaged"),
        "some stage without a mount"
    );
}

/// INV-12: a table that cannot be read proves nothing.
#[test]
fn nothing_is_done_while_the_mounts_are_unknown() {
    for instruction in [Instruction::Publish, Instruction::Unpublish] {
        let mut world = World::new(instruction);
        world.seen = None;
        assert_eq!(world.waits_for(), Some("MountsUnknown"));
    }
}

#[test]
fn what_the_view_does_not_say_is_left_as_it_is() {
    for instruction in [Instruction::Unspecified, Instruction::None] {
        let mut world = published();
        world.forget();
        world.publication.set_instruction(instruction);
        assert_eq!(world.plan(), Decision::Settled, "{instruction:?}");
    }
}

#[test]
fn a_path_that_is_taken_is_left_and_the_volume_is_not_published_beside_it() {
    let mut world = World::new(Instruction::Publish);
    world.seen().link = Link::Taken;
    assert_eq!(world.waits_for(), Some("PathInUse"));
    let mut world = ending();
    world.seen().link = Link::Taken;
    assert_eq!(
        world.step(),
        Some(Step::Unpublish),
        "it does not hold the volume back"
    );
}

#[test]
fn what_is_on_a_volume_is_expanded_and_then_confirmed() {
    let mut world = grown(7);
    let confirm = Step::ConfirmExpanded { bytes: 7 };
    assert_eq!(world.run(), [Step::Expand { bytes: 7 }, confirm]);
    assert_eq!(world.plan(), Decision::Settled);
    world.now += CONFIRMED_FOR;
    assert_eq!(world.step(), Some(confirm), "it does not show in the view");
    world.publication.expanded_bytes = 7;
    assert_eq!(world.plan(), Decision::Settled);
    world.publication.capacity_bytes = 9;
    assert_eq!(world.step(), Some(Step::Expand { bytes: 9 }));
}

#[test]
fn a_node_that_only_reads_expands_nothing_and_a_plugin_that_cannot_is_named() {
    let mut world = grown(7);
    world.publication.read_only = true;
    assert_eq!(
        world.plan(),
        Decision::Settled,
        "a node that writes it expands and confirms it"
    );
    let mut world = grown(7);
    world.publication.access_mode = Some(AccessMode {
        sharing: Sharing::ReadOnly.into(),
        ..AccessMode::default()
    });
    assert_eq!(
        world.plan(),
        Decision::Settled,
        "a node that writes it expands and confirms it"
    );
    let mut world = grown(7);
    world.plugin.as_mut().unwrap().offers.expand = false;
    assert_eq!(world.waits_for(), Some("ExpansionNotOffered"));
}

#[test]
fn a_confirmation_that_does_not_show_is_repeated() {
    let mut world = ending();
    world.run();
    assert_eq!(world.plan(), Decision::Settled);
    world.now += CONFIRMED_FOR;
    assert_eq!(world.step(), Some(Step::ConfirmUnpublished));
}

#[test]
fn without_its_plugin_a_volume_waits() {
    for instruction in [Instruction::Publish, Instruction::Unpublish] {
        let mut world = World::new(instruction);
        world.plugin = Err(wait("PluginMissing", "no".to_owned()));
        assert_eq!(world.waits_for(), Some("PluginMissing"), "{instruction:?}");
    }
}

/// Whatever order the instructions come in, and whatever the plugin restarts between: the steps end, and end right.
#[test]
fn every_order_of_instructions_ends_with_what_the_last_one_says() {
    for bits in 0..64_u32 {
        let mut world = World::new(Instruction::Publish);
        for at in 0..6 {
            let is_publish = bits >> at & 1 == 0;
            let instruction = match is_publish {
                true => Instruction::Publish,
                false => Instruction::Unpublish,
            };
            if world.publication.instruction() != instruction {
                world.forget();
                world.now += CONFIRMED_FOR;
            }
            world.publication.set_instruction(instruction);
            // An instruction may be replaced under way.
            if let Some(step) = world.step().filter(|_| at % 2 == 0) {
                world.carry_out(step);
            } else {
                world.run();
            }
            if at == 3 {
                world.plugin.as_mut().unwrap().session += 1;
            }
        }
        world.run();
        let is_published = world.publication.instruction() == Instruction::Publish;
        let expected = if is_published { At::Mounted } else { At::Nothing };
        assert_eq!(
            (world.seen().target, world.seen().staging),
            (expected, expected),
            "{bits:b}"
        );
        let is_confirmed = world.was_confirmed == Some(world.now);
        assert_eq!(is_confirmed, !is_published, "{bits:b}");
    }
}
