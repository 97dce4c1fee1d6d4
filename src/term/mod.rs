//! A term: what exists only while leading, as one set of tasks that ends with it.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::etcd::Fence;
use crate::etcd::election::Leadership;
use crate::lines;

mod gauges;
mod notices;

pub use gauges::TermGauges;
pub use notices::Notices;

/// How long the tasks of a term may take to end once they are cancelled, while the process stops.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// Why a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The replica stops, or is no longer eligible.
    Stopped,
    /// The lease or the election key is lost, or a task ended, which none does while the replica leads.
    Lost,
}

/// Runs the tasks that `start` spawns, until `stop` or until leadership is lost. Then closes the window, cancels the
/// tasks and joins them, and only after that gives the lease back (INV-10).
///
/// Aborts the process if the tasks do not end in time: after a lost lease within `margin`, since a successor may already
/// lead (INV-2). The time counts from the cancellation, so that a process that was paused does not abort for the pause.
pub async fn run(
    leadership: Leadership,
    margin: Duration,
    stop: &CancellationToken,
    start: impl FnOnce(&Fence, &mut JoinSet<()>),
) -> End {
    let fence = leadership.fence();
    info!(term = %fence.term(), "leading");
    let mut tasks = JoinSet::new();
    start(fence, &mut tasks);
    let end = wait_for_end(&leadership, stop, &mut tasks).await;
    fence.window().close();
    let limit = match end {
        End::Lost => margin,
        End::Stopped => STOP_LIMIT,
    };
    let watchdog = AbortUnlessDone::after(limit);
    tasks.shutdown().await;
    drop(watchdog);
    leadership.resign().await;
    end
}

async fn wait_for_end(leadership: &Leadership, stop: &CancellationToken, tasks: &mut JoinSet<()>) -> End {
    let fence = leadership.fence();
    let end = tokio::select! {
        // First: a leader whose lease is lost must hurry, also when it is asked to stop.
        biased;
        () = fence.window().closed() => End::Lost,
        () = stop.cancelled() => End::Stopped,
        () = leadership.key_lost() => End::Lost,
        ended = tasks.join_next() => {
            if let Some(Err(panicked)) = ended {
                error!("a task of the term failed: {panicked}");
            }
            End::Lost
        }
    };
    match end {
        End::Lost => warn!(term = %fence.term(), "no longer leading"),
        End::Stopped => info!(term = %fence.term(), "stepping down"),
    }
    end
}

/// Aborts the process unless it is dropped in time. Waits on a thread of its own: the runtime may be what hangs.
struct AbortUnlessDone {
    _done: mpsc::Sender<()>,
}

impl AbortUnlessDone {
    fn after(limit: Duration) -> Self {
        let (done, waiting) = mpsc::channel::<()>();
        let watchdog = move || {
            if is_overdue(limit, |step| waiting.recv_timeout(step)) {
                lines::abort(format_args!(
                    "tasks of a term that is over did not end within {limit:?}: aborting"
                ));
            }
        };
        let thread = std::thread::Builder::new().name("term-watchdog".to_owned());
        if let Err(error) = thread.spawn(watchdog) {
            // Without a watchdog a term that hangs would never end.
            lines::abort(format_args!(
                "cannot start the watchdog of a term that is over: {error}: aborting"
            ));
        }
        Self { _done: done }
    }
}

/// The time is counted in this many steps.
const STEPS: u32 = 10;

/// Waits step by step. Returns whether the whole time passed without an answer. A process that is paused, or gets no time
/// on a busy machine, loses at most the step in which that happens: when it goes on, its tasks have the other steps.
fn is_overdue(limit: Duration, mut wait: impl FnMut(Duration) -> Result<(), RecvTimeoutError>) -> bool {
    (0..STEPS).all(|_| wait(limit / STEPS) == Err(RecvTimeoutError::Timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_end_after_a_pause_of_the_process_are_not_overdue() {
        // The first step ends late by the clock, because the process was paused; then the tasks are joined.
        let mut steps = [
            Err(RecvTimeoutError::Timeout),
            Err(RecvTimeoutError::Disconnected),
        ]
        .into_iter();
        assert!(!is_overdue(Duration::from_millis(400), |_| steps.next().unwrap()));
    }

    #[test]
    fn tasks_that_never_end_are_overdue_after_the_limit() {
        let limit = Duration::from_millis(400);
        let mut waited = Duration::ZERO;
        let never = |step| {
            waited += step;
            Err(RecvTimeoutError::Timeout)
        };
        assert!(is_overdue(limit, never));
        assert_eq!(waited, limit);
    }
}
