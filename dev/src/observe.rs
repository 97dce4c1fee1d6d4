//! The state of a development cluster as seen from outside: leader, applied resources, status key.

use quorate::etcd::election::candidates;
use quorate::gate::status::{State, Status};
use quorate::store::Store;

use super::agent::Agent;
use super::http;
use super::replica::Replica;

/// Results in `quorate_resources` of a resource that is as the bundle has it.
const IN_PLACE: [&str; 4] = ["unchanged", "created", "applied", "recreated"];

/// Results of a resource that is not. The other results are of objects that the bundle no longer holds.
const NOT_IN_PLACE: [&str; 2] = ["fighting", "failed"];

/// The leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its node id.
    pub node_id: String,
    /// Create revision of its election key.
    pub term: i64,
}

/// How many resources are in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Resources that are as the bundle has them after the last pass.
    pub in_place: u64,
    /// All resources of the last pass.
    pub all: u64,
}

/// One observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The replica that leads, once its own `/leaderz` confirms it.
    pub leader: Option<Leader>,
    /// The result of the leader's last pass; none before its first.
    pub resources: Option<Resources>,
    /// The value of the status key.
    pub status: Option<Status>,
    /// Reasons why replicas and agents are not ready, a line each.
    pub not_ready: Vec<String>,
}

/// Observes a cluster.
pub struct Observer {
    store: Store,
    replicas: Vec<(String, u16)>,
    agents: Vec<(String, u16)>,
}

impl Observer {
    /// Observes these replicas and agents, and the keys of the replicas through this store.
    pub fn new(store: Store, replicas: &[Replica], agents: &[Agent]) -> Self {
        let address = |replica: &Replica| (replica.node_id.clone(), replica.port);
        let of_agent = |agent: &Agent| (agent.name.clone(), agent.port);
        Self {
            store,
            replicas: replicas.iter().map(address).collect(),
            agents: agents.iter().map(of_agent).collect(),
        }
    }

    /// Observes once. A part that does not answer counts as absent until the next observation.
    pub async fn observe(&self) -> Observed {
        let mut observed = Observed::default();
        match candidates(&self.store.etcd, &self.store.keys.election()).await {
            Ok(candidates) => {
                let first = candidates.into_iter().next();
                observed.leader = first.map(|first| Leader {
                    node_id: first.name,
                    term: first.entered.0,
                });
            }
            Err(error) => observed.not_ready.push(format!("etcd: {error}")),
        }
        match self.store.etcd.get(&self.store.keys.status()).await {
            // The leader replaces a malformed status; until then there is none.
            Ok((value, _)) => observed.status = value.and_then(|kv| Status::decode(&kv.value).ok()),
            Err(error) => observed.not_ready.push(format!("etcd: {error}")),
        }
        let mut confirmed = false;
        for (node_id, port) in &self.replicas {
            let reasons = readiness(*port, observed.status.is_some()).await;
            let named = reasons.iter().map(|reason| format!("{node_id}: {reason}"));
            observed.not_ready.extend(named);
            if observed
                .leader
                .as_ref()
                .is_some_and(|leader| leader.node_id == *node_id)
            {
                confirmed = http::get(*port, "/leaderz")
                    .await
                    .is_ok_and(|page| page.status == 200);
                observed.resources = resources(*port).await;
            }
        }
        for (name, port) in &self.agents {
            let reasons = readiness(*port, true).await;
            let named = reasons.iter().map(|reason| format!("{name}: {reason}"));
            observed.not_ready.extend(named);
        }
        if !confirmed {
            observed.leader = None;
            observed.resources = None;
        }
        observed
    }
}

impl Observed {
    /// What is missing until the cluster is up: a leader, every replica ready, and with Kubernetes the status DONE after a
    /// pass that left every resource in place.
    pub fn missing(&self, kubernetes: bool) -> Vec<String> {
        let mut missing = self.not_ready.clone();
        if self.leader.is_none() {
            missing.push("no leader yet".to_owned());
        }
        if kubernetes {
            match &self.status {
                None => missing.push("no status yet".to_owned()),
                Some(status) if status.state != State::Done => {
                    missing.push(format!("status {}", status.state))
                }
                Some(_) => {}
            }
            match self.resources {
                None => missing.push("no pass over the resources yet".to_owned()),
                Some(Resources { in_place, all }) if in_place != all => {
                    missing.push(format!("{} resources are not in place", all - in_place));
                }
                Some(_) => {}
            }
        }
        missing
    }
}

