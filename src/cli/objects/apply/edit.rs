//! `quorate edit`: changes an object in an editor.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use clap::Args;
use futures::FutureExt as _;
use jiff::Timestamp;
use serde_json::json;
use tokio::task::spawn_blocking;

use super::command::apply_all;
use super::input;
use crate::cli::connection::{EtcdArgs, connect};
use crate::cli::exit::{Exit, Failure};
use crate::cli::objects::kinds::Kind;
use crate::cli::objects::kinds::target::{Target, TargetParser};
use crate::cli::output::note;
use crate::cli::signals::{INTERRUPT, Signals};
use crate::proto::Secret;
use crate::store::object::Object as _;
use crate::store::object::change::Part;
use crate::store::object::text::to_yaml;
use crate::store::{Id, Store};

/// The variables that name the editor, as of git and kubectl.
const EDITORS: [&str; 2] = ["VISUAL", "EDITOR"];

/// POSIX has it everywhere.
const DEFAULT_EDITOR: &str = "vi";

/// Arguments of `quorate edit`.
#[derive(Args, Debug)]
#[command(after_help = "\
Opens the object as YAML in $VISUAL, $EDITOR or vi, and applies what was saved. Nothing is written if nothing was changed, or if the \
file was saved empty. A faulty or refused document is opened again with the reason at its head; closing it without a change \
gives up. If another writer changed the object meanwhile, the exit code is 5. The file is kept if what it says was not applied.

Examples:
  quorate edit node n1
  EDITOR='code --wait' quorate edit volume data")]
pub struct EditArgs {
    /// The kind of the object; KIND/NAME names it
    #[arg(value_name = "KIND[/NAME]", value_parser = TargetParser::APPLIED)]
    target: Target,

