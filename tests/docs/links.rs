//! The links of the manuals, and the files that they name.

use quorate_dev::workspace::root;
use regex::Regex;

use super::{manuals, read};

/// The anchor that a heading gets.
pub fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let mut found = 0;
    for file in manuals() {
        let text = read(&file);
        for target in link.captures_iter(&text).map(|found| found[1].to_owned()) {
            if target.starts_with("http") {
                continue;
            }
            found += 1;
            let (path, heading) = target.split_once('#').unwrap_or((&target, ""));
            let path = match path {
                "" => root().join(&file),
                path => root().join(file.parent().unwrap()).join(path),
            };
            assert!(path.exists(), "{}: {target} does not exist", file.display());
            if heading.is_empty() {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let mut headings = text.lines().filter(|line| line.starts_with('#'));
            assert!(
                headings.any(|line| anchor(line.trim_start_matches('#')) == heading),
                "{}: {target} has no such heading",
                file.display()
            );
        }
    }
    assert!(found > 20, "only {found} links were found");
}

#[test]
fn every_source_file_that_a_manual_names_exists() {
    let path = Regex::new(r"`((?:src|tests|benches|deploy|proto|docs|examples|dev)/[^`\s]*)`").unwrap();
    let mut found = 0;
    for file in manuals() {
        for named in path.captures_iter(&read(&file)) {
            let named = &named[1];
            if named.contains(['*', '<', '{']) {
                continue;
            }
            found += 1;
            assert!(root().join(named).exists(), "{} names {named}", file.display());
        }
    }
    assert!(found > 10, "only {found} files were found");
}
