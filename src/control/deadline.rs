//! Until when a call that waits may wait, by the time that its caller gives it. Pure.

use std::time::Duration;

/// How long a call without a deadline waits.
const WITHOUT: Duration = Duration::from_secs(60);

/// The longest wait, whatever the deadline: the caller asks again.
const MOST: Duration = Duration::from_secs(300);

/// The answer leaves this long before the deadline, or after nine tenths of a shorter time, so that it arrives in time.
const EARLIER: Duration = Duration::from_millis(500);

/// How long a call may wait; `given` is its metadata `grpc-timeout`.
pub fn patience(given: Option<&str>) -> Duration {
    match given.and_then(parse) {
        None => WITHOUT,
        Some(limit) => (limit - EARLIER.min(limit / 10)).min(MOST),
    }
}

/// A time-out as gRPC over HTTP/2 writes it: at most eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = digits.len() <= 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_until_shortly_before_its_deadline() {
        assert_eq!(patience(None), WITHOUT);
        assert_eq!(patience(Some("10S")), Duration::from_millis(9500));
        assert_eq!(patience(Some("1000m")), Duration::from_millis(900));
        assert_eq!(patience(Some("1000000u")), Duration::from_millis(900));
        assert_eq!(patience(Some("1H")), MOST);
        assert_eq!(patience(Some("99999999H")), MOST);
        assert_eq!(patience(Some("0S")), Duration::ZERO);
        for none in ["", "S", "10", "10s", "+1S", "123456789S", "1.5S"] {
            assert_eq!(patience(Some(none)), WITHOUT, "{none}");
        }
    }
}
