//! Publications: which begin, which end, and what of drift is mended.

use super::*;
use crate::proto::Backend;
use crate::proto::node_spec::Availability as NodeAvailability;
use crate::proto::volume_spec::Availability;

#[test]
fn a_volume_with_a_publication_is_never_deleted() {
    for state in [
        State::PendingPublish,
        State::Published,
        State::PendingNodeUnpublish,
        State::PendingUnpublish,
    ] {
        for id in ["", "csi-n1"] {
            let scene = Scene::of(marked(created(volume(Scope::SingleNode)))).with("n1", state, id);
            assert!(
                !matches!(scene.step(), Some(Step::Delete | Step::DeleteRecord)),
                "{state:?} {id:?}"
            );
        }
    }
}

#[test]
fn a_node_that_was_removed_or_is_out_of_service_loses_its_publication_and_no_other_does() {
    for held in [
        State::PendingPublish,
        State::Published,
        State::PendingNodeUnpublish,
    ] {
        let mut scene = Scene::of(created(volume(Scope::MultiNode)))
            .with("n1", State::Published, "csi-n1")
            .with("n2", held, "csi-n2");
        let detach = |lost: Lost| {
            Some(Step::Detach {
                node: name("n2"),
                lost: Some(lost),
                again: false,
            })
        };
        let another = |id: &str| {
            let mut other = node(id);
            other.uid = "another".to_owned();
            Some(other)
        };
        for now in [None, another("csi-n2"), another("csi-other")] {
            scene.nodes.remove(&name("n2"));
            scene.nodes.extend(now.map(|node| (name("n2"), node)));
            scene.removed = [(name("n2"), Revision(8))].into();
            let removed = Lost::Removed {
                uid: "node-uid".to_owned(),
                revision: Revision(8),
            };
            assert_eq!(scene.step(), detach(removed));
            // INV-12: its key may have been deleted by mistake.
            scene.removed.clear();
            assert_eq!(scene.step(), None, "{held:?}");
            assert_eq!(scene.reasons(), ["NodeMissing"], "{held:?}");
        }
        let mut out = node("csi-n2");
        out.out_of_service = true;
        scene.nodes.insert(name("n2"), out.clone());
        assert_eq!(scene.step(), detach(Lost::OutOfService(Revision(7))));
        // That was said of another node of that name.
        out.uid = "another".to_owned();
        scene.nodes.insert(name("n2"), out);
        assert_eq!(scene.step(), None, "{held:?}");
        assert_eq!(scene.reasons(), ["NodeMissing"], "{held:?}");
    }
}

#[test]
fn it_is_unpublished_from_the_stored_node_id_whatever_the_node_says_now() {
    let mut scene =
        Scene::of(created(volume(Scope::MultiNode))).with("n2", State::PendingUnpublish, "csi-then");
    for now in [None, Some(node("csi-now")), Some(node(""))] {
        let uid = now.as_ref().map(|node| node.uid.clone());
        scene.nodes.remove(&name("n2"));
        scene.nodes.extend(now.into_iter().map(|node| (name("n2"), node)));
        assert_eq!(scene.step(), unpublish("n2", "csi-then", uid.as_deref()));
    }
}

/// A publication that is being unpublished from a former node n2, and asked for there again.
fn asked_for_again(csi_node_id: &str) -> Scene {
    let mut scene =
        Scene::of(created(volume(Scope::MultiNode))).with("n2", State::PendingUnpublish, csi_node_id);
    let again = scene.publications.get_mut(&name("n2")).unwrap();
    again.spec.as_mut().unwrap().again = true;
    scene
}

/// INV-12
#[test]
fn a_request_to_publish_again_waits_for_an_absent_or_unreadable_node_and_is_for_the_one_that_comes() {
    let mut unreadable = node("");
    unreadable.uid.clear();
    for csi_node_id in ["", "csi-n2"] {
        let ended = |restart| match csi_node_id {
            "" => end("n2", restart),
            id => unpublish("n2", id, restart),
        };
        for now in [None, Some(unreadable.clone())] {
            let mut scene = asked_for_again(csi_node_id);
            scene.nodes.remove(&name("n2"));
            scene.nodes.extend(now.map(|node| (name("n2"), node)));
            assert_eq!((scene.step(), scene.reasons()), (None, vec!["NodeMissing"]));
            let said = &scene.decide().waits[0].message;
            assert!(said.ends_with("quorate unpublish data n2 takes back"), "{said}");

            let mut present = node("csi-n2");
            present.uid = "another".to_owned();
            scene.nodes.insert(name("n2"), present);
            assert_eq!(scene.step(), ended(Some("another")));
        }
    }
}

