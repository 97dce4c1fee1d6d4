//! The parts of keys: the prefix, names, and ids of two names.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The prefix of every key. It begins with a slash and does not end with one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(String);

/// Why a text is not a prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" cannot be a prefix: expected like /quorate or /team-a/quorate, with a slash first, none last, none doubled, and no spaces"
)]
pub struct BadPrefix(String);

impl FromStr for Prefix {
    type Err = BadPrefix;

    fn from_str(text: &str) -> Result<Self, BadPrefix> {
        let good = text.strip_prefix('/').is_some_and(|rest| {
            rest.split('/')
                .all(|part| !part.is_empty() && part.chars().all(|c| c.is_ascii_graphic()))
        });
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadPrefix(text.to_owned()))
        }
    }
}

impl Prefix {
    /// The text, as in a key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of an object: an RFC 1123 subdomain, as in Kubernetes. It contains no slash, so it is one element of a key. Its clones
/// share the text: an index holds one name in many places.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a name: expected an RFC 1123 subdomain (lower-case letters, digits, '-' and '.', first and last a letter or digit, at most 253 characters)"
)]
pub struct BadName(String);

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        Self::check(text)?;
        Ok(Self(text.into()))
    }
}

impl Name {
    /// Whether a text is a name, for those that need none of their own.
    ///
    /// # Errors
    /// If it is not.
    pub fn check(text: &str) -> Result<(), BadName> {
        let label = |label: &str| {
            let mut bytes = label.bytes();
            let inner = bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
            inner && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
        };
        // Lengths from RFC 1123 section 2.1, as Kubernetes applies them.
        match text.len() <= 253 && text.split('.').all(label) {
            true => Ok(()),
            false => Err(BadName(text.to_owned())),
        }
    }

    /// The text, as in a key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What identifies an object among those of its kind: its name, or, where each belongs to an object of another kind, the
/// owner's name and its own. `web/1` is task 1 of service web.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The name of the object that it belongs to.
    pub owner: Option<Name>,
    /// Its own name.
    pub name: Name,
}

impl From<Name> for Id {
    fn from(name: Name) -> Self {
        Self { owner: None, name }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => write!(f, "{owner}/{}", self.name),
            None => self.name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_prefixes_that_would_make_other_keys_are_refused() {
        for bad in ["", "A", "a/b", "-a", "a-", "a..b", "a b", "ä", &"a".repeat(254)] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
        for bad in ["", "/", "quorate", "/quorate/", "//q", "/a b"] {
            assert!(bad.parse::<Prefix>().is_err(), "{bad:?}");
        }
    }
}
