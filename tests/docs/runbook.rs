//! docs/runbook.md against the alerts that are shipped and the reasons that conditions give.

use std::collections::BTreeSet;
use std::path::Path;

use regex::Regex;

use super::links::anchor;
use super::read;
use crate::layers::source::{Files, Token};

const FILE: &str = "docs/runbook.md";

/// Where reasons stand, and how: the first group of the pattern is the word.
const REASONS: [(&str, &str); 16] = [
    // Conditions of nodes and members, reasons of joins, rules by which commands refuse.
    ("src/roles/reason.rs", r#"Self::\w+ => "(\w+)""#),
    (
        "src/roles/controller/outage.rs",
        r#"const REASON: &str = "(\w+)""#,
    ),
    (
        "src/cli/objects/kinds/members/seen.rs",
        r#"computed\(\s*\w+,\s*"(\w+)""#,
    ),
    (
        "src/control/session/duplicates.rs",
        r#"const WHY: .* = \(\s*"(\w+)""#,
    ),
    // Of volumes and publications.
    ("src/volumes/operation/failure.rs", r#"Self::new\("(\w+)""#),
    ("src/secrets/source.rs", r#"Self::.* => "(\w+)""#),
    ("src/volumes/record.rs", r#"reason: "(\w+)""#),
    ("src/volumes/record.rs", r#"Some\(\("(\w+)""#),
    ("src/volumes/drift.rs", r#"pub const NOT_\w+: &str = "(\w+)""#),
    ("src/grpc_code.rs", r#"Code::\w+ => "(\w+)""#),
    // Of the reconciler.
    (
        "src/resources/report.rs",
        r#"(?:Some\(Stopped::.*\)|None if .*) => "(\w+)""#,
    ),
    ("src/gate/degraded.rs", r#"const \w+: &str = "(\w+)""#),
    // Of plugins.
    ("src/csi/error.rs", r#"Self::\w+ \{ \.\. \} => "(\w+)""#),
    (
        "src/volumes/plugin_state.rs",
        r#"\(Err\(Unusable::.* => \("(\w+)""#,
    ),
    // Of certificates.
    (
        "src/identity/plan.rs",
        r#"Self::\w+(?:\(_\)| \{ \.\. \})? => "(\w+)""#,
    ),
    ("src/control/report.rs", r#"const NO_DATA: &str = "(\w+)""#),
];

/// Words that these patterns find as well: a call that succeeded has no condition, and two failures write none, since etcd did not
/// answer or the record changes.
const NO_REASONS: [&str; 3] = ["OK", "EtcdFailed", "Restless"];

/// The files that set a condition, or hand a reason to what does. Where another one does, its reasons belong into the table above.
const SETTERS: [&str; 10] = [
    "src/cli/objects/kinds/members/seen.rs",
    "src/control/report.rs",
    "src/control/session/duplicates.rs",
    "src/gate/controller.rs",
    "src/gate/status_key.rs",
    "src/roles/controller/conditions.rs",
    "src/roles/controller/outage.rs",
    "src/roles/node_update.rs",
    "src/store/object/condition.rs",
    "src/volumes/record.rs",
];

/// The words after `### `, in the order of the page.
fn sections(runbook: &str) -> Vec<&str> {
    runbook
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect()
}

fn alerts() -> BTreeSet<String> {
    let rules = read(Path::new("deploy/monitoring/prometheusrule.yaml"));
    let alert = Regex::new(r"- alert: (\w+)").unwrap();
    alert
        .captures_iter(&rules)
        .map(|found| found[1].to_owned())
        .collect()
}

/// The waits of volumes that a person has to end; the others become no condition.
fn waits_of_volumes() -> BTreeSet<String> {
    let text = read(Path::new("src/volumes/plan/wait.rs"));
    let (words, faults) = text.split_once("pub fn is_fault").unwrap();
    let (faults, _) = faults.split_once("=> true").unwrap();
    let variant = Regex::new(r"Self::(\w+)").unwrap();
    let words = variant.captures_iter(faults).map(|found| {
        let word = Regex::new(&format!(r#"Self::{} => "(\w+)""#, &found[1])).unwrap();
        word.captures(words).unwrap()[1].to_owned()
    });
    words.collect()
}

fn reasons() -> BTreeSet<String> {
    let mut reasons = waits_of_volumes();
    for (file, pattern) in REASONS {
        let text = read(Path::new(file));
        let (text, _) = text.split_once("#[cfg(test)]").unwrap_or((text.as_str(), ""));
        let before = reasons.len();
        let word = Regex::new(pattern).unwrap();
        reasons.extend(word.captures_iter(text).map(|found| found[1].to_owned()));
        assert!(
            reasons.len() > before,
            "{file} has no reason of the form {pattern}"
        );
    }
    for word in NO_REASONS {
        assert!(reasons.remove(word), "{word} is none of the words");
    }
    reasons
}

#[test]
fn the_runbook_has_a_section_for_each_alert_and_each_reason_and_no_other() {
    let runbook = read(Path::new(FILE));
    let sections = sections(&runbook);
    let mut expected = alerts();
    assert!(expected.len() > 40, "only {} alerts were found", expected.len());
    let reasons = reasons();
    assert!(reasons.len() > 80, "only {} reasons were found", reasons.len());
    expected.extend(reasons);
    let mut seen = BTreeSet::new();
    for section in sections {
        assert!(seen.insert(section.to_owned()), "{FILE} has {section} twice");
    }
    let missing: Vec<_> = expected.difference(&seen).collect();
    let left: Vec<_> = seen.difference(&expected).collect();
    assert!(missing.is_empty(), "{FILE} has no section for {missing:?}");
    assert!(
        left.is_empty(),
        "{FILE} has sections for what does not exist: {left:?}"
    );
}

#[test]
fn every_section_of_the_runbook_says_what_it_means_what_to_look_at_and_what_to_do() {
    let runbook = read(Path::new(FILE));
    let mut sections = 0;
    for section in runbook.split("\n### ").skip(1) {
        let (name, text) = section.split_once('\n').unwrap();
        let (text, _) = text.split_once("\n## ").unwrap_or((text, ""));
        let items: Vec<&str> = text.lines().filter(|line| line.starts_with("- ")).collect();
        let begins = |item: &str, words: &str| item.starts_with(&format!("- {words}: "));
        let [means, look, act] = items[..] else {
            panic!("{name} has not three items: {items:?}")
        };
        assert!(
            begins(means, "Means") && begins(look, "Look at") && begins(act, "Do"),
            "{name}"
        );
        sections += 1;
    }
    assert!(sections > 100, "only {sections} sections were found");
}

#[test]
fn every_alert_leads_to_its_section() {
    let rules = read(Path::new("deploy/monitoring/prometheusrule.yaml"));
    let runbook = read(Path::new(FILE));
    let anchors: BTreeSet<String> = sections(&runbook).into_iter().map(anchor).collect();
    let url = Regex::new(r"runbook_url: \S+/runbook\.md#(\S+)").unwrap();
    let led: BTreeSet<String> = url
        .captures_iter(&rules)
        .map(|found| found[1].to_owned())
        .collect();
    assert_eq!(led.len(), alerts().len());
    let lost: Vec<_> = led.difference(&anchors).collect();
    assert!(lost.is_empty(), "{FILE} has no such headings: {lost:?}");
}

/// Whether the code makes a condition, or hands a reason to what does.
fn sets_a_condition(code: &[Token]) -> bool {
    let named = ["set_degraded", "with_condition", "with_blocked"];
    let is_named = |token: &Token| named.iter().any(|name| token.is(name));
    let is_set = |tokens: &[Token]| {
        tokens[0].is("condition") && tokens[1].is("::") && (tokens[2].is("set") || tokens[2].is("set_false"))
    };
    let is_made = |tokens: &[Token]| tokens[0].is("Condition") && tokens[1].is("{");
    code.iter().any(is_named) || code.windows(3).any(is_set) || code.windows(2).any(is_made)
}

#[test]
fn conditions_are_set_in_these_files_alone_whose_reasons_are_known() {
    let files = Files::below(&["src"]);
    let setters = files.product().filter(|(_, file)| sets_a_condition(&file.code));
    let setters: Vec<&str> = setters.map(|(path, _)| path).collect();
    assert_eq!(setters, SETTERS);
}
