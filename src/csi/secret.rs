//! Secret values: sent to a plugin, and shown nowhere.

use std::collections::BTreeMap;
use std::hint::black_box;

use k8s_openapi::ByteString;

/// Replaces a secret value in a message.
const HIDDEN: &str = "<secret>";

/// A line of a value is scrubbed by itself from this many bytes on: a shorter one says little about the value.
const LEAST_SCRUBBED: usize = 8;

/// One secret value. It has no Debug, no Display and no Serialize, and its memory is overwritten when it is dropped. The
/// copies in an encoded request live as long as the request.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(String);

impl SecretValue {
    /// Owns the value from now on.
    pub fn new(value: String) -> Self {
        Self(value)
    }

    /// For requests and scrubbing only.
    fn expose(&self) -> &str {
        &self.0
    }
}

impl Drop for SecretValue {
    fn drop(&mut self) {
        overwrite(std::mem::take(&mut self.0));
    }
}

/// Fills the memory of a string with zeros before it is freed.
fn overwrite(value: String) {
    let mut bytes = value.into_bytes();
    bytes.fill(0);
    // Keeps the compiler from leaving the writes out.
    black_box(&bytes);
}

/// The secrets of one call, by the keys that the plugin expects.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, SecretValue>);

impl Secrets {
    /// No secrets.
    pub fn none() -> Self {
        Self::default()
    }

    /// Copies the values into a request. The messages of requests have no Debug.
    pub(super) fn to_wire(&self) -> BTreeMap<String, String> {
        let pairs = self.0.iter();
        pairs
            .map(|(key, value)| (key.clone(), value.expose().to_owned()))
            .collect()
    }

    /// Removes every value from `text`, in each spelling that a plugin may have printed.
    pub fn scrub(&self, text: &str) -> String {
        let mut values: Vec<String> = Vec::new();
        for value in self.0.values().map(SecretValue::expose) {
            // White space alone occurs in every text.
            if !value.trim().is_empty() {
                values.extend(spellings(value));
                values.extend(spellings(value.trim()));
                // A plugin may print the line of a PEM key that it could not parse.
                let lines = value.lines().map(str::trim);
                values.extend(
                    lines
                        .filter(|line| line.len() >= LEAST_SCRUBBED)
                        .map(str::to_owned),
                );
            }
        }
        // The longest first: one value may contain another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        let mut scrubbed = text.to_owned();
        for value in values {
            scrubbed = scrubbed.replace(&value, HIDDEN);
            overwrite(value);
        }
        scrubbed
    }
}

/// The spellings of a value: as it is, escaped in quotes, in JSON, in the query of a URL, in base64.
fn spellings(value: &str) -> [String; 7] {
    let json = serde_json::Value::from(value).to_string();
    // JSON puts quotes around it.
    let json = json[1..json.len() - 1].to_owned();
    // Go escapes these characters for web pages.
    let html = json
        .replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e");
    let mut query = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                query.push(char::from(byte))
            }
            other => query.push_str(&format!("%{other:02X}")),
        }
    }
    let base64 = serde_json::json!(ByteString(value.as_bytes().to_vec()));
    let base64 = base64.as_str().unwrap_or_default();
    [
        value.to_owned(),
        value.escape_debug().to_string(),
        json,
        html,
        query.replace("%20", "+"),
        query,
        base64.trim_end_matches('=').to_owned(),
    ]
}

impl FromIterator<(String, SecretValue)> for Secrets {
    fn from_iter<I: IntoIterator<Item = (String, SecretValue)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        let pairs = values.iter().enumerate();
        pairs
            .map(|(index, value)| (format!("key-{index}"), SecretValue::new((*value).to_owned())))
            .collect()
    }

    #[test]
    fn a_message_is_scrubbed_of_every_value_however_it_was_printed() {
        let secrets = secrets(&["hunter2", "hunter2-and-more", "two\nlines", " padded "]);
        let scrubbed = secrets.scrub(
            "login with hunter2-and-more: hunter2 refused, \"two\\nlines\" and two\nlines and >padded<",
        );
        assert_eq!(
            scrubbed,
            "login with <secret>: <secret> refused, \"<secret>\" and <secret> and ><secret><"
        );
        assert_eq!(secrets.scrub("nothing of that kind"), "nothing of that kind");
    }

    #[test]
    fn a_value_is_scrubbed_where_a_plugin_printed_its_request_or_the_address_that_it_asked() {
        let secrets = secrets(&["a <b>&c/\"d\"="]);
        for printed in [
            r#"{"password":"a <b>&c/\"d\"="}"#,
            r#"{"password":"a \u003cb\u003e\u0026c/\"d\"="}"#,
            "Get https://x/?p=a+%3Cb%3E%26c%2F%22d%22%3D: refused",
            "Get https://x/a%20%3Cb%3E%26c%2F%22d%22%3D: refused",
            "Basic YSA8Yj4mYy8iZCI9",
        ] {
            let scrubbed = secrets.scrub(printed);
            let expected = [
                r#"{"password":"<secret>"}"#,
                "Get https://x/?p=<secret>: refused",
                "Get https://x/<secret>: refused",
                "Basic <secret>",
            ];
            assert!(expected.contains(&scrubbed.as_str()), "{scrubbed}");
        }
    }

    #[test]
    fn a_single_line_of_a_longer_value_is_scrubbed() {
        let scrubbed = secrets(&["-----BEGIN KEY-----\n  c2VjcmV0\n-----END KEY-----"])
            .scrub("bad line c2VjcmV0 in key");
        assert_eq!(scrubbed, "bad line <secret> in key");
    }

    #[test]
    fn an_empty_value_hides_nothing_and_changes_nothing() {
        assert_eq!(secrets(&["", "  "]).scrub("as it was"), "as it was");
        assert_eq!(Secrets::none().scrub("as it was"), "as it was");
    }

    #[test]
    fn the_plugin_gets_the_values_under_their_keys() {
        let wire = secrets(&["a", "b"]).to_wire();
        assert_eq!(wire["key-0"], "a");
        assert_eq!(wire["key-1"], "b");
    }
}
