//! The Certificate kind for commands: what nodes requested, and what they got. A certificate is called by the uid of its node, as
//! in its key.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Kind, Shown, Words};
use crate::cli::objects::view::Item;
use crate::cli::output::{Description, or_none};
use crate::proto::NodeCertificate;
use crate::proto::node_certificate::State;
use crate::store::keys::KeySpace;
use crate::store::object::document::{given, present, with_header};
use crate::store::object::node::role_word;
use crate::store::object::words::word_of_number;
use crate::store::object::{Malformed, message, time};

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

fn describe(item: &Item<'_>, description: &mut Description) {
    match read(item) {
        Ok(record) => {
            let since = requested(&record).map(|at| time::since(at, item.now));
            let until = time::document(record.not_after.as_ref()).unwrap_or_default();
            description
                .field("Node", or_none(&record.node))
                .field("State", word_of_number(STATES, record.state))
                .field("Role", or_none(&role_word(record.role)))
                .field("Valid Until", or_none(&until))
                .field("Requested", or_none(&since.unwrap_or_default()));
            if !record.reason.is_empty() {
                description.field("Refused", format!("{}: {}", record.reason, record.message));
            }
        }
        Err(malformed) => description.malformed(item, &malformed),
    }
    description.field("Resource Version", item.revision().to_string());
}
