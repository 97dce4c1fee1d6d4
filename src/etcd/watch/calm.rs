//! The delay after a watch that has ended, before it is opened or its range is listed again.

use std::time::Duration;

use crate::retry::Delays;

/// After a watch that lasted this long the delays start again from the first. The longest delay is as long, so that a watch which
/// breaks each time is opened no more often than one that cannot be opened at all.
const CALM: Duration = Duration::from_secs(5);

/// The next delay, after a watch that lasted this long.
pub(crate) fn delay_after(lasted: Duration, delays: &mut Delays) -> Duration {
    if lasted > CALM {
        delays.reset();
    }
    delays.next_delay()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delays_start_again_after_a_calm_watch_and_grow_after_any_other() {
        let mut delays = Delays::etcd();
        for _ in 0..10 {
            delay_after(Duration::ZERO, &mut delays);
        }
        assert!(delay_after(CALM, &mut delays) > Duration::from_secs(3));
        let calm = CALM + Duration::from_millis(1);
        assert!(delay_after(calm, &mut delays) <= Duration::from_millis(125));
        assert!(delay_after(Duration::ZERO, &mut delays) > Duration::from_millis(125));
    }
}
