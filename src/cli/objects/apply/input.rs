//! Reads files and checks their documents. All faults of all documents are reported at once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cli::exit::Failure;
use crate::cli::objects::kinds::Kind;
use crate::cli::objects::kinds::registry::{KINDS, by_kind};
use crate::store::Id;
use crate::store::object::change::Codec;
use crate::store::object::fields::Fault;
use crate::store::object::words::did_you_mean;
use crate::store::object::{API_VERSION, text};

/// The name of `-` in messages.
const STDIN: &str = "standard input";

/// A document that has no fault by itself.
pub struct Manifest {
    /// The kind of the object.
    pub kind: &'static Kind,
    /// Reads and writes objects of the kind.
    pub codec: &'static dyn Codec,
    /// The object's id.
    pub name: Id,
    /// The whole document.
    pub document: Value,
    /// The place of the document, for messages: `nodes.yaml: document 2 (Node n1)`.
    pub origin: String,
}

impl Manifest {
    /// The object in messages: `node/n1`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.kind.words.singular, self.name)
    }
}

/// Reads and checks every document of these files, directories and, for `-`, standard input.
///
/// # Errors
/// 64, with all faults of the files and documents.
pub fn read(sources: &[String]) -> Result<Vec<Manifest>, Failure> {
    let (texts, unreadable) = texts(sources);
    let manifests = check(&texts, unreadable)?;
    if manifests.is_empty() {
        let sources: Vec<&str> = sources
            .iter()
            .map(|source| if source == "-" { STDIN } else { source })
            .collect();
        let failure = Failure::usage(format!("no documents in {}", sources.join(", ")));
        return Err(match sources.iter().any(|source| Path::new(source).is_dir()) {
            true => failure.hint(
                "of a directory, the files *.yaml, *.yml and *.json are read, and those of its subdirectories are not",
            ),
            false => failure,
        });
    }
    Ok(manifests)
}

/// Checks every document of these texts, each with the name of its source.
///
/// # Errors
/// 64, with all faults of the texts.
pub fn check_all(texts: &[(String, String)]) -> Result<Vec<Manifest>, Failure> {
    check(texts, Vec::new())
}

/// Checks every document of these texts. They come with the faults that are known already.
fn check(texts: &[(String, String)], mut faults: Vec<String>) -> Result<Vec<Manifest>, Failure> {
    let mut manifests = Vec::new();
    for (source, text) in texts {
        let documents = text::parse(text).unwrap_or_else(|error| {
            faults.push(format!("{source}: {error}"));
            Vec::new()
        });
        for (place, document) in numbered(documents) {
            match check_one(source, &place, document) {
                Ok(manifest) => manifests.push(manifest),
                Err(found) => faults.extend(found),
            }
        }
    }
    faults.extend(repeated(&manifests));
    if !faults.is_empty() {
        let count = match faults.len() {
            1 => "1 fault".to_owned(),
            many => format!("{many} faults"),
        };
        return Err(Failure::usage(format!(
            "{count}, nothing was written\n  {}",
            faults.join("\n  ")
        )));
    }
    Ok(manifests)
}

/// The texts of these sources, each with its name, and which of them cannot be read.
fn texts(sources: &[String]) -> (Vec<(String, String)>, Vec<String>) {
    let (mut texts, mut unreadable) = (Vec::new(), Vec::new());
    let mut take = |name: String, text: io::Result<String>| match text {
        Ok(text) => texts.push((name, text)),
        Err(error) => unreadable.push(format!("cannot read {name}: {error}")),
    };
    for source in sources {
        if source == "-" {
            take(STDIN.to_owned(), io::read_to_string(io::stdin()));
            continue;
        }
        match files(Path::new(source)) {
            Ok(files) => {
                for file in files {
                    take(file.display().to_string(), fs::read_to_string(&file));
                }
            }
            Err(error) => take(source.clone(), Err(error)),
        }
    }
    (texts, unreadable)
}

/// The manifests of a directory, or the file itself.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
    files.retain(|file| is_manifest(file));
    // A directory has no order of its own; by name it is the same on every machine.
    files.sort();
    Ok(files)
}

fn is_manifest(file: &Path) -> bool {
    let extension = file.extension().and_then(|extension| extension.to_str());
    file.is_file() && matches!(extension, Some("yaml" | "yml" | "json"))
}

