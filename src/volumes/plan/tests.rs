use super::*;
use crate::proto::access_mode::{Kind, Mount, Sharing};
use crate::proto::volume_spec::Driver;
use crate::proto::{
    Backend, Capacity, CreateIntent, Metadata, PublicationSpec, PublicationStatus, VolumeSpec,
};

mod publications;
mod random;
mod shared_ids;
mod strays;
mod twins;

const ALL: Offers = Offers {
    create: true,
    publish: true,
    expand: true,
    expand_offline_only: false,
    created_before: false,
};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn volume(scope: Scope) -> Volume {
    Volume {
        metadata: Some(Metadata {
            name: "data".to_owned(),
            uid: "uid".to_owned(),
            ..Metadata::default()
        }),
        spec: Some(VolumeSpec {
            driver: Some(Driver {
                name: "hostpath".to_owned(),
                ..Driver::default()
            }),
            access_mode: Some(AccessMode {
                scope: scope.into(),
                sharing: Sharing::All.into(),
                kind: Some(Kind::Mount(Mount::default())),
            }),
            capacity: Some(Capacity {
                required: 5,
                limit: 0,
            }),
            ..VolumeSpec::default()
        }),
        status: Some(VolumeStatus::default()),
    }
}

fn created(mut volume: Volume) -> Volume {
    volume.status = Some(VolumeStatus {
        create: Some(CreateIntent::default()),
        volume_id: "vol-1".to_owned(),
        fulfilled_bytes: 5,
        backend: Some(Backend::default()),
        ..VolumeStatus::default()
    });
    volume
}

fn marked(mut volume: Volume) -> Volume {
    volume.status.get_or_insert_default().delete_requested = Some(prost_types::Timestamp::default());
    volume
}

fn publication(state: State, csi_node_id: &str) -> Publication {
    Publication {
        metadata: None,
        spec: Some(PublicationSpec {
            volume: "data".to_owned(),
            volume_uid: "uid".to_owned(),
            node_uid: "node-uid".to_owned(),
            ..PublicationSpec::default()
        }),
        status: Some(PublicationStatus {
            state: state.into(),
            csi_node_id: csi_node_id.to_owned(),
            ..PublicationStatus::default()
        }),
    }
}

fn node(csi_node_id: &str) -> Node {
    Node {
        uid: "node-uid".to_owned(),
        mod_revision: Revision(7),
        out_of_service: false,
        availability: node_spec::Availability::Active,
        csi_node_id: (!csi_node_id.is_empty()).then(|| csi_node_id.to_owned()),
        topology: BTreeMap::new(),
    }
}

/// A situation, to be varied.
struct Scene {
    volume: Volume,
    publications: BTreeMap<Name, Publication>,
    unreadable: BTreeSet<Name>,
    nodes: BTreeMap<Name, Node>,
    removed: BTreeMap<Name, Revision>,
    plugin: Plugin,
    resting: BTreeSet<Target>,
    lost: BTreeSet<Name>,
    twin: Option<Twin>,
    namesake: Option<Name>,
}

impl Scene {
    fn of(volume: Volume) -> Self {
        let node = |text: &str| (name(text), node(&format!("csi-{text}")));
        Self {
            volume,
            publications: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            nodes: [node("n1"), node("n2"), node("n3")].into(),
            removed: BTreeMap::new(),
            plugin: Plugin::Offers(ALL),
            resting: BTreeSet::new(),
            lost: BTreeSet::new(),
            twin: None,
            namesake: None,
        }
    }

    fn with(mut self, node: &str, state: State, csi_node_id: &str) -> Self {
        self.publications
            .insert(name(node), publication(state, csi_node_id));
        self
    }

    /// Node ids that an operator wants the volume unpublished from.
    fn detaching<const N: usize>(mut self, ids: [&str; N]) -> Self {
        let status = self.volume.status.get_or_insert_default();
        status.detach_node_ids = ids.map(str::to_owned).to_vec();
        self
    }

    fn offering(mut self, plugin: Plugin) -> Self {
        self.plugin = plugin;
        self
    }

