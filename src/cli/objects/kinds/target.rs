//! The arguments that name objects: `KIND`, `KIND/NAME`, and names.

use clap::builder::{PossibleValue, TypedValueParser};

use super::Kind;
use super::registry::{KINDS, find};
use crate::store::{Id, Name};

/// The first argument of the object commands: `KIND` or `KIND/NAME`.
#[derive(Clone, Debug)]
pub struct Target {
    kind: &'static Kind,
    id: Option<Id>,
}

impl Target {
    /// All objects of a kind.
    pub fn all(kind: &'static Kind) -> Self {
        Self { kind, id: None }
    }

    /// The kind, and the ids in this argument and the others, each of which may be `KIND/NAME` again.
    ///
    /// # Errors
    /// A sentence about the first argument that does not fit.
    pub fn resolve(&self, others: &[String]) -> Result<(&'static Kind, Vec<Id>), String> {
        let mut ids: Vec<Id> = self.id.iter().cloned().collect();
        for other in others {
            // A bare name has as many slashes as the kind's ids have; `KIND/NAME` has one more.
            let bare = other.matches('/').count() == usize::from(self.kind.owned.is_some());
            // An id with too many slashes is one all the same, where what stands before the first is no kind.
            let is_named = match (self.kind.owned, other.split_once('/')) {
                (Some(_), Some((word, _))) => find(word).is_ok(),
                (None, Some(_)) => true,
                (_, None) => false,
            };
            let id = if bare || !is_named {
                Some(parse_id(self.kind, other)?)
            } else {
                let target = parse(other)?;
                let (expected, found) = (self.kind.words.kind, target.kind.words.kind);
                if expected != found {
                    return Err(format!(
                        "\"{other}\" is a {found}; one command takes one kind ({expected})"
                    ));
                }
                target.id
            };
            ids.extend(id.filter(|id| !ids.contains(id)));
        }
        Ok((self.kind, ids))
    }
}

fn parse(text: &str) -> Result<Target, String> {
    let (word, id) = match text.split_once('/') {
        Some((word, id)) => (word, Some(id)),
        None => (text, None),
    };
    let kind = find(word)?;
    Ok(Target {
        kind,
        id: id.map(|id| parse_id(kind, id)).transpose()?,
    })
}

fn parse_id(kind: &Kind, text: &str) -> Result<Id, String> {
    let name = |text: &str| text.parse::<Name>().map_err(|error| error.to_string());
    if kind.title.is_some() {
        let plural = kind.words.plural;
        return Err(format!(
            "{plural} are only listed all together: quorate get {plural}"
        ));
    }
    match (kind.owned, text.split_once('/')) {
        (Some(_), Some((owner, own))) if !own.contains('/') => Ok(Id {
            owner: Some(name(owner)?),
            name: name(own)?,
        }),
        (Some(form), _) => Err(format!(
            "\"{}\" is not the id of a {}: expected {form}",
            text.escape_debug(),
            kind.words.singular
        )),
        (None, _) => name(text).map(Id::from),
    }
}

/// Parses a [`Target`], and lists the kinds for help and completions.
#[derive(Clone, Copy)]
pub struct TargetParser {
    /// The kinds that help and completions list. The command accepts every kind, so that it can refuse in its own words.
    named: fn(&Kind) -> bool,
}

impl TargetParser {
    /// For a command that serves all kinds.
    pub const ALL: Self = Self { named: |_| true };

    /// For `delete`.
    pub const DELETED: Self = Self {
        named: |kind| kind.deleted.is_ok(),
    };

    /// For `edit`.
    pub const APPLIED: Self = Self {
        named: |kind| kind.applied.is_some(),
    };

    /// For `wait`.
    pub const FOLLOWED: Self = Self {
        named: |kind| !kind.shows_members && kind.title.is_none(),
    };
}

impl TypedValueParser for TargetParser {
    type Value = Target;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Target, clap::Error> {
        TypedValueParser::parse_ref(&(|text: &str| parse(text)), command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let named = KINDS.iter().filter(|kind| (self.named)(kind));
        Some(Box::new(named.map(|kind| {
            let words = &kind.words;
            PossibleValue::new(words.plural)
                .alias(words.singular)
                .aliases(words.short)
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_bare_or_with_their_kind_and_once() {
        let resolve = |first: &str, others: &[&str]| {
            let others: Vec<String> = others.iter().map(ToString::to_string).collect();
            let (_, names) = parse(first)?.resolve(&others)?;
            Ok::<_, String>(names.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(resolve("nodes", &[]).unwrap(), Vec::<String>::new());
        assert_eq!(resolve("node", &["b", "a", "b"]).unwrap(), ["b", "a"]);
        assert_eq!(resolve("node/a", &["no/b"]).unwrap(), ["a", "b"]);
        assert!(
            resolve("node/a", &["replica/b"])
                .unwrap_err()
                .contains("one kind")
        );
        assert!(resolve("node/", &[]).is_err());
        assert!(resolve("node", &["A"]).is_err());
    }

    #[test]
    fn a_task_is_named_with_its_service() {
        let resolve = |first: &str, others: &[&str]| {
            let others: Vec<String> = others.iter().map(ToString::to_string).collect();
            let (_, ids) = parse(first)?.resolve(&others)?;
            Ok::<_, String>(ids.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(resolve("task/web/1", &["web/2"]).unwrap(), ["web/1", "web/2"]);
        assert_eq!(resolve("tasks", &["task/web/1"]).unwrap(), ["web/1"]);
        for (first, others) in [("task", &["1"][..]), ("task/web", &[]), ("task", &["node/a/b"])] {
            assert!(resolve(first, others).is_err(), "{first} {others:?}");
        }
        for (first, others) in [("task", &["web/1/2"][..]), ("task/web/1/2", &[])] {
            let why = resolve(first, others).unwrap_err();
            assert!(
                why.contains("\"web/1/2\" is not the id of a task: expected "),
                "{why}"
            );
        }
    }
}