/// Documents with their place in the text. A `List`, as `get -o yaml` prints it, is split into its items.
fn numbered(documents: Vec<Value>) -> Vec<(String, Value)> {
    let mut numbered = Vec::new();
    for (index, document) in documents.into_iter().enumerate() {
        let place = format!("document {}", index + 1);
        match document {
            Value::Object(mut list) if list.get("kind").and_then(Value::as_str) == Some("List") => match list
                .remove("items")
            {
                Some(Value::Array(items)) => {
                    let items = items.into_iter().enumerate();
                    numbered
                        .extend(items.map(|(index, item)| (format!("{place}, item {}", index + 1), item)));
                }
                other => {
                    list.extend(other.map(|items| ("items".to_owned(), items)));
                    numbered.push((place, Value::Object(list)));
                }
            },
            document => numbered.push((place, document)),
        }
    }
    numbered
}

fn check_one(source: &str, place: &str, document: Value) -> Result<Manifest, Vec<String>> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let named = text(document.get("metadata").and_then(|metadata| metadata.get("name")));
    let kind_word = text(document.get("kind"));
    let origin = match (&kind_word, &named) {
        (Some(kind), Some(name)) => {
            let (kind, name) = (kind.escape_debug(), name.escape_debug());
            format!("{source}: {place} ({kind} {name})")
        }
        (Some(kind), None) => format!("{source}: {place} ({})", kind.escape_debug()),
        (None, _) => format!("{source}: {place}"),
    };
    let placed = |faults: Vec<Fault>| faults.iter().map(|fault| format!("{origin}: {fault}")).collect();
    let kind = kind_of(&document, kind_word.as_deref()).map_err(|fault| placed(vec![fault]))?;
    let Some(codec) = kind.applied else {
        let message = format!(
            "{} objects are written by Quorate alone and cannot be applied",
            kind.words.kind
        );
        return Err(placed(vec![Fault::new("kind", message)]));
    };
    let name = codec.check(&document).map_err(placed)?;
    Ok(Manifest {
        kind,
        codec,
        name,
        document,
        origin,
    })
}

fn kind_of(document: &Value, word: Option<&str>) -> Result<&'static Kind, Fault> {
    let applied = || KINDS.iter().filter(|kind| kind.applied.is_some());
    let names = || applied().map(|kind| kind.words.kind);
    let all = names().collect::<Vec<_>>().join(", ");
    let Some(word) = word else {
        return Err(match document {
            Value::Object(map) if map.contains_key("kind") => Fault::new(
                "kind",
                format!("expected a string, one of {all} (apiVersion {API_VERSION})"),
            ),
            Value::Object(_) => Fault::new("kind", format!("missing; expected one of {all}")),
            _ => Fault::new("", format!("expected an object with kind, one of {all}")),
        });
    };
    if word == "List" && !document.get("items").is_some_and(Value::is_array) {
        return Err(Fault::new("items", "expected a list"));
    }
    by_kind(word).ok_or_else(|| {
        let meant = did_you_mean(word, names());
        Fault::new(
            "kind",
            format!("\"{}\" is not one of {all}{meant}", word.escape_debug()),
        )
    })
}

