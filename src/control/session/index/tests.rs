use prost::Message as _;

use super::*;
use crate::etcd::{Event, KeyValue, MemberId};
use crate::proto::volume_spec::Driver;
use crate::proto::{
    AccessMode, Condition, Join, Member, Metadata, Node, NodeCertificate, NodeSession, NodeSpec, NodeStatus,
    Publication, PublicationSpec, PublicationStatus, RemovedNode, RevocationList, Volume, VolumeSpec,
    VolumeStatus, access_mode, publication_status,
};
use crate::store::keys::Joiner;

pub fn keys() -> Keys {
    Keys::new("/quorate".parse().unwrap())
}

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn kv(key: Vec<u8>, value: Vec<u8>, revision: i64) -> KeyValue {
    KeyValue::written_at(key, value, revision)
}

fn metadata(name: &str, uid: &str) -> Option<Metadata> {
    Some(Metadata::new(name, uid, jiff::Timestamp::UNIX_EPOCH))
}

pub fn node(node: &str, uid: &str, role: Role, revision: i64) -> KeyValue {
    let record = Node {
        metadata: metadata(node, uid),
        spec: Some(NodeSpec::default()),
        status: Some(NodeStatus {
            role: role.into(),
            ..NodeStatus::default()
        }),
    };
    kv(keys().node(&name(node)), record.encode_to_vec(), revision)
}

pub fn session(node: &str, id: &str, revision: i64) -> KeyValue {
    let session = NodeSession {
        node_uid: "u1".to_owned(),
        session_id: id.to_owned(),
        ..NodeSession::default()
    };
    kv(keys().alive(&name(node)), session.encode_to_vec(), revision)
}

pub fn removed(uid: &str, node: &str, revision: i64) -> KeyValue {
    let record = RemovedNode {
        name: node.to_owned(),
        ..RemovedNode::default()
    };
    kv(keys().removed(uid), record.encode_to_vec(), revision)
}

fn publication(volume: &str, node: &str, uid: &str, revision: i64) -> KeyValue {
    let record = Publication {
        metadata: metadata(node, "p"),
        spec: Some(PublicationSpec {
            volume: volume.to_owned(),
            volume_uid: format!("uid-of-{volume}"),
            node_uid: uid.to_owned(),
            ..PublicationSpec::default()
        }),
        status: Some(PublicationStatus {
            state: publication_status::State::Published.into(),
            ..PublicationStatus::default()
        }),
    };
    let key = keys().publication(&name(volume), &name(node));
    kv(key, record.encode_to_vec(), revision)
}

fn volume(volume: &str, id: &str, revision: i64) -> KeyValue {
    let record = Volume {
        metadata: metadata(volume, &format!("uid-of-{volume}")),
        spec: Some(VolumeSpec {
            driver: Some(Driver {
                name: "test.csi".to_owned(),
                ..Driver::default()
            }),
            access_mode: Some(AccessMode {
                kind: Some(access_mode::Kind::Block(access_mode::Block {})),
                ..AccessMode::default()
            }),
            ..VolumeSpec::default()
        }),
        status: Some(VolumeStatus {
            volume_id: id.to_owned(),
            ..VolumeStatus::default()
        }),
    };
    kv(keys().volume(&name(volume)), record.encode_to_vec(), revision)
}

fn list(index: &mut Index, part: Part, contents: Vec<KeyValue>, revision: i64) {
    let page = Update::Page {
        first: true,
        keys: contents,
    };
    index.take_in(part, page);
    let ended = index.take_in(part, Update::Listed(Revision(revision)));
    assert_eq!(ended, Affected::All);
}

pub fn listed(alive: Vec<KeyValue>, records: Vec<KeyValue>) -> Index {
    let mut index = Index::new(keys());
    assert!(!index.is_complete());
    list(&mut index, Part::Alive, alive, 20);
    list(&mut index, Part::Records, records, 20);
    list(&mut index, Part::Volumes, Vec::new(), 20);
    assert!(index.is_complete());
    index
}

/// Takes in one change. Returns the nodes that it concerns.
pub fn change(index: &mut Index, part: Part, event: Event) -> Vec<String> {
    match index.take_in(part, Update::Events(vec![event])) {
        Affected::Nodes(nodes) => nodes.iter().map(ToString::to_string).collect(),
        Affected::All => panic!("events concern certain nodes"),
    }
}

pub fn deletion(key: Vec<u8>, revision: i64) -> Event {
    Event::Delete {
        key,
        revision: Revision(revision),
    }
}

