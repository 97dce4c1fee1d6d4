//! The dashboard, as far as it can be judged without Grafana.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::prometheus::{Prometheus, Target};
use super::promql::named;
use super::published::Published;
use super::{program, shipped};
use crate::deploy::kustomize::run;
use crate::support::directory::directory;
use crate::support::etcd::TestEtcd;
use crate::support::quorate::Launch;
use crate::support::wait::{SOON, eventually};

fn dashboard() -> Value {
    serde_json::from_str(&fs::read_to_string(shipped("dashboard.json")).unwrap()).unwrap()
}

/// Every expression below a value, with Grafana's variables replaced.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(expression) if name == "expr" => {
                        let expression = expression.replace("$__rate_interval", "5m");
                        found.push(expression.replace("$namespace", ".*"));
                    }
                    _ => expressions(field, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

fn all_expressions() -> Vec<String> {
    let mut found = Vec::new();
    expressions(&dashboard(), &mut found);
    assert!(found.len() > 50, "only {} expressions were found", found.len());
    found
}

#[test]
fn every_series_and_label_that_the_dashboard_names_exists() {
    let published = Published::read();
    for expression in all_expressions() {
        assert_eq!(published.missing(&expression), [""; 0], "{expression}");
    }
}

#[test]
fn promtool_accepts_the_expressions_of_the_dashboard() {
    let expressions = all_expressions();
    let recorded = expressions.iter().enumerate().map(|(number, expression)| {
        let name = format!("dashboard:expression_{number}");
        json!({"record": name, "expr": expression})
    });
    let recorded: Vec<Value> = recorded.collect();
    let rules = json!({"groups": [{"name": "dashboard", "rules": recorded}]});
    let directory = directory();
    // JSON is YAML.
    let file = directory.path().join("rules.yaml");
    fs::write(&file, rules.to_string()).unwrap();
    run(Command::new(program("promtool"))
        .args(["check", "rules"])
        .arg(&file));
}

#[test]
fn no_panel_lies_on_another_and_each_has_a_number_of_its_own() {
    let dashboard = dashboard();
    let (mut numbers, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = &panel["title"];
        assert!(numbers.insert(panel["id"].as_u64().unwrap()), "{title}");
        let at = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title} is too wide");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{title} lies on another panel");
            }
        }
    }
}

/// Whether an expression has samples wherever its series have any: it compares and joins nothing, and selects by no label of their own.
fn is_plain(expression: &str) -> bool {
    let mut depth = 0;
    let outside_of_selectors = expression.chars().filter(|c| {
        depth += i32::from(*c == '{') - i32::from(*c == '}');
        depth == 0
    });
    let outside: String = outside_of_selectors.collect();
    let compares = outside.contains(['<', '>', '=']);
    let joins = outside
        .split_whitespace()
        .any(|word| ["and", "or", "unless"].contains(&word));
    let of_the_scrape = |label: &str| ["job", "namespace"].contains(&label);
    let selectors = named(expression).selectors;
    let mut labels = selectors.iter().flat_map(|selector| &selector.labels);
    !compares && !joins && labels.all(|(label, _)| of_the_scrape(label))
}

#[tokio::test]
async fn prometheus_answers_every_panel_and_each_whose_series_are_there_shows_something() {
    let etcd = TestEtcd::start().await;
    let mut replica = Launch::on(&etcd).start("r1");
    replica.wait_leading().await;
    let prometheus = Prometheus::of(&[Target::replica(&replica)]).await;
    let mut shown = 0;
    for expression in all_expressions() {
        let selectors = named(&expression).selectors;
        let mut are_there = is_plain(&expression);
        for selector in selectors {
            let job = selector.labels.iter().find(|(label, _)| label == "job");
            let of_job = job.map(|(_, job)| format!("{{job=\"{job}\"}}"));
            let count = format!("count({}{})", selector.series, of_job.unwrap_or_default());
            are_there &= !prometheus.query(&count).await.unwrap().is_empty();
        }
        shown += usize::from(are_there);
        // A rate needs two scrapes.
        eventually(SOON, &expression, async || {
            match (prometheus.query(&expression).await?.is_empty(), are_there) {
                (true, true) => Err("no sample".to_owned()),
                _ => Ok(()),
            }
        })
        .await;
    }
    assert!(shown > 20, "only {shown} expressions have series");
}
