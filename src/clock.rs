//! A monotonic clock that goes on while the machine is suspended, as the clock of etcd's machine does.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Now, later than [`Instant::now`] by the time that the machine was suspended since this was first called. Of one clock alone:
/// between two reads of two clocks the process may pause.
pub fn now() -> Instant {
    static START: OnceLock<(Instant, Duration)> = OnceLock::new();
    let (start, at) = *START.get_or_init(|| {
        // In this order: a pause between the two has this clock go before `Instant::now` by it, never after it, so that a
        // moment that has passed there has passed here.
        let at = since_boot();
        (Instant::now(), at)
    });
    start + since_boot().saturating_sub(at)
}

#[expect(clippy::expect_used, reason = "no machine has started after now")]
fn since_boot() -> Duration {
    let passed = Duration::try_from(clock_gettime(ClockId::Boottime));
    // A clock that stood still would keep every window open.
    passed.expect("the time since the machine has started is not negative")
}

/// How long a timer may run before the clock is looked at again: a timer stands still while the machine is suspended.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Waits until this clock has passed `deadline`. Safe to cancel.
pub async fn passed(deadline: Instant) {
    loop {
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK_AGAIN)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_machine_that_was_not_suspended_both_clocks_go_alike() {
        let (begun, same) = (now(), Instant::now());
        std::thread::sleep(Duration::from_millis(20));
        let (passed, awake) = (now() - begun, same.elapsed());
        assert!(
            passed.abs_diff(awake) < Duration::from_secs(1),
            "{passed:?} and {awake:?}"
        );
    }

    #[test]
    fn the_clock_never_goes_back() {
        let mut before = now();
        for _ in 0..100_000 {
            let after = now();
            assert!(after >= before, "{:?}", before - after);
            before = after;
        }
    }
}
