//! Tables, descriptions and documents: `-o table|wide|json|yaml|name`, and a standard output that its reader may close
//! early.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use clap::ValueEnum;

use super::exit::Failure;
use crate::lines;

/// How `get` shows objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One line per object, the most important columns
    #[default]
    Table,
    /// One line per object, all columns
    Wide,
    /// Documents; `apply` takes those of the kinds that it writes
    Json,
    /// Documents; `apply` takes those of the kinds that it writes
    Yaml,
    /// KIND/NAME of each object
    Name,
}

/// Spaces between two columns.
const GAP: usize = 3;

/// Lays out rows in columns. Later rows keep the widths of the earlier ones, unless a cell does not fit.
#[derive(Debug, Default)]
pub struct Table {
    widths: Vec<usize>,
}

impl Table {
    /// The rows as text, one line each, without spaces at the end of a line.
    pub fn lay_out(&mut self, rows: &[Vec<String>]) -> String {
        for row in rows {
            self.widths.resize(self.widths.len().max(row.len()), 0);
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(columns(cell));
            }
        }
        let mut text = String::new();
        for row in rows {
            let mut line = String::new();
            for (width, cell) in self.widths.iter().zip(row) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width + GAP - columns(cell)));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// The width of a cell in characters.
fn columns(cell: &str) -> usize {
    cell.chars().count()
}

/// Shown in the place of an empty value.
pub const NONE: &str = "<none>";

/// Shown in the place of a value that could not be learnt.
pub const UNKNOWN: &str = "<unknown>";

/// The text, or [`NONE`] if it is empty.
pub fn or_none(text: &str) -> &str {
    if text.is_empty() { NONE } else { text }
}

/// `yes` or `no`.
pub fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// `a=1,b=2`, or [`NONE`].
pub fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let pairs: Vec<String> = pairs
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    or_none(&pairs.join(",")).to_owned()
}

/// `20 KiB`, `1.5 MiB`: as much as is of interest.
pub fn bytes(size: u64) -> String {
    let mut unit = 0;
    let mut scaled = size;
    let mut rest = 0;
    while scaled >= 1024 && unit < 4 {
        (scaled, rest) = (scaled / 1024, scaled % 1024);
        unit += 1;
    }
    let unit_word = ["B", "KiB", "MiB", "GiB", "TiB"][unit];
    match (unit, scaled) {
        (1.., ..10) => format!("{scaled}.{} {unit_word}", rest * 10 / 1024),
        _ => format!("{scaled} {unit_word}"),
    }
}

/// A stored text for one line of a terminal. Control characters are escaped, so that no stored value can move the
/// cursor or forge a line.
pub fn one_line(text: &str) -> String {
    escaped(text, char::is_control)
}

/// The same for a text that may have several lines, and tabs in them.
pub fn some_lines(text: &str) -> String {
    escaped(text, |c| c.is_control() && !matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    text.chars()
        .flat_map(|c| match is_escaped(c) {
            true => c.escape_default().collect::<Vec<_>>(),
            false => vec![c],
        })
        .collect()
}

/// A text as one word of a shell, or as one value of a systemd environment file: in quotes if it has a character that means
/// something to either.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+[]".contains(c);
    match text.chars().all(plain) && !text.is_empty() {
        true => text.to_owned(),
        false => format!("'{}'", one_line(text).replace('\'', r"'\''")),
    }
}

/// Whether standard output still has a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// It has.
    Listening,
    /// Its reader, `head` for example, has read enough. That is no failure.
    Gone,
}

/// Writes a text to standard output and flushes it.
///
/// # Errors
/// 1 if it cannot be written for another reason than that its reader is gone.
pub fn print(text: &str) -> Result<Reader, Failure> {
    print_bytes(text.as_bytes())
}

/// The same for what is no text.
///
/// # Errors
/// As [`print`].
pub fn print_bytes(bytes: &[u8]) -> Result<Reader, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Listening),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::failed(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}

/// How long a note waits to be written before the output that follows it.
const NOTE_LIMIT: Duration = Duration::from_millis(100);

/// Writes a note beside the output, to standard error.
pub fn note(text: impl Display) {
    lines::stderr().line(some_lines(&text.to_string()));
    lines::stderr().flush(NOTE_LIMIT);
}

/// Writes a warning to standard error.
pub fn warn(text: &str) {
    note(format_args!("warning: {text}"));
}

/// A description: `Name:   value` lines in sections, as `kubectl describe` lays them out.
#[derive(Debug, Default)]
pub struct Description {
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    /// The depth of indentation: 0, or 1 below the line that heads a section.
    depth: usize,
    name: String,
    value: String,
}