#[test]
fn a_request_to_publish_again_ends_with_its_node_and_not_with_a_former_one_of_an_unreadable_node() {
    let mut scene = asked_for_again("csi-n2");
    scene.removed = [(name("n2"), Revision(8))].into();
    scene.nodes.get_mut(&name("n2")).unwrap().uid.clear();
    assert_eq!(
        (scene.step(), scene.reasons()),
        (None, vec!["NodeMissing"]),
        "it may be for the present node"
    );
    scene.nodes.remove(&name("n2"));
    assert_eq!(scene.step(), unpublish("n2", "csi-n2", None));
}

/// A request that comes in meanwhile refuses the end of the record, and the next plan waits for the node.
#[test]
fn what_is_not_asked_for_again_or_cannot_be_waits_for_no_node() {
    let mut scene = asked_for_again("csi-n2");
    let ending = scene.publications.get_mut(&name("n2")).unwrap();
    ending.spec.as_mut().unwrap().again = false;
    scene.nodes.get_mut(&name("n2")).unwrap().uid.clear();
    assert_eq!(scene.step(), unpublish("n2", "csi-n2", None));
    scene.nodes.remove(&name("n2"));
    assert_eq!(scene.step(), unpublish("n2", "csi-n2", None));
    let mut marked_volume = asked_for_again("csi-n2");
    marked_volume.volume = marked(marked_volume.volume);
    marked_volume.nodes.remove(&name("n2"));
    assert_eq!(marked_volume.step(), unpublish("n2", "csi-n2", None));
}

#[test]
fn a_node_whose_id_changed_under_a_publish_gets_it_again_after_the_old_id_lost_it() {
    let scene = Scene::of(created(volume(Scope::MultiNode))).with("n1", State::PendingPublish, "csi-old");
    let detach = Step::Detach {
        node: name("n1"),
        lost: None,
        again: true,
    };
    assert_eq!(scene.step(), Some(detach));
}

#[test]
fn a_node_without_a_node_id_is_waited_for_and_delays_no_other() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode)))
        .with("n1", State::PendingPublish, "")
        .with("n2", State::PendingPublish, "");
    scene.nodes.insert(name("n1"), node(""));
    assert_eq!(scene.step(), publish("n2", "csi-n2"));
    assert_eq!(scene.reasons(), ["NodeIDMissing"]);
}

#[test]
fn a_volume_for_one_node_is_not_published_to_a_second_before_the_first_let_go() {
    for state in [
        State::Published,
        State::PendingNodeUnpublish,
        State::PendingUnpublish,
    ] {
        let mut scene = Scene::of(created(volume(Scope::SingleNode)))
            .with("n1", state, "csi-n1")
            .with("n2", State::PendingPublish, "");
        scene.resting.insert(Target::Node(name("n1")));
        assert_eq!(scene.step(), None, "{state:?}");
        assert!(scene.reasons().contains(&"OtherNode"));
    }
}

#[test]
fn a_node_or_a_publication_whose_uid_is_not_known_is_not_taken_for_another() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode))).with("n1", State::Published, "csi-n1");
    scene.nodes.get_mut(&name("n1")).unwrap().uid = String::new();
    assert_eq!(scene.step(), None, "its record cannot be read");
    scene.nodes.insert(name("n1"), node("csi-n1"));
    let there = scene.publications.get_mut(&name("n1")).unwrap();
    there.spec.as_mut().unwrap().node_uid = String::new();
    assert_eq!(scene.step(), None);
}

#[test]
fn nothing_is_unpublished_of_a_volume_without_an_id_and_nothing_repaired_of_one_that_goes() {
    let early = Scene::of(volume(Scope::SingleNode)).with("n1", State::PendingUnpublish, "csi-n1");
    assert_eq!(early.step(), Some(Step::Create));
    let mut going =
        Scene::of(marked(created(volume(Scope::SingleNode)))).with("n1", State::Published, "csi-n1");
    going.lost = [name("n1")].into();
    assert_eq!(going.step(), None);
}

