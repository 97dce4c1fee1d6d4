//! Amounts of bytes, as Kubernetes writes them.

use serde_json::Value;

/// Suffixes with their factors, the largest first in each family.
const UNITS: &[(&str, i64)] = &[
    ("Ei", 1 << 60),
    ("Pi", 1 << 50),
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("E", 1_000_000_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("T", 1_000_000_000_000),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1_000),
];

/// Reads `1Gi`, `500M` or a number of bytes.
///
/// # Errors
/// What is wrong with it, and what was expected.
pub fn parse_bytes(value: &Value) -> Result<i64, String> {
    let wrong = |shown: &str| {
        format!(
            "{shown} is no amount of bytes: expected a whole number above 0, alone or with one of Ki Mi Gi Ti Pi Ei k M G T P E"
        )
    };
    let parsed = match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => {
            let (digits, unit) = UNITS
                .iter()
                .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
                .unwrap_or((text, 1));
            let plain = digits.chars().all(|c| c.is_ascii_digit());
            let number = digits.parse::<i64>().ok().filter(|_| plain);
            number.and_then(|number| number.checked_mul(unit))
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    parsed
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| wrong(&value.to_string()))
}

/// `1Gi` where that is exact, else the number of bytes. Reads back as the same.
pub fn format_bytes(bytes: i64) -> String {
    let binary = UNITS.iter().filter(|(suffix, _)| suffix.ends_with('i'));
    let mut exact = binary.filter(|(_, unit)| bytes > 0 && bytes % unit == 0);
    match exact.next() {
        Some((suffix, unit)) => format!("{}{suffix}", bytes / unit),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them_and_written_so_that_they_read_back() {
        for (text, bytes) in [
            (json!("1Gi"), 1 << 30),
            (json!("1G"), 1_000_000_000),
            (json!("1536Mi"), 1536 << 20),
            (json!("7"), 7),
            (json!(4096), 4096),
            (json!("3k"), 3000),
        ] {
            assert_eq!(parse_bytes(&text), Ok(bytes), "{text}");
            assert_eq!(parse_bytes(&json!(format_bytes(bytes))), Ok(bytes), "{text}");
        }
        assert_eq!(format_bytes(1 << 30), "1Gi");
        assert_eq!(format_bytes(1_000_000_001), "1000000001");
    }

    #[test]
    fn what_is_no_amount_is_refused_by_name() {
        for bad in [
            json!(""),
            json!("Gi"),
            json!("-1Gi"),
            json!("+1"),
            json!("1.5Gi"),
            json!("9Ei9"),
            json!("9999999999Gi"),
            json!(0),
            json!(-4),
            json!(1.5),
            json!([]),
        ] {
            let error = parse_bytes(&bad).unwrap_err();
            assert!(error.starts_with(&bad.to_string()), "{error}");
        }
    }
}
