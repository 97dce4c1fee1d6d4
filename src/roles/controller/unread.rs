//! How long the store has not been read as a whole: before the first list is complete, and while a later one is read. Pure.

use std::time::{Duration, Instant};

/// Whether the store has been read, and whether it was reported that it was not.
pub struct Unread {
    complete: bool,
    /// Since when it has not been read; `None` where it was, and once that is reported.
    since: Option<Instant>,
}

impl Unread {
    /// It has not been read yet.
    pub fn since(now: Instant) -> Self {
        Self {
            complete: false,
            since: Some(now),
        }
    }

    /// Takes note of whether the store has been read.
    pub fn show(&mut self, complete: bool, now: Instant) {
        if std::mem::replace(&mut self.complete, complete) != complete {
            self.since = (!complete).then_some(now);
        }
    }

    /// When it is reported, if it has not been.
    pub fn due(&self, patience: Duration) -> Option<Instant> {
        self.since.map(|since| since + patience)
    }

    /// Whether to report it now. Once a time.
    pub fn take_due(&mut self, patience: Duration, now: Instant) -> bool {
        let overdue = |since: &mut Instant| now.saturating_duration_since(*since) >= patience;
        self.since.take_if(overdue).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_cannot_be_read_is_reported_once_each_time() {
        let patience = Duration::from_secs(5);
        let begun = Instant::now();
        let at = |second| begun + Duration::from_secs(second);
        let mut unread = Unread::since(begun);
        unread.show(false, at(1));
        assert!(!unread.take_due(patience, at(4)));
        assert!(unread.take_due(patience, at(5)) && !unread.take_due(patience, at(50)));
        assert_eq!(unread.due(patience), None);
        unread.show(true, at(60));
        assert_eq!(unread.due(patience), None);
        // A later list.
        unread.show(false, at(100));
        assert_eq!(unread.due(patience), Some(at(105)));
        assert!(!unread.take_due(patience, at(104)));
        assert!(unread.take_due(patience, at(105)));
    }
}
