//! `quorate explain`: what a kind is, and what its fields mean. Which fields there are, and what their values may be, is asked of
//! the readers that check documents; see [`Codec::fields`](crate::store::object::change::Codec::fields).

use std::fmt::Write as _;

use clap::Args;

use super::kinds::Kind;
use super::kinds::registry::find;
use crate::cli::exit::Failure;
use crate::cli::output::print;
use crate::store::object::fields::Asked;
use crate::store::object::words::did_you_mean;

mod meanings;

/// Arguments of `quorate explain`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quorate explain node
  quorate explain volume.spec.accessMode
  quorate explain plugin --recursive")]
pub struct ExplainArgs {
    /// A kind, and the path of a field
    #[arg(value_name = "KIND[.FIELD]")]
    subject: String,

    /// Show the fields of fields too
    #[arg(long)]
    recursive: bool,
}

/// Runs the command.
///
/// # Errors
/// 64 if there is no such kind or field.
pub fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let (kind, path) = match args.subject.split_once('.') {
        Some((kind, path)) => (kind, path),
        None => (args.subject.as_str(), ""),
    };
    let kind = find(kind).map_err(Failure::usage)?;
    let text = explain(kind, path, args.recursive).map_err(Failure::usage)?;
    print(&text).map(drop)
}

/// The kind, or the field at this path of it, in words.
///
/// # Errors
/// A sentence about a path that leads nowhere.
fn explain(kind: &Kind, path: &str, recursive: bool) -> Result<String, String> {
    let words = &kind.words;
    let fields = kind.applied.map(|codec| codec.fields()).unwrap_or_default();
    let mut text = format!("Kind:   {}\n", words.kind);
    if path.is_empty() {
        let _ = writeln!(text, "\n{}", meanings::of_kind(words.kind));
    } else {
        let field = field(kind, &fields, path)?;
        let _ = writeln!(text, "Field:  {}\n", line(field, &field.path));
        let _ = writeln!(text, "{}", meanings::of_field(words.kind, &field.path));
    }
    if kind.applied.is_none() {
        let _ = writeln!(
            text,
            "\nQuorate alone writes it: quorate get {} -o yaml shows its fields.",
            words.plural
        );
        return Ok(text);
    }
    let path = path_of(path);
    let below = fields
        .iter()
        .filter_map(|field| Some((field, below(&field.path, &path)?)));
    let below = below.filter(|(_, name)| recursive || !name.contains('.'));
    let mut title = "\nFields:\n";
    for (field, name) in below {
        text.push_str(std::mem::take(&mut title));
        let _ = writeln!(text, "  {}", line(field, name));
        let _ = writeln!(text, "      {}", meanings::of_field(words.kind, &field.path));
    }
    Ok(text)
}

/// The path as fields have theirs: without the brackets of lists.
fn path_of(path: &str) -> String {
    path.replace("[]", "")
}

/// The path of a field below another one; `None` if it is not below it.
fn below<'f>(field: &'f str, path: &str) -> Option<&'f str> {
    if path.is_empty() {
        return Some(field);
    }
    // A list stands with brackets in the path of its elements' fields alone.
    let mut rest = field;
    for part in path.split('.') {
        let (first, after) = rest.split_once('.')?;
        if first.trim_end_matches("[]") != part {
            return None;
        }
        rest = after;
    }
    Some(rest)
}

/// The path of the field above, empty for one at the top, and the last word.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

