//! A term: what exists only while leading, as one set of tasks that ends with it.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::etcd::Fence;
use crate::etcd::election::Leadership;

/// For the tasks of a term to end once they are cancelled, on the way out of the process.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// How a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was asked to.
    Stopped,
    /// The lease was lost, or a task found that leadership is.
    Lost,
}

/// Runs the tasks of a term until `stop`, the end of the window, of the election key or of any task; then closes the
/// window, cancels and joins them, and only after that gives the lease back (INV-10).
///
/// Tasks that do not end in time: after a lost lease the process aborts, as a successor may be at work (INV-2). The
/// time counts from the cancellation, so that a process that was paused does not abort for having been paused.
pub async fn run(
    leadership: Leadership,
    margin: Duration,
    stop: &CancellationToken,
    start: impl FnOnce(&Fence, &mut JoinSet<()>),
) -> End {
    let fence = leadership.fence().clone();
    info!(term = %fence.term(), "leading");
    let mut tasks = JoinSet::new();
    start(&fence, &mut tasks);
    let end = tokio::select! {
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
    fence.window().close();
    let deadline = AbortUnlessDone::after(if end == End::Lost { margin } else { STOP_LIMIT });
    tasks.shutdown().await;
    drop(deadline);
    leadership.resign().await;
    end
}

/// Aborts the process unless dropped in time. A thread of its own: the runtime may be what hangs.
struct AbortUnlessDone {
    _done: mpsc::Sender<()>,
}

impl AbortUnlessDone {
    fn after(limit: Duration) -> Self {
        let (done, waiting) = mpsc::channel::<()>();
        let watchdog = move || {
            if is_overdue(limit, |step| waiting.recv_timeout(step)) {
                eprintln!("tasks of a term that is over did not end within {limit:?}: aborting");
                std::process::abort();
            }
        };
        if let Err(error) = std::thread::Builder::new()
            .name("term-watchdog".to_owned())
            .spawn(watchdog)
        {
            // Without a watchdog nobody would end a hanging term.
            eprintln!("cannot start the watchdog of a term that is over: {error}: aborting");
            std::process::abort();
        }
        Self { _done: done }
    }
}

/// In so many steps the time is counted.
const STEPS: u32 = 10;

/// Whether the time has passed without a word. A process that is paused, or gets no time on a busy machine, does so in one
/// of the steps: when it goes on, its tasks have the others left.
fn is_overdue(limit: Duration, mut wait: impl FnMut(Duration) -> Result<(), RecvTimeoutError>) -> bool {
    (0..STEPS).all(|_| wait(limit / STEPS) == Err(RecvTimeoutError::Timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_end_after_a_pause_of_the_process_are_not_overdue_and_those_that_never_end_are() {
        let limit = Duration::from_millis(400);
        // The first step ends late, as far as anyone can tell by the clock: then the tasks are joined.
        let mut steps = [
            Err(RecvTimeoutError::Timeout),
            Err(RecvTimeoutError::Disconnected),
        ]
        .into_iter();
        assert!(!is_overdue(limit, |_| steps.next().unwrap()));
        let mut waited = Duration::ZERO;
        let never = |step| {
            waited += step;
            Err(RecvTimeoutError::Timeout)
        };
        assert!(is_overdue(limit, never));
        assert_eq!(waited, limit);
    }
}
