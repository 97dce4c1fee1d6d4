//! The nodes and which of them are ready, for people. Pure.

use std::collections::BTreeMap;

use super::index::Index;
use super::seen_node::SeenNode;
use crate::proto::Role;
use crate::proto::node_spec::Availability;
use crate::roles::summary::{NodeRow, NodesSummary, UNREADABLE, counted_role};
use crate::store::Name;
use crate::store::object::node::role_word;
use crate::summary::Rows;

/// The nodes of the copy.
pub fn nodes(index: &Index) -> NodesSummary {
    let (mut roles, mut ready) = (BTreeMap::new(), 0);
    let all = index.names().map(|name| {
        let (node, is_ready) = (index.node(name).flatten(), index.is_ready(name));
        let role = node.map_or(Role::Unspecified, |node| node.role);
        *roles.entry(counted_role(role)).or_default() += 1;
        ready += usize::from(is_ready);
        let is_unusual = !is_ready || node.is_none_or(is_unusual);
        (!is_unusual, name)
    });
    let nodes = Rows::least(all).map(|(_, name)| row(index, name));
    NodesSummary {
        ready: Some(ready),
        roles,
        nodes,
    }
}

fn row(index: &Index, name: &Name) -> NodeRow {
    let node = index.node(name).flatten();
    NodeRow {
        name: name.to_string(),
        ready: Some(index.is_ready(name)),
        desired_role: node
            .map(|node| role_word(node.spec.desired_role))
            .unwrap_or_default(),
        observed_role: node.map(|node| role_word(node.role.into())).unwrap_or_default(),
        remarks: node.map_or_else(|| vec![UNREADABLE], remarks),
    }
}

fn is_unusual(node: &SeenNode) -> bool {
    node.spec.desired_role() != node.role || !remarks(node).is_empty()
}

fn remarks(node: &SeenNode) -> Vec<&'static str> {
    let availability = match node.spec.availability() {
        Availability::Pause => Some("paused"),
        Availability::Drain => Some("drained"),
        Availability::Active | Availability::Unspecified => None,
    };
    let others = [
        (!node.is_accepted).then_some("not accepted yet (quorate accept)"),
        node.spec.out_of_service.then_some("declared out of service"),
        node.is_duplicate
            .then_some("several agents run with its certificate"),
    ];
    availability
        .into_iter()
        .chain(others.into_iter().flatten())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::index::tests::{keys, kv, listed, name, node, session};
    use super::*;

    #[test]
    fn nodes_that_are_down_come_first_and_an_earlier_nodes_session_makes_none_ready() {
        // Sessions are of the uid u1.
        let records = vec![
            node("a", "u1", Role::Unspecified, 2),
            node("b", "u1", Role::Unspecified, 3),
            node("c", "u2", Role::Unspecified, 4),
            kv(keys().node(&name("d")), vec![0xff], 5),
        ];
        let alive = vec![
            session("a", "s1", 6),
            session("c", "s2", 7),
            session("d", "s3", 8),
        ];
        let summary = nodes(&listed(alive, records));
        let rows: Vec<(&str, Option<bool>)> = summary
            .nodes
            .first
            .iter()
            .map(|row| (row.name.as_str(), row.ready))
            .collect();
        assert_eq!(
            rows,
            [
                ("b", Some(false)),
                ("c", Some(false)),
                ("d", Some(true)),
                ("a", Some(true))
            ]
        );
        assert_eq!((summary.ready, summary.nodes.total), (Some(2), 4));
        assert_eq!(summary.nodes.first[2].remarks, [UNREADABLE]);
    }
}
