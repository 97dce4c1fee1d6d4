//! Secret values: sent to a plugin, and shown nowhere.

use std::collections::BTreeMap;
use std::ops::Range;

use k8s_openapi::ByteString;

use crate::wipe::{Zeroizing, wipe};

/// Replaces a secret value in a message.
const HIDDEN: &str = "<secret>";

/// A line of a value is scrubbed by itself from this many bytes on: a shorter one says little about the value.
const LEAST_SCRUBBED: usize = 8;

/// A spelling is removed within words from this many bytes on: shorter ones are part of many words.
const LEAST_ANYWHERE: usize = 4;

/// One secret value. It has no Debug, no Display and no Serialize, and its memory is overwritten when it is dropped. The
/// copies in an encoded request live as long as the request.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Zeroizing<String>);

impl SecretValue {
    /// Owns the value from now on.
    pub fn new(value: String) -> Self {
        Self(Zeroizing::new(value))
    }

    /// For requests and scrubbing only.
    fn expose(&self) -> &str {
        &self.0
    }
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

    /// Removes every value from `text`, in each spelling that a plugin may have printed. The text is searched once for all of
    /// them, so that nothing is replaced in what was replaced: a run of bytes that belong to values becomes one `<secret>`.
    ///
    /// A spelling of less than four bytes is removed only where it stands by itself, with no letter or digit beside it. Such a value
    /// occurs in ordinary words. To remove it from `denied` would not hide it, since readers know the word, and many of these would
    /// leave no message to read. A plugin that prints the value prints it as a word, in quotes or after a sign.
    pub fn scrub(&self, text: &str) -> String {
        let mut spellings = self.spellings();
        let found = spellings.iter().flat_map(|spelling| occurrences(text, spelling));
        let mut found: Vec<Range<usize>> = found.collect();
        spellings.iter_mut().for_each(wipe);
        found.sort_by_key(|one| one.start);
        let (mut scrubbed, mut done, mut is_hidden) = (String::with_capacity(text.len()), 0, false);
        for Range { start, end } in found {
            if start > done {
                scrubbed.push_str(&text[done..start]);
                is_hidden = false;
            }
            if !is_hidden {
                scrubbed.push_str(HIDDEN);
                is_hidden = true;
            }
            done = done.max(end);
        }
        scrubbed.push_str(&text[done..]);
        scrubbed
    }

    /// Every spelling of every value.
    fn spellings(&self) -> Vec<String> {
        let mut all = Vec::new();
        for value in self.0.values().map(SecretValue::expose) {
            // White space alone occurs in every text.
            if !value.trim().is_empty() {
                all.extend(spellings(value));
                all.extend(spellings(value.trim()));
                // A plugin may print the line of a PEM key that it could not parse.
                let lines = value.lines().map(str::trim);
                let long = lines.filter(|line| line.len() >= LEAST_SCRUBBED);
                all.extend(long.map(str::to_owned));
            }
        }
        all
    }
}

/// Where a spelling is removed from a text.
fn occurrences<'t>(text: &'t str, spelling: &'t str) -> impl Iterator<Item = Range<usize>> + use<'t> {
    let mut from = 0;
    let everywhere = std::iter::from_fn(move || {
        let start = from + text.get(from..)?.find(spelling)?;
        // The next one may begin within this one.
        from = start + text[start..].chars().next().map_or(1, char::len_utf8);
        Some(start..start + spelling.len())
    });
    everywhere.filter(move |found| spelling.len() >= LEAST_ANYWHERE || stands_alone(text, found))
}

/// Whether there is no letter and no digit beside this part of a text.
fn stands_alone(text: &str, part: &Range<usize>) -> bool {
    let before = text[..part.start].chars().next_back();
    let after = text[part.end..].chars().next();
    !before.into_iter().chain(after).any(char::is_alphanumeric)
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
    fn a_value_of_a_letter_is_scrubbed_where_it_stands_by_itself_and_leaves_the_words_of_a_message() {
        let secrets = secrets(&["e", "42", "s"]);
        let message = "PermissionDenied: the request of user 4242 was denied: password=e, pin '42', \"s\", e";
        assert_eq!(
            secrets.scrub(message),
            "PermissionDenied: the request of user 4242 was denied: password=<secret>, pin '<secret>', \
             \"<secret>\", <secret>"
        );
    }

    #[test]
    fn values_that_overlap_or_touch_in_a_message_leave_nothing_of_each_other() {
        let secrets = secrets(&["ab12", "12cd", "abab"]);
        assert_eq!(secrets.scrub("xab12cdx"), "x<secret>x");
        assert_eq!(secrets.scrub("ab12ab12 12cd"), "<secret> <secret>");
        assert_eq!(secrets.scrub("(ababab)"), "(<secret>)");
    }

    /// What stands for a value is not searched for another one.
    #[test]
    fn no_message_grows_by_more_than_what_stands_for_its_values() {
        let values = ["secret", "e", "c", "r", "t", "<", ">", "<secret>"];
        let message = "e c r t < > secret ".repeat(20);
        let scrubbed = secrets(&values).scrub(&message);
        let expected = "<secret> <secret> <secret> <secret> <secret> <secret> <secret> ".repeat(20);
        assert_eq!(scrubbed, expected);
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
