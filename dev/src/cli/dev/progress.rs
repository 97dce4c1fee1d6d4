//! What `quorate dev` says while it comes up, and of what happens later.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, sleep};

use super::hints::Hints;
use crate::Error;
use crate::observe::{Observed, Observer};
use quorate::cli::exit::Failure;

/// How often a step that takes long says that it is still under way.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// How often the cluster is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Says what left for good.
pub(super) fn tell_departure(name: &str) {
    let _ = say(
        "etcd",
        &format!("{name} was removed from the cluster, and has ended"),
    );
}

/// Says what ended and is started again.
pub(super) fn tell_end(error: &Error) {
    if let Error::Ended { name, status, .. } = error {
        // Where nobody reads any more, the next line to be said ends the run.
        let _ = say("dev", &format!("{name} ended ({status}), and is started again"));
    }
}

/// Says whatever changes: while the cluster comes up, and later. Returns only with a failure.
pub(super) async fn tell(observer: &Observer, hints: &Hints, begun: Instant) -> Result<Infallible, Failure> {
    let (mut said, mut told) = (Instant::now(), Observed::default());
    let mut shown = false;
    loop {
        let seen = observer.look().await;
        if seen != told {
            if tell_changes(&told, &seen)? {
                said = Instant::now();
            }
            told = seen;
        }
        let missing = told.missing(hints.kubectl.is_some());
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

/// Whether there was anything to say.
pub(super) fn tell_changes(before: &Observed, now: &Observed) -> Result<bool, Failure> {
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

/// Says every few seconds that a step is still under way.
pub(super) async fn with_progress<T>(step: &str, work: impl Future<Output = T>) -> Result<T, Failure> {
    let begun = Instant::now();
    let mut ticks = interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick comes at once.
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

/// One line on stdout, as it happens. Nobody reading any more is a reason to stop.
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
