use prost::Message;
use serde_json::{Value, json};

use super::super::change::{Of, Part, Request, Step, StoredValue};
use super::super::{decode, text};
use super::*;
use crate::etcd::Revision;
use crate::proto::volume_secret::Call;

const FULL: &str = "
apiVersion: quorate.dev/v1
kind: Volume
metadata: {name: data, labels: {tier: db}}
spec:
  driver: {name: hostpath.csi.k8s.io, options: {tier: fast}}
  accessMode: {scope: singleNode, sharing: none, mount: {fsType: ext4, mountFlags: [noatime]}}
  capacity: {required: 1Gi, limit: 2Gi}
  secrets: [{key: token, secret: backend-token}]
  topology: {requisite: [{zone: a}, {zone: b}], preferred: [{zone: b}]}
  group: fast
  availability: pause
";

fn plan(document: &Value, stored: Option<&Volume>) -> Result<Step, Rejection> {
    let request = Request {
        part: Part::Spec,
        now: jiff::Timestamp::UNIX_EPOCH,
        uid: "u".to_owned(),
    };
    let value = stored.map(Message::encode_to_vec);
    let stored = value.as_deref().map(|value| StoredValue {
        value,
        mod_revision: Revision(7),
    });
    Of::<Volume>::CODEC.plan(document, stored, &request)
}

fn full() -> Value {
    text::parse(FULL).unwrap().remove(0)
}

