//! The keys of nodes, of their registrations, and of their being alive.

use super::{Keys, Name};
use crate::etcd::KeyRange;

/// A key below `/nodes/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKey<'a> {
    /// `/nodes/<name>`
    Node(&'a str),
    /// `/nodes/<name>/release`
    Registration(&'a str),
    /// Anything else there: nothing that this release knows.
    Other,
}

impl Keys {
    /// `/nodes/<name>`: a `Node`.
    pub fn node(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/nodes/{name}"))
    }

    /// `/nodes/<name>/release`: a `Registration`.
    pub fn registration(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/nodes/{name}/release"))
    }

    /// All nodes and registrations: the range that the gate's transaction proves unchanged (INV-4).
    pub fn nodes(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/nodes/")))
    }

    /// What a key of [`Keys::nodes`] is.
    pub fn parse_node<'a>(&self, key: &'a [u8]) -> NodeKey<'a> {
        let name = self.parse_below(key, "/nodes/");
        match name.map(|name| {
            name.split_once('/')
                .map_or((name, None), |(name, rest)| (name, Some(rest)))
        }) {
            Some((name, None)) if !name.is_empty() => NodeKey::Node(name),
            Some((name, Some("release"))) if !name.is_empty() => NodeKey::Registration(name),
            _ => NodeKey::Other,
        }
    }

    /// `/alive/<name>`: a session id; there while the node is ready.
    pub fn alive(&self, name: &Name) -> Vec<u8> {
        self.below(format_args!("/alive/{name}"))
    }

    /// All of them.
    pub fn all_alive(&self) -> KeyRange {
        KeyRange::prefix(self.below(format_args!("/alive/")))
    }

    /// The name in a key of [`Keys::all_alive`].
    pub fn parse_alive<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        self.parse_below(key, "/alive/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new("/team/quorate".parse().unwrap())
    }

    #[test]
    fn a_node_key_is_told_from_its_registration_and_from_what_is_unknown() {
        assert_eq!(keys().parse_node(b"/team/quorate/nodes/a"), NodeKey::Node("a"));
        assert_eq!(
            keys().parse_node(b"/team/quorate/nodes/a/release"),
            NodeKey::Registration("a")
        );
        assert_eq!(keys().parse_node(b"/team/quorate/nodes/a/later"), NodeKey::Other);
        assert_eq!(keys().parse_node(b"/team/quorate/nodes/\xff"), NodeKey::Other);
        assert_eq!(keys().parse_node(b"/team/quorate2/nodes/a"), NodeKey::Other);
    }

    #[test]
    fn the_name_of_an_alive_node_is_read_from_its_key() {
        let name: Name = "n1".parse().unwrap();
        assert_eq!(keys().parse_alive(&keys().alive(&name)), Some("n1"));
        assert_eq!(keys().parse_alive(&keys().node(&name)), None);
    }
}
