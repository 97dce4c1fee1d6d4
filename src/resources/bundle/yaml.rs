//! Files of YAML or JSON documents, taken apart so that one document that cannot be read does not hide the others.

use serde_json::Value;

/// A document, or why it cannot be read.
pub(super) struct Document {
    /// Counts from 1, as people do; empty documents count.
    pub(super) number: usize,
    pub(super) content: Result<Value, String>,
}

/// All documents of a file that hold something.
pub(super) fn documents(text: &str) -> Vec<Document> {
    // A byte order mark is no part of the first key.
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

/// Documents with the number of lines before each.
fn split(text: &str) -> Vec<(usize, String)> {
    let mut documents = vec![(0, String::new())];
    for (number, line) in text.split_inclusive('\n').enumerate() {
        // YAML 1.2 section 9.1.4: a marker is three dashes at the start of a line, then a space or the line's end.
        let after = line.strip_prefix("---");
        match after {
            Some(rest) if rest.trim().is_empty() || rest.starts_with([' ', '\t']) => {
                // A marker before anything else opens the first document instead of a second.
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
        // As kubectl reads `defaultMode: 0644`.
        legacy_octal_numbers: true,
        // A label `x: y` is a text; where a server wants a truth value, it refuses the text `yes` in clear words.
        strict_booleans: true,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let said = error.render();
        let said = said
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        // The parser counts lines from the start of the document, people from the start of the file; and it advises
        // whoever calls it, not whoever wrote the file.
        let place = said.rfind(" at line ").unwrap_or(said.len());
        let said = said[..place]
            .split(", set DuplicateKeyPolicy")
            .next()
            .unwrap_or(said);
        match error.location() {
            Some(location) => format!(
                "line {}: {said}",
                lines_before.saturating_add(location.line() as usize)
            ),
            None => said.to_owned(),
        }
    })
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
    fn documents_are_told_apart_and_empty_ones_only_counted() {
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
    fn a_document_that_cannot_be_read_hides_no_other_and_names_its_line_in_the_file() {
        let read = read("a: 1\n---\nb: 1\nb: 2\n---\nc: [1\n---\nd: 1\n");
        assert_eq!(read.len(), 4);
        assert_eq!(read[0], (1, Ok(json!({"a": 1}))));
        let duplicate = read[1].1.as_ref().unwrap_err();
        assert_eq!(duplicate, "line 4: duplicate mapping key: b");
        let unclosed = read[2].1.as_ref().unwrap_err();
        assert!(unclosed.starts_with("line "), "{unclosed}");
        assert_eq!(read[3], (4, Ok(json!({"d": 1}))));
    }

    #[test]
    fn numbers_are_read_as_kubectl_reads_them() {
        assert_eq!(
            read("defaultMode: 0644\n"),
            [(1, Ok(json!({"defaultMode": 420})))]
        );
    }
}
