//! YAML and JSON: parses texts into documents and writes documents.

use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// How deep lists and objects of a YAML text may be nested in each other.
const DEEPEST: usize = 64;

/// Why a text is neither YAML nor JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The YAML parser's error, with line and column.
    #[error("not valid YAML: {0}")]
    Yaml(String),
    /// The JSON parser's error, with line and column.
    #[error("not valid JSON: {0}")]
    Json(String),
}

/// All documents of a text: YAML documents, or JSON values one after another. Empty documents are left out.
///
/// # Errors
/// The first syntax error, with its place. A key that occurs twice is one, too.
pub fn parse(text: &str) -> Result<Vec<Value>, Unreadable> {
    // Flow-style YAML begins with a brace, too. What is not JSON goes to the YAML parser.
    let json = if text.trim_start().starts_with(['{', '[']) {
        match parse_json(text) {
            Ok(documents) => return Ok(documents),
            Err(error) => Some(error),
        }
    } else {
        None
    };
    parse_yaml(text).map_err(|error| match json {
        // Quoted keys: its author meant JSON and needs the JSON parser's error.
        Some(json) if text.contains("\":") => json,
        _ => error,
    })
}

fn parse_json(text: &str) -> Result<Vec<Value>, Unreadable> {
    serde_json::Deserializer::from_str(text)
        .into_iter::<Strict>()
        .map(|document| document.map(|Strict(value)| value))
        .collect::<Result<_, _>>()
        .map_err(|error| Unreadable::Json(error.to_string()))
}

fn parse_yaml(text: &str) -> Result<Vec<Value>, Unreadable> {
    let options = serde_saphyr::options! {
        // YAML 1.2: `no` and `on` are words, as in `country: no`.
        strict_booleans: true,
        // The message has line and column; a multi-line excerpt does not fit into a list of faults.
        with_snippet: false,
        budget: limits(),
    };
    let documents: Vec<Strict> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| Unreadable::Yaml(with_place(&error)))?;
    Ok(documents.into_iter().map(|Strict(value)| value).collect())
}

/// The limits of a YAML text. It is in memory already, so it may hold as many documents and values as `get` prints. What stays
/// limited is what a short text can make of itself: nesting and aliases.
pub fn limits() -> Option<serde_saphyr::Budget> {
    serde_saphyr::budget! {
        max_documents: usize::MAX,
        max_events: usize::MAX,
        max_nodes: usize::MAX,
        max_total_scalar_bytes: usize::MAX,
        max_depth: DEEPEST,
    }
}

/// The parser's error for the author of the text, with its place.
fn with_place(error: &serde_saphyr::Error) -> String {
    let Some(words) = in_our_words(error) else {
        return error.to_string();
    };
    match error.location() {
        Some(at) => format!("{words} at line {}, column {}", at.line(), at.column()),
        None => words,
    }
}

/// What the parser found, in words for the author of the text and without its place. `None` where the parser's own words serve: some of
/// those are for its caller.
pub fn in_our_words(error: &serde_saphyr::Error) -> Option<String> {
    use serde_saphyr::Error;
    use serde_saphyr::budget::BudgetBreach;
    Some(match error {
        Error::Budget {
            breach: BudgetBreach::Depth { .. },
            ..
        } => format!("nested deeper than {DEEPEST} levels"),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => "more aliases (*name) than are read".to_owned(),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("key \"{key}\" occurs twice"),
        _ => return None,
    })
}

/// One document as YAML, with a newline at its end.
pub fn to_yaml(document: &Value) -> String {
    let options = serde_saphyr::ser_options! {
        // Messages stay on one line, so that they can be searched for.
        folded_wrap_chars: usize::MAX,
    };
    let mut text = String::new();
    match serde_saphyr::to_fmt_writer_with_options(&mut text, document, options) {
        Ok(()) => text,
        // JSON is YAML, too. This does not happen: a `Value` has string keys only, and writing to a `String` cannot fail.
        Err(_) => to_json(document),
    }
}

/// One document as JSON, indented, with a newline at its end.
pub fn to_json(document: &Value) -> String {
    format!("{document:#}\n")
}