/// The volumes that a node is shown, with their ids.
fn volumes(index: &Index, node: &str, uid: &str) -> Vec<(String, String)> {
    let shown = index.view(&name(node), uid).unwrap();
    let publications = shown.view.publications.into_iter();
    publications.map(|one| (one.volume, one.volume_id)).collect()
}

fn shown(volumes: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(volume, id): &(&str, &str)| ((*volume).to_owned(), (*id).to_owned());
    volumes.iter().map(owned).collect()
}

#[test]
fn a_node_is_shown_its_own_publications_alone() {
    let records = vec![
        node("n1", "u1", Role::Worker, 2),
        node("n2", "u2", Role::Worker, 3),
        publication("data", "n1", "u1", 4),
        publication("data", "n2", "u2", 5),
        publication("logs", "n2", "u2", 6),
        // To an earlier node of this name.
        publication("old", "n1", "u0", 7),
    ];
    let mut index = listed(Vec::new(), records);
    list(&mut index, Part::Volumes, vec![volume("data", "v", 8)], 21);
    assert_eq!(volumes(&index, "n1", "u1"), shown(&[("data", "v")]));
    assert_eq!(volumes(&index, "n2", "u2"), shown(&[("data", "v"), ("logs", "")]));
    assert!(index.view(&name("n1"), "u2").is_none(), "another uid");
    assert!(index.view(&name("n3"), "u3").is_none());
}

#[test]
fn a_change_concerns_the_nodes_that_are_shown_it() {
    let records = vec![
        node("n1", "u1", Role::Worker, 2),
        publication("data", "n1", "u1", 4),
        publication("data", "n2", "u2", 5),
    ];
    let mut index = listed(vec![session("n1", "s1", 9)], records);
    let put = Event::Put;
    assert_eq!(
        change(&mut index, Part::Volumes, put(volume("data", "v", 21))),
        ["n1", "n2"]
    );
    assert_eq!(
        change(&mut index, Part::Volumes, put(volume("other", "v", 22))),
        [""; 0]
    );
    assert_eq!(
        change(&mut index, Part::Alive, put(session("n1", "s2", 23))),
        ["n1"]
    );
    assert_eq!(
        change(&mut index, Part::Records, put(removed("u9", "n9", 24))),
        ["n9"]
    );
    let record = NodeCertificate {
        node: "n1".to_owned(),
        ..NodeCertificate::default()
    };
    let certificate = kv(keys().certificate("u1"), record.encode_to_vec(), 25);
    assert_eq!(change(&mut index, Part::Records, put(certificate)), ["n1"]);
    let gone = deletion(keys().certificate("u1"), 26);
    assert_eq!(change(&mut index, Part::Records, gone), ["n1"]);
    // A report writes the node, and changes nothing that sessions depend on.
    let reported = put(node("n1", "u1", Role::Worker, 27));
    assert_eq!(change(&mut index, Part::Records, reported), [""; 0]);
    assert!(index.shows(Part::Records, Revision(27)));
    let promoted = put(node("n1", "u1", Role::Manager, 28));
    assert_eq!(change(&mut index, Part::Records, promoted), ["n1"]);
    let gone = deletion(keys().publication(&name("data"), &name("n1")), 29);
    assert_eq!(change(&mut index, Part::Records, gone), ["n1"]);
    assert_eq!(
        change(&mut index, Part::Volumes, put(volume("data", "w", 30))),
        ["n2"]
    );
    // A kind that lies between, and a key that no object can have.
    let token = kv(keys().join_token(&Joiner::Worker), Vec::new(), 31);
    assert_eq!(change(&mut index, Part::Records, put(token)), [""; 0]);
    let odd = kv(b"/quorate/alive/N 1".to_vec(), Vec::new(), 32);
    assert_eq!(change(&mut index, Part::Alive, put(odd)), [""; 0]);
}

