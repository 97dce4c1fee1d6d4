//! A member in full: as a document and in words.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::KIND;
use super::seen::{Seen, known};
use crate::cli::output::{Description, NONE, bytes, or_none};
use crate::etcd::Revision;
use crate::etcd::members::Status;
use crate::roles::membership::Member;
use crate::roles::plan::cause_words;
use crate::store::object::document::{given, present, with_header};
use crate::store::object::{condition, time};

pub(super) fn document(seen: &Seen<'_>, revision: Revision) -> Value {
    let record = seen.record.as_ref();
    let removal = record.and_then(|record| record.removal.as_ref());
    let listed = seen.listed();
    let answered = seen.status();
    let status = json!({
        "node": record.map(|record| &record.node),
        "nodeUID": record.map(|record| &record.node_uid),
        "joinedAt": record.and_then(|record| time::document(record.joined_at.as_ref())),
        "removal": removal.map(|removal| cause_words(removal.cause())),
        "listed": listed.is_some(),
        "etcdName": listed.map(|listed| &listed.name),
        "role": listed.map(|_| seen.role()),
        "peerURLs": listed.map(|listed| &listed.peer_urls),
        "clientURLs": listed.map(|listed| &listed.client_urls),
        "leader": seen.leads,
        "healthy": seen.member.is_some_and(Member::is_healthy),
        "message": seen.illness(),
        "version": answered.map(|status| &status.version),
        "dbSizeBytes": answered.map(|status| status.db_size),
        "dbInUseBytes": answered.map(|status| status.db_in_use),
        "raftTerm": answered.map(|status| status.raft_term),
        "lag": seen.lag,
        "alarms": given(&seen.alarms),
        "conditions": condition::documents(&seen.conditions()),
    });
    let metadata = json!({
        "name": seen.id.to_string(),
        "resourceVersion": (revision != Revision::ABSENT).then(|| revision.to_string()),
    });
    with_header(KIND, present(metadata), json!({"status": present(status)}))
}

pub(super) fn describe(description: &mut Description, seen: &Seen<'_>, now: Timestamp) {
    describe_node(description, seen, now);
    describe_listing(description, seen);
    let health = match seen.illness() {
        Some(illness) => format!("{}: {illness}", seen.health()),
        None => seen.health().to_owned(),
    };
    description.field("Health", health);
    if let Some(status) = seen.status() {
        describe_status(description, seen, status);
    }
    description.field("Alarms", or_none(&seen.alarms.join(", ")));
    if let Some(removal) = seen.record.as_ref().and_then(|record| record.removal.as_ref()) {
        let since = time::from_proto(removal.decided_at.as_ref());
        let since = since.map_or_else(String::new, |at| format!(", since {}", time::since(at, now)));
        let (term, cause) = (removal.term, cause_words(removal.cause()));
        description.field("Removal", format!("decided in term {term}: {cause}{since}"));
    }
    description.conditions(&seen.conditions(), now);
}

fn describe_node(description: &mut Description, seen: &Seen<'_>, now: Timestamp) {
    let Some(record) = &seen.record else {
        description.field("Node", NONE);
        return;
    };
    let uid = or_none(&record.node_uid);
    description.field("Node", format!("{} (uid {uid})", record.node));
    if let Some(joined) = time::from_proto(record.joined_at.as_ref()) {
        description.field("Joined", time::since(joined, now));
    }
}

fn describe_listing(description: &mut Description, seen: &Seen<'_>) {
    let Some(listed) = seen.listed() else {
        description.field("Role", "none: it is not in etcd's member list");
        return;
    };
    description
        .field("Etcd Name", or_none(&listed.name))
        .field("Role", seen.role())
        .field("Peer URLs", or_none(&listed.peer_urls.join(", ")))
        .field("Client URLs", or_none(&listed.client_urls.join(", ")));
}

fn describe_status(description: &mut Description, seen: &Seen<'_>, status: &Status) {
    let leader = match (seen.leads, status.raft_leader) {
        (Some(true), _) => "yes".to_owned(),
        (_, Some(leader)) => format!("no, it follows {leader}"),
        (_, None) => "no, and it sees none".to_owned(),
    };
    let applied = format!("{} of {} known to be committed", status.applied, status.committed);
    let database = format!("{}, {} in use", bytes(status.db_size), bytes(status.db_in_use));
    description
        .field("Raft Leader", leader)
        .field("Raft Term", status.raft_term.to_string())
        .field("Applied", applied)
        .field("Lag", known(seen.lag))
        .field("Version", status.version.as_str())
        .field("Database", database);
}
