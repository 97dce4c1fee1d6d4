//! Messages that hold secret values: without a derived `Debug` they cannot be printed. build.rs lists them.

use std::collections::{BTreeMap, BTreeSet};

/// The fields of each message of this text (proto3), each as its type and its name.
fn messages(proto: &str) -> BTreeMap<String, Vec<(String, String)>> {
    let mut messages: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    // The declarations around the line; empty for one that is no message.
    let mut within: Vec<String> = Vec::new();
    for line in proto.lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        if line.ends_with('{') {
            let name = line
                .strip_prefix("message ")
                .map(|rest| rest.trim_end_matches('{'));
            within.push(name.unwrap_or_default().trim().to_owned());
        } else if line.starts_with('}') {
            within.pop();
        } else if let (Some((field, _)), Some(message)) = (
            line.split_once('='),
            within.iter().rev().find(|name| !name.is_empty()),
        ) && let Some((kind, name)) = field.trim().rsplit_once(' ')
        {
            let fields = messages.entry(message.clone()).or_default();
            fields.push((kind.replace(' ', ""), name.to_owned()));
        }
    }
    messages
}

/// Whether a field is a secret value itself: one of the data of a Secret, or what a caller shows to be let in.
fn is_secret(kind: &str, name: &str) -> bool {
    match kind {
        "map<string,bytes>" => name == "data" || name.ends_with("secrets"),
        _ => matches!(name, "token" | "password" | "private_key"),
    }
}

/// The messages that hold secret values, or messages that do.
fn bearers(protos: &[String]) -> BTreeSet<String> {
    let messages: BTreeMap<_, _> = protos.iter().flat_map(|proto| messages(proto)).collect();
    let mut bearers = BTreeSet::new();
    loop {
        let holds = |fields: &Vec<(String, String)>| {
            fields.iter().any(|(kind, name)| {
                let kind = kind.trim_start_matches("repeated").trim_start_matches("optional");
                is_secret(kind, name) || bearers.contains(kind)
            })
        };
        let found = messages.iter().filter(|(_, fields)| holds(fields));
        let found: BTreeSet<String> = found.map(|(name, _)| name.clone()).collect();
        if found == bearers {
            return bearers;
        }
        bearers = found;
    }
}

/// What the list in this text of build.rs leaves out.
pub fn printable(protos: &[String], build: &str) -> Vec<String> {
    let is_listed = |message: &String| build.contains(&format!("\"quorate.v1.{message}\""));
    let printable = bearers(protos).into_iter().filter(|message| !is_listed(message));
    printable
        .map(|message| format!("{message} holds a secret value, and {{:?}} prints it"))
        .collect()
}

#[test]
fn a_message_that_holds_a_secret_value_is_found_however_deep_that_lies() {
    let proto = "message Data { // map<string, bytes> a = 1;\n  map<string, bytes> data = 1;\n}\n\
                 message View {\n  enum Kind {\n    NONE = 0;\n  }\n  repeated Data all = 2;\n}\n\
                 message Response {\n  View view = 1;\n}\n\
                 message Join {\n  string token = 1; // a secret\n}\n\
                 message Tokens {\n  bytes token_sha256 = 1;\n  map<string, string> labels = 2;\n}\n";
    let found = bearers(&[proto.to_owned()]);
    assert_eq!(Vec::from_iter(found), ["Data", "Join", "Response", "View"]);
    let build = "[\"quorate.v1.Data\", \"quorate.v1.Response\", \"quorate.v1.View\"]";
    assert_eq!(
        printable(&[proto.to_owned()], build),
        ["Join holds a secret value, and {:?} prints it"]
    );
}
