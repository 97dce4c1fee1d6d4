use std::collections::BTreeMap;

use prost::Message;

use super::super::change::{Codec, Of, Part, Request, Step, StoredValue};
use super::super::{decode, text};
use super::*;

const NODES: &dyn Codec = Of::<Node>::CODEC;
const UID: &str = "6a8f1f0e-2f4e-4c58-9f37-0d6a3a8d2b11";

fn request(part: Part) -> Request {
    Request {
        part,
        now: "2026-03-01T12:00:00Z".parse().unwrap(),
        uid: UID.to_owned(),
    }
}

fn yaml(text: &str) -> Value {
    text::parse(text).unwrap().remove(0)
}

fn manifest(rest: &str) -> Value {
    yaml(&format!(
        "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{name: n1}}\n{rest}"
    ))
}

fn plan(document: &Value, stored: Option<&Node>, part: Part) -> Result<Step, Rejection> {
    let bytes = stored.map(Message::encode_to_vec);
    let stored = bytes.as_ref().map(|value| StoredValue {
        value,
        mod_revision: Revision(17),
    });
    NODES.plan(document, stored, &request(part))
}

fn written(step: Result<Step, Rejection>) -> Node {
    match step.unwrap() {
        Step::Create(value) | Step::Configure(value) => decode("n1", &value).unwrap(),
        Step::Nothing => panic!("nothing would be written"),
    }
}

fn stored(rest: &str) -> Node {
    written(plan(&manifest(rest), None, Part::Spec))
}

fn faults(document: &Value) -> Vec<String> {
    let faults = NODES.check(document).err().unwrap_or_default();
    faults.iter().map(ToString::to_string).collect()
}

#[test]
fn a_new_node_is_an_active_observed_worker_with_identity() {
    let node = stored("");
    let metadata = node.metadata.unwrap();
    assert_eq!(
        (metadata.name.as_str(), metadata.uid.as_str(), metadata.generation),
        ("n1", UID, 1)
    );
    assert_eq!(metadata.creation_time.unwrap().seconds, 1_772_366_400);
    assert_eq!(node.spec.unwrap().desired_role(), Role::Worker);
    assert_eq!(node.spec.unwrap().availability(), Availability::Active);
    assert_eq!(node.status.unwrap().role(), Role::Worker);
}

#[test]
fn a_node_created_as_a_desired_manager_is_an_observed_worker() {
    let node = stored("spec: {desiredRole: manager}");
    assert_eq!(node.spec.unwrap().desired_role(), Role::Manager);
    assert_eq!(node.status.unwrap().role(), Role::Worker);
}

#[test]
fn every_fault_of_a_document_is_reported_at_once() {
    let document = manifest(
        "spec: {desiredRole: boss, availabilty: drain}\n\
         status: {release: 1.2, controller: 'yes', csi: [{plugin: p, nodeID: ''}, {plugin: p}], conditions: [{x: 1}]}\n\
         extra: 1",
    );
    assert_eq!(
        faults(&document),
        [
            "spec.desiredRole: \"boss\" is not one of worker, manager",
            "spec.availabilty: unknown field (did you mean availability?)",
            "status.release: expected a string, found the number 1.2 (put it in quotes)",
            "status.controller: expected true or false, found the string \"yes\"",
            "status.csi[0].nodeID: must not be empty",
            "status.csi[1].nodeID: missing",
            "status.csi[1].plugin: p occurs twice",
            "status.conditions[0].x: unknown field",
            "extra: unknown field",
        ]
    );
}

#[test]
fn leaving_out_the_desired_role_of_an_existing_node_is_a_fault_and_no_demotion() {
    let node = stored("spec: {desiredRole: manager, availability: drain, membership: pending}");
    let Err(Rejection::Faulty(faults)) = plan(&manifest("spec: {}"), Some(&node), Part::Spec) else {
        panic!("accepted");
    };
    let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(
        paths,
        ["spec.desiredRole", "spec.availability", "spec.membership"]
    );
}

