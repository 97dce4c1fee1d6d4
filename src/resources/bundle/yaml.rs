//! Splits files of YAML or JSON into documents, so that a malformed document hides no other.

use serde_json::Value;

use crate::store::object::text;

/// One document of a file.
pub(super) struct Document {
    /// Counts from 1; empty documents count.
    pub(super) number: usize,
    /// The content, or the parser's error.
    pub(super) content: Result<Value, String>,
}

/// The documents of a file, without the empty ones.
pub(super) fn documents(text: &str) -> Vec<Document> {
    // A byte order mark is not part of the first key.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    for (index, (first_line, text)) in split(text).into_iter().enumerate() {
        let content = match parse(&text, first_line) {
            Ok(Value::Null) => continue,
            other => other,
        };
        documents.push(Document {
            number: index + 1,
            content,
        });
    }
    documents
}

/// The texts of the documents, each with the number of lines before it.
fn split(text: &str) -> Vec<(usize, String)> {
    let mut documents = vec![(0, String::new())];
    for (number, line) in text.split_inclusive('\n').enumerate() {
        // YAML 1.2 section 9.1.4: a marker is three dashes at the start of a line, then a space or the line's end.
        let after = line.strip_prefix("---");
        match after {
            Some(rest) if rest.trim().is_empty() || rest.starts_with([' ', '\t']) => {
                // A marker at the top of the file opens the first document, not the second.
                let only_comments = documents.len() == 1 && documents[0].1.lines().all(is_comment);
                if only_comments {
                    documents.clear();
                }
                documents.push((number, format!("{}\n", rest.trim_end())));
            }
            _ => {
                if let Some((_, document)) = documents.last_mut() {
                    document.push_str(line);
                }
            }
        }
    }
    documents
}

fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#') || line.starts_with('%')
}

fn parse(text: &str, lines_before: usize) -> Result<Value, String> {
    if text.lines().all(is_comment) {
        return Ok(Value::Null);
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        // `defaultMode: 0644` is octal, as for kubectl.
        legacy_octal_numbers: true,
        // The label value `y` is a string. A server that expects a boolean rejects the string `yes` in clear words.
        strict_booleans: true,
        budget: text::limits(),
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let said = text::in_our_words(&error).unwrap_or_else(|| in_a_line(&error));
        match error.location() {
            // The parser counts lines from the start of the document, an editor from the start of the file.
            Some(location) => format!(
                "line {}: {said}",
                lines_before.saturating_add(location.line() as usize)
            ),
            None => said,
        }
    })
}

/// The parser's own words, without their place.
fn in_a_line(error: &serde_saphyr::Error) -> String {
    let said = error.render();
    let said = said
        .lines()
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ");
    let place = said.rfind(" at line ").unwrap_or(said.len());
    said[..place].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Vec<(usize, Result<Value, String>)> {
        documents(text)
            .into_iter()
            .map(|document| (document.number, document.content))
            .collect()
    }

    #[test]
    fn documents_are_split_and_empty_ones_only_counted() {
        assert_eq!(
            read("# first\n---\na: 1\n---\n# nothing\n---\nb: 2\n"),
            [(1, Ok(json!({"a": 1}))), (3, Ok(json!({"b": 2})))]
        );
        assert_eq!(read("\n# only a comment\n"), []);
        assert_eq!(read("{\"a\": [1, true]}"), [(1, Ok(json!({"a": [1, true]})))]);
        assert_eq!(
            read("text: |\n  ---\n  x\n"),
            [(1, Ok(json!({"text": "---\nx\n"})))]
        );
    }

    #[test]
    fn a_malformed_document_hides_no_other_and_names_its_line_in_the_file() {
        let read = read("a: 1\n---\nb: 1\nb: 2\n---\nc: [1\n---\nd: 1\n");
        assert_eq!(read.len(), 4);
        assert_eq!(read[0], (1, Ok(json!({"a": 1}))));
        let duplicate = read[1].1.as_ref().unwrap_err();
        assert_eq!(duplicate, "line 4: key \"b\" occurs twice");
        let unclosed = read[2].1.as_ref().unwrap_err();
        assert!(unclosed.starts_with("line "), "{unclosed}");
        assert_eq!(read[3], (4, Ok(json!({"d": 1}))));
    }

    #[test]
    fn a_document_is_limited_as_for_apply_and_in_the_same_words() {
        let list = format!("items:\n{}", "- a\n".repeat(300_000));
        assert!(read(&list)[0].1.is_ok());
        let deep = format!("a: 1\n---\n{}{}\n", "[".repeat(100), "]".repeat(100));
        let error = read(&deep)[1].1.clone().unwrap_err();
        assert_eq!(error, "line 3: nested deeper than 64 levels");
        let bomb = format!("a: &a [x]\nb: [{}]", "*a,".repeat(60_000));
        let error = read(&bomb)[0].1.clone().unwrap_err();
        assert!(error.ends_with("more aliases (*name) than are read"), "{error}");
    }

    #[test]
    fn octal_numbers_are_read_as_kubectl_reads_them() {
        assert_eq!(
            read("defaultMode: 0644\n"),
            [(1, Ok(json!({"defaultMode": 420})))]
        );
    }
}
