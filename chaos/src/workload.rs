//! What operators and programs do meanwhile: volumes, publications, services, networks, tasks, roles and certificates. What
//! is tried follows from the seed; what succeeds does not.

use std::time::Duration;

use quorate_dev::seeded_rng::SeededRng;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::operator::{DRIVER, Operator};
use crate::schedule::index;
use crate::world::agent_names;

/// Exit codes of a command that leaves nothing to do: done, and not found.
const OVER: [i32; 2] = [0, 3];

/// Between two commands, on average.
const PAUSE_MS: u64 = 1_000;

/// A node without an agent and a plugin: nothing is ever published to it.
const PLAIN: &str = "plain";

const VOLUMES: usize = 6;
const SERVICES: usize = 3;
const NETWORKS: usize = 3;
const TASKS: usize = 2;

/// One command, with what it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// Its arguments.
    pub args: Vec<String>,
    /// What it reads from stdin.
    pub stdin: String,
}

fn act(line: &str, stdin: impl Into<String>) -> Act {
    Act {
        args: line.split(' ').map(str::to_owned).collect(),
        stdin: stdin.into(),
    }
}

/// Acts without end, from a seed.
pub struct Acts {
    rng: SeededRng,
    /// Whether nodes with agents become managers.
    managers: bool,
}

impl Acts {
    /// Those of this seed.
    pub fn new(seed: u64, managers: bool) -> Self {
        Self {
            rng: SeededRng(seed),
            managers,
        }
    }

    /// How long nothing is done.
    fn pause(&mut self) -> Duration {
        Duration::from_millis(self.rng.below(2 * PAUSE_MS))
    }
}

impl Iterator for Acts {
    type Item = Act;

    fn next(&mut self) -> Option<Act> {
        let rng = &mut self.rng;
        let volume = index(rng, VOLUMES);
        let node = agent_names()[index(rng, agent_names().len())];
        // Now and then the node on which no plugin runs.
        let place = [node, node, node, PLAIN][index(rng, 4)];
        let (service, network) = (index(rng, SERVICES), index(rng, NETWORKS));
        let task = index(rng, TASKS);
        let roll = rng.below(100);
        Some(match roll {
            0..=13 => act("apply -f -", volume_document(volume)),
            14..=29 => act(&format!("publish v{volume} {place}"), ""),
            30..=42 => act(&format!("unpublish v{volume} {place}"), ""),
            43..=49 => act(&format!("delete volume v{volume} --yes"), ""),
            50..=56 => act("apply -f -", document("Network", &format!("net{network}"), "{}")),
            57..=64 => act(
                "apply -f -",
                document(
                    "Service",
                    &format!("svc{service}"),
                    &format!("{{networks: [net{network}]}}"),
                ),
            ),
            65..=70 => act(
                "apply -f -",
                document(
                    "Task",
                    &format!("t{task}"),
                    &format!("{{service: svc{service}, node: {node}}}"),
                ),
            ),
            71..=75 => act(&format!("delete task svc{service}/t{task} --yes"), ""),
            76..=80 => act(&format!("delete service svc{service} --yes"), ""),
            81..=84 => act(&format!("delete network net{network} --yes"), ""),
            85..=88 => act(&format!("certificate rotate {node}"), ""),
            89..=94 if self.managers => act(&format!("promote {node}"), ""),
            95..=99 if self.managers => act(&format!("demote {node} --yes"), ""),
            _ => act("status", ""),
        })
    }
}

/// Makes the node without an agent.
///
/// # Errors
/// The command does not succeed.
pub async fn prepare(operator: &Operator) -> Result<(), Error> {
    let node = document("Node", PLAIN, "{desiredRole: worker}");
    operator.insist(&["apply", "-f", "-"], &node, &[0]).await?;
    Ok(())
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: quorate.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n")
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

/// Works until it is cancelled.
///
/// # Errors
/// A command cannot be started.
pub async fn work(operator: &Operator, mut acts: Acts, calm: &CancellationToken) -> Result<(), Error> {
    while !calm.is_cancelled() {
        let pause = acts.pause();
        let Some(Act { args, stdin }) = acts.next() else {
            return Ok(());
        };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // Whether it succeeds is up to the faults.
        operator.run(&args, &stdin).await?;
        tokio::select! {
            () = calm.cancelled() => return Ok(()),
            () = sleep(pause) => {}
        }
    }
    Ok(())
}

/// Ends what keeps others from ending: there are no services and tasks any more, and nodes with agents are workers.
///
/// # Errors
/// A command does not succeed, though nothing is broken any more.
pub async fn finish(operator: &Operator, managers: bool) -> Result<(), Error> {
    for service in 0..SERVICES {
        for task in 0..TASKS {
            let task = format!("svc{service}/t{task}");
            operator
                .insist(&["delete", "task", &task, "--yes"], "", &OVER)
                .await?;
        }
        let service = format!("svc{service}");
        operator
            .insist(&["delete", "service", &service, "--yes"], "", &OVER)
            .await?;
    }
    if managers {
        for node in agent_names() {
            operator.insist(&["demote", node, "--yes"], "", &OVER).await?;
        }
    }
    Ok(())
}

/// Unpublishes and deletes every volume, so that the end of each can be seen.
///
/// # Errors
/// A command does not succeed, though nothing is broken any more.
pub async fn clear(operator: &Operator) -> Result<(), Error> {
    for volume in (0..VOLUMES).map(|number| format!("v{number}")) {
        for node in agent_names().into_iter().chain([PLAIN]) {
            operator.insist(&["unpublish", &volume, node], "", &OVER).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_what_is_tried() {
        let acts = |seed| Acts::new(seed, true).take(100).collect::<Vec<_>>();
        assert_eq!(acts(1), acts(1));
        assert_ne!(acts(1), acts(2));
        let workers = Acts::new(1, false).take(500);
        assert!(workers.into_iter().all(|act| act.args[0] != "promote"));
    }
}