fn created(document: &Value) -> Volume {
    match plan(document, None) {
        Ok(Step::Create(value)) => decode("data", &value).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_get_prints_of_a_volume_is_what_was_applied_and_applies_unchanged() {
    let mut volume = created(&full());
    volume.status = Some(VolumeStatus {
        volume_id: "vol-1".to_owned(),
        capacity_bytes: 1 << 30,
        context: [("a".to_owned(), "b".to_owned())].into(),
        topology: vec![Topology {
            segments: [("zone".to_owned(), "a".to_owned())].into(),
        }],
        ..VolumeStatus::default()
    });
    let mut shown = to_document(&volume, Revision(7));
    assert_eq!(shown["spec"], full()["spec"]);
    assert_eq!(shown["status"]["volumeID"], "vol-1");
    shown["metadata"]["resourceVersion"] = json!("7");
    assert_eq!(plan(&shown, Some(&volume)), Ok(Step::Nothing));
}

/// CSI: "all topologies in preferred list MUST also be present in the list of requisite topologies".
#[test]
fn a_new_volume_prefers_only_places_that_it_may_be_in() {
    let with = |requisite: Value, preferred: Value| {
        let mut document = full();
        document["spec"]["topology"] = json!({"requisite": requisite, "preferred": preferred});
        document
    };
    let required = json!([{"zone": "a"}, {"zone": "b"}]);
    let elsewhere = with(
        required.clone(),
        json!([{"zone": "b"}, {"zone": "c"}, {"zone": "a", "rack": "1"}]),
    );
    let Err(Rejection::Faulty(faults)) = plan(&elsewhere, None) else {
        panic!("it is not refused");
    };
    let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
    let why = "is none of the places in requisite: add it there, or leave it out here";
    assert_eq!(
        said,
        [
            format!("spec.topology.preferred[1]: zone=c {why}"),
            format!("spec.topology.preferred[2]: rack=1,zone=a {why}"),
        ]
    );
    created(&with(required, json!([{"zone": "a"}])));
    created(&with(json!([]), json!([{"zone": "c"}])));
    // One that an earlier release has let through is applied again as it is.
    let mut before = created(&full());
    let spec = before.spec.as_mut().unwrap();
    spec.topology.as_mut().unwrap().requisite.pop();
    let document = with(json!([{"zone": "a"}]), json!([{"zone": "b"}]));
    assert_eq!(plan(&document, Some(&before)), Ok(Step::Nothing));
}

#[test]
fn a_key_has_one_secret_a_call_and_calls_are_named_by_their_words() {
    let with = |secrets: Value| {
        let mut document = full();
        document["spec"]["secrets"] = secrets;
        document
    };
    let shared = json!([
        {"key": "token", "secret": "admin", "calls": ["create", "delete", "nodeStage"]},
        {"key": "token", "secret": "attach", "calls": ["publish", "unpublish"]},
        {"key": "ca", "secret": "attach"},
    ]);
    let volume = created(&with(shared.clone()));
    let entries = &volume.spec.as_ref().unwrap().secrets;
    let of = |call: Call| -> Vec<&str> {
        let got = entries.iter().filter(|entry| gets(entry, call));
        got.map(|entry| entry.secret.as_str()).collect()
    };
    assert_eq!(of(Call::Delete), ["admin", "attach"]);
    assert_eq!(of(Call::Publish), ["attach", "attach"]);
    assert_eq!(of(Call::Expand), ["attach"]);
    let for_node: Vec<bool> = entries.iter().map(is_for_node).collect();
    assert_eq!(for_node, [true, false, true]);
    assert_eq!(to_document(&volume, Revision(7))["spec"]["secrets"], shared);
    let faulty = with(json!([
        {"key": "a", "secret": "s", "calls": ["create"]},
        {"key": "a", "secret": "t", "calls": ["delete", "create"]},
        {"key": "b", "secret": "s", "calls": ["nodeStaged"]},
        {"key": "c", "secret": "s", "calls": []},
    ]));
    let error = plan(&faulty, None).unwrap_err().to_string();
    for said in [
        "spec.secrets[1].key: a occurs twice",
        "spec.secrets[2].calls[0]: \"nodeStaged\" is not one of create, delete,",
        "(did you mean nodeStage?)",
        "spec.secrets[3].calls: names no call",
    ] {
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn every_fault_of_a_volume_is_reported_at_once_with_its_path() {
    let document = json!({
        "apiVersion": "quorate.dev/v1", "kind": "Volume", "metadata": {"name": "data"},
        "spec": {
            "driver": {"options": {"a": 1}},
            "accessMode": {"scope": "multiNode", "sharing": "none", "mount": {}, "block": {}},
            "capacity": {"required": "2Gi", "limit": "1Gi"},
            "secrets": [{"key": "a", "secret": "S"}, {"key": "a"}],
            "topology": {"requisite": ["a"]},
            "availability": "on",
        },
    });
    let Err(Rejection::Faulty(faults)) = plan(&document, None) else {
        panic!("it is not refused");
    };
    let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "spec.driver.name",
            "spec.driver.options.a",
            "spec.accessMode.sharing",
            "spec.accessMode.block",
            "spec.capacity.limit",
            "spec.secrets[0].secret",
            "spec.secrets[1].secret",
            "spec.secrets[1].key",
            "spec.topology.requisite[0]",
            "spec.availability",
        ],
        "{faults:?}"
    );
    let document = json!({
        "apiVersion": "quorate.dev/v1", "kind": "Volume", "metadata": {"name": "data"},
        "spec": {"accessMode": {}},
    });
    let error = plan(&document, None).unwrap_err().to_string();
    for path in [
        "spec.driver: missing",
        "scope: missing",
        "sharing: missing",
        "mount: missing",
    ] {
        assert!(error.contains(path), "{error}");
    }
}

#[test]
fn what_may_not_change_is_refused_with_every_path() {
    let volume = created(&full());
    let mut document = full();
    document["spec"] = json!({
        "driver": {"name": "other", "options": {}},
        "accessMode": {"scope": "multiNode", "sharing": "all", "block": {}},
        "capacity": {"required": "512Mi", "limit": "1Gi"},
    });
    let Err(Rejection::Refused { rule, message }) = plan(&document, Some(&volume)) else {
        panic!("it is not refused");
    };
    assert_eq!(rule, "Immutable");
    for path in [
        "spec.driver.name",
        "spec.driver.options",
        "spec.accessMode.scope",
        "spec.accessMode.sharing",
        "spec.accessMode.mount",
        "spec.secrets",
        "spec.topology",
        "spec.group",
        "spec.capacity.required: less than 1Gi",
        "spec.capacity.limit: less than 2Gi",
        "spec.availability: missing",
    ] {
        assert!(message.contains(path), "{path} in {message}");
    }
}

#[test]
fn labels_availability_and_a_larger_capacity_may_change() {
    let volume = created(&full());
    let mut document = full();
    document["metadata"]["labels"] = json!({});
    document["spec"]["availability"] = json!("active");
    document["spec"]["capacity"] = json!({"required": "3Gi"});
    let Ok(Step::Configure(value)) = plan(&document, Some(&volume)) else {
        panic!("it is refused");
    };
    let after: Volume = decode("data", &value).unwrap();
    assert_eq!(required_bytes(&after), 3 << 30);
    assert_eq!(availability_word(&after), "active");
    document["spec"].as_object_mut().unwrap().remove("capacity");
    let error = plan(&document, Some(&after)).unwrap_err().to_string();
    assert!(error.starts_with("spec.capacity: missing"), "{error}");
}

/// A plugin may refuse to make it larger, for good.
#[test]
fn a_larger_capacity_is_taken_back_down_to_what_the_volume_has() {
    let mut volume = created(&full());
    let spec = volume.spec.get_or_insert_default();
    spec.capacity = Some(Capacity {
        required: 100 << 30,
        limit: 0,
    });
    let to = |volume: &Volume, required: &str, limit: &str| {
        let mut document = full();
        document["spec"]["capacity"] = json!({"required": required, "limit": limit});
        match plan(&document, Some(volume)) {
            Ok(Step::Configure(value)) => Ok(decode::<Volume>("data", &value).unwrap()),
            Ok(other) => panic!("{other:?}"),
            Err(refused) => Err(refused.to_string()),
        }
    };
    assert!(to(&volume, "1Gi", "2Gi").is_err(), "it may be made so");
    volume.status = Some(VolumeStatus {
        volume_id: "vol-1".to_owned(),
        // The plugin has rounded it up.
        capacity_bytes: 2 << 30,
        fulfilled_bytes: 1 << 30,
        ..VolumeStatus::default()
    });
    assert_eq!(required_bytes(&to(&volume, "1Gi", "2Gi").unwrap()), 1 << 30);
    let refused = to(&volume, "512Mi", "1Gi").unwrap_err();
    for path in [
        "spec.capacity.required: less than 1Gi",
        "spec.capacity.limit: less than 2Gi",
    ] {
        assert!(refused.contains(path), "{refused}");
    }
}

#[test]
fn a_volume_refers_to_each_of_its_secrets_once() {
    let mut document = full();
    document["spec"]["secrets"] = json!([{"key": "a", "secret": "s"}, {"key": "b", "secret": "s"}]);
    let names: Vec<String> = created(&document)
        .references()
        .into_iter()
        .map(|reference| format!("{} {}", reference.kind, reference.name))
        .collect();
    assert_eq!(names, ["Secret s"]);
}

#[test]
fn a_stored_volume_without_a_plugin_or_a_uid_is_malformed() {
    let mut volume = created(&full());
    volume.spec.get_or_insert_default().driver = None;
    let error = decode::<Volume>("data", &volume.encode_to_vec()).unwrap_err();
    assert!(error.to_string().starts_with("spec.driver.name"), "{error}");
    let mut volume = created(&full());
    volume.metadata_mut().uid.clear();
    assert!(decode::<Volume>("data", &volume.encode_to_vec()).is_err());
}

#[test]
fn a_volume_that_its_plugin_did_not_create_stays_whatever_its_policy_says() {
    let mut volume = Volume::default();
    assert!(!is_retained(&volume));
    volume
        .spec
        .get_or_insert_default()
        .set_reclaim_policy(ReclaimPolicy::Delete);
    volume.status.get_or_insert_default().r#static = true;
    assert!(is_retained(&volume));
}
