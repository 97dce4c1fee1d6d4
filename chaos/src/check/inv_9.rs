//! INV-9: no retry loop is hot.

use std::collections::{BTreeMap, VecDeque};

use super::past::Past;
use super::records::{who, written};
use super::{Rule, Violation};
use crate::history::{At, CsiOutcome, Outcome, What};

/// How many attempts at one thing a process may make within a second, as long as they fail. The shortest backoff begins with
/// 100 ms, and a change by someone else begins it again.
const LIMIT: usize = 20;

const SECOND: u64 = 1000;

/// What is tried: who tries, and what.
type Thing = (String, String);

/// Attempts that failed more often within a second than any backoff allows. One violation for each thing.
pub fn hot_retries(past: &Past<'_>) -> Vec<Violation> {
    let mut recent: BTreeMap<Thing, VecDeque<(At, usize)>> = BTreeMap::new();
    let mut found: BTreeMap<Thing, Violation> = BTreeMap::new();
    for (index, event) in past.events() {
        let Some(thing) = failed(past, &event.what) else {
            continue;
        };
        let attempts = recent.entry(thing.clone()).or_default();
        attempts.push_back((event.at, index));
        while attempts
            .front()
            .is_some_and(|(at, _)| at.plus_millis(SECOND) < event.at)
        {
            attempts.pop_front();
        }
        if attempts.len() > LIMIT {
            let (who, what) = &thing;
            let sentence = format!("{who} tried {what} more than {LIMIT} times within a second, in vain");
            let shown = attempts.iter().map(|(_, index)| *index);
            found
                .entry(thing.clone())
                .or_insert_with(|| Violation::new(Rule::Inv(9), sentence, shown));
        }
    }
    found.into_values().collect()
}

/// What failed, of calls that failed.
fn failed(past: &Past<'_>, what: &What) -> Option<Thing> {
    match what {
        What::Store(call) if past.is_replica(&call.by) => {
            let failed = call.outcome.done().is_none_or(|applied| !applied.succeeded);
            let key = call.then.iter().find_map(written)?;
            failed.then(|| (call.by.to_string(), format!("to write {}", key.escape_ascii())))
        }
        What::Member(call)
            if past.may_be_replica(call.by.as_ref()) && !matches!(call.outcome, Outcome::Done(_)) =>
        {
            Some((who(call.by.as_ref()), "a change of etcd's members".to_owned()))
        }
        What::Kubernetes(write)
            if past.is_replica(&write.by) && write.code.is_none_or(|code| code >= 400) =>
        {
            Some((
                write.by.to_string(),
                format!("to write {} {}", write.resource, write.name),
            ))
        }
        What::Csi(call) if call.outcome != CsiOutcome::Code(0) => {
            let node = call.node_id.as_deref().unwrap_or_default();
            Some((
                call.plugin.clone(),
                format!("{} for {} {node}", call.rpc, call.volume),
            ))
        }
        _ => None,
    }
}
