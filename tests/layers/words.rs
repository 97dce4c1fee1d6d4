//! Words of a dialect. Each has a plainer one, which says who does what.

use std::path::Path;

/// The words and phrases, and what to write instead.
const WORDS: [(&str, &str); 8] = [
    ("anew", "again"),
    ("are to be", "must be, or who does it"),
    ("is to be", "must be, or who does it"),
    ("is to go", "must go, or who removes it"),
    ("nobody", "the absent process or person, by name"),
    ("somebody", "the process or person, by name"),
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

fn says(line: &str, phrase: &str) -> bool {
    let words = line.split(|character: char| !character.is_alphabetic());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let phrase: Vec<&str> = phrase.split(' ').collect();
    let mut places = words.windows(phrase.len());
    places.any(|place| {
        let mut pairs = place.iter().zip(&phrase);
        pairs.all(|(word, wanted)| word.eq_ignore_ascii_case(wanted))
    })
}

/// The sources and documents below this folder, or this file.
pub fn texts(root: &Path, place: &str, found: &mut Vec<(String, String)>) {
    let path = root.join(place);
    if path.is_dir() {
        for entry in std::fs::read_dir(&path).unwrap() {
            let name = entry.unwrap().file_name();
            texts(root, &format!("{place}/{}", name.to_str().unwrap()), found);
        }
    } else if [".rs", ".md", ".proto", ".yaml"]
        .iter()
        .any(|ending| place.ends_with(ending))
    {
        found.push((place.to_owned(), std::fs::read_to_string(&path).unwrap()));
    }
}

#[test]
fn a_word_of_the_dialect_is_found_and_a_longer_one_is_none() {
    let texts = [
        ("a.rs", "// Untold, nobodys.\n// (Whoever)"),
        ("b.md", "He was told."),
        ("c.yaml", "# It is to begin, and Is to be done."),
    ];
    assert_eq!(
        said(texts.into_iter()),
        [
            "a.rs:2 says \"whoever\"; write the process or person, by name",
            "b.md:1 says \"told\"; write logged, reported or notified",
            "c.yaml:1 says \"is to be\"; write must be, or who does it"
        ]
    );
}