#[test]
fn a_publication_of_a_marked_volume_ends() {
    let scene = Scene::of(marked(created(volume(Scope::SingleNode)))).with("n1", State::PendingPublish, "");
    let detach = Step::Detach {
        node: name("n1"),
        lost: None,
        again: false,
    };
    assert_eq!(scene.step(), Some(detach));
}

#[test]
fn a_publication_starts_over_only_on_a_node_in_service_and_of_a_volume_that_stays() {
    for csi_node_id in ["", "csi-n1"] {
        let ended = |restart| match csi_node_id {
            "" => end("n1", restart),
            id => unpublish("n1", id, restart),
        };
        let scene = |volume| Scene::of(volume).with("n1", State::PendingUnpublish, csi_node_id);
        let there = created(volume(Scope::SingleNode));
        assert_eq!(scene(there.clone()).step(), ended(Some("node-uid")));
        assert_eq!(
            scene(marked(there.clone())).step(),
            ended(None),
            "the volume is marked"
        );
        let mut without = scene(there);
        without.nodes.get_mut(&name("n1")).unwrap().out_of_service = true;
        assert_eq!(without.step(), ended(None), "the node is out of service");
    }
}

#[test]
fn a_publication_that_was_published_under_an_id_is_repaired_under_that_id() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode))).with("n1", State::Published, "csi-then");
    scene.lost = [name("n1")].into();
    assert_eq!(scene.step(), publish("n1", "csi-then"));
    // A plugin that published nothing then, and publishes now, is called for the first time.
    let scene = Scene::of(created(volume(Scope::MultiNode))).with("n1", State::Published, "");
    assert_eq!(scene.step(), publish("n1", "csi-n1"));
    let nothing = Offers {
        publish: false,
        ..ALL
    };
    let mut scene = scene.offering(Plugin::Offers(nothing));
    assert_eq!(scene.step(), None);
    // What was to be published with a call is not taken for published without one.
    let mut backend = Backend {
        publishes: true,
        ..Backend::default()
    };
    for (publishes, expected) in [(true, vec!["PublishUnsupported"]), (false, vec![])] {
        backend.publishes = publishes;
        scene.volume.status.as_mut().unwrap().backend = Some(backend.clone());
        let pending = scene.publications.get_mut(&name("n1")).unwrap();
        pending.status.as_mut().unwrap().set_state(State::PendingPublish);
        assert_eq!((scene.step().is_none(), scene.reasons()), (publishes, expected));
    }
}

#[test]
fn one_node_after_the_other_gets_a_volume_for_one_and_all_get_one_for_many() {
    let waiting = |scope| {
        let scene = Scene::of(created(volume(scope)))
            .with("n1", State::PendingPublish, "")
            .with("n2", State::Published, "csi-n2");
        scene.step().map(|step| step.target())
    };
    assert_eq!(waiting(Scope::SingleNode), None);
    assert_eq!(waiting(Scope::Unspecified), None, "the narrower one");
    assert_eq!(waiting(Scope::MultiNode), Some(Target::Node(name("n1"))));
    // No other publication holds up the node's own.
    let own = Scene::of(created(volume(Scope::SingleNode))).with("n1", State::PendingPublish, "csi-n1");
    assert!(matches!(own.step(), Some(Step::Publish { .. })));
    // A plugin that publishes nothing leaves no id behind.
    for state in [State::Published, State::PendingNodeUnpublish] {
        let scene = Scene::of(created(volume(Scope::SingleNode)))
            .with("n1", state, "")
            .with("n2", State::PendingPublish, "")
            .offering(Plugin::Offers(Offers {
                publish: false,
                ..ALL
            }));
        assert_eq!(scene.step(), None, "{state:?}");
    }
}

#[test]
fn what_the_plugin_has_lost_is_published_again() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode))).with("n1", State::Published, "csi-n1");
    scene.lost = [name("n1")].into();
    assert_eq!(scene.step(), publish("n1", "csi-n1"));
}

