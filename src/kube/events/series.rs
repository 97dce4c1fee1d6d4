//! Decides whether a notice becomes a new Event, raises the count of an existing one, or is dropped.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Notice;

/// What to do with a notice.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Publish the notice with this count: on the Event `on`, or as a new one.
    Send { on: Option<String>, count: u32 },
    /// Publish nothing: the notice was only counted, or there are too many.
    Hold,
}

/// The notices of the last minutes, and a token bucket that limits requests.
#[derive(Debug)]
pub(super) struct Series {
    recent: HashMap<Notice, Recent>,
    tokens: f64,
    refilled: Option<Instant>,
}

/// A notice of the last minutes.
#[derive(Debug)]
struct Recent {
    /// The Event that carries it, once one was published.
    event: Option<String>,
    count: u32,
    seen: Instant,
    /// When the last request for it succeeded.
    sent: Option<Instant>,
    /// Whether a request was started and its success is not known.
    unconfirmed: bool,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            recent: HashMap::new(),
            tokens: BURST,
            refilled: None,
        }
    }
}

/// After this silence the same notice becomes a new Event, as in client-go's event recorder.
const ENDS_AFTER: Duration = Duration::from_secs(6 * 60);

/// The shortest time between two updates of an Event's count.
const COUNT_EVERY: Duration = Duration::from_secs(60);

/// New Events and repeated attempts share one bucket: 25 at once, then one every 10 s. client-go allows 25, then one
/// every five minutes.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 10.0;

impl Series {
    /// Counts a notice and decides what to do with it.
    pub(super) fn take(&mut self, notice: &Notice, now: Instant) -> Decision {
        self.recent
            .retain(|_, recent| now.saturating_duration_since(recent.seen) < ENDS_AFTER);
        if let Some(recent) = self.recent.get_mut(notice) {
            recent.count = recent.count.saturating_add(1);
            recent.seen = now;
            let since = recent.sent.map(|sent| now.saturating_duration_since(sent));
            if since.is_some_and(|since| since < COUNT_EVERY) {
                return Decision::Hold;
            }
            if recent.event.is_some() && !recent.unconfirmed {
                return recent.send();
            }
        }
        // Repeated attempts at an API server in trouble are limited like new Events (INV-9).
        if !self.take_token(now) {
            tracing::debug!(reason = notice.reason, "rate limit: dropped an Event");
            return Decision::Hold;
        }
        let recent = self.recent.entry(notice.clone()).or_insert(Recent {
            event: None,
            count: 1,
            seen: now,
            sent: None,
            unconfirmed: false,
        });
        recent.send()
    }

    fn take_token(&mut self, now: Instant) -> bool {
        let passed = self
            .refilled
            .map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
        self.refilled = Some(now);
        self.tokens = (self.tokens + passed.as_secs_f64() / REFILL_SECONDS).min(BURST);
        let has_one = self.tokens >= 1.0;
        if has_one {
            self.tokens -= 1.0;
        }
        has_one
    }

    /// Notes that the notice was published on the Event `name`.
    pub(super) fn sent(&mut self, notice: &Notice, name: String, now: Instant) {
        if let Some(recent) = self.recent.get_mut(notice) {
            recent.event = Some(name);
            recent.sent = Some(now);
            recent.unconfirmed = false;
        }
    }
}

impl Recent {
    fn send(&mut self) -> Decision {
        self.unconfirmed = true;
        Decision::Send {
            on: self.event.clone(),
            count: self.count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    fn notice(note: &str) -> Notice {
        Notice {
            severity: Severity::Warning,
            reason: "GateBlocked",
            action: "Restrict",
            note: note.to_owned(),
        }
    }

    const NEW: Decision = Decision::Send { on: None, count: 1 };

    fn on(name: &str, count: u32) -> Decision {
        let on = Some(name.to_owned());
        Decision::Send { on, count }
    }

    fn sends(series: &mut Series, notices: impl Iterator<Item = Notice>, now: Instant) -> usize {
        notices
            .filter(|notice| series.take(notice, now) != Decision::Hold)
            .count()
    }

    #[test]
    fn the_same_notice_is_counted_on_one_event() {
        let mut series = Series::default();
        let start = Instant::now();
        assert_eq!(series.take(&notice("a"), start), NEW);
        series.sent(&notice("a"), "first".to_owned(), start);
        let soon = start + Duration::from_secs(1);
        assert_eq!(series.take(&notice("a"), soon), Decision::Hold);
        assert_eq!(series.take(&notice("a"), start + COUNT_EVERY), on("first", 3));
        assert_eq!(series.take(&notice("b"), start + COUNT_EVERY), NEW);
    }

    #[test]
    fn after_a_long_silence_the_same_notice_is_a_new_event() {
        let mut series = Series::default();
        let start = Instant::now();
        series.take(&notice("a"), start);
        series.sent(&notice("a"), "first".to_owned(), start);
        assert_eq!(series.take(&notice("a"), start + ENDS_AFTER), NEW);
    }

    #[test]
    fn after_a_cancelled_or_refused_event_the_next_one_is_sent() {
        let mut series = Series::default();
        let start = Instant::now();
        assert_eq!(series.take(&notice("a"), start), NEW);
        let soon = start + Duration::from_secs(1);
        let again = Decision::Send { on: None, count: 2 };
        assert_eq!(series.take(&notice("a"), soon), again);
        series.sent(&notice("a"), "first".to_owned(), soon);
        assert_eq!(series.take(&notice("a"), soon), Decision::Hold);
        let later = soon + COUNT_EVERY;
        assert_eq!(series.take(&notice("a"), later), on("first", 4));
        assert_eq!(series.take(&notice("a"), later), on("first", 5));
    }

    /// INV-9, with an API server that refuses everything.
    #[test]
    fn failed_attempts_are_limited_like_new_events() {
        let mut series = Series::default();
        let start = Instant::now();
        let same = || std::iter::repeat_with(|| notice("a")).take(1_000);
        assert_eq!(sends(&mut series, same(), start), 25);
        let later = start + Duration::from_secs(20);
        assert_eq!(sends(&mut series, same(), later), 2);
        series.sent(&notice("a"), "first".to_owned(), later);
        // The first attempt to raise the count needs no token; the repeated ones do.
        assert_eq!(sends(&mut series, same(), later + COUNT_EVERY), 1 + 6);
    }

    #[test]
    fn a_flood_of_different_notices_is_limited() {
        let mut series = Series::default();
        let start = Instant::now();
        let different = |numbers: std::ops::Range<u32>| numbers.map(|number| notice(&number.to_string()));
        assert_eq!(sends(&mut series, different(0..1_000), start), 25);
        let later = start + Duration::from_secs(20);
        assert_eq!(sends(&mut series, different(1_000..2_000), later), 2);
    }
}
