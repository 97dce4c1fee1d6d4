//! Which notices become Events, which are counted on one, and which are held back.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Notice;

/// What to do with a notice.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Publish it as seen so many times: counted on the Event of this name, or as a new one.
    Send { on: Option<String>, count: u32 },
    /// Nothing: counted here only, or too many.
    Hold,
}

/// The notices of the last minutes, and how many more may be sent.
#[derive(Debug)]
pub(super) struct Series {
    running: HashMap<Notice, Running>,
    tokens: f64,
    refilled: Option<Instant>,
}

#[derive(Debug)]
struct Running {
    name: Option<String>,
    count: u32,
    seen: Instant,
    /// When it last got through.
    sent: Option<Instant>,
    /// Whether the last attempt did not, as far as is known.
    is_open: bool,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            running: HashMap::new(),
            tokens: BURST,
            refilled: None,
        }
    }
}

/// Silence after which the same notice is a new Event: as in client-go's event recorder.
const ENDS_AFTER: Duration = Duration::from_secs(6 * 60);

/// A repeated notice is counted on its Event at most this often.
const COUNT_EVERY: Duration = Duration::from_secs(60);

/// New Events and repeated attempts at once, and seconds until another one may follow. client-go allows 25 and then one
/// in five minutes.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 10.0;

impl Series {
    pub(super) fn take(&mut self, notice: &Notice, now: Instant) -> Step {
        self.running
            .retain(|_, running| now.saturating_duration_since(running.seen) < ENDS_AFTER);
        if let Some(running) = self.running.get_mut(notice) {
            running.count = running.count.saturating_add(1);
            running.seen = now;
            let since = running.sent.map(|sent| now.saturating_duration_since(sent));
            if since.is_some_and(|since| since < COUNT_EVERY) {
                return Step::Hold;
            }
            if running.name.is_some() && !running.is_open {
                return running.send();
            }
        }
        // An API server in trouble meets no more attempts than new Events (INV-9).
        if !self.take_token(now) {
            tracing::debug!(reason = notice.reason, "an Event is held back: too many");
            return Step::Hold;
        }
        let running = self.running.entry(notice.clone()).or_insert(Running {
            name: None,
            count: 1,
            seen: now,
            sent: None,
            is_open: false,
        });
        running.send()
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

    /// It got through, as the Event of this name.
    pub(super) fn sent(&mut self, notice: &Notice, name: String, now: Instant) {
        if let Some(running) = self.running.get_mut(notice) {
            running.name = Some(name);
            running.sent = Some(now);
            running.is_open = false;
        }
    }
}

impl Running {
    fn send(&mut self) -> Step {
        self.is_open = true;
        Step::Send {
            on: self.name.clone(),
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

    const NEW: Step = Step::Send { on: None, count: 1 };

    fn on(name: &str, count: u32) -> Step {
        let on = Some(name.to_owned());
        Step::Send { on, count }
    }

    fn sends(series: &mut Series, notices: impl Iterator<Item = Notice>, now: Instant) -> usize {
        notices
            .filter(|notice| series.take(notice, now) != Step::Hold)
            .count()
    }

    #[test]
    fn the_same_notice_is_counted_on_one_event() {
        let mut series = Series::default();
        let start = Instant::now();
        assert_eq!(series.take(&notice("a"), start), NEW);
        series.sent(&notice("a"), "first".to_owned(), start);
        let soon = start + Duration::from_secs(1);
        assert_eq!(series.take(&notice("a"), soon), Step::Hold);
        assert_eq!(series.take(&notice("a"), start + COUNT_EVERY), on("first", 3));
        assert_eq!(series.take(&notice("b"), start + COUNT_EVERY), NEW);
    }

    #[test]
    fn after_a_long_silence_it_is_a_new_event() {
        let mut series = Series::default();
        let start = Instant::now();
        series.take(&notice("a"), start);
        series.sent(&notice("a"), "first".to_owned(), start);
        assert_eq!(series.take(&notice("a"), start + ENDS_AFTER), NEW);
    }

    #[test]
    fn an_event_that_was_cut_off_or_refused_was_not_sent_and_the_next_of_its_kind_is() {
        let mut series = Series::default();
        let start = Instant::now();
        assert_eq!(series.take(&notice("a"), start), NEW);
        let soon = start + Duration::from_secs(1);
        let again = Step::Send { on: None, count: 2 };
        assert_eq!(series.take(&notice("a"), soon), again);
        series.sent(&notice("a"), "first".to_owned(), soon);
        assert_eq!(series.take(&notice("a"), soon), Step::Hold);
        let later = soon + COUNT_EVERY;
        assert_eq!(series.take(&notice("a"), later), on("first", 4));
        assert_eq!(series.take(&notice("a"), later), on("first", 5));
    }

    /// INV-9: where the API server refuses everything.
    #[test]
    fn attempts_that_fail_are_as_few_as_new_events() {
        let mut series = Series::default();
        let start = Instant::now();
        let same = || std::iter::repeat_with(|| notice("a")).take(1_000);
        assert_eq!(sends(&mut series, same(), start), 25);
        let later = start + Duration::from_secs(20);
        assert_eq!(sends(&mut series, same(), later), 2);
        series.sent(&notice("a"), "first".to_owned(), later);
        // The first attempt to count it is due, whatever others there are; those that repeat it are not.
        assert_eq!(sends(&mut series, same(), later + COUNT_EVERY), 1 + 6);
    }

    #[test]
    fn a_flood_of_different_notices_is_held_back() {
        let mut series = Series::default();
        let start = Instant::now();
        let different = |numbers: std::ops::Range<u32>| numbers.map(|number| notice(&number.to_string()));
        assert_eq!(sends(&mut series, different(0..1_000), start), 25);
        let later = start + Duration::from_secs(20);
        assert_eq!(sends(&mut series, different(1_000..2_000), later), 2);
    }
}
