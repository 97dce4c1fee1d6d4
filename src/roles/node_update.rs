//! New values of stored nodes. Pure.
//!
//! A role is written by appending it: protobuf merges a message that follows another, so fields that only a newer release
//! knows stay as they are. A condition cannot be removed that way; then the status is decoded and encoded again, and the rest stays
//! byte for byte.

use jiff::Timestamp;
use prost::Message;

use super::reason::ROLE_CHANGE_BLOCKED;
use crate::proto::{Node, NodeStatus, Role};
use crate::store::object::{Object, condition};
use crate::wire;

/// The field `Node.status`.
const STATUS: u64 = 3;

/// The node with this observed role and without the condition [`ROLE_CHANGE_BLOCKED`].
pub fn with_role(value: &[u8], role: Role) -> Vec<u8> {
    let mut value = with_blocked(value, None, Timestamp::UNIX_EPOCH).unwrap_or_else(|| value.to_vec());
    let change = Node {
        status: Some(NodeStatus {
            role: role.into(),
            ..NodeStatus::default()
        }),
        ..Node::default()
    };
    value.extend(change.encode_to_vec());
    value
}

/// The node with [`ROLE_CHANGE_BLOCKED`] for this reason and message, or without that condition; `None` if it is so
/// already, or if the value cannot be read.
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
    let mut node = Node::decode(value).ok()?;
    let generation = node.generation();
    let conditions = &mut node.status.get_or_insert_default().conditions;
    let changed = match why {
        Some(why) => condition::set(conditions, r#type, why, generation, now),
        None => condition::clear(conditions, r#type),
    };
    let status = Node {
        status: node.status,
        ..Node::default()
    };
    changed.then(|| {
        let mut value = wire::fields(value, |number| number != STATUS);
        value.extend(status.encode_to_vec());
        value
    })
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
    fn a_condition_keeps_what_only_a_later_release_knows_of_the_node_and_its_spec() {
        // Field 2 is the spec; in it field 15, a varint. Then field 15 of the node.
        let newer: [&[u8]; 2] = [&[0x12, 2, 0x78, 7], &[0x78, 9]];
        let value = newer.concat();
        let blocked = with_blocked(&value, Some(("QuorumRisk", "m")), Timestamp::UNIX_EPOCH).unwrap();
        let free = with_blocked(&blocked, None, Timestamp::MAX).unwrap();
        for written in [&blocked, &free] {
            for field in newer {
                assert!(
                    written.windows(field.len()).any(|bytes| bytes == field),
                    "{written:?}"
                );
            }
        }
        let conditions = |value: &[u8]| Node::decode(value).unwrap().status.unwrap().conditions.len();
        assert_eq!((conditions(&blocked), conditions(&free)), (1, 0));
    }
}
