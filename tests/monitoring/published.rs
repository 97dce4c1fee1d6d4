//! What the program publishes, by the generated table of docs/reference.md, and what Prometheus adds to it.

use std::collections::{BTreeMap, BTreeSet};

use quorate_dev::workspace::root;
use regex::Regex;

use super::promql::named;

/// Labels of every series: of the scrape, and of the pod monitors.
const OF_THE_SCRAPE: [&str; 3] = ["job", "namespace", "instance"];

/// Series that Prometheus makes itself, and their labels.
const OF_PROMETHEUS: [(&str, &[&str]); 2] = [("up", &[]), ("ALERTS", &["alertname", "alertstate"])];

/// Every series with its labels.
pub struct Published(BTreeMap<String, BTreeSet<String>>);

impl Published {
    /// Reads the table.
    pub fn read() -> Self {
        let text = std::fs::read_to_string(root().join("docs/reference.md")).unwrap();
        let (_, table) = text.split_once("<!-- generated: metrics -->").unwrap();
        let (table, _) = table.split_once("<!-- end -->").unwrap();
        let row = Regex::new(r"(?m)^\| `(\w+)` \| (\w+) \| ([^|]*) \|").unwrap();
        let label = Regex::new(r"`(\w+)`").unwrap();
        let mut series = BTreeMap::new();
        for found in row.captures_iter(table) {
            let labels = label.captures_iter(&found[3]).map(|label| label[1].to_owned());
            let labels: BTreeSet<String> = labels.collect();
            match &found[2] {
                "histogram" => {
                    for part in ["bucket", "count", "sum"] {
                        let mut labels = labels.clone();
                        labels.extend((part == "bucket").then(|| "le".to_owned()));
                        series.insert(format!("{}_{part}", &found[1]), labels);
                    }
                }
                _ => _ = series.insert(found[1].to_owned(), labels),
            }
        }
        assert!(series.len() > 50, "only {} series were found", series.len());
        let of_prometheus = OF_PROMETHEUS.map(|(name, labels)| {
            let labels = labels.iter().map(|label| (*label).to_owned());
            (name.to_owned(), labels.collect())
        });
        series.extend(of_prometheus);
        Self(series)
    }

    /// What an expression names that does not exist.
    pub fn missing(&self, expression: &str) -> Vec<String> {
        let named = named(expression);
        let mut faults = Vec::new();
        let mut known: BTreeSet<&str> = OF_THE_SCRAPE.into();
        for selector in &named.selectors {
            let Some(labels) = self.0.get(&selector.series) else {
                faults.push(format!("no series {}", selector.series));
                continue;
            };
            known.extend(labels.iter().map(String::as_str));
            let unknown =
                selector.labels.iter().map(|(label, _)| label).filter(|label| {
                    !labels.contains(label.as_str()) && !OF_THE_SCRAPE.contains(&label.as_str())
                });
            faults.extend(unknown.map(|label| format!("{} has no label {label}", selector.series)));
        }
        if named.selectors.is_empty() {
            faults.push("no series at all".to_owned());
        }
        let groups = named
            .groups
            .iter()
            .filter(|label| !known.contains(label.as_str()));
        faults.extend(groups.map(|label| format!("no series here has the label {label}")));
        faults
    }
}

#[test]
fn a_series_and_a_label_that_do_not_exist_are_found() {
    let published = Published::read();
    let sound = "sum by (job, reason, le) (rate(quorate_csi_operations_seconds_bucket{driver_name=\"d\"}[5m])) \
                 or quorate_volumes_drifted or up";
    assert_eq!(published.missing(sound), [""; 0]);
    assert_eq!(
        published.missing("sum by (colour) (quorate_leaders) + quorate_sessions_ended{reason=\"x\"}"),
        [
            "no series quorate_leaders",
            "no series quorate_sessions_ended",
            "no series here has the label colour"
        ]
    );
    assert_eq!(
        published.missing("quorate_leader{reason=\"x\"}"),
        ["quorate_leader has no label reason"]
    );
    assert_eq!(published.missing("1 + 1"), ["no series at all"]);
}