/// INV-13
#[test]
fn leaving_out_a_membership_that_a_later_release_stored_is_a_fault_and_no_acceptance() {
    let mut node = stored("spec: {desiredRole: worker}");
    node.spec.as_mut().unwrap().membership = 3;
    let Err(Rejection::Faulty(faults)) =
        plan(&manifest("spec: {desiredRole: worker}"), Some(&node), Part::Spec)
    else {
        panic!("accepted");
    };
    let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["spec.membership"]);
}

#[test]
fn a_change_of_the_desired_role_is_a_change_of_the_spec_and_not_of_the_observed_role() {
    let node = stored("spec: {desiredRole: worker}");
    let after = written(plan(
        &manifest("spec: {desiredRole: manager}"),
        Some(&node),
        Part::Spec,
    ));
    assert_eq!(after.spec.unwrap().desired_role(), Role::Manager);
    assert_eq!(after.metadata.unwrap().generation, 2);
    assert_eq!(after.status.unwrap().role(), Role::Worker);
}

#[test]
fn a_spec_change_counts_a_generation_and_leaves_the_status_alone() {
    let mut node = stored("spec: {desiredRole: worker}");
    node.status.as_mut().unwrap().controller = true;
    let document = manifest("spec: {desiredRole: worker, availability: pause}\nstatus: {controller: false}");
    let after = written(plan(&document, Some(&node), Part::Spec));
    assert_eq!(after.metadata.as_ref().unwrap().generation, 2);
    assert_eq!(after.spec.unwrap().availability(), Availability::Pause);
    assert!(after.status.as_ref().unwrap().controller);
    assert_eq!(after.metadata.as_ref().unwrap().uid, UID);
}

#[test]
fn labels_are_replaced_when_given_kept_when_not_and_are_no_new_generation() {
    let labelled = |labels: &str| {
        yaml(&format!(
            "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{name: n1{labels}}}\nspec: {{desiredRole: worker}}"
        ))
    };
    let node = written(plan(&labelled(", labels: {a: '1', b: '2'}"), None, Part::Spec));
    assert_eq!(plan(&labelled(""), Some(&node), Part::Spec), Ok(Step::Nothing));
    let after = written(plan(&labelled(", labels: {b: '3'}"), Some(&node), Part::Spec));
    let metadata = after.metadata.unwrap();
    assert_eq!(
        metadata.labels,
        BTreeMap::from([("b".to_owned(), "3".to_owned())])
    );
    assert_eq!(metadata.generation, 1);
}

#[test]
fn a_report_writes_what_it_gives_and_null_clears() {
    let node = stored("spec: {desiredRole: manager}");
    let report = |status: &str, node: &Node| {
        let document = manifest(&format!("spec: {{desiredRole: worker}}\nstatus: {status}"));
        written(plan(&document, Some(node), Part::Status))
    };
    let node = report(
        "{release: 1.2.0, controller: true, role: manager, csi: [{plugin: p, nodeID: x, topology: {zone: a}}]}",
        &node,
    );
    let status = node.status.as_ref().unwrap();
    assert_eq!(release_word(&node).as_deref(), Some("1.2.0"));
    assert!(status.controller);
    assert_eq!(status.csi[0].topology["zone"], "a");
    assert_eq!(status.role(), Role::Worker, "the leader's part");
    assert_eq!(
        node.spec.unwrap().desired_role(),
        Role::Manager,
        "the operator's part"
    );
    let node = report("{csi: null, controller: false}", &node);
    assert_eq!(release_word(&node).as_deref(), Some("1.2.0"));
    assert!(node.status.unwrap().csi.is_empty());
}

#[test]
fn a_report_on_a_node_that_does_not_exist_creates_none() {
    let document = manifest("status: {release: 1.0.0}");
    assert_eq!(plan(&document, None, Part::Status), Err(Rejection::NotFound));
}

