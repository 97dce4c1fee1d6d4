//! A member in full: as a document and in words.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::KIND;
use super::seen::{Seen, bytes, known};
use crate::cli::output::{Description, NONE, or_none};
use crate::etcd::Revision;
use crate::roles::plan::cause_words;
use crate::store::object::{condition, time, with_header};

pub(super) fn document(seen: &Seen<'_>, revision: Revision) -> Value {
    let mut metadata = Map::from_iter([("name".to_owned(), json!(seen.id.to_string()))]);
    if revision != Revision::ABSENT {
        metadata.insert("resourceVersion".to_owned(), json!(revision.to_string()));
    }
    let mut status = Map::new();
    let mut set = |name: &str, value: Value| _ = status.insert(name.to_owned(), value);
    if let Some(record) = &seen.record {
        set("node", json!(record.node));
        set("nodeUID", json!(record.node_uid));
        if let Some(joined) = time::from_proto(record.joined_at.as_ref()) {
            set("joinedAt", json!(time::rfc3339(joined)));
        }
        if let Some(removal) = &record.removal {
            set("removal", json!(cause_words(removal.cause())));
        }
    }
    set("listed", json!(seen.listed.is_some()));
    if let Some(listed) = seen.listed {
        set("etcdName", json!(listed.name));
        set("role", json!(seen.role()));
        set("peerURLs", json!(listed.peer_urls));
        set("clientURLs", json!(listed.client_urls));
    }
    set("leader", json!(seen.leads));
    set(
        "healthy",
        json!(seen.survey.is_some_and(|survey| survey.is_healthy())),
    );
    if let Some(illness) = seen.illness() {
        set("message", json!(illness));
    }
    if let Some(answered) = seen.status() {
        set("version", json!(answered.version));
        set("dbSizeBytes", json!(answered.db_size));
        set("dbInUseBytes", json!(answered.db_in_use));
        set("raftTerm", json!(answered.raft_term));
    }
    if let Some(lag) = seen.lag {
        set("lag", json!(lag));
    }
    if !seen.alarms.is_empty() {
        set("alarms", json!(seen.alarms));
    }
    let conditions = seen.conditions();
    if !conditions.is_empty() {
        set("conditions", condition::documents(&conditions));
    }
    let parts = Map::from_iter([("status".to_owned(), Value::Object(status))]);
    with_header(KIND, metadata, parts)
}

pub(super) fn describe(description: &mut Description, seen: &Seen<'_>, now: Timestamp) {
    let urls = |urls: &[String]| or_none(&urls.join(", ")).to_owned();
    match &seen.record {
        Some(record) => {
            description.field(
                0,
                "Node",
                format!("{} (uid {})", record.node, or_none(&record.node_uid)),
            );
            if let Some(joined) = time::from_proto(record.joined_at.as_ref()) {
                description.field(0, "Joined", time::since(joined, now));
            }
        }
        None => _ = description.field(0, "Node", NONE),
    }
    match seen.listed {
        Some(listed) => {
            description
                .field(0, "Etcd Name", or_none(&listed.name))
                .field(0, "Role", seen.role())
                .field(0, "Peer URLs", urls(&listed.peer_urls))
                .field(0, "Client URLs", urls(&listed.client_urls));
        }
        None => _ = description.field(0, "Role", "none: it is not in etcd's member list"),
    }
    let health = match seen.illness() {
        Some(illness) => format!("{}: {illness}", seen.health()),
        None => seen.health().to_owned(),
    };
    description.field(0, "Health", health);
    if let Some(status) = seen.status() {
        let leader = match (seen.leads, status.raft_leader) {
            (true, _) => "yes".to_owned(),
            (false, Some(leader)) => format!("no, it follows {leader}"),
            (false, None) => "no, and it sees none".to_owned(),
        };
        description
            .field(0, "Raft Leader", leader)
            .field(0, "Raft Term", status.raft_term.to_string())
            .field(
                0,
                "Applied",
                format!("{} of {} known to be committed", status.applied, status.committed),
            )
            .field(0, "Lag", known(seen.lag))
            .field(0, "Version", status.version.as_str())
            .field(
                0,
                "Database",
                format!("{}, {} in use", bytes(status.db_size), bytes(status.db_in_use)),
            );
    }
    description.field(0, "Alarms", or_none(&seen.alarms.join(", ")));
    if let Some(removal) = seen.record.as_ref().and_then(|record| record.removal.as_ref()) {
        let since = time::from_proto(removal.decided_at.as_ref());
        let since = since.map_or_else(String::new, |at| format!(", since {}", time::since(at, now)));
        description.field(
            0,
            "Removal",
            format!(
                "decided on in term {}, {}{since}",
                removal.term,
                cause_words(removal.cause())
            ),
        );
    }
    description.conditions(&seen.conditions(), now);
}
