//! Source files, and what their code consists of without comments, strings and unit tests.

use std::collections::BTreeMap;
use std::path::Path;

use quorate_dev::workspace::root;

/// Source files by their path from the root of the repository.
pub struct Files(BTreeMap<String, File>);

/// One source file.
pub struct File {
    pub text: String,
    /// The code without comments and unit tests.
    pub code: Vec<Token>,
    /// Modules that it declares for unit tests alone.
    test_modules: Vec<String>,
}

/// A piece of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A name or a keyword.
    Word(String),
    /// A string, a character, a number or a lifetime.
    Literal,
    /// `::`
    Path,
    /// Any other character.
    Mark(char),
}

impl Token {
    pub fn word(&self) -> Option<&str> {
        match self {
            Self::Word(word) => Some(word),
            _ => None,
        }
    }

    pub fn is(&self, text: &str) -> bool {
        match self {
            Self::Word(word) => word == text,
            Self::Path => text == "::",
            Self::Mark(mark) => text.chars().eq([*mark]),
            Self::Literal => false,
        }
    }
}

impl Files {
    /// Every source file below these folders.
    pub fn below(folders: &[&str]) -> Self {
        let mut files = BTreeMap::new();
        for folder in folders {
            walk(&root().join(folder), &mut files);
        }
        assert!(
            files.len() > 10,
            "only {} source files in {folders:?}",
            files.len()
        );
        Self(files)
    }

    /// Files for a test of a rule.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), File::new(text)));
        Self(files.collect())
    }

    /// All but the files that are compiled for unit tests alone.
    pub fn product(&self) -> impl Iterator<Item = (&str, &File)> {
        let tests = self.iter().flat_map(|(path, file)| {
            let below = folder_of_parts(path);
            file.test_modules
                .iter()
                .map(move |name| format!("{below}/{name}"))
        });
        let tests: Vec<String> = tests.collect();
        let is_test = move |path: &str| {
            tests
                .iter()
                .any(|test| lies_in(path, test) || *path == format!("{test}.rs"))
        };
        self.iter().filter(move |(path, _)| !is_test(path))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &File)> {
        self.0.iter().map(|(path, file)| (path.as_str(), file))
    }
}

impl File {
    fn new(text: &str) -> Self {
        let all = tokens(text);
        let code = without_tests(&all);
        let used = declared_modules(&code);
        let test_modules = declared_modules(&all)
            .into_iter()
            .filter(|name| !used.contains(name))
            .collect();
        Self {
            text: text.to_owned(),
            code,
            test_modules,
        }
    }
}