#[test]
fn a_given_uid_or_resource_version_must_match() {
    let node = stored("spec: {desiredRole: worker}");
    let document = |metadata: &str| {
        yaml(&format!(
            "apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{name: n1, {metadata}}}\n\
             spec: {{desiredRole: worker, availability: drain}}"
        ))
    };
    for metadata in ["resourceVersion: '16'", "uid: other"] {
        let outcome = plan(&document(metadata), Some(&node), Part::Spec);
        assert!(
            matches!(outcome, Err(Rejection::Conflict(_))),
            "{metadata}: {outcome:?}"
        );
        let outcome = plan(&document(metadata), None, Part::Spec);
        assert!(
            matches!(outcome, Err(Rejection::Conflict(_))),
            "{metadata}: {outcome:?}"
        );
    }
    written(plan(
        &document(&format!("resourceVersion: '17', uid: {UID}")),
        Some(&node),
        Part::Spec,
    ));
}

#[test]
fn what_get_prints_applies_again_without_a_change() {
    let mut node = stored("spec: {desiredRole: manager, availability: drain}");
    node.status
        .as_mut()
        .unwrap()
        .conditions
        .push(crate::proto::Condition {
            r#type: "RoleChangeBlocked".to_owned(),
            ..Default::default()
        });
    let printed = text::to_yaml(&to_document(&node, Revision(17), true, Some(MemberId(0x1f))));
    assert_eq!(
        plan(&yaml(&printed), Some(&node), Part::Spec),
        Ok(Step::Nothing),
        "{printed}"
    );
    assert_eq!(
        plan(&yaml(&printed), Some(&node), Part::Status),
        Ok(Step::Nothing),
        "{printed}"
    );
}

#[test]
fn a_malformed_stored_value_is_not_changed_in_part() {
    let stored = StoredValue {
        value: &[0xff, 0xff],
        mod_revision: Revision(17),
    };
    let rejection = NODES.plan(
        &manifest("spec: {desiredRole: worker}"),
        Some(stored),
        &request(Part::Spec),
    );
    assert!(matches!(rejection, Err(Rejection::Malformed(_))), "{rejection:?}");
}

#[test]
fn only_a_write_of_the_same_part_or_another_identity_is_a_conflict() {
    let node = stored("spec: {desiredRole: worker}");
    let same = |change: &dyn Fn(&mut Node), part: Part| {
        let mut after = node.clone();
        change(&mut after);
        NODES.same_part("n1", &node.encode_to_vec(), &after.encode_to_vec(), part)
    };
    let reported = |node: &mut Node| node.status.as_mut().unwrap().controller = true;
    let drained = |node: &mut Node| node.spec.as_mut().unwrap().set_availability(Availability::Drain);
    let observed = |node: &mut Node| node.status.as_mut().unwrap().set_role(Role::Manager);
    let replaced = |node: &mut Node| node.metadata_mut().uid = "other".to_owned();
    assert!(same(&reported, Part::Spec) && !same(&reported, Part::Status));
    assert!(!same(&drained, Part::Spec) && same(&drained, Part::Status));
    assert!(same(&observed, Part::Spec) && same(&observed, Part::Status));
    assert!(!same(&replaced, Part::Spec) && !same(&replaced, Part::Status));
}

#[test]
fn words_of_a_later_release_are_shown_and_no_fault_of_the_reader() {
    let mut node = stored("spec: {desiredRole: worker}");
    node.spec.as_mut().unwrap().desired_role = 9;
    assert_eq!(
        to_document(&node, Revision(1), false, None)["spec"]["desiredRole"],
        "unknown (9)"
    );
}

#[test]
fn a_negative_release_is_malformed() {
    let mut node = stored("spec: {desiredRole: worker}");
    node.status.as_mut().unwrap().release = Some(crate::proto::version::Release {
        major: -1,
        minor: 0,
        patch: 0,
    });
    let error = decode::<Node>("n1", &node.encode_to_vec()).unwrap_err();
    assert!(error.to_string().starts_with("status.release: "), "{error}");
}

#[test]
fn the_session_of_an_earlier_node_of_the_same_name_makes_no_node_ready() {
    let session = NodeSession {
        node_uid: UID.to_owned(),
        session_id: "s".to_owned(),
        ..NodeSession::default()
    };
    let alive = session.encode_to_vec();
    assert!(makes_ready(&alive, UID));
    assert!(!makes_ready(&alive, "another"));
    assert!(makes_ready(&[0xff], UID), "it may be this one's");
}
