//! The rules: what they name, what they say, and their tests by promtool.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

use super::promql::named;
use super::published::Published;
use super::{files, program, shipped};
use crate::deploy::kustomize::run;
use crate::docs::updating;
use crate::layers::source::Files;

/// A rule that raises an alert.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The name of the alert.
    pub alert: String,
    /// When it is raised.
    pub expr: String,
    /// For how long that must hold before it fires.
    #[serde(rename = "for")]
    pub pending: Option<String>,
    /// `severity`.
    pub labels: BTreeMap<String, String>,
    /// What it says.
    pub annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    groups: Vec<Group>,
}

/// Every rule that is shipped.
pub fn rules() -> Vec<Rule> {
    let mut rules = Vec::new();
    for file in files("rules") {
        let text = fs::read_to_string(&file).unwrap();
        let read: RuleFile =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for group in read.groups {
            let stem = file.file_stem().unwrap().to_str().unwrap();
            assert_eq!(group.name, format!("quorate-{stem}"));
            rules.extend(group.rules);
        }
    }
    assert!(rules.len() > 40, "only {} rules were found", rules.len());
    rules
}

#[test]
fn every_series_and_label_that_a_rule_names_exists() {
    let published = Published::read();
    for rule in rules() {
        assert_eq!(published.missing(&rule.expr), [""; 0], "{}", rule.alert);
    }
}

/// A label with a value that no series has would select nothing for ever.
#[test]
fn every_value_of_a_label_that_a_rule_names_is_a_word_of_the_program() {
    let sources = Files::below(&["src"]);
    let is_spoken = |value: &str| {
        let quoted = format!("\"{value}\"");
        sources.product().any(|(_, file)| file.text.contains(&quoted))
    };
    let mut looked_at = 0;
    for rule in rules() {
        for selector in named(&rule.expr).selectors {
            let labels = selector.labels.iter().filter(|(label, _)| label != "job");
            for (label, values) in labels {
                for value in values.split('|') {
                    looked_at += 1;
                    assert!(is_spoken(value), "{}: {label} {value}", rule.alert);
                }
            }
        }
    }
    assert!(looked_at > 40, "only {looked_at} values were found");
}

#[test]
fn every_alert_says_how_grave_it_is_and_what_it_means_and_leads_to_its_section() {
    let mut names = BTreeSet::new();
    for rule in rules() {
        let name = &rule.alert;
        assert!(names.insert(name.clone()), "{name} is there twice");
        assert!(name.starts_with("Quorate"), "{name}");
        let severity = rule.labels.get("severity").map(String::as_str);
        assert!(
            matches!(severity, Some("critical" | "warning")),
            "{name}: {severity:?}"
        );
        for annotation in ["summary", "description"] {
            let said = rule.annotations.get(annotation);
            assert!(
                said.is_some_and(|said| !said.is_empty()),
                "{name}: no {annotation}"
            );
        }
        let section = format!(
            "https://runbooks.example.com/quorate/runbook.md#{}",
            name.to_lowercase()
        );
        assert_eq!(rule.annotations.get("runbook_url"), Some(&section));
    }
}

#[test]
fn the_operators_rules_are_those_of_the_files() {
    let file = shipped("prometheusrule.yaml");
    let now = fs::read_to_string(&file).unwrap();
    let (head, _) = now.split_once("  groups:\n").unwrap();
    let mut expected = format!("{head}  groups:\n");
    for file in files("rules") {
        let text = fs::read_to_string(&file).unwrap();
        let (_, groups) = text.split_once("groups:\n").unwrap();
        expected.extend(groups.lines().map(|line| format!("  {line}\n")));
    }
    if updating() {
        fs::write(&file, expected).unwrap();
        return;
    }
    assert!(
        now == expected,
        "deploy/monitoring/prometheusrule.yaml is not what rules/ says: `UPDATE_DOCS=1 make test ARGS=monitoring::` rewrites it"
    );
}

#[test]
fn promtool_accepts_the_rules_and_each_passes_its_tests() {
    run(Command::new(program("promtool"))
        .args(["check", "rules"])
        .args(files("rules")));
    run(Command::new(program("promtool"))
        .args(["test", "rules"])
        .args(files("tests")));
}

/// The minutes at which a test looks, each with the alerts that must fire then.
type Looks = BTreeMap<u64, BTreeSet<String>>;

fn looks(test: &Value) -> Looks {
    let alert = Regex::new(r#"alertname="(\w+)""#).unwrap();
    let looks = test["promql_expr_test"].as_array().unwrap().iter();
    let looks = looks.filter(|look| look["expr"] == r#"ALERTS{alertstate="firing"}"#);
    let looks = looks.map(|look| {
        let minute = look["eval_time"].as_str().unwrap().strip_suffix('m').unwrap();
        let samples = look["exp_samples"].as_array().into_iter().flatten();
        let firing = samples.map(|sample| {
            let labels = sample["labels"].as_str().unwrap();
            alert.captures(labels).unwrap()[1].to_owned()
        });
        (minute.parse().unwrap(), firing.collect())
    });
    looks.collect()
}

/// Every test of the files, by its name: that of an alert, or what must raise none.
fn tests() -> BTreeMap<String, Vec<Looks>> {
    let mut tests: BTreeMap<String, Vec<Looks>> = BTreeMap::new();
    for file in files("tests") {
        let text = fs::read_to_string(&file).unwrap();
        let read: Value =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        for test in read["tests"].as_array().unwrap() {
            let name = test["name"].as_str().unwrap().to_owned();
            tests.entry(name).or_default().push(looks(test));
        }
    }
    tests
}

/// promtool proves that the tests pass, this one that they are there.
#[test]
fn every_alert_is_tested_before_its_time_while_it_fires_and_after_its_fault() {
    let tests = tests();
    for rule in rules() {
        let alert = &rule.alert;
        let tested = tests.get(alert);
        for looks in tested.unwrap_or_else(|| panic!("{alert} has no test")) {
            let fires = looks.iter().filter(|(_, firing)| firing.contains(alert));
            let fires: Vec<u64> = fires.map(|(minute, _)| *minute).collect();
            let (Some(first), Some(last)) = (fires.first(), fires.last()) else {
                panic!("{alert} never fires in its test")
            };
            let is_silent = |minute: &u64| looks[minute].is_empty();
            let before = looks.keys().rfind(|minute| *minute < first);
            assert!(before.is_some_and(is_silent), "{alert}: no look before it fires");
            let after = looks.keys().find(|minute| *minute > last);
            assert!(after.is_some_and(is_silent), "{alert}: no look after its fault");
            // To the minute: neither sooner nor later.
            assert_eq!(before.map(|before| before + 1), Some(*first), "{alert}");
            // What looks back over a while has seen more than a single scrape.
            let lasts = rule.pending.is_some() || rule.expr.contains('[');
            assert!(lasts, "{alert} fires at a single scrape");
        }
    }
}
