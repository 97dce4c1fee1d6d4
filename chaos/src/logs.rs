//! The logs of the plugin and of the apiserver as events of the history. They are read once all processes are stopped.

use std::fs;
use std::path::Path;

use jiff::Timestamp;
use quorate::grpc_code;
use quorate_dev::csi_plugin::log::Call;
use serde_json::Value;

use crate::Error;
use crate::history::{CsiCall, CsiOutcome, Event, KubernetesWrite, Verb, What};
use crate::recorder::Recorder;
use crate::world::replica_names;

/// A call of a plugin. Its log has times of the wall clock, which is that of the recorder, on the same machine, and the ids of the
/// processes that called.
pub fn csi_event(call: &Call, plugin: &str, recorder: &Recorder) -> Event {
    let at = recorder.at_wall(call.start);
    let code = call.code.as_deref().and_then(|code| match code {
        // Its caller went away.
        "Canceled" => None,
        code => grpc_code::named(code),
    });
    let call_of = CsiCall {
        by: call.begun.caller.and_then(|id| recorder.with_id(id, at)),
        plugin: plugin.to_owned(),
        rpc: call.begun.method.clone(),
        volume: call.begun.volume.clone(),
        node_id: call.begun.node.clone(),
        // The workload publishes nothing to be only read.
        read_only: false,
        ended: call.end.map(|end| recorder.at_wall(end)),
        outcome: code.map_or(CsiOutcome::Unknown, |code| CsiOutcome::Code(code as i32)),
    };
    Event {
        at,
        what: What::Csi(call_of),
    }
}

/// The write of a replica that a line of the audit log is about; none for a line about something else.
pub fn kubernetes_event(line: &str, recorder: &Recorder) -> Option<Event> {
    let line: Value = serde_json::from_str(line).ok()?;
    let text = |pointer: &str| line.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let user = text("/user/username");
    if !replica_names().contains(&user) {
        return None;
    }
    let verb = match text("/verb") {
        "create" => Verb::Create,
        "update" => Verb::Update,
        "patch" => Verb::Patch,
        "delete" | "deletecollection" => Verb::Delete,
        _ => return None,
    };
    let received: Timestamp = text("/requestReceivedTimestamp").parse().ok()?;
    let at = recorder.at_wall(u64::try_from(received.as_microsecond()).ok()?);
    let (group, resource) = (text("/objectRef/apiGroup"), text("/objectRef/resource"));
    let code = line.pointer("/responseStatus/code").and_then(Value::as_u64);
    let write = KubernetesWrite {
        by: recorder.process_at(user, at),
        verb,
        resource: [group, resource]
            .iter()
            .filter(|part| !part.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join("/"),
        namespace: text("/objectRef/namespace").to_owned(),
        name: text("/objectRef/name").to_owned(),
        dry_run: text("/requestURI").contains("dryRun="),
        code: code.and_then(|code| u16::try_from(code).ok()),
    };
    Some(Event {
        at,
        what: What::Kubernetes(write),
    })
}

/// Records the writes of replicas that the audit log has. Without an apiserver there is none.
///
/// # Errors
/// The log cannot be read.
pub fn record_audit(file: &Path, recorder: &Recorder) -> Result<(), Error> {
    if !file.exists() {
        return Ok(());
    }
    let text = fs::read_to_string(file).map_err(Error::read(file))?;
    for event in text.lines().filter_map(|line| kubernetes_event(line, recorder)) {
        recorder.record(event.at, event.what);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Role;
    use crate::run::tests::described;
    use quorate_dev::csi_plugin::log::Begun;

    #[test]
    fn a_call_of_a_plugin_is_of_the_process_that_had_the_callers_id_then() {
        let directory = tempfile::tempdir().unwrap();
        let recorder = Recorder::begin(&directory.path().join("history.jsonl"), &described()).unwrap();
        let start = || {
            let role = Role::Replica {
                node_id: "replica-a".to_owned(),
                release: "1.0.0".to_owned(),
            };
            recorder.started("replica-a", role);
        };
        start();
        recorder.runs_as("replica-a", Some(41));
        let during_the_first = recorder.wall_now();
        recorder.exited("replica-a", None);
        start();
        recorder.runs_as("replica-a", Some(42));
        let call = |caller, start| Call {
            begun: Begun {
                method: "CreateVolume".to_owned(),
                volume: "vol-1".to_owned(),
                node: None,
                secrets: Vec::new(),
                caller,
            },
            start,
            end: None,
            code: None,
            run: 1,
        };
        let by = |caller, start| match csi_event(&call(caller, start), "csi", &recorder).what {
            What::Csi(call) => call.by.map(|process| process.0),
            other => panic!("{other:?}"),
        };
        let now = recorder.wall_now();
        assert_eq!(by(Some(41), during_the_first).as_deref(), Some("replica-a#1"));
        assert_eq!(by(Some(42), now).as_deref(), Some("replica-a#2"));
        // What it sent before it ended may be logged a moment later, and nothing long after.
        assert_eq!(by(Some(41), now).as_deref(), Some("replica-a#1"));
        assert_eq!(by(Some(41), now + 60_000_000), None);
        assert_eq!(by(Some(43), now), None);
        assert_eq!(by(None, now), None);
    }
}
