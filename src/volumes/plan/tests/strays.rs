//! Node ids that no publication stores.

use super::*;

#[test]
fn a_plugin_that_publishes_nothing_has_no_strays_and_a_stray_without_an_id_is_none() {
    let scene = Scene::of(created(volume(Scope::MultiNode))).detaching([""]);
    let step = Some(Step::DropStray {
        csi_node_id: String::new(),
    });
    assert_eq!(scene.step(), step, "INV-6: no call with an empty node id");
    let scene = scene.detaching(["csi-n9"]).offering(Plugin::Offers(Offers {
        publish: false,
        ..ALL
    }));
    assert_eq!(
        (scene.step(), scene.reasons()),
        (None, vec!["UnpublishUnsupported"])
    );
}

#[test]
fn a_volume_is_unpublished_from_a_node_id_that_an_operator_names_and_no_publication_stores() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode)))
        .with("n1", State::Published, "csi-n1")
        .detaching(["csi-n1"]);
    let step = Some(Step::DropStray {
        csi_node_id: "csi-n1".to_owned(),
    });
    assert_eq!(scene.step(), step, "a publication stores it");
    scene = scene.detaching(["csi-n9"]);
    let step = Some(Step::UnpublishStray {
        csi_node_id: "csi-n9".to_owned(),
    });
    assert_eq!(scene.step(), step);
    scene.unreadable = [name("n9")].into();
    assert_eq!(scene.step(), None, "the unreadable publication may store it");
    assert_eq!(scene.reasons(), ["PublicationMalformed"]);
}

/// INV-3: a call for the node id may be under way, and would take the publication away.
#[test]
fn a_publication_that_is_yet_to_be_made_starts_over_where_it_stores_a_node_id_that_the_volume_leaves() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode)))
        .with("n1", State::PendingPublish, "csi-n1")
        .detaching(["csi-n1"]);
    let over = Step::Detach {
        node: name("n1"),
        lost: None,
        again: true,
    };
    assert_eq!(scene.step(), Some(over));
    scene.resting = [Target::Node(name("n1"))].into();
    assert_eq!(scene.step(), None);
    // Its own call waits for the answer, and for its rest.
    let dropped = Step::DropStray {
        csi_node_id: "csi-n1".to_owned(),
    };
    let scene = scene.with("n1", State::PendingUnpublish, "csi-n1");
    assert_eq!(scene.step(), Some(dropped));
}

fn unpublish_stray(csi_node_id: &str) -> Option<Step> {
    Some(Step::UnpublishStray {
        csi_node_id: csi_node_id.to_owned(),
    })
}

/// INV-3, INV-6: a call without an answer may still be under way, and would take the new publication away.
#[test]
fn a_volume_is_published_to_a_node_id_that_it_leaves_only_after_that() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode)))
        .with("n1", State::PendingPublish, "")
        .detaching(["csi-n1"]);
    assert_eq!(scene.step(), unpublish_stray("csi-n1"));
    let stray = Target::Stray("csi-n1".to_owned());
    scene.resting = [stray.clone()].into();
    assert_eq!((scene.step(), scene.reasons()), (None, vec!["Unpublishing"]));
    // Nor while another record or a new leader holds the call back.
    scene.resting.clear();
    scene.unreadable = [name("n9")].into();
    assert_eq!(scene.step(), None);
    scene.unreadable.clear();
    let scene = scene.offering(Plugin::Unknown);
    assert_eq!(scene.step(), Some(Step::Connect));
    // Other nodes do not wait for it, and it is published once the volume has left.
    let mut scene = scene
        .offering(Plugin::Offers(ALL))
        .with("n2", State::PendingPublish, "");
    scene.resting = [stray].into();
    assert_eq!(scene.step(), publish("n2", "csi-n2"));
    assert_eq!(scene.detaching([]).step(), publish("n1", "csi-n1"));
}

#[test]
fn a_volume_says_what_the_node_ids_that_it_leaves_wait_for() {
    for (plugin, reason) in [
        (Plugin::Missing, WaitReason::PluginMissing),
        (Plugin::OtherBackend, WaitReason::OtherBackend),
    ] {
        let scene = Scene::of(marked(created(volume(Scope::MultiNode)))).detaching(["csi-n9"]);
        let waits = scene.offering(plugin).decide().waits;
        let said = |wait: &Wait| wait.target == Target::Volume && wait.reason == reason;
        assert!(waits.iter().any(said), "{waits:?}");
    }
}

/// INV-6: what no publication stores is published all the same.
#[test]
fn a_volume_is_deleted_only_after_it_has_left_every_node_id() {
    for retained in [false, true] {
        let mut scene = Scene::of(marked(created(volume(Scope::MultiNode)))).detaching(["csi-n9"]);
        scene.volume.status.as_mut().unwrap().r#static = retained;
        assert_eq!(scene.step(), unpublish_stray("csi-n9"), "{retained}");
        scene.resting = [Target::Stray("csi-n9".to_owned())].into();
        assert_eq!(
            (scene.step(), scene.reasons()),
            (None, vec!["Published"]),
            "{retained}"
        );
        let left = scene.detaching([]).step();
        let expected = if retained {
            Step::DeleteRecord
        } else {
            Step::Delete
        };
        assert_eq!(left, Some(expected));
    }
}
