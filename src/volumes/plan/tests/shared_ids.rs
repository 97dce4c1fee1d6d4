//! Two publications of one volume with the same CSI node id.

use super::*;

/// INV-6: a machine that came back as a node of another name reports the node id of before.
#[test]
fn a_volume_is_not_unpublished_from_a_node_id_that_another_publication_of_it_has() {
    let both = |one, other| {
        let scene = Scene::of(created(volume(Scope::MultiNode)));
        scene.with("n1", one, "csi-x").with("n2", other, "csi-x")
    };
    for kept in [
        State::PendingPublish,
        State::Published,
        State::PendingNodeUnpublish,
    ] {
        let scene = both(State::PendingUnpublish, kept);
        assert_eq!(scene.step(), end("n1", Some("node-uid")), "{kept:?}");
    }
    // The last one ends with a call.
    let scene = both(State::PendingUnpublish, State::PendingUnpublish);
    assert_eq!(scene.step(), unpublish("n1", "csi-x", Some("node-uid")));
}

/// INV-3, INV-6: a call that got no answer may take away what is published beside it.
#[test]
fn a_volume_is_not_published_to_a_node_id_that_it_is_being_unpublished_from() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode)))
        .with("n1", State::PendingUnpublish, "csi-x")
        .with("n2", State::PendingPublish, "");
    scene.nodes.insert(name("n2"), node("csi-x"));
    scene.resting = [Target::Node(name("n1"))].into();
    assert_eq!(scene.step(), None);
    assert_eq!(scene.reasons(), ["Unpublishing"]);
    let message = &scene.decide().waits[0].message;
    assert!(message.contains("to node n1"), "{message}");
    // One of an earlier volume of the same name is about another volume at the backend.
    let former = scene.publications.get_mut(&name("n1")).unwrap();
    former.spec.as_mut().unwrap().volume_uid = "former".to_owned();
    assert_eq!(scene.step(), publish("n2", "csi-x"));
    scene.publications.remove(&name("n1"));
    assert_eq!(scene.step(), publish("n2", "csi-x"));
}
