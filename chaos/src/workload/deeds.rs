//! What is tried, and how often: commands of operators and of programs, drawn from a seed.
//!
//! Pure.

use std::time::Duration;

use quorate_dev::seeded_rng::SeededRng;

use crate::operator::DRIVER;
use crate::schedule::index;
use crate::world::agent_names;

/// A node without an agent and a plugin: it reports no node id, so that nothing is ever published to it.
pub const PLAIN: &str = "plain";

/// Those with even numbers have one writer and any number of readers, the others one node at a time. The last one is asked for at
/// the node [`PLAIN`] from the begin on.
pub const VOLUMES: usize = 7;

/// Services, each with at most so many tasks, and networks.
pub const SERVICES: usize = 3;
/// Of each service.
pub const TASKS: usize = 2;
const NETWORKS: usize = 3;

/// One command, with what it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// Its arguments.
    pub args: Vec<String>,
    /// What it reads from stdin.
    pub stdin: String,
}

/// A part of a deed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A command. Whether it succeeds is up to the faults.
    Try(Act),
    /// The desired role of this node becomes worker, whatever a command would say to that.
    Unchecked(&'static str),
    /// The same, only while the quorum is at risk.
    AtRisk(&'static str),
    /// A command that takes back what an earlier one did: it is repeated until it succeeds.
    Owe(Act),
    /// Nothing is done for so long.
    Wait(Duration),
}

/// Names of deeds, each with how often it comes, and whether it needs that agents keep members of etcd.
pub const DEEDS: [(&str, u64, bool); 22] = [
    ("apply-volume", 14, false),
    ("publish", 14, false),
    ("publish-nowhere", 3, false),
    ("unpublish", 14, false),
    ("delete-volume", 7, false),
    ("apply-network", 6, false),
    ("apply-service", 8, false),
    ("apply-task", 6, false),
    ("delete-task", 5, false),
    ("delete-service", 5, false),
    ("delete-network", 4, false),
    ("end-service", 4, false),
    ("rotate", 4, false),
    ("remove-plain", 2, false),
    ("status", 1, false),
    ("promote", 6, true),
    ("demote", 3, true),
    ("demote-late", 2, true),
    ("demote-unchecked", 1, true),
    ("demote-at-risk", 4, true),
    ("remove-node", 2, true),
    ("replace", 4, true),
];

/// Deeds without end, from a seed.
pub struct Deeds {
    rng: SeededRng,
    /// Whether nodes with agents become managers.
    managers: bool,
    /// Names of deeds, without which all come.
    only: Vec<String>,
}

impl Deeds {
    /// Those of this seed, with these names; all of them where there is no name.
    pub fn new(seed: u64, managers: bool, only: &[&str]) -> Self {
        Self {
            rng: SeededRng(seed),
            managers,
            only: only.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// How long nothing is done: so many milliseconds on average.
    pub fn pause(&mut self, millis: u64) -> Duration {
        Duration::from_millis(self.rng.below(2 * millis))
    }

    fn name(&mut self) -> &'static str {
        let may = |(name, _, needs_managers): &(&str, u64, bool)| {
            let is_wanted = self.only.is_empty() || self.only.iter().any(|only| only == name);
            is_wanted && (self.managers || !needs_managers)
        };
        let possible: Vec<_> = DEEDS.into_iter().filter(may).collect();
        let all = possible.iter().map(|(_, often, _)| often).sum::<u64>().max(1);
        let mut roll = self.rng.below(all);
        for (name, often, _) in possible {
            match roll.checked_sub(often) {
                None => return name,
                Some(rest) => roll = rest,
            }
        }
        "status"
    }
}

impl Iterator for Deeds {
    type Item = Vec<Step>;

    fn next(&mut self) -> Option<Vec<Step>> {
        let name = self.name();
        let rng = &mut self.rng;
        let volume = index(rng, VOLUMES);
        let node = agent_names()[index(rng, agent_names().len())];
        let (service, network) = (index(rng, SERVICES), index(rng, NETWORKS));
        let task = index(rng, TASKS);
        let place = [node, node, node, PLAIN][index(rng, 4)];
        let wait = Duration::from_millis(3_000 + rng.below(9_000));
        let one = |line: String| vec![Step::Try(act(&line, ""))];
        let apply = |document: String| vec![Step::Try(act("apply -f -", document))];
        Some(match name {
            "apply-volume" => apply(volume_document(volume)),
            "publish" => one(format!("publish v{volume} {node}")),
            "publish-nowhere" => one(format!("publish v{volume} {PLAIN}")),
            "unpublish" => one(format!("unpublish v{volume} {place}")),
            "delete-volume" => one(format!("delete volume v{volume} --yes")),
            "apply-network" => apply(network_document(network)),
            "apply-service" => apply(service_document(service, network)),
            "apply-task" => apply(task_document(service, task, place)),
            "delete-task" => one(format!("delete task svc{service}/t{task} --yes")),
            "delete-service" => one(format!("delete service svc{service} --yes")),
            "delete-network" => one(format!("delete network net{network} --yes")),
            "end-service" => {
                let tasks = (0..TASKS).map(|task| format!("delete task svc{service}/t{task} --yes"));
                let all = tasks.chain([format!("delete service svc{service} --yes")]);
                all.map(|line| Step::Try(act(&line, ""))).collect()
            }
            "rotate" => one(format!("certificate rotate {node}")),
            "promote" => one(format!("promote {node}")),
            // Refused as long as the member answers.
            "replace" => one(format!("replace {node} --yes")),
            "demote" => one(format!("demote {node} --yes")),
            // The leader comes to it when the members may be others.
            "demote-late" => held([
                Step::Try(act(&format!("demote {node} --yes"), "")),
                Step::Wait(wait),
            ]),
            "demote-unchecked" => vec![Step::Unchecked(node)],
            "demote-at-risk" => vec![Step::AtRisk(node)],
            // The leader sees the demotion and the removal at once: the member goes since its node is gone.
            "remove-node" => held([
                Step::Try(act(&format!("demote {node} --yes"), "")),
                Step::Try(act(&format!("delete node {node} --yes --force"), "")),
            ]),
            "remove-plain" => vec![
                Step::Try(act(&format!("delete node {PLAIN} --yes"), "")),
                Step::Wait(wait / 4),
                Step::Owe(act("apply -f -", plain_document())),
            ],
            _ => one("status".to_owned()),
        })
    }
}

/// While the leader changes no roles and members.
fn held(steps: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let begin = Step::Try(act("pause roles", ""));
    let end = Step::Owe(act("resume roles", ""));
    std::iter::once(begin).chain(steps).chain([end]).collect()
}

/// A line of arguments, and what the command reads.
pub fn act(line: &str, stdin: impl Into<String>) -> Act {
    Act {
        args: line.split(' ').map(str::to_owned).collect(),
        stdin: stdin.into(),
    }
}

/// What is done before the first fault: everything exists once, so that no deed is in vain for want of what it is about.
pub fn opening(managers: bool) -> Vec<Act> {
    let mut first = vec![plain_document()];
    first.extend((0..NETWORKS).map(network_document));
    first.extend((0..VOLUMES).map(volume_document));
    let services = (0..SERVICES).map(|service| service_document(service, service % NETWORKS));
    let tasks = (0..SERVICES).map(|service| task_document(service, 0, PLAIN));
    let [first, services, tasks] = [first, services.collect(), tasks.collect()].map(|all| all.join("---\n"));
    let mut acts: Vec<Act> = [first, services, tasks]
        .into_iter()
        .map(|documents| act("apply -f -", documents))
        .collect();
    acts.push(act(&format!("publish v{} {PLAIN}", VOLUMES - 1), ""));
    for (volume, node) in agent_names().into_iter().enumerate() {
        acts.push(act(&format!("publish v{volume} {node}"), ""));
        if managers {
            acts.push(act(&format!("promote {node}"), ""));
        }
    }
    acts
}

pub fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: quorate.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

fn plain_document() -> String {
    document("Node", PLAIN, "{desiredRole: worker}")
}

fn network_document(number: usize) -> String {
    document("Network", &format!("net{number}"), "{}")
}

fn service_document(number: usize, network: usize) -> String {
    document(
        "Service",
        &format!("svc{number}"),
        &format!("{{networks: [net{network}]}}"),
    )
}

fn task_document(service: usize, number: usize, node: &str) -> String {
    document(
        "Task",
        &format!("t{number}"),
        &format!("{{service: svc{service}, node: {node}}}"),
    )
}

/// Of every volume with an even number one node writes, and others only read.
fn volume_document(number: usize) -> String {
    let mode = match number % 2 {
        0 => "{scope: multiNode, sharing: oneWriter, mount: {fsType: ext4}}",
        _ => "{scope: singleNode, sharing: none, mount: {fsType: ext4}}",
    };
    let spec = format!("{{driver: {{name: {DRIVER}}}, accessMode: {mode}, capacity: {{required: 1Mi}}}}");
    document("Volume", &format!("v{number}"), &spec)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_decides_what_is_tried() {
        let deeds = |seed| Deeds::new(seed, true, &[]).take(100).collect::<Vec<_>>();
        assert_eq!(deeds(1), deeds(1));
        assert_ne!(deeds(1), deeds(2));
    }

    #[test]
    fn every_deed_comes_and_those_of_managers_only_where_there_are_some() {
        let names = |managers| {
            let mut deeds = Deeds::new(1, managers, &[]);
            (0..2_000).map(|_| deeds.name()).collect::<BTreeSet<_>>()
        };
        let of = |managers| {
            let may = DEEDS.into_iter().filter(move |(_, _, needs)| managers || !needs);
            may.map(|(name, ..)| name).collect::<BTreeSet<_>>()
        };
        assert_eq!(names(true), of(true));
        assert_eq!(names(false), of(false));
    }

    #[test]
    fn only_the_deeds_that_are_named_come() {
        let mut deeds = Deeds::new(1, true, &["promote", "demote-late"]);
        let names: BTreeSet<_> = (0..50).map(|_| deeds.name()).collect();
        assert_eq!(names, BTreeSet::from(["promote", "demote-late"]));
    }

    #[test]
    fn what_pauses_roles_owes_their_resumption() {
        let mut deeds = Deeds::new(1, true, &["remove-node"]);
        let steps = deeds.next().unwrap();
        assert_eq!(steps.first(), Some(&Step::Try(act("pause roles", ""))));
        assert_eq!(steps.last(), Some(&Step::Owe(act("resume roles", ""))));
    }
}
