//! Whether a volume may be taken into use by the view that the agent has. Pure: whether a session is open and the time in.
//!
//! A session that is open proves it, unless the agent has just been paused: stopped by a signal, or suspended with its machine. Its
//! session may have ended long ago then, without a sign that has arrived. Times are of a clock that goes on while the machine is
//! suspended.

use std::time::{Duration, Instant};

/// An agent that runs looks at least every 5 s, as it does at mounts. A pause shorter than this loses no session, whose lease is twice as
/// long.
const PAUSED: Duration = Duration::from_secs(15);

/// The loss of a session is noticed within this time after a pause: its pings take 10 s.
const NOTICED: Duration = Duration::from_secs(15);

/// How fresh the view is.
#[derive(Clone, Debug)]
pub struct Freshness {
    /// How long the view counts after the end of its session.
    counts: Duration,
    looked_at: Option<Instant>,
    /// When a session was last open.
    seen_open: Option<Instant>,
    /// Until when an open session proves nothing.
    doubted_until: Option<Instant>,
}

impl Freshness {
    /// A view counts for so long after the end of its session.
    pub fn new(counts: Duration) -> Self {
        Self {
            counts,
            looked_at: None,
            seen_open: None,
            doubted_until: None,
        }
    }

    /// Whether the view is that of a session, or of one that ended a moment ago. Call it at least once an interval, so that a pause
    /// shows.
    pub fn look(&mut self, is_open: bool, now: Instant) -> bool {
        let before = self.looked_at.replace(now);
        if before.is_some_and(|before| now.saturating_duration_since(before) > PAUSED) {
            self.seen_open = None;
            self.doubted_until = Some(now + NOTICED);
        }
        let is_proof = is_open && self.doubted_until.is_none_or(|until| until <= now);
        if is_proof {
            self.seen_open = Some(now);
        }
        let counts = |at| now.saturating_duration_since(at) < self.counts;
        is_proof || self.seen_open.is_some_and(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(count: u32) -> Duration {
        Duration::from_secs(1) * count
    }

    #[test]
    fn a_view_counts_while_its_session_is_open_and_for_a_while_after_it() {
        let mut freshness = Freshness::new(second(30));
        let mut now = Instant::now();
        assert!(!freshness.look(false, now), "there was none yet");
        assert!(freshness.look(true, now));
        for _ in 0..5 {
            now += second(5);
            assert!(freshness.look(false, now));
        }
        now += second(5);
        assert!(!freshness.look(false, now));
        assert!(freshness.look(true, now));
        let mut at_once = Freshness::new(Duration::ZERO);
        assert!(at_once.look(true, now) && !at_once.look(false, now));
    }

    #[test]
    fn after_a_pause_an_open_session_proves_nothing_until_its_loss_would_be_known() {
        let mut freshness = Freshness::new(second(30));
        let mut now = Instant::now();
        assert!(freshness.look(true, now));
        now += PAUSED;
        assert!(freshness.look(true, now), "not longer than it may be");
        now += second(3600);
        assert!(!freshness.look(true, now));
        now += second(10);
        assert!(!freshness.look(true, now));
        let mut lost = freshness.clone();
        assert!(
            !lost.look(false, now + second(5)),
            "the last one was before the pause"
        );
        assert!(freshness.look(true, now + second(5)));
    }
}
