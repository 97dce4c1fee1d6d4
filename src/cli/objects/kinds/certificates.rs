//! The Certificate kind for commands: what nodes requested, and what they got. A certificate is called by the uid of its node, as
//! in its key.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Kind, Shown, Words};
use crate::cli::objects::view::{Item, View};
use crate::cli::output::{Description, NONE, or_none};
use crate::proto::node_certificate::State;
use crate::proto::{Node, NodeCertificate, Role};
use crate::store::keys::KeySpace;
use crate::store::object::document::{given, present, with_header};
use crate::store::object::node::{is_accepted, role_word};
use crate::store::object::words::word_of_number;
use crate::store::object::{Malformed, Object, message, time};

const KIND: &str = "Certificate";

/// The kind.
pub static CERTIFICATES: Kind = Kind::new(
    Words::new(KIND, "certificate", "certificates", &["cert"]),
    KeySpace::CERTIFICATES,
    &["NAME", "NODE", "STATE", "ROLE", "VALID UNTIL", "REQUESTED"],
    &["MESSAGE"],
    show,
    describe,
    Err("it goes with its node: quorate delete node"),
);

const STATES: &[(&str, State)] = &[
    ("pending", State::Pending),
    ("issued", State::Issued),
    ("failed", State::Failed),
    ("rotate", State::Rotate),
];

fn read(item: &Item<'_>) -> Result<NodeCertificate, Malformed> {
    message(KIND, &item.stored.value)
}

fn requested(record: &NodeCertificate) -> Option<Timestamp> {
    time::from_proto(record.request.as_ref()?.at.as_ref())
}

fn show(item: &Item<'_>) -> Result<Shown, Malformed> {
    let record = read(item)?;
    let cells = vec![
        record.node.clone(),
        word_of_number(STATES, record.state),
        role_word(record.role),
        time::document(record.not_after.as_ref()).unwrap_or_default(),
        requested(&record).map_or_else(String::new, |at| time::age(at, item.now)),
        record.message.clone(),
    ];
    let document = document(item, &record);
    Ok(Shown::new(BTreeMap::new(), cells, document))
}

/// The chain is public and shown; the request is for the signer alone.
fn document(item: &Item<'_>, record: &NodeCertificate) -> Value {
    let metadata = json!({"name": item.name, "resourceVersion": item.revision().to_string()});
    let status = present(json!({
        "state": given(&word_of_number(STATES, record.state)),
        "role": given(&role_word(record.role)),
        "reason": given(&record.reason),
        "message": given(&record.message),
        "requestedAt": requested(record).map(time::rfc3339),
        "notAfter": time::document(record.not_after.as_ref()),
        "latestNotAfter": time::document(record.latest_not_after.as_ref()),
        "chain": given(&record.chain),
    }));
    with_header(
        KIND,
        metadata,
        json!({"spec": {"node": record.node}, "status": status}),
    )
}

fn valid_until(record: &NodeCertificate, now: Timestamp) -> String {
    let end = time::from_proto(record.not_after.as_ref());
    end.map_or_else(|| NONE.to_owned(), |end| time::until(end, now))
}

fn requested_since(record: &NodeCertificate, now: Timestamp) -> String {
    requested(record).map_or_else(|| NONE.to_owned(), |at| time::since(at, now))
}

/// What the last request of a node waits for, and who does something about it; `None` where nothing is outstanding.
fn outstanding(record: &NodeCertificate, node: &Node) -> Option<String> {
    let spec = node.spec.unwrap_or_default();
    let role = node
        .status
        .as_ref()
        .map_or(Role::Unspecified, |status| status.role());
    match record.state() {
        State::Pending if !is_accepted(&spec) => Some(format!(
            "an operator has yet to accept the node: quorate accept {}",
            node.name()
        )),
        State::Pending if role == Role::Unspecified => Some("the node has no observed role yet".to_owned()),
        State::Pending => Some(
            "the leader has yet to answer the request; its log and its Events (CertificatesWait) say what requests \
             wait for"
                .to_owned(),
        ),
        State::Rotate => Some(
            "an operator asks for another certificate, which the agent of the node has yet to request".to_owned(),
        ),
        State::Failed | State::Issued | State::Unspecified => None,
    }
}

/// The certificate of a node, in the description of the node.
pub(super) fn describe_of(description: &mut Description, view: &View, node: &Node, now: Timestamp) {
    let Some(stored) = view.get(&view.keys.certificate(node.uid())) else {
        description.field("Certificate", format!("{NONE} (the node never requested one)"));
        return;
    };
    description.field("Certificate", "");
    if let Some(record) = read_to_describe(description, &stored.value) {
        description.nested("Role", or_none(&role_word(record.role)));
        describe_record(description, &record, node, now);
    }
}

/// The certificate of the node's member of etcd, where one was requested.
pub(super) fn describe_of_etcd(description: &mut Description, view: &View, node: &Node, now: Timestamp) {
    if let Some(stored) = view.get(&view.keys.etcd_certificate(node.uid())) {
        description.field("etcd Certificate", "");
        if let Some(record) = read_to_describe(description, &stored.value) {
            describe_record(description, &record, node, now);
        }
    }
}

/// The record with its state in the description, unless it cannot be read.
fn read_to_describe(description: &mut Description, stored: &[u8]) -> Option<NodeCertificate> {
    match message::<NodeCertificate>(KIND, stored) {
        Ok(record) => {
            description.nested("State", word_of_number(STATES, record.state));
            Some(record)
        }
        Err(malformed) => {
            description.nested("Malformed", malformed.to_string());
            None
        }
    }
}

fn describe_record(description: &mut Description, record: &NodeCertificate, node: &Node, now: Timestamp) {
    description
        .nested("Valid Until", valid_until(record, now))
        .nested("Requested", requested_since(record, now));
    if let Some(what) = outstanding(record, node) {
        description.nested("Pending", what);
    }
    if record.state() == State::Failed {
        description.nested("Refused", format!("{}: {}", record.reason, record.message));
    }
}

fn describe(item: &Item<'_>, description: &mut Description) {
    match read(item) {
        Ok(record) => {
            description
                .field("Node", or_none(&record.node))
                .field("State", word_of_number(STATES, record.state))
                .field("Role", or_none(&role_word(record.role)))
                .field("Valid Until", valid_until(&record, item.now))
                .field("Requested", requested_since(&record, item.now));
            if !record.reason.is_empty() {
                description.field("Refused", format!("{}: {}", record.reason, record.message));
            }
        }
        Err(malformed) => description.malformed(item, &malformed),
    }
    description.field("Resource Version", item.revision().to_string());
}
