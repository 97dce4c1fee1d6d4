//! The secrets of a volume: which calls get them.

use serde_json::{Value, json};

use crate::proto::VolumeSecret;
use crate::proto::volume_secret::Call;
use crate::store::keys::Name;
use crate::store::object::document::{given, present};
use crate::store::object::fields::Fields;
use crate::store::object::words::{did_you_mean, word_of_number};

const CALLS: &[(&str, Call)] = &[
    ("create", Call::Create),
    ("delete", Call::Delete),
    ("publish", Call::Publish),
    ("unpublish", Call::Unpublish),
    ("expand", Call::Expand),
    ("nodeStage", Call::NodeStage),
    ("nodePublish", Call::NodePublish),
    ("nodeExpand", Call::NodeExpand),
];

/// Whether this call gets the secret.
pub fn gets(entry: &VolumeSecret, call: Call) -> bool {
    entry.calls.is_empty() || entry.calls.contains(&call.into())
}

/// Whether any call of a node gets the secret.
pub fn is_for_node(entry: &VolumeSecret) -> bool {
    let mut calls = [Call::NodeStage, Call::NodePublish, Call::NodeExpand].into_iter();
    calls.any(|call| gets(entry, call))
}

pub(super) fn read(spec: &mut Fields<'_, '_>) -> Option<Vec<VolumeSecret>> {
    let mut before: Vec<VolumeSecret> = Vec::new();
    spec.objects("secrets", |entry| {
        let key = entry.string("key").unwrap_or_default().to_owned();
        let secret = entry.parsed("secret", str::parse::<Name>);
        let calls = entry.distinct("calls", call_of);
        for name in ["key", "secret"] {
            entry.require(name);
        }
        if key.is_empty() && entry.value("key").is_some_and(Value::is_string) {
            entry.fault("key", "must not be empty");
        }
        if entry.value("calls").is_some_and(|calls| *calls == json!([])) {
            entry.fault("calls", "names no call: leave it out for every call");
        }
        let read = VolumeSecret {
            key,
            secret: secret.map(|name| name.to_string()).unwrap_or_default(),
            calls: calls.into_iter().flatten().map(i32::from).collect(),
        };
        if before
            .iter()
            .any(|other| other.key == read.key && share_a_call(other, &read))
        {
            entry.fault("key", format!("{} occurs twice", read.key));
        }
        before.push(read.clone());
        read
    })
}

/// Whether some call gets both.
fn share_a_call(one: &VolumeSecret, other: &VolumeSecret) -> bool {
    CALLS
        .iter()
        .any(|(_, call)| gets(one, *call) && gets(other, *call))
}

fn call_of(text: &str) -> Result<Call, String> {
    let found = CALLS.iter().find(|(word, _)| *word == text);
    found.map(|(_, call)| *call).ok_or_else(|| {
        let words: Vec<&str> = CALLS.iter().map(|(word, _)| *word).collect();
        let meant = did_you_mean(text, words.iter().copied());
        format!("{text:?} is not one of {}{meant}", words.join(", "))
    })
}

/// The document of an entry.
pub(super) fn document(entry: &VolumeSecret) -> Value {
    let calls = entry.calls.iter();
    let calls: Vec<String> = calls.map(|call| word_of_number(CALLS, *call)).collect();
    present(json!({"key": entry.key, "secret": entry.secret, "calls": given(&calls)}))
}
