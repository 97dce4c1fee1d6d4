//! Random lives of a volume against a backend, with failures, lost answers and crashes at every step.

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::csi::ExpandedVolume;
use crate::proto::Backend;
use crate::store::object::publication::node_uid;
use crate::store::object::volume::capacity;
use crate::volumes::record;

/// What happens to a step.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Works,
    /// The plugin refuses, nothing happens.
    Fails,
    /// The plugin carries it out, and its answer is lost.
    AnswerLost,
    /// The leader dies after the intent.
    CrashBefore,
    /// The leader dies after the call.
    CrashAfter,
}

/// What others do.
#[derive(Clone, Copy, Debug)]
enum Other {
    Publish(usize),
    Unpublish(usize),
    Confirm(usize),
    RemoveNode(usize),
    AddNode(usize),
    OutOfService(usize),
    NewNodeId(usize),
    Mark,
    Grow,
    Offers(bool, bool, bool),
    Reconnect,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Step(Fate),
    Other(Other),
}

fn fates() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Works),
        1 => Just(Fate::Fails),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::CrashBefore),
        1 => Just(Fate::CrashAfter),
    ]
}

fn others() -> impl Strategy<Value = Other> {
    let node = 0..3_usize;
    prop_oneof![
        4 => node.clone().prop_map(Other::Publish),
        3 => node.clone().prop_map(Other::Unpublish),
        3 => node.clone().prop_map(Other::Confirm),
        1 => node.clone().prop_map(Other::RemoveNode),
        1 => node.clone().prop_map(Other::AddNode),
        1 => node.clone().prop_map(Other::OutOfService),
        1 => node.prop_map(Other::NewNodeId),
        1 => Just(Other::Mark),
        1 => Just(Other::Grow),
        1 => any::<(bool, bool, bool)>().prop_map(|(a, b, c)| Other::Offers(a, b, c)),
        1 => Just(Other::Reconnect),
    ]
}

/// The records, and what they are about.
struct World {
    scene: Scene,
    /// Whether the record of the volume is there.
    recorded: bool,
    /// The backend: whether the volume exists, and the node ids that have it.
    exists: bool,
    attached: BTreeSet<String>,
    offers: Offers,
    ids: usize,
}

const NAMES: [&str; 3] = ["n1", "n2", "n3"];

impl World {
    fn new(scope: Scope) -> Self {
        Self {
            scene: Scene::of(volume(scope)).offering(Plugin::Unknown),
            recorded: true,
            exists: false,
            attached: BTreeSet::new(),
            offers: ALL,
            ids: 0,
        }
    }

    /// As the commands do it, with their rules.
    fn other(&mut self, other: Other) {
        let Scene {
            volume,
            publications,
            nodes,
            ..
        } = &mut self.scene;
        let marked = volume.is_marked();
        match other {
            Other::Publish(node) => {
                let node = name(NAMES[node]);
                let allowed = match publications.get_mut(&node) {
                    Some(there) if state(there) == State::PendingUnpublish => {
                        there.spec.as_mut().unwrap().again = true;
                        false
                    }
                    Some(_) => false,
                    None => scope_of(volume) == Scope::MultiNode || publications.is_empty(),
                };
                let uid = nodes
                    .get(&node)
                    .filter(|node| !node.out_of_service)
                    .map(|node| node.uid.clone());
                if let (true, Some(uid), false, true) = (allowed, uid, marked, self.recorded) {
                    let mut wanted = publication(State::PendingPublish, "");
                    wanted.spec.as_mut().unwrap().node_uid = uid;
                    publications.insert(node, wanted);
                }
            }
            Other::Unpublish(node) => {
                if let Some(publication) = publications.get_mut(&name(NAMES[node])) {
                    publication.spec.as_mut().unwrap().again = false;
                    let next = match state(publication) {
                        State::PendingPublish => State::PendingUnpublish,
                        State::Published => State::PendingNodeUnpublish,
                        same => same,
                    };
                    publication.status.as_mut().unwrap().set_state(next);
                }
            }
            Other::Confirm(node) => {
                if let Some(publication) = publications.get_mut(&name(NAMES[node]))
                    && state(publication) == State::PendingNodeUnpublish
                {
                    publication
                        .status
                        .as_mut()
                        .unwrap()
                        .set_state(State::PendingUnpublish);
                }
            }
            Other::RemoveNode(node) => {
                let node = name(NAMES[node]);
                if let Some(removed) = nodes.remove(&node)
                    && publications.get(&node).map(node_uid) == Some(removed.uid.as_str())
                {
                    self.scene.removed.insert(node, Revision(8));
                }
            }
            Other::AddNode(index) => {
                self.ids += 1;
                // A machine that comes back under another name reports the id of before.
                let id = match self.ids % 3 {
                    0 => "csi-shared".to_owned(),
                    _ => format!("csi-{}-{}", NAMES[index], self.ids),
                };
                let mut added = node(&id);
                added.uid = format!("uid-{}", self.ids);
                nodes.entry(name(NAMES[index])).or_insert(added);
            }
            Other::OutOfService(node) => {
                if let Some(node) = nodes.get_mut(&name(NAMES[node])) {
                    node.out_of_service = true;
                }
            }
            Other::NewNodeId(index) => {
                self.ids += 1;
                if let Some(node) = nodes.get_mut(&name(NAMES[index])) {
                    node.csi_node_id = Some(format!("csi-{}-{}", NAMES[index], self.ids));
                }
            }
            Other::Mark => {
                if publications.is_empty() {
                    *volume = marked_of(volume);
                }
            }
            Other::Grow => {
                let capacity = volume.spec.as_mut().unwrap().capacity.as_mut().unwrap();
                capacity.required += 1;
            }
            Other::Offers(create, publish, expand) => {
                self.offers = Offers {
                    create,
                    publish,
                    expand,
                    expand_offline_only: false,
                    created_before: false,
                };
                self.scene.plugin = Plugin::Unknown;
            }
            Other::Reconnect => self.scene.plugin = Plugin::Unknown,
        }
    }

