//! Two records of one volume at the backend.

use super::*;

/// INV-6: two records of one volume at the backend.
#[test]
fn a_volume_with_a_twin_is_neither_published_nor_unpublished_from_the_nodes_of_its_twin() {
    let twin = |has_id| Twin {
        name: name("twin"),
        has_id,
        node_ids: ["csi-n1".to_owned()].into(),
        unreadable: false,
    };
    let wanted = || Scene::of(created(volume(Scope::MultiNode))).with("n2", State::PendingPublish, "");
    assert_eq!(wanted().beside(twin(true)).step(), None);
    assert_eq!(wanted().beside(twin(false)).step(), publish("n2", "csi-n2"));
    assert_eq!(wanted().beside(twin(false)).reasons(), [""; 0], "it goes on");
    let ending = |node: &str| {
        let scene = Scene::of(created(volume(Scope::MultiNode)));
        scene
            .with(node, State::PendingUnpublish, &format!("csi-{node}"))
            .beside(twin(true))
    };
    assert_eq!(ending("n1").step(), None);
    assert_eq!(ending("n1").reasons(), ["SharedVolumeID", "SharedVolumeID"]);
    assert_eq!(ending("n2").step(), unpublish("n2", "csi-n2", Some("node-uid")));
    // What cannot be read may be published there, too (INV-12).
    let unreadable = Twin {
        unreadable: true,
        ..twin(true)
    };
    assert_eq!(ending("n2").beside(unreadable).step(), None);
    let stray = Scene::of(created(volume(Scope::MultiNode))).detaching(["csi-n1"]);
    assert_eq!(stray.beside(twin(true)).step(), None);
}

/// INV-6: the volume that has the id would no longer be published.
#[test]
fn a_name_becomes_the_id_of_a_volume_only_where_no_other_has_it() {
    let offers = Offers { create: false, ..ALL };
    let mut scene = Scene::of(volume(Scope::SingleNode)).offering(Plugin::Offers(offers));
    scene.namesake = Some(name("other"));
    let decision = scene.decide();
    assert_eq!((&decision.step, scene.reasons()), (&None, vec!["SharedVolumeID"]));
    let message = &decision.waits[0].message;
    assert!(message.contains("volume other"), "{message}");
    scene.namesake = None;
    assert_eq!(scene.step(), Some(Step::TakeName));
}
