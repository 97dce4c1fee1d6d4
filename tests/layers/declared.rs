//! Source files that no module declares: cargo never compiles them, and the tests in them never run.

use std::collections::BTreeSet;

use super::source::{Files, folder_of_parts};

/// Files of `tests` and `benches` that a manifest names; every crate has its `main.rs` or `lib.rs`.
const ROOTS: [&str; 3] = ["tests/main.rs", "benches/gate.rs", "benches/deallocation.rs"];

/// Files that are no crate's root and that no other file declares.
pub fn undeclared(files: &Files) -> Vec<String> {
    let declared: BTreeSet<String> = files
        .iter()
        .flat_map(|(path, file)| declares(path, &file.text))
        .collect();
    let roots = ["/main.rs", "/lib.rs"];
    let lost = files.iter().map(|(path, _)| path).filter(|path| {
        let root = ROOTS.contains(path) || roots.iter().any(|root| path.ends_with(root));
        !root && !declared.contains(*path)
    });
    lost.map(|path| format!("no module declares {path}")).collect()
}

/// The files that this one may declare: `mod name;`, with or without a path of its own.
fn declares(path: &str, text: &str) -> Vec<String> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let parts = if ROOTS.contains(&path) {
        folder
    } else {
        folder_of_parts(path)
    };
    let (mut found, mut at) = (Vec::new(), None);
    for line in text.lines().map(str::trim) {
        if let Some(path) = line
            .strip_prefix("#[path = \"")
            .and_then(|line| line.strip_suffix("\"]"))
        {
            at = Some(normal(&format!("{folder}/{path}")));
        } else if let Some(name) = declaration(line) {
            match at.take() {
                Some(path) => found.push(path),
                None => found.extend([format!("{parts}/{name}.rs"), format!("{parts}/{name}/mod.rs")]),
            }
        }
    }
    found
}

/// The name in `mod name;`, of any visibility.
fn declaration(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("mod ")?;
    let visible = before.is_empty() || before.starts_with("pub");
    rest.strip_suffix(';').filter(|_| visible)
}

/// A path without `..`.
fn normal(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn a_file_that_no_module_declares_is_found() {
    let files = [
        ("tests/main.rs", "mod gate;\nmod layers;"),
        ("tests/layers.rs", "pub(crate) mod part;"),
        ("tests/layers/part.rs", "// mod other;"),
        ("tests/layers/other.rs", ""),
        ("tests/gate/mod.rs", "mod plan;"),
        ("tests/gate/plan.rs", ""),
        ("tests/lost.rs", "mod lost;"),
        (
            "benches/roles/main.rs",
            "#[path = \"../shared/leader.rs\"]\npub mod leader;",
        ),
        ("benches/shared/leader.rs", ""),
        ("benches/shared/memory.rs", ""),
    ];
    assert_eq!(
        undeclared(&Files::of(&files)),
        [
            "no module declares benches/shared/memory.rs",
            "no module declares tests/layers/other.rs",
            "no module declares tests/lost.rs",
        ]
    );
}
