//! The keys of join tokens.

use std::fmt;

use super::{Keys, Name};
use crate::etcd::KeyRange;

const TOKENS: &str = "/identity/tokens/";

/// Who joins with a token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Joiner {
    /// New nodes that are desired workers.
    Worker,
    /// New nodes that are desired managers.
    Manager,
    /// A node that exists, once.
    Node(Name),
}

impl fmt::Display for Joiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker => f.write_str("worker"),
            Self::Manager => f.write_str("manager"),
            Self::Node(name) => write!(f, "node/{name}"),
        }
    }
}

impl Keys {
    /// `/identity/tokens/<joiner>`: a `JoinToken`.
    pub fn join_token(&self, joiner: &Joiner) -> Vec<u8> {
        self.below(format_args!("{TOKENS}{joiner}"))
    }

    /// The range of every `JoinToken`.
    pub fn join_tokens(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("{TOKENS}")))
    }

    /// The joiner in a key of [`Keys::join_tokens`].
    pub fn parse_join_token(&self, key: &[u8]) -> Option<Joiner> {
        match self.parse_below(key, TOKENS)? {
            "worker" => Some(Joiner::Worker),
            "manager" => Some(Joiner::Manager),
            joiner => joiner.strip_prefix("node/")?.parse().ok().map(Joiner::Node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_token_names_its_joiner() {
        let keys = Keys::new("/team/quorate".parse().unwrap());
        // A node may be called like a role.
        let node = |name: &str| Joiner::Node(name.parse().unwrap());
        for (joiner, key) in [
            (Joiner::Worker, "/team/quorate/identity/tokens/worker"),
            (Joiner::Manager, "/team/quorate/identity/tokens/manager"),
            (node("worker"), "/team/quorate/identity/tokens/node/worker"),
            (node("n1.a"), "/team/quorate/identity/tokens/node/n1.a"),
        ] {
            assert_eq!(keys.join_token(&joiner), key.as_bytes());
            assert!(key.as_bytes().starts_with(keys.join_tokens().start()));
            assert_eq!(keys.parse_join_token(key.as_bytes()), Some(joiner));
        }
        for other in ["leader", "node/", "node/A", "node/a/b", ""] {
            let key = format!("/team/quorate/identity/tokens/{other}");
            assert_eq!(keys.parse_join_token(key.as_bytes()), None, "{other}");
        }
    }
}
