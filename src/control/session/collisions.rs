//! Two agents with one certificate end each other's sessions: how a replica recognizes that. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::store::Name;

/// See [`Collisions`].
const MANY: usize = 3;

/// When live sessions of this replica were ended by newer ones, the last times for each node. [`MANY`] of them within a certain time
/// are two agents. One agent that turns to another replica ends a session that is dead already, except where its former
/// connection hangs.
#[derive(Debug)]
pub struct Collisions {
    within: Duration,
    times: HashMap<Name, Vec<Instant>>,
}

impl Collisions {
    /// None so far.
    pub fn within(within: Duration) -> Self {
        Self {
            within,
            times: HashMap::new(),
        }
    }

    /// A newer session has ended a live one. Returns whether that makes two agents of the node.
    pub fn count(&mut self, node: &Name, now: Instant) -> bool {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < self.within;
        self.times.retain(|_, times| {
            times.retain(is_recent);
            !times.is_empty()
        });
        let times = self.times.entry(node.clone()).or_default();
        times.push(now);
        if times.len() > MANY {
            times.remove(0);
        }
        times.len() == MANY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_live_sessions_ended_within_a_minute_are_two_agents_and_fewer_or_slower_ones_are_not() {
        let (n1, n2): (Name, Name) = ("n1".parse().unwrap(), "n2".parse().unwrap());
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut collisions = Collisions::within(Duration::from_secs(60));
        assert!(!collisions.count(&n1, after(0)));
        assert!(!collisions.count(&n1, after(10)));
        assert!(!collisions.count(&n2, after(11)), "another node");
        assert!(
            !collisions.count(&n1, after(60)),
            "the first is over a minute ago"
        );
        assert!(collisions.count(&n1, after(69)));
        assert!(collisions.count(&n1, after(70)), "and it goes on");
        assert!(!collisions.count(&n1, after(200)));
        assert_eq!(collisions.times.len(), 1, "nodes at rest cost nothing");
    }
}