fn field<'f>(kind: &Kind, fields: &'f [Asked], path: &str) -> Result<&'f Asked, String> {
    let wanted = path_of(path);
    if let Some(field) = fields.iter().find(|field| path_of(&field.path) == wanted) {
        return Ok(field);
    }
    let singular = kind.words.singular;
    if fields.is_empty() {
        return Err(format!(
            "the fields of a {singular} are written by Quorate alone and not explained one by one"
        ));
    }
    let paths: Vec<String> = fields.iter().map(|field| path_of(&field.path)).collect();
    let paths = || paths.iter().map(String::as_str);
    // All below one field begin alike, so that only the last word counts where the others are right.
    let (above, last) = split(&wanted);
    let mut beside = paths().filter(|path| split(path).0 == above).peekable();
    let meant = match beside.peek() {
        Some(_) => did_you_mean(last, beside.map(|path| split(path).1)),
        None => did_you_mean(&wanted, paths()),
    };
    Err(format!(
        "a {singular} has no field \"{}\"{meant}; quorate explain {singular} --recursive lists all",
        path.escape_debug()
    ))
}

fn line(field: &Asked, name: &str) -> String {
    let expected = match field.expected.as_str() {
        "" => "any value",
        expected => expected,
    };
    match field.required {
        true => format!("{name}  ({expected}; required)"),
        false => format!("{name}  ({expected})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::objects::kinds::registry::KINDS;

    #[test]
    fn every_kind_and_every_field_that_a_document_may_have_is_explained_and_nothing_else() {
        for kind in KINDS {
            let name = kind.words.kind;
            assert!(!meanings::of_kind(name).is_empty(), "{name}");
            let fields = kind.applied.map(|codec| codec.fields()).unwrap_or_default();
            let paths: Vec<&str> = fields.iter().map(|field| field.path.as_str()).collect();
            let unexplained: Vec<&&str> = paths
                .iter()
                .filter(|path| meanings::of_field(name, path).is_empty())
                .collect();
            assert!(unexplained.is_empty(), "{name}: {unexplained:?}");
            let unknown: Vec<&str> = meanings::fields_of(name)
                .filter(|path| !paths.contains(path))
                .collect();
            assert!(unknown.is_empty(), "{name} has no {unknown:?}");
        }
    }

    #[test]
    fn a_field_is_explained_with_the_fields_below_it() {
        let volumes = find("volumes").unwrap();
        let text = explain(volumes, "spec.accessMode", false).unwrap();
        for part in [
            "Kind:   Volume\nField:  spec.accessMode  (an object; required)\n",
            "\n  scope  (one of singleNode, multiNode; required)\n",
            "\n  mount  (an object)\n",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("fsType"), "{text}");
        assert!(
            explain(volumes, "spec.accessMode", true)
                .unwrap()
                .contains("\n  mount.fsType  (a string)\n")
        );
        let csi = explain(find("no").unwrap(), "status.csi", false).unwrap();
        assert!(csi.contains("\n  nodeID  (a string; required)\n"), "{csi}");
        assert!(!explain(volumes, "spec.group", true).unwrap().contains("Fields:"));
    }

    #[test]
    fn every_field_of_a_document_says_what_its_value_must_be() {
        for kind in KINDS.iter().filter(|kind| kind.applied.is_some()) {
            let text = explain(kind, "", true).unwrap();
            assert!(!text.contains("any value"), "{text}");
            assert!(text.contains("\n  kind  (a string; required)\n"), "{text}");
        }
        let capacity = explain(find("volumes").unwrap(), "spec.capacity.required", false).unwrap();
        assert!(capacity.contains("an amount like 10Gi"), "{capacity}");
    }

    #[test]
    fn a_path_that_leads_nowhere_is_refused_with_what_was_meant() {
        let why = explain(find("node").unwrap(), "spec.desiredRol", false).unwrap_err();
        assert!(
            why.contains("a node has no field \"spec.desiredRol\" (did you mean desiredRole?)"),
            "{why}"
        );
        let why = explain(find("node").unwrap(), "spec.nonsense", false).unwrap_err();
        assert!(
            !why.contains("did you mean"),
            "nothing below spec is like it: {why}"
        );
        assert!(explain(find("member").unwrap(), "spec", false).is_err());
        assert!(
            explain(find("member").unwrap(), "", false)
                .unwrap()
                .contains("quorate get members -o yaml")
        );
    }
}