    fn beside(mut self, twin: Twin) -> Self {
        self.twin = Some(twin);
        self
    }

    fn decide(&self) -> Decision {
        plan(&Observed {
            volume: &self.volume,
            publications: &self.publications,
            unreadable: &self.unreadable,
            twin: self.twin.as_ref(),
            namesake: self.namesake.as_ref(),
            nodes: &self.nodes,
            removed: &self.removed,
            plugin: self.plugin,
            resting: &self.resting,
            lost: &self.lost,
        })
    }

    fn step(&self) -> Option<Step> {
        self.decide().step
    }

    fn reasons(&self) -> Vec<&'static str> {
        self.decide()
            .waits
            .iter()
            .map(|wait| wait.reason.as_str())
            .collect()
    }
}

fn publish(node: &str, csi_node_id: &str) -> Option<Step> {
    Some(Step::Publish {
        node: name(node),
        csi_node_id: csi_node_id.to_owned(),
    })
}

fn unpublish(node: &str, csi_node_id: &str, restart: Option<&str>) -> Option<Step> {
    Some(Step::Unpublish {
        node: name(node),
        csi_node_id: csi_node_id.to_owned(),
        restart: restart.map(str::to_owned),
    })
}

fn end(node: &str, restart: Option<&str>) -> Option<Step> {
    Some(Step::EndPublication {
        node: name(node),
        restart: restart.map(str::to_owned),
    })
}

#[test]
fn a_plugin_that_was_not_asked_is_asked_first_and_one_that_is_missing_waited_for() {
    let scene = Scene::of(volume(Scope::SingleNode)).offering(Plugin::Unknown);
    assert_eq!(scene.step(), Some(Step::Connect));
    let published = Scene::of(created(volume(Scope::SingleNode)))
        .with("n1", State::PendingUnpublish, "csi-n1")
        .offering(Plugin::Unknown);
    assert_eq!(published.step(), Some(Step::Connect), "never taken for a no-op");
    let scene = scene.offering(Plugin::Missing);
    assert_eq!((scene.step(), scene.reasons()), (None, vec!["PluginMissing"]));
}

#[test]
fn what_needs_no_plugin_does_not_wait_for_one() {
    let scene = Scene::of(created(volume(Scope::MultiNode)))
        .with("n1", State::PendingUnpublish, "csi-n1")
        .with("n2", State::PendingUnpublish, "")
        .offering(Plugin::Unknown);
    assert_eq!(scene.step(), end("n2", Some("node-uid")));
    let scene = Scene::of(marked(volume(Scope::SingleNode))).offering(Plugin::Missing);
    assert_eq!(
        scene.step(),
        Some(Step::DeleteRecord),
        "never attempted, so nothing is there"
    );
}

#[test]
fn a_volume_is_created_then_published_then_unpublished_then_deleted() {
    assert_eq!(
        Scene::of(volume(Scope::SingleNode))
            .with("n1", State::PendingPublish, "")
            .step(),
        Some(Step::Create)
    );
    let there = created(volume(Scope::SingleNode));
    assert_eq!(
        Scene::of(there.clone())
            .with("n1", State::PendingPublish, "")
            .step(),
        publish("n1", "csi-n1")
    );
    let settled = Scene::of(there.clone()).with("n1", State::Published, "csi-n1");
    assert_eq!(settled.decide(), Decision::default());
    let waiting = Scene::of(there.clone()).with("n1", State::PendingNodeUnpublish, "csi-n1");
    assert_eq!((waiting.step(), waiting.reasons()), (None, vec!["NodeUnpublish"]));
    assert_eq!(
        Scene::of(there.clone())
            .with("n1", State::PendingUnpublish, "csi-n1")
            .step(),
        unpublish("n1", "csi-n1", Some("node-uid"))
    );
    assert_eq!(Scene::of(marked(there)).step(), Some(Step::Delete));
}