#[test]
fn a_publication_of_an_earlier_volume_of_that_name_is_left_alone() {
    let mut scene =
        Scene::of(created(volume(Scope::MultiNode))).with("n1", State::PendingUnpublish, "csi-n1");
    let earlier = scene.publications.get_mut(&name("n1")).unwrap();
    earlier.spec.as_mut().unwrap().volume_uid = "earlier".to_owned();
    for state in [State::PendingUnpublish, State::PendingPublish] {
        let earlier = scene.publications.get_mut(&name("n1")).unwrap();
        earlier.status.as_mut().unwrap().set_state(state);
        assert_eq!((scene.step(), scene.reasons()), (None, vec!["OtherVolume"]));
    }
}

#[test]
fn a_publication_that_cannot_be_read_keeps_the_volume_and_its_one_place() {
    let mut scene = Scene::of(marked(created(volume(Scope::SingleNode))));
    scene.unreadable = [name("n9")].into();
    assert_eq!(
        (scene.step(), scene.reasons()),
        (None, vec!["PublicationMalformed"])
    );
    let mut scene = Scene::of(created(volume(Scope::SingleNode))).with("n1", State::PendingPublish, "");
    scene.unreadable = [name("n9")].into();
    let reasons = vec!["OtherNode", "PublicationMalformed"];
    assert_eq!((scene.step(), scene.reasons()), (None, reasons));
}

fn spec_of<'s>(scene: &'s mut Scene, node: &str) -> &'s mut PublicationSpec {
    let publication = scene.publications.get_mut(&name(node)).unwrap();
    publication.spec.as_mut().unwrap()
}

#[test]
fn a_volume_for_one_writer_gets_readers_and_no_second_writer() {
    let mut volume = created(volume(Scope::MultiNode));
    let mode = volume.spec.as_mut().unwrap().access_mode.as_mut().unwrap();
    mode.set_sharing(Sharing::OneWriter);
    let mut scene = Scene::of(volume)
        .with("n1", State::PendingNodeUnpublish, "csi-n1")
        .with("n2", State::PendingPublish, "");
    // The writer stays one until it is unpublished, whatever it becomes then.
    let writer = spec_of(&mut scene, "n1");
    (writer.again, writer.again_read_only) = (true, Some(true));
    assert_eq!(scene.step(), None);
    assert_eq!(scene.reasons(), ["NodeUnpublish", "OtherNode"]);
    spec_of(&mut scene, "n2").read_only = true;
    let publish = Step::Publish {
        node: name("n2"),
        csi_node_id: "csi-n2".to_owned(),
    };
    assert_eq!(scene.step(), Some(publish));
}

/// Each node that has the volume confirms, also one that is about to let it go; a later expansion is another one.
#[test]
fn an_expansion_on_nodes_ends_once_every_node_that_has_the_volume_has_confirmed_it() {
    let mut expanded = created(volume(Scope::MultiNode));
    expanded.status.as_mut().unwrap().node_expansion_bytes = 7;
    let step = |nodes: &[(&str, State, i64)]| {
        let mut scene = Scene::of(expanded.clone());
        for (node, state, bytes) in nodes {
            scene = scene.with(node, *state, &format!("csi-{node}"));
            let publication = scene.publications.get_mut(&name(node)).unwrap();
            publication.status.as_mut().unwrap().expanded_bytes = *bytes;
        }
        scene.step()
    };
    let (published, leaving) = (State::Published, State::PendingNodeUnpublish);
    let end = Some(Step::EndNodeExpansion { bytes: 7 });
    assert_eq!(step(&[]), None, "the next node has to");
    assert_eq!(step(&[("n1", published, 7), ("n2", published, 5)]), None);
    assert_eq!(step(&[("n1", published, 7), ("n2", leaving, 5)]), None);
    assert_eq!(step(&[("n1", published, 7), ("n2", leaving, 9)]), end);
}

/// It makes no call, and its condition would stay for as long as the plugin refuses the other.
#[test]
fn an_expansion_on_nodes_ends_before_the_next_one_is_asked_for() {
    let mut larger = created(volume(Scope::SingleNode));
    larger.spec.as_mut().unwrap().capacity = Some(Capacity {
        required: 6,
        limit: 0,
    });
    larger.status.as_mut().unwrap().node_expansion_bytes = 5;
    let mut scene = Scene::of(larger).with("n1", State::Published, "csi-n1");
    assert_eq!(scene.step(), Some(Step::Expand), "the node has not confirmed it");
    let confirmed = scene.publications.get_mut(&name("n1")).unwrap();
    confirmed.status.as_mut().unwrap().expanded_bytes = 5;
    assert_eq!(scene.step(), Some(Step::EndNodeExpansion { bytes: 5 }));
}

