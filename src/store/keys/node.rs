//! The keys of nodes, their registrations and their sessions.

use super::space::key_space;
use super::{KeySpace, Keys, Name};
use crate::etcd::KeyRange;

/// A key below `/nodes/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKey<'a> {
    /// `/nodes/<name>`
    Node(&'a str),
    /// `/nodes/<name>/release`
    Registration(&'a str),
    /// Any other key, which this release does not know.
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

    /// The range of all nodes and registrations, which the gate's transaction proves unchanged (INV-4).
    pub fn nodes(&self) -> KeyRange {
        KeySpace::NODES.all(self)
    }

    /// Parses a key of [`Keys::nodes`].
    pub fn parse_node<'a>(&self, key: &'a [u8]) -> NodeKey<'a> {
        let node = KeySpace::NODES.name(self, key).map(NodeKey::Node);
        let registration = || KeySpace::REGISTRATIONS.name(self, key).map(NodeKey::Registration);
        node.or_else(registration).unwrap_or(NodeKey::Other)
    }
}

impl KeySpace {
    /// The keys of every `Node`.
    pub const NODES: Self = Self {
        folder: "/nodes/",
        suffix: "",
        takes: |name| !name.is_empty() && !name.contains('/'),
    };

    /// The keys of every `Registration`, in the range of nodes.
    pub const REGISTRATIONS: Self = Self {
        suffix: "/release",
        ..Self::NODES
    };
}

// `/alive/<name>`: the session of the node, on a lease that its heartbeats renew; the key exists while the node is ready.
key_space!(SESSIONS, "/alive/", "NodeSession", alive, all_alive, parse_alive);

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::new("/team/quorate".parse().unwrap())
    }

    #[test]
    fn the_key_of_a_node_differs_from_that_of_its_registration_and_from_unknown_keys() {
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
    fn the_key_of_a_session_names_its_node() {
        let name: Name = "n1".parse().unwrap();
        assert_eq!(keys().parse_alive(&keys().alive(&name)), Some("n1"));
        assert_eq!(keys().parse_alive(&keys().node(&name)), None);
    }
}
