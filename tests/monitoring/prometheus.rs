//! A real Prometheus with the shipped rules: as they are, or so fast that an hour is half a minute.
//!
//! The rules are those of `deploy/monitoring`. In fast ones each time is divided by [`SCALE`]: what an alert is pending for, the windows
//! over which it looks back, and the seconds that a gauge is compared with. Nothing else is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use quorate_dev::http;
use quorate_dev::ports::free_port;
use quorate_dev::process::{Program, Supervised};
use regex::{Captures, Regex};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::files;
use crate::support::directory::directory;
use crate::support::quorate::TestReplica;
use crate::support::wait::{SOON, eventually, same};

/// How much shorter each time of the rules is.
pub const SCALE: u64 = 120;

/// How fast time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Each time of the rules is divided by [`SCALE`].
    Fast,
    /// As in the field. No rule depends on the interval.
    AsShipped { interval: &'static str },
}

impl Pace {
    /// Between two scrapes, and between two evaluations. The shortest time of fast rules, a minute, is as long; the shortest
    /// window has five scrapes.
    fn interval(self) -> &'static str {
        match self {
            Self::Fast => "500ms",
            Self::AsShipped { interval } => interval,
        }
    }
}

/// What is scraped.
pub struct Target {
    /// `quorate` or `quorate-agent`.
    pub job: &'static str,
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// Its page.
    pub path: String,
    /// The label that names the installation.
    pub namespace: String,
    /// The label that names the replica.
    pub instance: String,
}

impl Target {
    /// A replica, as the pod monitor would scrape it.
    pub fn replica(replica: &TestReplica) -> Self {
        Self {
            job: "quorate",
            port: replica.port,
            path: "/metrics".to_owned(),
            namespace: "quorate-system".to_owned(),
            instance: replica.node_id.clone(),
        }
    }
}

/// An alert that is pending or fires.
#[derive(Clone, Debug, Deserialize)]
pub struct Alert {
    /// Its labels, with its name.
    pub labels: BTreeMap<String, String>,
    /// What it says.
    pub annotations: BTreeMap<String, String>,
    state: String,
}

impl Alert {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.labels["alertname"]
    }
}

/// A Prometheus with a directory of its own.
pub struct Prometheus {
    // Before the directory: it ends before its files go.
    _process: Supervised,
    port: u16,
    _directory: TempDir,
}

impl Prometheus {
    /// Starts one with fast rules, and waits until it has scraped every target.
    pub async fn of(targets: &[Target]) -> Self {
        Self::at(Pace::Fast, targets).await
    }

    /// The same with the rules as they are shipped, and this between two scrapes.
    pub async fn as_shipped(interval: &'static str, targets: &[Target]) -> Self {
        Self::at(Pace::AsShipped { interval }, targets).await
    }

    async fn at(pace: Pace, targets: &[Target]) -> Self {
        let directory = directory();
        let place = |name: &str| directory.path().join(name);
        write_rules(directory.path(), pace);
        // JSON is YAML.
        let config = place("prometheus.yml");
        fs::write(
            &config,
            configuration(directory.path(), pace, targets).to_string(),
        )
        .unwrap();
        let port = free_port().unwrap();
        let program = Program {
            name: "prometheus".to_owned(),
            path: super::program("prometheus"),
            args: vec![
                format!("--config.file={}", config.display()).into(),
                format!("--storage.tsdb.path={}", place("data").display()).into(),
                format!("--web.listen-address=127.0.0.1:{port}").into(),
                "--log.level=warn".into(),
            ],
            env: Vec::new(),
            hidden_env: "",
            log: place("prometheus.log"),
        };
        let mut process = program.start().unwrap_or_else(|error| panic!("{error}"));
        let is_ready = || async move { http::is_ok("/-/ready", http::get(port, "/-/ready").await) };
        let ready = process.wait_until(SOON, is_ready).await;
        ready.unwrap_or_else(|error| panic!("{error}"));
        let prometheus = Self {
            _process: process,
            port,
            _directory: directory,
        };
        prometheus.scrapes(targets.len()).await;
        prometheus
    }

    /// Waits until this many targets answer the last scrape.
    pub async fn scrapes(&self, targets: usize) {
        eventually(2 * SOON, "every target is scraped", async || {
            let found = self.ask("targets?state=active").await?;
            let active = found["activeTargets"].as_array().cloned().unwrap_or_default();
            let up = active.iter().filter(|target| target["health"] == "up").count();
            same(up, targets)
        })
        .await;
    }

    /// What its API answers.
    async fn ask(&self, what: &str) -> Result<Value, String> {
        let page = format!("/api/v1/{what}");
        let answer = http::get(self.port, &page)
            .await
            .map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_str(&answer.body).map_err(|error| error.to_string())?;
        match answer["status"].as_str() {
            Some("success") => Ok(answer["data"].clone()),
            _ => Err(format!("{what}: {answer}")),
        }
    }

