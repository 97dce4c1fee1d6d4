//! The lines that `quorate dev` prints, while the cluster starts and later.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, sleep};

use super::hints::Hints;
use crate::Error;
use crate::observe::{Observed, Observer};
use quorate::cli::exit::Failure;

/// Interval of the lines about a step that takes long.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Interval between two observations of the cluster.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Reports a member of etcd, or an agent, that was removed from its cluster.
pub(super) fn report_departure(kind: &str, name: &str) {
    let _ = say(
        kind,
        &format!("{name} was removed from the cluster, and has ended"),
    );
}

/// Reports a process that ended and is restarted.
pub(super) fn report_end(error: &Error) {
    if let Error::Ended { name, status, .. } = error {
        // Where stdout is closed, the next line ends the run.
        let _ = say("dev", &format!("{name} ended ({status}), and is started again"));
    }
}

/// Reports every change of the cluster. Returns only with a failure.
pub(super) async fn report(
    observer: &Observer,
    hints: &Hints,
    begun: Instant,
) -> Result<Infallible, Failure> {
    let (mut said, mut reported) = (Instant::now(), Observed::default());
    let mut shown = false;
    loop {
        let seen = observer.observe().await;
        if seen != reported {
            if report_changes(&reported, &seen)? {
                said = Instant::now();
            }
            reported = seen;
        }
        let missing = reported.missing(hints.kubectl.is_some());
        if !shown && missing.is_empty() {
            shown = true;
            say("dev", &format!("up after {}", seconds(begun)))?;
            write_out(&hints.text())?;
        }
        if !shown && said.elapsed() >= PROGRESS_INTERVAL {
            said = Instant::now();
            let missing = missing.join("; ");
            say(
                "controller",
                &format!("still waiting ({}): {missing}", seconds(begun)),
            )?;
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// Prints the differences between two observations; whether there were any.
fn report_changes(before: &Observed, now: &Observed) -> Result<bool, Failure> {
    let mut lines = Vec::new();
    if now.leader != before.leader {
        lines.push(match &now.leader {
            Some(leader) => format!("leader {}, term {}", leader.node_id, leader.term),
            None => "no leader".to_owned(),
        });
    }
    if now.resources != before.resources
        && let Some(resources) = now.resources
    {
        lines.push(format!(
            "resources applied {}/{}",
            resources.in_place, resources.all
        ));
    }
    if now.status != before.status {
        lines.push(match &now.status {
            Some(status) => format!("status {}, version {}", status.state, status.version),
            None => "no status".to_owned(),
        });
    }
    for line in &lines {
        say("controller", line)?;
    }
    Ok(!lines.is_empty())
}

/// Waits for `work`, and prints every few seconds that the step is still starting.
pub(super) async fn with_progress<T>(step: &str, work: impl Future<Output = T>) -> Result<T, Failure> {
    let begun = Instant::now();
    let mut ticks = interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate.
    ticks.tick().await;
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            result = &mut work => return Ok(result),
            _ = ticks.tick() => say(step, &format!("still starting ({})", seconds(begun)))?,
        }
    }
}

/// Prints a line. A closed stdout is a failure, which ends the run.
pub(super) fn say(step: &str, text: &str) -> Result<(), Failure> {
    write_out(&format!("{step:<16}{text}\n"))
}

pub(super) fn write_out(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::failed(format!("cannot write to stdout: {error}")))
}

pub(super) fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}

pub(super) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
