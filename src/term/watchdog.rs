//! The watchdog of a term: a thread that waits on the window itself, so that no runtime that hangs can hold it up.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::etcd::Window;
use crate::lines;

/// Aborts the process unless the tasks of a term end in time. Dropped once they have ended.
pub(super) struct Watchdog {
    cancelled: mpsc::Sender<Duration>,
}

impl Watchdog {
    /// Watches a term from its beginning. Once the window is closed, the tasks have `margin` to end, whether or not anything
    /// still runs that could cancel them.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(window: Window, margin: Duration) -> std::io::Result<Self> {
        let (cancelled, limits) = mpsc::channel();
        let watch = move || {
            if let Some(limit) = exceeded(&window, margin, |step| limits.recv_timeout(step)) {
                lines::abort(format_args!(
                    "tasks of a term that is over did not end within {limit:?}: aborting"
                ));
            }
        };
        let thread = std::thread::Builder::new().name("term-watchdog".to_owned());
        thread.spawn(watch)?;
        Ok(Self { cancelled })
    }

    /// The tasks are cancelled now, and have this long to end.
    pub fn cancelled(&self, limit: Duration) {
        // The thread ends only with the process, or after this is dropped.
        let _ = self.cancelled.send(limit);
    }
}

/// A wait for the next limit. `Disconnected` once the tasks have ended.
type Said = Result<Duration, RecvTimeoutError>;

/// Waits until the tasks have ended, or exceed the limit that is returned.
fn exceeded(window: &Window, margin: Duration, mut wait: impl FnMut(Duration) -> Said) -> Option<Duration> {
    let mut said = loop {
        // The margin counts from the end of the window, not from the end of a step that outlasts it.
        let step = (margin / STEPS).min(window.remaining());
        match wait(step.max(Duration::from_millis(1))) {
            Err(RecvTimeoutError::Timeout) if window.is_open() => {}
            said => break said,
        }
    };
    let mut limit = margin;
    loop {
        match said {
            Ok(given) => limit = given,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        said = outlast(limit, &mut wait);
        if said == Err(RecvTimeoutError::Timeout) {
            return Some(limit);
        }
    }
}

/// The time is counted in this many steps.
const STEPS: u32 = 10;

/// Waits step by step. A process that is paused, or gets no time on a busy machine, loses at most the step in which that
/// happens: when it goes on, its tasks have the other steps.
fn outlast(limit: Duration, mut wait: impl FnMut(Duration) -> Said) -> Said {
    let mut steps = (0..STEPS).map(|_| wait(limit / STEPS));
    let answer = steps.find(|said| *said != Err(RecvTimeoutError::Timeout));
    answer.unwrap_or(Err(RecvTimeoutError::Timeout))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(400);

    #[test]
    fn tasks_that_end_after_a_pause_of_the_process_are_not_overdue() {
        // The first step ends late by the clock, because the process was paused; then the tasks are joined.
        let mut steps = [
            Ok(LIMIT),
            Err(RecvTimeoutError::Timeout),
            Err(RecvTimeoutError::Disconnected),
        ]
        .into_iter();
        let window = Window::open_until(Instant::now() + LIMIT);
        assert_eq!(exceeded(&window, LIMIT, |_| steps.next().unwrap()), None);
    }

    #[test]
    fn tasks_that_never_end_are_overdue_after_the_limit() {
        let mut waited = Duration::ZERO;
        let never = |step| {
            waited += step;
            Err(RecvTimeoutError::Timeout)
        };
        assert_eq!(outlast(LIMIT, never), Err(RecvTimeoutError::Timeout));
        assert_eq!(waited, LIMIT);
    }

    #[test]
    fn a_term_whose_runtime_hangs_is_overdue_once_its_window_has_been_closed_for_the_margin() {
        let begun = Instant::now();
        let window = Window::open_until(begun + LIMIT);
        // Nothing cancels the tasks: what would is what hangs.
        let (_hanging, limits) = mpsc::channel();
        assert_eq!(
            exceeded(&window, LIMIT, |step| limits.recv_timeout(step)),
            Some(LIMIT)
        );
        assert!(begun.elapsed() >= 2 * LIMIT, "{:?}", begun.elapsed());
    }

    #[test]
    fn the_time_to_end_counts_from_the_cancellation() {
        // A process that was paused finds its window closed, and cancels its tasks a moment later.
        let window = Window::open_until(Instant::now() - LIMIT);
        let short = LIMIT / 2;
        let mut steps = [Err(RecvTimeoutError::Timeout), Ok(short)].into_iter();
        let mut waited = Duration::ZERO;
        let wait = |step| {
            waited += step;
            steps.next().unwrap_or(Err(RecvTimeoutError::Timeout))
        };
        assert_eq!(exceeded(&window, LIMIT, wait), Some(short));
        assert_eq!(waited, Duration::from_millis(1) + LIMIT / STEPS + short);
    }

    #[test]
    fn no_step_outlasts_the_window() {
        let short = LIMIT / STEPS / 4;
        let window = Window::open_until(Instant::now() + short);
        let mut first = None;
        let wait = |step| {
            first = Some(step);
            Err(RecvTimeoutError::Disconnected)
        };
        assert_eq!(exceeded(&window, LIMIT, wait), None);
        assert!(first.unwrap() <= short, "{first:?}");
    }
}