/// INV-6: what an earlier release made stays at its backend, too.
#[test]
fn a_volume_without_a_backend_takes_that_of_the_first_session() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode))).with("n1", State::PendingPublish, "");
    scene.volume.status.as_mut().unwrap().backend = None;
    assert_eq!(scene.step(), Some(Step::TakeBackend));
    scene.plugin = Plugin::Unknown;
    assert_eq!(scene.step(), Some(Step::Connect));
    assert_eq!(Scene::of(volume(Scope::MultiNode)).step(), Some(Step::Create));
    // Also where nothing else is wanted of the plugin, which may be pointed to another backend meanwhile.
    scene.publications.clear();
    assert_eq!(scene.step(), Some(Step::Connect));
    scene.resting.insert(Target::Volume);
    assert_eq!(scene.step(), None);
}

#[test]
fn deleting_a_volume_whose_create_may_have_happened_finishes_the_create_first() {
    let mut attempted = marked(volume(Scope::SingleNode));
    let status = attempted.status.as_mut().unwrap();
    status.create = Some(CreateIntent::default());
    status.backend = Some(Backend::default());
    assert_eq!(Scene::of(attempted.clone()).step(), Some(Step::Create));
    let without = Plugin::Offers(Offers::default());
    let scene = Scene::of(attempted.clone()).offering(without);
    assert_eq!((scene.step(), scene.reasons()), (None, vec!["CreateUnsupported"]));
    let intent = attempted.status.as_mut().unwrap().create.as_mut().unwrap();
    intent.refused = true;
    assert_eq!(Scene::of(attempted).step(), Some(Step::DeleteRecord));
}

#[test]
fn a_plugin_without_create_gives_the_name_and_one_without_publish_a_record() {
    let nothing = Plugin::Offers(Offers::default());
    assert_eq!(
        Scene::of(volume(Scope::SingleNode)).offering(nothing).step(),
        Some(Step::TakeName)
    );
    let no_longer = Plugin::Offers(Offers {
        created_before: true,
        ..Offers::default()
    });
    let scene = Scene::of(volume(Scope::SingleNode)).offering(no_longer);
    assert_eq!((scene.step(), scene.reasons()), (None, vec!["CreateUnsupported"]));
    let scene = Scene::of(created(volume(Scope::SingleNode)))
        .with("n1", State::PendingPublish, "")
        .offering(nothing);
    assert_eq!(scene.step(), Some(Step::PublishNothing { node: name("n1") }));
    let mut fixed = marked(created(volume(Scope::SingleNode)));
    fixed.status.as_mut().unwrap().r#static = true;
    assert_eq!(Scene::of(fixed).step(), Some(Step::DeleteRecord));
    let scene = Scene::of(marked(created(volume(Scope::SingleNode)))).offering(nothing);
    assert_eq!(
        (scene.step(), scene.reasons()),
        (None, vec!["DeleteUnsupported"]),
        "what it created is not forgotten"
    );
    let scene = Scene::of(created(volume(Scope::SingleNode)))
        .with("n1", State::PendingUnpublish, "csi-n1")
        .offering(nothing);
    assert_eq!(
        (scene.step(), scene.reasons()),
        (None, vec!["UnpublishUnsupported"])
    );
}

#[test]
fn what_rests_is_left_out_and_the_others_go_on() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode)))
        .with("n1", State::PendingPublish, "")
        .with("n2", State::PendingPublish, "")
        .with("n3", State::PendingPublish, "");
    scene.resting = [Target::Node(name("n1")), Target::Node(name("n2"))].into();
    assert_eq!(
        scene.step().map(|step| step.target()),
        Some(Target::Node(name("n3")))
    );
    scene.resting.insert(Target::Node(name("n3")));
    assert_eq!(scene.step(), None);
}

#[test]
fn a_volume_that_rests_for_itself_still_has_its_plugin_asked_for_the_sake_of_its_nodes() {
    let mut scene = Scene::of(created(volume(Scope::MultiNode)))
        .with("n1", State::PendingPublish, "")
        .offering(Plugin::Unknown);
    // It could not be made larger, say, and then the connection ended.
    scene.resting = [Target::Volume].into();
    assert_eq!(scene.step(), Some(Step::Connect));
}

