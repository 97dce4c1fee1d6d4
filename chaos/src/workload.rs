//! What operators and programs do meanwhile: volumes, publications, services, networks, tasks, nodes, roles and certificates. What
//! is tried follows from the seed; what succeeds does not.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::operator::Operator;
use crate::world::agent_names;
use deeds::{Act, PLAIN, SERVICES, Step, TASKS, VOLUMES, document, opening};

mod deeds;
pub mod unreadable;

pub use deeds::{DEEDS, Deeds};

/// Exit codes of a command that leaves nothing to do: done, and not found.
const OVER: [i32; 2] = [0, 3];

/// Between two deeds, on average, in milliseconds.
const PAUSE_MS: u64 = 800;

/// Between two attempts at what is owed.
const AGAIN: Duration = Duration::from_secs(1);

/// A service that is deleted while there are records that cannot be read.
const LAST: &str = "last";

/// Makes everything that the deeds are about, and asks for what takes long.
///
/// # Errors
/// A command does not succeed.
pub async fn prepare(operator: &Operator, managers: bool) -> Result<(), Error> {
    for act in opening(managers) {
        operator.insist(&args(&act), &act.stdin, &[0]).await?;
    }
    Ok(())
}

fn args(act: &Act) -> Vec<&str> {
    act.args.iter().map(String::as_str).collect()
}

/// Works until it is cancelled.
///
/// # Errors
/// A command cannot be started.
pub async fn work(operator: &Operator, mut deeds: Deeds, calm: &CancellationToken) -> Result<(), Error> {
    while !calm.is_cancelled() {
        let pause = deeds.pause(PAUSE_MS);
        let steps = deeds.next().unwrap_or_default();
        for step in steps.into_iter().chain([Step::Wait(pause)]) {
            match step {
                Step::Try(act) => _ = operator.run(&args(&act), &act.stdin).await?,
                Step::Unchecked(node) => operator.write_worker(node).await,
                Step::AtRisk(node) => operator.write_worker_at_risk(node).await,
                Step::Owe(act) => owe(operator, &act, calm).await?,
                Step::Wait(pause) => rest(pause, calm).await,
            }
        }
    }
    Ok(())
}

async fn owe(operator: &Operator, act: &Act, calm: &CancellationToken) -> Result<(), Error> {
    loop {
        let finished = operator.run(&args(act), &act.stdin).await?;
        let is_done = finished.is_some_and(|finished| finished.code == Some(0));
        if is_done || calm.is_cancelled() {
            return Ok(());
        }
        rest(AGAIN, calm).await;
    }
}

async fn rest(pause: Duration, calm: &CancellationToken) {
    tokio::select! {
        () = calm.cancelled() => {}
        () = sleep(pause) => {}
    }
}

/// Ends what keeps others from ending: there are no services and tasks any more, and nodes with agents are workers.
///
/// # Errors
/// A command does not succeed, though nothing is broken any more.
pub async fn finish(operator: &Operator, managers: bool) -> Result<(), Error> {
    operator.insist(&["resume", "roles"], "", &[0]).await?;
    let last = document("Service", LAST, "{}");
    operator.insist(&["apply", "-f", "-"], &last, &[0]).await?;
    for service in 0..SERVICES {
        for task in 0..TASKS {
            let task = format!("svc{service}/t{task}");
            operator
                .insist(&["delete", "task", &task, "--yes"], "", &OVER)
                .await?;
        }
    }
    let services = (0..SERVICES).map(|service| format!("svc{service}"));
    for service in services.chain([LAST.to_owned()]) {
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
