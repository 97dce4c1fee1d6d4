//! `quorate diff`: shows what `quorate apply` would change.

use std::fmt::Write as _;

use clap::Args;
use jiff::Timestamp;
use prost::Message as _;
use serde_json::Value;

use super::command::{Planned, plan_all};
use super::input;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::Failure;
use crate::cli::objects::view::{Item, View};
use crate::cli::output::print;
use crate::etcd::{KeyValue, Revision};
use crate::proto::Secret;
use crate::resources::difference::between;
use crate::store::Store;
use crate::store::object::Object as _;
use crate::store::object::change::{Part, Step};
use crate::store::object::secret::{Form, form};

/// Arguments of `quorate diff`.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes nothing. All documents are checked as by quorate apply: a faulty, refused or conflicting one is reported, and ends the \
command with the exit code that quorate apply would have. Values of secrets are not shown.

Examples:
  quorate diff -f node.yaml
  quorate diff -f ./objects --exit-code || quorate apply -f ./objects")]
pub struct DiffArgs {
    /// A file, a directory (its .yaml, .yml and .json files), or - for standard input; may be given several times
    #[arg(short, long = "filename", value_name = "FILE|DIR|-", required = true)]
    filename: Vec<String>,

    /// Exit with code 5 if objects would change
    #[arg(long)]
    exit_code: bool,
}

/// Runs the command.
///
/// # Errors
/// As `quorate apply` would fail; 5 with `--exit-code` if objects would change.
pub async fn run(args: DiffArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let manifests = input::read(&args.filename)?;
    let store = connect(etcd).await?;
    let planned = plan_all(&store, manifests, Part::Spec).await?;
    let mut text = String::new();
    let mut changes = 0;
    for planned in &planned {
        let lines = lines(&store, planned);
        changes += usize::from(!lines.is_empty());
        text.extend(lines.iter().map(|line| format!("{line}\n")));
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{changes} of {} objects would change", planned.len());
    print(&text)?;
    match args.exit_code && changes > 0 {
        true => Err(Failure::conflict("the objects differ from the documents")),
        false => Ok(()),
    }
}

/// What would change in one object; nothing if nothing would.
fn lines(store: &Store, planned: &Planned) -> Vec<String> {
    let id = planned.manifest.id();
    let value = match &planned.step {
        Step::Nothing => return Vec::new(),
        Step::Create(_) => return vec![format!("+ {id}")],
        Step::Configure(value) => value,
    };
    let before = planned.stored.as_ref().map(|kv| kv.value.as_slice());
    let values: [&[u8]; 2] = [before.unwrap_or_default(), value];
    let [before, after] = values.map(|value| document(store, planned, value));
    let [before, after] = [before, after].map(without_encryption);
    let mut lines = vec![format!("~ {id}")];
    for difference in between(&before, &after) {
        lines.extend(difference.to_string().lines().map(|line| format!("    {line}")));
    }
    let [before, after] = values.map(|value| hidden(planned, value));
    if let (Some(before), Some(after)) = (&before, &after) {
        lines.extend(match (form(before), form(after)) {
            (Form::Sealed(_), Form::Plain) => {
                Some("    values are written again (encrypted, not compared)".to_owned())
            }
            (Form::Plain, Form::Plain) if before.data != after.data => {
                Some("    values differ (not shown)".to_owned())
            }
            _ => None,
        });
    }
    lines
}

/// The key that encrypts is that of the moment of the write, and no part of a document.
fn without_encryption(mut document: Value) -> Value {
    if let Value::Object(fields) = &mut document {
        fields.remove("encryptionKey");
    }
    document
}

/// A secret, whose values no document has; `None` for another kind.
fn hidden(planned: &Planned, value: &[u8]) -> Option<Secret> {
    let is_secret = planned.manifest.kind.words.kind == Secret::KIND;
    // A stored value that cannot be read is an error before.
    is_secret.then(|| Secret::decode(value).unwrap_or_default())
}

/// The document of an object with this value. Its status, which other keys say, is not compared.
fn document(store: &Store, planned: &Planned, value: &[u8]) -> Value {
    let kind = planned.manifest.kind;
    let view = View::new(store.keys.clone());
    let name = planned.manifest.name.to_string();
    let stored = KeyValue {
        key: kind.space.key(&store.keys, &planned.manifest.name),
        value: value.to_vec(),
        create_revision: Revision::ABSENT,
        mod_revision: Revision::ABSENT,
        lease: None,
    };
    let item = Item {
        view: &view,
        name: &name,
        stored: &stored,
        now: Timestamp::now(),
    };
    kind.show(&item).document
}
