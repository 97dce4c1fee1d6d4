use super::*;
use crate::etcd::{KeyValue, LeaseId, Revision};
use crate::proto::condition::Status;
use crate::proto::node_certificate::State;
use crate::proto::node_spec::Membership;
use crate::proto::{
    CertificateRequest, Condition, CsiNode, Join, JoinRequest, Metadata, NodeCertificate, NodeSpec,
    NodeStatus, Registration, Role,
};
use crate::release::{Release, Version};
use crate::store::Keys;
use crate::store::object::text::to_yaml;

const NOW: &str = "2026-03-04T16:00:00Z";

fn keys() -> Keys {
    Keys::new("/quorate".parse().unwrap())
}

fn at(seconds: i64) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds, nanos: 0 })
}

fn put(view: &mut View, key: Vec<u8>, value: Vec<u8>) {
    let kv = KeyValue {
        key: key.clone(),
        value,
        create_revision: Revision(3),
        mod_revision: Revision(7),
        lease: Some(LeaseId(0x1f)),
    };
    view.set(&key, Some(&kv));
}

fn message(message: &impl prost::Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// Node n1 with all that a node can have; n2 is garbage; n3 has the value of another.
fn view() -> View {
    let name = |name: &str| name.parse::<Name>().unwrap();
    let node = Node {
        metadata: Some(Metadata {
            name: "n1".to_owned(),
            uid: "6a8f1f0e-2f4e-4c58-9f37-0d6a3a8d2b11".to_owned(),
            labels: [("zone", "a"), ("rack", "7")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            creation_time: at(1_772_366_400),
            generation: 2,
        }),
        spec: Some(NodeSpec {
            desired_role: Role::Manager.into(),
            availability: crate::proto::node_spec::Availability::Drain.into(),
            ..NodeSpec::default()
        }),
        status: Some(NodeStatus {
            role: Role::Worker.into(),
            release: Some(Release::new(1, 2, 0).to_proto()),
            controller: true,
            agent_release: Some(Release::new(1, 3, 0).to_proto()),
            csi: vec![CsiNode {
                plugin: "hostpath.csi.k8s.io".to_owned(),
                node_id: "csi-n1".to_owned(),
                topology: [("zone".to_owned(), "a".to_owned())].into(),
            }],
            conditions: vec![Condition {
                r#type: "RoleChangeBlocked".to_owned(),
                status: Status::True.into(),
                reason: "QuorumRisk".to_owned(),
                message: "2 of 3 voters are healthy".to_owned(),
                last_transition_time: at(1_772_622_000),
                observed_generation: 2,
            }],
            keeps_etcd: true,
        }),
    };
    let registration = Registration {
        version: Some(Version::from(Release::new(1, 2, 0)).to_proto()),
        process: "p-1".to_owned(),
        registered_at: at(1_772_639_970),
        page: String::new(),
    };
    let mut view = View::new(keys());
    put(&mut view, keys().node(&name("n1")), message(&node));
    put(
        &mut view,
        keys().registration(&name("n1")),
        message(&registration),
    );
    let session = NodeSession {
        node_uid: "6a8f1f0e-2f4e-4c58-9f37-0d6a3a8d2b11".to_owned(),
        session_id: "s-1".to_owned(),
        replica: "c1".to_owned(),
        ready_since: at(1_772_636_400),
        ..NodeSession::default()
    };
    put(&mut view, keys().alive(&name("n1")), message(&session));
    let certificate = NodeCertificate {
        node: "n1".to_owned(),
        request: Some(CertificateRequest {
            at: at(1_772_639_970),
            ..CertificateRequest::default()
        }),
        state: State::Pending.into(),
        role: Role::Worker.into(),
        not_after: at(1_780_329_600),
        ..NodeCertificate::default()
    };
    put(
        &mut view,
        keys().certificate(&session.node_uid),
        message(&certificate),
    );
    let record = Member {
        node: "n1".to_owned(),
        node_uid: "6a8f1f0e-2f4e-4c58-9f37-0d6a3a8d2b11".to_owned(),
        joined_at: at(1_772_639_970),
        ..Member::default()
    };
    put(&mut view, keys().member(MemberId(0x1f)), message(&record));
    let join = Join {
        request: Some(JoinRequest {
            id: "r".to_owned(),
            node_uid: record.node_uid,
            peer_urls: vec!["https://10.0.0.1:2380".to_owned()],
            ..JoinRequest::default()
        }),
        answers: "r".to_owned(),
        progress: Progress::Learner.into(),
        reason: "LearnerNotInSync".to_owned(),
        message: "90 of 100".to_owned(),
        ..Join::default()
    };
    put(&mut view, keys().join(&name("n1")), message(&join));
    put(&mut view, keys().node(&name("n2")), vec![0xff, 0xff]);
    put(&mut view, keys().node(&name("n3")), message(&node));
    view
}

fn item<'v>(view: &'v View, name: &str) -> Item<'v> {
    let key = keys().node(&name.parse().unwrap());
    NODES.item(view, &key, NOW.parse().unwrap()).unwrap()
}