/// INV-3: the node may or may not have it by the call that failed, and only another call ends that.
#[test]
fn a_publication_whose_call_failed_waits_for_a_plugin_that_publishes() {
    let mut scene = Scene::of(created(volume(Scope::SingleNode))).with("n1", State::Published, "csi-n1");
    let publication = scene.publications.get_mut(&name("n1")).unwrap();
    publication.status.as_mut().unwrap().unrecorded = true;
    assert_eq!(scene.step(), publish("n1", "csi-n1"));
    let scene = scene.offering(Plugin::Offers(Offers {
        publish: false,
        ..ALL
    }));
    assert_eq!(scene.decide(), Decision::default());
}

/// The plugin may publish by now: it is asked, although nothing else is wanted of it.
#[test]
fn a_publication_without_a_call_has_its_plugin_asked_again() {
    let scene = Scene::of(created(volume(Scope::SingleNode))).with("n1", State::Published, "");
    let scene = scene.offering(Plugin::Unknown);
    assert_eq!(scene.step(), Some(Step::Connect));
    assert_eq!(
        scene.offering(Plugin::Offers(ALL)).step(),
        publish("n1", "csi-n1")
    );
}

/// To pause delays, to drain ends: a request that the leader itself takes apart is not lost.
#[test]
fn a_publication_of_a_paused_volume_waits_and_one_that_ends_starts_over() {
    let set_to = |availability: Availability| {
        let mut volume = created(volume(Scope::MultiNode));
        volume.spec.as_mut().unwrap().set_availability(availability);
        Scene::of(volume)
    };
    let scene = set_to(Availability::Pause).with("n1", State::PendingPublish, "");
    assert_eq!((scene.step(), scene.reasons()), (None, vec!["VolumePaused"]));
    let attempted = set_to(Availability::Pause).with("n1", State::PendingPublish, "csi-n1");
    assert_eq!(attempted.step(), publish("n1", "csi-n1"));
    let ending = |availability| {
        set_to(availability)
            .with("n1", State::PendingUnpublish, "csi-n1")
            .step()
    };
    assert_eq!(
        ending(Availability::Pause),
        unpublish("n1", "csi-n1", Some("node-uid"))
    );
    assert_eq!(ending(Availability::Drain), unpublish("n1", "csi-n1", None));
}

/// The same of its node: to pause delays, to drain ends.
#[test]
fn nothing_new_goes_to_a_node_that_is_paused_or_drained_and_what_was_begun_goes_on() {
    let set_to = |availability, state, csi_node_id: &str| {
        let mut scene = Scene::of(created(volume(Scope::MultiNode))).with("n1", state, csi_node_id);
        scene.nodes.get_mut(&name("n1")).unwrap().availability = availability;
        scene
    };
    for (availability, word, restart) in [
        (NodeAvailability::Pause, "pause", Some("node-uid")),
        (NodeAvailability::Drain, "drain", None),
    ] {
        let scene = set_to(availability, State::PendingPublish, "");
        assert_eq!((scene.step(), scene.reasons()), (None, vec!["NodePaused"]));
        let said = &scene.decide().waits[0].message;
        assert!(said.starts_with(&format!("node n1 is set to {word}: ")), "{said}");
        // It needs no plugin to say so.
        let scene = scene.offering(Plugin::Unknown);
        assert_eq!((scene.step(), scene.reasons()), (None, vec!["NodePaused"]));
        let attempted = set_to(availability, State::PendingPublish, "csi-n1");
        assert_eq!(attempted.step(), publish("n1", "csi-n1"));
        let mut mended = set_to(availability, State::Published, "csi-n1");
        mended.lost = [name("n1")].into();
        assert_eq!(mended.step(), publish("n1", "csi-n1"));
        let ending = set_to(availability, State::PendingUnpublish, "csi-n1");
        assert_eq!(ending.step(), unpublish("n1", "csi-n1", restart));
        let ending = set_to(availability, State::PendingUnpublish, "");
        assert_eq!(ending.step(), end("n1", restart));
    }
    let active = set_to(NodeAvailability::Active, State::PendingPublish, "");
    assert_eq!(active.step(), publish("n1", "csi-n1"));
}
