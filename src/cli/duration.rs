//! Durations in flags.

use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::SignedDuration;

/// Parses a duration as Kubernetes writes it: `30s`, `5m`, `1h30m`. A plain number counts seconds.
///
/// # Errors
/// A sentence that says what is expected.
pub fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let span: SignedDuration = text
        .parse()
        .map_err(|_| format!("\"{text}\" is not a duration: expected like 30s, 5m or 1h30m"))?;
    Duration::try_from(span).map_err(|_| format!("\"{text}\" is negative"))
}

/// A duration as it is given: `30s`, `1h 30m`.
pub fn shown(duration: Duration) -> String {
    SignedDuration::try_from(duration)
        .map_or_else(|_| format!("{duration:?}"), |duration| format!("{duration:#}"))
}

/// A parser of whole seconds in this range, given as a duration or as a plain number. For what etcd counts in seconds.
pub fn whole_seconds(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let fits = |given: &Duration| given.subsec_nanos() == 0 && range.contains(&given.as_secs());
        duration(text).ok().filter(fits).ok_or_else(|| {
            let seconds = |seconds: &u64| shown(Duration::from_secs(*seconds));
            format!(
                "expected whole seconds, {} to {}",
                seconds(range.start()),
                seconds(range.end())
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_kubernetes() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        for bad in ["", "-10", "1.5", "-5s", "soon"] {
            assert!(duration(bad).unwrap_err().contains(bad), "{bad}");
        }
    }

    #[test]
    fn durations_are_shown_as_they_are_given() {
        for text in ["0s", "500ms", "30s", "5m", "1h"] {
            assert_eq!(shown(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn whole_seconds_are_a_duration_or_a_plain_number_within_the_range() {
        let parse = whole_seconds(2..=3600);
        for (text, seconds) in [("2", 2), ("2s", 2), ("2000ms", 2), ("1m30s", 90), ("1h", 3600)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "1", "1s", "2500ms", "3601", "1h1s", "-5s", "soon"] {
            let error = parse(bad).unwrap_err();
            assert!(
                error.starts_with("expected whole seconds, 2s to 1h"),
                "{bad}: {error}"
            );
        }
    }
}
