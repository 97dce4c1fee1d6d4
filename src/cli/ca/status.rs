//! `quorate ca status`, and what `quorate ca rotate` shows of a rotation.

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::connection::{EtcdArgs, connect_to_show};
use crate::cli::exit::Failure;
use crate::cli::output::{Description, NONE, note, one_line, print};
use crate::identity::rotation::record::{Asked, OnRecord, Phase, Roots, Rotation};
use crate::proto::HeldUp;
use crate::store::Store;
use crate::store::object::document::given;
use crate::store::object::{text, time};

/// Arguments of `quorate ca status`.
#[derive(Args, Debug)]
#[command(after_help = "\
A rotation goes through the phases trust, reissue and drop; a phase ends once nothing holds it up. What holds it up is named, with \
what to do about it.

Examples:
  quorate ca status
  quorate ca status -o json

Exit codes: 0 done, 1 failed, 4 the record cannot be read.")]
pub struct StatusArgs {
    /// How to print it
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: RotationFormat,
}

/// How a rotation is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RotationFormat {
    /// For people
    #[default]
    Text,
    /// One JSON object
    Json,
    /// One YAML document
    Yaml,
}

pub async fn run(args: &StatusArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let store = connect_to_show(etcd).await?;
    // The request first: a rotation that begins in between has begun.
    let (request, _) = store.etcd.get(&store.keys.rotation_request()).await?;
    let rotation = read(&store).await?;
    show(rotation.as_ref(), args.output)?;
    let asked = request.and_then(|kv| Asked::read(&kv.value));
    if let Some(Asked { roots, .. }) = asked.filter(|asked| asked.is_to_begin(rotation.as_ref())) {
        note(format_args!(
            "a rotation to node authority {} and etcd authority {} is asked for; {NOT_BEGUN}",
            roots.node, roots.etcd
        ));
    }
    Ok(())
}

/// What is said of a rotation that is asked for and not on record.
pub const NOT_BEGUN: &str =
    "the leader has yet to begin it: its log and the Event RotationWaits say why, where it cannot";

/// The rotation on record; `None` if there never was one.
///
/// # Errors
/// 4 if it cannot be read.
pub async fn read(store: &Store) -> Result<Option<Rotation>, Failure> {
    let (stored, _) = store.etcd.get(&store.keys.rotation()).await?;
    match stored.map_or(OnRecord::Absent, |kv| OnRecord::of(&kv)) {
        OnRecord::Absent => Ok(None),
        OnRecord::Is(rotation, _) => Ok(Some(*rotation)),
        OnRecord::Unreadable(_) => Err(unreadable()),
    }
}

/// The record of a rotation cannot be read.
pub fn unreadable() -> Failure {
    Failure::refused(
        "Malformed",
        "what is recorded of the rotation of the authorities cannot be read",
    )
    .hint("a later release may have written it: use that one's quorate")
}

/// Prints a rotation.
///
/// # Errors
/// 1 if it cannot be written.
pub fn show(rotation: Option<&Rotation>, format: RotationFormat) -> Result<(), Failure> {
    let printed = match format {
        RotationFormat::Text => print(&describe(rotation, Timestamp::now())),
        RotationFormat::Json => print(&text::to_json(&document(rotation))),
        RotationFormat::Yaml => print(&text::to_yaml(&document(rotation))),
    };
    printed.map(drop)
}

/// What holds a rotation up, a line each.
pub fn reasons(rotation: &Rotation) -> Vec<String> {
    let named = rotation.value.waits.iter().map(reason);
    let mut reasons: Vec<String> = named.collect();
    let others = u64::from(rotation.value.held_up).saturating_sub(reasons.len() as u64);
    if others > 0 {
        reasons.push(format!("{others} more"));
    }
    reasons
}

fn reason(hold: &HeldUp) -> String {
    let HeldUp {
        kind,
        name,
        reason,
        message,
    } = hold;
    format!(
        "{} {}: {} ({})",
        one_line(kind),
        one_line(name),
        one_line(message),
        one_line(reason)
    )
}

fn describe(rotation: Option<&Rotation>, now: Timestamp) -> String {
    let mut shown = Description::default();
    let Some(rotation) = rotation else {
        return shown
            .field("Phase", "none: the authorities were never rotated")
            .render();
    };
    let at = |stored: Option<&prost_types::Timestamp>| {
        time::from_proto(stored).map_or_else(|| NONE.to_owned(), |at| time::since(at, now))
    };
    shown
        .field("Phase", rotation.phase.word())
        .field("Begun", at(rotation.value.begun.as_ref()))
        .field("Since", at(rotation.value.since.as_ref()));
    for (title, roots) in [("Former", rotation.before), ("New", rotation.after)] {
        shown
            .field(title, "")
            .nested("Node authority", roots.node.to_string())
            .nested("etcd authority", roots.etcd.to_string());
    }
    if let Some(restart) = &rotation.value.restart {
        shown.field("Restarts", one_line(&restart.node));
    }
    if rotation.phase != Phase::Done {
        shown.list("Waits For", reasons(rotation), NONE);
    }
    shown.render()
}

fn document(rotation: Option<&Rotation>) -> Value {
    let Some(rotation) = rotation else {
        return json!({"phase": null});
    };
    let roots = |roots: Roots| json!({"node": roots.node.to_string(), "etcd": roots.etcd.to_string()});
    let waits: Vec<Value> = rotation
        .value
        .waits
        .iter()
        .map(|hold| json!({"kind": hold.kind, "name": hold.name, "reason": hold.reason, "message": hold.message}))
        .collect();
    json!({
        "phase": rotation.phase.word(),
        "begun": time::document(rotation.value.begun.as_ref()),
        "since": time::document(rotation.value.since.as_ref()),
        "before": roots(rotation.before),
        "after": roots(rotation.after),
        "heldUp": rotation.value.held_up,
        "waits": waits,
        "restarts": rotation.value.restart.as_ref().map(|restart| given(&restart.node)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AuthorityDigest;

    fn rotation() -> Rotation {
        let roots = |first: u8| Roots {
            node: AuthorityDigest([first; 32]),
            etcd: AuthorityDigest([first + 1; 32]),
        };
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let mut rotation = Rotation::begun(roots(1), roots(3), 0, now).moved_to(Phase::Reissue, now);
        rotation.value.held_up = 3;
        rotation.value.waits = vec![HeldUp {
            kind: "node".to_owned(),
            name: "n1".to_owned(),
            reason: "Down".to_owned(),
            message: "it is down".to_owned(),
        }];
        rotation
    }

    #[test]
    fn what_holds_a_rotation_up_is_shown_by_name_and_the_rest_is_counted() {
        let rotation = rotation();
        assert_eq!(reasons(&rotation), ["node n1: it is down (Down)", "2 more"]);
        let shown = describe(Some(&rotation), Timestamp::now());
        for part in ["reissue", "node n1: it is down (Down)", "2 more"] {
            assert!(shown.contains(part), "{shown}");
        }
        assert_eq!(document(Some(&rotation))["waits"][0]["name"], "n1");
        assert_eq!(document(Some(&rotation))["phase"], "reissue");
    }

    #[test]
    fn authorities_that_were_never_rotated_are_shown_as_such() {
        assert!(describe(None, Timestamp::now()).contains("never rotated"));
        assert_eq!(document(None)["phase"], Value::Null);
    }
}
