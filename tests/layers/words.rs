//! Words of a dialect. Each has a plainer one, which says who does what.

use std::path::Path;

/// The words, and what to write instead.
const WORDS: [(&str, &str); 4] = [
    ("anew", "again"),
    ("nobody", "the absent process or person, by name"),
    ("told", "logged, reported or notified"),
    ("whoever", "the process or person, by name"),
];

/// The lines of these texts, by their paths, that say one of the words.
pub fn said<'a>(texts: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in texts {
        for (number, line) in text.lines().enumerate() {
            for (word, instead) in WORDS.iter().filter(|(word, _)| says(line, word)) {
                faults.push(format!("{path}:{} says {word:?}; write {instead}", number + 1));
            }
        }
    }
    faults
}

fn says(line: &str, word: &str) -> bool {
    let mut words = line.split(|character: char| !character.is_alphabetic());
    words.any(|said| said.eq_ignore_ascii_case(word))
}

/// The sources and documents below this folder, or this file.
pub fn texts(root: &Path, place: &str, found: &mut Vec<(String, String)>) {
    let path = root.join(place);
    if path.is_dir() {
        for entry in std::fs::read_dir(&path).unwrap() {
            let name = entry.unwrap().file_name();
            texts(root, &format!("{place}/{}", name.to_str().unwrap()), found);
        }
    } else if place.ends_with(".rs") || place.ends_with(".md") {
        found.push((place.to_owned(), std::fs::read_to_string(&path).unwrap()));
    }
}

#[test]
fn a_word_of_the_dialect_is_found_and_a_longer_one_is_none() {
    let texts = [
        ("a.rs", "// Untold, nobodys.\n// (Whoever)"),
        ("b.md", "He was told."),
    ];
    assert_eq!(
        said(texts.into_iter()),
        [
            "a.rs:2 says \"whoever\"; write the process or person, by name",
            "b.md:1 says \"told\"; write logged, reported or notified"
        ]
    );
}
