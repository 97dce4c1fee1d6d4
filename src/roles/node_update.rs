//! New values of stored nodes. Pure.
//!
//! The fields of the status that are written are replaced, and everything else of the node stays byte for byte: what only a newer release
//! knows, of its status too. In a list, such as the conditions, each element is written as this release knows it.

use jiff::Timestamp;
use prost::Message;

use super::reason::ROLE_CHANGE_BLOCKED;
use crate::proto::{Node, NodeStatus, Role};
use crate::store::object::{Object, condition};
use crate::wire;

/// The field `Node.status`.
const STATUS: u64 = 3;

/// The field `NodeStatus.role`.
const ROLE: u64 = 1;

/// The field `NodeStatus.conditions`.
const CONDITIONS: u64 = 5;

/// The node with these values of some fields of its status, given by their numbers; `change` has no others. The value must be a node.
pub fn with_status(value: &[u8], written: &[u64], change: &NodeStatus) -> Vec<u8> {
    wire::with_message(value, STATUS, |status| {
        let mut status = wire::fields(status, |number| !written.contains(&number));
        status.extend(change.encode_to_vec());
        status
    })
}

/// The node with this observed role and without the condition [`ROLE_CHANGE_BLOCKED`]. The value must be a node.
pub fn with_role(value: &[u8], role: Role) -> Vec<u8> {
    let value = with_blocked(value, None, Timestamp::UNIX_EPOCH).unwrap_or_else(|| value.to_vec());
    let change = NodeStatus {
        role: role.into(),
        ..NodeStatus::default()
    };
    with_status(&value, &[ROLE], &change)
}

/// The node with [`ROLE_CHANGE_BLOCKED`] for this reason and message, or without that condition; `None` if it is so
/// already, or if the value is no node that can be read.
pub fn with_blocked(value: &[u8], why: Option<(&str, &str)>, now: Timestamp) -> Option<Vec<u8>> {
    with_condition(value, ROLE_CHANGE_BLOCKED, why, now)
}

/// The same with any condition.
pub fn with_condition(
    value: &[u8],
    r#type: &str,
    why: Option<(&str, &str)>,
    now: Timestamp,
) -> Option<Vec<u8>> {
    let node = Node::decode(value).ok().filter(|node| node.metadata.is_some())?;
    let generation = node.generation();
    let mut conditions = node.status.unwrap_or_default().conditions;
    let changed = match why {
        Some(why) => condition::set(&mut conditions, r#type, why, generation, now),
        None => condition::clear(&mut conditions, r#type),
    };
    let change = NodeStatus {
        conditions,
        ..NodeStatus::default()
    };
    changed.then(|| with_status(value, &[CONDITIONS], &change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Metadata;

    #[test]
    fn a_new_role_keeps_unknown_fields_and_removes_the_condition() {
        let node = Node {
            metadata: Some(Metadata {
                name: "n1".to_owned(),
                generation: 3,
                ..Metadata::default()
            }),
            ..Node::default()
        };
        let mut value = node.encode_to_vec();
        // Field 15 of a later release, a varint.
        value.extend([0x78, 0x01]);
        let written = with_role(&value, Role::Manager);
        assert!(written.windows(2).any(|bytes| bytes == [0x78, 0x01]));
        assert_eq!(
            Node::decode(&*written).unwrap().status.unwrap().role(),
            Role::Manager
        );

        let why = Some(("QuorumRisk", "m"));
        let blocked = with_blocked(&written, why, Timestamp::UNIX_EPOCH).unwrap();
        let status = Node::decode(&*blocked).unwrap().status.unwrap();
        assert_eq!((status.conditions.len(), status.role()), (1, Role::Manager));
        assert_eq!(status.conditions[0].observed_generation, 3);
        assert_eq!(
            with_blocked(&blocked, why, Timestamp::MAX),
            None,
            "it says so already"
        );
        let free = Node::decode(&*with_role(&blocked, Role::Worker)).unwrap();
        let free = free.status.unwrap();
        assert_eq!((free.conditions.len(), free.role()), (0, Role::Worker));
        assert_eq!(with_blocked(&written, None, Timestamp::MAX), None);
    }

    #[test]
    fn no_node_is_made_from_a_value_that_is_none() {
        let why = Some(("QuorumRisk", "m"));
        assert_eq!(with_blocked(&[], why, Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn what_is_written_keeps_what_only_a_later_release_knows_of_the_node_its_spec_and_its_status() {
        // Field 1 is the metadata. Field 2 is the spec; in it field 15, a varint. Then field 15 of the node, and of the status, which is
        // field 3.
        let newer: [&[u8]; 3] = [&[0x12, 2, 0x78, 7], &[0x78, 9], &[0x78, 11]];
        let value = [&[0x0a, 0], newer[0], newer[1], &[0x1a, 2], newer[2]].concat();
        let blocked = with_blocked(&value, Some(("QuorumRisk", "m")), Timestamp::UNIX_EPOCH).unwrap();
        let free = with_blocked(&blocked, None, Timestamp::MAX).unwrap();
        let roles = [Role::Manager, Role::Worker].map(|role| with_role(&blocked, role));
        for written in [&blocked, &free, &roles[0], &roles[1]] {
            for field in newer {
                assert!(
                    written.windows(field.len()).any(|bytes| bytes == field),
                    "{written:?}"
                );
            }
        }
        let conditions = |value: &[u8]| Node::decode(value).unwrap().status.unwrap().conditions.len();
        assert_eq!((conditions(&blocked), conditions(&free)), (1, 0));
        // However often it changes, a role is stored once.
        let again = with_role(&with_role(&roles[0], Role::Worker), Role::Manager);
        assert_eq!(again.len(), roles[0].len());
    }
}
