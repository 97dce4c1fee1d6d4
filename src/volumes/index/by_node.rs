//! The publications of one volume, by node. Almost every volume has one at most, and there may be many volumes: a tree would keep
//! room for eleven in each. Pure.

use super::Stored;
use crate::store::Name;

/// In the order of the nodes.
#[derive(Debug, Default)]
pub(super) struct ByNode(Vec<(Name, Stored)>);

impl ByNode {
    /// Where the node is, or else where it belongs.
    fn place(&self, node: &Name) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| known.cmp(node))
    }

    pub(super) fn get(&self, node: &Name) -> Option<&Stored> {
        let place = self.place(node).ok()?;
        self.0.get(place).map(|(_, stored)| stored)
    }

    pub(super) fn has(&self, node: &Name) -> bool {
        self.place(node).is_ok()
    }

    /// What is stored of the publication to this node; empty if there was none.
    pub(super) fn get_or_default(&mut self, node: &Name) -> &mut Stored {
        let place = match self.place(node) {
            Ok(place) => place,
            Err(place) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1);
                }
                self.0.insert(place, (node.clone(), Stored::default()));
                place
            }
        };
        &mut self.0[place].1
    }

    pub(super) fn remove(&mut self, node: &Name) {
        if let Ok(place) = self.place(node) {
            self.0.remove(place);
        }
        if self.0.is_empty() {
            // A volume that is published nowhere may stay so.
            self.0 = Vec::new();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &Name> {
        self.0.iter().map(|(node, _)| node)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Stored> {
        self.0.iter().map(|(_, stored)| stored)
    }

    /// Each node with what is stored.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Name, &Stored)> {
        self.0.iter().map(|(node, stored)| (node, stored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::Revision;

    #[test]
    fn nodes_come_in_their_order_and_each_has_its_own_record() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        let mut by_node = ByNode::default();
        for (revision, node) in (1..).zip(["m", "z", "a", "n"]) {
            assert_eq!(by_node.get_or_default(&name(node)).mod_revision, Revision::ABSENT);
            by_node.get_or_default(&name(node)).mod_revision = Revision(revision);
        }
        let shown = |by_node: &ByNode| -> Vec<(String, i64)> {
            let all = by_node.all();
            all.map(|(node, stored)| (node.to_string(), stored.mod_revision.0))
                .collect()
        };
        let pair = |node: &str, revision: i64| (node.to_owned(), revision);
        assert_eq!(
            shown(&by_node),
            [pair("a", 3), pair("m", 1), pair("n", 4), pair("z", 2)]
        );
        assert!(by_node.has(&name("m")) && !by_node.has(&name("b")) && by_node.get(&name("b")).is_none());
        for gone in ["m", "b", "a"] {
            by_node.remove(&name(gone));
        }
        assert_eq!(shown(&by_node), [pair("n", 4), pair("z", 2)]);
        assert_eq!(
            by_node.get(&name("n")).map(|stored| stored.mod_revision.0),
            Some(4)
        );
        assert!(by_node.nodes().eq([&name("n"), &name("z")]) && by_node.values().count() == 2);
        for gone in ["n", "z"] {
            by_node.remove(&name(gone));
        }
        assert!(by_node.is_empty());
    }
}
