//! The manuals: their tables against the program, their commands against a running cluster, their links.

mod console;
mod links;
mod reference;
mod runbook;
mod tour;

use std::path::{Path, PathBuf};

use quorate_dev::workspace::root;

/// The command that brings the manuals up to date, for messages.
const UPDATE: &str = "UPDATE_DOCS=1 make test ARGS=docs::";

/// Every manual, by its path from the root.
fn manuals() -> Vec<PathBuf> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    walk(&root().join("docs"), &mut found);
    found.sort();
    let relative = |path: PathBuf| path.strip_prefix(root()).unwrap().to_owned();
    found.into_iter().map(relative).collect()
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Whether the run rewrites what is generated instead of checking it.
pub fn updating() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some()
}

/// Compares a manual with what it should say. Writes it instead if `UPDATE_DOCS` is set.
#[track_caller]
fn expect_manual(file: &Path, expected: &str, faults: &str) {
    if updating() {
        std::fs::write(root().join(file), expected).unwrap();
        return;
    }
    assert!(
        faults.is_empty(),
        "{} is out of date; `{UPDATE}` rewrites it:\n{faults}",
        file.display()
    );
}
