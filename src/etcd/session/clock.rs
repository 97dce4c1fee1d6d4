//! A monotonic clock that goes on while the machine is suspended, as the clock of etcd's machine does.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Now, later than [`Instant::now`] by the time that the machine was suspended since this was first called.
pub(super) fn now() -> Instant {
    static BEFORE: OnceLock<Duration> = OnceLock::new();
    let suspended = suspended();
    let before = *BEFORE.get_or_init(|| suspended);
    Instant::now() + suspended.saturating_sub(before)
}

/// For how long the machine was suspended since it started.
fn suspended() -> Duration {
    // This order matters: a pause between the two reads makes the result later, which closes a window early, never late.
    let awake = since_start(ClockId::Monotonic);
    since_start(ClockId::Boottime).saturating_sub(awake)
}

fn since_start(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).unwrap_or_default()
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
}