    /// Takes the next step, if there is one. What is written is written whole or not at all; the call happens or not.
    fn step(&mut self, fate: Fate) -> bool {
        if !self.recorded {
            return false;
        }
        let decision = self.scene.decide();
        let Some(step) = decision.step else { return false };
        // A plugin that does not answer is waited for; nothing rests for that.
        let failed = (step != Step::Connect).then(|| step.target());
        assert!(
            !failed
                .as_ref()
                .is_some_and(|target| self.scene.resting.contains(target)),
            "what rests is not tried"
        );
        self.scene.resting.clear();
        if self.take(step, fate) {
            // A new leader knows nothing.
            if matches!(fate, Fate::CrashBefore | Fate::CrashAfter) {
                self.scene.plugin = Plugin::Unknown;
            }
        } else {
            self.scene.resting.extend(failed);
        }
        true
    }

    /// False if it failed.
    fn take(&mut self, step: Step, fate: Fate) -> bool {
        let happens = matches!(fate, Fate::Works | Fate::AnswerLost | Fate::CrashAfter);
        let heard = matches!(fate, Fate::Works);
        let tried = !matches!(fate, Fate::Fails | Fate::AnswerLost);
        let now = Timestamp::UNIX_EPOCH;
        let Scene {
            volume,
            publications,
            nodes,
            plugin,
            ..
        } = &mut self.scene;
        // Connecting and what only writes are the other way of crashing: they happen or not.
        match step {
            Step::Connect => {
                if happens {
                    *plugin = Plugin::Offers(self.offers);
                }
                return tried || happens;
            }
            Step::TakeIn => *volume = record::taken_in(volume, &Backend::default()),
            Step::EndNodeExpansion { bytes } => *volume = record::node_expanded(volume, bytes),
            Step::TakeBackend => *volume = record::with_backend(volume, Backend::default()),
            Step::TakeName => *volume = record::name_taken(volume, &Backend::default(), now),
            Step::PublishNothing { node } => {
                let there = publications.get_mut(&node).unwrap();
                *there = record::published_without_call(there);
            }
            Step::Detach { node, again, .. } => {
                let there = publications.get_mut(&node).unwrap();
                *there = record::detached(there, again);
            }
            Step::EndPublication { node, restart } => self.end(&node, restart.as_deref()),
            Step::DeleteRecord => {
                assert!(publications.is_empty(), "dropped while published");
                self.recorded = false;
            }
            Step::Create => {
                if let Some(intended) = record::intend_create(volume, &Backend::default(), 1, now) {
                    *volume = intended;
                }
                let stands = volume.status.as_ref().unwrap().create.is_some();
                assert!(stands, "the intent is there before the call");
                self.exists |= happens;
                if heard {
                    let answer = record::Created {
                        volume_id: "vol-1".to_owned(),
                        ..record::Created::default()
                    };
                    *volume = record::created(volume, answer, now);
                }
                return tried;
            }
            Step::Expand => {
                assert!(self.exists);
                if heard {
                    *volume = record::expanded(volume, capacity(volume), ExpandedVolume::default(), now);
                }
                return tried;
            }
            Step::Publish { node, csi_node_id } => {
                assert!(!csi_node_id.is_empty(), "an empty node id");
                assert!(!volume.is_marked());
                let single = scope_of(volume) != Scope::MultiNode;
                let mut others = publications.iter().filter(|(other, _)| **other != node);
                assert!(
                    !others.any(|(_, other)| state(other) == State::PendingUnpublish
                        && stored_node_id(other) == csi_node_id),
                    "a call to unpublish may be under way"
                );
                let there = publications.get_mut(&node).unwrap();
                if let Some(intended) = record::intend_publish(there, &csi_node_id) {
                    *there = intended;
                }
                assert!(self.exists || volume.status.as_ref().unwrap().r#static);
                if happens {
                    let others = self.attached.iter().any(|id| *id != csi_node_id);
                    assert!(!single || !others, "on two nodes: {:?}", self.attached);
                    self.attached.insert(csi_node_id);
                }
                if heard {
                    *there = record::published(there, BTreeMap::new());
                }
                return tried;
            }
            Step::Unpublish {
                node,
                csi_node_id,
                restart,
            } => {
                assert!(!csi_node_id.is_empty(), "an empty node id");
                assert_eq!(csi_node_id, stored_node_id(&publications[&node]));
                let mut others = publications.iter().filter(|(other, _)| **other != node);
                assert!(
                    !others.any(|(_, other)| state(other) != State::PendingUnpublish
                        && stored_node_id(other) == csi_node_id),
                    "another publication has it there"
                );
                if happens {
                    self.attached.remove(&csi_node_id);
                }
                if heard {
                    self.end(&node, restart.as_deref());
                }
                return tried;
            }
            Step::UnpublishStray { .. } | Step::DropStray { .. } => {
                unreachable!("no operator asks for it here")
            }
            Step::Delete => {
                assert!(publications.is_empty(), "deleted while published");
                assert!(self.attached.is_empty(), "deleted while attached");
                if let Some(intended) = record::intend_delete(volume) {
                    *volume = intended;
                }
                assert!(volume.is_marked() && nodes.len() <= NAMES.len());
                if happens {
                    self.exists = false;
                }
                if heard {
                    self.recorded = false;
                }
                return tried;
            }
        }
        true
    }

    fn end(&mut self, node: &Name, restart: Option<&str>) {
        match record::ended(&self.scene.publications[node], restart, "another") {
            Some(restarted) => self.scene.publications.insert(node.clone(), restarted),
            None => self.scene.publications.remove(node),
        };
    }
}

fn marked_of(volume: &Volume) -> Volume {
    marked(volume.clone())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// INV-6: whatever fails and whichever process dies, nothing is left behind, and every rule that [`World::take`] asserts held
    /// at each step.
    #[test]
    fn the_backend_is_empty_at_the_end_of_every_life(
        multi: bool,
        events in prop::collection::vec(
            prop_oneof![2 => fates().prop_map(Event::Step), 1 => others().prop_map(Event::Other)], 0..120,
        ),
    ) {
        let mut world = World::new(if multi { Scope::MultiNode } else { Scope::SingleNode });
        for event in events {
            match event {
                Event::Step(fate) => {
                    world.step(fate);
                }
                Event::Other(other) => world.other(other),
            }
        }
        // From now on everything works and goes.
        world.other(Other::Offers(true, true, true));
        for round in 0.. {
            for node in 0..NAMES.len() {
                world.other(Other::Unpublish(node));
                world.other(Other::Confirm(node));
            }
            world.other(Other::Mark);
            world.scene.resting.clear();
            if !world.step(Fate::Works) && !world.recorded {
                break;
            }
            prop_assert!(round < 100, "it does not come to an end: {:?}", world.scene.decide());
        }
        prop_assert!(!world.exists, "the backend still has it");
        prop_assert!(world.attached.is_empty(), "still attached: {:?}", world.attached);
        prop_assert!(world.scene.publications.is_empty());
    }
}