#[test]
fn a_volume_grows_where_its_plugin_makes_it_grow() {
    let mut larger = created(volume(Scope::SingleNode));
    larger.spec.as_mut().unwrap().capacity = Some(Capacity {
        required: 6,
        limit: 0,
    });
    assert_eq!(Scene::of(larger.clone()).step(), Some(Step::Expand));
    let offline = Plugin::Offers(Offers {
        expand_offline_only: true,
        ..ALL
    });
    let scene = Scene::of(larger.clone())
        .with("n1", State::Published, "csi-n1")
        .offering(offline);
    assert_eq!((scene.step(), scene.reasons()), (None, vec!["ExpandOffline"]));
    let never = Plugin::Offers(Offers { expand: false, ..ALL });
    let scene = Scene::of(larger.clone()).offering(never);
    assert_eq!((scene.step(), scene.reasons()), (None, vec!["ExpandUnsupported"]));
    larger.status.as_mut().unwrap().capacity_bytes = 8;
    assert_eq!(Scene::of(larger).step(), None, "it is as large already");
}

#[test]
fn a_volume_that_its_plugin_did_not_make_never_grows() {
    let mut fixed = created(volume(Scope::MultiNode));
    fixed.status.as_mut().unwrap().r#static = true;
    fixed.spec.as_mut().unwrap().capacity = Some(Capacity {
        required: 6,
        limit: 0,
    });
    let scene = Scene::of(fixed);
    assert_eq!((scene.step(), scene.reasons()), (None, vec!["ExpandUnsupported"]));
}

#[test]
fn a_volume_that_grows_offline_grows_as_soon_as_it_is_published_nowhere() {
    let mut larger = created(volume(Scope::SingleNode));
    larger.spec.as_mut().unwrap().capacity = Some(Capacity {
        required: 6,
        limit: 0,
    });
    let offline = Plugin::Offers(Offers {
        expand_offline_only: true,
        ..ALL
    });
    assert_eq!(
        Scene::of(larger.clone()).offering(offline).step(),
        Some(Step::Expand)
    );
    // Elsewhere it grows where it is.
    let online = Scene::of(larger).with("n1", State::Published, "csi-n1");
    assert_eq!(online.step(), Some(Step::Expand));
}

#[test]
fn what_rests_is_not_tried_whatever_it_is() {
    let mut larger = created(volume(Scope::SingleNode));
    larger.spec.as_mut().unwrap().capacity = Some(Capacity {
        required: 6,
        limit: 0,
    });
    let mut attempted = marked(volume(Scope::SingleNode));
    attempted.status.as_mut().unwrap().create = Some(CreateIntent::default());
    let fresh = volume(Scope::SingleNode);
    let there = created(volume(Scope::SingleNode));
    for resting in [larger, attempted, fresh, marked(there.clone())] {
        let mut scene = Scene::of(resting);
        assert!(scene.step().is_some());
        scene.resting = [Target::Volume].into();
        assert_eq!(scene.step(), None, "{:?}", scene.volume);
    }
    let mut scene = Scene::of(there).with("n1", State::PendingUnpublish, "csi-n1");
    scene.resting = [Target::Node(name("n1"))].into();
    assert_eq!(scene.step(), None);
    scene.publications.clear();
    scene = scene.detaching(["csi-n9"]);
    scene.resting = [Target::Stray("csi-n9".to_owned())].into();
    assert_eq!(scene.step(), None);
}

#[test]
fn a_volume_that_was_never_attempted_stays_while_there_is_a_publication_or_may_be_one() {
    let mut scene = Scene::of(marked(volume(Scope::SingleNode)));
    assert_eq!(scene.step(), Some(Step::DeleteRecord));
    scene.unreadable = [name("n9")].into();
    assert_eq!(
        (scene.step(), scene.reasons()),
        (None, vec!["PublicationMalformed"])
    );
    scene.unreadable.clear();
    scene.resting = [Target::Node(name("n1"))].into();
    let scene = scene.with("n1", State::Published, "csi-n1");
    assert_eq!(scene.step(), None);
}
