//! Members of etcd, as the commands show them: etcd's own list, what each member says of itself, and the records that
//! tie them to nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Concerns, Kind, Shown, Words};
use crate::cli::objects::delete::Deletable;
use crate::cli::objects::describe;
use crate::cli::objects::view::View;
use crate::cli::output::{Column, Description, NONE, one_line, or_none, yes_no};
use crate::cli::roles::adopt;
use crate::etcd::members::{Listed, Status, Survey, most_committed, raft_leader};
use crate::etcd::{KeyRange, KeyValue, MemberId, Revision};
use crate::proto::condition::Status as ConditionStatus;
use crate::proto::{Condition, Member};
use crate::roles::plan::cause_words;
use crate::roles::reason::UNMANAGED_MEMBER;
use crate::store::object::change::Codec;
use crate::store::object::{Malformed, condition, malformed_document, member, time, with_header};
use crate::store::{Id, Keys, keys::RoleKey};

/// The kind.
pub struct Members;

const KIND: &str = "Member";

static WORDS: Words = Words {
    kind: KIND,
    singular: "member",
    plural: "members",
    short: &["mem"],
};

const COLUMNS: &[Column] = &[
    Column::new("NAME"),
    Column::new("ETCD NAME"),
    Column::new("NODE"),
    Column::new("ROLE"),
    Column::new("LEADER"),
    Column::new("HEALTH"),
    Column::new("VERSION"),
    Column::new("DB SIZE"),
    Column::new("LAG"),
    Column::new("ALARMS"),
    Column::wide("IN USE"),
    Column::wide("RAFT TERM"),
    Column::wide("PEER URLS"),
    Column::wide("CLIENT URLS"),
    Column::wide("JOINED"),
];

const UNKNOWN: &str = "<unknown>";

/// Everything that is known of one member.
struct Seen<'v> {
    id: MemberId,
    listed: Option<&'v Listed>,
    record: Option<Member>,
    survey: Option<&'v Survey>,
    leads: bool,
    /// Entries that it has yet to apply, of those that any member knows to be committed.
    lag: Option<u64>,
    alarms: Vec<&'v str>,
}

impl<'v> Seen<'v> {
    fn new(view: &'v View, id: MemberId, stored: &KeyValue) -> Result<Self, Malformed> {
        let record = match stored.mod_revision {
            Revision::ABSENT => None,
            _ => Some(member::decode_member(&stored.value)?),
        };
        let surveys = view.members().map_or(&[][..], |members| &members.surveys);
        let survey = surveys.iter().find(|survey| survey.id == id);
        let status = survey.and_then(|survey| survey.status.as_ref().ok());
        let all = surveys.iter().filter_map(|survey| survey.status.as_ref().ok());
        let mut alarms: Vec<&str> = all
            .flat_map(|status| &status.alarms)
            .filter(|alarm| alarm.member == id)
            .map(|alarm| alarm.kind.as_str())
            .collect();
        alarms.sort_unstable();
        alarms.dedup();
        Ok(Self {
            id,
            listed: view.members().and_then(|members| members.list.member(id)),
            record,
            survey,
            leads: raft_leader(surveys) == Some(id),
            lag: status.map(|status| most_committed(surveys).saturating_sub(status.applied)),
            alarms,
        })
    }

    fn status(&self) -> Option<&'v Status> {
        self.survey.and_then(|survey| survey.status.as_ref().ok())
    }

    fn role(&self) -> &'static str {
        match self.listed {
            Some(listed) if listed.learner => "learner",
            Some(_) => "voter",
            None => NONE,
        }
    }

    fn health(&self) -> &'static str {
        let decided = self
            .record
            .as_ref()
            .is_some_and(|record| record.removal.is_some());
        match (self.listed, self.survey) {
            (None, _) => "not listed",
            (Some(_), _) if decided => "removing",
            (Some(listed), _) if !listed.is_started() => "not started",
            (Some(_), Some(survey)) if survey.is_healthy() => "healthy",
            (Some(_), _) => "unhealthy",
        }
    }

    /// Why it is not healthy, as far as it was asked.
    fn illness(&self) -> Option<String> {
        let survey = self.survey?;
        survey
            .health
            .as_ref()
            .err()
            .map(|error| error.message().to_owned())
    }

    fn node(&self) -> &str {
        self.record.as_ref().map_or("", |record| &record.node)
    }

    fn conditions(&self) -> Vec<Condition> {
        let mut conditions = self
            .record
            .as_ref()
            .map_or_else(Vec::new, |record| record.conditions.clone());
        if self.record.is_none() {
            conditions.push(Condition {
                r#type: UNMANAGED_MEMBER.to_owned(),
                status: ConditionStatus::True.into(),
                reason: "NoRecord".to_owned(),
                message: "Quorate has no record of it and leaves it alone; quorate adopt makes one"
                    .to_owned(),
                ..Condition::default()
            });
        }
        conditions
    }
}

fn parse(keys: &Keys, key: &[u8]) -> Option<MemberId> {
    match keys.parse_role(key) {
        RoleKey::Member(id) => Some(id),
        _ => None,
    }
}

