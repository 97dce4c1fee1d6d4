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
    let wrong = || {
        format!(
            "{value} is no amount of bytes: expected a whole number above 0, alone or with one of Ki Mi Gi Ti Pi Ei k M G T P E"
        )
    };
    let too_large = || format!("{value} is too large: expected less than 8Ei");
    let bytes = match value {
        Value::Number(number) if number.is_u64() => number.as_i64().ok_or_else(too_large)?,
        Value::Number(number) => number.as_i64().ok_or_else(wrong)?,
        Value::String(text) => {
            let (digits, unit) = UNITS
                .iter()
                .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
                .unwrap_or((text, 1));
            if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit()) {
                return Err(wrong());
            }
            let number = digits.parse::<i64>().ok();
            number
                .and_then(|number| number.checked_mul(unit))
                .ok_or_else(too_large)?
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return Err(wrong()),
    };
    match bytes > 0 {
        true => Ok(bytes),
        false => Err(wrong()),
    }
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
            json!(0),
            json!(-4),
            json!(1.5),
            json!([]),
        ] {
            let error = parse_bytes(&bad).unwrap_err();
            assert!(error.starts_with(&bad.to_string()), "{error}");
        }
    }

    #[test]
    fn an_amount_of_8_exbibytes_or_more_is_too_large() {
        for large in [
            json!("8Ei"),
            json!("9999999999Gi"),
            json!("9223372036854775808"),
            json!(9_223_372_036_854_775_808_u64),
        ] {
            let error = parse_bytes(&large).unwrap_err();
            assert_eq!(error, format!("{large} is too large: expected less than 8Ei"));
        }
        assert_eq!(parse_bytes(&json!(i64::MAX)), Ok(i64::MAX));
    }
}