fn shown(name: &str) -> Shown {
    let view = view();
    NODES.show(&item(&view, name))
}

fn described(name: &str) -> String {
    let view = view();
    NODES.describe(&item(&view, name))
}

#[test]
fn a_node_is_listed_with_a_cell_for_each_column() {
    let cells = shown("n1").cells;
    assert_eq!(
        cells,
        [
            "n1",
            "worker",
            "manager",
            "yes",
            "drain",
            "1.2.0",
            "yes",
            "3d4h",
            "6a8f1f0e-2f4e-4c58-9f37-0d6a3a8d2b11",
            "rack=7,zone=a",
            "hostpath.csi.k8s.io"
        ]
    );
    assert_eq!(cells.len(), NODES.columns.len() + NODES.wide_columns.len());
}

#[test]
fn the_document_of_a_node_is_that_of_the_contract() {
    assert_eq!(
        to_yaml(&shown("n1").document),
        "\
apiVersion: quorate.dev/v1
kind: Node
metadata:
  creationTimestamp: \"2026-03-01T12:00:00Z\"
  generation: 2
  labels:
    rack: \"7\"
    zone: a
  name: n1
  resourceVersion: \"7\"
  uid: 6a8f1f0e-2f4e-4c58-9f37-0d6a3a8d2b11
spec:
  availability: drain
  desiredRole: manager
status:
  conditions:
  - lastTransitionTime: \"2026-03-04T11:00:00Z\"
    message: 2 of 3 voters are healthy
    observedGeneration: 2
    reason: QuorumRisk
    status: \"True\"
    type: RoleChangeBlocked
  controller: true
  csi:
  - nodeID: csi-n1
    plugin: hostpath.csi.k8s.io
    topology:
      zone: a
  memberID: 000000000000001f
  ready: true
  release: \"1.2.0\"
  role: worker
"
    );
}

#[test]
fn a_description_says_everything_in_words() {
    assert_eq!(
        described("n1"),
        "\
Name:              n1
Kind:              Node
Labels:            rack=7
                   zone=a
UID:               6a8f1f0e-2f4e-4c58-9f37-0d6a3a8d2b11
Created:           2026-03-01T12:00:00Z (3d4h ago)
Generation:        2
Resource Version:  7
Role:              worker
Desired Role:      manager
Availability:      drain
Member:            000000000000001f, joined 2026-03-04T15:59:30Z (30s ago)
Join:              learner at https://10.0.0.1:2380 (LearnerNotInSync: 90 of 100)
Ready:             yes, since 2026-03-04T15:00:00Z (60m ago)
Session:           s-1 on lease 1f, at replica c1
Agent Release:     1.3.0 (keeps the etcd of the node)
Certificate:
  State:                pending
  Role:                 worker
  Valid Until:          2026-06-01T16:00:00Z (in 89d)
  Requested:            2026-03-04T15:59:30Z (30s ago)
  Pending:              the leader has yet to answer the request; its log and its Events (CertificatesWait) say what requests wait for
Release:           1.2.0
Controller:        yes (its release counts in the gate)
CSI Plugins:
  hostpath.csi.k8s.io:  node id csi-n1
                        topology zone=a
Conditions:
  RoleChangeBlocked:    True (QuorumRisk)
                        2 of 3 voters are healthy
                        since 2026-03-04T11:00:00Z (5h ago), observed at generation 2
Registration:
  Version:              1.2.0
  Process:              p-1
  Since:                2026-03-04T15:59:30Z (30s ago)
"
    );
}