    /// The samples of an expression now.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let found = self.ask(&format!("query?query={}", encoded(expression))).await?;
        Ok(found["result"].as_array().cloned().unwrap_or_default())
    }

    /// The names of the alerts that have fired since it was started, whether they still do or not.
    pub async fn fired(&self) -> BTreeSet<String> {
        let ever = encoded(r#"ALERTS{alertstate="firing"}"#);
        let found = eventually(SOON, "the alerts of before", async || {
            self.ask(&format!("series?match%5B%5D={ever}")).await
        })
        .await;
        let series = found.as_array().into_iter().flatten();
        let names = series.map(|labels| labels["alertname"].as_str().unwrap().to_owned());
        names.collect()
    }

    /// How many rules it evaluates.
    pub async fn rules(&self) -> usize {
        let found = eventually(SOON, "the rules", async || self.ask("rules?type=alert").await).await;
        let groups = found["groups"].as_array().into_iter().flatten();
        groups
            .map(|group| group["rules"].as_array().map_or(0, Vec::len))
            .sum()
    }

    /// The alerts that fire.
    pub async fn firing(&self) -> Vec<Alert> {
        let alerts = eventually(SOON, "the alerts", async || {
            let found = self.ask("alerts").await?;
            serde_json::from_value::<Vec<Alert>>(found["alerts"].clone()).map_err(|error| error.to_string())
        })
        .await;
        alerts
            .into_iter()
            .filter(|alert| alert.state == "firing")
            .collect()
    }

    /// Waits until these fire, whatever else does.
    pub async fn fires(&self, names: &[&str]) {
        eventually(3 * SOON, &format!("{names:?} fire"), async || {
            let firing = self.firing().await;
            let missing = names
                .iter()
                .find(|name| firing.iter().all(|alert| alert.name() != **name));
            missing.map_or(Ok(()), |_| Err(names_of(&firing)))
        })
        .await;
    }

    /// Waits until none fires any more.
    pub async fn clears(&self) {
        eventually(3 * SOON, "no alert fires", async || {
            let firing = names_of(&self.firing().await);
            match firing.is_empty() {
                true => Ok(()),
                false => Err(firing),
            }
        })
        .await;
    }
}

/// As it stands in a query of a URL.
fn encoded(text: &str) -> String {
    let encoded = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encoded).collect()
}

fn names_of(alerts: &[Alert]) -> String {
    let names: Vec<&str> = alerts.iter().map(Alert::name).collect();
    names.join(", ")
}

fn configuration(directory: &Path, pace: Pace, targets: &[Target]) -> Value {
    let interval = pace.interval();
    let jobs = ["quorate", "quorate-agent"].map(|job| {
        let of_job = targets.iter().filter(|target| target.job == job);
        let scraped = of_job.map(|target| {
            json!({
                "targets": [format!("127.0.0.1:{}", target.port)],
                "labels": {
                    "__metrics_path__": target.path,
                    "namespace": target.namespace,
                    "instance": target.instance,
                },
            })
        });
        let scraped: Vec<Value> = scraped.collect();
        json!({"job_name": job, "static_configs": scraped})
    });
    json!({
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "rule_files": [format!("{}/rules/*.yaml", directory.display())],
        "scrape_configs": jobs,
    })
}

fn write_rules(directory: &Path, pace: Pace) {
    let rules = directory.join("rules");
    fs::create_dir(&rules).unwrap();
    for file in files("rules") {
        let shipped = fs::read_to_string(&file).unwrap();
        let text = match pace {
            Pace::Fast => scaled(&shipped),
            Pace::AsShipped { .. } => shipped,
        };
        fs::write(rules.join(file.file_name().unwrap()), text).unwrap();
    }
}

/// The rules with shorter times.
fn scaled(rules: &str) -> String {
    let duration = |number: &str, unit: &str| {
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            other => panic!("no unit {other}"),
        };
        format!("{}ms", number.parse::<u64>().unwrap() * seconds * 1000 / SCALE)
    };
    let pending = Regex::new(r"(?m)^( *for: )(\d+)([a-z])$").unwrap();
    let rules = pending.replace_all(rules, |found: &Captures<'_>| {
        format!("{}{}", &found[1], duration(&found[2], &found[3]))
    });
    let window = Regex::new(r"\[(\d+)([a-z])(?::(\d+)([a-z]))?\]").unwrap();
    let rules = window.replace_all(&rules, |found: &Captures<'_>| {
        let length = duration(&found[1], &found[2]);
        match (found.get(3), found.get(4)) {
            (Some(number), Some(unit)) => {
                format!("[{length}:{}]", duration(number.as_str(), unit.as_str()))
            }
            _ => format!("[{length}]"),
        }
    });
    let seconds = Regex::new(r"(_seconds\{[^}]*\}\)?(?: != 0\))? [<>] )(\d+)").unwrap();
    let rules = seconds.replace_all(&rules, |found: &Captures<'_>| {
        format!("{}{} / {SCALE}", &found[1], &found[2])
    });
    rules.into_owned()
}

#[test]
fn every_time_of_a_rule_is_divided_and_nothing_else() {
    let rule = "expr: max(a_seconds{job=\"q\"}) > 900 and min(b_seconds{} != 0) < 30 * 86400 or increase(c_total[10m]) > 6\n        for: 2m\n";
    let expected = "expr: max(a_seconds{job=\"q\"}) > 900 / 120 and min(b_seconds{} != 0) < 30 / 120 * 86400 or \
                    increase(c_total[5000ms]) > 6\n        for: 1000ms\n";
    assert_eq!(scaled(rule), expected);
    assert_eq!(
        scaled("max_over_time(d[1h:1m])"),
        "max_over_time(d[30000ms:500ms])"
    );
}