    /// The name of the object
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// 64 if it is not one object of a kind that is applied; 3 if it does not exist; else as `quorate apply`.
pub async fn run(args: EditArgs, etcd: &EtcdArgs) -> Result<(), Failure> {
    let (kind, ids) = args.target.resolve(&args.names).map_err(Failure::usage)?;
    let id = editable(kind, &ids)?;
    let store = connect(etcd).await?;
    let offered = read(&store, kind, id).await?;
    let draft = Draft::new(kind, id)?;
    let mut interrupts = Signals::listen(&[INTERRUPT])?;
    let mut text = offered;
    let mut refused: Option<Failure> = None;
    loop {
        draft.write(&text, refused.as_ref())?;
        let closed = draft.edit().await;
        let edited = draft.read()?;
        // Those that were for the editor.
        while interrupts.next().now_or_never().is_some() {}
        let is_changed = edited != text && !edited.trim().is_empty();
        if !is_changed && refused.is_some() {
            // It may have been saved empty. What was refused is kept.
            draft.write(&text, refused.as_ref())?;
        }
        match (closed, refused) {
            (Ok(()), _) if is_changed => {}
            (Ok(()), None) => {
                note("nothing was changed");
                draft.remove();
                return Ok(());
            }
            (Err(failure), None) if !is_changed => {
                draft.remove();
                return Err(failure);
            }
            (Err(failure), _) | (Ok(()), Some(failure)) => return Err(draft.keep(&failure)),
        }
        let applied = tokio::select! {
            applied = apply(&store, kind, id, &edited) => applied,
            _ = interrupts.next() => Err(Failure::failed("interrupted; the object may have been written")),
        };
        match applied {
            Ok(()) => {
                draft.remove();
                return Ok(());
            }
            Err(failure) if matches!(failure.exit, Exit::Usage | Exit::Refused) => {
                refused = Some(failure);
                text = edited;
            }
            Err(failure) => return Err(draft.keep(&failure)),
        }
    }
}

fn editable<'i>(kind: &'static Kind, ids: &'i [Id]) -> Result<&'i Id, Failure> {
    let words = &kind.words;
    if kind.applied.is_none() {
        let plural = words.plural;
        return Err(Failure::usage(format!(
            "{plural} are written by Quorate alone and cannot be edited"
        )));
    }
    if words.kind == Secret::KIND {
        return Err(
            Failure::usage("the values of a secret are never shown, so they cannot be edited")
                .hint("quorate apply -f FILE replaces them"),
        );
    }
    match ids {
        [id] => Ok(id),
        _ => {
            let singular = words.singular;
            Err(Failure::usage(format!("name one {singular} to edit")))
        }
    }
}

/// The object as `quorate get -o yaml` prints it.
async fn read(store: &Store, kind: &'static Kind, id: &Id) -> Result<String, Failure> {
    let ids = std::slice::from_ref(id);
    let view = kind.read(store, ids).await?;
    let (found, _) = kind.select(&view, ids, Timestamp::now());
    let Some(item) = found.first() else {
        return Err(kind.not_found(&[id], &store.keys));
    };
    let shown = kind.show(item);
    match shown.malformed {
        None => Ok(to_yaml(&shown.document)),
        Some(why) => {
            let id = kind.full_name(&id.to_string());
            Err(Failure::failed(format!("{id} cannot be read: {why}")).hint(kind.repair()))
        }
    }
}

/// Applies the text as the object that was opened.
async fn apply(store: &Store, kind: &'static Kind, id: &Id, text: &str) -> Result<(), Failure> {
    let mut manifests = input::check_all(&[("the edited text".to_owned(), text.to_owned())])?;
    match &mut manifests[..] {
        [only] if std::ptr::eq(only.kind, kind) && only.name == *id => {
            // To apply, a document without labels says nothing about them. Here they were shown, and removed.
            let metadata = &mut only.document["metadata"];
            if metadata["labels"].is_null() {
                metadata["labels"] = json!({});
            }
            apply_all(store, manifests, Part::Spec, false).await
        }
        _ => {
            let id = format!("{}/{id}", kind.words.singular);
            Err(Failure::usage(format!(
                "expected one document, of {id}: its kind and name cannot change"
            )))
        }
    }
}

/// The file that the editor opens. Only its owner may read it.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn new(kind: &Kind, id: &Id) -> Result<Self, Failure> {
        let name = id.to_string().replace('/', "-");
        let unique = uuid::Uuid::new_v4().simple();
        let name = format!("quorate-{}-{name}-{unique}.yaml", kind.words.singular);
        let path = std::env::temp_dir().join(name);
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match made {
            Ok(_) => Ok(Self { path }),
            Err(error) => Err(
                Failure::failed(format!("cannot make {}: {error}", path.display()))
                    .hint("TMPDIR names another directory"),
            ),
        }
    }

    /// Writes the text, and why it was refused before.
    fn write(&self, text: &str, refused: Option<&Failure>) -> Result<(), Failure> {
        let written = (|| {
            let mut file = OpenOptions::new().write(true).truncate(true).open(&self.path)?;
            file.write_all(head(refused).as_bytes())?;
            file.write_all(text.as_bytes())
        })();
        written.map_err(|error: std::io::Error| self.failure("write", &error))
    }

    /// Runs the editor until it ends.
    async fn edit(&self) -> Result<(), Failure> {
        let editor = EDITORS.iter().find_map(|name| {
            std::env::var(name)
                .ok()
                .filter(|editor| !editor.trim().is_empty())
        });
        let editor = editor.unwrap_or_else(|| DEFAULT_EDITOR.to_owned());
        // As git and kubectl do: the variable may hold arguments.
        let script = format!("{editor} \"$1\"");
        let path = self.path.clone();
        let run = move || {
            Command::new("sh")
                .arg("-c")
                .arg(script)
                .arg("sh")
                .arg(path)
                .status()
        };
        // The runtime cancels no blocking task that has begun, and the editor does not panic in it.
        let ended = spawn_blocking(run).await.map_err(Failure::failed)?;
        match ended {
            Ok(status) if status.success() => Ok(()),
            ended => Err(no_editor(&editor, ended)),
        }
    }

    /// What was saved, without the lines of the head.
    fn read(&self) -> Result<String, Failure> {
        let text = fs::read_to_string(&self.path).map_err(|error| self.failure("read", &error))?;
        Ok(without_head(&text).to_owned())
    }

    fn failure(&self, verb: &str, error: &std::io::Error) -> Failure {
        Failure::failed(format!("cannot {verb} {}: {error}", self.path.display()))
    }

    /// The failure, with the place where the text is kept.
    fn keep(self, failure: &Failure) -> Failure {
        let path = self.path.display();
        Failure::new(
            failure.exit,
            format!("{failure}\n  what was edited is kept in {path}"),
        )
    }

    fn remove(self) {
        // It lies in the directory for such files, which is cleared.
        let _ = fs::remove_file(&self.path);
    }
}

fn no_editor(editor: &str, ended: std::io::Result<ExitStatus>) -> Failure {
    let why = match ended {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Failure::failed(format!(
        "the editor \"{}\" failed ({why}); nothing was written",
        editor.escape_debug()
    ))
    .hint("VISUAL or EDITOR names another")
}

/// The lines above the document.
fn head(refused: Option<&Failure>) -> String {
    let mut head = String::from(
        "# Save and close to apply. Save an empty file, or nothing, to leave the object as it is.\n",
    );
    if let Some(refused) = refused {
        head.push_str("#\n# It was not written:\n");
        for line in refused.to_string().lines() {
            head.push_str(&format!("# {line}\n"));
        }
    }
    head.push_str("#\n");
    head
}

/// The text below the lines of [`head`].
fn without_head(text: &str) -> &str {
    let mut rest = text;
    while rest.starts_with('#') {
        rest = rest.split_once('\n').map_or("", |(_, after)| after);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_removed_and_the_document_stays() {
        let document = "kind: Node\n# a comment of one's own\nspec: {}\n";
        for refused in [None, Some(Failure::usage("two\nlines"))] {
            let text = head(refused.as_ref()) + document;
            assert_eq!(without_head(&text), document, "{text}");
        }
        assert_eq!(without_head("# only a head"), "");
        assert_eq!(without_head(""), "");
    }
}