/// Why a replica is not ready; empty if it is, or if it waits for nothing but the status.
async fn readiness(port: u16, has_status: bool) -> Vec<String> {
    match http::get(port, "/readyz").await {
        Ok(page) if page.status == 200 => Vec::new(),
        Ok(page) => reasons(&page.body, has_status),
        Err(error) => vec![format!("does not answer ({error})")],
    }
}

/// The reasons on a page of `/readyz`. Without a status the gate has none but that, which is said once for all replicas.
fn reasons(page: &str, has_status: bool) -> Vec<String> {
    let failed = page.lines().filter_map(|line| line.strip_prefix("[-]"));
    let failed = failed.map(|line| line.split_once(" failed: ").unwrap_or(("", line)));
    failed
        .filter(|(check, _)| has_status || *check != "gate")
        .map(|(_, why)| why.to_owned())
        .collect()
}

async fn resources(port: u16) -> Option<Resources> {
    let page = http::get(port, "/metrics").await.ok()?;
    count_resources(&page.body)
}

/// Sums up the samples of `quorate_resources`.
fn count_resources(metrics: &str) -> Option<Resources> {
    let mut sum: Option<Resources> = None;
    for line in metrics.lines() {
        let sample = line.strip_prefix("quorate_resources{result=\"");
        let Some((result, count)) = sample.and_then(|sample| sample.split_once("\"} ")) else {
            continue;
        };
        let Ok(count) = count.trim().parse::<u64>() else {
            continue;
        };
        let in_place = IN_PLACE.contains(&result);
        if in_place || NOT_IN_PLACE.contains(&result) {
            let sum = sum.get_or_insert(Resources { in_place: 0, all: 0 });
            sum.all += count;
            sum.in_place += if in_place { count } else { 0 };
        }
    }
    sum.filter(|sum| sum.all > 0)
}

/// The value of a series in OpenMetrics text, by its name with labels as in the text; `None` if no series has that name.
pub fn sample(text: &str, series: &str) -> Option<f64> {
    let value = |line: &str| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate::metrics::{Metrics, Outcome};
    use quorate::release::{Release, Version};

    #[test]
    fn a_cluster_is_up_only_when_nothing_is_missing() {
        let release = Release::new(1, 2, 3);
        let version = Version { release, git: None };
        let mut observed = Observed {
            leader: None,
            resources: Some(Resources { in_place: 8, all: 9 }),
            status: Some(Status::new(State::Working, version.clone(), release)),
            not_ready: vec!["dev-2: etcd failed".to_owned()],
        };
        assert_eq!(
            observed.missing(true),
            [
                "dev-2: etcd failed",
                "no leader yet",
                "status WORKING",
                "1 resources are not in place"
            ]
        );
        assert_eq!(observed.missing(false), ["dev-2: etcd failed", "no leader yet"]);
        observed.not_ready.clear();
        observed.leader = Some(Leader {
            node_id: "dev-1".to_owned(),
            term: 7,
        });
        assert_eq!(observed.missing(false), [""; 0]);
        observed.status = Some(Status::new(State::Done, version, release));
        observed.resources = Some(Resources { in_place: 9, all: 9 });
        assert_eq!(observed.missing(true), [""; 0]);
    }

    #[test]
    fn a_missing_status_is_no_reason_of_each_replica() {
        let page = "[+]ping ok\n[-]etcd failed: no answer\n[-]gate failed: no status\nreadyz check failed\n";
        assert_eq!(reasons(page, true), ["no answer", "no status"]);
        assert_eq!(reasons(page, false), ["no answer"]);
    }

    #[test]
    fn resources_are_counted_from_the_leaders_own_metrics() {
        let metrics = Metrics::new("1.2.3");
        assert_eq!(count_resources(&metrics.encode()), None);
        for (result, count) in [("applied", 3), ("unchanged", 5), ("failed", 1), ("pruned", 7)] {
            metrics.resources.get_or_create(&Outcome { result }).set(count);
        }
        let counted = count_resources(&metrics.encode());
        assert_eq!(counted, Some(Resources { in_place: 8, all: 9 }));
    }
}
