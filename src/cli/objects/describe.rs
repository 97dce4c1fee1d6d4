//! `quorate describe`: objects in full, in words.

use clap::Args;
use jiff::Timestamp;

use super::kinds::not_found;
use super::kinds::target::{Target, TargetParser};
use super::view::View;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::output::{Description, NONE, Reader, one_line, or_none, print};
use crate::etcd::KeyValue;
use crate::proto::{Condition, Metadata};
use crate::store::object::{Malformed, Object, condition, decode, time};

/// Arguments of `quorate describe`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quorate describe node n1
  quorate describe member etcd-1      # by the name of the member or its id
  quorate describe replica/quorate-0
  quorate describe service web        # its tasks, and what holds its deletion back
  quorate describe volume data        # what it waits for")]
pub struct DescribeArgs {
    /// What to describe; KIND/NAME names one object
    #[arg(value_name = "KIND[/NAME]", value_parser = TargetParser::ALL)]
    target: Target,

    /// Names of the objects; all of the kind if there is none
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// A failure with exit code 3 if a named object does not exist.
pub async fn run(args: DescribeArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let (kind, names) = args.target.resolve(&args.names).map_err(Failure::usage)?;
    let store = connect(etcd).await?;
    let all = if names.is_empty() {
        // Everything that describing one object reads, for all of them.
        let view = View::of(&store, kind, &kind.ranges(&store.keys, None)).await?;
        if !view.iter().any(|kv| kind.name(&store.keys, &kv.key).is_some()) {
            eprintln!("no {} found below {}", kind.words().plural, store.keys.prefix());
        }
        Some(view)
    } else {
        None
    };
    let now = Timestamp::now();
    let mut missing = Vec::new();
    let mut texts = Vec::new();
    match &all {
        Some(view) => texts.extend(view.iter().filter_map(|kv| {
            let name = kind.name(&store.keys, &kv.key)?;
            Some(kind.describe(view, name, kv, now))
        })),
        None => {
            for name in &names {
                let view = View::of(&store, kind, &kind.ranges(&store.keys, Some(name))).await?;
                let found = view.get(&kind.locate(&view, name));
                let named = found.and_then(|kv| Some((kv, kind.name(&store.keys, &kv.key)?)));
                match named {
                    Some((kv, name)) => texts.push(kind.describe(&view, name, kv, now)),
                    None => missing.push(name),
                }
            }
        }
    }
    if print(&texts.join("\n"))? == Reader::Gone || missing.is_empty() {
        return Ok(());
    }
    Err(not_found(kind, &missing, &store.keys))
}

/// A stored object in full: its metadata or why it cannot be read, then what `own` says, which gets `None` there.
pub fn object<O: Object>(
    name: &str,
    stored: &KeyValue,
    now: Timestamp,
    own: impl FnOnce(&mut Description, Option<&O>),
) -> String {
    let mut description = Description::default();
    description.field(0, "Name", name).field(0, "Kind", O::KIND);
    match decode::<O>(name, &stored.value) {
        Ok(object) => {
            let known = object.metadata().cloned().unwrap_or_default();
            metadata(&mut description, &known, stored, now);
            own(&mut description, Some(&object));
        }
        Err(error) => {
            malformed(&mut description, stored, &error);
            own(&mut description, None);
        }
    }
    description.render()
}

/// The lines about metadata that every kind has.
pub fn metadata(description: &mut Description, metadata: &Metadata, stored: &KeyValue, now: Timestamp) {
    description
        .pairs("Labels", &metadata.labels)
        .field(0, "UID", or_none(&metadata.uid))
        .field(
            0,
            "Created",
            time::from_proto(metadata.creation_time.as_ref())
                .map_or_else(|| "<unknown>".to_owned(), |created| since(created, now)),
        )
        .field(0, "Generation", metadata.generation.to_string())
        .field(0, "Resource Version", stored.mod_revision.to_string());
}

/// What is shown in the place of a value that cannot be read.
pub fn malformed(description: &mut Description, stored: &KeyValue, malformed: &Malformed) {
    description
        .field(0, "Malformed", malformed.to_string())
        .field(0, "Resource Version", stored.mod_revision.to_string())
        .field(0, "Value", format!("{} bytes", stored.value.len()));
}

/// A section with a paragraph for each condition.
pub fn conditions(description: &mut Description, conditions: &[Condition], now: Timestamp) {
    if conditions.is_empty() {
        description.field(0, "Conditions", NONE);
        return;
    }
    description.field(0, "Conditions", "");
    for shown in conditions {
        let reason = match shown.reason.as_str() {
            "" => String::new(),
            reason => format!(" ({reason})"),
        };
        let status = condition::status_word(shown);
        description.field(1, &one_line(&shown.r#type), format!("{status}{reason}"));
        if !shown.message.is_empty() {
            description.field(1, "", shown.message.as_str());
        }
        let mut dated = time::from_proto(shown.last_transition_time.as_ref())
            .map(|at| format!("since {}", since(at, now)))
            .unwrap_or_default();
        if shown.observed_generation != 0 {
            let generation = format!("observed at generation {}", shown.observed_generation);
            dated = [dated, generation]
                .into_iter()
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join(", ");
        }
        if !dated.is_empty() {
            description.field(1, "", dated);
        }
    }
}

/// Whether an object is marked for deletion, and since when.
pub fn mark(description: &mut Description, mark: Option<&prost_types::Timestamp>, now: Timestamp) {
    let text = match (mark, time::from_proto(mark)) {
        (None, _) => "no".to_owned(),
        (Some(_), Some(at)) => format!("yes, since {}", since(at, now)),
        (Some(_), None) => "yes".to_owned(),
    };
    description.field(0, "Deleting", text);
}

/// `2026-03-01T12:00:00Z (3d4h ago)`.
pub fn since(then: Timestamp, now: Timestamp) -> String {
    format!("{} ({} ago)", time::rfc3339(then), time::age(then, now))
}