/// `20 KiB`, `1.5 MiB`: as much as is of interest.
fn bytes(size: u64) -> String {
    let mut unit = 0;
    let mut scaled = size;
    let mut rest = 0;
    while scaled >= 1024 && unit < 4 {
        (scaled, rest) = (scaled / 1024, scaled % 1024);
        unit += 1;
    }
    let unit_word = ["B", "KiB", "MiB", "GiB", "TiB"][unit];
    match (unit, scaled) {
        (1.., ..10) => format!("{scaled}.{} {unit_word}", rest * 10 / 1024),
        _ => format!("{scaled} {unit_word}"),
    }
}

fn known(value: Option<impl ToString>) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), |value| value.to_string())
}

impl Kind for Members {
    fn words(&self) -> &'static Words {
        &WORDS
    }

    fn ranges(&self, keys: &Keys, _id: Option<&Id>) -> Vec<KeyRange> {
        // All of them, also for one: how far it lags is seen beside the others.
        vec![keys.members()]
    }

    fn key(&self, keys: &Keys, id: &Id) -> Vec<u8> {
        // What is no id is the name of none, and member 0 does not exist.
        let id = u64::from_str_radix(id.name.as_str(), 16).unwrap_or(0);
        keys.member(MemberId(id))
    }

    fn name<'k>(&self, keys: &Keys, key: &'k [u8]) -> Option<&'k str> {
        parse(keys, key)?;
        let text = std::str::from_utf8(key).ok()?;
        text.rsplit_once('/').map(|(_, id)| id)
    }

    fn locate(&self, view: &View, id: &Id) -> Vec<u8> {
        let key = self.key(&view.keys, id);
        if view.get(&key).is_some() {
            return key;
        }
        let named = view
            .members()
            .and_then(|members| adopt::find(&members.list, id.name.as_str()).first().copied());
        named.map_or(key, |member| view.keys.member(member.id))
    }

    fn looks_at_members(&self) -> bool {
        true
    }

    fn concerns(&self, keys: &Keys, key: &[u8]) -> Concerns {
        match parse(keys, key) {
            Some(_) => Concerns::One(key.to_vec()),
            None => Concerns::Nothing,
        }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn show(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> Shown {
        let id = parse(&view.keys, &kv.key).unwrap_or(MemberId(0));
        let seen = match Seen::new(view, id, kv) {
            Ok(seen) => seen,
            Err(malformed) => {
                let document = malformed_document(KIND, name, kv.mod_revision, &malformed);
                return Shown::malformed(document, name, COLUMNS, malformed.to_string());
            }
        };
        let status = seen.status();
        let listed = |pick: fn(&Listed) -> &[String]| {
            let urls = seen.listed.map_or(&[][..], pick);
            one_line(or_none(&urls.join(",")))
        };
        let joined = seen.record.as_ref().map(|record| {
            let joined = time::from_proto(record.joined_at.as_ref());
            joined.map_or_else(|| UNKNOWN.to_owned(), |joined| time::age(joined, now))
        });
        let cells = vec![
            one_line(name),
            one_line(or_none(seen.listed.map_or("", |listed| &listed.name))),
            one_line(or_none(seen.node())),
            seen.role().to_owned(),
            yes_no(seen.leads).to_owned(),
            seen.health().to_owned(),
            one_line(&known(status.map(|status| &status.version))),
            known(status.map(|status| bytes(status.db_size))),
            known(seen.lag),
            one_line(or_none(&seen.alarms.join(","))),
            known(status.map(|status| bytes(status.db_in_use))),
            known(status.map(|status| status.raft_term)),
            listed(|listed| &listed.peer_urls),
            listed(|listed| &listed.client_urls),
            joined.unwrap_or_else(|| NONE.to_owned()),
        ];
        Shown {
            labels: BTreeMap::new(),
            document: document(&seen, kv.mod_revision),
            cells,
            malformed: None,
        }
    }

    fn describe(&self, view: &View, name: &str, kv: &KeyValue, now: Timestamp) -> String {
        let mut description = Description::default();
        description.field(0, "Name", name).field(0, "Kind", KIND);
        let id = parse(&view.keys, &kv.key).unwrap_or(MemberId(0));
        match Seen::new(view, id, kv) {
            Ok(seen) => describe_member(&mut description, &seen, now),
            Err(malformed) => describe::malformed(&mut description, kv, &malformed),
        }
        description.render()
    }

    fn applied(&self) -> Option<&'static dyn Codec> {
        None
    }

    fn deleted(&self) -> Option<&'static dyn Deletable> {
        None
    }
}

fn document(seen: &Seen<'_>, revision: Revision) -> Value {
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

fn describe_member(description: &mut Description, seen: &Seen<'_>, now: Timestamp) {
    let urls = |urls: &[String]| or_none(&urls.join(", ")).to_owned();
    match &seen.record {
        Some(record) => {
            description.field(
                0,
                "Node",
                format!("{} (uid {})", record.node, or_none(&record.node_uid)),
            );
            if let Some(joined) = time::from_proto(record.joined_at.as_ref()) {
                description.field(0, "Joined", describe::since(joined, now));
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
        let since = since.map_or_else(String::new, |at| format!(", since {}", describe::since(at, now)));
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
    describe::conditions(description, &seen.conditions(), now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_units_that_a_person_reads() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (20_480, "20 KiB"),
            (1_600_000, "1.5 MiB"),
            (8_589_934_592, "8.0 GiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }
}
