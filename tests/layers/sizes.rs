//! Functions that are too long, or nested too deep, to be read at once.

use super::source::{Files, Token, tokens};

/// Lines of a function, from its first to its closing brace.
const LINES: usize = 80;

/// Braces within the body of a function, each inside another.
const DEPTH: usize = 5;

/// The functions of the product that are longer or deeper.
pub fn excesses(files: &Files) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, file) in files.product() {
        let lines: Vec<&str> = file.text.lines().collect();
        for begin in (0..lines.len()).filter(|at| begins_function(lines[*at])) {
            let function = function_at(&lines[begin..]);
            let (length, depth) = (function.len(), depth(&function.join("\n")));
            let place = format!("{path}:{}", begin + 1);
            if length > LINES {
                faults.push(format!("{place} has {length} lines; take it apart"));
            }
            if depth > DEPTH {
                faults.push(format!("{place} is nested {depth} deep; take it apart"));
            }
        }
    }
    faults
}

fn begins_function(line: &str) -> bool {
    let Some((before, _)) = line.split_once("fn ") else {
        return false;
    };
    let mut before = before.split_whitespace();
    before.all(|word| word.starts_with("pub") || ["async", "const", "unsafe"].contains(&word))
}

/// The lines of the function that begins with the first of these. As rustfmt has it, its last line is indented as its first
/// is; the other lines between the two that are, belong to its signature.
fn function_at<'l>(lines: &'l [&'l str]) -> &'l [&'l str] {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let last = lines.iter().position(|line| {
        let text = line.trim();
        indent(line) == indent(lines[0]) && (text.ends_with(['}', ';']) || text.starts_with('}'))
    });
    &lines[..=last.unwrap_or(0)]
}

/// How many braces stand inside one another within the body.
fn depth(function: &str) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    for token in tokens(function) {
        match token {
            Token::Mark('{') => open += 1,
            Token::Mark('}') => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest.saturating_sub(1)
}

#[test]
fn a_function_is_found_that_is_a_line_too_long_or_a_brace_too_deep() {
    let long = |lines: usize| format!("fn f(\n) -> u8 {{\n{}}}\n", "    a();\n".repeat(lines - 3));
    let deep = |braces: usize| {
        format!(
            "fn g() {{ {}{} }}\n",
            "if a { ".repeat(braces),
            "}".repeat(braces)
        )
    };
    let found = |text: String| excesses(&Files::of(&[("src/a.rs", &text)]));
    assert_eq!(found(long(80) + &deep(5)), [""; 0]);
    assert_eq!(found(long(81)), ["src/a.rs:1 has 81 lines; take it apart"]);
    assert_eq!(found(deep(6)), ["src/a.rs:1 is nested 6 deep; take it apart"]);
    let method =
        "impl A {\n    fn declared(&self);\n\n    pub(super) async fn g() {\n        \"{{{{{{\";\n    }\n}\n";
    assert_eq!(found(format!("{}{method}", long(80))), [""; 0]);
    let text = method.replace("\"{{{{{{\"", "{{{{{{}}}}}}");
    assert_eq!(found(text), ["src/a.rs:4 is nested 6 deep; take it apart"]);
}