fn walk(folder: &Path, found: &mut BTreeMap<String, File>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
            found.insert(name, File::new(&std::fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The modules with a file of their own that this code declares.
fn declared_modules(code: &[Token]) -> Vec<String> {
    let declared = code
        .windows(3)
        .filter(|code| code[0].is("mod") && code[2].is(";"));
    declared
        .filter_map(|code| code[1].word().map(str::to_owned))
        .collect()
}

/// Where the parts of a module lie: beside a crate's root or a `mod.rs`, else in a folder of the module's name.
pub fn folder_of_parts(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder,
        _ => path.trim_end_matches(".rs"),
    }
}

/// Whether `path` is this file or lies below this folder.
pub fn lies_in(path: &str, place: &str) -> bool {
    let rest = path.strip_prefix(place.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What a text of Rust consists of, without its comments.
pub fn tokens(text: &str) -> Vec<Token> {
    let characters: Vec<char> = text.chars().collect();
    let (mut at, mut found) = (0, Vec::new());
    let next = |at: usize| characters.get(at).copied().unwrap_or('\0');
    while at < characters.len() {
        let first = next(at);
        match first {
            '/' if next(at + 1) == '/' => at = line_end(&characters, at),
            '/' if next(at + 1) == '*' => at = comment_end(&characters, at),
            '"' => {
                found.push(Token::Literal);
                at = string_end(&characters, at);
            }
            '\'' => {
                found.push(Token::Literal);
                at = quote_end(&characters, at);
            }
            ':' if next(at + 1) == ':' => {
                found.push(Token::Path);
                at += 2;
            }
            _ if first.is_alphanumeric() || first == '_' => {
                let begin = at;
                while next(at).is_alphanumeric() || next(at) == '_' {
                    at += 1;
                }
                let word: String = characters[begin..at].iter().collect();
                match (word.as_str(), next(at)) {
                    // Strings of bytes and of C; raw ones, with any number of `#`.
                    ("b" | "c", '"') => {
                        found.push(Token::Literal);
                        at = string_end(&characters, at);
                    }
                    ("r" | "br" | "cr", '"' | '#') => {
                        found.push(Token::Literal);
                        at = raw_end(&characters, at);
                    }
                    _ if first.is_ascii_digit() => found.push(Token::Literal),
                    _ => found.push(Token::Word(word)),
                }
            }
            _ => {
                if !first.is_whitespace() {
                    found.push(Token::Mark(first));
                }
                at += 1;
            }
        }
    }
    found
}

fn line_end(characters: &[char], mut at: usize) -> usize {
    while at < characters.len() && characters[at] != '\n' {
        at += 1;
    }
    at
}

fn comment_end(characters: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < characters.len() {
        match (characters[at], characters.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The end of a string that begins with the quote at `at`.
fn string_end(characters: &[char], mut at: usize) -> usize {
    at += 1;
    while at < characters.len() && characters[at] != '"' {
        at += if characters[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The end of a raw string, from its first `#` or quote on.
fn raw_end(characters: &[char], mut at: usize) -> usize {
    let begin = at;
    while characters.get(at) == Some(&'#') {
        at += 1;
    }
    let hashes = at - begin;
    if characters.get(at) != Some(&'"') {
        // A raw name, such as r#type.
        return at;
    }
    at += 1;
    while at < characters.len() {
        let closes =
            characters[at] == '"' && (1..=hashes).all(|number| characters.get(at + number) == Some(&'#'));
        at += 1;
        if closes {
            break;
        }
    }
    at + hashes
}

/// The end of a character or a lifetime.
fn quote_end(characters: &[char], at: usize) -> usize {
    match (characters.get(at + 1), characters.get(at + 2)) {
        (Some('\\'), _) => {
            let mut end = at + 3;
            while end < characters.len() && characters[end] != '\'' {
                end += 1;
            }
            end + 1
        }
        (Some(_), Some('\'')) => at + 3,
        // A lifetime: its name is taken for a word, which no rule looks for.
        _ => at + 1,
    }
}

/// The code without the items that are compiled for unit tests alone.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut at, mut kept) = (0, Vec::new());
    while at < tokens.len() {
        let rest = &tokens[at..];
        if rest.len() >= TEST.len() && TEST.iter().zip(rest).all(|(text, token)| token.is(text)) {
            at = item_end(tokens, at + TEST.len());
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The end of the item at `at`: its closing brace, or a semicolon before any brace.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0;
    while at < tokens.len() {
        match &tokens[at] {
            Token::Mark('{' | '(' | '[') => depth += 1,
            Token::Mark(close @ ('}' | ')' | ']')) => {
                depth -= 1;
                if depth == 0 && *close == '}' {
                    return at + 1;
                }
            }
            Token::Mark(';') if depth == 0 => return at + 1,
            _ => {}
        }
        at += 1;
    }
    at
}

#[test]
fn comments_strings_and_unit_tests_are_no_code() {
    let text = r##"
//! use crate::a;
/* use crate::b; /* nested */ use crate::c; */
const TEXT: &str = "use crate::d; \" //";
const RAW: &str = r#"use "crate::e""#;
const QUOTE: char = '"'; fn f<'a>(x: &'a str) {}
#[cfg(test)]
#[path = "x.rs"]
mod tests { use crate::f; fn g() { {} } }
#[cfg(test)]
mod more;
use crate::real;
"##;
    let file = File::new(text);
    let words: Vec<&str> = file.code.iter().filter_map(Token::word).collect();
    assert!(
        !words
            .iter()
            .any(|word| ["a", "b", "c", "d", "e", "tests", "more", "g"].contains(word) && *word != "a"),
        "{words:?}"
    );
    assert_eq!(words[words.len() - 3..], ["use", "crate", "real"]);
}

#[test]
fn a_file_that_only_unit_tests_declare_is_no_part_of_the_product() {
    let files = Files::of(&[
        ("src/lib.rs", "mod plan;"),
        ("src/plan.rs", "mod step; #[cfg(test)] mod tests;"),
        ("src/plan/step.rs", ""),
        ("src/plan/tests.rs", "mod random;"),
        ("src/plan/tests/random.rs", ""),
    ]);
    let product: Vec<&str> = files.product().map(|(path, _)| path).collect();
    assert_eq!(product, ["src/lib.rs", "src/plan.rs", "src/plan/step.rs"]);
}

#[test]
fn a_folders_files_lie_in_it_and_its_namesakes_do_not() {
    assert!(lies_in("src/retry/mod.rs", "src/retry"));
    assert!(lies_in("src/clock.rs", "src/clock.rs"));
    assert!(!lies_in("src/retry_later.rs", "src/retry"));
}
