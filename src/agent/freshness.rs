//! Whether the agent may do by the view that it has what must not be done by an old one: take a volume into use, which may be another
//! node's by now (INV-6), or stop etcd to start it again, which may be another member's turn (INV-5).
//!
//! A session that is open proves it: its loss is noticed by pings, well before the lease of the node has ended. One that has ended
//! proves nothing, however recently: its lease counts from the last heartbeat that has arrived, which may be older than the agent
//! knows. An agent that has just been paused, stopped by a signal or suspended with its machine, cannot say whether a session is
//! open: the session may have ended long ago without a sign that has arrived. Times are of a clock that goes on while the machine is
//! suspended.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::ViewReceiver;
use crate::clock;

/// Why there is no session; `None` while there is one.
pub type SessionReceiver = watch::Receiver<Option<String>>;

/// An agent that runs looks at least every 5 s, as it does at mounts. A pause shorter than this loses no session, whose lease is twice as
/// long.
const PAUSED: Duration = Duration::from_secs(15);

/// The loss of a session is noticed within this time after a pause: its pings take 10 s.
const NOTICED: Duration = Duration::from_secs(15);

/// How fresh the view is.
#[derive(Clone, Debug, Default)]
pub struct Freshness {
    looked_at: Option<Instant>,
    /// Until when an open session proves nothing.
    doubted_until: Option<Instant>,
}

impl Freshness {
    /// Whether the view that was taken last is that of a session, and the latest one. Call it at least every 5 s, so that a pause shows.
    ///
    /// In this order: a session is open only after its view is there, so that a view that still waits to be taken is newer than the one
    /// at hand.
    pub fn is_current(&mut self, session: &SessionReceiver, views: &ViewReceiver) -> bool {
        let is_open = session.borrow().is_none();
        let is_latest = !views.has_changed().unwrap_or(false);
        self.look(is_open && is_latest, clock::now())
    }

    fn look(&mut self, is_open: bool, now: Instant) -> bool {
        let before = self.looked_at.replace(now);
        if before.is_some_and(|before| now.saturating_duration_since(before) > PAUSED) {
            self.doubted_until = Some(now + NOTICED);
        }
        is_open && self.doubted_until.is_none_or(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// INV-6.
    #[test]
    fn a_view_counts_while_its_session_is_open_and_not_a_moment_longer() {
        let mut freshness = Freshness::default();
        let now = Instant::now();
        assert!(!freshness.look(false, now), "there was none yet");
        assert!(freshness.look(true, now));
        assert!(!freshness.look(false, now));
        assert!(freshness.look(true, now));
    }

    #[test]
    fn after_a_pause_an_open_session_proves_nothing_until_its_loss_would_be_known() {
        let mut freshness = Freshness::default();
        let mut now = Instant::now();
        assert!(freshness.look(true, now));
        now += PAUSED;
        assert!(freshness.look(true, now), "not longer than it may be");
        now += Duration::from_secs(3600);
        assert!(!freshness.look(true, now));
        now += Duration::from_secs(10);
        assert!(!freshness.look(true, now));
        assert!(freshness.look(true, now + Duration::from_secs(5)));
    }
}