#[test]
fn what_a_later_list_leaves_out_is_gone() {
    let records = vec![
        node("n1", "u1", Role::Worker, 2),
        publication("data", "n1", "u1", 4),
        removed("u9", "n9", 5),
        kv(keys().certificate("u1"), Vec::new(), 6),
    ];
    let mut index = listed(vec![session("n1", "s1", 9)], records);
    list(&mut index, Part::Volumes, vec![volume("data", "v", 21)], 21);
    assert!(index.is_removed("u9"));
    let begun = Update::Page {
        first: true,
        keys: Vec::new(),
    };
    index.take_in(Part::Records, begun);
    assert!(!index.is_complete() && !index.shows(Part::Records, Revision(2)));
    index.take_in(Part::Records, Update::Listed(Revision(30)));
    list(&mut index, Part::Alive, Vec::new(), 30);
    list(&mut index, Part::Volumes, Vec::new(), 30);
    let left = (index.session_id(&name("n1")), index.node(&name("n1")));
    assert_eq!(left, (None, None));
    assert!(!index.is_removed("u9"));
    let empty = index.publications.is_empty() && index.nodes_of.is_empty() && index.volumes.is_empty();
    assert!(empty && index.certificates.is_empty(), "{index:?}");
}

#[test]
fn an_unreadable_node_is_no_missing_one_and_an_unreadable_session_is_another_one() {
    let garbage = kv(keys().node(&name("n1")), vec![0xff], 3);
    let alive = kv(keys().alive(&name("n1")), vec![0xff], 4);
    let index = listed(vec![alive], vec![garbage]);
    assert_eq!(index.node(&name("n1")), Some(None));
    assert_eq!(index.session_id(&name("n1")), Some(""));
}

#[test]
fn the_condition_of_several_agents_is_seen() {
    let mut stored = Node::decode(&*node("n1", "u1", Role::Worker, 2).value).unwrap();
    let condition = Condition {
        r#type: crate::store::object::node::DUPLICATE_AGENT.to_owned(),
        ..Condition::default()
    };
    let is_duplicate = |index: &Index| index.node(&name("n1")).unwrap().unwrap().is_duplicate;
    let mut index = listed(Vec::new(), vec![node("n1", "u1", Role::Worker, 2)]);
    assert!(!is_duplicate(&index));
    stored.status.as_mut().unwrap().conditions = vec![condition];
    let marked = kv(keys().node(&name("n1")), stored.encode_to_vec(), 21);
    assert_eq!(change(&mut index, Part::Records, Event::Put(marked)), ["n1"]);
    assert!(is_duplicate(&index));
}

fn written(key: Vec<u8>, value: Vec<u8>, revision: i64) -> Event {
    Event::Put(kv(key, value, revision))
}

#[test]
fn the_list_of_revoked_certificates_concerns_managers_and_is_shown_to_them_alone() {
    let records = vec![
        node("n1", "u1", Role::Manager, 2),
        node("n2", "u2", Role::Worker, 2),
    ];
    let mut index = listed(Vec::new(), records);
    let list = RevocationList {
        number: 4,
        ..RevocationList::default()
    };
    let concerned = change(
        &mut index,
        Part::Records,
        written(keys().revocation_list(), list.encode_to_vec(), 30),
    );
    assert_eq!(concerned, ["n1"]);
    let revocation = |index: &Index, node: &str, uid: &str| {
        let shown = index.view(&name(node), uid).unwrap();
        shown.view.revocation.map(|list| list.number)
    };
    assert_eq!(revocation(&index, "n1", "u1"), Some(4));
    assert_eq!(revocation(&index, "n2", "u2"), None);
    let concerned = change(&mut index, Part::Records, deletion(keys().revocation_list(), 31));
    assert_eq!(concerned, ["n1"]);
    assert_eq!(revocation(&index, "n1", "u1"), Some(0));
}

#[test]
fn a_member_concerns_its_node_and_what_a_later_list_does_not_show_of_it_is_gone() {
    let mut index = listed(Vec::new(), vec![node("n1", "u1", Role::Manager, 2)]);
    let member = Member {
        node: "n1".to_owned(),
        node_uid: "u1".to_owned(),
        ..Member::default()
    };
    let certificate = NodeCertificate {
        node: "n1".to_owned(),
        ..NodeCertificate::default()
    };
    let all = [
        (keys().member(MemberId(7)), member.encode_to_vec()),
        (keys().etcd_certificate("u1"), certificate.encode_to_vec()),
        (keys().join(&name("n1")), Join::default().encode_to_vec()),
    ];
    for (key, value) in all {
        let concerned = change(&mut index, Part::Records, written(key, value, 30));
        assert_eq!(concerned, ["n1"]);
    }
    let member = |index: &Index| index.view(&name("n1"), "u1").unwrap().view.member;
    assert_eq!(member(&index).unwrap().member_id, 7);
    list(
        &mut index,
        Part::Records,
        vec![node("n1", "u1", Role::Manager, 2)],
        40,
    );
    assert!(member(&index).is_none());
}
