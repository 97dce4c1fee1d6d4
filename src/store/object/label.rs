//! Labels and label selectors, with the rules of Kubernetes.

use std::collections::BTreeMap;

use crate::store::keys::Name;

/// The most characters in a label's name, and in its value.
const LABEL_MOST: usize = 63;

/// Checks a label's key: `name` or `prefix/name`.
///
/// # Errors
/// A sentence that says what a key looks like.
pub fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix {
        prefix
            .parse::<Name>()
            .map_err(|_| format!("\"{}\" is not a DNS name", prefix.escape_debug()))?;
    }
    if name.is_empty() || !is_label_text(name) {
        return Err(format!(
            "\"{}\" is not a label name: 1 to {LABEL_MOST} letters, digits, '-', '_' and '.', \
             beginning and ending with a letter or digit",
            name.escape_debug()
        ));
    }
    Ok(())
}

/// Checks a label's value, which may be empty.
///
/// # Errors
/// A sentence that says what a value looks like.
pub fn check_value(value: &str) -> Result<(), String> {
    if is_label_text(value) {
        return Ok(());
    }
    Err(format!(
        "\"{}\" is not a label value: at most {LABEL_MOST} letters, digits, '-', '_' and '.', \
         beginning and ending with a letter or digit",
        value.escape_debug()
    ))
}

fn is_label_text(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = |end: Option<char>| end.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= LABEL_MOST
        && text.chars().all(inner)
        && ends(text.chars().next())
        && ends(text.chars().last())
}

/// A label selector. It selects objects that meet all of its requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    Equals(String, String),
    Differs(String, String),
    Exists(String),
    Absent(String),
}

impl Selector {
    /// Whether an object with these labels is selected. As in Kubernetes, `!=` also selects objects without the label.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::Equals(key, value) => labels.get(key) == Some(value),
            Requirement::Differs(key, value) => labels.get(key) != Some(value),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::Absent(key) => !labels.contains_key(key),
        })
    }
}

impl std::str::FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for part in text.split(',').map(str::trim) {
            let requirement = if let Some((key, value)) = part.split_once("!=") {
                Requirement::Differs(key.trim().to_owned(), value.trim().to_owned())
            } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
                Requirement::Equals(key.trim().to_owned(), value.trim().to_owned())
            } else if let Some(key) = part.strip_prefix('!') {
                Requirement::Absent(key.trim().to_owned())
            } else {
                Requirement::Exists(part.to_owned())
            };
            match &requirement {
                Requirement::Equals(key, value) | Requirement::Differs(key, value) => {
                    check_key(key)?;
                    check_value(value)?;
                }
                Requirement::Exists(key) | Requirement::Absent(key) => check_key(key)?,
            }
            requirements.push(requirement);
        }
        Ok(Self(requirements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys_and_values_follow_kubernetes() {
        for key in ["a", "A_b.c-9", "example.com/role"] {
            assert_eq!(check_key(key), Ok(()));
        }
        for key in ["", "/a", "a/", "a/b/c", "-a", "Example.com/a", &"a".repeat(64)] {
            assert!(check_key(key).is_err(), "{key}");
        }
        assert_eq!(check_value(""), Ok(()));
        assert!(check_value("a b").is_err());
    }

    #[test]
    fn a_selector_needs_all_of_its_requirements() {
        let labels = BTreeMap::from([
            ("zone".to_owned(), "a".to_owned()),
            ("ssd".to_owned(), String::new()),
        ]);
        for (text, expected) in [
            ("zone=a", true),
            ("zone==a, ssd", true),
            ("zone!=a", false),
            ("rack!=1", true),
            ("!rack,zone", true),
            ("!zone", false),
            ("ssd=", true),
            ("zone=b", false),
        ] {
            assert_eq!(
                text.parse::<Selector>().unwrap().matches(&labels),
                expected,
                "{text}"
            );
        }
        assert!(Selector::default().matches(&labels));
    }

    #[test]
    fn a_selector_with_bad_syntax_is_an_error() {
        for text in ["", "a,,b", "=b", "zone in (a,b)", "a=b=c"] {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
    }
}