/// A JSON value in which no key occurs twice: `serde_json` alone would silently keep the last one.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(element)) = elements.next_element()? {
            list.push(element);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Strict(value))) = entries.next_entry::<String, Strict>()? {
            if map.contains_key(&key) {
                return Err(serde::de::Error::custom(format_args!(
                    "key \"{key}\" occurs twice"
                )));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_documents_and_json_values_are_read_alike() {
        let expected = vec![json!({"kind": "Node", "n": 1}), json!({"kind": "Node", "n": 2})];
        for text in [
            "kind: Node\nn: 1\n---\nkind: Node\nn: 2\n",
            "---\nkind: Node\nn: 1\n---\n# nothing\n---\nkind: Node\nn: 2\n...\n",
            "{\"kind\": \"Node\", \"n\": 1}\n{\"kind\": \"Node\", \"n\": 2}\n",
            "{\n\t\"kind\": \"Node\",\n\t\"n\": 1\n}{\"kind\":\"Node\",\"n\":2}",
            "{kind: Node, n: 1}\n---\n{kind: Node, n: 2}\n",
        ] {
            assert_eq!(parse(text), Ok(expected.clone()), "{text}");
        }
        assert_eq!(parse(""), Ok(vec![]));
        assert_eq!(parse("# only a comment\n---\n"), Ok(vec![]));
    }

    #[test]
    fn words_stay_words_and_numbers_stay_numbers() {
        assert_eq!(
            parse("a: no\nb: 1.2.0\nc: 1.2\nd: true\ne: ~\nf: \"5\"\ng: 2024-01-01T00:00:00Z"),
            Ok(vec![
                json!({"a": "no", "b": "1.2.0", "c": 1.2, "d": true, "e": null, "f": "5", "g": "2024-01-01T00:00:00Z"})
            ])
        );
    }

    #[test]
    fn a_syntax_error_is_reported_with_its_place_and_in_its_own_language() {
        let yaml = parse("kind: Node\nspec: [1, 2\n").unwrap_err().to_string();
        assert!(
            yaml.starts_with("not valid YAML: ") && yaml.contains("line"),
            "{yaml}"
        );
        let json = parse("{\"kind\": \"Node\",\n \"spec\": {}\n")
            .unwrap_err()
            .to_string();
        assert!(
            json.starts_with("not valid JSON: ") && json.contains("line 3"),
            "{json}"
        );
    }

    #[test]
    fn a_key_that_occurs_twice_is_an_error_in_both_languages() {
        for text in ["spec: {a: 1}\nspec: {a: 2}\n", "{\"spec\": 1, \"spec\": 2}"] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("spec"), "{error}");
        }
    }

    #[test]
    fn what_is_written_as_yaml_reads_back_the_same() {
        let long =
            "a message that is far longer than eighty characters, with a colon: and a # and 'quotes' in it";
        let document = json!({
            "words": ["no", "1.2", "1.2.0", "true", "null", "", " padded ", "0x10", "1e3", "~", "2024-01-01"],
            "lines": "two\nlines\n", "long": long, "empty": {}, "none": [], "nested": [{"a": {"b": 1}}], "n": null,
        });
        let text = to_yaml(&document);
        assert_eq!(parse(&text), Ok(vec![document]), "{text}");
        assert!(text.lines().any(|line| line.contains(long)), "{text}");
    }

    #[test]
    fn as_much_as_get_prints_is_read() {
        let documents = "---\na: 1\n".repeat(2_000);
        assert_eq!(parse(&documents).unwrap().len(), 2_000);
        let list = format!("items:\n{}", "- a\n".repeat(300_000));
        assert_eq!(
            parse(&list).unwrap()[0]["items"].as_array().unwrap().len(),
            300_000
        );
    }

    #[test]
    fn limits_and_faults_are_in_our_words() {
        let deep = format!("a: {}{}", "[".repeat(100), "]".repeat(100));
        let error = parse(&deep).unwrap_err().to_string();
        assert!(
            error.starts_with("not valid YAML: nested deeper than 64 levels at line 1"),
            "{error}"
        );
        let bomb = format!("a: &a [x]\nb: [{}]", "*a,".repeat(60_000));
        let error = parse(&bomb).unwrap_err().to_string();
        assert!(
            error.starts_with("not valid YAML: more aliases (*name) than are read"),
            "{error}"
        );
        let error = parse("a:\n  b: 1\n  b: 2\n").unwrap_err().to_string();
        assert_eq!(
            error,
            "not valid YAML: key \"b\" occurs twice at line 3, column 3"
        );
    }
}
