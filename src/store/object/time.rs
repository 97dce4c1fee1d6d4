//! Times as they are stored, written and shown.

use jiff::Timestamp;

/// A stored time; `None` if it is unset or out of range.
pub fn from_proto(stored: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    let stored = stored?;
    Timestamp::new(stored.seconds, stored.nanos).ok()
}

/// A time to store: to the second, as in Kubernetes.
pub fn to_proto(time: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: time.as_second(),
        nanos: 0,
    }
}

/// RFC 3339 in UTC, to the second: `2026-03-01T12:00:00Z`.
pub fn rfc3339(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second())
        .unwrap_or(time)
        .to_string()
}

/// Reads a time of a document.
///
/// # Errors
/// A sentence that says what is expected.
pub fn parse(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| {
        let text = text.escape_debug();
        format!("\"{text}\" is no time: expected like 2026-03-01T12:00:00Z")
    })
}

/// A stored time in a document.
pub fn document(stored: Option<&prost_types::Timestamp>) -> Option<String> {
    from_proto(stored).map(rfc3339)
}

/// How long ago `then` was, with as much detail as matters: `45s`, `5m20s`, `47m`, `3h15m`, `30h`, `3d4h`, `90d`,
/// `2y100d`, `9y`. A time in the future (clocks differ) is `0s`.
pub fn age(then: Timestamp, now: Timestamp) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    let two = |unit: i64, name: char, rest: i64, rest_name: char| {
        let (whole, remainder) = (seconds / unit, seconds % unit / rest);
        match remainder {
            0 => format!("{whole}{name}"),
            _ => format!("{whole}{name}{remainder}{rest_name}"),
        }
    };
    // The limits are those of kubectl, so that both print the same age.
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => two(MINUTE, 'm', 1, 's'),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(HOUR, 'h', MINUTE, 'm'),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(DAY, 'd', HOUR, 'h'),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two(YEAR, 'y', DAY, 'd'),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// `2026-03-01T12:00:00Z (3d4h ago)`.
pub fn since(then: Timestamp, now: Timestamp) -> String {
    format!("{} ({} ago)", rfc3339(then), age(then, now))
}

/// `2026-03-01T12:00:00Z (in 3d4h)`, or `… (3d4h ago)` once it is over.
pub fn until(then: Timestamp, now: Timestamp) -> String {
    match then > now {
        true => format!("{} (in {})", rfc3339(then), age(now, then)),
        false => since(then, now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_time_is_refused_with_an_example() {
        assert_eq!(
            parse("2026-03-01T12:00:00Z").map(rfc3339).unwrap(),
            "2026-03-01T12:00:00Z"
        );
        let why = parse("foo").unwrap_err();
        assert_eq!(why, "\"foo\" is no time: expected like 2026-03-01T12:00:00Z");
    }

    #[test]
    fn ages_show_as_much_detail_as_matters_at_their_size() {
        let then = Timestamp::from_second(1_700_000_000).unwrap();
        for (seconds, expected) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (330, "5m30s"),
            (601, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_700, "3h15m"),
            (30_000, "8h"),
            (172_800, "2d"),
            (273_600, "3d4h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (71_712_000, "2y100d"),
            (252_288_000, "8y"),
        ] {
            let now = Timestamp::from_second(1_700_000_000 + seconds).unwrap();
            assert_eq!(age(then, now), expected, "{seconds}");
        }
    }

    #[test]
    fn a_time_to_come_is_shown_with_what_is_left_and_one_that_is_over_with_its_age() {
        let then: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let hours = jiff::SignedDuration::from_hours;
        assert_eq!(
            until(then, then - hours(24 * 89)),
            "2026-03-01T12:00:00Z (in 89d)"
        );
        assert_eq!(until(then, then), "2026-03-01T12:00:00Z (0s ago)");
        assert_eq!(until(then, then + hours(5)), "2026-03-01T12:00:00Z (5h ago)");
    }

    #[test]
    fn a_stored_time_reads_back_and_garbage_is_no_time() {
        let time: Timestamp = "2026-03-01T12:00:00.987Z".parse().unwrap();
        let stored = to_proto(time);
        assert_eq!(
            rfc3339(from_proto(Some(&stored)).unwrap()),
            "2026-03-01T12:00:00Z"
        );
        assert_eq!(from_proto(None), None);
        let garbage = prost_types::Timestamp {
            seconds: i64::MAX,
            nanos: -1,
        };
        assert_eq!(from_proto(Some(&garbage)), None);
    }
}
