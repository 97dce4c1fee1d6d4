//! Nodes that have joined, gathered so that a thousand at once are a few Events and crowd out no other. Pure.

use std::time::{Duration, Instant};

/// The least time from one report to the next.
const EVERY: Duration = Duration::from_secs(60);

/// The nodes that have joined and were not reported yet.
#[derive(Debug, Default)]
pub struct NewNodes {
    first: Option<String>,
    others: usize,
    reported: Option<Instant>,
}

impl NewNodes {
    /// A node has joined.
    pub fn add(&mut self, node: &str) {
        match &self.first {
            None => self.first = Some(node.to_owned()),
            Some(_) => self.others += 1,
        }
    }

    /// What there is to report now, in words.
    pub fn due(&mut self, now: Instant) -> Option<String> {
        let since = self.reported.map(|at| now.saturating_duration_since(at));
        if since.is_some_and(|since| since < EVERY) {
            return None;
        }
        let first = self.first.take()?;
        self.reported = Some(now);
        Some(match std::mem::take(&mut self.others) {
            0 => format!("node {first} has joined"),
            others => format!("node {first} and {others} more have joined"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_is_reported_at_once_and_those_of_the_next_minute_together() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut new = NewNodes::default();
        assert_eq!(new.due(begun), None);
        new.add("n1");
        assert_eq!(new.due(begun).as_deref(), Some("node n1 has joined"));
        for node in ["n2", "n3", "n4"] {
            new.add(node);
            assert_eq!(new.due(after(59)), None);
        }
        let said = new.due(after(60));
        assert_eq!(said.as_deref(), Some("node n2 and 2 more have joined"));
        assert_eq!(new.due(after(300)), None);
        new.add("n5");
        assert_eq!(new.due(after(300)).as_deref(), Some("node n5 has joined"));
    }
}
