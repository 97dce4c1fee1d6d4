//! A history without a fault: three terms, an upgrade, and one of everything that ends well.

use prost::Message;
use quorate::etcd::MemberId;
use quorate::gate::status::{State as StatusState, Status};
use quorate::proto::join::Progress;
use quorate::proto::publication_status::State;
use quorate::proto::{
    AccessMode, Applied, CreateIntent, Join, Member, Metadata, Network, NetworkStatus, Node, NodeCertificate,
    NodeSpec, NodeStatus, Promotion, Publication, PublicationSpec, PublicationStatus, Removal, RemovedNode,
    Role, Service, ServiceSpec, ServiceStatus, Task, TaskSpec, TaskStatus, Volume, VolumeSpec, VolumeStatus,
    access_mode, node_certificate, removal, task_status,
};
use quorate::release::Version;

use super::story::{Story, compare, compare_all, delete, name, put};
use crate::history::{Is, Listed, MemberChange, Members, Op, Target, Verb, What};

pub fn metadata(uid: &str) -> Option<Metadata> {
    Some(Metadata {
        uid: uid.to_owned(),
        ..Metadata::default()
    })
}

pub fn now() -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds: 1, nanos: 0 })
}

pub fn node(uid: &str, role: Role) -> Node {
    Node {
        metadata: metadata(uid),
        spec: Some(NodeSpec {
            desired_role: role.into(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            role: role.into(),
            ..NodeStatus::default()
        }),
    }
}

/// A volume of one writer that several nodes may have.
pub fn volume(uid: &str, status: VolumeStatus) -> Volume {
    Volume {
        metadata: metadata(uid),
        spec: Some(VolumeSpec {
            access_mode: Some(AccessMode {
                scope: access_mode::Scope::MultiNode.into(),
                sharing: access_mode::Sharing::OneWriter.into(),
                kind: None,
            }),
            ..VolumeSpec::default()
        }),
        status: Some(status),
    }
}

pub fn publication(volume: &str, node_uid: &str, state: State, csi_node_id: &str) -> Publication {
    Publication {
        metadata: metadata("p"),
        spec: Some(PublicationSpec {
            volume: volume.to_owned(),
            node_uid: node_uid.to_owned(),
            ..PublicationSpec::default()
        }),
        status: Some(PublicationStatus {
            state: state.into(),
            csi_node_id: csi_node_id.to_owned(),
            ..PublicationStatus::default()
        }),
    }
}

pub fn created(uid: &str) -> VolumeStatus {
    VolumeStatus {
        create: Some(CreateIntent::default()),
        volume_id: format!("vol-{uid}"),
        ..VolumeStatus::default()
    }
}

pub fn service(networks: &[&str], is_marked: bool) -> Service {
    Service {
        metadata: metadata("s"),
        spec: Some(ServiceSpec {
            networks: networks.iter().map(|name| (*name).to_owned()).collect(),
            task_networks: Vec::new(),
        }),
        status: Some(ServiceStatus {
            delete_requested: is_marked.then(now).flatten(),
        }),
    }
}

pub fn network(is_marked: bool) -> Network {
    Network {
        metadata: metadata("net"),
        spec: None,
        status: Some(NetworkStatus {
            delete_requested: is_marked.then(now).flatten(),
        }),
    }
}

pub fn task(service: &str, node: &str, state: task_status::State) -> Task {
    Task {
        metadata: metadata("t"),
        spec: Some(TaskSpec {
            service: service.to_owned(),
            node: node.to_owned(),
        }),
        status: Some(TaskStatus { state: state.into() }),
    }
}

pub fn status(state: StatusState, release: &str, minimum: &str) -> Status {
    let version = Version {
        release: release.parse().unwrap(),
        git: None,
    };
    Status::new(state, version, minimum.parse().unwrap())
}

pub fn put_status(story: &Story, status: &Status) -> Op {
    Op::Put {
        key: story.keys.status().into(),
        value: status.encode().into(),
        lease: 0,
        keep_lease: false,
    }
}

pub fn certificate(node: &str, role: Role, state: node_certificate::State, chain: &str) -> NodeCertificate {
    NodeCertificate {
        node: node.to_owned(),
        role: role.into(),
        state: state.into(),
        chain: chain.to_owned(),
        ..NodeCertificate::default()
    }
}

/// The three members that there are, each healthy or not.
pub fn members(story: &mut Story, healthy: [bool; 3]) {
    let [first, second, third] = healthy;
    list(story, &[(1, first), (2, second), (3, third)]);
}

/// A list of these voters, each healthy or not.
pub fn list(story: &mut Story, voters: &[(u64, bool)]) {
    list_with(story, voters, &[]);
}

/// The same with learners.
pub fn list_with(story: &mut Story, voters: &[(u64, bool)], learners: &[(u64, bool)]) {
    let listed = |learner: bool| {
        move |(id, healthy): &(u64, bool)| Listed {
            id: *id,
            name: format!("etcd-{id}"),
            learner,
            healthy: *healthy,
        }
    };
    let voters = voters.iter().map(listed(false));
    let members = voters.chain(learners.iter().map(listed(true))).collect();
    story.after(100);
    story.happens(What::Members(Members {
        epoch: 0,
        cluster: 7,
        members,
    }));
}

/// The record of a member with an intent, or none.
pub fn member(node: &str, node_uid: &str, removal: Option<removal::Cause>, is_promoted: bool) -> Member {
    Member {
        node: node.to_owned(),
        node_uid: node_uid.to_owned(),
        removal: removal.map(|cause| Removal {
            cause: cause.into(),
            ..Removal::default()
        }),
        promotion: is_promoted.then(Promotion::default),
        ..Member::default()
    }
}

/// Everything up to a leader of release 1.1.0, `replica-c#1`, with its objects in place: nodes n1 (worker, uid `u1`) and n2 (manager,
/// uid `u2`), and volume `kept` (uid `k`), published to n1.
pub fn story() -> Story {
    let mut story = Story::new();
    let (a, b) = (story.replica("a", "1.0.0"), story.replica("b", "1.0.0"));
    story.elected(&a, 1);
    reconciled(&mut story);
    story.poll(&a, true);
    story.poll(&b, true);
    story.operator(story.keys.node(&name("n1")), &node("u1", Role::Worker));
    story.operator(story.keys.node(&name("n2")), &node("u2", Role::Manager));
    a_volume_lives(&mut story);
    a_volume_is_kept(&mut story);
    a_service_ends(&mut story);
    a_certificate_is_issued(&mut story);
    members_change(&mut story);
    story.steps_down();
    story.elected(&b, 2);
    a_task_is_orphaned(&mut story);
    let c = story.replica("c", "1.1.0");
    story.steps_down();
    story.elected(&c, 3);
    upgraded(&mut story);
    story.poll(&c, true);
    story
}

/// The first leader: the inventory, the object, then the status.
fn reconciled(story: &mut Story) {
    let entry = story.keys.inventory("", "ConfigMap", Some("default"), "base");
    story.leads(Vec::new(), vec![put(entry, &Applied::default())]);
    story.kubernetes(Verb::Create, "base");
    let done = put_status(story, &status(StatusState::Done, "1.0.0", "0.1.0"));
    story.leads(
        vec![compare(story.keys.status(), Target::Modified(0))],
        vec![done],
    );
}

fn upgraded(story: &mut Story) {
    let seen = story.revision.revision;
    let unwritten = compare_all(&story.keys.nodes(), Target::Modified(seen + 1), Is::Less);
    let working = put_status(story, &status(StatusState::Working, "1.0.0", "1.1.0"));
    story.leads(vec![unwritten], vec![working]);
    story.after(100);
    story.kubernetes(Verb::Patch, "base");
    let done = put_status(story, &status(StatusState::Done, "1.1.0", "1.1.0"));
    story.leads(Vec::new(), vec![done]);
}

fn a_volume_lives(story: &mut Story) {
    let volume_key = story.keys.volume(&name("v"));
    let key = story.keys.publication(&name("v"), &name("n1"));
    story.operator(volume_key.clone(), &volume("v1", VolumeStatus::default()));
    let intent = VolumeStatus {
        create: Some(CreateIntent::default()),
        ..VolumeStatus::default()
    };
    story.leads(Vec::new(), vec![put(volume_key.clone(), &volume("v1", intent))]);
    story.csi("CreateVolume", "vol-v1", None, 20);
    story.leads(
        Vec::new(),
        vec![put(volume_key.clone(), &volume("v1", created("v1")))],
    );
    story.operator(key.clone(), &publication("v", "u1", State::PendingPublish, ""));
    story.leads(
        Vec::new(),
        vec![put(
            key.clone(),
            &publication("v", "u1", State::PendingPublish, "csi-n1"),
        )],
    );
    story.csi("ControllerPublishVolume", "vol-v1", Some("csi-n1"), 20);
    story.leads(
        Vec::new(),
        vec![put(
            key.clone(),
            &publication("v", "u1", State::Published, "csi-n1"),
        )],
    );
    story.operator(
        key.clone(),
        &publication("v", "u1", State::PendingNodeUnpublish, "csi-n1"),
    );
    // The node confirms, through the replica with which it has its session.
    let by = story.leader.as_ref().unwrap().process.clone();
    let compares = vec![
        compare(story.keys.removed("u1"), Target::Created(0)),
        story.modified(key.clone()),
    ];
    story.writes(
        &by,
        compares,
        vec![put(
            key.clone(),
            &publication("v", "u1", State::PendingUnpublish, "csi-n1"),
        )],
    );
    story.csi("ControllerUnpublishVolume", "vol-v1", Some("csi-n1"), 20);
    story.leads(Vec::new(), vec![delete(key)]);
    let marked = VolumeStatus {
        delete_requested: now(),
        delete_attempted: true,
        ..created("v1")
    };
    story.leads(Vec::new(), vec![put(volume_key.clone(), &volume("v1", marked))]);
    story.csi("DeleteVolume", "vol-v1", None, 20);
    story.leads(Vec::new(), vec![delete(volume_key)]);
}

fn a_volume_is_kept(story: &mut Story) {
    let volume_key = story.keys.volume(&name("kept"));
    let key = story.keys.publication(&name("kept"), &name("n1"));
    story.operator(volume_key, &volume("k", created("k")));
    story.leads(
        Vec::new(),
        vec![put(
            key.clone(),
            &publication("kept", "u1", State::PendingPublish, "csi-n1"),
        )],
    );
    story.csi("ControllerPublishVolume", "vol-k", Some("csi-n1"), 20);
    story.leads(
        Vec::new(),
        vec![put(key, &publication("kept", "u1", State::Published, "csi-n1"))],
    );
}

fn a_service_ends(story: &mut Story) {
    let (web, front) = (
        story.keys.service(&name("web")),
        story.keys.network(&name("front")),
    );
    story.operator(front.clone(), &network(true));
    story.operator(web.clone(), &service(&["front"], true));
    let no_task = compare_all(&story.keys.tasks_of(&name("web")), Target::Created(0), Is::Equal);
    let unchanged = story.modified(web.clone());
    story.leads(vec![unchanged, no_task], vec![delete(web), delete(front)]);
}

fn a_certificate_is_issued(story: &mut Story) {
    let key = story.keys.certificate("u1");
    let request = certificate("n1", Role::Unspecified, node_certificate::State::Pending, "");
    story.operator(key.clone(), &request);
    let compares = vec![
        story.modified(key.clone()),
        story.modified(story.keys.node(&name("n1"))),
    ];
    let issued = certificate("n1", Role::Worker, node_certificate::State::Issued, "chain");
    story.leads(compares, vec![put(key, &issued)]);
}

/// A learner is added and promoted, and the member of a node that was removed goes.
fn members_change(story: &mut Story) {
    for _ in 0..3 {
        members(story, [true; 3]);
    }
    let join = Join {
        progress: Progress::Adding.into(),
        peer_urls: vec!["http://n2".to_owned()],
        ..Join::default()
    };
    story.leads(Vec::new(), vec![put(story.keys.join(&name("n2")), &join)]);
    let add = MemberChange::Add {
        learner: true,
        peer_urls: vec!["http://n2".to_owned()],
    };
    story.member(add, 5);
    story.leads(
        Vec::new(),
        vec![put(
            story.keys.member(MemberId(9)),
            &member("n2", "u2", None, true),
        )],
    );
    story.member(MemberChange::Promote(9), 5);
    let removed = story.keys.removed("u3");
    let record = story.keys.member(MemberId(3));
    story.operator(record.clone(), &member("n3", "u3", None, false));
    story.operator(removed.clone(), &RemovedNode::default());
    let is_removed = compare(removed, Target::Created(story.revision.revision));
    let gone = member("n3", "u3", Some(removal::Cause::NodeGone), false);
    story.leads(vec![is_removed], vec![put(record.clone(), &gone)]);
    story.member(MemberChange::Remove(3), 5);
    story.leads(Vec::new(), vec![delete(record)]);
    for _ in 0..2 {
        members(story, [true, true, false]);
    }
}

fn a_task_is_orphaned(story: &mut Story) {
    story.operator(story.keys.service(&name("db")), &service(&[], false));
    let key = story.keys.task(&name("db"), &name("1"));
    story.operator(key.clone(), &task("db", "gone", task_status::State::Running));
    let no_node = compare(story.keys.node(&name("gone")), Target::Modified(0));
    let orphaned = task("db", "gone", task_status::State::Orphaned);
    story.leads(vec![no_node], vec![put(key, &orphaned)]);
}

/// Bytes that are no message, under this key.
pub fn unreadable(key: Vec<u8>) -> Op {
    assert!(Service::decode(&[0xff_u8][..]).is_err());
    Op::Put {
        key: key.into(),
        value: vec![0xff_u8].into(),
        lease: 0,
        keep_lease: false,
    }
}