impl Description {
    /// A line `name: value`; without a name, one more value of the line before.
    pub fn field(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        self.line(0, name, &value.into())
    }

    /// A [`Self::field`] in the section of the last one.
    pub fn nested(&mut self, name: &str, value: impl Into<String>) -> &mut Self {
        self.line(1, name, &value.into())
    }

    fn line(&mut self, depth: usize, name: &str, value: &str) -> &mut Self {
        let name = if name.is_empty() {
            String::new()
        } else {
            format!("{name}:")
        };
        let value = one_line(value);
        self.lines.push(Line { depth, name, value });
        self
    }

    /// A name with one line for each value; `none` if there is no value.
    pub fn list(
        &mut self,
        name: &str,
        values: impl IntoIterator<Item = impl Into<String>>,
        none: &str,
    ) -> &mut Self {
        let mut values = values.into_iter().map(Into::into);
        self.field(name, values.next().unwrap_or_else(|| none.to_owned()));
        for value in values {
            self.field("", value);
        }
        self
    }

    /// A name with one line for each pair, or [`NONE`].
    pub fn pairs<'a>(
        &mut self,
        name: &str,
        pairs: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> &mut Self {
        let pairs = pairs.into_iter().map(|(key, value)| format!("{key}={value}"));
        self.list(name, pairs, NONE)
    }

    /// All lines, with the values of one depth in one column.
    pub fn render(&self) -> String {
        let width = |depth: usize| {
            let valued = self
                .lines
                .iter()
                .filter(|line| line.depth == depth && !line.value.is_empty());
            valued.map(|line| columns(&line.name)).max().unwrap_or(0) + 2
        };
        let widths = [width(0), width(1)];
        let mut text = String::new();
        for Line { depth, name, value } in &self.lines {
            let (indent, width) = ("  ".repeat(*depth), widths[*depth]);
            let indented = format!("{indent}{name:width$}{value}");
            text.push_str(indented.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_end_without_spaces() {
        let text = Table::default().lay_out(&[
            row(&["NAME", "ROLE", "AGE"]),
            row(&["n1", "manager", "3d4h"]),
            row(&["länger", "", ""]),
        ]);
        assert_eq!(text, "NAME     ROLE      AGE\nn1       manager   3d4h\nlänger\n");
    }

    #[test]
    fn later_rows_keep_the_widths_of_earlier_ones() {
        let mut table = Table::default();
        table.lay_out(&[row(&["NAME", "AGE"]), row(&["long-name", "1s"])]);
        assert_eq!(table.lay_out(&[row(&["n", "2s"])]), "n           2s\n");
        assert_eq!(
            table.lay_out(&[row(&["a-longer-name", "3s"])]),
            "a-longer-name   3s\n"
        );
        assert_eq!(table.lay_out(&[row(&["n", "4s"])]), "n               4s\n");
    }

    #[test]
    fn a_word_of_a_shell_is_in_quotes_where_a_character_means_something_to_it() {
        for plain in [
            "https://10.0.0.1:2380,http://[::1]:2380",
            "n4=http://a-b.c:2380",
            "/etc/ca.pem",
        ] {
            assert_eq!(shell_word(plain), plain);
        }
        assert_eq!(shell_word("http://a;b:2380"), "'http://a;b:2380'");
        assert_eq!(shell_word("$(id) it's"), r"'$(id) it'\''s'");
        assert_eq!(shell_word("two\nlines"), r"'two\nlines'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn control_characters_of_a_stored_text_are_escaped() {
        assert_eq!(one_line("a\x1b[2J\nb\tä"), "a\\u{1b}[2J\\nb\\tä");
        assert_eq!(some_lines("a\x1b[2J\r\n  b\tä"), "a\\u{1b}[2J\\r\n  b\tä");
    }

    #[test]
    fn a_description_aligns_its_values_by_depth() {
        let labels = std::collections::BTreeMap::from([
            ("a".to_owned(), "1".to_owned()),
            ("b".to_owned(), "2".to_owned()),
        ]);
        let mut description = Description::default();
        description.field("Name", "n1").pairs("Labels", &labels);
        description.field("Spec", "").nested("Desired Role", "worker");
        assert_eq!(
            description.render(),
            "Name:    n1\nLabels:  a=1\n         b=2\nSpec:\n  Desired Role:  worker\n"
        );
        let empty = std::collections::BTreeMap::new();
        let mut description = Description::default();
        description.pairs("Labels", &empty);
        assert_eq!(description.render(), "Labels:  <none>\n");
    }

    #[test]
    fn sizes_are_shown_in_units_that_a_person_reads() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (20_480, "20 KiB"),
            (1_600_000, "1.5 MiB"),
            (8_589_934_592, "8.0 GiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }
}