/// The faults of documents about the same object: it is unknown which of them holds.
fn repeated(manifests: &[Manifest]) -> Vec<String> {
    let mut first: BTreeMap<String, &str> = BTreeMap::new();
    let mut faults = Vec::new();
    for manifest in manifests {
        match first.get(&manifest.id()) {
            Some(earlier) => faults.push(format!("{}: the same object as in {earlier}", manifest.origin)),
            None => {
                first.insert(manifest.id(), &manifest.origin);
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Manifest>, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("in.yaml");
        fs::write(&file, text).unwrap();
        let path = file.display().to_string();
        read(std::slice::from_ref(&path)).map_err(|failure| failure.to_string().replace(&path, "in.yaml"))
    }

    fn node(name: &str) -> String {
        format!("apiVersion: quorate.dev/v1\nkind: Node\nmetadata: {{name: {name}}}\n")
    }

    #[test]
    fn faults_of_all_documents_are_reported_with_document_kind_and_name() {
        let text = [
            node("n1"),
            node("n1"),
            node("n2") + "spec: {desiredRol: worker}",
            "kind: Nod\n".to_owned(),
            "apiVersion: quorate.dev/v1\nkind: Replica\nmetadata: {name: r}\n".to_owned(),
            "[1]\n".to_owned(),
            "apiVersion: quorate.dev/v1\nkind: Node\n".to_owned(),
        ]
        .join("\n---\n");
        assert_eq!(
            read_text(&text).err().unwrap(),
            "6 faults, nothing was written\n  \
             in.yaml: document 3 (Node n2): spec.desiredRol: unknown field (did you mean desiredRole?)\n  \
             in.yaml: document 4 (Nod): kind: \"Nod\" is not one of Node, Service, Network, Task, Volume, Plugin, Secret (did you mean Node?)\n  \
             in.yaml: document 5 (Replica r): kind: Replica objects are written by Quorate alone and cannot be applied\n  \
             in.yaml: document 6: expected an object with kind, one of Node, Service, Network, Task, Volume, \
             Plugin, Secret\n  \
             in.yaml: document 7 (Node): metadata: missing\n  \
             in.yaml: document 2 (Node n1): the same object as in in.yaml: document 1 (Node n1)"
        );
    }

    #[test]
    fn of_100_000_documents_all_are_read_and_the_last_one_with_a_fault_is_named() {
        let good: String = (1..100_000).map(|n| node(&format!("n{n}")) + "---\n").collect();
        let text = good + &node("last") + "spec: {desiredRol: worker}";
        let error = check_all(&[("in.yaml".to_owned(), text)]).err().unwrap();
        assert_eq!(
            error.to_string(),
            "1 fault, nothing was written\n  \
             in.yaml: document 100000 (Node last): spec.desiredRol: unknown field (did you mean desiredRole?)"
        );
    }

    #[test]
    fn a_list_as_get_prints_it_is_read_item_by_item() {
        let list = "{\"apiVersion\":\"quorate.dev/v1\",\"kind\":\"List\",\"metadata\":{\"resourceVersion\":\"1\"},\"items\":[\
                    {\"apiVersion\":\"quorate.dev/v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"n1\"}},\
                    {\"apiVersion\":\"quorate.dev/v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"n2\",\"x\":1}}]}";
        let error = read_text(list).err().unwrap();
        assert_eq!(
            error,
            "1 fault, nothing was written\n  in.yaml: document 1, item 2 (Node n2): metadata.x: unknown field"
        );
        let manifests = read_text(&list.replace(",\"x\":1", "")).unwrap_or_else(|error| panic!("{error}"));
        let ids: Vec<String> = manifests.iter().map(Manifest::id).collect();
        assert_eq!(ids, ["node/n1", "node/n2"]);
    }

    #[test]
    fn a_list_without_a_list_of_items_is_refused_for_them() {
        for items in ["", ", items: {}"] {
            let error = read_text(&format!("{{kind: List{items}}}\n")).err().unwrap();
            assert!(
                error.ends_with("document 1 (List): items: expected a list"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_directory_is_read_in_the_order_of_its_names_and_other_files_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("b.yaml", node("n2")),
            ("a.yml", node("n1")),
            (
                "c.json",
                "{\"apiVersion\":\"quorate.dev/v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"n3\"}}"
                    .to_owned(),
            ),
            ("README.md", "not: [a manifest".to_owned()),
        ] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        let manifests = read(&[dir.path().display().to_string()]).unwrap_or_else(|error| panic!("{error}"));
        let ids: Vec<String> = manifests.iter().map(Manifest::id).collect();
        assert_eq!(ids, ["node/n1", "node/n2", "node/n3"]);
    }

    #[test]
    fn no_documents_and_no_file_are_errors_that_name_the_source() {
        assert!(
            read_text("# nothing\n")
                .err()
                .unwrap()
                .contains("no documents in in.yaml")
        );
        let error = read(&["/does/not/exist.yaml".to_owned()])
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.starts_with("1 fault, nothing was written\n  cannot read /does/not/exist.yaml: "),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_hides_no_fault_of_another_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), [0xff]).unwrap();
        fs::write(dir.path().join("b.yaml"), "kind: Nod\n").unwrap();
        let error = read(&[dir.path().display().to_string()])
            .err()
            .unwrap()
            .to_string();
        for part in [
            "2 faults",
            "a.yaml: stream did not contain valid UTF-8",
            "\"Nod\" is not one of",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}