/// The description of node n1 after this change of the node and of its certificate.
fn described_with(change: impl FnOnce(&mut Node, &mut NodeCertificate)) -> String {
    let mut view = view();
    let key = keys().node(&"n1".parse().unwrap());
    let mut node = Node::decode(&*view.get(&key).unwrap().value).unwrap();
    let of_node = keys().certificate(node.uid());
    let mut certificate = NodeCertificate::decode(&*view.get(&of_node).unwrap().value).unwrap();
    change(&mut node, &mut certificate);
    put(&mut view, key, message(&node));
    put(&mut view, of_node, message(&certificate));
    NODES.describe(&item(&view, "n1"))
}

#[test]
fn what_a_certificate_waits_for_or_why_it_was_refused_is_said_with_its_node() {
    let pending = described_with(|node, _| {
        node.spec
            .get_or_insert_default()
            .set_membership(Membership::Pending);
    });
    assert!(
        pending.contains("an operator has yet to accept the node: quorate accept n1"),
        "{pending}"
    );
    let unobserved = described_with(|node, _| {
        node.status.get_or_insert_default().set_role(Role::Unspecified);
    });
    assert!(
        unobserved.contains("the node has no observed role yet"),
        "{unobserved}"
    );
    let asked = described_with(|_, certificate| certificate.set_state(State::Rotate));
    assert!(
        asked.contains("an operator asks for another certificate"),
        "{asked}"
    );
    let refused = described_with(|_, certificate| {
        certificate.set_state(State::Failed);
        certificate.reason = "BadRequest".to_owned();
        certificate.message = "its signature is not one of its key".to_owned();
    });
    assert!(
        refused.contains("BadRequest: its signature is not one of its key"),
        "{refused}"
    );
    let issued = described_with(|_, certificate| {
        certificate.set_state(State::Issued);
        certificate.not_after = at(1_772_553_600);
    });
    assert!(
        issued.contains("2026-03-03T16:00:00Z (24h ago)"),
        "it has ended: {issued}"
    );
    assert!(!issued.contains("Pending:"), "{issued}");
}

#[test]
fn describing_named_nodes_reads_their_certificates_alone() {
    let view = view();
    let uid = "6a8f1f0e-2f4e-4c58-9f37-0d6a3a8d2b11";
    let own = [keys().certificate(uid), keys().etcd_certificate(uid)].map(KeyRange::key);
    // n3 holds the value of n1; n2 cannot be read.
    let of_both = [own.clone(), own].concat();
    assert_eq!((NODES.described_with)(&view, false), of_both);
    let kinds = [KeySpace::CERTIFICATES, KeySpace::ETCD_CERTIFICATES];
    let all = kinds.map(|kind| kind.all(&keys()));
    assert_eq!((NODES.described_with)(&view, true), all);
}

#[test]
fn a_malformed_value_is_shown_as_such_and_described_with_the_reason() {
    for (name, reason) in [
        ("n2", "the value is no Node message"),
        ("n3", "the key says n3, but metadata.name is \"n1\""),
    ] {
        let shown = shown(name);
        assert_eq!(shown.cells[..2], [name, "<malformed>"]);
        assert!(shown.malformed.unwrap().contains(reason));
        let condition = &shown.document["status"]["conditions"][0];
        assert_eq!(condition["type"], "Malformed");
        assert!(condition["message"].as_str().unwrap().contains(reason));
        assert!(described(name).contains(reason));
    }
}

#[test]
fn a_key_below_alive_affects_its_node_and_a_registration_none() {
    let name: Name = "n1".parse().unwrap();
    let node = Affected::One(keys().node(&name));
    assert_eq!(NODES.affected_objects(&keys(), &keys().node(&name)), node);
    assert_eq!(NODES.affected_objects(&keys(), &keys().alive(&name)), node);
    assert_eq!(
        NODES.affected_objects(&keys(), &keys().registration(&name)),
        Affected::Nothing
    );
    assert_eq!(
        NODES.affected_objects(&keys(), &keys().member(MemberId(1))),
        Affected::All
    );
}
